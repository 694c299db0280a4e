//! A task that is followed: what it writes, how far it is, how it ends.

use std::{
    cell::{Cell, OnceCell},
    convert::Infallible,
    future::pending,
    io, mem,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use backlot_jobs::{How, JobId, Manager, StopError};
use backlot_registry::{Caller, Kill, Killed, Mode, Observer, Registry, Stream, TaskId};
use bytes::Bytes;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::{MissedTickBehavior, interval, sleep, timeout},
};

use crate::{
    console::{Console, is_closed},
    exit::Exit,
    holding::{Asked, Holding},
    render::{self, Unshown},
    wire::{self, Event, StreamName, Task},
};

/// How much of a task's output is written at a time, in bytes.
const PIECE_BYTES: usize = 256 << 10;
/// How often progress is looked at, and so how often it can be printed.
const PROGRESS: Duration = Duration::from_secs(1);
/// How long the process stays once a signal has it leave. A reader that reads
/// gets what is left by then; one that does not must not hold up a person.
const LEAVE: Duration = Duration::from_millis(500);
/// How long the record of an end is waited for before the end is told all the same.
const WRITTEN: Duration = Duration::from_secs(2);

/// A task that is followed to its end.
pub(super) struct Follow {
    registry: Registry,
    console: Console,
    id: TaskId,
    json: bool,
    quiet: bool,
    /// Why nothing is written to stdout any more.
    unread: OnceCell<io::Error>,
    /// What was dropped before it could be written.
    unshown: Cell<Unshown>,
    /// The job that the task is a run of.
    job: Option<Followed>,
    /// Whether a signal has had the process leave.
    left: Cell<bool>,
}

/// A job whose run is followed.
#[derive(Clone)]
pub(super) struct Followed {
    pub(super) manager: Manager,
    pub(super) id: JobId,
}

impl Followed {
    /// Waits until the job is not on the run any more that the task does, which is then
    /// written down. A store that cannot be written is not waited for.
    async fn is_written(&self, task: &TaskId) {
        let task = task.to_string();
        let watch = self.manager.watch(self.id);
        let wait = async {
            loop {
                // Made before the look, so that no change falls between.
                let changed = watch.notified();
                match self.manager.get(self.id, &Caller::Operator).await {
                    Ok(job)
                        if job.run().is_some()
                            && job.last_run().is_some_and(|run| {
                                run.task.as_ref().is_none_or(|it| *it == task)
                            }) =>
                    {
                        changed.await;
                    }
                    _ => return,
                }
            }
        };
        let _ = timeout(WRITTEN, wait).await;
    }

    async fn stop(&self, mode: Mode, reason: &str) -> Result<Killed, StopError> {
        let how = match mode {
            Mode::Ask => How::Ask,
            Mode::Force => How::Force,
        };
        let why = Some(reason.to_owned());
        let stopped = self.manager.stop(self.id, &Caller::Operator, how, "terminal", why).await;
        Ok(match stopped?.job().status().is_terminal() {
            true => Killed::AlreadyTerminal,
            false => Killed::Requested,
        })
    }
}

impl Follow {
    pub(super) fn new(
        registry: &Registry,
        console: &Console,
        id: TaskId,
        json: bool,
        quiet: bool,
    ) -> Self {
        Self {
            registry: registry.clone(),
            console: console.clone(),
            id,
            json,
            quiet,
            unread: OnceCell::new(),
            unshown: Cell::default(),
            job: None,
            left: Cell::new(false),
        }
    }

    /// Returns it as one that follows a run of that job.
    pub(super) fn of_job(self, job: Followed) -> Self {
        Self { job: Some(job), ..self }
    }

    /// Shows the task until it has ended and all is told, or a signal has the
    /// process leave.
    pub(super) async fn to_the_end(&self, signals: &mut Signals) -> anyhow::Result<Exit> {
        tokio::select! {
            told = self.tell() => told,
            never = self.progress() => match never {},
            () = self.stop_on(signals) => {
                self.left.set(true);
                Ok(self.leave().await)
            }
        }
    }

    /// Tells whether nobody reads any more what it writes.
    pub(super) fn is_unread(&self) -> bool {
        self.unread.get().is_some_and(is_closed)
    }

    /// Tells whether a signal has had the process leave before all was told.
    pub(super) fn was_left(&self) -> bool {
        self.left.get()
    }

