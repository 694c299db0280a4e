//! Jobs as traces, told to a collector of OpenTelemetry by OTLP over HTTP.
//!
//! A job is a trace, or a part of its caller's, and its runs are spans. Both are made of
//! what is recorded, with the times that stand there, once they are over; nothing is kept
//! open meanwhile, so a host that is started anew goes on with the same trace. [`span`]
//! has the rule for how they belong together.
//!
//! What is to be told waits in a bounded queue, and what does not fit is lost: a collector
//! that is slow, or down, costs spans and never a job.

mod due;
mod export;
mod span;

use std::{
    env,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use backlot_jobs::{Gone, Job, JobId, Query, Status, Store, StoreError};
use opentelemetry_otlp::ExporterBuildError;
use reqwest::Url;
use tokio::{
    sync::{
        mpsc::{self, error::TrySendError},
        oneshot,
    },
    task::JoinHandle,
    time::{Instant, sleep_until, timeout},
};

use self::{due::Ledger, export::Collector, span::Moment};

/// How many changes of jobs wait to become spans: some seconds of a busy host.
const QUEUE: usize = 4_096;
/// How many spans are told at once, at most. It is what OpenTelemetry's own processors do.
const BATCH: usize = 512;
/// How long a span waits for others to be told with, at most.
const GATHER: Duration = Duration::from_secs(2);
/// How long a host that ends waits for what is left to be told.
const FAREWELL: Duration = Duration::from_secs(2);

/// The variables that say where traces go, by which name, and whether at all.
const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const SERVICE_NAME: &str = "OTEL_SERVICE_NAME";
const DISABLED: &str = "OTEL_SDK_DISABLED";

/// The name that a host goes by where nobody gives it one.
const NAME: &str = "backlot";
/// What stands behind the base address of a collector that takes traces.
const TRACES: &str = "v1/traces";

/// Where traces go. Headers are those of `OTEL_EXPORTER_OTLP_HEADERS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TelemetryOptions {
    /// The address that spans are posted to.
    pub otlp: Url,
    /// The name that the host goes by.
    pub service_name: String,
}

