//! Starting a task: every check, then the work, then the record.
//!
//! All that can fail is over before the producer is asked, and nothing can fail
//! once the work is under way. So work that nobody can find does not exist.

use std::{
    fmt,
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::runtime::Handle;

use crate::{
    AgentId, Caps, Ending, Event, Form, Generation, Kind, Owner, Producer, Refusal, Registry,
    Request, Run, Step, StopBounds, StopCause, TaskHost, TaskId,
    contain::{Contained, Panic, contain},
    driver::Driver,
    registry::Inner,
    stop::{Answer, Insist, MARGIN},
    task::{Plan, Task},
    text,
};

/// What a start declares.
#[derive(Clone, Debug, Default)]
pub struct Start {
    /// The one line that the task is shown under. At most 1 KiB is kept, cut on
    /// a character with `…`.
    pub label: String,
    /// The input, in the form that the kind defines.
    pub input: String,
    /// Whom the task belongs to; nobody's task is open to all.
    pub owner: Option<Owner>,
    /// Where the run stands in a durable job.
    pub step: Step,
}

/// Why nothing was started. Nothing is left behind either.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Nobody could see or stop the task.
    #[error(
        "no control surface is attached, so nobody could see or stop a task: attach one with \
         `Registry::attach_surface` before starting work"
    )]
    NoSurface,
    /// The label cannot be shown.
    #[error(
        "the label is not one line: it holds {found:?}; leave out line breaks and control \
         characters"
    )]
    InvalidLabel {
        /// The first character that must not be there.
        found: char,
    },
    /// The owner is not live any more.
    #[error(
        "agent {agent} does not live under this handle any more: it was disposed or registered \
         anew; start under the handle of its live instance"
    )]
    OwnerGone {
        /// The owner's agent id.
        agent: AgentId,
    },
    /// Too many tasks are live.
    #[error(
        "{cap} is full with {limit} live tasks: wait until one ends, kill one or raise the cap"
    )]
    Full {
        /// The cap that is reached.
        cap: Cap,
        /// How many tasks it allows.
        limit: usize,
    },
    /// Every number of the kind was used.
    #[error("every number for a task of kind {kind} was used: choose a lower first number")]
    NumbersExhausted {
        /// The kind.
        kind: Kind,
    },
    /// The registry was disposed.
    #[error("the registry is disposed: start work on a new one")]
    Disposed,
    /// The producer refused.
    #[error("{kind} did not start: {refusal}")]
    Refused {
        /// The kind.
        kind: Kind,
        /// Why it refused.
        #[source]
        refusal: Refusal,
    },
    /// The producer panicked.
    #[error("{kind} did not start: it panicked: {message}")]
    Panicked {
        /// The kind.
        kind: Kind,
        /// What it panicked with.
        message: String,
    },
    /// The producer took too long.
    #[error("{kind} did not start within {deadline:?} and was given up")]
    Deadline {
        /// The kind.
        kind: Kind,
        /// How long it may take.
        deadline: Duration,
    },
}

/// A cap on live tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cap {
    /// On those of one owner.
    Owner(AgentId),
    /// On those of one kind.
    Kind(Kind),
    /// On all.
    Total,
}

impl fmt::Display for Cap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Owner(agent) => write!(f, "the cap on tasks of agent {agent}"),
            Self::Kind(kind) => write!(f, "the cap on tasks of kind {kind}"),
            Self::Total => f.write_str("the cap on all tasks"),
        }
    }
}

