//! How benchmarks report: the machine, then a line for each figure with its
//! target, whether that is met, and the change since the run before.
//!
//! A run is kept as `bench/<name>.json` in the target folder, and the one before
//! it as `bench/<name>.previous.json`. Nothing is asserted, because a loaded
//! machine proves nothing.

#![allow(dead_code, reason = "a benchmark uses what it has figures for")]

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::{Map, Value, json};

/// The figures of one benchmark, printed as they come and kept at the end.
pub(crate) struct Report {
    name: &'static str,
    folder: PathBuf,
    machine: Value,
    cpu_at_begin: Option<Cpu>,
    figures: Map<String, Value>,
    /// The figures of the run before; empty when there was none.
    before: Map<String, Value>,
}

/// What a figure is held against.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    /// It is shown for comparison.
    None,
    /// The less the better.
    AtMost(f64),
    /// The more the better.
    AtLeast(f64),
}

impl Report {
    /// Begins a report: prints what it is about and on which machine.
    ///
    /// # Errors
    ///
    /// When the program was not built into a target folder.
    pub(crate) fn begin(name: &'static str, about: &str) -> io::Result<Self> {
        let folder = folder()?;
        let machine = machine();
        let before = fs::read(folder.join(format!("{name}.json")))
            .ok()
            .and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok())
            .unwrap_or_default();
        println!("{name}: {about}");
        println!("  {}", described(&machine));
        if before["machine"].is_object() && !is_same(&before["machine"], &machine) {
            println!("  the run before was on another machine: {}", described(&before["machine"]));
        }
        let before = before["figures"].as_object().cloned().unwrap_or_default();
        let cpu_at_begin = Cpu::now();
        Ok(Self { name, folder, machine, cpu_at_begin, figures: Map::new(), before })
    }

    /// Prints and keeps a figure. The key is its name in the JSON, unit last.
    pub(crate) fn figure(
        &mut self,
        key: &str,
        label: &str,
        value: f64,
        unit: &str,
        target: Target,
    ) {
        let change = self.before.get(key).and_then(|figure| figure["value"].as_f64());
        let change = change.map_or_else(|| "new".to_owned(), |before| changed(before, value));
        let met = target.is_met_by(value);
        let verdict = match met {
            None => "",
            Some(true) => "met",
            Some(false) => "MISSED",
        };
        let shown = format!("{} {unit}", number(value));
        let target_shown = target.shown(unit);
        println!("  {label:<44} {shown:>14}   {target_shown:<20} {verdict:<7} {change:>7}");
        let (at_most, at_least) = match target {
            Target::None => (None, None),
            Target::AtMost(bound) => (Some(bound), None),
            Target::AtLeast(bound) => (None, Some(bound)),
        };
        let figure = json!({
            "value": value, "unit": unit, "at_most": at_most, "at_least": at_least, "met": met,
        });
        self.figures.insert(key.to_owned(), figure);
    }

    /// Prints what puts the figures above into their place.
    pub(crate) fn note(&self, text: &str) {
        println!("    {text}");
    }

    /// Says how much of the machine others had, and keeps the run beside the one
    /// before.
    ///
    /// # Errors
    ///
    /// When the target folder cannot be written.
    pub(crate) fn end(self) -> io::Result<()> {
        let others = self.cpu_at_begin.zip(Cpu::now()).map(|(begin, end)| begin.others(&end));
        if let Some(percent) = others {
            self.note(&format!("others used {percent:.0} % of the machine's CPU time meanwhile"));
        }
        let file = |kept: &str| self.folder.join(format!("{}{kept}.json", self.name));
        fs::create_dir_all(&self.folder)?;
        match fs::rename(file(""), file(".previous")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let run = json!({
            "name": self.name,
            "at_epoch_s": seconds,
            "machine": self.machine,
            "others_percent": others,
            "figures": self.figures,
        });
        fs::write(file(""), format!("{run:#}\n"))?;
        println!();
        Ok(())
    }
}

/// CPU time that was used since the machine and this program started, in ticks.
#[derive(Clone, Copy)]
struct Cpu {
    all: u64,
    idle: u64,
    own: u64,
}

impl Cpu {
    /// Returns what the system tells, if it does.
    fn now() -> Option<Self> {
        let sum = |fields: Option<&[&str]>| -> Option<u64> {
            fields?.iter().map(|field| field.parse::<u64>().ok()).sum()
        };
        let machine = fs::read_to_string("/proc/stat").ok()?;
        // cpu user nice system idle iowait irq softirq steal; guests are in user.
        let times: Vec<&str> = machine.lines().next()?.split_whitespace().collect();
        let own = fs::read_to_string("/proc/self/stat").ok()?;
        // The name before may hold anything, also a parenthesis.
        let own: Vec<&str> = own.rsplit_once(')')?.1.split_whitespace().collect();
        Some(Self {
            all: sum(times.get(1..9))?,
            idle: sum(times.get(4..6))?,
            // The program's own and the system's on its behalf, and the same of
            // its children.
            own: sum(own.get(11..15))?,
        })
    }

