//! Waiting for a job within a call, and telling how far it is meanwhile.

use std::{convert::Infallible, future::pending, pin::pin, time::Duration};

use backlot_jobs::{Hand, Job, JobId, Status, output::Part};
use futures::future::BoxFuture;
use rmcp::{
    RoleServer,
    model::{InputResponses, ProgressNotificationParam, ProgressToken},
    service::{Peer, RequestContext},
};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{
    asking::{self, Reply},
    logging,
    output::{self, NEW_BYTES, Portion},
    server::Server,
    told::Handover,
    who::Asker,
};
use crate::error::Failure;

/// How often it is looked how far a job is: no event tells of every line of progress, and a
/// person reads about one a second.
const LOOK: Duration = Duration::from_secs(1);

/// How many lines of a log are messages of their own in one look. More are one message: who
/// reads them reads them as a whole, and each costs a client something.
const LINES: usize = 64;
/// How many portions of a log are told once its job has ended. What is left stays in the log.
const LAST: usize = 8;

/// How many questions one call asks a person. A job that has more waits for another call.
const QUESTIONS: usize = 8;

/// One call of a tool, as far as what happens in it is concerned.
pub(super) struct Call {
    pub(super) asker: Asker,
    pub(super) peer: Peer<RoleServer>,
    /// Resolves when whoever called wants no answer any more.
    pub(super) cancelled: CancellationToken,
    /// Under which progress is told.
    pub(super) progress: Option<ProgressToken>,
    /// Whether lines of logs are told.
    pub(super) wants_log: bool,
    /// How the person can be asked.
    pub(super) asks: asking::Way,
    /// The trace that the call belongs to.
    pub(super) trace: Option<String>,
    pub(super) handover: Handover,
}

impl Call {
    pub(super) fn of(server: &Server, asker: Asker, context: &RequestContext<RoleServer>) -> Self {
        Self {
            asker,
            peer: context.peer.clone(),
            cancelled: context.ct.clone(),
            progress: context.meta.get_progress_token(),
            wants_log: server.wants_log(context),
            asks: asking::Way::of(context),
            trace: context.meta.get_traceparent().map(Into::into),
            handover: Handover::of(&context.extensions),
        }
    }
}

/// Which job is waited for.
pub(super) struct Awaits {
    id: JobId,
    /// The job, where it was spawned or looked at just now.
    known: Option<Job>,
}

impl From<JobId> for Awaits {
    fn from(id: JobId) -> Self {
        Self { id, known: None }
    }
}

impl From<Job> for Awaits {
    fn from(job: Job) -> Self {
        Self { id: job.id, known: Some(job) }
    }
}

/// What came of waiting.
pub(super) enum Waited {
    /// The job as it is then: ended, waiting for a person, or still at it.
    Job(Box<Job>),
    /// A person has to be asked, in the form of an answer, and why what they answered before
    /// does not fit.
    Ask(Box<Job>, Option<String>),
    /// Whoever called wants no answer any more.
    Cancelled,
}

/// Waits for a job to end, and hands it what was answered to what it asks: with the call, or
/// by the person, where the client can show them the question.
pub(super) async fn wait(
    server: &Server,
    call: &Call,
    awaits: impl Into<Awaits>,
    time: Duration,
    given: InputResponses,
) -> Result<Waited, Failure> {
    let (mut given, mut why) = (given, None);
    let Awaits { id, mut known } = awaits.into();
    let mut telling = Telling::new(server, call, id);
    let mut deadline = Instant::now() + time;
    for _ in 0..QUESTIONS {
        let left = deadline.saturating_duration_since(Instant::now());
        let Some(job) = look(&mut telling, known.take(), left).await? else {
            return Ok(Waited::Cancelled);
        };
        if job.status() != Status::InputRequired || call.asker.owed().is_none() {
            return Ok(Waited::Job(Box::new(job)));
        }
        let reply = match (asking::given(server, call, &job, &mut given).await?, call.asks) {
            (Some(reply), _) => reply,
            (None, asking::Way::Request) => {
                asking::request(server, call, &job, why.as_deref()).await?
            }
            (None, asking::Way::Answer) => return Ok(Waited::Ask(Box::new(job), why)),
            (None, asking::Way::None) => return Ok(Waited::Job(Box::new(job))),
        };
        why = match reply {
            Reply::Answered => None,
            Reply::Unfit(why) => Some(why),
            Reply::Declined => return Ok(Waited::Job(Box::new(job))),
        };
        // The person took the time, and not the job.
        deadline = Instant::now() + time;
    }
    let job = server.api().manager.get(id, &call.asker.caller).await?;
    Ok(Waited::Job(Box::new(job)))
}

/// Returns the job once it has ended or asks, the time has passed or the host ends; `None`
/// where nobody wants to know any more. Tells meanwhile how far it is.
async fn look(
    telling: &mut Telling<'_>,
    known: Option<Job>,
    time: Duration,
) -> Result<Option<Job>, Failure> {
    let (server, call, id) = (telling.server, telling.call, telling.id);
    let (manager, caller) = (&server.api().manager, &call.asker.caller);
    let status = async {
        match known {
            Some(job) => manager.outcome(job, caller, time, Hand::Person).await,
            None => manager.status(id, caller, time, Hand::Person).await,
        }
    };
    let job = tokio::select! {
        biased;
        job = status => job?,
        () = server.leaving() => return Ok(Some(manager.get(id, caller).await?)),
        () = call.cancelled.cancelled() => return Ok(None),
        never = telling.follow() => match never {},
    };
    // What came last comes before the answer, which tells of the end.
    tokio::select! {
        () = telling.finish(&job) => {}
        () = server.leaving() => {}
        () = call.cancelled.cancelled() => return Ok(None),
    }
    Ok(Some(job))
}

