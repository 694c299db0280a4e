//! What the facts mean: a pure function from what was seen to what is said.

use std::io;

use backlot_wasm::{Bound, Capacity, Limits, Profile};
use bytesize::ByteSize;
use rustix::process::Rlimit;

use super::facts::{Engine, Facts, Folder, Inotify, Memory, Toolchain};

/// Fewer live tasks than that are few for a machine's background work.
const LIVE_TASKS: u32 = 1_000;
/// What Linux has by default.
const MAPPINGS: u64 = 65_530;
/// What most systems let a process have once it says that it can use more, and
/// room for a thousand tasks that have folders, connections and spill files.
const OPEN_FILES: u64 = 4_096;
/// How much room spilled output should find, in bytes: what a few tasks that
/// write much come to.
const SPILL_FREE: u64 = 1 << 30;
/// How much room compiled code should find, in bytes: what an interpreter comes to.
const CACHE_FREE: u64 = 256 << 20;
/// How much room the data folder should find, in bytes: a thousand jobs, with some output
/// of each.
const DATA_FREE: u64 = 1 << 30;
/// The least that Linux has by default of each.
const WATCHES: u64 = 8_192;
const WATCHERS: u64 = 128;

/// What was found about one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) name: &'static str,
    pub(super) status: Status,
    pub(super) value: String,
    /// What to do about it.
    pub(super) fix: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Ok,
    /// Some will miss something.
    Warn,
    /// The host cannot do its work.
    Fail,
}

impl Status {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// Judges the facts, in the order in which they are shown.
pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    vec![
        live_tasks(facts),
        mappings(facts.mappings),
        open_files(facts.open_files),
        address_space(facts),
        memory(&facts.memory),
        spill(&facts.spill),
        cache(facts.cache.as_ref()),
        data(facts.data.as_ref()),
        plugins(&facts.plugins),
        inotify(facts.inotify.as_ref()),
        toolchain(&facts.toolchain),
        engine(&facts.small, &facts.large),
    ]
}

fn live_tasks(facts: &Facts) -> Finding {
    let finding = About("live tasks");
    let one = |name, of: &Capacity| format!("{} {name}, bounded by {}", of.tasks, of.bound);
    let value = format!("{}; {}", one("fast", &facts.fast), one("dense", &facts.dense));
    match chosen(facts) {
        few if few.tasks < LIVE_TASKS => finding.warn(value, few.raise()),
        _ => finding.ok(value),
    }
}

/// Returns the capacity with the profile that the host would have.
fn chosen(facts: &Facts) -> &Capacity {
    match facts.profile {
        Profile::Fast => &facts.fast,
        Profile::Dense => &facts.dense,
    }
}

fn mappings(mappings: Option<u64>) -> Finding {
    let finding = About("memory mappings");
    match mappings {
        None => finding.warn(
            "vm.max_map_count cannot be read, and is taken to be what Linux has by default"
                .to_owned(),
            "mount /proc, to have it told",
        ),
        Some(mappings) if mappings < MAPPINGS => finding.warn(
            mappings.to_string(),
            format!("`sysctl -w vm.max_map_count={MAPPINGS}`, or more"),
        ),
        Some(mappings) => finding.ok(mappings.to_string()),
    }
}

fn open_files(limit: Rlimit) -> Finding {
    let finding = About("open files");
    let value = limits(limit, |files| files.to_string());
    match limit.maximum {
        // A host raises its own limit as far as it may.
        Some(hard) if hard < OPEN_FILES => finding.warn(
            value,
            format!(
                "raise the hard limit to {OPEN_FILES} or more where it is set (`ulimit -Hn`, \
                 LimitNOFILE= of a unit, limits.conf)"
            ),
        ),
        _ => finding.ok(value),
    }
}

