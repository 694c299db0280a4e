//! J10, J16, J17, J26: sessions, what is written for them, and what goes with them.

use std::time::Duration;

use backlot_jobs::{
    Body, Config, Entry, How, Job, JobId, LookError, Spawn, SpawnError, StartAt, Status, TreeError,
    project,
};
use backlot_registry::SessionId;

use crate::world::*;

const MINUTE: Duration = Duration::from_secs(60);

fn deep() -> Config {
    let mut config = room_for(9, 99);
    config.limits.depth = 3;
    config
}

async fn delete(host: &Host, session: &SessionId) -> Vec<JobId> {
    host.manager.delete_session(session, "anna", MINUTE).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn j16_a_session_is_deleted_with_all_below_it() {
    for host in hosts_with(deep()).await {
        let (top, _a) = host.start().await;
        let (middle, _b) = host.start_with(work_of(&top.id.session())).await;
        let (bottom, _c) = host.start_with(work_of(&middle.id.session())).await;
        let text = Entry { id: "e".into(), target: None, body: Body::Text("x".into()), at_ms: 0 };
        for session in [chat(), top.id.session(), bottom.id.session()] {
            host.manager.append(&session, text.clone()).await.unwrap();
        }
        host.manager.open_session("other".into()).await.unwrap();
        let (others, _d) = host.start_with(work_of(&"other".into())).await;

        let mut gone = delete(&host, &chat()).await;
        gone.sort_unstable();
        let mut all = [top.id, middle.id, bottom.id];
        all.sort_unstable();
        assert_eq!(gone, all);
        assert_eq!(host.runs.live_of(others.id).len(), host.runs.live(), "the others are stopped");
        for session in [chat(), top.id.session(), bottom.id.session()] {
            assert_eq!(host.manager.entries(&session, 0, 9).await.unwrap(), []);
        }
        for id in all {
            assert!(!host.is_known(id).await);
        }
        assert_eq!(host.stands(others.id).await, Status::Working);
        let error = host.manager.spawn(work()).await.unwrap_err();
        assert_eq!(error.to_string(), "no session \"chat\": it was deleted, or never opened");
    }
}

#[tokio::test(start_paused = true)]
async fn j16_a_session_of_the_same_name_is_another() {
    for host in hosts().await {
        let (job, run) = host.start_with(Spawn { key: Some("k".into()), ..work() }).await;
        run.complete("done");
        host.ended(job.id).await;
        delete(&host, &chat()).await;
        let first = host.manager.open_session(chat()).await.unwrap();
        let again = host.manager.open_session(chat()).await.unwrap();
        assert_eq!(first, again);
        assert_eq!(host.owed().await, []);
        let query = backlot_jobs::Query { limit: 9, ..backlot_jobs::Query::default() };
        assert_eq!(host.manager.list(&session(&chat()), query).await.unwrap().jobs, []);
        let other = host.spawn(Spawn { key: Some("k".into()), ..work() }).await;
        assert_ne!(other.id, job.id);
        assert_eq!(other.spec.incarnation, first.incarnation);
    }
}

#[tokio::test(start_paused = true)]
async fn j16_a_run_that_does_not_heed_is_forced_and_then_forgotten() {
    for host in hosts().await {
        let (job, run) = host.start().await;
        host.runs.answer(Answering::Say(backlot_jobs::Stopped::Stopping));
        let before = tokio::time::Instant::now();
        assert_eq!(delete(&host, &chat()).await, [job.id]);
        assert_eq!(before.elapsed(), MINUTE);
        let how: Vec<How> = host.runs.stops().iter().map(|stop| stop.how).collect();
        assert_eq!(how, [How::Ask, How::Force]);
        run.complete("late");
        settle_down().await;
        assert!(!host.is_known(job.id).await);
        assert_eq!((host.heard.finished(), host.runs.live()), (vec![], 0));
    }
}

#[tokio::test(start_paused = true)]
async fn j16_a_run_that_refuses_keeps_its_session() {
    for host in hosts().await {
        let (job, _run) = host.start().await;
        host.runs.answer(Answering::Refuse("it is writing"));
        let error = host.manager.delete_session(&chat(), "anna", MINUTE).await.unwrap_err();
        assert!(matches!(error, TreeError::Stop(_)), "{error}");
        assert_eq!(host.stands(job.id).await, Status::Working);
    }
}

#[tokio::test(start_paused = true)]
async fn j16_a_run_that_outlives_its_session_changes_nothing() {
    for host in hosts_with(deep()).await {
        let (job, run) = host.start().await;
        // Deleted and opened anew behind the manager, while the run goes on.
        let change = backlot_jobs::Change::Delete { session: chat() };
        host.under().change(change).await.unwrap();
        host.manager.open_session(chat()).await.unwrap();
        run.complete("done");
        settle_down().await;
        assert!(!host.is_known(job.id).await);
        assert_eq!((host.owed().await, host.heard.finished()), (vec![], vec![]));
    }
}

#[tokio::test(start_paused = true)]
async fn j17_the_entry_that_a_job_was_spawned_by_shows_where_it_stands() {
    for host in hosts().await {
        host.hook.say(ask("go on?"));
        let spawn = Spawn { entry: Some("call-1".into()), label: Some("index".into()), ..work() };
        let (job, run) = host.start_with(spawn).await;
        // A fast job is there before the turn that spawned it is stored.
        assert_eq!(shown(&host).await, []);
        let call =
            Entry { id: "call-1".into(), target: None, body: Body::Text("spawn".into()), at_ms: 0 };
        host.manager.append(&chat(), call.clone()).await.unwrap();
        assert_eq!(shown(&host).await, [("index".into(), Status::Working, 1, None)]);
        run.complete("half");
        host.until(job.id, Status::InputRequired).await;
        assert_eq!(shown(&host).await, [("index".into(), Status::InputRequired, 1, None)]);
        let answer =
            host.manager.answer(job.id, &OPERATOR, "yes".into(), backlot_jobs::Hand::Model);
        answer.await.unwrap();
        host.runs.next().await.fail("no paper");
        host.ended(job.id).await;
        let failed = Some("no paper".to_owned());
        assert_eq!(shown(&host).await, [("index".into(), Status::Failed, 1, failed)]);
        host.retry(job.id).await;
        assert_eq!(shown(&host).await, [("index".into(), Status::Working, 2, None)]);
        // Appended again it is the same entry.
        let number = host.manager.append(&chat(), call).await.unwrap();
        let entries = host.manager.entries(&chat(), 0, 99).await.unwrap();
        assert_eq!(entries.iter().filter(|(_, entry)| entry.id == "call-1").count(), 1);
        assert!(entries.iter().any(|(at, entry)| *at == number && entry.id == "call-1"));
    }
}

pub(crate) async fn shown(host: &Host) -> Vec<(String, Status, u32, Option<String>)> {
    let entries = host.manager.entries(&chat(), 0, 99).await.unwrap();
    let entries: Vec<Entry> = entries.into_iter().map(|(_, entry)| entry).collect();
    let card = |update| match update {
        Some(Body::Job(card)) => Some((card.label, card.status, card.attempt, card.summary)),
        _ => None,
    };
    project(&entries).into_iter().filter_map(|shown| card(shown.update)).collect()
}

#[tokio::test(start_paused = true)]
async fn j10_a_jobs_own_session_may_not_spawn_past_the_depth() {
    for host in hosts().await {
        let (job, _run) = host.start().await;
        let error = host.manager.spawn(work_of(&job.id.session())).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "a job of this session would be 2 jobs deep, and 1 is the most"
        );
        assert_eq!(host.runs.launches(), 1);
    }
    for host in hosts_with(deep()).await {
        let mut parent = chat();
        for depth in 1..=3 {
            let job = host.spawn(work_of(&parent)).await;
            assert_eq!(job.depth, depth);
            parent = job.id.session();
        }
        host.manager.spawn(work_of(&parent)).await.unwrap_err();
    }
}

