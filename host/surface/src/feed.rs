//! What becomes of jobs, as it happens, for whoever listens, and for whoever comes back.
//!
//! What happens is numbered, and the last of it is kept, so that who was away for a moment
//! gets exactly what it has missed. A job never goes back in it: what is told late, after
//! what followed it, is not told any more.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use backlot_jobs::{Gone, Job, JobId, Phase, Status, Wait};
use backlot_registry::SessionId;
use serde::Serialize;
use tokio::sync::{
    broadcast::{self, error::RecvError},
    watch,
};

use crate::wire::{JobView, RemovedView};

/// How many events wait for a slow listener, and how many are kept for who comes back. It
/// is some seconds of a busy host.
const QUEUE: usize = 4096;
/// How many bytes those that are kept may have together: four times what the usual ones
/// have.
const KEPT_BYTES: usize = 16 << 20;

/// Tells whoever listens what becomes of jobs. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Feed(Arc<Shared>);

/// Something has happened to jobs.
#[derive(Clone, Debug)]
pub enum Event {
    /// A job has changed, and is so now.
    Changed(Arc<Job>),
    /// Jobs are gone.
    Removed(Arc<[JobId]>),
    /// So many events were missed by this listener, which was too slow.
    Missed(u64),
}

#[derive(Debug)]
struct Shared {
    /// Tells this feed from those of the hosts before.
    incarnation: u64,
    history: Mutex<History>,
    /// The number of the newest event.
    newest: watch::Sender<u64>,
    listeners: broadcast::Sender<Event>,
}

impl Default for Shared {
    fn default() -> Self {
        // Where the machine gives no random numbers no job is spawned either.
        let incarnation = getrandom::u64().unwrap_or_default();
        let (newest, listeners) = (watch::Sender::new(0), broadcast::Sender::new(QUEUE));
        Self { incarnation, history: Mutex::default(), newest, listeners }
    }
}

impl Feed {
    /// Tells that a job has changed.
    pub fn changed(&self, job: &Job) {
        let standing = Standing::of(job);
        // Outside the lock, and only once, however many listen.
        let data = json(&JobView::brief(job, None));
        let mut history = self.history();
        if history.latest.get(&job.id).is_some_and(|latest| latest.standing > standing) {
            return;
        }
        let what = What::Changed(job.status());
        let number = history.tell(job.id, job.spec.parent.clone(), what, standing, data);
        // The copy is spared where nobody listens.
        if self.0.listeners.receiver_count() > 0 {
            let _ = self.0.listeners.send(Event::Changed(Arc::new(job.clone())));
        }
        drop(history);
        self.wake(number);
    }

    /// Tells that jobs are gone.
    pub fn removed(&self, gone: &[Gone]) {
        let mut history = self.history();
        let mut newest = history.newest;
        for Gone { job, parent } in gone {
            let data = json(&RemovedView { id: *job });
            newest = history.tell(*job, parent.clone(), What::Removed, Standing::GONE, data);
        }
        if self.0.listeners.receiver_count() > 0 {
            let jobs: Arc<[JobId]> = gone.iter().map(|gone| gone.job).collect();
            let _ = self.0.listeners.send(Event::Removed(jobs));
        }
        drop(history);
        self.wake(newest);
    }

    /// Returns what is told from now on.
    pub fn listen(&self) -> Listener {
        Listener(self.0.listeners.subscribe())
    }

