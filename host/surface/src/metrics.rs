//! What is counted and measured of a host, in the words of Prometheus.
//!
//! What happens is counted as it happens, by atomic additions that are found with one
//! lookup; what is, is measured when somebody asks. The kinds of work are labels, and
//! whoever may spawn could make up any number of them, so they are bounded.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use backlot_jobs::{Gone, Health, Job, JobId, Phase, Run, RunId, Status};
use backlot_registry::{
    Cause, Change, Changes, Health as RegistryHealth, Kind, KindState, KindView,
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, prometheus_text, text},
    metrics::{
        MetricType,
        counter::{ConstCounter, Counter},
        gauge::ConstGauge,
        histogram::Histogram,
    },
    registry::{Registry, Unit},
};

use crate::{api::HostGauges, http::addresses, process::Process};

/// How many kinds are told apart; more are counted together. Each has some twenty lines
/// in what is answered.
const KINDS: usize = 200;
/// What is counted together is called so; a kind of that name is counted with it.
const OTHER: &str = "other";
/// How many runs are known at a time: more than a host has live jobs.
const RUNS: usize = 16_384;
/// The bounds of what runs take, in seconds: from work that is hardly any to that of a
/// night.
const DURATIONS: [f64; 13] =
    [0.005, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0, 120.0, 600.0, 3_600.0, 14_400.0, 43_200.0];
/// How jobs end.
const ENDINGS: [Status; 3] = [Status::Completed, Status::Failed, Status::Cancelled];
/// The states that a kind can be in.
const STATES: [KindState; 5] = [
    KindState::Serving,
    KindState::Draining,
    KindState::Unloaded,
    KindState::Loading,
    KindState::Broken,
];
/// The first digits that statuses have.
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// What is counted of a host. Cheap to clone; all clones count together.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Arc<Counts>);

/// What has been counted.
#[derive(Default)]
struct Counts {
    kinds: RwLock<HashMap<Kind, Arc<OfKind>>>,
    others: Arc<OfKind>,
    runs: Mutex<HashMap<JobId, Going>>,
    recorded: Counter,
    reloads: Counter,
    refused: Counter,
    requests: Requests,
    streams: AtomicU64,
}

/// What has been counted of a kind.
struct OfKind {
    spawned: Counter,
    retries: Counter,
    endings: [Counter; ENDINGS.len()],
    durations: Histogram,
}

/// A run that goes on.
struct Going {
    run: RunId,
    started_ms: u64,
    kind: Arc<OfKind>,
}

impl Default for OfKind {
    fn default() -> Self {
        Self {
            spawned: Counter::default(),
            retries: Counter::default(),
            endings: Default::default(),
            durations: Histogram::new(DURATIONS),
        }
    }
}

impl fmt::Debug for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counts").finish_non_exhaustive()
    }
}

impl Metrics {
    /// Counts a job that was spawned.
    pub fn spawned(&self, job: &Job) {
        self.0.of_kind(&job.spec.kind).spawned.inc();
    }

    /// Counts what a change of a job comes to: a run that has begun or ended, an ending.
    pub fn changed(&self, job: &Job) {
        match &job.phase {
            Phase::Working { run } => self.0.begun(job.id, run, job.stop.is_some()),
            Phase::Queued { .. } | Phase::InputRequired { .. } | Phase::Ended { .. } => {
                self.0.rests(job.id, job.last_run());
            }
        }
        if let Some(place) = ENDINGS.iter().position(|status| *status == job.status()) {
            self.0.of_kind(&job.spec.kind).endings[place].inc();
        }
    }

    /// Forgets jobs that are gone.
    pub fn removed(&self, gone: &[Gone]) {
        let mut runs = self.0.runs.lock().unwrap_or_else(PoisonError::into_inner);
        for gone in gone {
            runs.remove(&gone.job);
        }
    }

    /// Counts output that is recorded, in bytes.
    pub fn recorded(&self, bytes: usize) {
        self.0.recorded.inc_by(bytes as u64);
    }

