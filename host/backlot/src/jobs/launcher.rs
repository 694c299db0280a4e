//! Runs of jobs as tasks of the registry.

use std::{
    collections::HashMap,
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use backlot_jobs::{
    Code, How, Job, JobId, LaunchError, Launched, Launcher, RunEnding, RunId, RunOutcome, Stop,
    Stopped,
};
use backlot_registry::{
    AgentId, BoxFuture, Caller, Channel, Kill, KillError, Killed, Mode, Owner, Refusal, Registry,
    SessionId, Snapshot, Start, StartError, Status, Step, StopCause, Stream, TaskId,
};
use backlot_surface::wire::Grant;
use tokio::sync::oneshot;

use super::{Recorded as _, lock, record::Records, versions::Versions};
use crate::{host::Host, numbers::Numbers};

/// The longest output that a run hands on, in bytes: to what follows it, and to the
/// record. More is in the recorded output.
const HANDED_ON: u64 = 1 << 20;
/// How much output is read at a time.
const PIECE_BYTES: usize = 256 << 10;

/// Starts runs of jobs as tasks, and stops them.
pub(super) struct TaskLauncher {
    registry: Registry,
    versions: Arc<Versions>,
    records: Arc<Records>,
    runtime: tokio::runtime::Handle,
    /// The tasks of runs whose end was not told yet.
    live: Arc<Mutex<HashMap<RunId, TaskId>>>,
    /// Whom the tasks belong to: the sessions that their jobs work for.
    owners: Mutex<HashMap<SessionId, Owner>>,
    /// The numbers of tasks, where they are written down.
    numbers: Option<Numbers>,
}

impl TaskLauncher {
    pub(super) fn new(
        host: &Host,
        versions: Arc<Versions>,
        records: Arc<Records>,
        numbers: Option<Numbers>,
    ) -> Self {
        Self {
            registry: host.registry().clone(),
            versions,
            records,
            runtime: tokio::runtime::Handle::current(),
            live: Arc::default(),
            owners: Mutex::default(),
            numbers,
        }
    }

    /// Returns the task that does a run, as long as its end was not told.
    pub(super) fn task(&self, run: RunId) -> Option<TaskId> {
        lock(&self.live).get(&run).cloned()
    }

    /// Lets go of a session that is no more.
    pub(super) async fn forget(&self, session: &SessionId) {
        let owner = lock(&self.owners).remove(session);
        if let Some(owner) = owner {
            owner.dispose().await;
        }
    }

    fn owner(&self, session: &SessionId) -> Owner {
        let mut owners = lock(&self.owners);
        let register = || {
            // A session is the agent whose work this is.
            let agent = AgentId::new(session.as_str());
            self.registry.register_owner(agent, session.clone())
        };
        owners.entry(session.clone()).or_insert_with(register).clone()
    }

    async fn start(&self, job: &Job, run: RunId) -> Result<Launched, LaunchError> {
        let kind = job.stage_kind();
        let pinned = self.versions.of(job, kind).await?;
        if job.stage.kind.is_some() && pinned.component().has_steps() {
            return Err(LaunchError::Refused(format!(
                "{kind} decides itself what follows its runs, so it can be no step of another job: \
                 spawn it as a job of its own"
            )));
        }
        // What may have to run again has to be there then.
        let is_stepped = pinned.component().has_steps() || job.stage.kind.is_some();
        if is_stepped || job.spec.pinned.is_some() {
            self.versions.keep(&pinned).await?;
        }
        let ask = Grant::of_record(job.spec.grant.as_deref()).map_err(LaunchError::Refused)?;
        // What is asked for is for the kinds of the steps; one that says it needs nothing of
        // a sort, such as one that only decides what follows, is not given it.
        let ask = match pinned.manifest() {
            Some(manifest) if is_stepped => ask.as_far_as(manifest),
            _ => ask,
        };
        let generation = pinned.component().generation().clone();
        let code = Code {
            kind: kind.clone(),
            digest: generation.digest.to_string(),
            generation: generation.number,
        };
        let producer = self.versions.plugins().catalog().producer_of(pinned, ask);
        let work = self.records.folder().work(job.id);
        if producer.work_folder().is_some() {
            make(work.clone()).await?;
        }
        let producer = producer.with_work_folder(work);
        let start = Start {
            label: job.spec.label.clone(),
            input: job.stage_input().to_owned(),
            owner: Some(self.owner(&job.spec.parent)),
            step: step_of(job),
        };
        let task = self.registry.start(Arc::new(producer), start).await.map_err(refused)?;
        if let Some(numbers) = &self.numbers {
            numbers.used(&task);
        }
        lock(&self.live).insert(run, task.clone());
        let followed = Followed {
            registry: self.registry.clone(),
            records: self.records.clone(),
            live: self.live.clone(),
            job: job.id,
            run,
            number: job.attempt.saturating_sub(1).saturating_mul(1_000).saturating_add(job.step),
            task: task.clone(),
            is_handed_on: is_stepped,
        };
        let (tell, ended) = oneshot::channel();
        self.runtime.spawn(async move {
            // Nobody hears it when the manager is gone.
            let _ = tell.send(followed.follow().await);
        });
        let lost = move |_| RunOutcome {
            run: Some(run),
            ending: RunEnding::Failed,
            detail: Some("the end of the run was lost".to_owned()),
            output: None,
        };
        Ok(Launched {
            task: Some(task.to_string()),
            code: Some(code),
            ended: Box::pin(async move { ended.await.unwrap_or_else(lost) }),
        })
    }
}

impl Launcher for TaskLauncher {
    fn launch(&self, job: &Job, run: RunId) -> BoxFuture<'_, Result<Launched, LaunchError>> {
        let job = job.clone();
        Box::pin(async move {
            let launched = self.start(&job, run).await;
            if launched.is_err() {
                self.versions.release(job.id);
            }
            launched
        })
    }

    fn stop(&self, stop: Stop) -> BoxFuture<'_, Result<Stopped, String>> {
        Box::pin(async move {
            let Some(task) = self.task(stop.run) else { return Ok(Stopped::Unknown) };
            let mode = match stop.how {
                How::AfterStep => return Ok(Stopped::AfterStep),
                How::Ask => Mode::Ask,
                How::Force => Mode::Force,
            };
            let reason = stop.request.and_then(|request| request.why);
            match self.registry.kill(&task, &Caller::Operator, Kill { mode, reason }).await {
                // What broke while it was asked ends as failed.
                Ok(Killed::Requested) | Err(KillError::Crashed { .. }) => Ok(Stopped::Stopping),
                // What it wrote may still be being recorded.
                Ok(Killed::AlreadyTerminal) | Err(KillError::Unknown(_)) => {
                    Ok(Stopped::AlreadyFinished)
                }
                Err(KillError::Refused { why, .. }) => Err(why.to_string()),
            }
        })
    }

    fn detail(&self, _: JobId, run: RunId) -> Option<String> {
        let task = self.task(run)?;
        self.registry.get(&task, &Caller::Operator).ok()?.detail
    }
}

