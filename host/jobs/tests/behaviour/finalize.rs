//! J2, J3, J20, C46: one ending wins, and only that of the run it names.

use std::sync::{Arc, Mutex};

use backlot_jobs::{
    Census, Change, ChangeError, Changed, Ending, Entry, Event, FaultyStore, How, Job, JobId,
    Limits, Lost, MemoryStore, Page, Prefix, Query, Run, RunEnding, RunId, Session, Status,
    StopReply, Stopped, Store, StoreError,
};
use backlot_registry::{BoxFuture, SessionId};

use crate::world::*;

#[tokio::test(start_paused = true)]
async fn j2_of_two_endings_the_first_counts() {
    for host in hosts().await {
        let (job, run) = host.start().await;
        let (first, second) = (completed(run.run, "first"), failed(run.run, "second"));
        tokio::join!(
            host.manager.run_finished(job.id, first),
            host.manager.run_finished(job.id, second),
        );
        run.end_so(RunEnding::Cancelled);
        settle_down().await;
        let ended = host.job(job.id).await;
        assert_eq!((ended.status(), ended.summary()), (Status::Completed, Some("first")));
        assert_eq!(host.heard.finished().len(), 1);
        assert_eq!(ended.endings, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn j2_ending_result_and_state_are_one_write() {
    for host in hosts().await {
        host.hook.say(Saying::Follow(backlot_jobs::Following::End {
            state: Some("at its end".into()),
            failure: None,
        }));
        let (job, run) = host.start().await;
        settle_down().await;
        let before = host.store.writes();
        run.complete("the result");
        let ended = host.ended(job.id).await;
        assert_eq!(host.store.writes(), before + 1);
        let told = ended.ended().unwrap();
        assert_eq!(told.ending, Ending::Completed);
        assert_eq!(told.result.as_deref(), Some("the result"));
        assert_eq!(ended.state.as_deref(), Some("at its end"));
        assert_eq!(ended.debt.unwrap().parts(), Some((job.id, 1)));
    }
}

#[tokio::test(start_paused = true)]
async fn j3_an_older_attempt_cannot_end_a_newer_one() {
    for host in hosts().await {
        let (job, old) = host.start().await;
        // Declared failed although its run goes on.
        host.manager.run_finished(job.id, failed(old.run, "declared dead")).await;
        let (_, new) = host.retry(job.id).await;
        for ending in [RunEnding::Completed, RunEnding::Failed, RunEnding::Cancelled] {
            host.manager.run_finished(job.id, outcome(old.run, ending)).await;
            assert_eq!(host.job(job.id).await.run(), Some(new.run));
        }
        new.complete("second");
        assert_eq!(host.ended(job.id).await.summary(), Some("second"));
        for ending in [RunEnding::Completed, RunEnding::Failed, RunEnding::Cancelled] {
            host.manager.run_finished(job.id, outcome(old.run, ending)).await;
        }
        old.complete("first");
        settle_down().await;
        let ended = host.job(job.id).await;
        assert_eq!((ended.status(), ended.summary()), (Status::Completed, Some("second")));
    }
}

#[tokio::test(start_paused = true)]
async fn j3_an_outcome_without_a_run_ends_the_attempt_that_the_job_is_on() {
    for host in hosts().await {
        let job = host.failed().await;
        let (_, run) = host.retry(job.id).await;
        let anonymous = backlot_jobs::RunOutcome { run: None, ..completed(run.run, "so") };
        host.manager.run_finished(job.id, anonymous).await;
        let ended = host.job(job.id).await;
        assert_eq!((ended.status(), ended.summary()), (Status::Completed, Some("so")));
        assert_eq!(ended.last_run().unwrap().id, run.run);
    }
}

#[tokio::test(start_paused = true)]
async fn j3_a_stop_that_aimed_before_a_retry_chases_the_new_run() {
    for host in hosts().await {
        let (job, first) = host.start().await;
        let (answer, wait) = tokio::sync::oneshot::channel();
        host.runs.answer(Answering::After(wait, Box::new(Answering::Say(Stopped::Unknown))));
        let manager = host.manager.clone();
        let stop =
            tokio::spawn(
                async move { manager.stop(job.id, &OPERATOR, How::Ask, "anna", None).await },
            );
        until(|| host.runs.stops().len() == 1).await;
        // While the stop is on its way, the run fails and is tried again.
        first.fail("broke");
        host.ended(job.id).await;
        let (_, second) = host.retry(job.id).await;
        answer.send(()).unwrap();
        // It has not ended what it did not see: it was stopped itself.
        assert!(matches!(stop.await.unwrap(), Ok(StopReply::Stopping(_))));
        let stops: Vec<RunId> = host.runs.stops().iter().map(|stop| stop.run).collect();
        assert_eq!(stops, [first.run, second.run]);
        assert_eq!(host.ended(job.id).await.status(), Status::Cancelled);
        assert_eq!(host.runs.live(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn c46_a_stop_after_the_end_changes_nothing() {
    for host in hosts().await {
        let (job, run) = host.start().await;
        run.complete("done");
        let ended = host.ended(job.id).await;
        let reply = host.stop(job.id, How::Force).await;
        assert_eq!(reply, StopReply::Already(ended.clone()));
        assert_eq!(host.job(job.id).await, ended);
        assert_eq!(host.runs.stops(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn c46_a_stop_that_crosses_the_end_comes_to_one_ending() {
    for lead in 0..40 {
        for host in hosts().await {
            let (job, run) = host.start().await;
            let manager = host.manager.clone();
            let stop = tokio::spawn(async move {
                manager.stop(job.id, &OPERATOR, How::Ask, "anna", None).await
            });
            for _ in 0..lead {
                tokio::task::yield_now().await;
            }
            run.complete("done");
            let reply = stop.await.unwrap().unwrap();
            let ended = host.ended(job.id).await;
            settle_down().await;
            assert_eq!(host.job(job.id).await, ended);
            let status = ended.status();
            match reply {
                StopReply::Already(_) => assert_eq!(status, Status::Completed),
                _ => assert_eq!(status, Status::Cancelled),
            }
            let told = (host.heard.finished().len(), host.heard.delivered().len());
            let owed = usize::from(status == Status::Completed);
            assert_eq!(told, (owed, 1 - owed), "one kind of ending is told");
        }
    }
}

/// A store on which a failed job is tried again by somebody else before whoever ended it
/// has even heard that it is written.
struct Meddler {
    store: FaultyStore,
    meddled: Mutex<Option<RunId>>,
}

impl Store for Meddler {
    fn change(&self, change: Change) -> BoxFuture<'_, Result<Changed, ChangeError>> {
        Box::pin(async move {
            let changed = self.store.change(change.clone()).await?;
            if let (Change::Happen { job, limits, now_ms, .. }, Changed::Job { job: now, .. }) =
                (change, &changed)
                && now.status() == Status::Failed
            {
                let run = RunId::random().unwrap();
                let event = Event::Retried { run };
                self.store.change(Change::Happen { job, event, limits, now_ms }).await?;
                *self.meddled.lock().unwrap() = Some(run);
            }
            Ok(changed)
        })
    }

    fn job(&self, id: JobId) -> BoxFuture<'_, Result<Option<Job>, StoreError>> {
        self.store.job(id)
    }

    fn job_of(
        &self,
        id: JobId,
        session: SessionId,
    ) -> BoxFuture<'_, Result<Option<Job>, StoreError>> {
        self.store.job_of(id, session)
    }

    fn find(&self, prefix: Prefix) -> BoxFuture<'_, Result<Vec<JobId>, StoreError>> {
        self.store.find(prefix)
    }

    fn list(&self, query: Query) -> BoxFuture<'_, Result<Page, StoreError>> {
        self.store.list(query)
    }

    fn past_runs(&self, id: JobId) -> BoxFuture<'_, Result<Vec<Run>, StoreError>> {
        self.store.past_runs(id)
    }

    fn owed(
        &self,
        session: Option<SessionId>,
        after: Option<(u64, JobId)>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Job>, StoreError>> {
        self.store.owed(session, after, limit)
    }

    fn calls(
        &self,
        except: Vec<String>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Job>, StoreError>> {
        self.store.calls(except, limit)
    }

    fn session(&self, id: SessionId) -> BoxFuture<'_, Result<Option<Session>, StoreError>> {
        self.store.session(id)
    }

    fn entries(
        &self,
        session: SessionId,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<(u64, Entry)>, StoreError>> {
        self.store.entries(session, after, limit)
    }

    fn census(&self) -> BoxFuture<'_, Result<Census, StoreError>> {
        self.store.census()
    }
}

#[tokio::test(start_paused = true)]
async fn j20_what_is_reported_is_what_was_claimed_and_no_second_look() {
    let under: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let store = FaultyStore::new(under.clone());
    let front = Arc::new(Meddler { store: store.clone(), meddled: Mutex::default() });
    let clock = Arc::new(TestClock::new());
    let host = Host::open_through(front.clone(), store, under, room_for(9, 9), clock).await;
    let host = host.unwrap();
    host.manager.open_session(chat()).await.unwrap();
    let (job, run) = host.start().await;
    run.fail("it broke");
    until(|| !host.heard.finished().is_empty()).await;
    let told = host.heard.finished();
    assert_eq!((told[0].status(), told[0].summary()), (Status::Failed, Some("it broke")));
    assert_eq!(told[0].debt.as_ref().unwrap().parts(), Some((job.id, 1)));
    assert_eq!(host.job(job.id).await.run(), *front.meddled.lock().unwrap());
}

#[tokio::test(start_paused = true)]
async fn j3_two_hosts_that_end_one_run_agree_on_the_ending() {
    for host in hosts().await {
        let (job, run) = host.start().await;
        // Another host has ended it meanwhile.
        let report = backlot_jobs::Report {
            ending: Ending::Cancelled,
            result: None,
            detail: None,
            state: None,
            again_ms: None,
            told: true,
        };
        host.happen(job.id, Event::Finished { run: Some(run.run), report: report.clone() }).await;
        run.complete("done");
        settle_down().await;
        assert_eq!(host.stands(job.id).await, Status::Cancelled);
        assert_eq!(host.heard.finished(), []);
        let limits: Limits = host.manager.config().limits;
        let event = Event::Finished { run: Some(run.run), report };
        let late = Change::Happen { job: job.id, event, limits, now_ms: 0 };
        let lost = host.store.change(late).await.unwrap_err();
        let ChangeError::Refused(backlot_jobs::Refused::Lost(lost)) = lost else { panic!() };
        assert_eq!(lost, Lost::Moved { status: Status::Cancelled, run: None });
    }
}

#[tokio::test(start_paused = true)]
async fn j3_an_outcome_without_a_run_ends_no_attempt_that_came_after_it_was_told() {
    for host in hosts().await {
        let (job, run) = host.start().await;
        settle_down().await;
        host.store.stall_read(1);
        let manager = host.manager.clone();
        let anonymous = backlot_jobs::RunOutcome { run: None, ..completed(run.run, "so") };
        let told = tokio::spawn(async move { manager.run_finished(job.id, anonymous).await });
        until(|| host.store.stalled() == 1).await;
        run.fail("it broke");
        host.ended(job.id).await;
        let (_, second) = host.retry(job.id).await;
        host.store.release();
        told.await.unwrap();
        assert_eq!(host.job(job.id).await.run(), Some(second.run));
    }
}
