//! Stopping a task: what people can ask for, and what is left for the driver.
//!
//! Whoever stops a task leaves word in its body and wakes its driver, which
//! climbs the ladder. So a stop goes on when whoever asked for it goes away.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{
    sync::{futures::Notified, oneshot},
    time::Instant,
};

use crate::{
    Caller, Control, Event, IllegalEvent, Registry, Rung, State, Stop, StopCause, StopRefusal,
    TaskId, Unknown, Usage,
    contain::contain,
    registry::Inner,
    state::next,
    task::{Announcement, Body, Over, Stage, Task, Then},
};

/// How long past its bound a stop waits for a driver that says nothing before
/// it takes the driver's thread for blocked. Long for a loaded machine, and
/// short enough that a shutdown keeps to its few seconds.
pub(crate) const MARGIN: Duration = Duration::from_secs(2);

/// How a task is to be killed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kill {
    /// Whether the work is asked.
    pub mode: Mode,
    /// Why; the producer gets it unchanged.
    pub reason: Option<String>,
}

/// Whether work is asked to stop or dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// It is asked, and may wind down.
    #[default]
    Ask,
    /// It is dropped at once.
    Force,
}

/// What a kill came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Killed {
    /// The task is stopping, and ends within the bounds of the ladder.
    Requested,
    /// The task had ended by itself before it was heard to agree.
    AlreadyTerminal,
}

/// Why a kill changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KillError {
    /// There is no such task for this caller.
    #[error(transparent)]
    Unknown(#[from] Unknown),
    /// The work refused and goes on as before.
    #[error("{id} refused to stop and goes on ({why}): ask again later, or kill it by force")]
    Refused {
        /// The task.
        id: TaskId,
        /// Why it refused.
        #[source]
        why: StopRefusal,
    },
    /// The work broke while it was asked, and ends as failed.
    #[error(
        "{id} broke while it was asked to stop ({why}) and ends as failed; if it does not, kill it by force"
    )]
    Crashed {
        /// The task.
        id: TaskId,
        /// How it broke.
        #[source]
        why: StopRefusal,
    },
}

impl Registry {
    /// Stops a task, or marks the end of an ended one as told.
    ///
    /// The question goes on when this future is dropped. Kills that come while
    /// the work is being asked get the same answer; the work is asked once. If
    /// the work ends while it is asked, its own outcome stands: the kill answers
    /// `Requested` if the work had agreed or ended as killed, and otherwise
    /// `AlreadyTerminal`.
    ///
    /// # Errors
    ///
    /// [`KillError`], with the task as it was.
    pub async fn kill(
        &self,
        id: &TaskId,
        caller: &Caller,
        kill: Kill,
    ) -> Result<Killed, KillError> {
        let task = self.inner.find(id, caller)?;
        let mut receiver = match task.demand(kill) {
            Demanded::Answered(killed, then) => {
                self.inner.told(&task, then);
                return Ok(killed);
            }
            Demanded::Underway(receiver) => receiver,
        };
        let bound = task.bounds.ask.saturating_add(MARGIN);
        let answer = tokio::select! {
            biased;
            // Borrowed, so that this call still counts as asking when it abandons the task.
            answer = &mut receiver => answer.unwrap_or(Answer::AlreadyTerminal),
            () = self.inner.shared.sleep(bound) => {
                self.inner.abandon(&task, bound);
                Answer::Requested
            }
        };
        match answer {
            Answer::Requested => Ok(Killed::Requested),
            Answer::AlreadyTerminal => Ok(Killed::AlreadyTerminal),
            Answer::Refused(why @ StopRefusal::Crashed(_)) => {
                Err(KillError::Crashed { id: id.clone(), why })
            }
            Answer::Refused(why) => Err(KillError::Refused { id: id.clone(), why }),
        }
    }
}

/// What is wanted of a task's driver.
#[derive(Default)]
pub(crate) struct Demand {
    /// Ask, and let the work refuse.
    pub(crate) ask: Option<Stop>,
    /// Ask, and drop the work if it refuses.
    pub(crate) tear_down: Option<Stop>,
    /// Drop the work.
    pub(crate) force: Option<Stop>,
    /// Who waits for the answer.
    pub(crate) askers: Vec<oneshot::Sender<Answer>>,
}

/// How much a stop insists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Insist {
    Ask,
    TearDown,
    Force,
}

/// What a stop came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Requested,
    AlreadyTerminal,
    Refused(StopRefusal),
}

/// What became of a kill on the spot.
enum Demanded {
    Answered(Killed, Then),
    Underway(oneshot::Receiver<Answer>),
}

