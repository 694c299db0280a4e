//! What clients of a host were told, and so what has to be true of the data folder from
//! then on, whatever becomes of the host.

use std::collections::{BTreeMap, HashMap, HashSet};

use backlot::backlot_jobs::{DeliveryId, JobId, Status};
use backlot_surface::wire::{JobView, RunView, StopOutcome, StopReply};

/// How a job ends that its host was killed under.
const INTERRUPTED: &str = "interrupted by restart";
/// How many attempts a job has that was spawned without saying so.
const ATTEMPTS: u32 = 3;

/// What a spawn asks for, as far as it can be checked.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) label: String,
    pub(super) session: String,
    pub(super) announced: bool,
    pub(super) key: Option<String>,
    pub(super) attempts: Option<u32>,
    /// How many lines it writes before it completes, where it writes lines.
    pub(super) lines: Option<u64>,
}

/// What was acknowledged, and what may have happened without an answer.
#[derive(Default)]
pub(super) struct Ledger {
    jobs: HashMap<JobId, Known>,
    /// Spawns that were asked for and not answered, by label.
    open: HashMap<String, Asked>,
    /// Labels of spawns that were refused.
    refused: HashSet<String>,
    settled: HashSet<DeliveryId>,
    told: HashSet<DeliveryId>,
    /// How many requests to delete what is old were not answered yet.
    prunes: usize,
    /// Jobs that something was done with since the last restart.
    touched: Vec<JobId>,
}

struct Known {
    asked: Asked,
    /// How each attempt ended that was seen to have.
    endings: BTreeMap<u32, Ending>,
    /// The latest attempt and step that were seen.
    furthest: (u32, u32),
    may_be_retried: bool,
    /// The attempt in which a stop was acknowledged.
    stopped: Option<u32>,
    may_be_stopped: bool,
    may_be_settled: bool,
    may_be_gone: bool,
    is_gone: bool,
    /// The output that was read.
    output: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq)]
struct Ending {
    status: Status,
    summary: Option<String>,
    finished_ms: Option<u64>,
}

impl Ledger {
    pub(super) fn spawning(&mut self, asked: Asked) {
        self.open.insert(asked.label.clone(), asked);
    }

    pub(super) fn spawned(&mut self, label: &str, view: &JobView) {
        let asked = self.open.get(label).cloned();
        match self.jobs.get(&view.id) {
            Some(known) => {
                assert!(known.asked.key.is_some(), "an id was given out again: {view:?}");
                assert_eq!(known.asked.key, view.key);
            }
            None => {
                let asked = asked.unwrap_or_else(|| panic!("{label} was spawned twice: {view:?}"));
                self.adopt(asked, view.id);
            }
        }
        self.answered(label);
        self.saw(view);
    }

    pub(super) fn spawn_refused(&mut self, label: &str) {
        if self.answered(label) {
            self.refused.insert(label.to_owned());
        }
    }

    /// Tells whether that was the only spawn of the label. A key may be asked for by
    /// several at once.
    fn answered(&mut self, label: &str) -> bool {
        let is_only = self.open.get(label).is_some_and(|asked| asked.key.is_none());
        if is_only {
            self.open.remove(label);
        }
        is_only
    }

    fn adopt(&mut self, asked: Asked, id: JobId) {
        if let Some(key) = &asked.key {
            let has_it = |it: &Known| it.asked.key.as_ref() == Some(key) && !it.may_be_gone;
            let other = self.jobs.iter().find(|(_, it)| has_it(it));
            assert!(other.is_none(), "the key {key} has {id} and {:?}", other.map(|it| it.0));
        }
        let known = Known {
            asked,
            endings: BTreeMap::new(),
            furthest: (1, 0),
            may_be_retried: false,
            stopped: None,
            may_be_stopped: false,
            may_be_settled: false,
            may_be_gone: false,
            is_gone: false,
            output: Vec::new(),
        };
        let may_be_gone = self.prunes > 0 && !known.is_surely_owed_once_it_ends();
        let known = Known { may_be_gone, ..known };
        self.jobs.insert(id, known);
        self.touched.push(id);
    }

