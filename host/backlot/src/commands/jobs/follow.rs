//! A job that is followed through its host: what its runs write, how far it is, how it
//! ends. The host may end before the job does, or before all of that was told.

use std::{cell::Cell, convert::Infallible, time::Duration};

use backlot_jobs::Status;
use backlot_surface::wire::{Content, JobView, OutputQuery, PartName, StopHow, StopRequest};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::{
    Told, exit_with, gist,
    logs::{PIECE_BYTES, Printer, Stop, WAIT_MS, output},
    reach::{Looking, Onlooker, Reach},
};
use crate::{
    cli::Common,
    commands::follow::Signals,
    console::Console,
    exit::Exit,
    render,
    wire::{self, Event, Task},
};

/// How often progress is looked at, and so how often it can be printed.
const PROGRESS: Duration = Duration::from_secs(1);
/// How long the process stays once a signal has it leave.
const LEAVE: Duration = Duration::from_millis(500);

/// A job that is followed through its host.
pub(super) struct Follow<'a> {
    onlooker: Onlooker<'a>,
    common: &'a Common,
    console: &'a Console,
    id: String,
    json: bool,
    /// Where what is shown begins: of the output, and of the log.
    begin: (u64, u64),
}

/// What was seen of a job's output.
#[derive(Clone, Copy, Default)]
struct Seen {
    bytes: u64,
    dropped: u64,
}

impl<'a> Follow<'a> {
    pub(super) fn new(
        looking: Looking,
        common: &'a Common,
        console: &'a Console,
        id: String,
        json: bool,
    ) -> Self {
        Self { onlooker: Onlooker::new(common, looking), common, console, id, json, begin: (0, 0) }
    }

    /// Returns it as one that shows what comes from there on.
    pub(super) fn from(self, begin: (u64, u64)) -> Self {
        Self { begin, ..self }
    }

    /// Shows the job until it has ended and all is told, or a signal has the process leave.
    pub(super) async fn to_the_end(&self, signals: &mut Signals) -> Result<Exit, Told> {
        tokio::select! {
            told = self.tell() => told,
            never = self.progress() => match never {},
            () = self.stop_on(signals) => Ok(Exit::Killed),
        }
    }

    async fn tell(&self) -> Result<Exit, Told> {
        let job = self.job().await?;
        self.event(|| Event::Started {
            id: job.run.as_ref().and_then(|run| run.task.clone()).unwrap_or_default(),
            kind: job.kind.clone(),
            label: job.label.clone(),
            job: Some(job.id.to_string()),
        })
        .await;
        let seen = Cell::new(Seen::default());
        // Who reads one of them no more waits for nothing of the other.
        let printed =
            tokio::try_join!(self.print(PartName::Output, &seen), self.print(PartName::Log, &seen));
        match printed {
            Err(Stop::Told(told)) => return Err(told),
            // What a reader no longer wants is done, as far as it is concerned.
            Err(Stop::Closed) => {
                self.stop(StopHow::Ask, "nobody reads its output any more").await;
                return Ok(Exit::Completed);
            }
            Ok(_) => {}
        }
        let job = self.job().await?;
        let Seen { bytes, dropped } = seen.get();
        self.event(|| Event::Ended { task: Task::of_job(&job, bytes, dropped) }).await;
        if !self.common.quiet {
            let took = job.finished_ms.unwrap_or(job.updated_ms).saturating_sub(job.created_ms);
            let line = format!("{} ({:.2}s)", gist(&job), took as f64 / 1e3);
            self.console.err.say(&line).await;
        }
        Ok(exit_with(&job))
    }

    async fn job(&self) -> Result<JobView, Told> {
        self.onlooker.ask(async |(reach, _)| reach.job(&self.id).await).await
    }

    async fn print(&self, part: PartName, seen: &Cell<Seen>) -> Result<(), Stop> {
        let printer = Printer { console: self.console, json: self.json };
        let after = match part {
            PartName::Output => self.begin.0,
            PartName::Log => self.begin.1,
        };
        let mut query = OutputQuery { part, after, max: Some(PIECE_BYTES), wait_ms: Some(WAIT_MS) };
        loop {
            let reply = output(&self.onlooker, &self.id, &query).await?;
            query.after = reply.next;
            let mut pieces = reply.pieces;
            for piece in &mut pieces {
                let Seen { bytes, dropped } = seen.get();
                let own = if part == PartName::Output { piece.content.bytes().len() } else { 0 };
                seen.set(Seen { bytes: bytes + own as u64, dropped: dropped + piece.dropped });
                if self.json {
                    // Events have text, and what is none as far as it can be shown.
                    let text = String::from_utf8_lossy(piece.content.bytes()).into_owned();
                    piece.content = Content::Text(text);
                }
            }
            printer.pieces(pieces).await?;
            if reply.ended {
                return Ok(());
            }
        }
    }

    /// Prints how far the job is, and what it asks.
    async fn progress(&self) -> Infallible {
        let mut ticks = interval(PROGRESS);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut shown = None;
        loop {
            ticks.tick().await;
            let Ok(job) = self.job().await else { continue };
            let news = news(&job);
            if self.common.quiet || news == shown {
                continue;
            }
            if let Some(news) = &news {
                self.console.err.say(&render::one_line(news)).await;
            }
            shown = news;
        }
    }

    /// Stops the job by signals: the first asks, the second forces.
    async fn stop_on(&self, signals: &mut Signals) {
        let name = signals.next().await;
        tokio::select! {
            () = async {
                self.stop(StopHow::Ask, name).await;
                std::future::pending::<()>().await;
            } => {}
            name = signals.next() => {
                let _ = timeout(LEAVE, self.stop(StopHow::Force, name)).await;
            }
        }
        sleep(LEAVE).await;
    }

    async fn stop(&self, how: StopHow, why: &str) {
        let request =
            StopRequest { how, by: Some("terminal".to_owned()), why: Some(why.to_owned()) };
        let asked = self.onlooker.looking();
        // Without a host there is nothing to stop.
        let Reach::Host(client) = &asked.0 else { return };
        if let Err(error) = client.stop(&self.id, &request).await {
            let why = Told::from(error).line();
            self.console
                .err
                .note(&format!("{}; press Ctrl-C again to force", render::complaint(&why)));
        }
    }

    async fn event(&self, event: impl FnOnce() -> Event) {
        if self.json {
            // Who reads no more is found out by the output.
            let _ = self.console.out.write(wire::line(&event())).await;
        }
    }
}

/// Returns what a person wants to hear of a job that goes on.
pub(super) fn news(job: &JobView) -> Option<String> {
    let id = job.id.short();
    match (&job.question, job.status) {
        (Some(question), _) => {
            let asks = &question.prompt;
            Some(format!("{id} asks: {asks} — backlot answer {id} ANSWER; Ctrl-C cancels it"))
        }
        (None, Status::Queued) => Some(format!("{id} waits; Ctrl-C cancels it")),
        (None, status) if status.is_terminal() => None,
        (None, _) => job.progress.as_ref().map(|progress| format!("{id}: {progress}")),
    }
}