fn address_space(facts: &Facts) -> Finding {
    let finding = About("address space");
    let limit = facts.address_space;
    let value = limits(limit, size);
    let lift = match limit.maximum {
        None => "`ulimit -v unlimited`".to_owned(),
        Some(_) => "lift the hard limit where it is set (`ulimit -v`, LimitAS= of a unit, \
                    limits.conf), then `ulimit -v unlimited`"
            .to_owned(),
    };
    let fix = match facts.profile {
        Profile::Fast => format!("{lift}, or take the profile `dense`"),
        Profile::Dense => lift,
    };
    let small = facts.small.instances;
    let reserves = backlot_wasm::address_space(facts.profile, small);
    match (limit.current, chosen(facts)) {
        (Some(current), _) if current < reserves => finding
            .fail(format!("{value}; an engine for {small} tasks needs {}", size(reserves)), fix),
        (Some(_), capacity) if matches!(capacity.bound, Bound::AddressSpace(_)) => finding.warn(
            format!("{value}; the profile {} has room for {} tasks", facts.profile, capacity.tasks),
            fix,
        ),
        _ => finding.ok(value),
    }
}

fn memory(memory: &Memory) -> Finding {
    let finding = About("memory");
    let guests = size(memory.guests);
    let value = format!("{}, of which guests may take {guests}", size(memory.machine));
    match memory.group {
        Some(group) if group < memory.guests => finding.warn(
            format!("{value}, but this process's control group allows {}", size(group)),
            format!(
                "allow the group more than {guests} (MemoryMax= of a unit, or the container's)"
            ),
        ),
        _ if memory.guests < Limits::default().memory => finding.warn(
            value,
            format!(
                "a task may use {} by default: add memory, or run with less: --memory SIZE",
                size(Limits::default().memory)
            ),
        ),
        _ => finding.ok(value),
    }
}

fn spill(folder: &Folder<u64>) -> Finding {
    let finding = About("spill folder");
    let path = folder.path.display();
    match &folder.found {
        Ok(free) if *free < SPILL_FREE => finding.warn(
            format!("{path}, {} free", size(*free)),
            "make room there, or set TMPDIR to a folder that has more",
        ),
        Ok(free) => finding.ok(format!("{path}, {} free", size(*free))),
        Err(error) => finding.fail(
            format!("{path} cannot be written to: {}", plain(error)),
            "set TMPDIR to a folder that can",
        ),
    }
}

fn cache(folder: Option<&Folder<u64, String>>) -> Finding {
    let finding = About("compile cache");
    let elsewhere = "name another folder with --cache or BACKLOT_CACHE";
    match folder.map(|folder| (folder.path.display(), &folder.found)) {
        None => finding.warn(
            "there is no folder for it, so components are compiled each time".to_owned(),
            "set HOME, or name one with --cache or BACKLOT_CACHE",
        ),
        Some((path, Ok(free))) if *free < CACHE_FREE => finding.warn(
            format!("{path}, {} free", size(*free)),
            format!("make room there, or {elsewhere}"),
        ),
        Some((path, Ok(free))) => finding.ok(format!("{path}, {} free", size(*free))),
        Some((_, Err(why))) => finding.warn(
            format!("{why}; components are compiled each time"),
            format!("remove it, or {elsewhere}"),
        ),
    }
}

fn data(folder: Option<&Folder<u64, String>>) -> Finding {
    let finding = About("data folder");
    let elsewhere = "name another folder with --data or BACKLOT_DATA";
    match folder.map(|folder| (folder.path.display(), &folder.found)) {
        None => finding.fail(
            "there is no folder for it, so nothing runs but with --ephemeral".to_owned(),
            "set HOME, or name one with --data or BACKLOT_DATA",
        ),
        Some((path, Ok(free))) if *free < DATA_FREE => finding.warn(
            format!("{path}, {} free", size(*free)),
            format!("make room there, or {elsewhere}"),
        ),
        Some((path, Ok(free))) => finding.ok(format!("{path}, {} free", size(*free))),
        Some((_, Err(why))) => finding.fail(why.clone(), elsewhere),
    }
}

fn plugins(folder: &Folder<usize>) -> Finding {
    let finding = About("plugin folder");
    let path = folder.path.display();
    let fix = "build the kinds with `just plugins`, or name another folder with --plugins";
    match &folder.found {
        Ok(0) => finding.warn(format!("{path}, no kinds"), fix),
        Ok(1) => finding.ok(format!("{path}, 1 kind")),
        Ok(kinds) => finding.ok(format!("{path}, {kinds} kinds")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            finding.warn(format!("{path} is missing"), fix)
        }
        Err(error) => finding.fail(
            format!("{path} cannot be listed: {}", plain(error)),
            "name another folder with --plugins, or make this one readable",
        ),
    }
}

