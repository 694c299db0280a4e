//! Stores of every format that was released must open for ever. Each has a file in
//! `tests/fixtures`, which is never made anew.

use super::*;

/// Makes the file of the format of today. It is run by hand, once, before a format is
/// released: `cargo test -p backlot-jobs --test store -- --ignored make_the_fixture`.
#[tokio::test]
#[ignore = "it writes a fixture, and refuses where that is there"]
async fn make_the_fixture() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&at(&folder));
    for change in lives() {
        make(&store, change).await;
    }
    for change in lives_with_calls() {
        make(&store, change).await;
    }
    store.backup_to(&fixture("format-2.db")).await.unwrap();
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Some of all that can be in a store.
fn lives() -> Vec<Change> {
    let new = |id| spawned(id, "chat");
    let spawn = |spawned: Spawned| Change::Spawn(Box::new(spawned));
    let mut full = new(1);
    full.spec = Spec {
        grant: Some("grant".into()),
        inherit: Some("inherit".into()),
        parent_run: Some("7".into()),
        entry: Some("call".into()),
        key: Some("once".into()),
        retry: Some(backlot_jobs::RetryPolicy::default()),
        pinned: Some("sha256:00".into()),
        ..full.spec
    };
    full.state = Some("begun".into());
    let run = RunId::from_bits;
    let code = backlot_jobs::Code {
        kind: Kind::new("grep").unwrap(),
        digest: "sha256:00".into(),
        generation: 2,
    };
    let launched = Event::Launched { run: run(1), task: Some("grep/1".into()), code: Some(code) };
    let step = NextStep {
        kind: Some(Kind::new("checksum").unwrap()),
        input: "second".into(),
        state: Some("half".into()),
    };
    let outcome = || "completed".to_owned();
    let stop =
        StopRequest { by: "a person".into(), why: Some("late".into()), at_ms: 9, after_step: true };
    let question = Question { prompt: "which?".into(), schema: Some("{}".into()) };
    let mut schedule = Spawned { due_ms: NOW_MS + 60_000, ..new(5) };
    schedule.spec.schedule = Some(Schedule::Cron("* * * * *".into()));
    let waits = Spawned { queue: true, limits: Limits { per_session: 1, ..LIMITS }, ..new(6) };
    let again = Event::Finished {
        run: None,
        report: Report {
            ending: Ending::Failed(Failure::Launch),
            result: None,
            detail: Some("no such file".into()),
            state: None,
            again_ms: Some(NOW_MS + 1_000),
            told: false,
        },
    };
    vec![
        opening("chat", 17),
        Change::Append {
            session: "chat".into(),
            entry: Entry {
                id: "call".into(),
                target: None,
                body: Body::Text("look".into()),
                at_ms: 1,
            },
        },
        spawn(full),
        happening(1, launched),
        happening(1, Event::Advanced { run: run(1), outcome: outcome(), next: run(100), step }),
        happening(1, Event::StopRequested { stop }),
        spawn(new(2)),
        happening(2, ended(Ending::Completed, Some("4 files"))),
        spawn(new(3)),
        happening(3, ended(Ending::Failed(Failure::Interrupted), None)),
        spawn(new(4)),
        happening(4, Event::Asked { run: run(4), outcome: outcome(), question, state: None }),
        spawn(schedule),
        spawn(waits),
        spawn(new(7)),
        happening(7, again),
        spawn(Spawned { ..spawned(8, JobId::from_bits(1).session().as_str()) }),
        spawn(new(9)),
        happening(9, ended(Ending::Cancelled, None)),
    ]
}

/// What there is since format 2.
fn lives_with_calls() -> Vec<Change> {
    let mut changes = Vec::new();
    for id in [10, 11, 12] {
        let mut new = spawned(id, "chat");
        new.spec.webhook = match id {
            10 => Some(Webhook::Url("https://example.com/told".into())),
            _ => Some(Webhook::Host),
        };
        new.spec.trace = Some("00-1-2-01".into());
        changes.push(Change::Spawn(Box::new(new)));
        changes.push(happening(id, ended(Ending::Completed, Some("told"))));
    }
    for (id, due_ms) in [(11, Some(NOW_MS + 5_000)), (12, None)] {
        let delivery = DeliveryId::new(JobId::from_bits(id), 1);
        let why = "it answered 500".into();
        changes.push(happening(id, Event::CallFailed { delivery, why, due_ms }));
    }
    changes
}

