//! How many live tasks a machine can hold.
//!
//! What fills a host first is memory mappings, then memory, descriptors or
//! address space. [`Machine::look`] reads what there is, [`Capacity::of`] is
//! arithmetic, and what a task takes is a constant here with its reason.

use std::{fmt, fs, path::Path};

use rustix::process::{Resource, getrlimit};

use crate::{
    descriptors::RESERVED,
    profile::{ASIDES, MEMORIES, Profile},
};

/// Linux's own default of `vm.max_map_count`, where it cannot be read.
const MAPPINGS: u64 = 65_530;
/// Mappings that are left to the program itself: four for each thread, of which the
/// pools for blocking calls of two runtimes have 1,024, and its code and heap. Of few
/// it is half.
const MAPPINGS_LEFT: u64 = 4_500;
/// What one live task takes of memory when it does nothing, in bytes: its pages
/// that were touched, its stack and what the host keeps about it. Measured: 67 KiB.
const TASK_MEMORY: u64 = 68 << 10;
/// A task has a descriptor only while it has a file or a connection open, or much
/// output; and what finds none is told so. So this many share one.
const TASKS_FOR_A_FILE: u64 = 16;
/// The address space that a slot of the pool takes: what 32 bits can address,
/// and a guard.
const SLOT: u64 = (4 << 30) + (32 << 20);
/// The address space that a task outside of the pool takes: a memory of the usual
/// size with room to grow, and a stack.
const DENSE_SPACE: u64 = 32 << 20;
/// Address space for everything else.
const SPACE_LEFT: u64 = 2 << 30;
/// What a process can address, as most processors have it: 47 bits, of which
/// half is left to others.
const SPACE: u64 = 1 << 46;

/// What a machine gives to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The kernel's limit on memory mappings of a process; `None` where it
    /// cannot be read.
    pub mappings: Option<u64>,
    /// The machine's memory, in bytes.
    pub installed: u64,
    /// What this process may use of it by its control group, in bytes.
    pub group: Option<u64>,
    /// Descriptors that this process may have; `None` when it is not limited.
    pub open_files: Option<u64>,
    /// Address space that this process may have, in bytes; `None` when it is not
    /// limited.
    pub address_space: Option<u64>,
}

/// How many live tasks an engine holds, and why not more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Live tasks of the usual shape, which has one memory.
    pub tasks: u32,
    /// What is used up first.
    pub bound: Bound,
    /// Mappings that guests may take together.
    pub(crate) mappings: u64,
    /// Memory that guests may take together, in bytes.
    pub(crate) guest_memory: u64,
    profile: Profile,
}

/// What bounds the number of live tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// `vm.max_map_count`, at this value.
    Mappings(u64),
    /// The memory for guests, in bytes.
    Memory(u64),
    /// The limit on open files, at this value.
    OpenFiles(u64),
    /// Address space, in bytes.
    AddressSpace(u64),
    /// The configuration.
    Instances,
}

impl Machine {
    /// Looks at this machine, as this process finds it.
    pub fn look() -> Self {
        Self {
            mappings: number("/proc/sys/vm/max_map_count"),
            installed: machine_memory(),
            group: group_memory(),
            open_files: getrlimit(Resource::Nofile).current,
            address_space: getrlimit(Resource::As).current,
        }
    }

    /// Returns what this process may use of the memory, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        self.group.unwrap_or(u64::MAX).min(self.installed)
    }

    /// Returns what guests may take of the memory by default, in bytes: three
    /// quarters, as the host and others on the machine need some as well.
    pub fn guest_memory(&self) -> u64 {
        self.memory() / 4 * 3
    }
}