fn inotify(limits: Option<&Inotify>) -> Finding {
    let finding = About("inotify");
    let Some(Inotify { watches, instances }) = limits else {
        return finding.warn(
            "its limits cannot be read".to_owned(),
            "mount /proc, or use a kernel with inotify, where folders are to be watched",
        );
    };
    let value = format!("{watches} watches, {instances} instances");
    let few = [
        ("fs.inotify.max_user_watches", *watches, WATCHES),
        ("fs.inotify.max_user_instances", *instances, WATCHERS),
    ];
    let raise: Vec<String> = few
        .iter()
        .filter(|(_, has, wants)| has < wants)
        .map(|(name, _, wants)| format!("{name}={wants}"))
        .collect();
    match raise.is_empty() {
        true => finding.ok(value),
        false => finding.warn(value, format!("`sysctl -w {}`", raise.join(" "))),
    }
}

fn toolchain(toolchain: &Toolchain) -> Finding {
    let finding = About("toolchain");
    match toolchain {
        Toolchain::Ready { sysroot } => {
            finding.ok(format!("{} with wasm32-wasip2", sysroot.display()))
        }
        Toolchain::NoTarget { sysroot } => finding.warn(
            format!("{} without wasm32-wasip2", sysroot.display()),
            "to write plugins: `rustup target add wasm32-wasip2`",
        ),
        Toolchain::Silent => finding.warn(
            "rustc does not tell where it is".to_owned(),
            "to write plugins: see what `rustc --print sysroot` says",
        ),
        Toolchain::Missing => finding.warn(
            "there is no rustc on the path".to_owned(),
            "to write plugins: install Rust from https://rustup.rs, then \
             `rustup target add wasm32-wasip2`",
        ),
    }
}

fn engine(small: &Engine, large: &Engine) -> Finding {
    let finding = About("engine");
    match (&small.started, &large.started) {
        (Ok(()), Ok(())) => finding.ok(format!("starts, with room for {} tasks", large.instances)),
        (Ok(()), Err(why)) => finding.warn(
            format!("starts with room for {} tasks only: {why}", small.instances),
            "lift what is limited above, or start hosts with fewer `instances`",
        ),
        (Err(why), _) => finding.fail(why.clone(), "lift what is limited above"),
    }
}

/// What a finding is about.
struct About(&'static str);

impl About {
    fn ok(self, value: String) -> Finding {
        Finding { name: self.0, status: Status::Ok, value, fix: None }
    }

    fn warn(self, value: String, fix: impl Into<String>) -> Finding {
        Finding { name: self.0, status: Status::Warn, value, fix: Some(fix.into()) }
    }

    fn fail(self, value: String, fix: impl Into<String>) -> Finding {
        Finding { name: self.0, status: Status::Fail, value, fix: Some(fix.into()) }
    }
}

fn limits(limit: Rlimit, show: impl Fn(u64) -> String) -> String {
    let show = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), &show);
    match limit.current == limit.maximum {
        true => show(limit.current),
        false => format!("{}, at most {}", show(limit.current), show(limit.maximum)),
    }
}