impl Registry {
    /// Starts work and returns the id of its task.
    ///
    /// The producer is polled within this future. Dropping the future before it
    /// resolves leaves nothing running and nothing registered; once it has
    /// resolved, the task exists.
    ///
    /// # Errors
    ///
    /// [`StartError`], with nothing left running. If the owner or the registry
    /// is disposed at the very moment the work gets under way, the work is
    /// stopped and awaited first.
    pub async fn start(
        &self,
        producer: Arc<dyn Producer>,
        start: Start,
    ) -> Result<TaskId, StartError> {
        let inner = &self.inner;
        let Start { label, input, owner, step } = start;
        let producer = inner.resolve(producer, owner.as_ref())?;
        let facts = inner.ask_facts(&*producer)?;
        let label: Box<str> = check_label(&label)?.into();
        let id = inner.take_place(&facts, owner.as_ref())?;
        let plan = Plan {
            id: id.clone(),
            label,
            owner,
            form: facts.form,
            generation: facts.generation,
            grant: facts.grant,
            bounds: facts.bounds.unwrap_or(inner.shared.config.bounds),
        };
        let task = Arc::new(Task::new(plan, inner.shared.clone()));
        let mut underway = Underway { inner, task: &task, work: Work::None };

        let request = Request { task: id.clone(), label: task.label.to_string(), input, step };
        let Run { control, done, on_drop } = inner.run(&*producer, request, &task).await?;

        if let Some(live) = task.body().live() {
            live.control = Some(control);
        }
        underway.work = Work::Driven;
        let inserted = inner.with_table(|table| table.insert(&task));
        let driver = Driver::new(inner, &task, done, on_drop, inserted.is_ok());
        match inserted {
            Ok(()) => {
                underway.work = Work::Registered;
                inner.launch(driver);
                Ok(id)
            }
            Err(error) => {
                let cause = match error {
                    StartError::OwnerGone { .. } => StopCause::Owner,
                    _ => StopCause::Shutdown,
                };
                task.insist(Insist::TearDown, cause, None);
                inner.shared.environment.runtime.spawn(driver.run());
                let bound = task.bounds.whole().saturating_add(MARGIN);
                if !task.ends_within(bound).await {
                    inner.abandon(&task, bound);
                }
                Err(error)
            }
        }
    }
}

/// What a producer says about itself before it is asked to run.
struct Facts {
    kind: Kind,
    form: Form,
    generation: Option<Generation>,
    grant: Option<Arc<[String]>>,
    cap: Option<usize>,
    bounds: Option<StopBounds>,
}

impl Inner {
    fn ask_facts(&self, producer: &dyn Producer) -> Result<Facts, StartError> {
        let kind = contain(|| producer.kind().clone())
            .map_err(|panic| self.panicked(&unnamed(), panic))?;
        contain(|| Facts {
            kind: kind.clone(),
            form: producer.form(),
            generation: producer.generation(),
            grant: producer.grant(),
            cap: producer.cap(),
            bounds: producer.stop_bounds(),
        })
        .map_err(|panic| self.panicked(&kind, panic))
    }

    /// Returns the producer that stands behind the one that was given.
    fn resolve(
        &self,
        producer: Arc<dyn Producer>,
        owner: Option<&Owner>,
    ) -> Result<Arc<dyn Producer>, StartError> {
        let owner = owner.map(Owner::session);
        let kind = || contain(|| producer.kind().clone()).unwrap_or_else(|_| unnamed());
        match contain(|| producer.resolve(owner)) {
            Ok(Ok(None)) => Ok(producer),
            Ok(Ok(Some(behind))) => Ok(behind),
            Ok(Err(refusal)) => Err(StartError::Refused { kind: kind(), refusal }),
            Err(panic) => Err(self.panicked(&kind(), panic)),
        }
    }

    fn take_place(&self, facts: &Facts, owner: Option<&Owner>) -> Result<TaskId, StartError> {
        let kind = &facts.kind;
        let caps = self.shared.config.caps;
        let caps = &Caps { per_kind: facts.cap.or(caps.per_kind), ..caps };
        if let Some(id) = self.with_table(|table| table.take_place(kind, owner, caps))? {
            return Ok(id);
        }
        // Other people's code runs outside the lock.
        let first = contain(|| (self.shared.environment.first_number)(kind))
            .map_err(|panic| self.panicked(kind, panic))?;
        self.with_table(|table| {
            table.learn(kind, first);
            table.take_place(kind, owner, caps)
        })?
        .ok_or_else(|| StartError::NumbersExhausted { kind: kind.clone() })
    }

