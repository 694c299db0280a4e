//! Jobs of real components, over a real data folder, with the host in process.

use std::{path::Path, time::Duration};

use backlot::{
    Config, Host, Jobs, JobsConfig, JobsError,
    backlot_jobs::{
        self, Failure, Hand, HoldError, How, Job, JobId, Phase, Spawn, StartAt, Status, StopReply,
        Store as _, files,
        output::{Part, Recording},
    },
    registry::{Caller, Kind, SurfaceGuard},
};
use backlot_surface::{
    Reason,
    wire::{Grant, SpawnRequest},
};
use backlot_tests::{cache, kinds, program};
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
        Self::try_start_with(JobsConfig::new(data)).await
    }

    async fn try_start_with(jobs: JobsConfig) -> Result<Self, JobsError> {
        let config = Config {
            plugins: kinds(),
            instances: Some(64),
            cache: Some(cache()),
            ..Config::default()
        };
        let host = Host::start(config).unwrap();
        let surface = host.registry().attach_surface("test");
        let (jobs, _) = Jobs::open(&host, jobs).await?;
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
        let watch = self.jobs.manager().watch(id);
        loop {
            // Made before the look, so that no change falls between.
            let changed = watch.notified();
            let job = self.jobs.manager().get(id, &ME).await.unwrap();
            assert!(!job.status().is_terminal(), "{job:?}");
            if job.step == step && job.last_run().is_some_and(|run| run.task.is_some()) {
                return job;
            }
            changed.await;
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
async fn a_spawn_that_is_refused_leaves_no_session() {
    let data = TempDir::new().unwrap();
    let it = Fixture::start(data.path()).await;
    let spawn = async |kind: &str, label: &str| {
        let (kind, label) = (Some(kind.to_owned()), Some(label.to_owned()));
        let session = Some("new".to_owned());
        it.jobs.spawn(SpawnRequest { kind, label, session, ..SpawnRequest::default() }).await
    };
    let is_there = async || it.jobs.store().session("new".into()).await.unwrap().is_some();
    assert_eq!(spawn("nothing", "a").await.unwrap_err().reason, Reason::UnknownKind);
    assert_eq!(spawn("noop", "a\nb").await.unwrap_err().reason, Reason::Invalid);
    assert!(!is_there().await);
    spawn("noop", "a").await.unwrap();
    assert!(is_there().await);
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

#[tokio::test(flavor = "multi_thread")]
async fn j28_a_work_folder_is_kept_over_attempts_listed_and_removed_with_the_job() {
    let data = TempDir::new().unwrap();
    let it = Fixture::start(data.path()).await;
    let mark = ["mark", "/job/marks", "here", "1000", "10"].map(String::from).to_vec();
    let request = SpawnRequest {
        file: Some(program("probe")),
        args: mark,
        session: Some("me".into()),
        grant: Grant { work_folder: Some(1 << 20), deadline_ms: Some(300), ..Grant::default() },
        ..SpawnRequest::default()
    };
    let id = it.jobs.spawn(request).await.unwrap().id;
    let failed = it.end(id).await;
    assert_eq!(failed.status(), Status::Failed, "{failed:?}");
    let work = it.jobs.folder().work(id);
    let size = |listing: &files::Listing| {
        assert_eq!(listing.files.len(), 1, "{listing:?}");
        assert_eq!(listing.files[0].path, Path::new("marks"));
        listing.files[0].bytes
    };
    let first = size(&files::list(&work, 10).unwrap());
    assert!(first > 0);
    // Of a file, and so pinned: it runs again what it ran.
    let digest = failed.last_run().unwrap().code.as_ref().unwrap().digest.clone();
    assert_eq!(failed.spec.pinned, Some(digest.clone()));
    it.jobs.manager().retry(id, &ME, Hand::Person).await.unwrap();
    let again = it.end(id).await;
    assert_eq!((again.attempt, again.status()), (2, Status::Failed));
    assert_eq!(again.last_run().unwrap().code.as_ref().unwrap().digest, digest);
    assert!(size(&files::list(&work, 10).unwrap()) > first, "what the first left is there");
    assert_eq!(it.jobs.manager().remove(id, &ME).await.unwrap(), [id]);
    // Deleting takes its time on a thread of its own.
    while it.jobs.folder().job(id).exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn j23_j25_jobs_wait_for_a_place_and_for_their_time() {
    let data = TempDir::new().unwrap();
    let mut config = JobsConfig::new(data.path());
    config.manager.limits.total = 1;
    let it = Fixture::try_start_with(config).await.unwrap();
    let long = it.spawn("ticker", json!({"count": 1_000_000, "every_ms": 10})).await.id;
    let spawn = |start, queue| {
        let noop = Spawn::new(Kind::new("noop").unwrap(), "me".into(), "");
        it.jobs.manager().spawn(Spawn { start, queue, ..noop })
    };
    spawn(StartAt::Now, false).await.unwrap_err();
    let queued = spawn(StartAt::Now, true).await.unwrap();
    let later = spawn(StartAt::After(1), false).await.unwrap();
    assert_eq!([queued.status(), later.status()], [Status::Queued; 2]);
    it.jobs.manager().stop(long, &ME, How::Ask, "test", None).await.unwrap();
    for job in [queued, later] {
        assert_eq!(it.end(job.id).await.status(), Status::Completed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_with_steps_is_no_step_of_another() {
    let data = TempDir::new().unwrap();
    let it = Fixture::start(data.path()).await;
    let inner = json!({"kind": "noop", "until": {"completed": true}});
    let steps = json!({"steps": [{"kind": "loop-until", "input": inner}]});
    let id = it.spawn("pipeline", steps).await.id;
    let job = it.end(id).await;
    assert_eq!(job.status(), Status::Failed, "{job:?}");
    assert!(job.summary().unwrap().contains("can be no step of another"), "{job:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn j27_what_is_more_than_is_kept_in_bytes_goes_the_oldest_first_and_no_more_than_that() {
    let data = TempDir::new().unwrap();
    let it = Fixture::start(data.path()).await;
    let mut ids = Vec::new();
    for _ in 0..10 {
        let input = json!({"count": 1, "every_ms": 1}).to_string();
        let quiet = Spawn::new(Kind::new("ticker").unwrap(), "me".into(), input);
        let job = it.jobs.manager().spawn(Spawn { announced: false, ..quiet }).await.unwrap();
        it.end(job.id).await;
        ids.push(job.id);
    }
    let used = files::usage(&it.jobs.folder().jobs()).unwrap();
    assert!(it.jobs.shutdown(&it.host, LONG).await);
    drop(it);

    let mut config = JobsConfig::new(data.path());
    config.keep_bytes = used / 2;
    let it = Fixture::try_start_with(config).await.unwrap();
    // The fourth: with one deleted at a time, half of them are left.
    let watch = it.jobs.manager().watch(ids[3]);
    loop {
        let changed = watch.notified();
        if it.jobs.manager().get(ids[3], &ME).await.is_err() {
            break;
        }
        changed.await;
    }
    it.jobs.manager().get(ids[9], &ME).await.unwrap();
    it.jobs.manager().get(ids[6], &ME).await.unwrap();
}
