//! Jobs of real components, over a real data folder, with the host in process.

use std::{path::Path, time::Duration};

use backlot::{
    Config, Host, Jobs, JobsConfig, JobsError,
    backlot_jobs::{
        self, Failure, Hand, HoldError, How, Job, JobId, Phase, Spawn, Status, StopReply,
        output::{Part, Recording},
    },
    registry::{Caller, Kind, SurfaceGuard},
};
use backlot_tests::{cache, kinds};
use serde_json::json;
use tempfile::TempDir;

/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);
const ME: Caller = Caller::Operator;

/// A host with jobs, over a folder that outlives it.
struct Fixture {
    jobs: Jobs,
    host: Host,
    _surface: SurfaceGuard,
}

impl Fixture {
    async fn start(data: &Path) -> Self {
        Self::try_start(data).await.unwrap()
    }

    async fn try_start(data: &Path) -> Result<Self, JobsError> {
        let config = Config {
            plugins: kinds(),
            instances: Some(64),
            cache: Some(cache()),
            ..Config::default()
        };
        let host = Host::start(config).unwrap();
        let surface = host.registry().attach_surface("test");
        let (jobs, _) = Jobs::open(&host, JobsConfig::new(data)).await?;
        jobs.manager().open_session("me".into()).await.unwrap();
        Ok(Self { jobs, host, _surface: surface })
    }

    async fn spawn(&self, kind: &str, input: serde_json::Value) -> Job {
        let spawn = Spawn::new(Kind::new(kind).unwrap(), "me".into(), input.to_string());
        self.jobs.manager().spawn(spawn).await.unwrap()
    }

    async fn end(&self, id: JobId) -> Job {
        let job = self.jobs.manager().status(id, &ME, LONG, Hand::Person).await.unwrap();
        assert!(job.status().is_terminal() || job.status() == Status::InputRequired, "{job:?}");
        job
    }