/// What whoever called is told while a job is waited for.
struct Telling<'a> {
    server: &'a Server,
    call: &'a Call,
    id: JobId,
    /// How far the job was when that was told last, and how often it was.
    said: Option<String>,
    count: u32,
    /// Up to where its log was told.
    after: u64,
    /// What is being told. It is kept where whoever waits for it goes on with something else,
    /// so that nothing is told twice, and nothing is left out.
    sending: Option<BoxFuture<'a, ()>>,
}

impl<'a> Telling<'a> {
    fn new(server: &'a Server, call: &'a Call, id: JobId) -> Self {
        let session = call.asker.owed();
        let after = session.map(|session| server.told().place(session, id, Part::Log));
        let after = after.unwrap_or_default();
        Self { server, call, id, said: None, count: 0, after, sending: None }
    }

    fn is_wanted(&self) -> bool {
        self.call.progress.is_some() || self.call.wants_log
    }

    /// Tells how far the job is, for as long as it is waited for.
    async fn follow(&mut self) -> Infallible {
        if !self.is_wanted() {
            return pending().await;
        }
        let recorded = self.server.api().host.recorded(self.id);
        let watched = self.server.api().manager.watch(self.id);
        loop {
            // Both are made before the look, so that nothing falls between.
            let mut news = pin!(recorded.notified());
            let mut changed = pin!(watched.notified());
            news.as_mut().enable();
            changed.as_mut().enable();
            self.tell_progress().await;
            self.tell_log(false).await;
            tokio::select! {
                () = news => {}
                () = changed => {}
                () = sleep(LOOK) => {}
            }
        }
    }

    /// Tells what is left to tell of a job that is not waited for any more.
    async fn finish(&mut self, job: &Job) {
        if !self.is_wanted() {
            return;
        }
        self.flush().await;
        // Why one has failed or was stopped is for the answer.
        if !matches!(job.status(), Status::Failed | Status::Cancelled) {
            self.tell_progress().await;
        }
        for _ in 0..LAST {
            if !self.tell_log(job.status().is_terminal()).await {
                break;
            }
        }
    }

    async fn tell_progress(&mut self) {
        let Some(token) = self.call.progress.clone() else { return };
        let manager = &self.server.api().manager;
        let Ok(job) = manager.get(self.id, &self.call.asker.caller).await else { return };
        let progress = manager.progress(std::slice::from_ref(&job)).await.pop().flatten();
        if progress.is_none() || progress == self.said {
            return;
        }
        self.said.clone_from(&progress);
        self.count += 1;
        let mut told = ProgressNotificationParam::new(token, f64::from(self.count));
        told.message = progress;
        let peer = &self.call.peer;
        self.send(async move {
            // Who is gone is not told, and the call ends by itself.
            let _ = peer.notify_progress(told).await;
        })
        .await;
    }

    /// Tells what is new in the job's log, line by line; returns whether there is more. A
    /// line that is still being written comes once it is whole.
    async fn tell_log(&mut self, is_over: bool) -> bool {
        if !self.call.wants_log {
            return false;
        }
        let (folder, id) = (&self.server.api().folder, self.id);
        let read = output::recorded(folder, id, Part::Log, self.after, NEW_BYTES, is_over).await;
        let Ok(portion) = read.inspect_err(|error| tracing::warn!(job = %id, "{error}")) else {
            return false;
        };
        let text = whole_lines(&portion, is_over);
        self.after = portion.next - (portion.text.len() - text.len()) as u64;
        if let Some(session) = self.call.asker.owed() {
            self.server.told().move_place(session, id, Part::Log, self.after);
        }
        let lines = || text.lines().filter(|line| !line.is_empty());
        let messages: Vec<String> = match lines().count() {
            0..=LINES => lines().map(Into::into).collect(),
            _ => vec![text.trim_end().to_owned()],
        };
        let (peer, logger) = (&self.call.peer, format!("task {}", id.short()));
        self.send(async move {
            for message in messages {
                logging::tell(peer, &logger, message).await;
            }
        })
        .await;
        portion.is_cut
    }

    async fn send(&mut self, sending: impl Future<Output = ()> + Send + 'a) {
        self.flush().await;
        self.sending = Some(Box::pin(sending));
        self.flush().await;
    }

    /// Waits until what is being told was.
    async fn flush(&mut self) {
        if let Some(sending) = &mut self.sending {
            sending.await;
            self.sending = None;
        }
    }
}

/// Returns what a portion of a log has of whole lines. The last one is as whole as it gets
/// where nothing follows, and one that is too long for a portion is told in parts.
fn whole_lines(portion: &Portion, is_over: bool) -> &str {
    let text = &portion.text;
    match text.rfind('\n') {
        _ if is_over && !portion.is_cut => text,
        Some(end) => &text[..=end],
        None if portion.is_cut => text,
        None => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_told_once_it_is_whole() {
        let lines = |text: &str, is_cut, is_over| {
            let portion = Portion { text: text.to_owned(), next: 9, is_cut };
            whole_lines(&portion, is_over).to_owned()
        };
        assert_eq!(lines("a\nb\n", false, false), "a\nb\n");
        assert_eq!(lines("a\nb", false, false), "a\n");
        assert_eq!(lines("b", false, false), "");
        assert_eq!(lines("a\nb", false, true), "a\nb");
        // What follows is told next, and a line that fills a portion has no end in it.
        assert_eq!(lines("a\nb", true, true), "a\n");
        assert_eq!(lines("b", true, false), "b");
    }
}