    /// Asks the producer to start the work, within the bounds.
    async fn run(
        &self,
        producer: &dyn Producer,
        request: Request,
        task: &Arc<Task>,
    ) -> Result<Run, StartError> {
        let kind = &task.id.kind;
        let host = TaskHost::new(task.clone());
        let run =
            contain(|| producer.run(request, host)).map_err(|panic| self.panicked(kind, panic))?;
        let mut run = Contained::new(run);
        let ran = match futures::poll!(&mut run) {
            Poll::Ready(ran) => ran,
            // Most work starts at once, so the timer is made only now.
            Poll::Pending => {
                let given_up = {
                    let deadline = self.shared.config.start_deadline;
                    let mut gone = pin!(self.start_refused(task));
                    let mut late = pin!(self.shared.sleep(deadline));
                    tokio::select! {
                        biased;
                        ran = &mut run => Ok(ran),
                        error = &mut gone => Err(error),
                        () = &mut late => Err(StartError::Deadline { kind: kind.clone(), deadline }),
                    }
                };
                match given_up {
                    Ok(ran) => ran,
                    Err(error) => {
                        if let Err(panic) = run.release() {
                            // The start failed already, which is what the caller is told.
                            let _ = self.panicked(kind, panic);
                        }
                        return Err(error);
                    }
                }
            }
        };
        ran.map_err(|panic| self.panicked(kind, panic))?
            .map_err(|refusal| StartError::Refused { kind: kind.clone(), refusal })
    }

    /// Sets the driver of a task going.
    ///
    /// Work that is done at once is done here: a task of the runtime's own would
    /// cost it three trips between threads. Everything else goes on there, and so
    /// does what starts elsewhere, since work is polled on that runtime only.
    fn launch(&self, driver: Driver) {
        let runtime = &self.shared.environment.runtime;
        let mut driver = Box::pin(driver.run());
        let at_home = Handle::try_current().is_ok_and(|here| here.id() == runtime.id());
        // Whatever it waits for, it is polled again as soon as it is spawned.
        let mut nobody = Context::from_waker(Waker::noop());
        if at_home && driver.as_mut().poll(&mut nobody).is_ready() {
            return;
        }
        runtime.spawn(driver);
    }

    /// Resolves when the start has become impossible.
    async fn start_refused(&self, task: &Task) -> StartError {
        loop {
            let closed = match &task.owner {
                Some(owner) => owner.closed(),
                None => &self.closed,
            };
            let mut closed = pin!(closed.notified());
            // Registered before the look, so that no wake-up falls between.
            closed.as_mut().enable();
            if let Err(error) = self.with_table(|table| table.admits(task.owner.as_ref())) {
                return error;
            }
            closed.await;
        }
    }

    fn panicked(&self, kind: &Kind, panic: Panic) -> StartError {
        self.shared.count_panic();
        tracing::warn!(%kind, %panic, "a producer panicked while it was started");
        StartError::Panicked { kind: kind.clone(), message: panic.message }
    }
}

/// Stands in where a producer panics before it has said its kind.
fn unnamed() -> Kind {
    Kind::new("unnamed").expect("it is a valid kind")
}

/// A start that is on its way. Dropping it gives back what it took.
struct Underway<'a> {
    inner: &'a Inner,
    task: &'a Arc<Task>,
    work: Work,
}

/// How far the work of a start has come.
enum Work {
    /// There is none, and the place under the caps is still this start's.
    None,
    /// There is some, and its driver gives the place back.
    Driven,
    /// The start is over.
    Registered,
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        let task = self.task;
        match self.work {
            Work::None => {
                self.inner.with_table(|table| {
                    table.leave(&task.id.kind, task.owner.as_ref());
                    table.start_over(task.owner.as_ref());
                });
                // What the producer still writes for it goes nowhere.
                let detail = Some("did not start".to_owned());
                let at_ms = task.now_ms();
                let event = Event::Settled { ending: Ending::Failed, detail, at_ms };
                drop(task.settle(&event, &Answer::AlreadyTerminal, None));
            }
            Work::Driven => {
                self.inner.with_table(|table| table.start_over(task.owner.as_ref()));
            }
            Work::Registered => {}
        }
        self.inner.start_over.notify_waiters();
    }
}

fn check_label(label: &str) -> Result<String, StartError> {
    match label.chars().find(|&found| text::breaks_line(found)) {
        Some(found) => Err(StartError::InvalidLabel { found }),
        None => Ok(text::cut(label).into_owned()),
    }
}