    /// Returns the share of others from here to `end`, in percent.
    fn others(&self, end: &Self) -> f64 {
        let all = end.all.saturating_sub(self.all);
        let known = end.idle.saturating_sub(self.idle) + end.own.saturating_sub(self.own);
        all.saturating_sub(known) as f64 / all.max(1) as f64 * 100.0
    }
}

impl Target {
    fn is_met_by(self, value: f64) -> Option<bool> {
        match self {
            Self::None => None,
            Self::AtMost(bound) => Some(value <= bound),
            Self::AtLeast(bound) => Some(value >= bound),
        }
    }

    fn shown(self, unit: &str) -> String {
        match self {
            Self::None => String::new(),
            Self::AtMost(bound) => format!("at most {} {unit}", number(bound)),
            Self::AtLeast(bound) => format!("at least {} {unit}", number(bound)),
        }
    }
}

/// Returns the value in the middle; not a number if there is none.
pub(crate) fn median(values: &[f64]) -> f64 {
    percentile(values, 50.0)
}

/// Returns the value that so many percent of the values do not exceed.
pub(crate) fn percentile(values: &[f64], percent: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    let rank = (sorted.len() as f64 * percent / 100.0).ceil() as usize;
    sorted.get(rank.saturating_sub(1).min(last)).copied().unwrap_or(f64::NAN)
}

pub(crate) fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

pub(crate) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Returns MiB a second.
pub(crate) fn mib_s(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / f64::from(1 << 20) / time.as_secs_f64()
}

/// Shows three digits or more, so that small figures are exact and large ones short.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 10_000.0 => {
            let whole = format!("{value:.0}");
            let digits = whole.trim_start_matches('-').len();
            let mut shown = String::new();
            for (at, digit) in whole.chars().rev().enumerate() {
                if at > 0 && at % 3 == 0 && at < digits {
                    shown.insert(0, ',');
                }
                shown.insert(0, digit);
            }
            shown
        }
        size if size >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn changed(before: f64, now: f64) -> String {
    match (now - before) / before * 100.0 {
        change if change.is_finite() => format!("{change:+.0} %"),
        _ if before == now => "+0 %".to_owned(),
        _ => format!("was {}", number(before)),
    }
}

/// Returns where runs are kept.
fn folder() -> io::Result<PathBuf> {
    // target/<profile>/deps/<this benchmark>
    let program = env::current_exe()?;
    let target = program.ancestors().nth(3).map(Path::to_owned);
    let target = target.ok_or_else(|| io::Error::other("benchmarks run from a target folder"))?;
    Ok(target.join("bench"))
}

/// Returns what of the machine can change a figure; what the system does not
/// tell is null.
fn machine() -> Value {
    let read = |path| fs::read_to_string(path).ok();
    let field = |path, name: &str| {
        let text = read(path)?;
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim_start_matches([' ', '\t', ':']).to_owned())
    };
    let first = |text: String| text.split_whitespace().next()?.parse::<u64>().ok();
    let line = |path| read(path).map(|text| text.trim().to_owned());
    json!({
        "cpu": field("/proc/cpuinfo", "model name"),
        "cores": thread::available_parallelism().ok().map(usize::from),
        "memory_mib": field("/proc/meminfo", "MemTotal").and_then(first).map(|kib| kib / 1024),
        "kernel": line("/proc/sys/kernel/osrelease"),
        "max_map_count": line("/proc/sys/vm/max_map_count").and_then(first),
        // A process without a limit has the word for it.
        "open_files": field("/proc/self/limits", "Max open files")
            .and_then(|limits| limits.split_whitespace().next().map(str::to_owned)),
        "load": line("/proc/loadavg")
            .map(|load| load.split(' ').take(3).collect::<Vec<_>>().join(" ")),
    })
}

/// Tells whether two machines are one; the load is its own business.
fn is_same(one: &Value, other: &Value) -> bool {
    ["cpu", "cores", "memory_mib", "kernel", "max_map_count", "open_files"]
        .iter()
        .all(|fact| one[fact] == other[fact])
}

fn described(machine: &Value) -> String {
    let shown = |fact: &str| match &machine[fact] {
        Value::Null => "?".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    format!(
        "{}, {} cores, {} MiB, Linux {}, vm.max_map_count {}, RLIMIT_NOFILE {}, load {}",
        shown("cpu"),
        shown("cores"),
        shown("memory_mib"),
        shown("kernel"),
        shown("max_map_count"),
        shown("open_files"),
        shown("load"),
    )
}