impl Capacity {
    /// Returns how many live tasks fit, where guests may take that much memory.
    pub fn of(profile: Profile, machine: &Machine, guest_memory: u64) -> Self {
        let limit = machine.mappings.unwrap_or(MAPPINGS);
        let mappings = limit - MAPPINGS_LEFT.min(limit / 2);
        let space = machine.address_space.map_or(SPACE, |limit| limit.min(SPACE));
        let in_files = |files: u64| files.saturating_sub(RESERVED).saturating_mul(TASKS_FOR_A_FILE);
        let files = machine.open_files.unwrap_or(u64::MAX);
        let in_space = space.saturating_sub(address_space(profile, 0)) / space_of(profile);
        let mut bounds = [
            (mappings / mappings_of(profile, 1), Bound::Mappings(limit)),
            (guest_memory / TASK_MEMORY, Bound::Memory(guest_memory)),
            (in_files(files), Bound::OpenFiles(files)),
            (in_space, Bound::AddressSpace(space)),
        ];
        bounds.sort_by_key(|(tasks, _)| *tasks);
        let (tasks, bound) = bounds[0];
        Self {
            tasks: u32::try_from(tasks.max(1)).unwrap_or(u32::MAX),
            bound,
            mappings,
            guest_memory,
            profile,
        }
    }

    /// Returns the capacity for one task, on whatever machine.
    pub(crate) fn of_one() -> Self {
        Self {
            tasks: 1,
            bound: Bound::Instances,
            mappings: mappings_of(Profile::Fast, MEMORIES),
            guest_memory: 1 << 30,
            profile: Profile::Fast,
        }
    }

    /// Returns the capacity, lowered to what a configuration asks for.
    pub(crate) fn at_most(self, instances: u32) -> Self {
        let instances = instances.max(1);
        match instances < self.tasks {
            true => Self { tasks: instances, bound: Bound::Instances, ..self },
            false => self,
        }
    }

    /// Says what would raise the number.
    pub fn raise(&self) -> String {
        let denser = match self.profile {
            Profile::Fast => ", or the profile `dense`, which takes fewer",
            Profile::Dense => "",
        };
        match self.bound {
            Bound::Mappings(limit) => {
                format!("`sysctl -w vm.max_map_count={}`{denser}", (limit * 4).max(MAPPINGS))
            }
            Bound::Memory(_) => "more memory for guests (`guest_memory`)".to_owned(),
            Bound::OpenFiles(limit) => format!("`ulimit -n {}`", limit.saturating_mul(4)),
            Bound::AddressSpace(_) => match self.profile {
                Profile::Fast => "`ulimit -v unlimited`, or the profile `dense`".to_owned(),
                Profile::Dense => "`ulimit -v unlimited`".to_owned(),
            },
            Bound::Instances => "a higher number of `instances`".to_owned(),
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use crate::limits::Bytes;
        match self {
            Self::Mappings(limit) => write!(f, "memory mappings (vm.max_map_count={limit})"),
            Self::Memory(bytes) => write!(f, "memory ({} for guests)", Bytes(*bytes)),
            Self::OpenFiles(limit) => write!(f, "open files (ulimit -n {limit})"),
            Self::AddressSpace(bytes) => write!(f, "address space ({})", Bytes(*bytes)),
            Self::Instances => write!(f, "`instances` in the configuration"),
        }
    }
}

/// Returns the address space that a host with room for that many tasks takes, in
/// bytes.
pub fn address_space(profile: Profile, tasks: u32) -> u64 {
    // The pool has some more slots, for components with several memories and for
    // those that describe themselves.
    let aside = match profile {
        Profile::Fast => MEMORIES + ASIDES,
        Profile::Dense => ASIDES,
    };
    (u64::from(tasks) + u64::from(aside))
        .saturating_mul(space_of(profile))
        .saturating_add(SPACE_LEFT)
}

fn space_of(profile: Profile) -> u64 {
    match profile {
        Profile::Fast => SLOT,
        Profile::Dense => DENSE_SPACE,
    }
}

/// Returns what a task takes of the machine's mappings whose component has that
/// many memories. Tables are parts of other mappings.
///
/// Counted in the process: with the pool, 2.25 for the stacks that are there from
/// the start, 3 for each memory and 1 for what is between; without it, a stack, its
/// guard and a memory each.
pub(crate) fn mappings_of(profile: Profile, memories: u32) -> u64 {
    match profile {
        Profile::Fast => 4 + 3 * u64::from(memories),
        Profile::Dense => 2 + u64::from(memories),
    }
}

fn number(path: impl AsRef<Path>) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Returns the machine's memory in bytes, or 4 GiB where it cannot be told.
fn machine_memory() -> u64 {
    let info = rustix::system::sysinfo();
    match info.totalram.saturating_mul(u64::from(info.mem_unit.max(1))) {
        0 => 4 << 30,
        bytes => bytes,
    }
}

/// Returns the least that a control group on the way to this process allows.
fn group_memory() -> Option<u64> {
    fs::read_to_string("/proc/self/cgroup")
        .ok()?
        .lines()
        .flat_map(|line| {
            // `0::/path` in version 2, `4:memory:/path` in version 1.
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next().unwrap_or_default(), parts.next());
            let (root, file) = match controllers {
                "" => ("/sys/fs/cgroup", "memory.max"),
                _ => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            };
            let holds = controllers.is_empty() || controllers.split(',').any(|it| it == "memory");
            let path = path.filter(|_| holds).unwrap_or_default();
            Path::new(path)
                .ancestors()
                .filter_map(|group| {
                    number(Path::new(root).join(group.strip_prefix("/").ok()?).join(file))
                })
                .collect::<Vec<u64>>()
        })
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn machine() -> Machine {
        Machine {
            mappings: Some(65_530),
            installed: 24 * GIB,
            group: None,
            open_files: Some(524_288),
            address_space: None,
        }
    }