/// What the driver of a running task is wanted for.
pub(crate) enum Wanted {
    /// The record ended without the driver.
    Nothing,
    Ask(Stop),
    Force(Stop),
}

impl Task {
    /// Leaves word that the task is to be stopped, and wakes its driver.
    pub(crate) fn insist(&self, insist: Insist, cause: StopCause, reason: Option<String>) {
        self.body().insist(insist, Stop { cause, reason });
        self.wake.notify_one();
    }

    fn demand(&self, kill: Kill) -> Demanded {
        let Kill { mode, reason } = kill;
        let stop = Stop { cause: StopCause::Person, reason };
        let demanded = {
            let mut body = self.body();
            let insist = match (&body.state, mode) {
                (State::Stopping(_), Mode::Ask) => {
                    body.apply(&Event::Stopped(stop));
                    let then = body.report();
                    return Demanded::Answered(Killed::Requested, then);
                }
                (State::Running, Mode::Ask) => Insist::Ask,
                (State::Running | State::Stopping(_), Mode::Force) => Insist::Force,
                (State::Completed(_) | State::Killed(_) | State::Failed(_), _) => {
                    let then = body.report();
                    return Demanded::Answered(Killed::AlreadyTerminal, then);
                }
            };
            let (sender, receiver) = oneshot::channel();
            if let Some(demand) = body.insist(insist, stop) {
                demand.askers.push(sender);
            }
            Demanded::Underway(receiver)
        };
        self.wake.notify_one();
        demanded
    }

    /// Returns what the driver of a running task is wanted for, if it is.
    pub(crate) fn wanted(&self) -> Option<Wanted> {
        let mut body = self.body();
        let Some(live) = body.live() else { return Some(Wanted::Nothing) };
        let demand = live.demand.as_ref()?;
        if let Some(stop) = &demand.force {
            return Some(Wanted::Force(stop.clone()));
        }
        demand.ask.as_ref().or(demand.tear_down.as_ref()).map(|stop| Wanted::Ask(stop.clone()))
    }

    /// Records that the task is stopped, and answers whoever asked for it.
    pub(crate) fn concede(&self, stop: &Stop) {
        let askers = {
            let mut body = self.body();
            if body.live().is_none() {
                return;
            }
            body.apply(&Event::Stopped(stop.clone()));
            let Some(demand) = body.live().and_then(|live| live.demand.as_mut()) else { return };
            let askers = std::mem::take(&mut demand.askers);
            let others = [&demand.ask, &demand.tear_down, &demand.force];
            let others: Vec<Stop> = others.into_iter().flatten().cloned().collect();
            for other in others {
                body.apply(&Event::Stopped(other));
            }
            body.reported |= askers.iter().any(|asker| !asker.is_closed());
            askers
        };
        answer(askers, &Answer::Requested);
    }

    /// Records that the work refused. Returns who insists nevertheless; whoever
    /// asked then gets what they asked for after all.
    pub(crate) fn refuse(&self, refusal: &StopRefusal) -> Option<Stop> {
        let askers = {
            let mut body = self.body();
            let demand = body.live().and_then(|live| live.demand.as_mut())?;
            if let Some(stop) = &demand.tear_down {
                return Some(stop.clone());
            }
            if demand.force.is_some() {
                return None;
            }
            demand.ask = None;
            std::mem::take(&mut demand.askers)
        };
        answer(askers, &Answer::Refused(refusal.clone()));
        None
    }

    /// Ends the record. `None` if it had ended before: that end stands.
    pub(crate) fn settle(
        &self,
        event: &Event,
        answer: &Answer,
        usage: Option<Usage>,
    ) -> Option<Settled> {
        let mut body = self.body();
        let live = match &mut body.stage {
            Stage::Live(live) => std::mem::take(live),
            Stage::Over(_) => {
                drop(body);
                tracing::debug!(task = %self.id, ?event, "a task that had ended reports an end; it changes nothing");
                return None;
            }
        };
        body.apply(event);
        body.stage = Stage::Over(Over {
            at: Instant::now(),
            usage,
            announcement: Announcement::Owed,
            filed: None,
        });
        self.close_spools();
        let askers = live.demand.map(|demand| demand.askers).unwrap_or_default();
        if !matches!(answer, Answer::Refused(_)) {
            body.reported |= askers.iter().any(|asker| !asker.is_closed());
        }
        let then = if body.waiters == 0 || body.reported { body.conclude() } else { Then::Nothing };
        drop(body);
        Some(Settled { askers, answer: answer.clone(), control: live.control, then })
    }