    /// Counts what becomes of kinds, for as long as there is a catalogue.
    pub async fn follow(self, mut changes: Changes) {
        while let Some(change) = changes.next().await {
            match change {
                Change::Swapped { .. } => _ = self.0.reloads.inc(),
                Change::Refused { .. } => _ = self.0.refused.inc(),
                // Thousands at once: which they were is not known any more.
                Change::Closed { .. } | Change::Freed { .. } | Change::Missed(_) => {}
            }
        }
    }

    /// Counts a request that was answered.
    pub(crate) fn answered(&self, route: Route, status: http::StatusCode) {
        let class = usize::from(status.as_u16() / 100).saturating_sub(1);
        self.0.requests.of(route)[class.min(CLASSES.len() - 1)].inc();
    }

    /// Counts a stream of events until what is returned is dropped.
    pub(crate) fn stream(&self) -> OpenStream {
        self.0.streams.fetch_add(1, Ordering::Relaxed);
        OpenStream(self.0.clone())
    }

    /// Returns how many streams of events are open.
    #[cfg(test)]
    pub(crate) fn streams(&self) -> u64 {
        self.0.streams.load(Ordering::Relaxed)
    }

    /// Returns all that is counted and measured.
    pub(crate) fn page(&self, measured: Measured, format: Format) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Page { counts: self.0.clone(), measured }));
        let mut page = String::new();
        match format {
            Format::OpenMetrics => text::encode(&mut page, &registry)?,
            Format::Prometheus => prometheus_text::encode(&mut page, &registry)?,
        }
        Ok(page)
    }
}

impl Counts {
    fn of_kind(&self, kind: &Kind) -> Arc<OfKind> {
        let known = self.kinds.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(kind) {
            return known.clone();
        }
        drop(known);
        let mut known = self.kinds.write().unwrap_or_else(PoisonError::into_inner);
        match known.len() < KINDS && kind.as_str() != OTHER {
            true => known.entry(kind.clone()).or_default().clone(),
            false => known.get(kind).unwrap_or(&self.others).clone(),
        }
    }

    /// Counts a run, unless it is known already.
    fn begun(&self, job: JobId, run: &Run, is_stopped: bool) {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let before = runs.get(&job);
        if before.is_some_and(|going| going.run == run.id) {
            return;
        }
        if let Some(going) = before {
            // The next one begins when one ends.
            going.ended(run.started_ms);
        } else if is_stopped {
            // No run begins so: that it is to stop was told after its end.
            return;
        } else if runs.len() >= RUNS {
            // Some ends were not told. What is forgotten is not measured.
            runs.clear();
        }
        let kind = self.of_kind(&run.kind);
        if run.cause == Cause::Retry {
            kind.retries.inc();
        }
        runs.insert(job, Going { run: run.id, started_ms: run.started_ms, kind });
    }

    /// Counts the end of the run that a job had.
    fn rests(&self, job: JobId, last: Option<&Run>) {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let going = runs.remove(&job);
        drop(runs);
        if let (Some(going), Some(last)) = (going, last)
            && let (true, Some(ended_ms)) = (going.run == last.id, last.ended_ms)
        {
            going.ended(ended_ms);
        }
    }
}

impl Going {
    fn ended(&self, at_ms: u64) {
        self.kind.durations.observe(seconds(at_ms.saturating_sub(self.started_ms)));
    }
}

fn seconds(ms: u64) -> f64 {
    // Exact as long as it is less than some hundred thousand years.
    ms as f64 / 1_000.0
}

/// What has been counted of requests, by where they went and how they ended.
struct Requests {
    /// Those of each address that there is.
    known: Vec<[Counter; CLASSES.len()]>,
    /// Those of all others.
    others: [Counter; CLASSES.len()],
}

impl Default for Requests {
    fn default() -> Self {
        Self {
            known: addresses().iter().map(|_| Default::default()).collect(),
            others: Default::default(),
        }
    }
}