    /// Tells everything, from the start to the end.
    pub(super) async fn tell(&self) -> anyhow::Result<Exit> {
        let gone = || format!("{} was dropped while it was followed", self.id);
        let me = Caller::Operator;
        let output = self.registry.observe(&self.id, &me, Stream::Output, 0).with_context(gone)?;
        let log = self.registry.observe(&self.id, &me, Stream::Log, 0).with_context(gone)?;
        // What is recorded anyway is not asked for twice.
        let output = if self.job.is_some() { output.passive() } else { output };
        let task = self.registry.get(&self.id, &me).with_context(gone)?;
        self.event(|| Event::Started {
            id: task.id.to_string(),
            kind: task.kind.to_string(),
            label: task.label.clone(),
            job: self.job.as_ref().map(|job| job.id.to_string()),
        })
        .await;
        tokio::join!(self.print(output, Stream::Output), self.print(log, Stream::Log));
        let task = self.registry.wait(&self.id, &me, Duration::ZERO).await.with_context(gone)?;
        if let Some(job) = &self.job {
            job.is_written(&self.id).await;
        }
        if self.unread.get().is_some_and(is_closed) {
            // What a reader no longer wants is done, as far as it is concerned.
            return Ok(Exit::Completed);
        }
        self.event(|| Event::Ended { task: Task::of(&task) }).await;
        if !self.quiet {
            self.console.err.say(&render::ending(&task, self.unshown.get())).await;
        }
        match self.unread.get() {
            Some(error) if !is_closed(error) => bail!("cannot write to stdout: {error}"),
            _ => Ok(Exit::of(task.status)),
        }
    }

    /// Leaves without what nobody has read by now.
    async fn leave(&self) -> Exit {
        match self.registry.wait(&self.id, &Caller::Operator, Duration::ZERO).await {
            Ok(task) if task.status.is_terminal() => {
                if !self.quiet {
                    self.console.err.note(&render::ending(&task, self.unshown.get()));
                }
                Exit::of(task.status)
            }
            // It ends with the process.
            _ => Exit::Killed,
        }
    }

    /// Prints the stream until the task has ended.
    async fn print(&self, mut observer: Observer, stream: Stream) {
        let mut texts = match stream {
            Stream::Output => vec![Text::of(StreamName::Stdout), Text::of(StreamName::Stderr)],
            Stream::Log => vec![Text::of(StreamName::Log)],
        };
        while let Some(piece) = observer.next(PIECE_BYTES).await {
            if self.unread.get().is_some() {
                // The rest is read without being shown, so that the end is heard.
                continue;
            }
            let name = match stream {
                Stream::Output => StreamName::of(piece.channel),
                Stream::Log => StreamName::Log,
            };
            if piece.dropped > 0 {
                // What comes next completes no character.
                self.finish(&mut texts).await;
                self.tell_dropped(name, piece.dropped).await;
            }
            if !self.json {
                self.write(name, piece.bytes).await;
            } else if let Some(text) = texts.iter_mut().find(|text| text.name == name)
                && let Some((offset, text)) = text.decoder.push(piece.offset, &piece.bytes)
            {
                self.event(|| Event::Output { stream: name, offset, text }).await;
            }
        }
        self.finish(&mut texts).await;
    }

    /// Prints the characters that will not be completed.
    async fn finish(&self, texts: &mut [Text]) {
        for text in texts {
            if let Some((offset, rest)) = text.decoder.finish() {
                self.event(|| Event::Output { stream: text.name, offset, text: rest }).await;
            }
        }
    }

    /// Tells how much was dropped at this point, and counts it.
    async fn tell_dropped(&self, stream: StreamName, bytes: u64) {
        let Unshown { output, log } = self.unshown.get();
        let (of, unshown) = match stream {
            StreamName::Log => ("the log", Unshown { output, log: log + bytes }),
            _ => ("output", Unshown { output: output + bytes, log }),
        };
        self.unshown.set(unshown);
        match self.json {
            true => self.event(|| Event::Dropped { stream, bytes }).await,
            false => {
                // Not waited for: stdout goes on where nobody reads stderr.
                self.console.err.note(&format!("backlot: {bytes} bytes of {of} were dropped here"));
            }
        }
    }

    /// Prints what the task reports of its progress.
    pub(super) async fn progress(&self) -> Infallible {
        let mut ticks = interval(PROGRESS);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut shown = None;
        loop {
            ticks.tick().await;
            let Ok(task) = self.registry.get(&self.id, &Caller::Operator) else { continue };
            if task.status.is_terminal() || self.quiet || task.detail == shown {
                continue;
            }
            if let Some(detail) = &task.detail {
                let line = format!("{}: {}", self.id, render::one_line(detail));
                self.console.err.say(&line).await;
            }
            shown = task.detail;
        }
    }

    /// Stops the task by signals: the first asks, the second forces. Resolves when
    /// the process is to leave: when the task was forced, or had ended before it
    /// was asked and all that is left is to be written.
    async fn stop_on(&self, signals: &mut Signals) {
        let name = signals.next().await;
        let had_ended = async {
            match self.stop(Mode::Ask, name).await {
                Some(Killed::AlreadyTerminal) => {}
                Some(Killed::Requested) | None => pending().await,
            }
        };
        tokio::select! {
            () = had_ended => {}
            // A second signal does not wait for the answer to the first, and the
            // process does not wait for a task that blocks its thread.
            name = signals.next() => { let _ = timeout(LEAVE, self.stop(Mode::Force, name)).await; }
        }
        sleep(LEAVE).await;
    }

