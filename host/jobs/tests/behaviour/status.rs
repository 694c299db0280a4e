//! J19, C44, C45: looking at jobs.

use std::time::Duration;

use backlot_jobs::{Hand, How, JobId, LookError, Query, ResumeError, Spawn, Status, StopError};
use backlot_registry::Caller;
use tokio::time::Instant;

use crate::world::*;

fn all() -> Query {
    Query { limit: 100, ..Query::default() }
}

#[tokio::test(start_paused = true)]
async fn j19_a_status_waits_no_longer_than_the_most() {
    for host in hosts().await {
        let (job, _run) = host.start().await;
        let before = Instant::now();
        let status = host.manager.status(job.id, &OPERATOR, LONG, Hand::Model).await.unwrap();
        assert_eq!(status.status(), Status::Working);
        assert_eq!(before.elapsed(), Duration::from_secs(120));
        let asked = Duration::from_secs(7);
        host.manager.status(job.id, &OPERATOR, asked, Hand::Model).await.unwrap();
        assert_eq!(before.elapsed(), Duration::from_secs(127));
        host.manager.status(job.id, &OPERATOR, Duration::ZERO, Hand::Model).await.unwrap();
        assert_eq!(before.elapsed(), Duration::from_secs(127));
    }
}

#[tokio::test(start_paused = true)]
async fn j19_a_status_waits_over_attempts_for_the_end_and_has_the_whole_result() {
    for host in hosts().await {
        let result = "long ".repeat(1_000);
        host.hook.say(proceed("second"));
        let (job, run) = host.start().await;
        let wait = host.manager.status(job.id, &OPERATOR, LONG, Hand::Model);
        let (status, ()) = tokio::join!(wait, async {
            settle_down().await;
            run.complete("one");
            host.runs.next().await.complete(&result);
        });
        let status = status.unwrap();
        assert_eq!(status.ended().unwrap().result.as_ref(), Some(&result));
        assert!(status.summary().unwrap().chars().count() < 500);
    }
}

#[tokio::test(start_paused = true)]
async fn j19_a_wait_that_is_dropped_leaves_the_job_as_it_is() {
    for host in hosts().await {
        let (job, run) = host.start().await;
        for _ in 0..1_000 {
            let wait = host.manager.status(job.id, &OPERATOR, LONG, Hand::Model);
            let waited = tokio::time::timeout(Duration::from_millis(1), wait).await;
            assert!(waited.is_err());
        }
        run.complete("done");
        host.ended(job.id).await;
        assert_eq!(host.owed().await, [job.id], "nobody has heard of it");
    }
}

#[tokio::test(start_paused = true)]
async fn j19_a_wait_for_a_job_that_is_deleted_ends() {
    for host in hosts().await {
        let (job, _run) = host.start().await;
        let wait = host.manager.status(job.id, &OPERATOR, LONG, Hand::Model);
        let before = Instant::now();
        let (waited, _) = tokio::join!(wait, async {
            settle_down().await;
            host.manager.delete_session(&chat(), "anna", Duration::ZERO).await.unwrap()
        });
        // It ended before it was gone, or is unknown.
        assert!(waited.is_err() || waited.unwrap().status() == Status::Cancelled);
        assert!(before.elapsed() < Duration::from_secs(10));
    }
}

#[tokio::test(start_paused = true)]
async fn j19_a_listing_has_the_newest_first_and_no_contents() {
    for host in hosts().await {
        let mut ids = Vec::new();
        for _ in 0..5 {
            let (job, run) = host.start().await;
            run.complete("result");
            host.ended(job.id).await;
            ids.insert(0, job.id);
        }
        let mut listed = Vec::new();
        let mut query = Query { limit: 2, ..Query::default() };
        loop {
            let page = host.manager.list(&session(&chat()), query.clone()).await.unwrap();
            for job in &page.jobs {
                assert_eq!((job.spec.input.as_str(), job.summary()), ("", Some("result")));
                assert_eq!(job.ended().unwrap().result, None);
            }
            listed.extend(page.jobs.iter().map(|job| job.id));
            match page.next {
                None => break,
                next => query.before = next,
            }
        }
        assert_eq!(listed, ids);
        assert_eq!(host.owed().await.len(), 5);
    }
}

