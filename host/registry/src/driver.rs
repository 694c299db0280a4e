//! The driver of a task: it polls the work, and climbs the stop ladder.
//!
//! Ask, grace, drop; every rung has a bound. The work is polled on every rung,
//! because it may have to run in order to answer.

use std::{
    future::pending,
    sync::{Arc, Weak, atomic::Ordering},
};

use futures::FutureExt;

use crate::{
    Agreed, BoxFuture, Channel, Ending, Event, OnDrop, Outcome, Rung, Stop, StopCause, StopRefusal,
    Stream,
    contain::{Contained, Panic, contain},
    registry::Inner,
    stop::{Answer, Wanted},
    task::{Announcement, Stage, Task, Then},
    text,
};

pub(crate) struct Driver {
    registry: Weak<Inner>,
    task: Arc<Task>,
    /// The work. Dropping it is the last rung.
    done: Contained<'static, Outcome>,
    on_drop: OnDrop,
    /// Whether the task ever came to be registered; the end of one that did not
    /// is news to nobody.
    registered: bool,
}

/// How the work ended, and what whoever asked it to stop is answered.
struct End {
    event: Event,
    answer: Answer,
}

impl Driver {
    pub(crate) fn new(
        registry: &Arc<Inner>,
        task: &Arc<Task>,
        done: BoxFuture<'static, Outcome>,
        on_drop: OnDrop,
        registered: bool,
    ) -> Self {
        Self {
            registry: Arc::downgrade(registry),
            task: task.clone(),
            done: Contained::new(done),
            on_drop,
            registered,
        }
    }

    /// Drives the work to its end and sees to it that the end is told.
    pub(crate) async fn run(mut self) {
        if let Some(end) = self.until_end().await {
            self.settle(&end);
        }
        self.release();
        if owed(&self.task) {
            Box::pin(self.until_announced()).await;
        }
    }

    /// Returns how the work ended; `None` if its record had ended without it.
    async fn until_end(&mut self) -> Option<End> {
        loop {
            tokio::select! {
                biased;
                ended = &mut self.done => return Some(self.end(ended, Answer::AlreadyTerminal)),
                wanted = wanted(&self.task) => match wanted {
                    Wanted::Nothing => return None,
                    Wanted::Force(stop) => return Some(self.force(&stop, Rung::Forced)),
                    Wanted::Ask(stop) => {
                        // Boxed, so that a task which is never stopped stays small.
                        if let Some(end) = Box::pin(self.ask(&stop)).await {
                            return Some(end);
                        }
                    }
                }
            }
        }
    }

    /// The first rung: asks the work to stop. `None` if it goes on.
    async fn ask(&mut self, stop: &Stop) -> Option<End> {
        let bound = self.task.bounds.ask;
        let mut question = self.question(stop);
        let answered = {
            let late = self.task.shared.sleep(bound);
            tokio::select! {
                biased;
                ended = &mut self.done => {
                    let answered = (&mut question).now_or_never();
                    return Some(self.crossed(stop, ended, answered));
                }
                answered = &mut question => answered,
                force = forced(&self.task) => return Some(self.force(&force, Rung::Forced)),
                () = late => return Some(self.force(stop, Rung::Unheard(bound))),
            }
        };
        match self.understand(answered) {
            Ok(agreed) => {
                self.task.concede(stop);
                Some(match agreed {
                    Agreed::WindsDown => self.grace(stop).await,
                    Agreed::DropNow => self.force(stop, Rung::Agreed),
                })
            }
            Err(refusal) => {
                let insists = self.task.refuse(&refusal)?;
                Some(match refusal {
                    // It ends by itself, and better says how.
                    StopRefusal::Crashed(_) => {
                        self.task.concede(&insists);
                        self.grace(&insists).await
                    }
                    StopRefusal::NotNow(why) | StopRefusal::Broken(why) => {
                        self.force(&insists, Rung::Refused(text::one_line(&why)))
                    }
                })
            }
        }
    }

    /// The second rung: gives the work time to wind down.
    async fn grace(&mut self, stop: &Stop) -> End {
        let bound = self.task.bounds.grace;
        let late = self.task.shared.sleep(bound);
        tokio::select! {
            biased;
            ended = &mut self.done => self.end(ended, Answer::Requested),
            force = forced(&self.task) => self.force(&force, Rung::Forced),
            () = late => self.force(stop, Rung::Overdue(bound)),
        }
    }

    /// The last rung: drops the work.
    fn force(&mut self, stop: &Stop, rung: Rung) -> End {
        self.task.concede(stop);
        self.release();
        let told = self.task.control().and_then(|control| contain(|| control.outcome()).ok()?);
        if let Some(outcome) = told {
            return self.end(Ok(outcome), Answer::Requested);
        }
        if self.on_drop == OnDrop::MayOrphan {
            self.task.shared.counters.orphans.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(task = %self.task.id, ?rung, "the task was dropped; what it started elsewhere may go on as an orphan");
        }
        let event = Event::Dropped { rung, form: self.task.form, at_ms: self.task.now_ms() };
        End { event, answer: Answer::Requested }
    }