fn size(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

/// Returns the error without its number, which people do not need.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use backlot_wasm::Machine;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn capacity(profile: Profile, change: impl FnOnce(&mut Machine)) -> Capacity {
        let mut machine = Machine {
            mappings: Some(65_530),
            installed: 16 * GIB,
            group: None,
            open_files: None,
            address_space: None,
        };
        change(&mut machine);
        Capacity::of(profile, &machine, machine.guest_memory())
    }

    fn limit(soft: impl Into<Option<u64>>, hard: impl Into<Option<u64>>) -> Rlimit {
        Rlimit { current: soft.into(), maximum: hard.into() }
    }

    fn good() -> Facts {
        Facts {
            profile: Profile::Fast,
            mappings: Some(65_530),
            fast: capacity(Profile::Fast, |_| {}),
            dense: capacity(Profile::Dense, |_| {}),
            open_files: limit(20_000, 20_000),
            address_space: limit(None, None),
            memory: Memory { machine: 16 * GIB, group: None, guests: 12 * GIB },
            spill: Folder { path: "/tmp".into(), found: Ok(60 * GIB) },
            cache: Some(Folder { path: "/cache".into(), found: Ok(60 * GIB) }),
            data: Some(Folder { path: "/data".into(), found: Ok(60 * GIB) }),
            plugins: Folder { path: "/plugins".into(), found: Ok(5) },
            inotify: Some(Inotify { watches: 16_384, instances: 128 }),
            toolchain: Toolchain::Ready { sysroot: "/rust".into() },
            small: Engine { instances: 16, started: Ok(()) },
            large: Engine { instances: 9_000, started: Ok(()) },
        }
    }

    /// Returns what is said about facts that are good but for one change, as
    /// `status name: value → fix` where it is not ok.
    fn said(change: impl FnOnce(&mut Facts)) -> String {
        let mut facts = good();
        change(&mut facts);
        let lines: Vec<String> = findings(&facts)
            .into_iter()
            .filter(|finding| finding.status != Status::Ok)
            .map(|Finding { name, status, value, fix }| {
                format!("{} {name}: {value} → {}", status.name(), fix.unwrap())
            })
            .collect();
        lines.join("\n")
    }

    #[test]
    fn a_good_machine_has_nothing_to_fix() {
        let findings = findings(&good());
        assert_eq!(findings.len(), 12);
        for finding in findings {
            assert_eq!((finding.status, &finding.fix), (Status::Ok, &None), "{finding:?}");
        }
    }

    #[test]
    fn few_live_tasks_are_told_with_what_bounds_them() {
        let fast = capacity(Profile::Fast, |machine| machine.mappings = Some(4_000));
        let said = said(|facts| facts.fast = fast);
        assert!(
            said.starts_with("warn live tasks: 285 fast, bounded by memory mappings"),
            "{said}"
        );
        assert!(said.contains("→ `sysctl -w vm.max_map_count=65530`, or the profile"), "{said}");
    }

    #[test]
    fn few_mappings_are_told() {
        assert_eq!(
            said(|facts| facts.mappings = Some(8_000)),
            "warn memory mappings: 8000 → `sysctl -w vm.max_map_count=65530`, or more"
        );
        assert!(said(|facts| facts.mappings = None).contains("mount /proc"));
    }

    #[test]
    fn open_files_are_judged_by_the_hard_limit_as_hosts_raise_their_own() {
        assert_eq!(said(|facts| facts.open_files = limit(64, 524_288)), "");
        assert_eq!(said(|facts| facts.open_files = limit(64, None)), "");
        assert_eq!(said(|facts| facts.open_files = limit(4_096, 4_096)), "");
        let hard = said(|facts| facts.open_files = limit(64, 64));
        assert!(hard.starts_with("warn open files: 64 → raise the hard limit to 4096"), "{hard}");
    }

    #[test]
    fn address_space_is_judged_by_what_an_engine_reserves() {
        assert_eq!(
            said(|facts| facts.address_space = limit(4_096_000_000, None)),
            "fail address space: 3.8 GiB, at most unlimited; an engine for 16 tasks needs 114.9 GiB \
             → `ulimit -v unlimited`, or take the profile `dense`"
        );
        let dense = said(|facts| {
            facts.address_space = limit(4_096_000_000, None);
            facts.profile = Profile::Dense;
        });
        assert_eq!(dense, "", "it needs no more");
        let hard = said(|facts| facts.address_space = limit(95 * GIB, 95 * GIB));
        assert!(hard.starts_with("fail address space: 95.0 GiB; "), "{hard}");
        assert!(
            hard.contains("hard limit")
                && hard.contains("`ulimit -v unlimited`, or take the profile `dense`"),
            "{hard}"
        );
        let some = said(|facts| {
            facts.address_space = limit(120 * GIB, 120 * GIB);
            facts.fast = capacity(Profile::Fast, |it| it.address_space = Some(120 * GIB));
        });
        assert!(some.contains("warn address space: 120.0 GiB; the profile fast has room for 17"));
        assert_eq!(said(|facts| facts.address_space = limit(40_000 * GIB, None)), "");
    }

    #[test]
    fn memory_that_a_group_takes_away_is_told() {
        assert_eq!(said(|facts| facts.memory.group = Some(14 * GIB)), "");
        let less = said(|facts| facts.memory.group = Some(2 * GIB));
        assert!(less.contains("guests may take 12.0 GiB, but this"), "{less}");
        assert!(less.contains("allows 2.0 GiB → allow the group more"), "{less}");
        let tiny = said(|facts| facts.memory.guests = GIB / 8);
        assert!(tiny.starts_with("warn memory: ") && tiny.contains("--memory"), "{tiny}");
    }

    #[test]
    fn folders_are_told_by_what_is_wrong_with_them() {
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        assert_eq!(
            said(|facts| facts.spill.found = Ok(GIB - 1)),
            "warn spill folder: /tmp, 1024.0 MiB free → make room there, or set TMPDIR to a folder \
             that has more"
        );
        let spill = said(|facts| facts.spill.found = Err(denied()));
        assert!(spill.starts_with("fail spill folder: /tmp cannot be written to: perm"), "{spill}");
        let plugins = said(|facts| facts.plugins.found = Err(missing()));
        assert!(plugins.starts_with("warn plugin folder: /plugins is missing → "), "{plugins}");
        let plugins = said(|facts| facts.plugins.found = Ok(0));
        assert!(plugins.starts_with("warn plugin folder: /plugins, no kinds → "), "{plugins}");
        let plugins = said(|facts| facts.plugins.found = Err(denied()));
        assert!(plugins.starts_with("fail plugin folder: /plugins cannot be listed"), "{plugins}");
    }

    #[test]
    fn a_cache_that_keeps_nothing_is_told_and_costs_time_only() {
        let told = |cache| said(|facts| facts.cache = cache);
        assert!(told(None).starts_with("warn compile cache: there is no folder for it"));
        let found = |found| Some(Folder { path: "/cache".into(), found });
        let full = told(found(Ok(1 << 20)));
        assert!(full.starts_with("warn compile cache: /cache, 1.0 MiB free → make room"), "{full}");
        let distrusted = told(found(Err("/cache is not trusted: others can write to it".into())));
        assert!(distrusted.contains("not trusted") && distrusted.contains("--cache"));
    }

    #[test]
    fn a_data_folder_that_cannot_be_used_fails() {
        let told = |data| said(|facts| facts.data = data);
        assert!(told(None).starts_with("fail data folder: there is no folder for it"));
        let found = |found| Some(Folder { path: "/data".into(), found });
        let full = told(found(Ok(1 << 20)));
        assert!(full.starts_with("warn data folder: /data, 1.0 MiB free → make room"), "{full}");
        let held = told(found(Err("others can write to it".into())));
        assert!(held.starts_with("fail data folder: others can") && held.contains("--data"));
    }

    #[test]
    fn inotify_limits_are_raised_one_by_one() {
        let inotify =
            |watches, instances| said(|facts| facts.inotify = Some(Inotify { watches, instances }));
        assert_eq!(
            inotify(100, 128),
            "warn inotify: 100 watches, 128 instances → `sysctl -w fs.inotify.max_user_watches=8192`"
        );
        assert!(inotify(100, 1).ends_with(
            "`sysctl -w fs.inotify.max_user_watches=8192 fs.inotify.max_user_instances=128`"
        ));
        assert!(said(|facts| facts.inotify = None).starts_with("warn inotify: "));
    }

    #[test]
    fn a_toolchain_is_missed_by_plugin_authors_only() {
        for toolchain in
            [Toolchain::Missing, Toolchain::Silent, Toolchain::NoTarget { sysroot: "/rust".into() }]
        {
            let said = said(|facts| facts.toolchain = toolchain);
            assert!(said.starts_with("warn toolchain: "), "{said}");
            assert!(said.contains("→ to write plugins: "), "{said}");
        }
    }

    #[test]
    fn an_engine_that_does_not_start_fails_and_a_smaller_one_warns() {
        let no = || Err("no room".to_owned());
        assert_eq!(
            said(|facts| (facts.small.started, facts.large.started) = (no(), no())),
            "fail engine: no room → lift what is limited above"
        );
        let large = said(|facts| facts.large.started = no());
        assert!(large.starts_with("warn engine: starts with room for 16 tasks only: "), "{large}");
    }
}