#[tokio::test(start_paused = true)]
async fn j19_progress_says_where_a_job_stands_and_what_its_run_says() {
    for host in hosts().await {
        let (plain, plainly) = host.start().await;
        let spawn = Spawn { state: Some("step 2/3".into()), ..work() };
        let (stepped, _run) = host.start_with(spawn).await;
        host.runs.report_detail("42 %");
        plainly.complete("done");
        let ended = host.ended(plain.id).await;
        let job = host.job(stepped.id).await;
        let said = host.manager.progress(&[ended, job]).await;
        assert_eq!(said, [None, Some("at step 2/3: 42 %".into())]);
    }
}

#[tokio::test(start_paused = true)]
async fn c45_foreign_and_unknown_ids_have_one_answer_on_every_verb() {
    for host in hosts().await {
        host.manager.open_session("other".into()).await.unwrap();
        let foreign = host.failed().await.id;
        let unknown = JobId::random().unwrap();
        let other = session(&"other".into());
        for caller in [other, Caller::Anyone] {
            for id in [foreign, unknown] {
                let m = &host.manager;
                let no_job = format!("no job {id}");
                let starts = |error: String| assert!(error.starts_with(&no_job), "{error}");
                starts(m.get(id, &caller).await.unwrap_err().to_string());
                starts(m.runs(id, &caller).await.unwrap_err().to_string());
                let status = m.status(id, &caller, LONG, Hand::Model).await;
                starts(status.unwrap_err().to_string());
                starts(m.remove(id, &caller).await.unwrap_err().to_string());
                let stop = m.stop(id, &caller, How::Force, "b", None).await;
                assert!(matches!(stop, Err(StopError::Unknown(it)) if it == id));
                let retry = m.retry(id, &caller, Hand::Model).await;
                assert!(matches!(retry, Err(ResumeError::Unknown(it)) if it == id));
                let answer = m.answer(id, &caller, "yes".into(), Hand::Model).await;
                assert!(matches!(answer, Err(ResumeError::Unknown(it)) if it == id));
                let found = m.find(&id.to_string(), &caller).await;
                assert!(matches!(found, Err(LookError::Unknown(_))));
            }
            assert_eq!(host.manager.list(&caller, all()).await.unwrap().jobs, []);
            let query = Query { session: Some(chat()), ..all() };
            assert_eq!(host.manager.list(&caller, query).await.unwrap().jobs, []);
        }
        let job = host.job(foreign).await;
        assert_eq!((job.status(), job.attempt, job.stop), (Status::Failed, 1, None));
        assert_eq!(host.owed().await, [foreign]);
        // Its own may.
        host.manager.get(foreign, &session(&chat())).await.unwrap();
        assert_eq!(host.manager.find(&foreign.short(), &session(&chat())).await.unwrap(), foreign);
    }
}