impl Requests {
    fn of(&self, route: Route) -> &[Counter; CLASSES.len()] {
        route.0.and_then(|place| self.known.get(place)).unwrap_or(&self.others)
    }

    /// Returns what was counted of each address.
    fn by_address(&self) -> impl Iterator<Item = (&str, &[Counter; CLASSES.len()])> {
        let known = addresses().iter().map(String::as_str).zip(&self.known);
        known.chain([(OTHER, &self.others)])
    }
}

/// Where a request went: the place of its address among those that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route(Option<usize>);

impl Route {
    /// Returns that of a path.
    pub(crate) fn of(path: &str) -> Self {
        Self(addresses().iter().position(|address| is_of(path, address)))
    }
}

/// Tells whether a path is one of a route's.
fn is_of(path: &str, route: &str) -> bool {
    let mut parts = path.split('/');
    for expected in route.split('/') {
        let Some(part) = parts.next() else { return false };
        if expected.starts_with("{*") {
            return true;
        }
        let is_any = expected.starts_with('{') && !part.is_empty();
        if !is_any && part != expected {
            return false;
        }
    }
    parts.next().is_none()
}

/// A stream of events that somebody reads.
#[derive(Debug)]
pub(crate) struct OpenStream(Arc<Counts>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The forms in which it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Version 1.0.0 of OpenMetrics.
    OpenMetrics,
    /// Version 0.0.4 of Prometheus' own text.
    Prometheus,
}

impl Format {
    /// Returns the one for whoever accepts that; what everybody reads where it is not said.
    pub(crate) fn of_accepted(accept: &str) -> Self {
        match accept.contains("application/openmetrics-text") {
            true => Self::OpenMetrics,
            false => Self::Prometheus,
        }
    }

    /// Returns its name.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => prometheus_text::CONTENT_TYPE,
        }
    }
}

/// What was measured when somebody asked.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// The jobs.
    pub(crate) jobs: Health,
    /// What the host alone knows.
    pub(crate) host: HostGauges,
    /// The tasks and their output.
    pub(crate) tasks: Option<RegistryHealth>,
    /// The kinds.
    pub(crate) kinds: Vec<KindView>,
    /// The process.
    pub(crate) process: Process,
}

#[derive(Debug)]
struct Page {
    counts: Arc<Counts>,
    measured: Measured,
}

impl Collector for Page {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut writer = Writer(encoder);
        self.jobs(&mut writer)?;
        self.counted(&mut writer)?;
        self.tasks(&mut writer)?;
        self.kinds(&mut writer)?;
        self.requests(&mut writer)?;
        self.process(&mut writer)
    }
}

impl Page {
    fn jobs(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let Health { census, unwritten, report_panics, .. } = &self.measured.jobs;
        let mut jobs = writer.family(
            "backlot_jobs",
            "Jobs by where they stand; queued ones wait for a place or their time",
            MetricType::Gauge,
        )?;
        for (status, count) in [
            ("queued", census.queued),
            ("working", census.working),
            ("input_required", census.input_required),
            ("ended", census.ended),
        ] {
            ConstGauge::new(count).encode(jobs.encode_family(&[("status", status)])?)?;
        }
        writer.gauge(
            "backlot_jobs_owed",
            "Jobs whose ending is owed to somebody",
            None,
            census.owed,
        )?;
        writer.gauge(
            "backlot_changes_unwritten",
            "Changes of jobs that could not be written yet and are tried again",
            None,
            *unwritten as u64,
        )?;
        writer.counter(
            "backlot_report_panics",
            "Reports of changes that panicked",
            None,
            *report_panics,
        )
    }