    /// Stops the task and returns what came of it, unless it refused.
    pub(super) async fn stop(&self, mode: Mode, reason: &str) -> Option<Killed> {
        let stopped = match &self.job {
            Some(job) => job.stop(mode, reason).await.map_err(|error| render::error(&error)),
            None => {
                let kill = Kill { mode, reason: Some(reason.to_owned()) };
                let killed = self.registry.kill(&self.id, &Caller::Operator, kill).await;
                killed.map_err(|error| render::error(&error))
            }
        };
        match stopped {
            Ok(killed) => Some(killed),
            Err(error) => {
                self.console.err.note(&format!("{error}; press Ctrl-C again to force"));
                None
            }
        }
    }

    /// Writes bytes to the stream that they belong to.
    async fn write(&self, stream: StreamName, bytes: Bytes) {
        match stream {
            StreamName::Stdout => self.out(bytes).await,
            // What is for people decides nothing.
            StreamName::Stderr | StreamName::Log => _ = self.console.err.write(bytes).await,
        }
    }

    /// Prints an event where events were asked for.
    async fn event(&self, event: impl FnOnce() -> Event) {
        if self.json {
            self.out(wire::line(&event())).await;
        }
    }

    /// Writes to stdout. Once that fails, the task is asked to stop.
    async fn out(&self, bytes: impl Into<Bytes>) {
        if self.unread.get().is_some() {
            return;
        }
        if let Err(error) = self.console.out.write(bytes).await {
            // Output and log can find out at once, and the first reason stands.
            let _ = self.unread.set(error);
            self.stop(Mode::Ask, "nobody reads its output any more").await;
        }
    }
}

/// One stream of bytes on its way to text.
struct Text {
    name: StreamName,
    decoder: Decoder,
}

impl Text {
    fn of(name: StreamName) -> Self {
        Self { name, decoder: Decoder::default() }
    }
}

/// Turns pieces of bytes into text without splitting a character.
#[derive(Default)]
struct Decoder {
    held: Vec<u8>,
    offset: u64,
}

impl Decoder {
    /// Returns the text that is whole, with the offset of its first byte.
    fn push(&mut self, offset: u64, bytes: &[u8]) -> Option<(u64, String)> {
        if self.held.is_empty() {
            self.offset = offset;
        }
        self.held.extend_from_slice(bytes);
        let whole = self.held.len() - incomplete_tail(&self.held);
        let rest = self.held.split_off(whole);
        let start = self.offset;
        let text = String::from_utf8_lossy(&mem::replace(&mut self.held, rest)).into_owned();
        self.offset = offset + bytes.len() as u64 - self.held.len() as u64;
        (!text.is_empty()).then_some((start, text))
    }

    /// Returns what was held, although it is not whole.
    fn finish(&mut self) -> Option<(u64, String)> {
        let held = mem::take(&mut self.held);
        (!held.is_empty()).then(|| (self.offset, String::from_utf8_lossy(&held).into_owned()))
    }
}

/// Returns how many bytes at the end are the beginning of a character.
fn incomplete_tail(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let byte = bytes[bytes.len() - back];
        let width = match byte {
            0x80..=0xBF => continue,
            0xC2..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF4 => 4,
            _ => return 0,
        };
        return if width > back { back } else { 0 };
    }
    0
}

/// The signals that stop a task.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// The host that this process is, whose end somebody may ask for.
    asked: Option<Arc<Asked>>,
    /// How often the process was told to end.
    terminated: u32,
}

impl Signals {
    pub(super) fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?,
            terminate: signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?,
            asked: None,
            terminated: 0,
        })
    }

    /// Heeds whoever asks for the host's end as well: the process is to end with it.
    pub(super) fn heed(&mut self, holding: &Holding) {
        self.asked = Some(holding.asked());
    }

    pub(super) async fn next(&mut self) -> &'static str {
        let asked = async {
            match &self.asked {
                Some(asked) => asked.wait().await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = asked => {
                self.terminated += 1;
                "backlot shutdown"
            }
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => {
                self.terminated += 1;
                "SIGTERM"
            }
        }
    }

    /// Tells whether it is the process that is to end, and not only what it shows.
    pub(super) fn is_to_end(&self) -> bool {
        self.terminated > 0
    }

    /// Tells whether that was said once more.
    pub(super) fn is_to_end_at_once(&self) -> bool {
        self.terminated > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_never_splits_a_character() {
        let text = "€✓🦀";
        let mut decoder = Decoder::default();
        let mut joined = String::new();
        for (offset, byte) in text.bytes().enumerate() {
            if let Some((at, part)) = decoder.push(offset as u64, &[byte]) {
                assert_eq!(at, joined.len() as u64);
                joined.push_str(&part);
            }
        }
        assert_eq!((joined.as_str(), decoder.finish()), (text, None));
    }

    #[test]
    fn an_incomplete_end_shows_once_as_a_replacement() {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.push(0, &[b'a', 0xF0, 0x9F]), Some((0, "a".into())));
        assert_eq!(decoder.finish(), Some((1, "\u{FFFD}".into())));
        assert_eq!(decoder.finish(), None);
    }

    #[test]
    fn what_is_not_text_is_replaced_and_not_held_back() {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.push(7, &[0xFF, b'x']), Some((7, "\u{FFFD}x".into())));
    }
}
