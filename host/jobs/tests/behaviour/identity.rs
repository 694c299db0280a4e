//! J0, J1, J21: what a job is, whose words it carries, and that its manager only reports.

use backlot_jobs::{Code, Config, RunId, Spawn, Status, Store as _};
use backlot_registry::Cause;
use futures::FutureExt as _;

use crate::{bridge::Bridge, world::*};

#[tokio::test(start_paused = true)]
async fn j0_an_ending_is_reported_and_interrupts_nobody() {
    for host in hosts().await {
        let (job, run) = host.start().await;
        run.complete("done");
        host.ended(job.id).await;
        let finished = host.heard.finished();
        assert_eq!(finished.len(), 1);
        assert_eq!(finished[0].summary(), Some("done"));
        // It is for the host to put it into the session.
        assert_eq!(host.manager.entries(&chat(), 0, 10).await.unwrap(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn j0_a_kind_that_the_resolver_does_not_know_starts_nothing() {
    for host in hosts().await {
        let spawn = Spawn { kind: kind("unknown"), ..work() };
        let error = host.manager.spawn(spawn).await.unwrap_err();
        assert_eq!(error.to_string(), "unknown: there is no such kind");
        assert_eq!((host.store.writes(), host.runs.launches()), (1, 0), "opened `chat` alone");
    }
}

#[tokio::test(start_paused = true)]
async fn j0_a_job_runs_with_the_configuration_of_its_spawn() {
    for host in hosts().await {
        let configure = |text: &str| *host.kinds.inherit.lock().unwrap() = Some(text.into());
        configure("then");
        let job = host.failed().await;
        configure("now");
        host.retry(job.id).await;
        let launched = host.runs.launched();
        let inherits = launched.iter().map(|(job, _)| job.spec.inherit.as_deref());
        assert_eq!(inherits.collect::<Vec<_>>(), [Some("then"), Some("then")]);
    }
}

#[tokio::test(start_paused = true)]
async fn j0_a_listener_that_panics_harms_nothing() {
    for host in hosts().await {
        host.heard.break_down();
        let (job, run) = host.start().await;
        run.complete("done");
        assert_eq!(host.ended(job.id).await.status(), Status::Completed);
        assert_eq!(host.owed().await, [job.id]);
        let health = host.manager.health().await.unwrap();
        assert_eq!(health.report_panics, host.heard.all().len() as u64);
    }
}

#[tokio::test(start_paused = true)]
async fn j1_each_attempt_and_step_is_a_run_of_its_own() {
    for host in hosts().await {
        host.hook.say(proceed("second"));
        host.hook.say(Saying::Fail("no third"));
        let (job, first) = host.start().await;
        first.complete("one");
        let second = host.runs.next().await;
        second.complete("two");
        host.ended(job.id).await;
        let (_, third) = host.retry(job.id).await;
        third.complete("three");
        host.ended(job.id).await;

        let runs = host.manager.runs(job.id, &OPERATOR).await.unwrap();
        let told = |run: &backlot_jobs::Run| (run.id, run.cause, run.attempt, run.step);
        assert_eq!(
            runs.iter().map(told).collect::<Vec<_>>(),
            [
                (first.run, Cause::Spawn, 1, 0),
                (second.run, Cause::Step, 1, 1),
                (third.run, Cause::Retry, 2, 1),
            ]
        );
        let outcomes = runs.iter().map(|run| run.outcome.as_deref().unwrap());
        assert_eq!(outcomes.collect::<Vec<_>>(), ["completed", "failed: no third", "completed"]);
        let jobs = [&first, &second, &third].map(|run| run.job.id);
        assert_eq!(jobs, [job.id; 3]);
    }
}

#[tokio::test(start_paused = true)]
async fn j1_the_task_and_the_code_of_a_run_are_recorded_beside_its_id() {
    for host in hosts().await {
        let code = |digest: &str| Code { kind: kind("work"), digest: digest.into(), generation: 1 };
        host.runs.run_code(code("aa"));
        let (job, run) = host.start().await;
        let launched = host.when(job.id, |job| !job.code.is_empty()).await;
        let recorded = launched.last_run().unwrap();
        assert_eq!((recorded.id, recorded.task.as_deref()), (run.run, Some("task-1")));
        assert_eq!(launched.digest_for(&kind("work")), Some("aa"));
        run.fail("no");
        host.ended(job.id).await;
        // Another attempt may run what is there by then.
        host.runs.run_code(code("bb"));
        let (claimed, _) = host.retry(job.id).await;
        assert_eq!(claimed.digest_for(&kind("work")), None);
        let launched = host.when(job.id, |job| !job.code.is_empty()).await;
        assert_eq!(launched.digest_for(&kind("work")), Some("bb"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_launch_is_on_the_disk_with_what_comes_after_it() {
    let bridge = Bridge::new();
    let host = Host::on(bridge.clone(), Config::default()).await;
    let code = Code { kind: kind("work"), digest: "aa".into(), generation: 1 };
    host.runs.run_code(code.clone());
    let (before, writes) = (bridge.syncs(), host.store.writes());
    let (job, run) = host.start().await;
    host.when(job.id, |job| !job.code.is_empty()).await;
    assert_eq!((bridge.syncs() - before, host.store.writes() - writes), (1, 2));
    // Without it a crash takes what was launched, and nothing of the spawn.
    let other = host.spawn(work()).await;
    host.when(other.id, |job| !job.code.is_empty()).await;
    bridge.crash(None);
    let left = |id| bridge.job(id).now_or_never().unwrap().unwrap().unwrap();
    assert_eq!(left(job.id).code, std::slice::from_ref(&code));
    assert_eq!((left(other.id).status(), left(other.id).code), (Status::Working, vec![]));
    assert_eq!(left(other.id).run(), other.run());
    drop(run);
}

#[tokio::test(start_paused = true)]
async fn j1_ids_tell_nothing_of_one_another() {
    for host in hosts().await {
        let (one, first) = host.start().await;
        let (other, second) = host.start().await;
        let differ = |one: u128, other: u128| (one ^ other).count_ones();
        // Chance has it that about half of 128 bits differ; a counter differs in few.
        assert!(differ(one.id.bits(), other.id.bits()) > 16);
        assert!(differ(first.run.bits(), second.run.bits()) > 16);
        assert_ne!(first.run, RunId::from_bits(one.id.bits()));
    }
}

#[tokio::test(start_paused = true)]
async fn j21_kind_and_state_are_handed_to_every_launch() {
    for host in hosts().await {
        host.hook.say(proceed_with("second", Some("{\"at\":2}")));
        host.hook.say(proceed("third"));
        let spawn = Spawn { state: Some("{\"at\":1}".into()), ..work() };
        let (job, run) = host.start_with(spawn).await;
        run.complete("");
        host.runs.next().await.complete("");
        host.runs.next().await.fail("no");
        host.ended(job.id).await;
        host.retry(job.id).await;
        let launched = host.runs.launched();
        let handed = launched.iter().map(|(job, _)| (job.spec.kind.as_str(), job.state.as_deref()));
        let (first, second) = (Some("{\"at\":1}"), Some("{\"at\":2}"));
        assert_eq!(
            handed.collect::<Vec<_>>(),
            [("work", first), ("work", second), ("work", second), ("work", second)]
        );
    }
}
