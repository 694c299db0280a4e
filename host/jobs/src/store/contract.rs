//! What every [`Store`] must do: one check for each behaviour.
//!
//! [`store_contract!`](crate::store_contract) makes each a test of its own:
//!
//! ```ignore
//! backlot_jobs::store_contract!(|| {
//!     let store = Arc::new(MyStore::new());
//!     Handles::new(store.clone(), store)
//! });
//! ```
//!
//! A check gets two handles of one store that is empty, so that what must hold between
//! processes is asked of both.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "these are tests, which panic where the contract is broken"
)]

use std::{any::Any, collections::HashSet, sync::Arc};

use backlot_registry::{Kind, SessionId};
use futures::future::join_all;

use super::{
    Census, Change, ChangeError, Changed, Gone, Limits, Query, Refused, Scope, Spawned, Store,
    family_of,
};
use crate::{
    id::{DeliveryId, JobId, RunId},
    job::{
        Call, Code, Ending, Event, Failure, Job, Lost, NextStep, Phase, Question, Report, Spec,
        Status, StopRequest, Wait, Webhook,
    },
    retry::RetryPolicy,
    schedule::Schedule,
    session::{Body, Entry, Session},
};

/// Makes each check of the contract a test. It is given what returns [`Handles`] of a
/// store that is empty.
#[macro_export]
macro_rules! store_contract {
    ($handles:expr) => {
        $crate::store_contract! { @each $handles;
            a_job_is_had_by_the_session_that_it_works_for
            there_are_so_many_sessions_below_one
            j1_a_job_is_found_by_what_its_id_begins_with
            j1_all_of_a_job_comes_back
            j1_a_run_that_is_followed_is_kept
            j2_finalize_is_a_compare_and_set
            j3_a_finalizer_names_its_run
            j4_two_retries_one_attempt
            j4_only_what_failed_is_retried_and_not_for_ever
            j6_advance_is_run_bound
            j8_a_stop_that_races_a_continuation_wins
            j9_the_cap_covers_spawn_and_retry
            j9_spawns_at_once_keep_to_the_cap
            j9_whoever_has_many_sessions_leaves_room_for_others
            j10_jobs_are_so_deep_and_no_deeper
            j11_what_was_not_launched_was_never_there
            j12_a_job_without_a_run_is_stopped_at_once
            j14_the_census_counts_all
            j15_debt_is_written_with_the_ending
            j15_what_is_owed_is_read_in_parts
            j15_a_retry_drops_the_debt_and_another_ending_writes_it
            j16_deleting_a_session_takes_all_below
            j16_a_job_is_removed_when_it_and_all_below_have_ended
            j16_a_session_of_the_same_name_is_another
            j17_an_entry_is_stored_once
            j17_a_job_tells_under_the_entry_it_was_spawned_by
            j19_a_listing_has_the_newest_first
            j19_a_listing_goes_on_where_it_ended
            j22_a_question_waits_for_its_answer
            j23_the_queue_is_fair
            j23_families_take_turns
            j23_the_queue_is_fair_to_who_has_one_session
            j23_a_queue_is_bounded
            j23_two_that_start_the_next_start_two
            j24_a_key_has_one_job
            j24_spawns_at_once_under_one_key_are_one
            j25_what_is_not_due_is_not_started
            j25_a_schedule_spawns_and_goes_on
            j27_prune_takes_the_oldest_first
            j27_prune_never_takes_debts
            j29_a_back_off_is_another_attempt
            a_webhook_is_told_of_every_ending
            a_call_is_put_off_given_up_or_made_once
            a_call_goes_with_its_job_and_is_never_pruned
            calls_of_a_receiver_are_left_out
            a_session_is_opened_once
            a_change_is_not_taken_back
            many_at_once_lose_nothing
        }
    };
    (@each $handles:expr; $($check:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $check() {
                let handles = $handles;
                $crate::contract::$check(&handles()).await;
            }
        )*
    };
}

/// Two handles of one store.
pub struct Handles {
    one: Arc<dyn Store>,
    other: Arc<dyn Store>,
    _kept: Box<dyn Any>,
}

impl Handles {
    /// Returns them, for a store that needs nothing else.
    pub fn new(one: Arc<dyn Store>, other: Arc<dyn Store>) -> Self {
        Self::keeping(one, other, ())
    }

    /// Returns them with what must be there as long, such as a folder.
    pub fn keeping(one: Arc<dyn Store>, other: Arc<dyn Store>, kept: impl Any) -> Self {
        Self { one, other, _kept: Box::new(kept) }
    }

    fn each(&self) -> [&Arc<dyn Store>; 2] {
        [&self.one, &self.other]
    }
}

const WIDE: Limits =
    Limits { per_session: 1_000, total: 1_000, depth: 3, queued: 1_000, ..Limits::NONE };
const NOW_MS: u64 = 1_000_000;

fn kind(name: &str) -> Kind {
    Kind::new(name).unwrap()
}

pub(crate) fn spawned(parent: &str) -> Spawned {
    Spawned {
        id: JobId::random().unwrap(),
        run: RunId::random().unwrap(),
        spec: Spec {
            kind: kind("grep"),
            input: "the input".into(),
            label: "look".into(),
            parent: parent.into(),
            incarnation: 0,
            grant: None,
            inherit: None,
            parent_run: None,
            entry: None,
            key: None,
            max_attempts: 3,
            retry: None,
            pinned: None,
            schedule: None,
            announced: true,
            webhook: None,
            trace: None,
        },
        state: None,
        due_ms: 0,
        queue: false,
        limits: WIDE,
        now_ms: NOW_MS,
    }
}

fn report(ending: Ending, detail: &str) -> Report {
    Report {
        ending,
        result: None,
        detail: Some(detail.into()),
        state: None,
        again_ms: None,
        told: false,
    }
}

fn completed(run: Option<RunId>) -> Event {
    let result = Some("the result".into());
    Event::Finished { run, report: Report { result, ..report(Ending::Completed, "done") } }
}

pub(crate) fn failed(run: Option<RunId>) -> Event {
    Event::Finished { run, report: report(Ending::Failed(Failure::Work), "exit code: 3") }
}

fn advanced(run: RunId, next: RunId, state: Option<&str>) -> Event {
    let step = NextStep { kind: None, input: "more".into(), state: state.map(Into::into) };
    Event::Advanced { run, outcome: "completed".into(), next, step }
}

fn asked(run: RunId) -> Event {
    let question = Question { prompt: "which one?".into(), schema: Some("{}".into()) };
    Event::Asked { run, outcome: "completed".into(), question, state: None }
}

fn stop(by: &str) -> Event {
    let (by, why) = (by.into(), Some("enough".into()));
    Event::StopRequested { stop: StopRequest { by, why, at_ms: NOW_MS, after_step: true } }
}

pub(crate) fn new_run() -> RunId {
    RunId::random().unwrap()
}

/// Makes a change that must be possible.
async fn make(store: &dyn Store, change: Change) -> Changed {
    store.change(change).await.unwrap()
}

/// Makes a change that must not be.
async fn refused(store: &dyn Store, change: Change) -> Refused {
    match store.change(change).await {
        Err(ChangeError::Refused(refused)) => refused,
        other => panic!("{other:?} is no refusal"),
    }
}

pub(crate) async fn open(store: &dyn Store, name: &str, incarnation: u64) -> Session {
    let session = Session { id: name.into(), incarnation, created_ms: NOW_MS };
    match make(store, Change::Open { session, limit: usize::MAX }).await {
        Changed::Session(session) => session,
        other => panic!("{other:?} is no session"),
    }
}

fn job_of(changed: Changed) -> Job {
    match changed {
        Changed::Job { job, .. } => *job,
        other => panic!("{other:?} is no job"),
    }
}

fn removed(changed: Changed) -> Vec<JobId> {
    match changed {
        Changed::Removed(gone) => gone.into_iter().map(|gone| gone.job).collect(),
        other => panic!("{other:?} is no removal"),
    }
}

pub(crate) async fn spawn(store: &dyn Store, spawned: Spawned) -> Job {
    job_of(make(store, Change::Spawn(Box::new(spawned))).await)
}

fn happening(job: JobId, event: Event, now_ms: u64) -> Change {
    Change::Happen { job, event, limits: WIDE, now_ms }
}

/// Has something happen, after which the store must have what it answered with.
pub(crate) async fn happen(store: &dyn Store, job: &Job, event: Event) -> Job {
    happen_at(store, job, event, NOW_MS).await
}

async fn happen_at(store: &dyn Store, job: &Job, event: Event, now_ms: u64) -> Job {
    let job = job_of(make(store, happening(job.id, event, now_ms)).await);
    assert_eq!(store.job(job.id).await.unwrap().as_ref(), Some(&job));
    job
}

async fn lost(store: &dyn Store, job: &Job, event: Event) -> Lost {
    let before = store.job(job.id).await.unwrap();
    let Refused::Lost(lost) = refused(store, happening(job.id, event, NOW_MS)).await else {
        panic!("it was not lost");
    };
    assert_eq!(store.job(job.id).await.unwrap(), before);
    lost
}

/// Makes changes at once, each through one of the handles, and returns what came of it.
async fn at_once(
    handles: &Handles,
    changes: impl IntoIterator<Item = Change>,
) -> Vec<Result<Changed, ChangeError>> {
    let stores = handles.each().into_iter().cycle();
    let tasks = changes.into_iter().zip(stores).map(|(change, store)| {
        let store = store.clone();
        tokio::spawn(async move { store.change(change).await })
    });
    join_all(tasks).await.into_iter().map(Result::unwrap).collect()
}

/// Returns how many went through; all others must have been refused.
fn winners(results: Vec<Result<Changed, ChangeError>>) -> Vec<Changed> {
    let is_won = |result| match result {
        Ok(changed) => Some(changed),
        Err(ChangeError::Refused(_)) => None,
        Err(ChangeError::Store(error)) => panic!("{error}"),
    };
    results.into_iter().filter_map(is_won).collect()
}

async fn ids(store: &dyn Store, query: Query) -> Vec<JobId> {
    store.list(query).await.unwrap().jobs.iter().map(|job| job.id).collect()
}

fn all_of(session: &str) -> Query {
    Query { session: Some(session.into()), limit: 1_000, ..Query::default() }
}

