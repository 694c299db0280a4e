//! The record of one task, and what its producer is given to speak through.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, Sleep},
};

use crate::{
    Channel, Config, Control, Environment, Form, Generation, Owner, SessionId, Snapshot, State,
    StopBounds, Stream, TaskId, Usage,
    contain::{contain, lock},
    output::{Spool, Totals},
    stop::Demand,
    text,
};

/// What tasks need of their registry. It does not keep the registry alive.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) environment: Environment,
    pub(crate) totals: Totals,
    pub(crate) counters: Counters,
}

/// What has gone wrong or been seen so far, for `health`.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) listener_failures: AtomicU64,
    pub(crate) producer_panics: AtomicU64,
    pub(crate) missed_notices: AtomicU64,
    pub(crate) orphans: AtomicU64,
    pub(crate) untold_dropped: AtomicU64,
    pub(crate) waiters: AtomicU64,
}

impl Shared {
    /// Returns a timer on the caller's runtime, or on the registry's own for a
    /// caller that has none.
    pub(crate) fn sleep(&self, duration: Duration) -> Sleep {
        if tokio::runtime::Handle::try_current().is_ok() {
            tokio::time::sleep(duration)
        } else {
            let _inside = self.environment.runtime.enter();
            tokio::time::sleep(duration)
        }
    }

    pub(crate) fn count_panic(&self) {
        self.counters.producer_panics.fetch_add(1, Ordering::Relaxed);
    }
}

/// One task. Only its driver ends it; everybody else leaves word in `body`.
pub(crate) struct Task {
    pub(crate) id: TaskId,
    /// Orders the tasks of all kinds by their start; 0 while no table holds it.
    /// Changes under the table's lock only.
    pub(crate) sequence: AtomicU64,
    pub(crate) label: Box<str>,
    pub(crate) owner: Option<Owner>,
    pub(crate) form: Form,
    pub(crate) generation: Option<Generation>,
    pub(crate) grant: Option<Arc<[String]>>,
    pub(crate) bounds: StopBounds,
    pub(crate) started_at_ms: u64,
    pub(crate) shared: Arc<Shared>,
    body: Mutex<Body>,
    output: OnceLock<Box<Spool>>,
    log: OnceLock<Box<Spool>>,
    /// Wakes the driver.
    pub(crate) wake: Notify,
    /// Wakes everybody who waits for the end.
    pub(crate) settled: Notify,
}

/// What changes about a task.
pub(crate) struct Body {
    pub(crate) state: State,
    pub(crate) reported: bool,
    pub(crate) waiters: usize,
    pub(crate) stage: Stage,
}

/// What belongs to a task while it lives, and what to it afterwards.
pub(crate) enum Stage {
    Live(Live),
    Over(Over),
}

#[derive(Default)]
pub(crate) struct Live {
    /// The last line that the work reported.
    pub(crate) report: Option<Box<str>>,
    /// Absent until the work is under way.
    pub(crate) control: Option<Arc<dyn Control>>,
    /// What is wanted of the driver.
    pub(crate) demand: Option<Box<Demand>>,
}

pub(crate) struct Over {
    pub(crate) at: Instant,
    pub(crate) usage: Option<Usage>,
    pub(crate) announcement: Announcement,
    /// Where retention keeps it.
    pub(crate) filed: Option<u64>,
}

/// How far the news of an end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Announcement {
    /// It waits for somebody who waits for the task.
    Owed,
    /// It was made; whether a listener took it.
    Made { taken: bool },
}

/// What the caller has to do once the lock on the body is released.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an announcement that is not made is lost"]
pub(crate) enum Then {
    Nothing,
    Announce,
}

impl Body {
    pub(crate) fn live(&mut self) -> Option<&mut Live> {
        match &mut self.stage {
            Stage::Live(live) => Some(live),
            Stage::Over(_) => None,
        }
    }

    /// Says whether somebody was told of the end.
    pub(crate) fn told(&self) -> bool {
        let taken = match &self.stage {
            Stage::Over(over) => over.announcement == Announcement::Made { taken: true },
            Stage::Live(_) => false,
        };
        self.reported || taken
    }

    /// Records that somebody has been told of the end, or is about to be.
    pub(crate) fn report(&mut self) -> Then {
        self.reported = true;
        self.conclude()
    }

    /// Makes the announcement due if it is still owed.
    pub(crate) fn conclude(&mut self) -> Then {
        match &mut self.stage {
            Stage::Over(over) if over.announcement == Announcement::Owed => {
                over.announcement = Announcement::Made { taken: false };
                Then::Announce
            }
            _ => Then::Nothing,
        }
    }
}

/// What a task is made of, before it exists.
pub(crate) struct Plan {
    pub(crate) id: TaskId,
    pub(crate) label: Box<str>,
    pub(crate) owner: Option<Owner>,
    pub(crate) form: Form,
    pub(crate) generation: Option<Generation>,
    pub(crate) grant: Option<Arc<[String]>>,
    pub(crate) bounds: StopBounds,
}

impl Task {
    pub(crate) fn new(plan: Plan, shared: Arc<Shared>) -> Self {
        let Plan { id, label, owner, form, generation, grant, bounds } = plan;
        Self {
            id,
            sequence: AtomicU64::new(0),
            label,
            owner,
            form,
            generation,
            grant,
            bounds,
            started_at_ms: shared.environment.clock.epoch_ms(),
            shared,
            body: Mutex::new(Body {
                state: State::Running,
                reported: false,
                waiters: 0,
                stage: Stage::Live(Live::default()),
            }),
            output: OnceLock::new(),
            log: OnceLock::new(),
            wake: Notify::const_new(),
            settled: Notify::const_new(),
        }
    }