    fn question(&self, stop: &Stop) -> Contained<'static, Result<Agreed, StopRefusal>> {
        let reason = stop.reason.clone();
        // Without its control, work cannot be asked.
        let Some(control) = self.task.control() else {
            return Contained::new(Box::pin(pending()));
        };
        match contain(|| control.cancel(reason)) {
            Ok(question) => Contained::new(question),
            Err(panic) => {
                let refusal = self.broken(&panic);
                Contained::new(Box::pin(async { Err(refusal) }))
            }
        }
    }

    fn understand(
        &self,
        answered: Result<Result<Agreed, StopRefusal>, Panic>,
    ) -> Result<Agreed, StopRefusal> {
        answered.unwrap_or_else(|panic| Err(self.broken(&panic)))
    }

    fn broken(&self, panic: &Panic) -> StopRefusal {
        self.task.shared.count_panic();
        StopRefusal::Broken(panic.to_string())
    }

    /// Returns the end of work that ended while it was asked to stop. Its own
    /// outcome stands; the stop is part of it if the work had heard of it.
    fn crossed(
        &mut self,
        stop: &Stop,
        ended: Result<Outcome, Panic>,
        answered: Option<Result<Result<Agreed, StopRefusal>, Panic>>,
    ) -> End {
        let answered = answered.map(|answered| self.understand(answered));
        let killed = ended.as_ref().is_ok_and(|outcome| outcome.ending == Ending::Killed);
        if killed || matches!(answered, Some(Ok(_))) {
            self.task.concede(stop);
        }
        let answer = match answered {
            Some(Err(refusal)) => Answer::Refused(refusal),
            _ => Answer::AlreadyTerminal,
        };
        self.end(ended, answer)
    }

    /// Returns the end of work that reached quiescence, with its output kept.
    fn end(&mut self, ended: Result<Outcome, Panic>, answer: Answer) -> End {
        let at_ms = self.task.now_ms();
        let event = match ended {
            Ok(Outcome { ending, detail, output }) => {
                if let Some(output) = output.filter(|output| !output.is_empty())
                    && let Some(spool) = self.task.live_spool(Stream::Output)
                {
                    spool.write(Channel::Out, output.as_bytes());
                }
                let detail = detail.map(|detail| text::one_line(&detail));
                Event::Settled { ending, detail, at_ms }
            }
            Err(panic) => {
                self.task.shared.count_panic();
                tracing::warn!(task = %self.task.id, %panic, "the work of a task panicked");
                Event::Panicked { message: text::one_line(&panic.message), at_ms }
            }
        };
        End { event, answer }
    }

    fn settle(&self, end: &End) {
        let task = &self.task;
        let Some(inner) = self.registry.upgrade() else {
            // Nobody is left to announce it to; whoever holds the task sees it.
            if let Some(settled) = task.settle(&end.event, &end.answer, None) {
                let _ = settled.tell(task);
            }
            return;
        };
        if inner.settle(task, &end.event, &end.answer) == Some(Then::Announce) && self.registered {
            inner.announce(task);
        }
    }

    /// Drops the work, if it is still there.
    fn release(&mut self) {
        if let Err(panic) = self.done.release() {
            self.task.shared.count_panic();
            tracing::warn!(task = %self.task.id, %panic, "the work of a task panicked while it was dropped");
        }
    }

    /// Announces the end at the latest once nobody can be expected to take it.
    async fn until_announced(&mut self) {
        let late = self.task.shared.sleep(self.task.shared.config.report_delay);
        tokio::pin!(late);
        if owed(&self.task) {
            // Those who wait mostly take it in their next turn, and a turn costs
            // less than a timer, which is set when it is first polled.
            tokio::task::yield_now().await;
        }
        while owed(&self.task) {
            tokio::select! {
                () = self.task.wake.notified() => {}
                () = &mut late => self.announce_owed(),
            }
        }
    }

    fn announce_owed(&self) {
        let then = self.task.body().conclude();
        if then == Then::Announce
            && self.registered
            && let Some(inner) = self.registry.upgrade()
        {
            inner.announce(&self.task);
        }
    }
}

impl Drop for Driver {
    /// Ends the task if the runtime went away under it, so that nobody waits
    /// for an end that cannot come.
    fn drop(&mut self) {
        if !self.task.is_terminal() {
            self.release();
            let rung = Rung::RuntimeGone;
            let event = Event::Dropped { rung, form: self.task.form, at_ms: self.task.now_ms() };
            self.settle(&End { event, answer: Answer::AlreadyTerminal });
        }
        self.announce_owed();
    }
}

fn owed(task: &Task) -> bool {
    match &task.body().stage {
        Stage::Live(_) => false,
        Stage::Over(over) => over.announcement == Announcement::Owed,
    }
}

/// Resolves when the driver of a running task is wanted.
async fn wanted(task: &Task) -> Wanted {
    loop {
        if let Some(wanted) = task.wanted() {
            return wanted;
        }
        task.wake.notified().await;
    }
}

/// Resolves when the task is to be dropped at once.
async fn forced(task: &Task) -> Stop {
    loop {
        match task.wanted() {
            Some(Wanted::Force(stop)) => return stop,
            // The record ended without the driver, so the work only has to go.
            Some(Wanted::Nothing) => return Stop { cause: StopCause::Shutdown, reason: None },
            Some(Wanted::Ask(_)) | None => task.wake.notified().await,
        }
    }
}
