//! Whatever is asked of the two stores, in whatever order, they answer alike.

use backlot_jobs::MemoryStore;
use proptest::prelude::*;

use super::*;

/// What is asked for, by small numbers, so that things meet.
#[derive(Clone, Debug)]
struct Step {
    what: u8,
    job: u128,
    run: u128,
    session: u8,
    number: u64,
    flag: bool,
}

fn step() -> impl Strategy<Value = Step> {
    (0..22_u8, 1..8_u128, 1..4_u128, 0..4_u8, 0..8_u64, any::<bool>()).prop_map(
        |(what, job, run, session, number, flag)| Step { what, job, run, session, number, flag },
    )
}

impl Step {
    /// A session of a person, or one of a job.
    fn session(&self) -> String {
        match self.session {
            number @ 0..2 => format!("chat/{number}"),
            number => JobId::from_bits(u128::from(number)).session().as_str().to_owned(),
        }
    }

    /// Returns the change. `turn` makes new ids new.
    fn change(&self, turn: usize) -> Change {
        let now_ms = NOW_MS + turn as u64 / 3;
        let limits = Limits {
            per_session: 3,
            per_family: 4,
            total: 5,
            depth: 2,
            queued: 4,
            queued_per_family: 3,
            ..Limits::NONE
        };
        let (run, next) = (RunId::from_bits(self.run), RunId::from_bits(self.run % 3 + 1));
        let text = self.flag.then(|| format!("text {}", self.number));
        let happen =
            |event| Change::Happen { job: JobId::from_bits(self.job), event, limits, now_ms };
        let report = |ending| Report {
            ending,
            result: text.clone(),
            detail: None,
            state: text.clone(),
            again_ms: (self.number > 5).then_some(now_ms + self.number),
            told: self.number == 0,
        };
        let new = |id| {
            let mut new = spawned(id, &self.session());
            new.run = run;
            new.queue = self.flag;
            new.limits = limits;
            new.now_ms = now_ms;
            new.spec.announced = self.number > 1;
            let url = format!("https://host{}/", self.session);
            new.spec.webhook = self.number.is_multiple_of(2).then_some(Webhook::Url(url));
            new.spec.entry = self.flag.then(|| "call".to_owned());
            new
        };
        let outcome = || "completed".to_owned();
        let delivery = || DeliveryId::new(JobId::from_bits(self.job), self.number as u32 % 2 + 1);
        match self.what {
            0 => opening(&format!("chat/{}", self.session % 2), self.number),
            1..4 => {
                let mut new = new(self.job);
                if self.what == 2 {
                    new.spec.key = Some(format!("key {}", self.number % 2));
                }
                if self.what == 3 {
                    new.due_ms = now_ms + self.number;
                    let is_cron = self.number > 3;
                    new.spec.schedule = is_cron.then(|| Schedule::Cron("* * * * *".into()));
                }
                Change::Spawn(Box::new(new))
            }
            4 => Change::TakeBack { job: JobId::from_bits(self.job), run },
            5 => happen(Event::Finished {
                run: self.flag.then_some(run),
                report: report(Ending::Completed),
            }),
            6 | 7 => {
                happen(Event::Finished { run: None, report: report(Ending::Failed(Failure::Work)) })
            }
            8 => {
                let step = NextStep { kind: None, input: "more".into(), state: text };
                happen(Event::Advanced { run, outcome: outcome(), next, step })
            }
            9 => {
                let question = Question { prompt: "which?".into(), schema: None };
                happen(Event::Asked { run, outcome: outcome(), question, state: text })
            }
            10 => happen(Event::Answered { asked: run, run: next, answer: "that".into() }),
            11 => happen(Event::Retried { run: next }),
            12 => {
                let stop =
                    StopRequest { by: "me".into(), why: text, at_ms: 0, after_step: self.flag };
                happen(Event::StopRequested { stop })
            }
            13 => happen(Event::Settled { delivery: delivery() }),
            14 => Change::StartNext { run, limits, after: Vec::new(), now_ms },
            15 => Change::Fire {
                job: JobId::from_bits(self.job),
                next_due_ms: now_ms + self.number,
                spawned: Box::new(new(100 + turn as u128)),
            },
            16 => {
                let (id, body) = (format!("entry {}", self.number), Body::Text("text".into()));
                let entry = Entry { id, target: None, body, at_ms: now_ms };
                Change::Append { session: self.session().as_str().into(), entry }
            }
            17 if self.flag => Change::Delete { session: self.session().as_str().into() },
            17 | 18 => Change::Remove { job: JobId::from_bits(self.job) },
            19 => happen(Event::Called { delivery: delivery() }),
            20 => happen(Event::CallFailed {
                delivery: delivery(),
                why: "refused".into(),
                due_ms: self.flag.then_some(now_ms + self.number),
            }),
            _ => Change::Prune {
                before_ms: now_ms.saturating_sub(self.number * 4),
                keep: self.number,
                limit: 1 + self.session as usize,
            },
        }
    }
}

