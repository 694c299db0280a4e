//! What an engine is made for, and wasmtime's settings for it.

use std::{fmt, str::FromStr, sync::Arc};

use wasmtime::{Enabled, InstanceAllocationStrategy, PoolingAllocationConfig};

use crate::{capacity::Capacity, dense::Memories};

/// How many core instances, memories and tables one component may have. Real
/// ones have a handful of each: their module, shims and adapters.
pub(crate) const CORE_INSTANCES: u32 = 64;
pub(crate) const MEMORIES: u32 = 8;
pub(crate) const TABLES: u32 = 32;
/// How many elements a table of the pool has room for.
pub(crate) const POOL_TABLE: usize = 100_000;
/// Stores that are there for a moment beside those of tasks: a component is
/// asked to describe itself.
pub(crate) const ASIDES: u32 = 4;

/// What an engine is made for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// Tasks start and compute fast: their memories are slots of a pool, and
    /// guards stand in for bounds checks.
    #[default]
    Fast,
    /// As many tasks as possible are alive at a time: each takes few memory
    /// mappings. A start costs more, and so does every access to memory, whose
    /// bounds are checked.
    Dense,
}

impl Profile {
    /// Both profiles.
    pub const ALL: [Self; 2] = [Self::Fast, Self::Dense];

    /// Returns the name that configurations give it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Dense => "dense",
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text is not the name of a profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there are the profiles `fast` and `dense`")]
pub struct InvalidProfile;

impl FromStr for Profile {
    type Err = InvalidProfile;

    fn from_str(text: &str) -> Result<Self, InvalidProfile> {
        Self::ALL.into_iter().find(|profile| profile.name() == text).ok_or(InvalidProfile)
    }
}

/// Returns wasmtime's settings, with room for that many tasks. Without a capacity
/// they only compile, and reserve nothing.
pub(crate) fn settings(profile: Profile, capacity: Option<&Capacity>) -> wasmtime::Config {
    let mut settings = wasmtime::Config::new();
    settings
        .wasm_component_model_async(true)
        // A failed grow of such a memory is told twice, and would be counted so.
        .wasm_custom_page_sizes(false)
        .epoch_interruption(true)
        // A trap's own text is what people are shown; frames go to the log.
        .wasm_backtrace_max_frames(std::num::NonZeroUsize::new(20));
    match (profile, capacity) {
        (Profile::Fast, Some(capacity)) => {
            settings.allocation_strategy(InstanceAllocationStrategy::Pooling(pool(capacity)));
        }
        (Profile::Fast, None) => {}
        (Profile::Dense, _) => {
            settings
                // Images of memories are mapped, and guards are mappings.
                .memory_init_cow(false)
                .memory_reservation(0)
                .memory_guard_size(0)
                .memory_reservation_for_growth(0)
                .with_host_memory(Arc::new(Memories))
                // Smaller than a huge page, which would be resident as a whole.
                .async_stack_size(1 << 20);
        }
    }
    settings
}

/// Reservations, not memory. A component of the usual shape has four core
/// instances, a memory and two tables; the floors let one of the largest shape
/// into a small pool.
fn pool(capacity: &Capacity) -> PoolingAllocationConfig {
    let mut pool = PoolingAllocationConfig::new();
    let stores = capacity.tasks.saturating_add(ASIDES);
    let of = |each: u32, floor: u32| stores.saturating_mul(each).max(floor);
    pool.total_component_instances(stores)
        .total_core_instances(of(5, CORE_INSTANCES))
        .total_memories(of(1, MEMORIES).saturating_add(MEMORIES))
        .total_tables(of(3, TABLES))
        // A guest has one stack at a time, and another while it is entered in
        // the middle of a blocking call.
        .total_stacks(stores.saturating_add(stores / 8).saturating_add(16))
        .max_core_instances_per_component(CORE_INSTANCES)
        .max_memories_per_component(MEMORIES)
        .max_tables_per_component(TABLES)
        .max_memories_per_module(MEMORIES)
        .max_tables_per_module(TABLES)
        .table_elements(POOL_TABLE)
        // Keeping a small guest's pages beats unmapping them under the
        // process-wide lock at each teardown, by two to six times.
        .linear_memory_keep_resident(kept(capacity))
        .table_keep_resident(64 << 10)
        // What an ended guest held is given back at once. Batches would keep it
        // resident, a quarter of a gigabyte for each, when nobody counts it any more.
        .decommit_batch_size(1)
        .pagemap_scan(Enabled::Auto);
    pool
}

/// Returns how much of the pages that a guest has touched its slot keeps, in bytes.
/// All slots that were ever used may keep that much, and nobody counts it; so it is
/// a sixteenth of the memory for guests at most, and what small guests touch.
fn kept(capacity: &Capacity) -> usize {
    let each = capacity.guest_memory / 16 / u64::from(capacity.tasks);
    // Older kernels do not tell which pages were touched. There it is the first
    // ones, which of most guests are a megabyte of stack.
    let most = match PoolingAllocationConfig::is_pagemap_scan_available() {
        true => 256 << 10,
        false => 2 << 20,
    };
    usize::try_from(each).unwrap_or(most).clamp(32 << 10, most)
}