    /// Waits until the job is at that step.
    async fn at_step(&self, id: JobId, step: u32) -> Job {
        loop {
            let job = self.jobs.manager().get(id, &ME).await.unwrap();
            assert!(!job.status().is_terminal(), "{job:?}");
            if job.step == step && job.last_run().is_some_and(|run| run.task.is_some()) {
                return job;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn output(&self, id: JobId) -> String {
        let mut recording = Recording::new(self.jobs.folder().job(id));
        let portion = recording.read(Part::Output, 0, 1 << 20).unwrap();
        let bytes: Vec<u8> = portion.pieces.into_iter().flat_map(|piece| piece.bytes).collect();
        String::from_utf8(bytes).unwrap()
    }
}

fn result(job: &Job) -> &str {
    job.ended().unwrap().result.as_deref().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_has_its_result_its_runs_and_its_output() {
    let data = TempDir::new().unwrap();
    let it = Fixture::start(data.path()).await;
    let job = it.spawn("ticker", json!({"count": 3, "every_ms": 1})).await;
    let job = it.end(job.id).await;
    assert_eq!(job.status(), Status::Completed, "{job:?}");
    assert_eq!(result(&job), it.output(job.id));
    assert_eq!(result(&job).lines().count(), 3);
    let run = job.last_run().unwrap();
    assert_eq!(run.task.as_deref(), Some("ticker-1"));
    assert!(run.code.as_ref().unwrap().digest.starts_with("sha256:"));
    assert!(job.debt.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_runs_kinds_one_after_the_other() {
    let data = TempDir::new().unwrap();
    let it = Fixture::start(data.path()).await;
    let steps = json!({"steps": [
        {"kind": "ticker", "input": {"count": 2, "every_ms": 1}},
        {"ask": "Go on?"},
        {"kind": "ticker", "input": {"count": 4, "every_ms": 1}},
    ]});
    let job = it.spawn("pipeline", steps).await;
    let asked = it.end(job.id).await;
    let Phase::InputRequired { question, .. } = &asked.phase else { panic!("{asked:?}") };
    assert_eq!(question.prompt, "Go on?");
    let progress = it.jobs.manager().progress(std::slice::from_ref(&asked)).await;
    assert!(progress[0].as_ref().unwrap().starts_with("step 2/3"), "{progress:?}");
    it.jobs.manager().answer(job.id, &ME, "yes".into(), Hand::Person).await.unwrap();
    let job = it.end(job.id).await;
    assert_eq!(job.status(), Status::Completed, "{job:?}");
    assert_eq!(result(&job).lines().count(), 4);
    let runs = it.jobs.manager().runs(job.id, &ME).await.unwrap();
    let kinds: Vec<&str> = runs.iter().map(|run| run.kind.as_str()).collect();
    assert_eq!(kinds, ["pipeline", "ticker", "pipeline", "ticker"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_goes_on_at_the_step_that_a_crash_interrupted() {
    let data = TempDir::new().unwrap();
    let it = Fixture::start(data.path()).await;
    let steps = json!({"steps": [
        {"kind": "ticker", "input": {"count": 2, "every_ms": 1}},
        {"kind": "ticker", "input": {"count": 100, "every_ms": 20}},
    ]});
    let id = it.spawn("pipeline", steps).await.id;
    it.at_step(id, 2).await;
    // Nothing is ended in order.
    drop(it);

    let it = Fixture::start(data.path()).await;
    let job = it.jobs.manager().get(id, &ME).await.unwrap();
    let ended = job.ended().unwrap();
    assert_eq!(ended.ending, backlot_jobs::Ending::Failed(Failure::Interrupted));
    assert_eq!(ended.summary, "interrupted by restart");
    let job = it.jobs.manager().retry(id, &ME, Hand::Person).await.unwrap();
    assert_eq!((job.attempt, job.step), (2, 2));
    let job = it.end(id).await;
    assert_eq!(job.status(), Status::Completed, "{job:?}");
    assert_eq!(result(&job).lines().count(), 100);
    let runs = it.jobs.manager().runs(id, &ME).await.unwrap();
    assert_eq!(runs.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_goes_through_the_ladder_and_ends_the_job_cancelled() {
    let data = TempDir::new().unwrap();
    let it = Fixture::start(data.path()).await;
    let id = it.spawn("ticker", json!({"count": 1_000_000, "every_ms": 10})).await.id;
    let why = Some("enough".to_owned());
    let reply = it.jobs.manager().stop(id, &ME, How::Ask, "test", why).await.unwrap();
    assert!(matches!(reply, StopReply::Stopping(_)), "{reply:?}");
    let job = it.end(id).await;
    assert_eq!(job.status(), Status::Cancelled);
    assert_eq!(job.stop.as_ref().unwrap().why.as_deref(), Some("enough"));
    let again = it.jobs.manager().stop(id, &ME, How::Force, "test", None).await.unwrap();
    assert!(matches!(again, StopReply::Already(_)), "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c69_a_shutdown_saves_the_endings_it_causes() {
    let data = TempDir::new().unwrap();
    let it = Fixture::start(data.path()).await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(it.spawn("ticker", json!({"count": 1_000_000, "every_ms": 10})).await.id);
    }
    assert!(it.jobs.shutdown(&it.host, LONG).await);
    drop(it);
    let it = Fixture::start(data.path()).await;
    for id in ids {
        let job = it.jobs.manager().get(id, &ME).await.unwrap();
        assert_eq!(job.status(), Status::Failed);
        assert_eq!(job.ended().unwrap().summary, "host shutdown");
        assert!(job.debt.is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c61_a_second_host_on_the_folder_is_refused_and_sweeps_nothing() {
    let data = TempDir::new().unwrap();
    let it = Fixture::start(data.path()).await;
    let id = it.spawn("ticker", json!({"count": 1_000_000, "every_ms": 10})).await.id;
    let refused = Fixture::try_start(data.path()).await.err().unwrap();
    let JobsError::Hold(HoldError::Held { holder: Some(holder), .. }) = &refused else {
        panic!("{refused:?}")
    };
    assert_eq!(holder.pid, std::process::id());
    let job = it.jobs.manager().get(id, &ME).await.unwrap();
    assert_eq!(job.status(), Status::Working);
}