    /// Returns what changes with the number of the newest event.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.0.newest.subscribe()
    }

    /// Returns where the feed is now.
    pub(crate) fn place(&self) -> Place {
        Place { incarnation: self.0.incarnation, number: self.history().newest }
    }

    /// Returns up to that many events behind a place, or `None` where some of them are not
    /// kept any more, or are none of this feed's.
    pub(crate) fn since(&self, place: Place, most: usize) -> Option<Vec<Arc<Told>>> {
        let history = self.history();
        if place.incarnation != self.0.incarnation || place.number > history.newest {
            return None;
        }
        let oldest = history.newest + 1 - history.kept.len() as u64;
        let from = usize::try_from((place.number + 1).checked_sub(oldest)?).ok()?;
        Some(history.kept.iter().skip(from).take(most).cloned().collect())
    }

    /// Notes that somebody was shown jobs as they are in the store, where they may be
    /// further than was told so far. What is told of before that comes too late.
    pub(crate) fn shown(&self, jobs: &[Job]) {
        let mut history = self.history();
        for job in jobs {
            let standing = Standing::of(job);
            let latest = history.latest.entry(job.id).or_insert(Latest { standing, number: 0 });
            latest.standing = latest.standing.max(standing);
        }
    }

    /// Tells whether an event says where its job stood last, as far as is known.
    pub(crate) fn is_latest(&self, told: &Told) -> bool {
        let history = self.history();
        history.latest.get(&told.job).is_none_or(|latest| latest.standing <= told.standing)
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.0.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, number: u64) {
        // Two that tell at once may come here in the other order.
        self.0.newest.send_if_modified(|newest| {
            let is_newer = number > *newest;
            *newest = number.max(*newest);
            is_newer
        });
    }
}

/// Receives what becomes of jobs.
#[derive(Debug)]
pub struct Listener(broadcast::Receiver<Event>);

impl Listener {
    /// Waits for the next event; `None` once there is no host any more.
    pub async fn next(&mut self) -> Option<Event> {
        match self.0.recv().await {
            Ok(event) => Some(event),
            Err(RecvError::Lagged(missed)) => Some(Event::Missed(missed)),
            Err(RecvError::Closed) => None,
        }
    }
}

/// Where somebody is in a feed: behind the event of that number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    incarnation: u64,
    pub(crate) number: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{}", self.incarnation, self.number)
    }
}

impl Place {
    /// Returns the place behind another event of the same feed.
    pub(crate) fn at(self, number: u64) -> Self {
        Self { number, ..self }
    }

    /// Returns the place that is written so, if it is one.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (incarnation, number) = text.split_once('-')?;
        let incarnation = u64::from_str_radix(incarnation, 16).ok()?;
        Some(Self { incarnation, number: number.parse().ok()? })
    }
}

/// Something that was told of a job.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) number: u64,
    /// The session that the job works for.
    pub(crate) session: SessionId,
    pub(crate) what: What,
    /// What is told, as JSON.
    pub(crate) data: Box<str>,
    job: JobId,
    standing: Standing,
}

/// What was told of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// It stands so now.
    Changed(Status),
    /// It is gone.
    Removed,
}

/// What was told last.
#[derive(Debug, Default)]
struct History {
    newest: u64,
    kept: VecDeque<Arc<Told>>,
    kept_bytes: usize,
    /// Where the jobs stood last that are told of in what is kept, or that somebody was
    /// shown since: no more than are kept, and live, together.
    latest: HashMap<JobId, Latest>,
}

#[derive(Clone, Copy, Debug)]
struct Latest {
    standing: Standing,
    /// The event that says so; 0 where none did yet.
    number: u64,
}

impl History {
    /// Keeps what is told, and returns its number.
    fn tell(
        &mut self,
        job: JobId,
        session: SessionId,
        what: What,
        standing: Standing,
        data: Box<str>,
    ) -> u64 {
        self.newest += 1;
        let number = self.newest;
        self.kept_bytes += data.len();
        self.kept.push_back(Arc::new(Told { number, session, what, data, job, standing }));
        self.latest.insert(job, Latest { standing, number });
        while self.kept.len() > QUEUE || self.kept_bytes > KEPT_BYTES {
            let Some(oldest) = self.kept.pop_front() else { break };
            self.kept_bytes -= oldest.data.len();
            if self.latest.get(&oldest.job).is_some_and(|latest| latest.number == oldest.number) {
                self.latest.remove(&oldest.job);
            }
        }
        number
    }
}

/// How far a job is in its life: of two looks at one job, that with the greater was made
/// later. Each part never gets less while those before it stay the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Standing {
    updated_ms: u64,
    attempt: u32,
    step: u32,
    phase: u8,
    is_launched: bool,
    is_stopping: bool,
}

impl Standing {
    /// Nothing follows that.
    const GONE: Self = Self {
        updated_ms: u64::MAX,
        attempt: u32::MAX,
        step: u32::MAX,
        phase: u8::MAX,
        is_launched: true,
        is_stopping: true,
    };