#[tokio::test(start_paused = true)]
async fn j10_whether_a_session_is_a_jobs_is_told_or_is_an_error() {
    for host in hosts().await {
        let (job, _run) = host.start().await;
        let job_of = |session: SessionId| {
            let manager = host.manager.clone();
            async move { manager.job_of(&session).await.map(|job| job.map(|job: Job| job.id)) }
        };
        assert_eq!(job_of(chat()).await.unwrap(), None);
        assert_eq!(job_of(job.id.session()).await.unwrap(), Some(job.id));
        let lost = JobId::random().unwrap().session();
        assert!(matches!(job_of(lost).await, Err(LookError::Unknown(_))));
    }
}

#[tokio::test(start_paused = true)]
async fn j10_a_session_cannot_be_opened_under_the_name_of_a_jobs() {
    for host in hosts().await {
        let name = JobId::random().unwrap().session();
        let error = host.manager.open_session(name.clone()).await.unwrap_err();
        assert!(matches!(error, TreeError::Reserved(_)), "{error}");
        let error = host.manager.spawn(work_of(&name)).await.unwrap_err();
        assert!(matches!(error, SpawnError::Refused(_)), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn j26_a_job_lives_until_its_session_is_deleted() {
    for host in hosts().await {
        let (job, _run) = host.start().await;
        let scheduled = Spawn { start: StartAt::Cron("0 0 * * *".into()), ..work() };
        let scheduled = host.spawn(scheduled).await;
        // Whoever spawned it has gone for a week.
        pass(7 * 24 * 60 * MINUTE).await;
        assert_eq!(host.stands(job.id).await, Status::Working);
        assert_eq!(host.stands(scheduled.id).await, Status::Queued);
        delete(&host, &chat()).await;
        assert!(!host.is_known(job.id).await && !host.is_known(scheduled.id).await);
        let launches = host.runs.launches();
        pass(7 * 24 * 60 * MINUTE).await;
        assert_eq!((host.runs.launches(), host.runs.live()), (launches, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn j17_a_back_off_is_shown_also_of_a_job_that_had_waited_before() {
    for host in hosts_with(room_for(1, 1)).await {
        let call =
            Entry { id: "call".into(), target: None, body: Body::Text("spawn".into()), at_ms: 0 };
        host.manager.append(&chat(), call).await.unwrap();
        let (_, first) = host.start().await;
        let retry = Some(backlot_jobs::RetryPolicy::default());
        let spawn = Spawn { entry: Some("call".into()), queue: true, retry, ..work() };
        let job = host.spawn(spawn).await;
        let status = async || shown(&host).await[0].1;
        assert_eq!(status().await, Status::Queued);
        first.complete("done");
        let run = host.runs.next().await;
        assert_eq!(status().await, Status::Working);
        run.fail("no");
        host.until(job.id, Status::Queued).await;
        assert_eq!(status().await, Status::Queued);
    }
}

#[tokio::test(start_paused = true)]
async fn j17_an_entry_whose_job_was_taken_back_does_not_show_it_working() {
    for host in hosts().await {
        let call =
            Entry { id: "call".into(), target: None, body: Body::Text("spawn".into()), at_ms: 0 };
        host.manager.append(&chat(), call).await.unwrap();
        host.runs.begin(Beginning::Refuse("no"));
        let spawn = Spawn { entry: Some("call".into()), label: Some("index".into()), ..work() };
        host.manager.spawn(spawn).await.unwrap_err();
        let why = Some("could not be launched".to_owned());
        assert_eq!(shown(&host).await, [("index".into(), Status::Failed, 1, why)]);
    }
}

#[tokio::test(start_paused = true)]
async fn j16_a_job_that_was_spawned_while_its_session_was_deleted_is_stopped() {
    for host in hosts().await {
        let (_, first) = host.start().await;
        host.runs.answer(Answering::Say(backlot_jobs::Stopped::Stopping));
        let chat = chat();
        let (gone, second) = tokio::join!(delete(&host, &chat), async {
            until(|| !host.runs.stops().is_empty()).await;
            let second = host.start().await.1;
            settle_down().await;
            // All that were to be waited for have ended now.
            first.complete("done");
            second
        });
        assert_eq!(gone.len(), 2);
        settle_down().await;
        assert_eq!(host.runs.live_of(second.job.id), [], "nobody could stop it any more");
    }
}

#[tokio::test(start_paused = true)]
async fn j16_many_runs_that_heed_nothing_are_waited_for_at_once() {
    for host in hosts().await {
        for _ in 0..10 {
            host.start().await;
        }
        for _ in 0..20 {
            host.runs.answer(Answering::Say(backlot_jobs::Stopped::Stopping));
        }
        let before = tokio::time::Instant::now();
        assert_eq!(delete(&host, &chat()).await.len(), 10);
        assert_eq!(before.elapsed(), MINUTE + host.manager.config().outcome_wait);
        settle_down().await;
        assert_eq!(host.runs.live(), 0, "what was left of them is dropped with them");
    }
}

#[tokio::test(start_paused = true)]
async fn j10_a_store_that_cannot_tell_whether_a_session_is_a_jobs_says_no_such_thing() {
    for host in hosts().await {
        let (job, _run) = host.start().await;
        host.store.fail_reads(full());
        let told = host.manager.job_of(&job.id.session()).await;
        assert!(matches!(told, Err(LookError::Store(_))));
        // What is no job's by its name is told without the store.
        assert_eq!(host.manager.job_of(&chat()).await.unwrap(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn j16_the_end_of_a_run_whose_job_is_gone_is_not_waited_for() {
    for host in hosts().await {
        let (job, run) = host.start().await;
        settle_down().await;
        // Its end was told elsewhere, and lost.
        let change = backlot_jobs::Change::Delete { session: chat() };
        host.under().change(change).await.unwrap();
        host.manager.run_finished(job.id, completed(run.run, "late")).await;
        assert!(host.manager.close(Duration::from_secs(1)).await);
    }
}

#[tokio::test(start_paused = true)]
async fn j16_a_session_is_deleted_although_whoever_asked_has_gone() {
    for host in hosts().await {
        let (job, _run) = host.start().await;
        host.runs.answer(Answering::Say(backlot_jobs::Stopped::Stopping));
        let chat = chat();
        let delete = host.manager.delete_session(&chat, "anna", MINUTE);
        assert!(tokio::time::timeout(Duration::from_secs(1), delete).await.is_err());
        pass(Duration::from_secs(100)).await;
        assert_eq!((host.is_known(job.id).await, host.runs.live()), (false, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn j27_what_is_pruned_is_pruned_although_whoever_asked_has_gone() {
    for host in hosts().await {
        let (job, run) = host.start().await;
        run.complete("done");
        let job = host.ended(job.id).await;
        host.manager.delivered(&job).await.unwrap();
        host.store.stall_nth(1);
        let prune = host.manager.prune(0, Duration::ZERO);
        assert!(tokio::time::timeout(Duration::from_secs(1), prune).await.is_err());
        host.store.release();
        settle_down().await;
        assert!(!host.is_known(job.id).await);
        assert!(
            matches!(host.heard.all().last(), Some(Report::Removed(gone)) if *gone == [job.id])
        );
    }
}