/// Why traces cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The address is none that is posted to.
    #[error("{address:?} is no address of a collector: {why}")]
    Address {
        /// The address, cut if it is long.
        address: String,
        /// What is wrong with it.
        why: String,
    },
    /// What connects to the collector could not be made.
    #[error("the connection to the collector cannot be made")]
    Client(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// What writes OTLP could not be made.
    #[error(transparent)]
    Exporter(#[from] ExporterBuildError),
}

impl TelemetryOptions {
    /// Returns those for a collector at a base address, such as `http://localhost:4318`.
    ///
    /// # Errors
    ///
    /// [`TelemetryError::Address`] unless it is one of `http` or `https`.
    pub fn new(base: &str) -> Result<Self, TelemetryError> {
        let mut otlp = address(base)?;
        if !otlp.path().ends_with(TRACES) {
            let path = format!("{}/{TRACES}", otlp.path().trim_end_matches('/'));
            otlp.set_path(&path);
        }
        Ok(Self { otlp, service_name: NAME.to_owned() })
    }

    /// Returns those that the environment names, by OpenTelemetry's own variables; `None`
    /// where it names no collector.
    ///
    /// # Errors
    ///
    /// [`TelemetryError::Address`] where what it names is none.
    pub fn from_env() -> Result<Option<Self>, TelemetryError> {
        Self::from_variables(|name| env::var(name).ok())
    }

    fn from_variables(
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, TelemetryError> {
        // Empty is as good as not there, as OpenTelemetry has it.
        let variable = |name| variable(name).filter(|value| !value.trim().is_empty());
        if variable(DISABLED).is_some_and(|value| value.trim().eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let options = match (variable(TRACES_ENDPOINT), variable(ENDPOINT)) {
            (Some(whole), _) => Self { otlp: address(&whole)?, service_name: NAME.to_owned() },
            (None, Some(base)) => Self::new(&base)?,
            (None, None) => return Ok(None),
        };
        let service_name = variable(SERVICE_NAME).unwrap_or(options.service_name);
        Ok(Some(Self { service_name, ..options }))
    }
}

fn address(text: &str) -> Result<Url, TelemetryError> {
    let refused =
        |why: String| TelemetryError::Address { address: text.chars().take(256).collect(), why };
    let address = Url::parse(text.trim()).map_err(|error| refused(error.to_string()))?;
    match address.scheme() {
        "http" | "https" => Ok(address),
        _ => Err(refused("it begins neither with http:// nor with https://".to_owned())),
    }
}

/// Tells a collector of the jobs of a host. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Traces(Arc<Inner>);

struct Inner {
    queue: mpsc::Sender<Told>,
    lost: AtomicU64,
    worker: Mutex<Option<JoinHandle<()>>>,
}

/// What the worker is told.
enum Told {
    Changed(Box<Moment>),
    Removed(Vec<JobId>),
    /// All that was told before is to be with the collector when it is answered.
    Flush(oneshot::Sender<()>),
}

impl Traces {
    /// Starts to tell, with the jobs that a host before this one has left at work: what
    /// becomes of them when they are recovered belongs to their traces. The store is asked
    /// for runs that others have followed.
    pub(crate) async fn start(
        options: &TelemetryOptions,
        store: &Arc<dyn Store>,
    ) -> Result<Self, StartError> {
        let collector = Collector::new(options)?;
        let (queue, told) = mpsc::channel(QUEUE);
        let mut ledger = Ledger::default();
        let status = vec![Status::Working];
        let mut query = Query { status, limit: PAGE, ..Query::default() };
        loop {
            let page = store.list(query.clone()).await?;
            for moment in page.jobs.iter().filter_map(Moment::of) {
                ledger.found(&moment);
            }
            match page.next {
                None => break,
                next => query.before = next,
            }
        }
        let worker = Worker { ledger, collector, store: Arc::downgrade(store), spans: Vec::new() };
        let worker = tokio::spawn(worker.work(told));
        let worker = Mutex::new(Some(worker));
        Ok(Self(Arc::new(Inner { queue, lost: AtomicU64::new(0), worker })))
    }

    /// Tells of a change of a job.
    pub(crate) fn changed(&self, job: &Job) {
        if let Some(moment) = Moment::of(job) {
            self.tell(Told::Changed(Box::new(moment)));
        }
    }

    /// Tells that jobs are gone.
    pub(crate) fn removed(&self, gone: &[Gone]) {
        self.tell(Told::Removed(gone.iter().map(|gone| gone.job).collect()));
    }

    fn tell(&self, told: Told) {
        // After its end nothing is told, and nothing is missing.
        let is_full = matches!(self.0.queue.try_send(told), Err(TrySendError::Full(_)));
        if is_full && self.0.lost.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!("the collector is too slow: changes of jobs are missing in traces");
        }
    }

    /// Tells what is left, as far as a collector takes it in time, and nothing after that.
    pub(crate) async fn end(&self) {
        let flushed = async {
            let (done, flushed) = oneshot::channel();
            if self.0.queue.send(Told::Flush(done)).await.is_ok() {
                let _ = flushed.await;
            }
        };
        if timeout(FAREWELL, flushed).await.is_err() {
            tracing::warn!("the collector did not take the last spans in time");
        }
        let worker = self.0.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(worker) = worker {
            worker.abort();
        }
        let lost = self.0.lost.load(Ordering::Relaxed);
        if lost > 0 {
            tracing::warn!(lost, "changes of jobs are missing in traces");
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let worker = self.worker.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(worker) = worker {
            worker.abort();
        }
    }
}

/// How many jobs are read at a time.
const PAGE: usize = 1_000;

/// Why it could not be begun to tell.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Makes spans of what it is told, and tells them.
struct Worker {
    ledger: Ledger,
    collector: Collector,
    // It must not keep the store open for a host that is gone.
    store: Weak<dyn Store>,
    spans: Vec<opentelemetry_sdk::trace::SpanData>,
}

impl Worker {
    async fn work(mut self, mut told: mpsc::Receiver<Told>) {
        let mut due = None;
        loop {
            let news = tokio::select! {
                news = told.recv() => news,
                () = until(due) => {
                    self.export().await;
                    due = None;
                    continue;
                }
            };
            match news {
                None => break,
                Some(Told::Changed(moment)) => self.take(&moment).await,
                Some(Told::Removed(jobs)) => self.ledger.forget(&jobs),
                Some(Told::Flush(done)) => {
                    self.export().await;
                    // Whoever waited for it may have gone.
                    let _ = done.send(());
                }
            }
            if self.spans.len() >= BATCH {
                self.export().await;
            }
            due = match self.spans.is_empty() {
                true => None,
                false => due.or_else(|| Some(Instant::now() + GATHER)),
            };
        }
        self.export().await;
    }

    /// Makes the spans of what has ended.
    async fn take(&mut self, moment: &Moment) {
        let due = self.ledger.note(moment);
        if let Some(first) = due.past_from {
            let store = self.store.upgrade();
            let past = match store {
                Some(store) => store.past_runs(moment.job).await,
                None => Ok(Vec::new()),
            };
            match past {
                Ok(past) => {
                    let past = past.iter().skip_while(|run| run.id != first);
                    let past = past.take_while(|run| !moment.is_on(run.id));
                    self.spans.extend(past.filter_map(|run| moment.run_span(run)));
                }
                Err(error) => {
                    tracing::debug!(job = %moment.job, "its runs are missing in its trace: {error}");
                }
            }
        }
        if due.last {
            self.spans.extend(moment.last_run_span());
        }
        if let Some(since_ms) = due.root_since_ms {
            self.spans.push(moment.root_span(since_ms));
        }
    }

    async fn export(&mut self) {
        if !self.spans.is_empty() {
            self.collector.export(std::mem::take(&mut self.spans)).await;
        }
    }
}

/// Waits for a moment, or for ever where there is none.
async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

impl From<rustls::Error> for TelemetryError {
    fn from(error: rustls::Error) -> Self {
        Self::Client(Box::new(error))
    }
}

impl From<reqwest::Error> for TelemetryError {
    fn from(error: reqwest::Error) -> Self {
        Self::Client(Box::new(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Option<(String, String)>, String> {
        let find = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let options = TelemetryOptions::from_variables(find).map_err(|error| error.to_string())?;
        Ok(options.map(|options| (options.otlp.to_string(), options.service_name)))
    }

    #[test]
    fn what_the_environment_says_is_heeded_as_opentelemetry_has_it() {
        let is = |address: &str, name: &str| Ok(Some((address.to_owned(), name.to_owned())));
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&[(SERVICE_NAME, "mine")]), Ok(None));
        assert_eq!(of(&[(ENDPOINT, " ")]), Ok(None));
        let base = (ENDPOINT, "http://localhost:4318");
        assert_eq!(of(&[base]), is("http://localhost:4318/v1/traces", "backlot"));
        let named = (SERVICE_NAME, "mine");
        assert_eq!(of(&[base, named]), is("http://localhost:4318/v1/traces", "mine"));
        let whole = (TRACES_ENDPOINT, "https://collector/else?key=1");
        assert_eq!(of(&[base, whole]), is("https://collector/else?key=1", "backlot"));
        assert_eq!(of(&[base, (DISABLED, "True")]), Ok(None));
        let below = (ENDPOINT, "https://collector/otlp/");
        assert_eq!(of(&[below]), is("https://collector/otlp/v1/traces", "backlot"));
        let done = (ENDPOINT, "http://collector/v1/traces");
        assert_eq!(of(&[done]), is("http://collector/v1/traces", "backlot"));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for bad in ["localhost:4318", "collector", "grpc://collector", "unix:/socket", "http://"] {
            let error = of(&[(ENDPOINT, bad)]).unwrap_err();
            assert!(error.contains("no address of a collector"), "{bad}: {error}");
        }
    }
}