    fn of(job: &Job) -> Self {
        // Several can happen within a millisecond.
        let phase = match &job.phase {
            Phase::Queued { wait: Wait::Place | Wait::Time { .. } | Wait::Cron { .. }, .. } => 0,
            Phase::Working { .. } => 1,
            Phase::InputRequired { .. } => 2,
            Phase::Queued { wait: Wait::Retry { .. }, .. } => 3,
            Phase::Ended { .. } => 4,
        };
        let is_launched = match &job.phase {
            Phase::Working { run } => run.task.is_some() || run.code.is_some(),
            _ => false,
        };
        Self {
            updated_ms: job.updated_ms,
            attempt: job.attempt,
            step: job.step,
            phase,
            is_launched,
            is_stopping: job.stop.is_some(),
        }
    }
}

fn json(value: &impl Serialize) -> Box<str> {
    // These shapes have nothing in them that cannot be written.
    serde_json::to_string(value).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use backlot_jobs::{Event as Happened, Report, RunId, Spec, Stage, next};
    use backlot_registry::{Cause, Kind};

    use super::*;

    fn job(bits: u128) -> Job {
        let spec = Spec {
            kind: Kind::new("grep").unwrap(),
            input: "input".into(),
            label: "look".into(),
            parent: "chat".into(),
            incarnation: 1,
            grant: None,
            inherit: None,
            parent_run: None,
            entry: None,
            key: None,
            max_attempts: 9,
            retry: None,
            pinned: None,
            schedule: None,
            announced: false,
            webhook: None,
            trace: None,
        };
        let cause = Cause::Spawn;
        let stage = Stage { kind: None, input: None, cause, last_failure: None, answer: None };
        Job {
            id: JobId::from_bits(bits),
            spec: Arc::new(spec),
            depth: 1,
            phase: Phase::Queued { wait: Wait::Place, place: 1, last: None },
            stage,
            attempt: 1,
            step: 0,
            continuations: 0,
            state: None,
            code: Vec::new(),
            stop: None,
            detail: None,
            debt: None,
            call: None,
            endings: 0,
            created_ms: 5,
            updated_ms: 5,
        }
    }

    /// Returns a job as it is, one after another, while all of that takes no time.
    fn life(bits: u128) -> Vec<Job> {
        let run = RunId::from_bits;
        let report = Report {
            ending: backlot_jobs::Ending::Failed(backlot_jobs::Failure::Work),
            result: None,
            detail: None,
            state: None,
            again_ms: None,
            told: false,
        };
        let again = Report { again_ms: Some(9), ..report.clone() };
        let question = backlot_jobs::Question { prompt: "and now?".into(), schema: None };
        let stop =
            backlot_jobs::StopRequest { by: "ann".into(), why: None, at_ms: 5, after_step: true };
        let task = |bits| Happened::Launched { run: run(bits), task: Some("t".into()), code: None };
        let asked =
            Happened::Asked { run: run(2), outcome: "completed".into(), question, state: None };
        let events = [
            Happened::Started { run: run(1) },
            task(1),
            Happened::Finished { run: Some(run(1)), report: again },
            Happened::Started { run: run(2) },
            task(2),
            asked,
            Happened::Answered { asked: run(2), run: run(3), answer: "go on".into() },
            task(3),
            Happened::Finished { run: Some(run(3)), report: report.clone() },
            Happened::Retried { run: run(4) },
            task(4),
            Happened::StopRequested { stop },
            Happened::Finished { run: Some(run(4)), report },
        ];
        let mut life = vec![job(bits)];
        for event in events {
            let before = life.last().unwrap();
            life.push(next(before, &event, 5).unwrap().job);
        }
        life
    }

    fn all(feed: &Feed, from: Place) -> Vec<What> {
        feed.since(from, usize::MAX).unwrap().iter().map(|told| told.what).collect()
    }

    #[test]
    fn a_job_stands_further_with_all_that_happens_to_it() {
        let life = life(1);
        for pair in life.windows(2) {
            assert!(Standing::of(&pair[0]) < Standing::of(&pair[1]), "{:?}", pair[1].phase);
        }
        assert!(Standing::of(&life[life.len() - 1]) < Standing::GONE);
    }

    #[test]
    fn what_is_told_late_is_not_told() {
        let feed = Feed::default();
        let begin = feed.place();
        let life = life(1);
        feed.changed(&life[2]);
        feed.changed(&life[1]);
        feed.changed(&life[13]);
        feed.changed(&life[9]);
        let told = [What::Changed(Status::Working), What::Changed(Status::Failed)];
        assert_eq!(all(&feed, begin), told);
        // Nor after it is gone.
        feed.removed(&[Gone { job: life[0].id, parent: "chat".into() }]);
        feed.changed(&life[13]);
        assert_eq!(all(&feed, begin).len(), 3);
        // Another job is another.
        feed.changed(&job(2));
        assert_eq!(all(&feed, begin).len(), 4);
    }

    #[test]
    fn what_somebody_was_shown_is_not_gone_back_from() {
        let feed = Feed::default();
        let begin = feed.place();
        let life = life(1);
        feed.changed(&life[1]);
        let [first] = &feed.since(begin, 9).unwrap()[..] else { panic!("one was told") };
        assert!(feed.is_latest(first));
        feed.shown(&life[3..4]);
        assert!(!feed.is_latest(first));
        feed.changed(&life[2]);
        assert_eq!(all(&feed, begin).len(), 1);
        feed.changed(&life[3]);
        assert_eq!(all(&feed, begin).len(), 2);
    }

    #[test]
    fn who_comes_back_gets_what_was_missed_as_long_as_it_is_kept() {
        let feed = Feed::default();
        let begin = feed.place();
        assert_eq!(all(&feed, begin), []);
        for bits in 1..=QUEUE as u128 {
            feed.changed(&job(bits));
        }
        assert_eq!(all(&feed, begin).len(), QUEUE);
        let some = feed.since(begin, 5).unwrap();
        assert_eq!(some.iter().map(|told| told.number).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        feed.changed(&job(0));
        assert!(feed.since(begin, 5).is_none());
        let rest = feed.since(Place { number: 1, ..begin }, usize::MAX).unwrap();
        assert_eq!((rest.len(), rest[0].number), (QUEUE, 2));
        assert_eq!(all(&feed, feed.place()), []);
        // Of each job that is told of one standing is known.
        assert_eq!(feed.history().latest.len(), QUEUE);
        // Places that are none of this feed's.
        let ahead = Place { number: QUEUE as u64 + 2, ..begin };
        assert!(feed.since(ahead, 5).is_none());
        assert!(feed.since(Feed::default().place(), 5).is_none());
    }

    #[test]
    fn what_is_kept_is_bounded_in_bytes() {
        let feed = Feed::default();
        let spec = |job: &Job| Spec { label: "a".repeat(1 << 20), ..(*job.spec).clone() };
        for bits in 1..=40 {
            let job = job(bits);
            feed.changed(&Job { spec: Arc::new(spec(&job)), ..job });
        }
        let history = feed.history();
        assert_eq!((history.kept.len(), history.latest.len()), (15, 15));
        assert!(history.kept_bytes <= KEPT_BYTES);
    }

    #[test]
    fn a_place_is_written_and_read() {
        let place = Place { incarnation: 0xab, number: 7 };
        assert_eq!(place.to_string(), "00000000000000ab-7");
        assert_eq!(Place::parse("00000000000000ab-7"), Some(place));
        for bad in ["", "7", "ab", "-", "ab-", "-7", "x-7", "ab-7-7", "ab--7"] {
            assert_eq!(Place::parse(bad), None, "{bad}");
        }
    }

    #[tokio::test]
    async fn who_listens_is_told_and_woken() {
        let feed = Feed::default();
        let (mut listener, mut newest) = (feed.listen(), feed.watch());
        feed.changed(&job(1));
        newest.changed().await.unwrap();
        assert_eq!(*newest.borrow_and_update(), 1);
        assert!(matches!(listener.next().await, Some(Event::Changed(_))));
        feed.removed(&[Gone { job: job(1).id, parent: "chat".into() }]);
        newest.changed().await.unwrap();
        assert!(matches!(listener.next().await, Some(Event::Removed(_))));
    }
}
