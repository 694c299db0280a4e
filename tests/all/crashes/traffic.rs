//! Clients that ask a host for whatever there is to ask, at random and all at once.

use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering},
};

use backlot::backlot_jobs::{Failure, JobId, Status};
use backlot_surface::{
    Client, ClientError,
    wire::{
        AnswerRequest, HandView, ListQuery, LookQuery, OutputQuery, PruneRequest, RetryView,
        SpawnRequest, StopHow, StopRequest,
    },
};
use serde_json::{Value, json};

use super::ledger::{Asked, Ledger};

/// The sessions that jobs work for and that endings are owed to.
pub(super) const SESSIONS: [&str; 3] = ["s0", "s1", "s2"];
/// The session whose jobs have keys. Nothing of it is ever settled or deleted.
const KEYED: &str = "keyed";
const KEYS: u64 = 12;

/// Numbers by chance, the same for the same seed.
#[derive(Clone)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number below the bound.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound
    }

    pub(super) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        let count = u64::try_from(from.len()).unwrap_or(u64::MAX);
        (count > 0).then(|| from[usize::try_from(self.below(count)).unwrap_or_default()].clone())
    }
}

/// The host was killed before it answered.
pub(super) struct Gone;

/// One of several that ask a host at once.
pub(super) struct Asker<'a> {
    pub(super) client: &'a Client,
    pub(super) ledger: &'a Mutex<Ledger>,
    /// Whether the host is being killed, and so may leave without an answer.
    pub(super) killed: &'a AtomicBool,
    pub(super) rng: Rng,
    /// Begins the labels of what it spawns, which nobody else's do.
    pub(super) name: String,
    pub(super) count: u64,
}

