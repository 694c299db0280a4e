//! Which records of ended tasks go, and when.
//!
//! The oldest go first, those that nobody was told of last. Nearly every end is
//! told by the time it is old, so all wait in one queue; those that turn out to
//! be untold at its front step aside.

use std::{collections::BTreeMap, sync::Arc};

use tokio::time::Instant;

use crate::{
    Retention,
    shelf::Shelf,
    task::{Over, Stage, Task},
};

/// Ended tasks in the order of their filing, which is that of their ends.
#[derive(Default)]
pub(crate) struct Archive {
    last: u64,
    /// Those whose turn has not come.
    ended: Shelf<Arc<Task>>,
    /// Those whose turn came while nobody had been told of them.
    passed_over: Shelf<Arc<Task>>,
    /// Those that were told after their turn had come.
    told_late: BTreeMap<u64, Arc<Task>>,
    /// Nothing is too old before then, which saves every call a look.
    none_aged_until: Option<Instant>,
}

/// A record that is to go.
pub(crate) struct Swept {
    pub(crate) task: Arc<Task>,
    pub(crate) told: bool,
}

impl Archive {
    /// Files an ended task, or one that was filed where it belongs now.
    pub(crate) fn file(&mut self, task: &Arc<Task>) {
        // The table's lock may be held when a body's is taken, never the other way round.
        let mut body = task.body();
        let told = body.told();
        let Stage::Over(Over { filed, .. }) = &mut body.stage else { return };
        match *filed {
            None => {
                self.last += 1;
                *filed = Some(self.last);
                self.ended.push(self.last, task.clone());
            }
            Some(number) if told => {
                if let Some(task) = self.passed_over.remove(number) {
                    self.told_late.insert(number, task);
                }
            }
            Some(_) => {}
        }
    }

    /// Forgets a task that goes for another reason.
    pub(crate) fn forget(&mut self, task: &Task) {
        if let Some(number) = filed(task)
            && self.ended.remove(number).is_none()
            && self.passed_over.remove(number).is_none()
        {
            self.told_late.remove(&number);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ended.len() + self.passed_over.len() + self.told_late.len()
    }

    /// Takes out the next record that is over the count or the age.
    pub(crate) fn next_due(&mut self, now: Instant, retention: &Retention) -> Option<Swept> {
        if self.len() <= retention.count && self.none_aged_until.is_some_and(|until| now < until) {
            return None;
        }
        let due = self.take_due(now, retention);
        if due.is_none() && self.none_aged_until.is_none_or(|until| now >= until) {
            let late = self.told_late.first_key_value().map(|(_, task)| task);
            let firsts = [late, self.passed_over.first(), self.ended.first()];
            let oldest = firsts.into_iter().flatten().filter_map(|task| ended_at(task)).min();
            self.none_aged_until = oldest.and_then(|at| at.checked_add(retention.age));
        }
        due
    }

    fn take_due(&mut self, now: Instant, retention: &Retention) -> Option<Swept> {
        let aged = |task: Option<&Arc<Task>>| {
            task.and_then(|task| ended_at(task))
                .is_some_and(|at| now.saturating_duration_since(at) >= retention.age)
        };
        let late = self.told_late.first_key_value().map(|(_, task)| task);
        if late.is_some() && (self.len() > retention.count || aged(late)) {
            let (_, task) = self.told_late.pop_first()?;
            return Some(Swept { task, told: true });
        }
        if aged(self.passed_over.first()) {
            let task = self.passed_over.pop_first()?;
            return Some(Swept { task, told: false });
        }
        while self.len() > retention.count || aged(self.ended.first()) {
            let Some(task) = self.ended.pop_first() else { break };
            let told = task.body().told();
            if told || aged(Some(&task)) {
                return Some(Swept { task, told });
            }
            let number = filed(&task)?;
            self.passed_over.push(number, task);
        }
        if self.len() > retention.count {
            let task = self.passed_over.pop_first()?;
            return Some(Swept { task, told: false });
        }
        None
    }
}

fn filed(task: &Task) -> Option<u64> {
    match &task.body().stage {
        Stage::Live(_) => None,
        Stage::Over(over) => over.filed,
    }
}

fn ended_at(task: &Task) -> Option<Instant> {
    match &task.body().stage {
        Stage::Live(_) => None,
        Stage::Over(over) => Some(over.at),
    }
}