#[tokio::test]
async fn format_1_opens_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let file = at(&folder);
    fs::copy(fixture("format-1.db"), &file).unwrap();
    // Whoever may only read it cannot bring it up to date.
    let old = SqliteStore::open_read_only(&file, SqliteOptions::default()).unwrap_err();
    assert!(old.to_string().contains("older format 1"), "{old}");
    let store = open(&file);
    let reader = read(&file);
    let wanted = [
        (9, "cancelled"),
        (8, "working"),
        (7, "queued"),
        (6, "queued"),
        (5, "queued"),
        (4, "input_required"),
        (3, "failed"),
        (2, "completed"),
        (1, "working"),
    ];
    for store in [&reader, &store] {
        let page = store.list(Query { limit: 100, ..Query::default() }).await.unwrap();
        let found = page.jobs.iter().map(|job| (job.id.bits(), job.status().as_str()));
        assert_eq!(found.collect::<Vec<_>>(), wanted);
        let census = Census {
            queued: 3,
            next_due_ms: Some(0),
            working: 2,
            input_required: 1,
            ended: 3,
            owed: 2,
        };
        assert_eq!(store.census().await.unwrap(), census);
        assert_eq!(store.entries("chat".into(), 0, 10).await.unwrap().len(), 3);
        assert_eq!(store.past_runs(JobId::from_bits(1)).await.unwrap().len(), 1);
    }
    // All of it reads as it would be written today.
    let today = tempfile::tempdir().unwrap();
    let new = open(&at(&today));
    for change in lives() {
        make(&new, change).await;
    }
    for (id, _) in wanted {
        let id = JobId::from_bits(id);
        let (old, new) = (store.job(id).await.unwrap(), new.job(id).await.unwrap());
        assert!(old.is_some());
        assert_eq!(old, new);
    }
    let run = RunId::from_bits(200);
    for change in [
        happening(1, Event::Rewritten { run: RunId::from_bits(100), state: "on".into() }),
        happening(3, Event::Retried { run }),
        happening(4, Event::Answered { asked: RunId::from_bits(4), run, answer: "that".into() }),
        happening(5, Event::Fired { due_ms: NOW_MS + 120_000 }),
        Change::StartNext { run, limits: LIMITS, after: Vec::new(), now_ms: NOW_MS },
        Change::Remove { job: JobId::from_bits(2) },
        Change::Delete { session: "chat".into() },
    ] {
        assert_ne!(make(&store, change).await, Changed::Nothing);
    }
    assert_eq!(store.census().await.unwrap(), Census::default());
}

#[tokio::test]
async fn format_1_learns_to_call() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(fixture("format-1.db"), at(&folder)).unwrap();
    {
        let store = open(&at(&folder));
        assert_eq!(store.calls(Vec::new(), 10).await.unwrap(), []);
        for change in lives_with_calls() {
            make(&store, change).await;
        }
    }
    let store = open(&at(&folder));
    let due = store.calls(Vec::new(), 10).await.unwrap();
    assert_eq!(due.iter().map(|job| job.id.bits()).collect::<Vec<_>>(), [10, 11]);
    assert_eq!(ids(&store).await.len(), 12);
}

#[tokio::test]
async fn format_2_reads_as_it_would_be_written_today() {
    let folder = tempfile::tempdir().unwrap();
    let file = at(&folder);
    fs::copy(fixture("format-2.db"), &file).unwrap();
    let today = tempfile::tempdir().unwrap();
    let (old, new) = (open(&file), open(&at(&today)));
    for change in lives().into_iter().chain(lives_with_calls()) {
        make(&new, change).await;
    }
    assert_eq!(ids(&old).await, ids(&new).await);
    for id in ids(&old).await {
        let id = JobId::from_bits(id);
        let (old, new) = (old.job(id).await.unwrap(), new.job(id).await.unwrap());
        assert!(old.is_some());
        assert_eq!(old, new);
    }
    let due = old.calls(Vec::new(), 10).await.unwrap();
    assert_eq!(due, new.calls(Vec::new(), 10).await.unwrap());
    assert_eq!(due.iter().map(|job| job.id.bits()).collect::<Vec<_>>(), [10, 11]);
    assert_eq!(old.calls(vec![String::new()], 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn format_2_is_read_where_it_lies() {
    let folder = fixture("");
    let before = files(&folder);
    assert_eq!(ids(&read(&fixture("format-2.db"))).await.len(), 12);
    assert!(files(&folder) == before);
}