    /// Returns the place of the task in the order of starts.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence.load(Ordering::Relaxed)
    }

    pub(crate) fn body(&self) -> MutexGuard<'_, Body> {
        lock(&self.body)
    }

    pub(crate) fn is_terminal(&self) -> bool {
        self.body().state.is_terminal()
    }

    /// Returns the time of an event, never before the task was started.
    pub(crate) fn now_ms(&self) -> u64 {
        self.shared.environment.clock.epoch_ms().max(self.started_at_ms)
    }

    pub(crate) fn control(&self) -> Option<Arc<dyn Control>> {
        self.body().live()?.control.clone()
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let (control, mut snapshot) = {
            let body = self.body();
            let (control, usage, detail) = match &body.stage {
                Stage::Live(live) => {
                    (live.control.clone(), None, live.report.as_deref().map(str::to_owned))
                }
                Stage::Over(over) => {
                    let detail = body.state.ended().and_then(|ended| ended.detail.clone());
                    (None, over.usage, detail)
                }
            };
            let snapshot = Snapshot {
                id: self.id.clone(),
                kind: self.id.kind.clone(),
                label: self.label.to_string(),
                owner_session: self.owner.as_ref().map(|owner| owner.session().clone()),
                status: body.state.status(),
                detail,
                started_at_ms: self.started_at_ms,
                finished_at_ms: body.state.ended().map(|ended| ended.at_ms),
                reported: body.reported,
                stopped_by: body.state.cause(),
                usage,
                generation: self.generation.clone(),
                grant: self.grant.clone(),
                output_bytes: self.output.get().map_or(0, |spool| spool.end()),
                dropped_bytes: self.output.get().map_or(0, |spool| spool.start()),
            };
            (control, snapshot)
        };
        // The producer's code runs outside the lock.
        if let Some(control) = control {
            snapshot.usage = self.usage(&*control);
        }
        snapshot
    }

    pub(crate) fn usage(&self, control: &dyn Control) -> Option<Usage> {
        contain(|| control.usage()).unwrap_or_else(|_| {
            self.shared.count_panic();
            None
        })
    }

    /// Returns the spool of a stream, if anything made one.
    pub(crate) fn spool(&self, stream: Stream) -> Option<&Spool> {
        match stream {
            Stream::Output => self.output.get(),
            Stream::Log => self.log.get(),
        }
        .map(|spool| &**spool)
    }

    /// Returns the spool of a stream, made now if the task still lives.
    ///
    /// It is made under the body's lock, so that a settlement finds every spool
    /// that there is to close.
    pub(crate) fn live_spool(&self, stream: Stream) -> Option<&Spool> {
        if let Some(spool) = self.spool(stream) {
            return Some(spool);
        }
        let body = self.body();
        if body.state.is_terminal() {
            return None;
        }
        let limits = &self.shared.config.spool;
        Some(match stream {
            Stream::Output => self.output.get_or_init(|| {
                Box::new(Spool::new(self.shared.clone(), limits.memory, limits.disk))
            }),
            Stream::Log => {
                self.log.get_or_init(|| Box::new(Spool::new(self.shared.clone(), limits.log, 0)))
            }
        })
    }

    /// Closes what the task can write to. Its readers are woken later.
    pub(crate) fn close_spools(&self) {
        self.spools().for_each(Spool::close);
    }

    /// Wakes whoever waits for more output.
    pub(crate) fn wake_readers(&self) {
        self.spools().for_each(|spool| spool.changed.notify_waiters());
    }

    fn spools(&self) -> impl Iterator<Item = &Spool> {
        [Stream::Output, Stream::Log].into_iter().filter_map(|stream| self.spool(stream))
    }
}

/// What a producer is given for one task. Cheap to clone; it keeps neither the
/// registry nor the work alive.
#[derive(Clone)]
pub struct TaskHost {
    task: Arc<Task>,
}

impl TaskHost {
    pub(crate) fn new(task: Arc<Task>) -> Self {
        Self { task }
    }

    /// Returns the task's id.
    pub fn task(&self) -> &TaskId {
        &self.task.id
    }

    /// Returns the session of the task's owner, if it has one.
    pub fn owner_session(&self) -> Option<&SessionId> {
        self.task.owner.as_ref().map(|owner| owner.session())
    }

    /// Returns where the task's output goes.
    pub fn output(&self) -> Sink {
        Sink { task: self.task.clone(), stream: Stream::Output }
    }

    /// Returns where the task's log goes.
    pub fn log(&self) -> Sink {
        Sink { task: self.task.clone(), stream: Stream::Log }
    }

    /// Replaces the line that a live task's snapshot shows as its detail. Line
    /// breaks and control characters become spaces, and a long line is cut.
    pub fn report(&self, detail: &str) {
        let line = text::one_line(detail);
        // A report that comes after the end is late, and the end stands.
        if let Some(live) = self.task.body().live() {
            live.report = Some(line.into());
        }
    }
}

impl fmt::Debug for TaskHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TaskHost").field(&self.task.id).finish()
    }
}

/// Takes what a task writes.
///
/// A write never waits for a reader and never fails: when the spool is full its
/// oldest bytes go and are counted. After the end of the task nothing is taken.
#[derive(Clone)]
pub struct Sink {
    task: Arc<Task>,
    stream: Stream,
}

impl Sink {
    /// Takes bytes of the task's standard output.
    pub fn write(&self, bytes: &[u8]) {
        self.write_as(Channel::Out, bytes);
    }

    /// Takes bytes of one of the task's channels.
    pub fn write_as(&self, channel: Channel, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if let Some(spool) = self.task.live_spool(self.stream) {
            spool.write(channel, bytes);
        }
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sink").field("task", &self.task.id).field("stream", &self.stream).finish()
    }
}