/// Returns all that can be read.
async fn all_of(store: &dyn Store) -> impl PartialEq + std::fmt::Debug {
    let everything = Query { limit: 100, ..Query::default() };
    let jobs = store.list(everything.clone()).await.unwrap().jobs;
    let mut whole = Vec::new();
    for job in &jobs {
        whole.push((store.job(job.id).await.unwrap(), store.past_runs(job.id).await.unwrap()));
    }
    let mut sessions = Vec::new();
    for number in 0..4 {
        let step = Step { what: 0, job: 1, run: 1, session: number, number: 0, flag: false };
        let id = || backlot_registry::SessionId::from(step.session().as_str());
        let query = Query { session: Some(id()), ..everything.clone() };
        sessions.push((
            store.session(id()).await.unwrap(),
            store.list(query).await.unwrap().jobs,
            store.entries(id(), 0, 100).await.unwrap(),
            store.owed(Some(id()), None, 100).await.unwrap(),
        ));
    }
    let ended =
        Query { status: vec![Status::Failed, Status::Cancelled], limit: 100, ..Query::default() };
    let ended = store.list(ended).await.unwrap().jobs;
    let census = store.census().await.unwrap();
    let calls = store.calls(Vec::new(), 100).await.unwrap();
    let others = store.calls(vec!["host1".into(), "host2".into()], 2).await.unwrap();
    let owed = store.owed(None, None, 100).await.unwrap();
    (jobs, whole, sessions, ended, owed, calls, others, census)
}

/// A job that is there is not spawned again, for its id is random; everything else may
/// be.
async fn is_possible(store: &dyn Store, change: &Change) -> bool {
    match change {
        Change::Spawn(new) => store.job(new.id).await.unwrap().is_none(),
        _ => true,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn both_stores_answer_alike(steps in prop::collection::vec((step(), 0..40_u8), 1..120)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let folder = tempfile::tempdir().unwrap();
            let memory = MemoryStore::new();
            let mut sqlite = open(&at(&folder));
            for name in ["chat/0", "chat/1"] {
                for store in [&memory as &dyn Store, &sqlite] {
                    store.change(opening(name, 1)).await.unwrap();
                }
            }
            for (turn, (step, chance)) in steps.iter().enumerate() {
                let change = step.change(turn);
                if !is_possible(&memory, &change).await {
                    continue;
                }
                let answer = |result: Result<Changed, ChangeError>| {
                    result.map_err(|error| error.to_string())
                };
                let wanted = answer(memory.change(change.clone()).await);
                let found = answer(sqlite.change(change.clone()).await);
                assert_eq!(found, wanted, "{change:?}");
                if chance % 8 == 0 {
                    assert_eq!(all_of(&sqlite).await, all_of(&memory).await, "{change:?}");
                }
                if *chance == 1 {
                    drop(sqlite);
                    sqlite = open(&at(&folder));
                }
            }
            assert_eq!(all_of(&sqlite).await, all_of(&memory).await);
        });
    }
}
