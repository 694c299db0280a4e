//! Waiting for a job within a call, and telling how far it is meanwhile.

use std::{convert::Infallible, future::pending, pin::pin, time::Duration};

use backlot_jobs::{Hand, Job, JobId, Status, output::Part};
use rmcp::{
    RoleServer,
    model::{ProgressNotificationParam, ProgressToken},
    service::{Peer, RequestContext},
};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{
    asking::{self, Reply},
    logging,
    output::{self, NEW_BYTES},
    server::Server,
    told::Handover,
    who::Asker,
};
use crate::error::Failure;

/// How often it is looked how far a job is: no event tells of every line of progress, and a
/// person reads about one a second.
const LOOK: Duration = Duration::from_secs(1);

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

/// What came of waiting.
pub(super) enum Waited {
    /// The job as it is then: ended, waiting for a person, or still at it.
    Job(Box<Job>),
    /// A person has to be asked, in the form of an answer.
    Ask(Box<Job>),
    /// Whoever called wants no answer any more.
    Cancelled,
}

/// Waits for a job to end, and asks the person what it asks, where the client can show that.
pub(super) async fn wait(
    server: &Server,
    call: &Call,
    id: JobId,
    time: Duration,
) -> Result<Waited, Failure> {
    let mut deadline = Instant::now() + time;
    for _ in 0..QUESTIONS {
        let left = deadline.saturating_duration_since(Instant::now());
        let Some(job) = look(server, call, id, left).await? else {
            return Ok(Waited::Cancelled);
        };
        if job.status() != Status::InputRequired {
            return Ok(Waited::Job(Box::new(job)));
        }
        match call.asks {
            asking::Way::Request if call.asker.owed().is_some() => {
                match asking::request(server, call, &job).await? {
                    Reply::Answered => {}
                    Reply::None => return Ok(Waited::Job(Box::new(job))),
                }
                // The person took the time, and not the job.
                deadline = Instant::now() + time;
            }
            asking::Way::Answer if call.asker.owed().is_some() => {
                return Ok(Waited::Ask(Box::new(job)));
            }
            _ => return Ok(Waited::Job(Box::new(job))),
        }
    }
    let job = server.api().manager.get(id, &call.asker.caller).await?;
    Ok(Waited::Job(Box::new(job)))
}

/// Returns the job once it has ended or asks, the time has passed or the host ends; `None`
/// where nobody wants to know any more.
async fn look(
    server: &Server,
    call: &Call,
    id: JobId,
    time: Duration,
) -> Result<Option<Job>, Failure> {
    let (manager, caller) = (&server.api().manager, &call.asker.caller);
    tokio::select! {
        biased;
        job = manager.status(id, caller, time, Hand::Person) => Ok(Some(job?)),
        () = server.leaving() => Ok(Some(manager.get(id, caller).await?)),
        () = call.cancelled.cancelled() => Ok(None),
        never = tell(server, call, id) => match never {},
    }
}

/// Tells how far a job is, for as long as it is waited for.
async fn tell(server: &Server, call: &Call, id: JobId) -> Infallible {
    if call.progress.is_none() && !call.wants_log {
        return pending().await;
    }
    let recorded = server.api().host.recorded(id);
    let watched = server.api().manager.watch(id);
    let (mut said, mut count, mut after) = (None, 0_u32, 0);
    loop {
        // Both are made before the look, so that nothing falls between.
        let mut news = pin!(recorded.notified());
        let mut changed = pin!(watched.notified());
        news.as_mut().enable();
        changed.as_mut().enable();
        if let Some(token) = &call.progress {
            let progress = progress_of(server, call, id).await;
            if progress.is_some() && progress != said {
                count += 1;
                let mut told = ProgressNotificationParam::new(token.clone(), f64::from(count));
                told.message = progress.clone();
                // Who is gone is not told, and the call ends by itself.
                let _ = call.peer.notify_progress(told).await;
                said = progress;
            }
        }
        if call.wants_log {
            after = tell_log(server, call, id, after).await;
        }
        tokio::select! {
            () = news => {}
            () = changed => {}
            () = sleep(LOOK) => {}
        }
    }
}

async fn progress_of(server: &Server, call: &Call, id: JobId) -> Option<String> {
    let manager = &server.api().manager;
    let job = manager.get(id, &call.asker.caller).await.ok()?;
    manager.progress(std::slice::from_ref(&job)).await.pop().flatten()
}

/// Tells what is new in a job's log, and returns up to where.
async fn tell_log(server: &Server, call: &Call, id: JobId, after: u64) -> u64 {
    let folder = &server.api().folder;
    let read = output::recorded(folder, id, Part::Log, after, NEW_BYTES, false).await;
    let Ok(portion) = read.inspect_err(|error| tracing::warn!(job = %id, "{error}")) else {
        return after;
    };
    if !portion.text.is_empty() {
        logging::tell(&call.peer, &format!("task {}", id.short()), portion.text).await;
    }
    portion.next
}