    fn counted(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let known = self.counts.kinds.read().unwrap_or_else(PoisonError::into_inner);
        let mut kinds: Vec<(&str, &OfKind)> =
            known.iter().map(|(kind, counts)| (kind.as_str(), &**counts)).collect();
        kinds.sort_unstable_by_key(|(kind, _)| *kind);
        kinds.push((OTHER, &self.counts.others));
        let mut spawned = writer.family(
            "backlot_job_spawns",
            "Jobs that were spawned, also those whose first run could not be launched",
            MetricType::Counter,
        )?;
        for (kind, counts) in &kinds {
            counts.spawned.encode(spawned.encode_family(&[("kind", *kind)])?)?;
        }
        let mut endings = writer.family(
            "backlot_job_endings",
            "Endings of jobs; one that is tried again ends again",
            MetricType::Counter,
        )?;
        for (kind, counts) in &kinds {
            for (status, count) in ENDINGS.iter().zip(&counts.endings) {
                let labels = [("kind", *kind), ("status", status.as_str())];
                count.encode(endings.encode_family(&labels)?)?;
            }
        }
        let mut retries = writer.family(
            "backlot_job_retries",
            "Attempts after the first, by the kind of their first run",
            MetricType::Counter,
        )?;
        for (kind, counts) in &kinds {
            counts.retries.encode(retries.encode_family(&[("kind", *kind)])?)?;
        }
        let mut durations = writer.0.encode_descriptor(
            "backlot_run_duration",
            "How long runs took, from when they were claimed to their end",
            Some(&Unit::Seconds),
            MetricType::Histogram,
        )?;
        for (kind, counts) in &kinds {
            counts.durations.encode(durations.encode_family(&[("kind", *kind)])?)?;
        }
        let recorded = &self.counts.recorded;
        let help = "Output of runs that was taken to be recorded";
        writer.counter("backlot_output_recorded", help, Some(&Unit::Bytes), recorded.get())
    }

    fn tasks(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let HostGauges { task_capacity, tasks, guest_memory } = &self.measured.host;
        writer.gauge(
            "backlot_task_capacity",
            "Tasks of components that can live at a time",
            None,
            *task_capacity,
        )?;
        writer.gauge("backlot_tasks_live", "Tasks of components that live", None, *tasks)?;
        writer.gauge(
            "backlot_guest_memory",
            "Linear memory that guests have; what they never touched takes no room",
            Some(&Unit::Bytes),
            *guest_memory,
        )?;
        let Some(tasks) = &self.measured.tasks else { return Ok(()) };
        let bytes = Some(&Unit::Bytes);
        writer.gauge(
            "backlot_output_memory",
            "Output of tasks that is held in memory",
            bytes,
            tasks.output_memory,
        )?;
        writer.gauge(
            "backlot_output_spilled",
            "Output of tasks that is held in files",
            bytes,
            tasks.output_disk,
        )
    }

    fn kinds(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let kinds = &self.measured.kinds;
        let mut states = writer.family(
            "backlot_kinds",
            "Kinds of work by whether tasks of them can be started",
            MetricType::Gauge,
        )?;
        for state in STATES {
            let count = kinds.iter().filter(|view| view.state == state).count();
            let labels = [("state", state.to_string())];
            ConstGauge::new(count as u64).encode(states.encode_family(&labels)?)?;
        }
        let mut tasks =
            writer.family("backlot_tasks", "Tasks that live, by kind", MetricType::Gauge)?;
        let shown = kinds.len().min(KINDS);
        for view in &kinds[..shown] {
            let labels = [("kind", view.kind.as_str())];
            ConstGauge::new(view.tasks() as u64).encode(tasks.encode_family(&labels)?)?;
        }
        if shown < kinds.len() {
            let rest: usize = kinds[shown..].iter().map(KindView::tasks).sum();
            let labels = [("kind", OTHER)];
            ConstGauge::new(rest as u64).encode(tasks.encode_family(&labels)?)?;
        }
        writer.counter(
            "backlot_kind_reloads",
            "Versions of kinds that became current",
            None,
            self.counts.reloads.get(),
        )?;
        writer.counter(
            "backlot_kind_reloads_refused",
            "Versions of kinds that were offered and not taken",
            None,
            self.counts.refused.get(),
        )
    }