    /// Says whether the task ends within the bound.
    pub(crate) async fn ends_within(&self, bound: Duration) -> bool {
        let late = self.shared.sleep(bound);
        tokio::pin!(late);
        loop {
            let settled: Notified<'_> = self.settled.notified();
            tokio::pin!(settled);
            // Registered before the look, so that no wake-up falls between.
            settled.as_mut().enable();
            if self.is_terminal() {
                return true;
            }
            tokio::select! {
                biased;
                () = settled => {}
                () = &mut late => return self.is_terminal(),
            }
        }
    }
}

impl Body {
    /// Sends the state an event. An event that cannot happen is a fault of the
    /// registry; it is logged and changes nothing.
    pub(crate) fn apply(&mut self, event: &Event) {
        match next(&self.state, event) {
            Ok(state) => self.state = state,
            Err(error @ IllegalEvent { .. }) => {
                tracing::error!(%error, "an event came in a state where it cannot happen");
                debug_assert!(false, "{error}");
            }
        }
    }

    fn insist(&mut self, insist: Insist, stop: Stop) -> Option<&mut Demand> {
        if let State::Stopping(_) = self.state {
            self.apply(&Event::Stopped(stop.clone()));
        }
        let demand = self.live()?.demand.get_or_insert_default();
        let wanted = match insist {
            Insist::Ask => &mut demand.ask,
            Insist::TearDown => &mut demand.tear_down,
            Insist::Force => &mut demand.force,
        };
        wanted.get_or_insert(stop);
        Some(demand)
    }
}

/// What is left to do about an end once the locks are released.
#[must_use = "whoever waits for the end has to be told"]
pub(crate) struct Settled {
    askers: Vec<oneshot::Sender<Answer>>,
    answer: Answer,
    control: Option<Arc<dyn Control>>,
    then: Then,
}

impl Settled {
    /// Tells whoever waits for the end of the task.
    pub(crate) fn tell(self, task: &Task) -> Then {
        answer(self.askers, &self.answer);
        task.settled.notify_waiters();
        task.wake_readers();
        task.wake.notify_one();
        // The last handle may release the producer's resources, and break in it.
        if let Err(panic) = contain(move || drop(self.control)) {
            task.shared.count_panic();
            tracing::warn!(task = %task.id, %panic, "the control of a task broke while it was released");
        }
        self.then
    }
}

impl Inner {
    /// Does what follows after somebody was told of a task's end.
    pub(crate) fn told(&self, task: &Arc<Task>, then: Then) {
        match then {
            Then::Announce => self.announce(task),
            Then::Nothing => self.file(task),
        }
    }

    /// Ends the record of a task and gives its place back, in one step: whoever
    /// sees the end can start another. Returns what the driver has to do.
    pub(crate) fn settle(&self, task: &Arc<Task>, event: &Event, answer: &Answer) -> Option<Then> {
        // The producer's code runs outside the locks.
        let usage = task.control().and_then(|control| task.usage(&*control));
        let settled = self.with_swept_table(|table| {
            let mut settled = task.settle(event, answer, usage)?;
            table.leave(&task.id.kind, task.owner.as_ref());
            if settled.then == Then::Announce && self.listeners.is_empty() {
                // There is nobody to tell, so the record can be filed at once.
                settled.then = Then::Nothing;
                table.file(task);
            }
            Some(settled)
        })?;
        Some(settled.tell(task))
    }

    /// Ends the record of a task whose driver does not get to end it.
    pub(crate) fn abandon(&self, task: &Arc<Task>, bound: Duration) {
        let stop = match task.wanted() {
            Some(Wanted::Ask(stop) | Wanted::Force(stop)) => stop,
            Some(Wanted::Nothing) => return,
            None => Stop { cause: StopCause::Person, reason: None },
        };
        task.concede(&stop);
        let rung = Rung::Blocked(bound);
        let event = Event::Dropped { rung, form: task.form, at_ms: task.now_ms() };
        if let Some(then) = self.settle(task, &event, &Answer::Requested) {
            self.shared.counters.orphans.fetch_add(1, Ordering::Relaxed);
            tracing::error!(task = %task.id, "the work blocks its thread and could not be dropped; it may go on as an orphan");
            if then == Then::Announce {
                self.announce(task);
            }
        }
    }
}

fn answer(askers: Vec<oneshot::Sender<Answer>>, answer: &Answer) {
    for asker in askers {
        // Whoever asked may have gone away.
        let _ = asker.send(answer.clone());
    }
}
