//! Which spans of a job are over: decided from one change after the other.

use std::collections::HashMap;

use backlot_jobs::{JobId, RunId};

use super::span::Moment;

/// How many jobs are known at a time: more than a host has that have begun.
const KNOWN: usize = 16_384;

/// What is known of jobs that have begun and not ended.
#[derive(Debug, Default)]
pub(super) struct Ledger(HashMap<JobId, Known>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    /// The run whose span is not told yet.
    run: Option<RunId>,
    /// When the job was spawned, or tried again after its last ending.
    since_ms: u64,
}

/// What is over with a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub(super) struct Due {
    /// The runs from that one on which others have followed, up to that of the change.
    pub(super) past_from: Option<RunId>,
    /// The last run of the job as it is.
    pub(super) last: bool,
    /// The job, or what it was since it was tried again: since when.
    pub(super) root_since_ms: Option<u64>,
}

impl Ledger {
    /// Notes a job that a host before this one has left at work.
    pub(super) fn found(&mut self, moment: &Moment) {
        let run = moment.last.as_ref().map(|run| run.id);
        self.0.insert(moment.job, Known { run, since_ms: moment.since_ms() });
    }

    /// Notes a change, and returns what is over with it. What a host before this one has
    /// told is not told again: a run that is not known has been.
    pub(super) fn note(&mut self, moment: &Moment) -> Due {
        let known = self.0.get(&moment.job).copied();
        let last = moment.last.as_ref();
        let since_ms = known.map_or_else(|| moment.since_ms(), |known| known.since_ms);
        let untold = known.and_then(|known| known.run);
        if moment.is_working() {
            let run = last.map(|run| run.id);
            // No run begins with a stop: that it is to stop was told after its end.
            if run == untold || (known.is_none() && moment.is_stopped) {
                return Due::default();
            }
            // Where too many are known, some were not heard of when they ended.
            if known.is_none() && self.0.len() >= KNOWN {
                self.0.clear();
            }
            self.0.insert(moment.job, Known { run, since_ms });
            return Due { past_from: untold, ..Due::default() };
        }
        let is_last = last.is_some_and(|last| Some(last.id) == untold);
        let mut due = Due {
            past_from: untold.filter(|_| !is_last),
            last: untold.is_some(),
            root_since_ms: None,
        };
        if moment.is_over() {
            self.0.remove(&moment.job);
            due.root_since_ms = Some(since_ms);
        } else if let Some(known) = self.0.get_mut(&moment.job) {
            known.run = None;
        }
        due
    }

    /// Forgets jobs that are gone.
    pub(super) fn forget(&mut self, jobs: &[JobId]) {
        for job in jobs {
            self.0.remove(job);
        }
    }
}

#[cfg(test)]
mod tests {
    use backlot_jobs::Status;

    use super::{super::span::tests::moment, *};

    /// Has one thing after the other happen to a job, and returns what is over with each.
    fn told(ledger: &mut Ledger, changes: &[(Status, Option<u128>, u32)]) -> Vec<String> {
        let due = |&(status, run, endings): &(Status, Option<u128>, u32)| {
            let due = ledger.note(&moment(status, run, endings));
            let past = due.past_from.map(|run| format!("from {}", run.bits()));
            let last = due.last.then(|| "last".to_owned());
            let root = due.root_since_ms.map(|since_ms| format!("root since {since_ms}"));
            let parts: Vec<String> = [past, last, root].into_iter().flatten().collect();
            parts.join(", ")
        };
        changes.iter().map(due).collect()
    }

    #[test]
    fn a_life_with_steps_a_question_and_a_retry() {
        use Status::{Completed, Failed, InputRequired, Queued, Working};
        let mut ledger = Ledger::default();
        // A moment's job was spawned at 5, and its run n started at 10 n.
        let told = told(
            &mut ledger,
            &[
                (Queued, None, 0),
                (Working, Some(1), 0),
                (Working, Some(1), 0),
                (Working, Some(2), 0),
                (InputRequired, Some(2), 0),
                (Working, Some(3), 0),
                (Queued, Some(3), 0),
                (Working, Some(4), 0),
                (Failed, Some(4), 1),
                (Working, Some(5), 1),
                (Completed, Some(5), 2),
            ],
        );
        let expected = [
            "",
            "",
            "",
            "from 1",
            "last",
            "",
            "last",
            "",
            "last, root since 5",
            "",
            "last, root since 50",
        ];
        assert_eq!(told, expected);
        assert!(ledger.0.is_empty());
    }

    #[test]
    fn what_was_not_heard_of_is_made_up_for() {
        use Status::{Completed, Working};
        let mut ledger = Ledger::default();
        let changes = [(Working, Some(1), 0), (Working, Some(4), 0), (Completed, Some(6), 1)];
        let expected = ["", "from 1", "from 4, last, root since 5"];
        assert_eq!(told(&mut ledger, &changes), expected);
    }

    #[test]
    fn a_stop_that_is_told_after_the_end_begins_nothing() {
        let mut ledger = Ledger::default();
        let mut late = moment(Status::Working, Some(1), 0);
        late.is_stopped = true;
        assert_eq!(ledger.note(&late), Due::default());
        assert!(ledger.0.is_empty());
        // One that was found at work has begun.
        ledger.found(&late);
        let stopped = [(Status::Cancelled, Some(1), 1)];
        assert_eq!(told(&mut ledger, &stopped), ["last, root since 5"]);
    }

    #[test]
    fn what_a_host_before_has_told_is_not_told_again() {
        use Status::{Cancelled, Queued, Working};
        let mut ledger = Ledger::default();
        assert_eq!(told(&mut ledger, &[(Cancelled, Some(1), 1)]), ["root since 5"]);
        let retry = [(Queued, Some(1), 0), (Working, Some(2), 0)];
        assert_eq!(told(&mut ledger, &retry), ["", ""]);
        ledger.forget(&[moment(Working, None, 0).job]);
        assert!(ledger.0.is_empty());
    }
}