async fn owed(store: &dyn Store, session: Option<&str>) -> Vec<JobId> {
    let owed = store.owed(session.map(SessionId::from), None, 1_000).await.unwrap();
    owed.iter().map(|job| job.id).collect()
}

/// A job is found by what its id begins with, and is not when that is another's.
pub async fn j1_a_job_is_found_by_what_its_id_begins_with(handles: &Handles) {
    let store = &*handles.one;
    open(store, "chat", 1).await;
    let digits = ["00", "0a000000000000000000000000000001", "0a", "7f", "80", "ff"];
    for text in digits {
        let id = format!("{text:0<32}").parse().unwrap();
        spawn(store, Spawned { id, ..spawned("chat") }).await;
    }
    let last = JobId::from_bits(u128::MAX);
    spawn(store, Spawned { id: last, ..spawned("chat") }).await;
    let found = |text: &str| {
        let prefix = text.parse().unwrap();
        async move { store.find(prefix).await.unwrap() }
    };
    assert_eq!(found("8").await, ["80".to_owned() + &"0".repeat(30)].map(|it| it.parse().unwrap()));
    assert_eq!(found(&"f".repeat(32)).await, [last]);
    assert_eq!(found("0a").await.len(), 2);
    assert_eq!(found("0").await.len(), 2, "at most two");
    assert_eq!(found("f").await.len(), 2);
    assert_eq!(found("1").await, []);
    assert_eq!(store.job(JobId::from_bits(1)).await.unwrap(), None);
    assert_eq!(store.job(last).await.unwrap().unwrap().id, last);
    let nobody = happening(JobId::from_bits(1), completed(None), NOW_MS);
    assert_eq!(refused(store, nobody).await, Refused::NoJob(JobId::from_bits(1)));
}

/// All that a job has comes back as it was written, through either handle.
pub async fn j1_all_of_a_job_comes_back(handles: &Handles) {
    let store = &*handles.one;
    open(store, "chät \"'%_\n", u64::MAX).await;
    let text = |name: &str| Some(format!("{name} ü \u{0} \"'\\ \u{1f600}"));
    let spec = Spec {
        input: "x".repeat(1 << 20),
        label: String::new(),
        grant: text("grant"),
        inherit: text("inherit"),
        parent_run: text("run"),
        entry: text("entry"),
        key: text("key"),
        retry: Some(RetryPolicy { factor: 1.1, ..RetryPolicy::default() }),
        pinned: text("digest"),
        schedule: Some(Schedule::At(u64::MAX)),
        webhook: text("webhook").map(Webhook::Url),
        ..spawned("chät \"'%_\n").spec
    };
    let state = text("state");
    let new = Spawned { spec, state, now_ms: u64::MAX / 2, ..spawned("") };
    let job = spawn(store, new.clone()).await;
    assert_eq!(job.spec.incarnation, u64::MAX);
    assert_eq!(*job.spec, Spec { incarnation: u64::MAX, ..new.spec });
    assert_eq!((job.id, job.run(), &job.state), (new.id, Some(new.run), &new.state));
    for handle in handles.each() {
        assert_eq!(handle.job(job.id).await.unwrap().as_ref(), Some(&job));
    }
    let code = Code { kind: kind("grep"), digest: "sha".into(), generation: u64::MAX };
    let launched = |run| Event::Launched { run, task: text("task"), code: Some(code.clone()) };
    let job = happen(store, &job, launched(new.run)).await;
    assert_eq!(job.digest_for(&kind("grep")), text("digest").as_deref());
    let (kind, state) = (Some(kind("other")), text("later"));
    let step = NextStep { kind, input: "y".repeat(1 << 20), state };
    let (run, next) = (new.run, new_run());
    let outcome = "completed".into();
    let job = happen(store, &job, Event::Advanced { run, outcome, next, step }).await;
    let job = happen(store, &job, launched(next)).await;
    let job = happen(store, &job, stop("somebody")).await;
    assert!(job.stop.is_some());
    let result = Some("z".repeat(1 << 20));
    let ended = Report { result, ..report(Ending::Completed, "done") };
    let job = happen(store, &job, Event::Finished { run: Some(next), report: ended }).await;
    assert_eq!(handles.other.job(job.id).await.unwrap(), Some(job.clone()));
    // A job without any text at all is one as well.
    let mut plain = spawned("chät \"'%_\n");
    plain.spec.input = String::new();
    let plain = spawn(store, plain).await;
    let ended = Event::Finished {
        run: None,
        report: Report { result: Some(String::new()), ..report(Ending::Completed, "") },
    };
    let plain = happen(store, &plain, ended).await;
    assert_eq!(plain.ended().unwrap().result.as_deref(), Some(""));
}