/// Makes the folder that a job works in, for this user alone, unless it is there.
async fn make(work: PathBuf) -> Result<(), LaunchError> {
    let shown = work.display().to_string();
    let made = tokio::task::spawn_blocking(move || {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&work)
    });
    let made = made.await.unwrap_or_else(|error| Err(io::Error::other(error)));
    made.map_err(|error| LaunchError::Unavailable(format!("the work folder {shown}: {error}")))
}

/// Returns where the job's current run stands, as its producer is told.
pub(super) fn step_of(job: &Job) -> Step {
    Step {
        job: Some(job.id.to_string()),
        attempt: job.attempt,
        number: job.step,
        cause: job.stage.cause,
        state: job.state.clone(),
        last_failure: job.stage.last_failure.clone(),
        answer: job.stage.answer.clone(),
    }
}

/// Returns why a run did not start, and whether it might another time.
fn refused(error: StartError) -> LaunchError {
    match error {
        StartError::Refused { refusal: Refusal::Unavailable(_) | Refusal::Broken(_), .. }
        | StartError::Full { .. }
        | StartError::Deadline { .. }
        | StartError::Panicked { .. }
        | StartError::Disposed
        | StartError::NoSurface
        | StartError::OwnerGone { .. } => LaunchError::Unavailable(error.to_string()),
        StartError::Refused { .. }
        | StartError::InvalidLabel { .. }
        | StartError::NumbersExhausted { .. } => LaunchError::Refused(error.to_string()),
    }
}