    /// Takes down a job as it was shown at any time.
    pub(super) fn saw(&mut self, view: &JobView) {
        let Some(known) = self.jobs.get_mut(&view.id) else { return };
        let asked = &known.asked;
        assert_eq!(view.max_attempts, asked.attempts.unwrap_or(ATTEMPTS), "{view:?}");
        assert!((1..=view.max_attempts).contains(&view.attempt), "{view:?}");
        assert_eq!(view.session, asked.session, "{view:?}");
        known.furthest = known.furthest.max((view.attempt, view.step));
        if view.status.is_terminal() {
            let ending = Ending {
                status: view.status,
                summary: view.summary.clone(),
                finished_ms: view.finished_ms,
            };
            let first = known.endings.entry(view.attempt).or_insert_with(|| ending.clone());
            assert_eq!(*first, ending, "an ending has changed: {view:?}");
        }
        for (attempt, ending) in &known.endings {
            if *attempt < known.furthest.0 {
                assert_eq!(ending.status, Status::Failed, "what had not failed went on: {view:?}");
                assert!(known.may_be_retried, "it went on and nobody asked for it: {view:?}");
            }
        }
    }

    pub(super) fn retrying(&mut self, id: JobId) {
        self.change(id, |known| known.may_be_retried = true);
    }

    pub(super) fn stopping(&mut self, id: JobId) {
        self.change(id, |known| known.may_be_stopped = true);
    }

    pub(super) fn stopped(&mut self, reply: &StopReply) {
        self.saw(&reply.job);
        let attempt = reply.job.attempt;
        if reply.outcome != StopOutcome::Already {
            self.change(reply.job.id, |known| known.stopped = known.stopped.max(Some(attempt)));
        }
    }

    pub(super) fn removing(&mut self, id: JobId) {
        self.change(id, |known| known.may_be_gone = true);
    }

    pub(super) fn removed(&mut self, id: JobId) {
        self.change(id, |known| known.is_gone = true);
    }

    /// Takes down that from now on all may be deleted that have ended and whose ending is
    /// owed to nobody.
    pub(super) fn pruning(&mut self) {
        self.prunes += 1;
        for known in self.jobs.values_mut() {
            if !known.is_surely_owed_once_it_ends() {
                known.may_be_gone = true;
            }
        }
    }

    pub(super) fn pruned(&mut self) {
        self.prunes -= 1;
    }

    pub(super) fn told(&mut self, id: &DeliveryId, view: &JobView) {
        self.saw(view);
        assert!(view.status.is_terminal(), "{view:?}");
        self.told.insert(id.clone());
    }

    pub(super) fn settling(&mut self, id: &DeliveryId) {
        if let Some((job, _)) = id.parts() {
            self.change(job, |known| known.may_be_settled = true);
        }
    }

    pub(super) fn settled(&mut self, id: DeliveryId) {
        self.settled.insert(id);
    }

    /// Takes down that whoever a job works for looks at it, which settles its ending.
    pub(super) fn taking(&mut self, id: JobId) {
        self.change(id, |known| known.may_be_settled = true);
    }

    pub(super) fn taken(&mut self, view: &JobView) {
        self.saw(view);
        if let Some(owed) = &view.owed {
            self.told.insert(owed.clone());
            self.settled.insert(owed.clone());
        }
    }

    pub(super) fn read(&mut self, id: JobId, output: Vec<u8>) {
        self.change(id, |known| {
            let common = known.output.len().min(output.len());
            assert_eq!(known.output[..common], output[..common], "output of {id} has changed");
            if known.output.len() < output.len() {
                known.output = output;
            }
        });
    }

    fn change(&mut self, id: JobId, change: impl FnOnce(&mut Known)) {
        if let Some(known) = self.jobs.get_mut(&id) {
            change(known);
            if self.prunes > 0 && !known.is_surely_owed_once_it_ends() {
                known.may_be_gone = true;
            }
            self.touched.push(id);
        }
    }

    pub(super) fn touch(&mut self, id: JobId) {
        self.touched.push(id);
    }

    /// Returns the jobs that something was done with lately, and forgets which.
    pub(super) fn take_touched(&mut self) -> Vec<JobId> {
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        touched
    }

    /// Returns the jobs that were touched last, of which some may be gone.
    pub(super) fn recent(&self) -> &[JobId] {
        &self.touched[self.touched.len().saturating_sub(40)..]
    }

    /// Checks all jobs of the folder, as they were left or as a host that runs since
    /// then found them.
    pub(super) fn check_all(&mut self, views: &[JobView], host_since_ms: Option<u64>) {
        let mut listed = HashSet::new();
        for view in views {
            assert!(listed.insert(view.id), "{} is listed twice", view.id);
            assert!(!self.refused.contains(&view.label), "it was refused and is there: {view:?}");
            if !self.jobs.contains_key(&view.id) {
                let asked = self.open.remove(&view.label);
                let asked = asked.unwrap_or_else(|| panic!("nobody asked for it: {view:?}"));
                self.adopt(asked, view.id);
            }
            self.saw(view);
            self.check(view, host_since_ms);
        }
        for (id, known) in &mut self.jobs {
            if listed.contains(id) {
                assert!(!known.is_gone, "{id} was deleted and is there again");
            } else {
                let is_expected = known.is_gone || known.may_be_gone;
                assert!(is_expected, "{id} ({}) was acknowledged and is gone", known.asked.label);
                known.is_gone = true;
            }
        }
        if host_since_ms.is_some() {
            // What was not answered and is not there will not come any more.
            self.open.clear();
            self.prunes = 0;
        }
    }