/// A run that another follows is kept, and goes with its job.
pub async fn j1_a_run_that_is_followed_is_kept(handles: &Handles) {
    let store = &*handles.one;
    open(store, "chat", 1).await;
    let mut job = spawn(store, spawned("chat")).await;
    let mut runs = Vec::new();
    for _ in 0..5 {
        let run = job.run().unwrap();
        runs.push(run);
        job = happen(store, &job, advanced(run, new_run(), None)).await;
    }
    let past = handles.other.past_runs(job.id).await.unwrap();
    assert_eq!(past.iter().map(|run| run.id).collect::<Vec<_>>(), runs);
    assert_eq!(past.iter().map(|run| run.step).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert!(past.iter().all(|run| run.outcome.as_deref() == Some("completed")));
    assert_eq!((job.attempt, job.step, job.continuations), (1, 5, 5));
    assert!(!runs.contains(&job.run().unwrap()));
    happen(store, &job, completed(None)).await;
    make(store, Change::Remove { job: job.id }).await;
    assert_eq!(store.past_runs(job.id).await.unwrap(), []);
    assert_eq!(store.past_runs(JobId::from_bits(1)).await.unwrap(), []);
}

/// Of many endings of a run at once one is written, whole, and the others are told.
pub async fn j2_finalize_is_a_compare_and_set(handles: &Handles) {
    let store = &*handles.one;
    open(store, "chat", 1).await;
    let job = spawn(store, spawned("chat")).await;
    let run = job.run();
    let changes = (0..32).map(|number: u32| {
        let ending = if number < 16 { Ending::Completed } else { Ending::Failed(Failure::Work) };
        let said = Report {
            result: Some(format!("result {number}")),
            state: Some(format!("state {number}")),
            ..report(ending, &format!("detail {number}"))
        };
        happening(job.id, Event::Finished { run, report: said }, NOW_MS)
    });
    let won = winners(at_once(handles, changes).await);
    let [winner] = &won[..] else { panic!("{} have ended it", won.len()) };
    let Changed::Job { job: ended, before: Some(Status::Working) } = winner else {
        panic!("{winner:?}");
    };
    for handle in handles.each() {
        assert_eq!(handle.job(job.id).await.unwrap().as_ref(), Some(&**ended));
    }
    let result = ended.ended().unwrap().result.as_deref().unwrap();
    let number = result.strip_prefix("result ").unwrap();
    assert_eq!(ended.state.as_deref(), Some(&*format!("state {number}")));
    let late = lost(store, ended, completed(run)).await;
    assert_eq!(late, Lost::Moved { status: ended.status(), run: None });
    assert_eq!(lost(store, ended, stop("late")).await, Lost::Ended { status: ended.status() });
}

/// What ends a run ends that run and no other; what names none ends the current one.
pub async fn j3_a_finalizer_names_its_run(handles: &Handles) {
    let store = &*handles.one;
    open(store, "chat", 1).await;
    let job = spawn(store, spawned("chat")).await;
    let first = job.run();
    happen(store, &job, failed(first)).await;
    let second = new_run();
    let job = happen(&*handles.other, &job, Event::Retried { run: second }).await;
    for event in [completed(first), failed(first), asked(first.unwrap())] {
        let moved = Lost::Moved { status: Status::Working, run: Some(second) };
        assert_eq!(lost(store, &job, event).await, moved);
    }
    let launched = Event::Launched { run: first.unwrap(), task: None, code: None };
    lost(store, &job, launched).await;
    let job = happen(store, &job, completed(None)).await;
    assert_eq!(job.status(), Status::Completed);
    assert_eq!(job.last_run().unwrap().id, second);
}

/// Many retries at once are one attempt.
pub async fn j4_two_retries_one_attempt(handles: &Handles) {
    let store = &*handles.one;
    open(store, "chat", 1).await;
    let job = spawn(store, spawned("chat")).await;
    let job = happen(store, &job, failed(None)).await;
    let retry = |_| happening(job.id, Event::Retried { run: new_run() }, NOW_MS);
    let won = winners(at_once(handles, (0..32).map(retry)).await);
    assert_eq!(won.len(), 1);
    let again = store.job(job.id).await.unwrap().unwrap();
    assert_eq!((again.attempt, again.status()), (2, Status::Working));
    assert_eq!((again.summary(), again.ended()), (None, None));
    assert_eq!(again.stage.last_failure.as_deref(), job.summary());
    assert_eq!(again.stage_input(), job.spec.input);
    assert_eq!(store.past_runs(job.id).await.unwrap().len(), 1);
}

/// Only a failed job is retried, and only as often as it may be.
pub async fn j4_only_what_failed_is_retried_and_not_for_ever(handles: &Handles) {
    let store = &*handles.one;
    open(store, "chat", 1).await;
    let retry = || Event::Retried { run: new_run() };
    let mut job = spawn(store, spawned("chat")).await;
    assert_eq!(lost(store, &job, retry()).await, Lost::NotFailed { status: Status::Working });
    for attempt in 2..=3 {
        job = happen(store, &job, failed(None)).await;
        job = happen(store, &job, retry()).await;
        assert_eq!(job.attempt, attempt);
    }
    job = happen(store, &job, failed(None)).await;
    assert_eq!(lost(store, &job, retry()).await, Lost::Exhausted { used: 3, max: 3 });
    let done = spawn(store, spawned("chat")).await;
    happen(store, &done, completed(None)).await;
    assert_eq!(lost(store, &done, retry()).await, Lost::NotFailed { status: Status::Completed });
    let ended = Event::Finished { run: None, report: report(Ending::Cancelled, "stopped") };
    let gone = spawn(store, spawned("chat")).await;
    happen(store, &gone, ended).await;
    assert_eq!(lost(store, &gone, retry()).await, Lost::NotFailed { status: Status::Cancelled });
}

/// What follows a run follows it once, and only it.
pub async fn j6_advance_is_run_bound(handles: &Handles) {
    let store = &*handles.one;
    open(store, "chat", 1).await;
    let job = spawn(store, Spawned { state: Some("begun".into()), ..spawned("chat") }).await;
    let run = job.run().unwrap();
    let advance = |_| happening(job.id, advanced(run, new_run(), None), NOW_MS);
    assert_eq!(winners(at_once(handles, (0..32).map(advance)).await).len(), 1);
    let job = store.job(job.id).await.unwrap().unwrap();
    assert_eq!((job.attempt, job.step, job.continuations), (1, 1, 1));
    assert_eq!(job.state.as_deref(), Some("begun"), "no state given keeps the old");
    assert_eq!(job.stage_input(), "more");
    let current = job.run().unwrap();
    lost(store, &job, advanced(run, new_run(), Some("lost"))).await;
    let rewritten = Event::Rewritten { run: current, state: "written".into() };
    let job = happen(store, &job, rewritten).await;
    assert_eq!((job.state.as_deref(), job.run()), (Some("written"), Some(current)));
    lost(store, &job, Event::Rewritten { run, state: "lost".into() }).await;
    let job = happen(store, &job, advanced(current, new_run(), Some("next"))).await;
    assert_eq!(job.state.as_deref(), Some("next"));
    let job = happen(store, &job, completed(None)).await;
    lost(store, &job, advanced(current, new_run(), None)).await;
}

/// A stop that was asked for before a run is followed ends the job.
pub async fn j8_a_stop_that_races_a_continuation_wins(handles: &Handles) {
    let store = &*handles.one;
    open(store, "chat", 1).await;
    for follow in [|run| advanced(run, new_run(), None), asked] {
        let job = spawn(store, spawned("chat")).await;
        let job = happen(&*handles.other, &job, stop("a person")).await;
        assert_eq!(job.status(), Status::Working, "it is asked for, and no more");
        let job = happen(store, &job, follow(job.run().unwrap())).await;
        assert_eq!(job.status(), Status::Cancelled);
        assert_eq!(job.summary(), Some("enough"));
        assert_eq!(job.debt, None);
    }
}

/// The caps on live jobs hold for whatever brings one to life.
pub async fn j9_the_cap_covers_spawn_and_retry(handles: &Handles) {
    let store = &*handles.one;
    open(store, "a", 1).await;
    open(store, "b", 1).await;
    let limits = Limits { per_session: 2, total: 3, ..WIDE };
    let new = |parent: &str| Spawned { limits, ..spawned(parent) };
    let spawning = |parent: &str| Change::Spawn(Box::new(new(parent)));
    let first = spawn(store, new("a")).await;
    let second = spawn(store, new("a")).await;
    let full = Refused::Full { scope: Scope::Session, limit: 2 };
    assert_eq!(refused(&*handles.other, spawning("a")).await, full);
    happen(store, &first, failed(None)).await;
    let third = spawn(&*handles.other, new("a")).await;
    let retry = |limits| Change::Happen {
        job: first.id,
        event: Event::Retried { run: new_run() },
        limits,
        now_ms: NOW_MS,
    };
    assert_eq!(refused(store, retry(limits)).await, full);
    spawn(store, new("b")).await;
    let all_full = Refused::Full { scope: Scope::Host, limit: 3 };
    assert_eq!(refused(store, spawning("b")).await, all_full);
    // One that waits for a person is live.
    happen(store, &second, asked(second.run().unwrap())).await;
    assert_eq!(refused(store, spawning("b")).await, all_full);
    happen(store, &third, completed(None)).await;
    make(store, retry(limits)).await;
    assert_eq!(refused(store, spawning("b")).await, all_full);
    assert_eq!(store.census().await.unwrap().working, 2);
}

/// Spawns at once are as many as may be live, whoever makes them.
pub async fn j9_spawns_at_once_keep_to_the_cap(handles: &Handles) {
    open(&*handles.one, "chat", 1).await;
    let limits = Limits { per_session: 7, ..WIDE };
    let new = |_| Change::Spawn(Box::new(Spawned { limits, ..spawned("chat") }));
    assert_eq!(winners(at_once(handles, (0..40).map(new)).await).len(), 7);
    assert_eq!(handles.other.census().await.unwrap().working, 7);
    assert_eq!(ids(&*handles.one, all_of("chat")).await.len(), 7);
}

/// What somebody takes with many sessions below one has a bound, and keeps nobody else from
/// anything.
pub async fn j9_whoever_has_many_sessions_leaves_room_for_others(handles: &Handles) {
    let store = &*handles.one;
    let limits = Limits { per_family: 3, queued_per_family: 2, ..WIDE };
    let mine = ["me", "me/1", "me/2", "me/2/3"];
    for session in mine.into_iter().chain(["men", "me0"]) {
        open(store, session, 1).await;
    }
    let new = |parent: &str, queue| Spawned { limits, queue, ..spawned(parent) };
    let spawning = |parent: &str, queue| Change::Spawn(Box::new(new(parent, queue)));
    let live = [spawn(store, new("me", false)).await, spawn(store, new("me/1", false)).await];
    let third = spawn(&*handles.other, new("me/2/3", false)).await;
    let full = Refused::Full { scope: Scope::Family, limit: 3 };
    for session in mine {
        assert_eq!(refused(&*handles.other, spawning(session, false)).await, full);
    }
    for session in ["me/1", "me/2"] {
        assert_eq!(spawn(store, new(session, true)).await.status(), Status::Queued);
    }
    let queue_full = Refused::QueueFull { scope: Scope::Family, limit: 2 };
    assert_eq!(refused(&*handles.other, spawning("me", true)).await, queue_full);
    // Names that only begin alike are others'.
    for session in ["men", "me0"] {
        assert_eq!(spawn(store, new(session, true)).await.status(), Status::Working);
    }
    let next = || Change::StartNext { run: new_run(), limits, after: Vec::new(), now_ms: NOW_MS };
    assert_eq!(make(store, next()).await, Changed::Nothing, "there is no place for them");
    happen(&*handles.other, &third, completed(None)).await;
    assert_eq!(job_of(make(store, next()).await).spec.parent.as_str(), "me/2");
    assert_eq!(make(store, next()).await, Changed::Nothing);
    // What has ended counts no more.
    for job in live {
        happen(store, &job, completed(None)).await;
    }
    assert_eq!(job_of(make(&*handles.other, next()).await).spec.parent.as_str(), "me/1");
}

/// Who has more sessions has no more turns for that.
pub async fn j23_the_queue_is_fair_to_who_has_one_session(handles: &Handles) {
    let store = &*handles.one;
    for session in ["many/1", "many/2", "many/3", "one"] {
        open(store, session, 1).await;
    }
    let limits = Limits { total: 2, ..WIDE };
    let new = |parent: &str| Spawned { limits, queue: true, ..spawned(parent) };
    let first = spawn(store, new("many/1")).await;
    let second = spawn(store, new("many/2")).await;
    for parent in ["many/1", "many/2", "many/3", "one", "one"] {
        spawn(store, new(parent)).await;
    }
    let next = || Change::StartNext { run: new_run(), limits, after: Vec::new(), now_ms: NOW_MS };
    happen(store, &first, completed(None)).await;
    assert_eq!(job_of(make(&*handles.other, next()).await).spec.parent.as_str(), "one");
    happen(store, &second, completed(None)).await;
    // Of its sessions, the one that has none.
    assert_ne!(job_of(make(store, next()).await).spec.parent.as_str(), "one");
}

/// Where all have as many live jobs, families have their turns one after the other, and in
/// each its sessions do.
pub async fn j23_families_take_turns(handles: &Handles) {
    let store = &*handles.one;
    let limits = Limits { total: 1, ..WIDE };
    let mut live = None;
    for parent in ["many/1", "many/1", "many/1", "many/2", "many/3", "one", "one", "one"] {
        open(store, parent, 1).await;
        let job = spawn(store, Spawned { limits, queue: true, ..spawned(parent) }).await;
        live.get_or_insert(job);
    }
    let (mut live, mut after) = (live.unwrap(), vec![SessionId::from("many/1")]);
    let mut turns = Vec::new();
    for _ in 0..6 {
        happen(store, &live, completed(None)).await;
        let after_now = after.clone();
        let next = Change::StartNext { run: new_run(), limits, after: after_now, now_ms: NOW_MS };
        live = job_of(make(&*handles.other, next).await);
        let session = live.spec.parent.clone();
        turns.push(session.as_str().to_owned());
        after.retain(|it| family_of(it) != family_of(&session));
        after.insert(0, session);
    }
    assert_eq!(turns, ["one", "many/2", "one", "many/3", "one", "many/1"]);
}

/// There are so many sessions below one, and no more.
pub async fn there_are_so_many_sessions_below_one(handles: &Handles) {
    let (store, other) = (&*handles.one, &*handles.other);
    let opening = |name: &str| {
        let session = Session { id: name.into(), incarnation: 1, created_ms: NOW_MS };
        Change::Open { session, limit: 2 }
    };
    for name in ["me", "me/1", "me/1/2", "me0/1", "me-1", "other"] {
        make(store, opening(name)).await;
    }
    let many = Refused::ManySessions { family: "me".into(), limit: 2 };
    assert_eq!(refused(other, opening("me/3")).await, many);
    assert_eq!(refused(other, opening("me/1/2/3")).await, many);
    // One that is there is opened all the same.
    assert!(matches!(make(other, opening("me/1")).await, Changed::Session(_)));
    make(store, Change::Delete { session: "me/1/2".into() }).await;
    make(other, opening("me/3")).await;
    assert_eq!(other.session("me/3".into()).await.unwrap().unwrap().incarnation, 1);
}

/// A job's own session may spawn down to the maximum.
pub async fn j10_jobs_are_so_deep_and_no_deeper(handles: &Handles) {
    let store = &*handles.one;
    open(store, "chat", 1).await;
    let limits = Limits { depth: 2, ..WIDE };
    let first = spawn(store, Spawned { limits, ..spawned("chat") }).await;
    let below = |job: &Job| Spawned { limits, ..spawned(job.id.session().as_str()) };
    let second = spawn(&*handles.other, below(&first)).await;
    assert_eq!((first.depth, second.depth, second.spec.incarnation), (1, 2, 0));
    let third = Change::Spawn(Box::new(below(&second)));
    assert_eq!(refused(store, third).await, Refused::TooDeep { depth: 3, max: 2 });
    let session = JobId::from_bits(1).session();
    let nobody = Change::Spawn(Box::new(spawned(session.as_str())));
    assert_eq!(refused(store, nobody).await, Refused::NoSession(session.as_str().into()));
    let query = Query { session: Some(first.id.session()), limit: 10, ..Query::default() };
    assert_eq!(ids(store, query).await, [second.id]);
}

/// A job whose first run could not be launched leaves nothing.
pub async fn j11_what_was_not_launched_was_never_there(handles: &Handles) {
    let store = &*handles.one;
    open(store, "chat", 1).await;
    let mut new = spawned("chat");
    new.spec.key = Some("once".into());
    let job = spawn(store, new.clone()).await;
    let back = |run| Change::TakeBack { job: job.id, run };
    let moved = Lost::Moved { status: Status::Working, run: job.run() };
    assert_eq!(refused(store, back(new_run())).await, Refused::Lost(moved));
    assert_eq!(removed(make(&*handles.other, back(new.run)).await), [job.id]);
    assert_eq!(store.job(job.id).await.unwrap(), None);
    assert_eq!(ids(store, all_of("chat")).await, []);
    assert_eq!(store.census().await.unwrap(), Census::default());
    assert_eq!(refused(store, back(new.run)).await, Refused::NoJob(job.id));
    // Its key is free, and so is its place.
    let again = spawn(store, Spawned { id: JobId::random().unwrap(), ..new.clone() }).await;
    let failed = happen(store, &again, failed(None)).await;
    let retried = happen(store, &failed, Event::Retried { run: new_run() }).await;
    let late = Change::TakeBack { job: again.id, run: retried.run().unwrap() };
    assert!(matches!(refused(store, late).await, Refused::Lost(Lost::Moved { .. })));
    let next = new_run();
    let other = spawn(store, spawned("chat")).await;
    happen(store, &other, advanced(other.run().unwrap(), next, None)).await;
    let late = Change::TakeBack { job: other.id, run: next };
    assert!(matches!(refused(store, late).await, Refused::Lost(Lost::Moved { .. })));
}

/// A job that has no run is stopped by the request.
pub async fn j12_a_job_without_a_run_is_stopped_at_once(handles: &Handles) {
    let store = &*handles.one;
    open(store, "chat", 1).await;
    let waiting = spawn(store, Spawned { due_ms: NOW_MS + 1, ..spawned("chat") }).await;
    let asking = spawn(store, spawned("chat")).await;
    let asking = happen(store, &asking, asked(asking.run().unwrap())).await;
    for job in [waiting, asking] {
        let job = happen(&*handles.other, &job, stop("a person")).await;
        assert_eq!(job.status(), Status::Cancelled);
        assert_eq!((job.summary(), &job.debt), (Some("enough"), &None));
    }
    let census = Census { ended: 2, ..Census::default() };
    assert_eq!(store.census().await.unwrap(), census);
}

/// The census has every job under its status, whatever has become of it.
pub async fn j14_the_census_counts_all(handles: &Handles) {
    let store = &*handles.one;
    assert_eq!(store.census().await.unwrap(), Census::default());
    open(store, "chat", 1).await;
    for due_ms in [NOW_MS + 7, NOW_MS + 5, NOW_MS + 9] {
        spawn(store, Spawned { due_ms, ..spawned("chat") }).await;
    }
    let mut jobs = Vec::new();
    for _ in 0..6 {
        jobs.push(spawn(store, spawned("chat")).await);
    }
    happen(store, &jobs[0], asked(jobs[0].run().unwrap())).await;
    happen(store, &jobs[1], completed(None)).await;
    happen(&*handles.other, &jobs[2], failed(None)).await;
    happen(store, &jobs[3], stop("a person")).await;
    let census = Census {
        queued: 3,
        next_due_ms: Some(NOW_MS + 5),
        working: 3,
        input_required: 1,
        ended: 2,
        owed: 2,
    };
    for handle in handles.each() {
        assert_eq!(handle.census().await.unwrap(), census);
    }
    happen(store, &jobs[2], Event::Retried { run: new_run() }).await;
    make(store, Change::Remove { job: jobs[1].id }).await;
    let census = Census { working: 4, ended: 0, owed: 0, ..census };
    assert_eq!(handles.other.census().await.unwrap(), census);
}

/// An ending is owed once it is written, to its session, until it is settled.
pub async fn j15_debt_is_written_with_the_ending(handles: &Handles) {
    let store = &*handles.one;
    for session in ["a", "b"] {
        open(store, session, 1).await;
    }
    let mut jobs = Vec::new();
    for parent in ["a", "b", "a", "a", "a", "a"] {
        jobs.push(spawn(store, spawned(parent)).await);
    }
    // The oldest ending comes first, whichever was spawned first.
    for (turn, index) in [2, 1, 0].into_iter().enumerate() {
        jobs[index] = happen_at(store, &jobs[index], failed(None), NOW_MS + turn as u64).await;
        assert_eq!(jobs[index].debt, Some(DeliveryId::new(jobs[index].id, 1)));
    }
    assert_eq!(owed(&*handles.other, None).await, [jobs[2].id, jobs[1].id, jobs[0].id]);
    assert_eq!(owed(store, Some("a")).await, [jobs[2].id, jobs[0].id]);
    assert_eq!(owed(store, Some("nobody")).await, []);
    let first = store.owed(None, None, 1).await.unwrap();
    assert_eq!(first, [jobs[2].clone()], "all of it is there");
    // Nobody is owed what they were told in hand, have stopped, or did not want.
    let told = Event::Finished {
        run: None,
        report: Report { told: true, ..report(Ending::Completed, "in hand") },
    };
    happen(store, &jobs[3], told).await;
    let cancelled = Event::Finished { run: None, report: report(Ending::Cancelled, "") };
    happen(store, &jobs[4], cancelled).await;
    let mut quiet = spawned("a");
    quiet.spec.announced = false;
    let quiet = spawn(store, quiet).await;
    happen(store, &quiet, completed(None)).await;
    assert_eq!(store.census().await.unwrap().owed, 3);
    // Settled once, it is owed no more.
    let settled = |job: &Job| Event::Settled { delivery: DeliveryId::new(job.id, 1) };
    let other = Event::Settled { delivery: DeliveryId::new(jobs[2].id, 2) };
    assert_eq!(lost(store, &jobs[2], other).await, Lost::NotOwed);
    let settle = |_| happening(jobs[2].id, settled(&jobs[2]), NOW_MS);
    assert_eq!(winners(at_once(handles, (0..8).map(settle)).await).len(), 1);
    let paid = store.job(jobs[2].id).await.unwrap().unwrap();
    assert_eq!((&paid.debt, paid.ended()), (&None, jobs[2].ended()));
    assert_eq!(owed(store, None).await, [jobs[1].id, jobs[0].id]);
    assert_eq!(handles.other.census().await.unwrap().owed, 2);
    assert_eq!(lost(store, &jobs[5], settled(&jobs[5])).await, Lost::NotOwed);
}

/// What is owed is read in parts, also where many have ended at the same time.
pub async fn j15_what_is_owed_is_read_in_parts(handles: &Handles) {
    let store = &*handles.one;
    for session in ["a", "b"] {
        open(store, session, 1).await;
    }
    for parent in ["a", "b", "a", "a", "b"] {
        let job = spawn(store, spawned(parent)).await;
        happen(store, &job, failed(None)).await;
    }
    for (session, expected) in [(Some("a"), 3), (None, 5)] {
        let (all, mut read, mut after) = (owed(store, session).await, Vec::new(), None);
        loop {
            let part = store.owed(session.map(SessionId::from), after, 2).await.unwrap();
            let Some(last) = part.last() else { break };
            after = last.ended().map(|ended| (ended.at_ms, last.id));
            read.extend(part.iter().map(|job| job.id));
            if session.is_none() {
                // One that is settled meanwhile is no less a place to go on from.
                let delivery = DeliveryId::new(last.id, 1);
                happen(store, last, Event::Settled { delivery }).await;
            }
        }
        assert_eq!((read.len(), read), (expected, all));
    }
}

/// A retry is not owed what failed before it, and is owed what it comes to.
pub async fn j15_a_retry_drops_the_debt_and_another_ending_writes_it(handles: &Handles) {
    let store = &*handles.one;
    open(store, "chat", 1).await;
    let job = spawn(store, spawned("chat")).await;
    let job = happen(store, &job, failed(None)).await;
    let job = happen(store, &job, Event::Retried { run: new_run() }).await;
    assert_eq!((&job.debt, owed(store, None).await), (&None, vec![]));
    let first = Event::Settled { delivery: DeliveryId::new(job.id, 1) };
    assert_eq!(lost(store, &job, first.clone()).await, Lost::NotOwed);
    let job = happen(&*handles.other, &job, failed(None)).await;
    assert_eq!(job.debt, Some(DeliveryId::new(job.id, 2)));
    assert_eq!(owed(store, Some("chat")).await, [job.id]);
    assert_eq!(lost(store, &job, first).await, Lost::NotOwed);
}

/// A session goes with its entries, its jobs, their runs, keys and debts, and with all
/// that is below those, and nothing else does.
pub async fn j16_deleting_a_session_takes_all_below(handles: &Handles) {
    let store = &*handles.one;
    for session in ["chat", "other"] {
        open(store, session, 1).await;
    }
    let entry = Entry { id: "e".into(), target: None, body: Body::Text("t".into()), at_ms: 0 };
    let mut keyed = spawned("chat");
    keyed.spec.key = Some("once".into());
    keyed.spec.entry = Some("e".into());
    let top = spawn(store, keyed.clone()).await;
    let below = spawn(store, spawned(top.id.session().as_str())).await;
    let lowest = spawn(store, spawned(below.id.session().as_str())).await;
    let waiting = Spawned { due_ms: NOW_MS + 1, ..spawned("chat") };
    let waiting = spawn(&*handles.other, waiting).await;
    let stays = spawn(store, spawned("other")).await;
    for session in ["chat".into(), "other".into(), lowest.id.session()] {
        make(store, Change::Append { session, entry: entry.clone() }).await;
    }
    let stepped = advanced(below.run().unwrap(), new_run(), None);
    happen(store, &below, stepped).await;
    happen(store, &lowest, completed(None)).await;
    happen(store, &stays, completed(None)).await;
    let change = Change::Delete { session: "chat".into() };
    let Changed::Removed(gone) = make(&*handles.other, change.clone()).await else {
        panic!("nothing is gone");
    };
    let jobs = [&top, &below, &lowest, &waiting];
    let told = jobs.map(|job| Gone { job: job.id, parent: job.spec.parent.clone() });
    assert_eq!((gone.len(), HashSet::from_iter(gone)), (4, HashSet::from(told)));
    let all = HashSet::from(jobs.map(|job| job.id));
    for handle in handles.each() {
        assert_eq!(handle.session("chat".into()).await.unwrap(), None);
        for job in &all {
            assert_eq!(handle.job(*job).await.unwrap(), None);
            assert_eq!(handle.past_runs(*job).await.unwrap(), []);
            assert_eq!(handle.entries(job.session(), 0, 10).await.unwrap(), []);
        }
        assert_eq!(handle.entries("chat".into(), 0, 10).await.unwrap(), []);
        assert_eq!(handle.entries("other".into(), 0, 10).await.unwrap().len(), 1);
        assert_eq!(owed(&**handle, None).await, [stays.id]);
        assert_eq!(ids(&**handle, Query { limit: 10, ..Query::default() }).await, [stays.id]);
        let census = Census { ended: 1, owed: 1, ..Census::default() };
        assert_eq!(handle.census().await.unwrap(), census);
    }
    let nobody = Change::Append { session: "chat".into(), entry };
    assert_eq!(refused(store, nobody).await, Refused::NoSession("chat".into()));
    assert_eq!(make(store, change).await, Changed::Removed(vec![]));
    open(store, "chat", 1).await;
    let again = Spawned { id: JobId::random().unwrap(), ..keyed };
    assert_eq!(spawn(store, again).await.status(), Status::Working, "its key is free");
}

/// A job is removed once it has ended, with all below it, which must have ended too.
pub async fn j16_a_job_is_removed_when_it_and_all_below_have_ended(handles: &Handles) {
    let store = &*handles.one;
    open(store, "chat", 1).await;
    let top = spawn(store, spawned("chat")).await;
    let below = spawn(store, spawned(top.id.session().as_str())).await;
    let lowest = spawn(store, spawned(below.id.session().as_str())).await;
    let remove = || Change::Remove { job: top.id };
    let live = |job: &Job| Refused::Live { job: job.id, status: Status::Working };
    assert_eq!(refused(store, remove()).await, live(&top));
    happen(store, &top, completed(None)).await;
    assert_eq!(refused(store, remove()).await, live(&below));
    happen(store, &below, completed(None)).await;
    assert_eq!(refused(&*handles.other, remove()).await, live(&lowest));
    let prune = || Change::Prune { before_ms: NOW_MS * 2, keep: 0, limit: 10 };
    for job in [&top, &below] {
        let delivery = DeliveryId::new(job.id, 1);
        happen(store, job, Event::Settled { delivery }).await;
    }
    assert_eq!(make(store, prune()).await, Changed::Removed(vec![]));
    happen(store, &lowest, completed(None)).await;
    let gone = removed(make(store, remove()).await);
    assert_eq!(HashSet::from_iter(gone), HashSet::from([top.id, below.id, lowest.id]));
    assert_eq!(refused(store, remove()).await, Refused::NoJob(top.id));
    assert_eq!(store.census().await.unwrap(), Census::default());
}

/// What worked for a session has nothing to do with one of its name that came later.
pub async fn j16_a_session_of_the_same_name_is_another(handles: &Handles) {
    let store = &*handles.one;
    open(store, "chat", 1).await;
    let mut new = spawned("chat");
    new.spec.key = Some("once".into());
    let old = spawn(store, new.clone()).await;
    make(&*handles.other, Change::Delete { session: "chat".into() }).await;
    assert_eq!(open(store, "chat", 2).await.incarnation, 2);
    assert_eq!(handles.other.session("chat".into()).await.unwrap().unwrap().incarnation, 2);
    // What still comes in of the old one finds nothing.
    assert_eq!(store.job_of(old.id, "chat".into()).await.unwrap(), None);
    let late = happening(old.id, completed(None), NOW_MS);
    assert_eq!(refused(store, late).await, Refused::NoJob(old.id));
    assert_eq!(ids(store, all_of("chat")).await, []);
    let job = spawn(store, Spawned { id: JobId::random().unwrap(), ..new }).await;
    assert_eq!(job.spec.incarnation, 2);
    assert_eq!(ids(&*handles.other, all_of("chat")).await, [job.id]);
}

/// Who asks for a job in the name of a session has those that work for it, and no others.
pub async fn a_job_is_had_by_the_session_that_it_works_for(handles: &Handles) {
    let (store, other) = (&*handles.one, &*handles.other);
    let of = |job, session: SessionId| async move { other.job_of(job, session).await.unwrap() };
    for session in ["chat", "elsewhere"] {
        open(store, session, 1).await;
    }
    let above = spawn(store, spawned("chat")).await;
    assert_eq!(of(above.id, "chat".into()).await, Some(above.clone()));
    assert_eq!(of(above.id, "elsewhere".into()).await, None);
    assert_eq!(of(above.id, "no-such".into()).await, None);
    assert_eq!(of(JobId::random().unwrap(), "chat".into()).await, None);
    // A job's own session is there for as long as the job is.
    let its = above.id.session();
    let below = spawn(store, spawned(its.as_str())).await;
    assert_eq!(of(below.id, its.clone()).await, Some(below.clone()));
    assert_eq!(of(below.id, "chat".into()).await, None);
    make(store, Change::Delete { session: "chat".into() }).await;
    assert_eq!(of(above.id, "chat".into()).await, None);
    assert_eq!(of(below.id, its).await, None);
}

/// An entry has a number, in the order of the writing, and is there once.
pub async fn j17_an_entry_is_stored_once(handles: &Handles) {
    let store = &*handles.one;
    for session in ["a", "b"] {
        open(store, session, 1).await;
    }
    let entry = |id: &str| {
        let body = Body::Text(format!("text of {id}"));
        Entry { id: id.into(), target: Some("later".into()), body, at_ms: NOW_MS }
    };
    let append = |session: &str, id: &str| {
        let (session, entry) = (session.into(), entry(id));
        Change::Append { session, entry }
    };
    for (number, id) in (1..).zip(["x", "y", "z"]) {
        assert_eq!(make(store, append("a", id)).await, Changed::Entry(number));
    }
    assert_eq!(make(&*handles.other, append("a", "y")).await, Changed::Entry(2));
    assert_eq!(make(&*handles.other, append("b", "y")).await, Changed::Entry(1));
    let all = handles.other.entries("a".into(), 0, 10).await.unwrap();
    assert_eq!(all, [(1, entry("x")), (2, entry("y")), (3, entry("z"))]);
    let read = |after, limit| async move { store.entries("a".into(), after, limit).await.unwrap() };
    assert_eq!(read(1, 1).await, all[1..2]);
    assert_eq!(read(2, 10).await, all[2..]);
    assert_eq!(read(3, 10).await, []);
    assert_eq!(read(u64::MAX, usize::MAX).await, []);
    assert_eq!(store.entries("nobody".into(), 0, 10).await.unwrap(), []);
    // Of many at once with one id, one is there.
    let same = at_once(handles, (0..16).map(|_| append("b", "same"))).await;
    assert!(same.iter().all(|entry| matches!(entry, Ok(Changed::Entry(2)))));
    assert_eq!(store.entries("b".into(), 0, 10).await.unwrap().len(), 2);
}

/// Whenever a job stands elsewhere, or is on another run, its session has an entry of it.
pub async fn j17_a_job_tells_under_the_entry_it_was_spawned_by(handles: &Handles) {
    let store = &*handles.one;
    open(store, "chat", 1).await;
    let mut new = spawned("chat");
    new.spec.entry = Some("call".into());
    let job = spawn(store, new).await;
    let run = job.run().unwrap();
    happen(store, &job, Event::Rewritten { run, state: "no news".into() }).await;
    happen(store, &job, advanced(run, new_run(), None)).await;
    happen(&*handles.other, &job, failed(None)).await;
    let entries = store.entries("chat".into(), 0, 10).await.unwrap();
    let told = entries.iter().map(|(_, entry)| match &entry.body {
        Body::Job(card) if card.job == job.id => (card.status, card.summary.as_deref()),
        other => panic!("{other:?}"),
    });
    assert_eq!(
        told.collect::<Vec<_>>(),
        [(Status::Working, None), (Status::Working, None), (Status::Failed, Some("exit code: 3"))]
    );
    assert!(entries.iter().all(|(_, entry)| entry.target.as_deref() == Some("call")));
}

/// A listing has the newest jobs first, those that are asked for, without what is long.
pub async fn j19_a_listing_has_the_newest_first(handles: &Handles) {
    let store = &*handles.one;
    for session in ["a", "b"] {
        open(store, session, 1).await;
    }
    let mut all = Vec::new();
    for number in 0..12 {
        let parent = if number % 3 == 0 { "b" } else { "a" };
        let job = spawn(store, Spawned { state: Some("here".into()), ..spawned(parent) }).await;
        let job = match number % 4 {
            0 => happen(store, &job, completed(None)).await,
            1 => happen(store, &job, failed(None)).await,
            2 => happen(store, &job, advanced(job.run().unwrap(), new_run(), None)).await,
            _ => happen(store, &job, asked(job.run().unwrap())).await,
        };
        all.push(job);
    }
    all.reverse();
    let query = |session: Option<&str>, status: &[Status]| Query {
        session: session.map(Into::into),
        status: status.to_vec(),
        before: None,
        limit: 100,
    };
    for session in [None, Some("a"), Some("b")] {
        for status in [
            &[][..],
            &[Status::Working],
            &[Status::Completed, Status::Failed],
            &[Status::Failed, Status::Completed, Status::Failed],
            &[Status::Queued],
            &Status::ALL,
        ] {
            let is_asked = |job: &&Job| {
                session.is_none_or(|session| job.spec.parent.as_str() == session)
                    && (status.is_empty() || status.contains(&job.status()))
            };
            let wanted: Vec<_> = all.iter().filter(is_asked).map(|job| job.id).collect();
            let page = handles.other.list(query(session, status)).await.unwrap();
            let found: Vec<_> = page.jobs.iter().map(|job| job.id).collect();
            assert_eq!((found, page.next), (wanted, None), "{session:?} {status:?}");
        }
    }
    let nobody = store.list(query(Some("nobody"), &[])).await.unwrap();
    assert_eq!((nobody.jobs, nobody.next), (vec![], None));
    for (listed, job) in store.list(query(None, &[])).await.unwrap().jobs.iter().zip(&all) {
        let mut brief = job.clone();
        brief.spec = Arc::new(Spec { input: String::new(), ..(*job.spec).clone() });
        brief.stage.input = None;
        if let Phase::Ended { ended, .. } = &mut brief.phase {
            ended.result = None;
        }
        assert_eq!(*listed, brief);
    }
}

/// A listing goes on where the page before it ended, whatever has come meanwhile.
pub async fn j19_a_listing_goes_on_where_it_ended(handles: &Handles) {
    let store = &*handles.one;
    open(store, "chat", 1).await;
    let mut all = Vec::new();
    for number in 0..10 {
        let job = spawn(store, spawned("chat")).await;
        if number % 2 == 0 {
            happen(store, &job, completed(None)).await;
        }
        all.insert(0, job.id);
    }
    for session in [None, Some("chat")] {
        for limit in [1, 3, 5, 10] {
            let (mut found, mut before) = (Vec::new(), None);
            loop {
                let session = session.map(Into::into);
                let query = Query { session, status: vec![], before, limit };
                let page = handles.other.list(query).await.unwrap();
                assert!(page.jobs.len() == limit || page.next.is_none());
                found.extend(page.jobs.iter().map(|job| job.id));
                let newer = spawn(store, spawned("chat")).await;
                make(store, Change::TakeBack { job: newer.id, run: newer.run().unwrap() }).await;
                let Some(next) = page.next else { break };
                before = Some(next);
            }
            assert_eq!(found, all, "{session:?} by {limit}");
        }
    }
    let none = store.list(Query::default()).await.unwrap();
    assert_eq!((none.jobs, none.next), (vec![], None), "none were asked for");
}

/// A question waits without a run, and its answer starts the next.
pub async fn j22_a_question_waits_for_its_answer(handles: &Handles) {
    let store = &*handles.one;
    open(store, "chat", 1).await;
    let job = spawn(store, spawned("chat")).await;
    let asked_by = job.run().unwrap();
    let answered =
        || Event::Answered { asked: asked_by, run: new_run(), answer: "the second".into() };
    assert_eq!(lost(store, &job, answered()).await, Lost::NotAsked { status: Status::Working });
    let job = happen(store, &job, asked(job.run().unwrap())).await;
    assert_eq!((job.status(), job.run()), (Status::InputRequired, None));
    assert_eq!(owed(store, None).await, [], "it is no ending");
    let answers = (0..16).map(|_| happening(job.id, answered(), NOW_MS));
    assert_eq!(winners(at_once(handles, answers).await).len(), 1);
    let job = store.job(job.id).await.unwrap().unwrap();
    assert_eq!(job.stage.answer.as_deref(), Some("the second"));
    assert_eq!((job.status(), job.step), (Status::Working, 1));
    // One that nobody answers ends without a run being named.
    let job = happen(store, &job, asked(job.run().unwrap())).await;
    let job = happen(&*handles.other, &job, failed(None)).await;
    assert_eq!(lost(store, &job, answered()).await, Lost::NotAsked { status: Status::Failed });
}

/// Of those that wait, the one starts whose session has the fewest live jobs, and of
/// those the one that has waited longest.
pub async fn j23_the_queue_is_fair(handles: &Handles) {
    let store = &*handles.one;
    for session in ["a", "b", "c"] {
        open(store, session, 1).await;
    }
    let limits = Limits { per_session: 2, total: 3, ..WIDE };
    let next = || Change::StartNext { run: new_run(), limits, after: Vec::new(), now_ms: NOW_MS };
    assert_eq!(make(store, next()).await, Changed::Nothing, "nobody waits");
    let mut live = Vec::new();
    for parent in ["a", "a", "b"] {
        live.push(spawn(store, Spawned { limits, queue: true, ..spawned(parent) }).await);
    }
    let mut waiting = Vec::new();
    for parent in ["a", "a", "b", "c", "b", "c"] {
        let job = spawn(store, Spawned { limits, queue: true, ..spawned(parent) }).await;
        assert_eq!(job.status(), Status::Queued);
        waiting.push(job);
    }
    let places: Vec<u64> = waiting.iter().map(place_of).collect();
    assert!(places.is_sorted() && HashSet::<_>::from_iter(&places).len() == 6, "{places:?}");
    assert_eq!(make(&*handles.other, next()).await, Changed::Nothing, "there is no place");
    let started = Event::Started { run: new_run() };
    let started = Change::Happen { job: waiting[0].id, event: started, limits, now_ms: NOW_MS };
    assert!(matches!(refused(store, started).await, Refused::Full { .. }));
    let mut order = Vec::new();
    for turn in 0..6 {
        let done = live.remove(0);
        happen(store, &done, completed(None)).await;
        let job = job_of(make(handles.each()[turn % 2].as_ref(), next()).await);
        assert_eq!(job.status(), Status::Working);
        assert_eq!(handles.other.job(job.id).await.unwrap().as_ref(), Some(&job));
        order.push(waiting.iter().position(|it| it.id == job.id).unwrap());
        live.push(job);
        assert_eq!(make(store, next()).await, Changed::Nothing);
    }
    // a b -> c; b c -> a; then b; then c; then a; then b.
    assert_eq!(order, [3, 0, 2, 5, 1, 4]);
}

fn place_of(job: &Job) -> u64 {
    match &job.phase {
        Phase::Queued { place, .. } => *place,
        other => panic!("{other:?} is not queued"),
    }
}

/// Only so many jobs may wait, whatever for.
pub async fn j23_a_queue_is_bounded(handles: &Handles) {
    let store = &*handles.one;
    open(store, "chat", 1).await;
    let limits = Limits { per_session: 1, queued: 3, ..WIDE };
    let new = |_| Spawned { limits, queue: true, ..spawned("chat") };
    spawn(store, new(0)).await;
    let spawns = (0..10).map(|number| Change::Spawn(Box::new(new(number))));
    assert_eq!(winners(at_once(handles, spawns).await).len(), 3);
    let one_more = Spawned { due_ms: NOW_MS + 1, ..new(0) };
    let one_more = Change::Spawn(Box::new(one_more));
    assert_eq!(
        refused(store, one_more.clone()).await,
        Refused::QueueFull { scope: Scope::Host, limit: 3 }
    );
    let waiting = Query { status: vec![Status::Queued], limit: 1, ..Query::default() };
    let waiting = store.list(waiting).await.unwrap().jobs.remove(0);
    happen(&*handles.other, &waiting, stop("a person")).await;
    let last = job_of(make(store, one_more).await);
    // A place is given once, also when the one that had it is gone.
    assert!(place_of(&last) > place_of(&waiting), "{last:?}");
    assert_eq!(handles.other.census().await.unwrap().queued, 3);
}

/// Two that start the next at once start two.
pub async fn j23_two_that_start_the_next_start_two(handles: &Handles) {
    open(&*handles.one, "chat", 1).await;
    let limits = Limits { per_session: 1, ..WIDE };
    for _ in 0..20 {
        spawn(&*handles.one, Spawned { limits, queue: true, ..spawned("chat") }).await;
    }
    let limits = Limits { per_session: 8, ..WIDE };
    let next = |_| Change::StartNext { run: new_run(), limits, after: Vec::new(), now_ms: NOW_MS };
    let started = winners(at_once(handles, (0..16).map(next)).await);
    let jobs = started.into_iter().filter(|changed| *changed != Changed::Nothing).map(job_of);
    let jobs: HashSet<JobId> = jobs.map(|job| job.id).collect();
    assert_eq!(jobs.len(), 7, "one was live before");
    assert_eq!(handles.other.census().await.unwrap().working, 8);
}

/// A key has one job, as long as that is there.
pub async fn j24_a_key_has_one_job(handles: &Handles) {
    let store = &*handles.one;
    for session in ["a", "b"] {
        open(store, session, 1).await;
    }
    let keyed = |parent: &str, key: &str| {
        let mut new = spawned(parent);
        new.spec.key = Some(key.into());
        new
    };
    let spawning = |new: Spawned| Change::Spawn(Box::new(new));
    let job = spawn(store, keyed("a", "once")).await;
    let again = make(&*handles.other, spawning(keyed("a", "once"))).await;
    assert_eq!(again, Changed::Already(Box::new(job.clone())));
    let job = happen(store, &job, completed(None)).await;
    let again = make(&*handles.other, spawning(keyed("a", "once"))).await;
    assert_eq!(again, Changed::Already(Box::new(job.clone())), "with its result");
    for new in [keyed("b", "once"), keyed("a", "twice"), spawned("a"), spawned("a")] {
        spawn(store, new).await;
    }
    let mut other = keyed("a", "once");
    other.spec.input = "another".into();
    let taken = Refused::KeyTaken { key: "once".into(), job: job.id };
    assert_eq!(refused(store, spawning(other.clone())).await, taken);
    make(store, Change::Remove { job: job.id }).await;
    assert_ne!(spawn(store, other).await.id, job.id);
}

/// Spawns at once under one key are one job, which all are told of.
pub async fn j24_spawns_at_once_under_one_key_are_one(handles: &Handles) {
    open(&*handles.one, "chat", 1).await;
    let spawns = (0..32).map(|_| {
        let mut new = spawned("chat");
        new.spec.key = Some("once".into());
        Change::Spawn(Box::new(new))
    });
    let jobs = at_once(handles, spawns).await.into_iter().map(|changed| match changed.unwrap() {
        Changed::Job { job, .. } | Changed::Already(job) => job.id,
        other => panic!("{other:?}"),
    });
    assert_eq!(jobs.collect::<HashSet<_>>().len(), 1);
    assert_eq!(ids(&*handles.other, all_of("chat")).await.len(), 1);
}

/// A job that waits for its time holds up none, and starts once that has come.
pub async fn j25_what_is_not_due_is_not_started(handles: &Handles) {
    let store = &*handles.one;
    open(store, "chat", 1).await;
    let due = |after_ms| Spawned { due_ms: NOW_MS + after_ms, ..spawned("chat") };
    let late = spawn(store, due(20)).await;
    let soon = spawn(store, due(10)).await;
    assert_eq!(
        late.phase,
        Phase::Queued {
            wait: Wait::Time { due_ms: NOW_MS + 20 },
            place: place_of(&late),
            last: None
        }
    );
    assert_eq!(spawn(store, due(0)).await.status(), Status::Working, "it is due at once");
    let limits = Limits { per_session: 1, ..WIDE };
    let waiting = spawn(store, Spawned { limits, queue: true, ..spawned("chat") }).await;
    let next = |after_ms| Change::StartNext {
        run: new_run(),
        limits: WIDE,
        after: Vec::new(),
        now_ms: NOW_MS + after_ms,
    };
    assert_eq!(job_of(make(&*handles.other, next(9)).await).id, waiting.id);
    assert_eq!(make(store, next(9)).await, Changed::Nothing);
    assert_eq!(store.census().await.unwrap().next_due_ms, Some(NOW_MS + 10));
    assert_eq!(job_of(make(store, next(10)).await).id, soon.id);
    assert_eq!(make(&*handles.other, next(19)).await, Changed::Nothing);
    assert_eq!(job_of(make(&*handles.other, next(20)).await).id, late.id);
    // Of those that are due, the one with the lower place is first.
    let first = spawn(store, due(20)).await;
    spawn(store, due(10)).await;
    assert_eq!(job_of(make(store, next(30)).await).id, first.id);
}

/// A schedule spawns a job each time, and waits for the next, also where none can be.
pub async fn j25_a_schedule_spawns_and_goes_on(handles: &Handles) {
    let store = &*handles.one;
    open(store, "chat", 1).await;
    let mut new = Spawned { due_ms: NOW_MS + 10, ..spawned("chat") };
    new.spec.schedule = Some(Schedule::Cron("* * * * *".into()));
    let schedule = spawn(store, new).await;
    let next =
        Change::StartNext { run: new_run(), limits: WIDE, after: Vec::new(), now_ms: NOW_MS + 10 };
    assert_eq!(make(store, next).await, Changed::Nothing, "it is never started itself");
    let started = Event::Started { run: new_run() };
    assert_eq!(lost(store, &schedule, started).await, Lost::NotQueued { status: Status::Queued });
    let fire = |limits, next_due_ms| Change::Fire {
        job: schedule.id,
        next_due_ms,
        spawned: Box::new(Spawned { limits, ..spawned("chat") }),
    };
    let child = job_of(make(store, fire(WIDE, NOW_MS + 20)).await);
    assert_eq!((child.status(), child.id == schedule.id), (Status::Working, false));
    let due = |job: Option<Job>| match job.unwrap().phase {
        Phase::Queued { wait: Wait::Cron { due_ms }, .. } => due_ms,
        other => panic!("{other:?}"),
    };
    assert_eq!(due(handles.other.job(schedule.id).await.unwrap()), NOW_MS + 20);
    let full = Limits { per_session: 1, ..WIDE };
    let moved = job_of(make(&*handles.other, fire(full, NOW_MS + 30)).await);
    assert_eq!(moved.id, schedule.id);
    assert_eq!(due(store.job(schedule.id).await.unwrap()), NOW_MS + 30);
    assert_eq!(store.census().await.unwrap().working, 1);
    let stopped = happen(store, &schedule, stop("a person")).await;
    assert_eq!(stopped.status(), Status::Cancelled);
    let late = refused(store, fire(WIDE, NOW_MS + 40)).await;
    assert_eq!(late, Refused::Lost(Lost::NotQueued { status: Status::Cancelled }));
    assert_eq!(ids(store, all_of("chat")).await, [child.id, schedule.id]);
}

/// Endings are pruned the oldest first, by their time and by their number.
pub async fn j27_prune_takes_the_oldest_first(handles: &Handles) {
    let store = &*handles.one;
    open(store, "chat", 1).await;
    let live = spawn(store, spawned("chat")).await;
    let mut ended = Vec::new();
    for _ in 0..10 {
        let mut new = spawned("chat");
        new.spec.announced = false;
        ended.push(spawn(store, new).await);
    }
    // They end in the other order.
    ended.reverse();
    for (after_ms, job) in (0..).zip(&ended) {
        happen_at(store, job, completed(None), NOW_MS + after_ms).await;
    }
    let ended: Vec<JobId> = ended.iter().map(|job| job.id).collect();
    let prune = |before_ms, keep, limit| Change::Prune { before_ms, keep, limit };
    let none = make(store, prune(NOW_MS, 10, 100)).await;
    assert_eq!(removed(none), []);
    let by_time = make(&*handles.other, prune(NOW_MS + 3, 100, 2)).await;
    assert_eq!(removed(by_time), ended[..2]);
    let by_time = make(store, prune(NOW_MS + 3, 100, 100)).await;
    assert_eq!(removed(by_time), ended[2..3]);
    let by_number = make(&*handles.other, prune(0, 5, 100)).await;
    assert_eq!(removed(by_number), ended[3..5]);
    let by_both = make(store, prune(NOW_MS + 8, 4, 100)).await;
    assert_eq!(removed(by_both), ended[5..8]);
    assert_eq!(removed(make(store, prune(u64::MAX, 0, 0)).await), []);
    assert_eq!(removed(make(store, prune(u64::MAX, 0, 100)).await), ended[8..]);
    assert_eq!(ids(store, all_of("chat")).await, [live.id]);
}

/// What is owed stays, however old it is, and counts as kept.
pub async fn j27_prune_never_takes_debts(handles: &Handles) {
    let store = &*handles.one;
    open(store, "chat", 1).await;
    let mut jobs = Vec::new();
    for (after_ms, announced) in (0..).zip([true, false, true, false, false]) {
        let mut new = spawned("chat");
        new.spec.announced = announced;
        let job = spawn(store, new).await;
        jobs.push(happen_at(store, &job, completed(None), NOW_MS + after_ms).await.id);
    }
    let prune = |before_ms, keep| Change::Prune { before_ms, keep, limit: 100 };
    assert_eq!(removed(make(store, prune(0, 3)).await), jobs[1..2]);
    assert_eq!(removed(make(&*handles.other, prune(u64::MAX, 0)).await), jobs[3..]);
    assert_eq!(owed(store, None).await, [jobs[0], jobs[2]]);
    let settled = Event::Settled { delivery: DeliveryId::new(jobs[0], 1) };
    make(store, happening(jobs[0], settled, NOW_MS)).await;
    assert_eq!(removed(make(store, prune(0, 0)).await), jobs[..1]);
    assert_eq!(ids(&*handles.other, all_of("chat")).await, [jobs[2]]);
}

/// An attempt that is tried again by itself waits in the queue, and is the next attempt.
pub async fn j29_a_back_off_is_another_attempt(handles: &Handles) {
    let store = &*handles.one;
    open(store, "chat", 1).await;
    let job = spawn(store, spawned("chat")).await;
    let again = |after_ms| Event::Finished {
        run: None,
        report: Report {
            again_ms: Some(NOW_MS + after_ms),
            ..report(Ending::Failed(Failure::Work), "exit code: 3")
        },
    };
    let job = happen(store, &job, again(10)).await;
    assert!(matches!(job.phase, Phase::Queued { wait: Wait::Retry { .. }, .. }));
    assert!(place_of(&job) > 0 && job.debt.is_none(), "{job:?}");
    let next = |after_ms| Change::StartNext {
        run: new_run(),
        limits: WIDE,
        after: Vec::new(),
        now_ms: NOW_MS + after_ms,
    };
    assert_eq!(make(store, next(9)).await, Changed::Nothing);
    let job = job_of(make(&*handles.other, next(10)).await);
    assert_eq!((job.attempt, job.status()), (2, Status::Working));
    assert_eq!(store.past_runs(job.id).await.unwrap().len(), 1);
    // A kill in the back-off works.
    let job = happen(store, &job, again(20)).await;
    let job = happen(store, &job, stop("a person")).await;
    assert_eq!(job.status(), Status::Cancelled);
    assert_eq!(make(store, next(20)).await, Changed::Nothing);
}

fn calling(parent: &str, url: &str) -> Spawned {
    let mut new = spawned(parent);
    new.spec.webhook = Some(Webhook::Url(url.into()));
    new
}

async fn calls(store: &dyn Store) -> Vec<JobId> {
    let calls = store.calls(Vec::new(), 1_000).await.unwrap();
    calls.iter().map(|job| job.id).collect()
}

fn call_failed(job: &Job, number: u32, due_ms: Option<u64>) -> Event {
    let (delivery, why) = (DeliveryId::new(job.id, number), "it was refused".into());
    Event::CallFailed { delivery, why, due_ms }
}

fn called(job: &Job, number: u32) -> Event {
    Event::Called { delivery: DeliveryId::new(job.id, number) }
}

/// A call is due once an ending is written, whichever it is and whoever knows of it, and
/// no retry is due one for what failed before it.
pub async fn a_webhook_is_told_of_every_ending(handles: &Handles) {
    let store = &*handles.one;
    open(store, "chat", 1).await;
    let told = Event::Finished {
        run: None,
        report: Report { told: true, ..report(Ending::Completed, "in hand") },
    };
    let cancelled = Event::Finished { run: None, report: report(Ending::Cancelled, "") };
    let mut jobs = Vec::new();
    for (turn, event) in (0..).zip([told, failed(None), cancelled]) {
        let mut new = calling("chat", "https://example.com");
        new.spec.announced = turn > 0;
        let job = spawn(store, new).await;
        assert_eq!(job.call, None);
        let job = happen_at(store, &job, event, NOW_MS + turn).await;
        let (delivery, due_ms) = (DeliveryId::new(job.id, 1), Some(NOW_MS + turn));
        let call = Call { delivery, tries: 0, due_ms, why: None };
        assert_eq!(job.call.as_deref(), Some(&call));
        jobs.push(job);
    }
    let waiting = Spawned { due_ms: NOW_MS + 9, ..calling("chat", "http://[::1]:80") };
    let waiting = spawn(store, waiting).await;
    jobs.push(happen_at(store, &waiting, stop("a person"), NOW_MS + 5).await);
    let quiet = spawn(store, spawned("chat")).await;
    assert_eq!(happen(store, &quiet, completed(None)).await.call, None);
    let all: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    assert_eq!(calls(&*handles.other).await, all);
    let first = handles.other.calls(Vec::new(), 1).await.unwrap();
    assert_eq!(first.len(), 1);
    assert_eq!((&first[0].call, &*first[0].spec.input), (&jobs[0].call, ""));
    // A back-off is no ending, nor is a run that follows.
    let job = spawn(store, calling("chat", "https://example.com")).await;
    let again = Report { again_ms: Some(NOW_MS), ..report(Ending::Failed(Failure::Work), "") };
    let job = happen(store, &job, Event::Finished { run: None, report: again }).await;
    assert_eq!((job.call, calls(store).await.len()), (None, 4));
    // Another attempt owes what it comes to itself.
    let job = happen(store, &jobs[1], Event::Retried { run: new_run() }).await;
    assert_eq!((&job.call, calls(store).await), (&None, vec![all[0], all[2], all[3]]));
    assert_eq!(lost(store, &job, called(&job, 1)).await, Lost::NotOwed);
    let job = happen_at(&*handles.other, &job, completed(None), NOW_MS + 20).await;
    let delivery = job.call.clone().unwrap().delivery;
    assert_eq!(delivery, DeliveryId::new(job.id, 2));
    assert_eq!(calls(store).await, [all[0], all[2], all[3], all[1]]);
    assert_eq!(lost(store, &job, called(&job, 1)).await, Lost::NotOwed);
}

/// A call that failed is due later, and one that was made or given up is not any more.
pub async fn a_call_is_put_off_given_up_or_made_once(handles: &Handles) {
    let store = &*handles.one;
    open(store, "chat", 1).await;
    let mut jobs = Vec::new();
    for _ in 0..3 {
        let job = spawn(store, calling("chat", "https://example.com")).await;
        jobs.push(happen(store, &job, completed(None)).await);
    }
    let all: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    assert_eq!(calls(store).await, all);
    let late = happen_at(store, &jobs[0], call_failed(&jobs[0], 1, Some(u64::MAX)), 1).await;
    let call = late.call.clone().unwrap();
    assert_eq!((call.tries, call.due_ms), (1, Some(u64::MAX)));
    assert_eq!(call.why.as_deref(), Some("it was refused"));
    assert_eq!((late.updated_ms, late.ended()), (jobs[0].updated_ms, jobs[0].ended()));
    assert_eq!(calls(&*handles.other).await, [all[1], all[2], all[0]]);
    let given_up = happen(store, &jobs[1], call_failed(&jobs[1], 1, None)).await;
    assert_eq!(given_up.call.as_ref().map(|call| (call.tries, call.due_ms)), Some((1, None)));
    assert_eq!(calls(&*handles.other).await, [all[2], all[0]]);
    for event in [called(&given_up, 1), call_failed(&given_up, 1, Some(1))] {
        assert_eq!(lost(store, &given_up, event).await, Lost::NotOwed);
    }
    let make = |_| happening(all[2], called(&jobs[2], 1), NOW_MS);
    assert_eq!(winners(at_once(handles, (0..8).map(make)).await).len(), 1);
    let made = store.job(all[2]).await.unwrap().unwrap();
    assert_eq!((&made.call, made.debt.is_some()), (&None, true), "its session is told apart");
    assert_eq!(calls(store).await, [all[0]]);
    // What was put off is made in the end.
    let made = happen(&*handles.other, &late, called(&late, 1)).await;
    assert_eq!((made.call, calls(store).await), (None, vec![]));
}

/// A job whose webhook is to be told is not pruned, and one that is removed tells nobody.
pub async fn a_call_goes_with_its_job_and_is_never_pruned(handles: &Handles) {
    let store = &*handles.one;
    open(store, "chat", 1).await;
    let mut jobs = Vec::new();
    for turn in 0..4 {
        let mut new = calling("chat", "https://example.com");
        new.spec.announced = false;
        let job = spawn(store, new).await;
        jobs.push(happen_at(store, &job, completed(None), NOW_MS + turn).await);
    }
    let all: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    let prune = Change::Prune { before_ms: u64::MAX, keep: 0, limit: 100 };
    assert_eq!(removed(make(store, prune.clone()).await), []);
    happen(store, &jobs[1], called(&jobs[1], 1)).await;
    happen(store, &jobs[2], call_failed(&jobs[2], 1, None)).await;
    assert_eq!(removed(make(&*handles.other, prune.clone()).await), all[1..3]);
    assert_eq!(calls(store).await, [all[0], all[3]]);
    make(&*handles.other, Change::Remove { job: all[0] }).await;
    assert_eq!(calls(store).await, all[3..]);
    let nobody = happening(all[0], called(&jobs[0], 1), NOW_MS);
    assert_eq!(refused(store, nobody).await, Refused::NoJob(all[0]));
    make(store, Change::Delete { session: "chat".into() }).await;
    assert_eq!(calls(&*handles.other).await, []);
}

/// The calls of a receiver can be left out, so that none waits for another's.
pub async fn calls_of_a_receiver_are_left_out(handles: &Handles) {
    let store = &*handles.one;
    open(store, "chat", 1).await;
    let mut jobs = Vec::new();
    for url in ["https://a.test/1", "https://A.test:80/2", "http://u@b.test/'\"", ""] {
        let mut new = calling("chat", url);
        if url.is_empty() {
            new.spec.webhook = Some(Webhook::Host);
        }
        let job = spawn(store, new).await;
        jobs.push(happen(store, &job, completed(None)).await.id);
    }
    let except = |names: &[&str]| {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let other = &handles.other;
        async move {
            let found = other.calls(names, 10).await.unwrap();
            found.iter().map(|job| job.id).collect::<Vec<_>>()
        }
    };
    assert_eq!(except(&[]).await, jobs);
    assert_eq!(except(&["a.test"]).await, jobs[2..]);
    assert_eq!(except(&["b.test", "c.test"]).await, [jobs[0], jobs[1], jobs[3]]);
    assert_eq!(except(&["", "a.test", "'\"\\"]).await, jobs[2..3]);
    assert_eq!(except(&["a.test", "b.test", ""]).await, []);
}

/// Opening a session that is open changes nothing, and jobs work for one that is.
pub async fn a_session_is_opened_once(handles: &Handles) {
    let store = &*handles.one;
    assert_eq!(store.session("chat".into()).await.unwrap(), None);
    let nobody = Change::Spawn(Box::new(spawned("chat")));
    assert_eq!(refused(store, nobody).await, Refused::NoSession("chat".into()));
    let first = open(store, "chat", 1).await;
    assert_eq!(open(&*handles.other, "chat", 2).await, first);
    for handle in handles.each() {
        assert_eq!(handle.session("chat".into()).await.unwrap().as_ref(), Some(&first));
    }
    let opens = (0..16).map(|incarnation| {
        let session = Session { id: "new".into(), incarnation, created_ms: NOW_MS };
        Change::Open { session, limit: usize::MAX }
    });
    let sessions = at_once(handles, opens).await.into_iter().map(|opened| match opened.unwrap() {
        Changed::Session(session) => session.incarnation,
        other => panic!("{other:?}"),
    });
    assert_eq!(sessions.collect::<HashSet<_>>().len(), 1);
}

/// Whoever no longer waits for a change has not taken it back.
pub async fn a_change_is_not_taken_back(handles: &Handles) {
    let store = &*handles.one;
    open(store, "chat", 1).await;
    let new = spawned("chat");
    drop(store.change(Change::Spawn(Box::new(new.clone()))));
    // What comes after it is made after it.
    let job = Job { ..job_of(make(store, happening(new.id, completed(None), NOW_MS)).await) };
    assert_eq!(handles.other.job(new.id).await.unwrap(), Some(job));
}

/// Many who start, end, read and retry at once lose nothing, and none hears of others.
pub async fn many_at_once_lose_nothing(handles: &Handles) {
    const WORKERS: usize = 32;
    const TURNS: usize = 8;
    let sessions: Vec<String> = (0..4).map(|number| format!("chat {number}")).collect();
    for session in &sessions {
        open(&*handles.one, session, 1).await;
    }
    let work = |worker: usize| {
        let store = handles.each()[worker % 2].clone();
        let session = sessions[worker % sessions.len()].clone();
        tokio::spawn(async move {
            let mut ended = Vec::new();
            for turn in 0..TURNS {
                let job = spawn(&*store, spawned(&session)).await;
                let job = happen(&*store, &job, failed(job.run())).await;
                let job = match turn % 2 {
                    0 => job,
                    _ => {
                        let job = happen(&*store, &job, Event::Retried { run: new_run() }).await;
                        happen(&*store, &job, completed(None)).await
                    }
                };
                assert!(ids(&*store, all_of(&session)).await.contains(&job.id));
                ended.push(job);
            }
            ended
        })
    };
    let ended = join_all((0..WORKERS).map(work)).await;
    let ended: Vec<Job> = ended.into_iter().flat_map(Result::unwrap).collect();
    let count = (WORKERS * TURNS) as u64;
    for handle in handles.each() {
        for job in &ended {
            assert_eq!(handle.job(job.id).await.unwrap().as_ref(), Some(job));
        }
        let census = Census { ended: count, owed: count, ..Census::default() };
        assert_eq!(handle.census().await.unwrap(), census);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{MemoryStore, SqliteOptions, SqliteStore};

    mod memory {
        use super::*;

        crate::store_contract!(|| {
            let store = Arc::new(MemoryStore::new());
            Handles::new(store.clone(), store)
        });
    }

    mod sqlite {
        use super::*;

        crate::store_contract!(|| {
            let folder = tempfile::tempdir().unwrap();
            let open = || {
                let file = folder.path().join("jobs.db");
                Arc::new(SqliteStore::open(&file, SqliteOptions::default()).unwrap())
            };
            Handles::keeping(open(), open(), folder)
        });
    }

    #[test]
    fn every_check_is_made() {
        let source = include_str!("contract.rs");
        let (listed, checks) = source.split_once("(@each").unwrap();
        let mut names = checks.lines().filter_map(|line| line.strip_prefix("pub async fn "));
        assert!(names.clone().count() > 30);
        assert!(names.all(|name| {
            let name = name.split('(').next().unwrap();
            listed.lines().any(|line| line.trim() == name)
        }));
    }
}