impl Asker<'_> {
    /// Asks until the host is gone.
    pub(super) async fn ask_on(&mut self) {
        while self.ask().await.is_ok() {}
    }

    async fn ask(&mut self) -> Result<(), Gone> {
        match self.rng.below(100) {
            0..40 => self.spawn().await,
            40..52 => self.stop().await,
            52..62 => self.retry().await,
            62..72 => self.answer().await,
            72..80 => self.look().await,
            80..86 => self.read().await,
            86..92 => self.settle().await,
            92..96 => self.remove().await,
            96..98 => self.prune().await,
            _ => self.list().await,
        }
    }

    async fn spawn(&mut self) -> Result<(), Gone> {
        let (request, asked) = match self.rng.one_in(6) {
            true => keyed(self.rng.below(KEYS)),
            false => self.unkeyed(),
        };
        let label = asked.label.clone();
        self.ledger().spawning(asked);
        match self.answered(self.client.spawn(&request).await)? {
            Some(view) => self.ledger().spawned(&label, &view),
            None => self.ledger().spawn_refused(&label),
        }
        Ok(())
    }

    fn unkeyed(&mut self) -> (SpawnRequest, Asked) {
        self.count += 1;
        let label = format!("{}-{}", self.name, self.count);
        let session = self.rng.pick(&SESSIONS).unwrap_or_default().to_owned();
        let announced = !self.rng.one_in(4);
        let attempts = self.rng.pick(&[None, Some(1), Some(2), Some(3)]).flatten();
        let (kind, input, lines) = self.work();
        let on = vec![Failure::Work, Failure::Launch, Failure::Interrupted];
        let retry = self.rng.one_in(4).then(|| RetryView {
            on,
            first_ms: self.rng.below(60),
            ..RetryView::default()
        });
        let request = SpawnRequest {
            kind: Some(kind.to_owned()),
            input: Some(input.to_string()),
            label: Some(label.clone()),
            session: Some(session.clone()),
            announce: Some(announced),
            attempts,
            retry,
            queue: self.rng.one_in(2),
            after_ms: self.rng.one_in(8).then(|| self.rng.below(100)),
            ..SpawnRequest::default()
        };
        let asked = Asked { label, session, announced, key: None, attempts, lines };
        (request, asked)
    }

    /// Returns a kind and an input, and how many lines come of them if lines do.
    fn work(&mut self) -> (&'static str, Value, Option<u64>) {
        let (count, every_ms) = (self.rng.below(12), self.rng.below(8));
        let ticker = json!({"count": count, "every_ms": every_ms});
        match self.rng.below(12) {
            0..3 => ("noop", json!({}), None),
            3..5 => ("ticker", ticker, Some(count)),
            5 => ("ticker", json!({"count": 1_000_000, "every_ms": 5}), Some(1_000_000)),
            6..8 => ("faulty", json!({"mode": "fail"}), None),
            8..11 => {
                let steps = 2 + self.rng.below(3);
                let steps: Vec<Value> = (0..steps).map(|_| self.step(&ticker)).collect();
                ("pipeline", json!({"steps": steps}), None)
            }
            _ => {
                let until = format!("line {}", 2 + self.rng.below(4));
                let input = json!({"count": "{{round}}", "every_ms": 1});
                let round = json!({"kind": "ticker", "input": input, "until": {"contains": until}});
                ("loop-until", round, None)
            }
        }
    }

    fn step(&mut self, ticker: &Value) -> Value {
        match self.rng.below(6) {
            0 => json!({"ask": "Go on?"}),
            1 => json!({"kind": "faulty", "input": {"mode": "fail"}}),
            2 => json!({"kind": "noop", "input": ""}),
            _ => json!({"kind": "ticker", "input": ticker}),
        }
    }

    async fn stop(&mut self) -> Result<(), Gone> {
        let Some(id) = self.job() else { return Ok(()) };
        let how = self.rng.pick(&[StopHow::Ask, StopHow::Force, StopHow::AfterStep]);
        let request = StopRequest { how: how.unwrap_or_default(), ..StopRequest::default() };
        self.ledger().stopping(id);
        if let Some(reply) = self.answered(self.client.stop(&id.to_string(), &request).await)? {
            self.ledger().stopped(&reply);
        }
        Ok(())
    }

    async fn retry(&mut self) -> Result<(), Gone> {
        let Some(id) = self.job() else { return Ok(()) };
        self.ledger().retrying(id);
        let retried = self.client.retry(&id.to_string(), HandView::Person).await;
        if let Some(view) = self.answered(retried)? {
            self.ledger().saw(&view);
        }
        Ok(())
    }

    async fn answer(&mut self) -> Result<(), Gone> {
        let query = ListQuery { status: vec![Status::InputRequired], ..ListQuery::default() };
        let asking = self.answered(self.client.jobs(&query).await)?.unwrap_or_default();
        let Some(job) = self.rng.pick(&asking.jobs) else { return Ok(()) };
        self.ledger().touch(job.id);
        let request = AnswerRequest { answer: "yes".to_owned() };
        let answered = self.client.answer(&job.id.to_string(), &request, HandView::Person).await;
        if let Some(view) = self.answered(answered)? {
            self.ledger().saw(&view);
        }
        Ok(())
    }

    async fn look(&mut self) -> Result<(), Gone> {
        let Some(id) = self.job() else { return Ok(()) };
        let is_told = self.rng.one_in(4);
        let hand = if is_told { HandView::Model } else { HandView::Person };
        let query = LookQuery { wait_ms: Some(self.rng.below(30)), hand: Some(hand) };
        if is_told {
            self.ledger().taking(id);
        }
        match self.answered(self.client.job(&id.to_string(), &query).await)? {
            Some(view) if is_told => self.ledger().taken(&view),
            Some(view) => self.ledger().saw(&view),
            None => {}
        }
        Ok(())
    }

    async fn read(&mut self) -> Result<(), Gone> {
        let Some(id) = self.job() else { return Ok(()) };
        let reply = self.client.output(&id.to_string(), &OutputQuery::default()).await;
        if let Some(reply) = self.answered(reply)? {
            let pieces = reply.pieces.iter();
            let output = pieces.flat_map(|piece| piece.content.bytes().to_vec()).collect();
            self.ledger().read(id, output);
        }
        Ok(())
    }

    /// Hears what is owed to a session, and settles some of it.
    async fn settle(&mut self) -> Result<(), Gone> {
        let session = self.rng.pick(&SESSIONS).unwrap_or_default();
        let Some(owed) = self.answered(self.client.owed(session).await)? else { return Ok(()) };
        let mut ids = Vec::new();
        for (id, view) in owed.ids.iter().zip(&owed.jobs) {
            assert_eq!(view.session, session, "told to somebody else: {view:?}");
            self.ledger().told(id, view);
            if self.rng.one_in(3) {
                self.ledger().settling(id);
                ids.push(id.clone());
            }
        }
        if self.answered(self.client.settle(session, ids.clone()).await)?.is_some() {
            ids.into_iter().for_each(|id| self.ledger().settled(id));
        }
        Ok(())
    }

    async fn remove(&mut self) -> Result<(), Gone> {
        let Some(id) = self.job() else { return Ok(()) };
        let query = LookQuery::default();
        let Some(view) = self.answered(self.client.job(&id.to_string(), &query).await)? else {
            return Ok(());
        };
        if view.session == KEYED {
            return Ok(());
        }
        self.ledger().removing(id);
        if self.answered(self.client.remove(&id.to_string()).await)?.is_some() {
            self.ledger().removed(id);
        }
        Ok(())
    }

    async fn prune(&mut self) -> Result<(), Gone> {
        let request = PruneRequest { keep: Some(10 + self.rng.below(40)), age_ms: None };
        self.ledger().pruning();
        self.answered(self.client.prune(&request).await)?;
        self.ledger().pruned();
        Ok(())
    }

    async fn list(&mut self) -> Result<(), Gone> {
        let query = ListQuery { limit: Some(200), ..ListQuery::default() };
        if let Some(page) = self.answered(self.client.jobs(&query).await)? {
            page.jobs.iter().for_each(|view| self.ledger().saw(view));
        }
        Ok(())
    }

    /// Returns a job that something was done with lately.
    fn job(&mut self) -> Option<JobId> {
        let recent = self.ledger().recent().to_vec();
        self.rng.pick(&recent)
    }

    /// Returns what was answered; nothing where that was a refusal.
    fn answered<T>(&self, answer: Result<T, ClientError>) -> Result<Option<T>, Gone> {
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(ClientError::Failure(reply)) => {
                let code = reply.code.as_str();
                let is_own = matches!(code, "internal" | "io" | "damaged" | "bad_request");
                assert!(!is_own, "the host fails: {reply:?}");
                Ok(None)
            }
            Err(error) => {
                let killed = self.killed.load(Ordering::Acquire);
                assert!(killed, "the host broke off before it was killed: {error:?}");
                Err(Gone)
            }
        }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap()
    }
}

/// Returns the spawn of a key, which is always the same.
fn keyed(number: u64) -> (SpawnRequest, Asked) {
    let key = format!("key {number}");
    let (kind, input) = match number % 3 {
        0 => ("noop", json!({})),
        1 => ("ticker", json!({"count": number, "every_ms": 2})),
        _ => ("faulty", json!({"mode": "fail"})),
    };
    let request = SpawnRequest {
        kind: Some(kind.to_owned()),
        input: Some(input.to_string()),
        label: Some(key.clone()),
        session: Some(KEYED.to_owned()),
        key: Some(key.clone()),
        ..SpawnRequest::default()
    };
    let asked = Asked {
        label: key.clone(),
        session: KEYED.to_owned(),
        announced: true,
        key: Some(key),
        attempts: None,
        lines: (kind == "ticker").then_some(number),
    };
    (request, asked)
}