    fn check(&self, view: &JobView, host_since_ms: Option<u64>) {
        let known = &self.jobs[&view.id];
        assert!((view.attempt, view.step) >= known.furthest, "it went back: {view:?}");
        if known.endings.contains_key(&view.attempt) {
            assert!(view.status.is_terminal(), "an ending was forgotten: {view:?}");
        }
        if let Some(owed) = &view.owed {
            assert!(!self.settled.contains(owed), "it was settled and is owed again: {view:?}");
        }
        let is_owed_one = view.status.is_terminal() && known.is_surely_owed_once_it_ends();
        if is_owed_one && view.status != Status::Cancelled {
            assert!(view.owed.is_some(), "its ending is owed to nobody: {view:?}");
        }
        let Some(since_ms) = host_since_ms else { return };
        if view.status == Status::Working {
            let run = view.run.as_ref().unwrap_or_else(|| panic!("it has no run: {view:?}"));
            assert!(run.started_ms >= since_ms, "nobody runs it: {view:?}");
        }
        if known.stopped == Some(view.attempt) {
            assert!(view.status.is_terminal(), "it was to stop and goes on: {view:?}");
            let is_forgotten = view.summary.as_deref() == Some(INTERRUPTED);
            assert!(!is_forgotten, "that it was to stop was forgotten: {view:?}");
        }
    }

    /// Checks all there is to a job and what it has written.
    pub(super) fn check_whole(&mut self, view: &JobView, pieces: &BTreeMap<u32, Vec<u8>>) {
        let Some(known) = self.jobs.get(&view.id) else { return };
        let places: Vec<(u32, u32)> = view.runs.iter().map(|run| (run.attempt, run.step)).collect();
        assert!(places.is_sorted_by(|a, b| a < b), "runs were run twice: {view:?}");
        assert!(places.iter().all(|(attempt, _)| *attempt <= view.max_attempts), "{view:?}");
        let is_over = |run: &RunView| run.ended_ms.is_some() && run.outcome.is_some();
        let past = view.runs.split_last().map_or(&[][..], |(_, past)| past);
        assert!(past.iter().all(is_over), "an old run has no end: {view:?}");
        if view.status != Status::Working {
            assert!(view.runs.iter().all(is_over), "a run goes on without its job: {view:?}");
        }
        if let Some(lines) = known.asked.lines {
            for (run, written) in pieces {
                let written = std::str::from_utf8(written).unwrap();
                let whole = lines_of(written.lines().count() as u64);
                assert!(whole.starts_with(written), "run {run} of {}: {written:?}", view.id);
            }
            if view.status == Status::Completed {
                let written = pieces.last_key_value().map(|(_, written)| written.as_slice());
                let written = written.unwrap_or_default();
                assert_eq!(written, lines_of(lines).as_bytes(), "{view:?}");
                assert_eq!(view.result, Some(lines_of(lines)), "{view:?}");
            }
        }
        let output = pieces.values().flatten().copied().collect();
        let touched = self.touched.len();
        self.read(view.id, output);
        self.touched.truncate(touched);
    }

    /// Checks that every ending that is there was told to whom it was owed, once all are
    /// settled.
    pub(super) fn check_told(&self, views: &[JobView]) -> usize {
        let mut count = 0;
        for view in views {
            assert!(view.status.is_terminal(), "{view:?}");
            let known = &self.jobs[&view.id];
            if known.asked.key.is_some() {
                continue;
            }
            assert_eq!(view.owed, None, "{view:?}");
            if known.asked.announced && view.status != Status::Cancelled && !known.may_be_retried {
                // It has ended once.
                let owed = DeliveryId::new(view.id, 1);
                assert!(self.told.contains(&owed) || known.may_be_settled, "{view:?}");
                count += 1;
            }
        }
        count
    }
}

impl Known {
    /// Tells whether nobody can have heard of its ending but by a delivery, so that it is
    /// owed from its end on, unless it is cancelled.
    fn is_surely_owed_once_it_ends(&self) -> bool {
        self.asked.announced && !self.may_be_settled && !self.may_be_stopped
    }
}

/// Returns what a ticker has written after so many lines.
pub(super) fn lines_of(count: u64) -> String {
    (1..=count).map(|number| format!("line {number}\n")).collect()
}