    fn capacity(profile: Profile, change: impl FnOnce(&mut Machine)) -> Capacity {
        let mut machine = machine();
        change(&mut machine);
        Capacity::of(profile, &machine, machine.guest_memory())
    }

    #[test]
    fn mappings_bound_a_usual_machine_and_the_dense_profile_takes_fewer() {
        let fast = capacity(Profile::Fast, |_| {});
        assert_eq!((fast.tasks, fast.bound), (8_718, Bound::Mappings(65_530)));
        let dense = capacity(Profile::Dense, |_| {});
        assert_eq!((dense.tasks, dense.bound), (20_343, Bound::Mappings(65_530)));
        assert!(fast.raise().contains("vm.max_map_count=262120") && fast.raise().contains("dense"));
        assert!(!dense.raise().contains("dense"), "{}", dense.raise());
    }

    #[test]
    fn with_more_mappings_other_things_are_used_up_first() {
        let many = |machine: &mut Machine| machine.mappings = Some(16 << 20);
        let fast = capacity(Profile::Fast, many);
        assert_eq!((fast.tasks, fast.bound), (16_244, Bound::AddressSpace(SPACE)));
        let dense = capacity(Profile::Dense, many);
        assert_eq!((dense.tasks, dense.bound), (277_564, Bound::Memory(18 * GIB)));
    }

    #[test]
    fn what_was_lowered_on_purpose_is_the_bound() {
        let files = capacity(Profile::Fast, |machine| machine.open_files = Some(256));
        assert_eq!((files.tasks, files.bound), (2_048, Bound::OpenFiles(256)));
        let space = capacity(Profile::Fast, |machine| machine.address_space = Some(100 * GIB));
        assert_eq!((space.tasks, space.bound), (12, Bound::AddressSpace(100 * GIB)));
        let group = capacity(Profile::Dense, |machine| machine.group = Some(GIB));
        assert_eq!((group.tasks, group.bound), (11_565, Bound::Memory(GIB / 4 * 3)));
        let mappings = capacity(Profile::Fast, |machine| machine.mappings = Some(8_000));
        assert_eq!(mappings.tasks, 571);
    }

    #[test]
    fn one_task_is_the_least_and_what_a_machine_does_not_tell_is_assumed() {
        let tiny = capacity(Profile::Fast, |machine| {
            (machine.mappings, machine.open_files) = (Some(10), Some(3));
        });
        assert_eq!(tiny.tasks, 1);
        let silent = capacity(Profile::Fast, |machine| machine.mappings = None);
        assert_eq!(silent.tasks, 8_718);
    }

    #[test]
    fn a_configuration_lowers_the_number_and_does_not_raise_it() {
        let held = capacity(Profile::Fast, |_| {});
        let lowered = held.at_most(100);
        assert_eq!((lowered.tasks, lowered.bound), (100, Bound::Instances));
        assert_eq!(lowered.mappings, held.mappings);
        assert_eq!(held.at_most(8_719), held);
    }
}