#[tokio::test(start_paused = true)]
async fn j19_the_beginning_of_an_id_is_enough_where_there_is_one() {
    for host in hosts().await {
        host.manager.open_session("other".into()).await.unwrap();
        // Of 17 ids, two begin with the same digit.
        for _ in 0..17 {
            host.spawn(work()).await;
        }
        let theirs = host.spawn(work_of(&"other".into())).await;
        let listed = host.manager.list(&session(&chat()), all()).await.unwrap().jobs;
        let begin =
            |digit: &str| listed.iter().filter(|job| job.id.to_string().starts_with(digit)).count();
        for digit in "0123456789abcdef".chars().map(|digit| digit.to_string()) {
            let found = host.manager.find(&digit, &session(&chat())).await;
            match begin(&digit) {
                0 => assert!(matches!(found, Err(LookError::Unknown(_)))),
                1 => assert!(found.is_ok()),
                _ => assert!(matches!(found, Err(LookError::Ambiguous(_)))),
            }
        }
        let found = host.manager.find(&theirs.id.short(), &OPERATOR).await.unwrap();
        assert_eq!(found, theirs.id);
        for text in ["", "xyz", "é", &"0".repeat(1_000)] {
            let error = host.manager.find(text, &OPERATOR).await.unwrap_err();
            assert!(matches!(&error, LookError::Unknown(text) if text.len() <= 64), "{error}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn j19_a_rendering_that_panics_leaves_the_rest() {
    for host in hosts().await {
        let spawn = Spawn { state: Some("step 2/3".into()), ..work() };
        let (job, _run) = host.start_with(spawn).await;
        host.hook.panic_at(Panics::Render);
        host.runs.report_detail("42 %");
        assert_eq!(host.manager.progress(&[job]).await, [Some("42 %".into())]);
    }
}

#[tokio::test(start_paused = true)]
async fn who_has_a_job_in_hand_is_told_its_end_without_reading_it() {
    for host in hosts().await {
        let (job, run) = host.start().await;
        settle_down().await;
        let reads = host.store.reads();
        let wait = host.manager.outcome(job.clone(), &OPERATOR, LONG, Hand::Person);
        let (ended, ()) = tokio::join!(wait, async {
            settle_down().await;
            run.complete("done");
        });
        assert_eq!(ended.unwrap().summary(), Some("done"));
        assert_eq!(host.store.reads(), reads);
        // One that is not driven any more is looked at.
        let ended = host.manager.outcome(job, &OPERATOR, LONG, Hand::Person).await.unwrap();
        assert_eq!((ended.summary(), host.store.reads()), (Some("done"), reads + 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_in_hand_that_is_anothers_is_unknown() {
    for host in hosts().await {
        let (job, _run) = host.start().await;
        settle_down().await;
        let before = Instant::now();
        for caller in [session(&"other".into()), Caller::Anyone] {
            let told = host.manager.outcome(job.clone(), &caller, LONG, Hand::Person).await;
            assert!(matches!(told, Err(LookError::Unknown(_))), "{told:?}");
        }
        assert_eq!(before.elapsed(), Duration::ZERO, "nothing of it is waited for");
    }
}

#[tokio::test(start_paused = true)]
async fn an_end_that_comes_as_it_is_begun_to_be_waited_for_is_heard_of() {
    for lead in 0..60 {
        for host in hosts().await {
            let (job, run) = host.start().await;
            let before = Instant::now();
            run.complete("done");
            for _ in 0..lead {
                tokio::task::yield_now().await;
            }
            let ended = host.manager.outcome(job, &OPERATOR, LONG, Hand::Person).await.unwrap();
            assert_eq!(ended.status(), Status::Completed, "{lead}");
            assert_eq!(before.elapsed(), Duration::ZERO, "{lead}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_in_hand_whose_session_is_deleted_is_unknown() {
    for host in hosts().await {
        let (job, _run) = host.start().await;
        let caller = Caller::Session(chat());
        let wait = host.manager.outcome(job, &caller, LONG, Hand::Model);
        let (waited, deleted) = tokio::join!(wait, async {
            settle_down().await;
            host.manager.delete_session(&chat(), "anna", Duration::from_secs(5)).await
        });
        deleted.unwrap();
        // Its end came first, and nothing after that.
        match waited {
            Ok(job) => assert_eq!(job.status(), Status::Cancelled),
            Err(error) => assert!(matches!(error, LookError::Unknown(_)), "{error}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_changes_what_is_owed_is_counted() {
    for host in hosts().await {
        let counted = || host.manager.endings();
        let (job, run) = host.start().await;
        settle_down().await;
        let before = counted();
        run.fail("no");
        let failed = host.ended(job.id).await;
        assert_eq!(counted(), before + 1);
        let (_, again) = host.retry(job.id).await;
        assert_eq!(counted(), before + 2);
        again.complete("done");
        let ended = host.ended(job.id).await;
        assert_eq!(counted(), before + 3);
        assert_ne!(failed.debt, ended.debt);
        host.manager.delivered(&ended).await.unwrap();
        assert_eq!(counted(), before + 4);
        host.manager.remove(job.id, &OPERATOR).await.unwrap();
        assert_eq!(counted(), before + 5);
    }
}