/// A run that is followed to its end.
struct Followed {
    registry: Registry,
    records: Arc<Records>,
    live: Arc<Mutex<HashMap<RunId, TaskId>>>,
    job: JobId,
    run: RunId,
    /// Counts the runs of the job in what is recorded.
    number: u32,
    task: TaskId,
    /// Whether something follows that needs all of its output, or none.
    is_handed_on: bool,
}

impl Followed {
    async fn follow(self) -> RunOutcome {
        self.records.record(&self.registry, self.job, self.number, &self.task).await;
        let outcome = match self.ended().await {
            Some(snapshot) => self.outcome(&snapshot).await,
            None => RunOutcome {
                run: Some(self.run),
                ending: RunEnding::Failed,
                detail: Some("its task was dropped before its end was heard".to_owned()),
                output: None,
            },
        };
        lock(&self.live).remove(&self.run);
        outcome
    }

    async fn ended(&self) -> Option<Snapshot> {
        loop {
            let wait =
                self.registry.wait(&self.task, &Caller::Operator, Duration::from_secs(3_600));
            match wait.await {
                Ok(snapshot) if snapshot.status.is_terminal() => return Some(snapshot),
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    }

    async fn outcome(&self, ended: &Snapshot) -> RunOutcome {
        let ending = match (ended.status, ended.stopped_by) {
            (Status::Completed, _) => RunEnding::Completed,
            (Status::Killed, _) => RunEnding::Cancelled,
            (_, Some(StopCause::Shutdown)) => RunEnding::Interrupted,
            _ => RunEnding::Failed,
        };
        let (output, why_not) = match self.output(ended).await {
            Ok(output) => (Some(output), None),
            Err(why) => (None, Some(why)),
        };
        let detail = match (ended.detail.clone(), why_not.filter(|_| self.is_handed_on)) {
            (Some(detail), Some(why)) => Some(format!("{detail}; {why}")),
            (detail, why) => detail.or(why),
        };
        RunOutcome { run: Some(self.run), ending, detail, output }
    }

    /// Returns the output as text. Where something follows that works with it, it is whole;
    /// otherwise it may be the beginning.
    async fn output(&self, ended: &Snapshot) -> Result<String, String> {
        if self.is_handed_on && ended.output_bytes > HANDED_ON {
            return Err(format!(
                "its output of {} bytes is too long to hand on",
                ended.output_bytes
            ));
        }
        let observer = self.registry.observe(&self.task, &Caller::Operator, Stream::Output, 0);
        let Ok(mut observer) = observer else { return Ok(String::new()) };
        let mut bytes = Vec::new();
        let mut is_whole = true;
        while let Some(piece) = observer.next(PIECE_BYTES).await {
            is_whole &= piece.dropped == 0;
            if piece.channel == Channel::Out {
                bytes.extend_from_slice(&piece.bytes);
            }
            if bytes.len() as u64 >= HANDED_ON {
                break;
            }
        }
        match (self.is_handed_on, String::from_utf8(bytes)) {
            (true, Ok(_)) if !is_whole => Err("its output is not all there".to_owned()),
            (_, Ok(text)) => Ok(text),
            (true, Err(_)) => Err("its output is no text".to_owned()),
            (false, Err(error)) => Ok(String::from_utf8_lossy(error.as_bytes()).into_owned()),
        }
    }
}