    fn requests(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let mut requests = writer.family(
            "backlot_http_requests",
            "Requests that were answered, by address and status",
            MetricType::Counter,
        )?;
        for (route, counts) in self.counts.requests.by_address() {
            let counted = CLASSES.iter().zip(counts).filter(|(_, count)| count.get() > 0);
            for (class, count) in counted {
                let labels = [("route", route), ("status", *class)];
                count.encode(requests.encode_family(&labels)?)?;
            }
        }
        let streams = self.counts.streams.load(Ordering::Relaxed);
        writer.gauge("backlot_http_streams", "Streams of events that are open", None, streams)
    }

    fn process(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let Process { started_s, resident_bytes, open_files } = &self.measured.process;
        if let Some(started) = started_s {
            let help = "When the process was started, since the Unix epoch";
            writer.gauge("process_start_time", help, Some(&Unit::Seconds), *started)?;
        }
        if let Some(bytes) = resident_bytes {
            let help = "Memory of the process that is resident";
            writer.gauge("process_resident_memory", help, Some(&Unit::Bytes), *bytes)?;
        }
        if let Some(open) = open_files {
            writer.gauge("process_open_fds", "File descriptors that are open", None, *open)?;
        }
        Ok(())
    }
}

/// Writes one after the other.
struct Writer<'a>(DescriptorEncoder<'a>);

impl Writer<'_> {
    fn family<'s>(
        &'s mut self,
        name: &'s str,
        help: &str,
        metric_type: MetricType,
    ) -> Result<MetricEncoder<'s>, fmt::Error> {
        self.0.encode_descriptor(name, help, None, metric_type)
    }

    fn gauge(&mut self, name: &str, help: &str, unit: Option<&Unit>, value: u64) -> fmt::Result {
        let encoder = self.0.encode_descriptor(name, help, unit, MetricType::Gauge)?;
        ConstGauge::new(value).encode(encoder)
    }

    fn counter(&mut self, name: &str, help: &str, unit: Option<&Unit>, value: u64) -> fmt::Result {
        let encoder = self.0.encode_descriptor(name, help, unit, MetricType::Counter)?;
        ConstCounter::new(value).encode(encoder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_route() {
        let route = |path| Route::of(path).0.map_or(OTHER, |place| &addresses()[place]);
        assert_eq!(route("/v1/jobs"), "/v1/jobs");
        assert_eq!(route("/v1/jobs/ab"), "/v1/jobs/{id}");
        assert_eq!(route("/v1/jobs/ab/stop"), "/v1/jobs/{id}/stop");
        assert_eq!(route("/v1/jobs/ab/files/"), "/v1/jobs/{id}/files/{*path}");
        assert_eq!(route("/v1/jobs/ab/files/a/b/../c"), "/v1/jobs/{id}/files/{*path}");
        assert_eq!(route("/v1/sessions/a%2fb/owed"), "/v1/sessions/{id}/owed");
        for none in
            ["", "/", "other", "/v1", "/v1/jobs/", "/v1/jobs/a/b/c", "/v2/jobs", "//v1/jobs"]
        {
            assert_eq!(route(none), OTHER, "{none}");
        }
    }

    #[test]
    fn no_more_kinds_are_told_apart_than_that() {
        let counts = Counts::default();
        let of = |number: usize| counts.of_kind(&Kind::new(&format!("k{number}")).unwrap());
        let first = of(0);
        for number in 1..KINDS + 50 {
            of(number);
        }
        assert_eq!(counts.kinds.read().unwrap().len(), KINDS);
        assert!(Arc::ptr_eq(&of(0), &first));
        assert!(Arc::ptr_eq(&of(KINDS), &counts.others));
        assert!(Arc::ptr_eq(&counts.of_kind(&Kind::new(OTHER).unwrap()), &counts.others));
    }
}
