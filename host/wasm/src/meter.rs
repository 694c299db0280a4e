//! The count of what a task does use, held against its limits.
//!
//! The `Meter` of a store enforces those limits that wasmtime asks about while
//! the guest runs; deadlines are the driver's.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use wasmtime::ResourceLimiter;

use crate::{
    limits::{Bytes, Exceeded, Limits, MEMORY},
    memory::GuestMemory,
    profile::{self, Profile},
    trap,
};

impl Limits {
    /// Says which limit an engine cannot give, if there is one.
    pub(crate) fn check(&self, profile: Profile) -> Result<(), String> {
        if self.memory > MEMORY {
            return Err(format!(
                "the memory limit of {} is above what a task can have, which is {}",
                Bytes(self.memory),
                Bytes(MEMORY)
            ));
        }
        if profile == Profile::Fast && self.table_elements > profile::POOL_TABLE as u64 {
            return Err(format!(
                "the table limit of {} elements is above what the profile `fast` has room for, \
                 which is {}; the profile `dense` has no such bound",
                self.table_elements,
                profile::POOL_TABLE
            ));
        }
        Ok(())
    }
}

/// Enforces the limits of one store, and remembers the first that was hit.
pub(crate) struct Meter {
    limits: Limits,
    all: Arc<GuestMemory>,
    memory: u64,
    /// What the last grow took, until it is known that it did not fail.
    last_grow: u64,
    last_table_grow: u64,
    peak: Arc<AtomicU64>,
    elements: u64,
    exceeded: Option<Exceeded>,
}

impl Meter {
    /// Returns a meter that writes the peak of linear memory to `peak`, in bytes.
    pub(crate) fn new(limits: Limits, all: Arc<GuestMemory>, peak: Arc<AtomicU64>) -> Self {
        Self {
            limits,
            all,
            memory: 0,
            last_grow: 0,
            last_table_grow: 0,
            peak,
            elements: 0,
            exceeded: None,
        }
    }

    /// Returns the limit that was hit before the error or by it, if one was.
    pub(crate) fn exceeded(&self, error: &wasmtime::Error) -> Option<Exceeded> {
        if trap::is_host_call_limit(error) {
            return Some(Exceeded::HostCall(self.limits.host_call as u64));
        }
        if trap::is_table_full(error) {
            return Some(Exceeded::HostObjects(self.limits.host_objects as u64));
        }
        self.exceeded
    }

    fn refuse(&mut self, limit: Exceeded) -> wasmtime::Result<bool> {
        self.exceeded.get_or_insert(limit);
        Ok(false)
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.all.give_back(self.memory);
    }
}

impl ResourceLimiter for Meter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        self.last_grow = 0;
        let more = desired.saturating_sub(current) as u64;
        let total = self.memory.saturating_add(more);
        if total > self.limits.memory {
            return self.refuse(Exceeded::Memory(self.limits.memory));
        }
        if !self.all.take(more) {
            return self.refuse(Exceeded::HostMemory(self.all.limit()));
        }
        self.memory = total;
        self.last_grow = more;
        // It lives with what it has, so what comes later has another cause.
        self.exceeded = None;
        self.peak.fetch_max(total, Ordering::Relaxed);
        Ok(true)
    }

    fn memory_grow_failed(&mut self, _error: wasmtime::Error) -> wasmtime::Result<()> {
        let undone = mem::take(&mut self.last_grow);
        self.memory -= undone;
        self.all.give_back(undone);
        Ok(())
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let more = desired.saturating_sub(current) as u64;
        self.last_table_grow = 0;
        let total = self.elements.saturating_add(more);
        if total > self.limits.table_elements {
            return self.refuse(Exceeded::Tables(self.limits.table_elements));
        }
        self.elements = total;
        self.last_table_grow = more;
        Ok(true)
    }

    fn table_grow_failed(&mut self, _error: wasmtime::Error) -> wasmtime::Result<()> {
        self.elements -= mem::take(&mut self.last_table_grow);
        Ok(())
    }

    fn instances(&self) -> usize {
        profile::CORE_INSTANCES as usize
    }

    fn memories(&self) -> usize {
        profile::MEMORIES as usize
    }

    fn tables(&self) -> usize {
        profile::TABLES as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn meter(limit: u64, all: &Arc<GuestMemory>) -> Meter {
        let limits = Limits { memory: limit, table_elements: 10, ..Limits::default() };
        Meter::new(limits, Arc::clone(all), Arc::default())
    }

    #[test]
    fn memory_is_refused_past_the_limit_and_the_limit_is_named() {
        let all = Arc::new(GuestMemory::new(1 << 30));
        let mut meter = meter(2 * MIB, &all);
        assert!(meter.memory_growing(0, 1 << 20, None).unwrap());
        assert!(
            meter.memory_growing(0, 1 << 20, None).unwrap(),
            "a second memory shares the limit"
        );
        assert!(!meter.memory_growing(1 << 20, (1 << 20) + 1, None).unwrap());
        assert_eq!(meter.exceeded.unwrap().to_string(), "memory limit of 2 MiB reached");
    }

    #[test]
    fn memory_of_all_guests_is_bounded_and_given_back_on_drop() {
        // Less than any process holds.
        let all = Arc::new(GuestMemory::new(3 * MIB));
        let mut first = meter(8 * MIB, &all);
        let mut second = meter(8 * MIB, &all);
        assert!(first.memory_growing(0, 2 << 20, None).unwrap());
        assert!(!second.memory_growing(0, 2 << 20, None).unwrap());
        assert_eq!(second.exceeded, Some(Exceeded::HostMemory(3 * MIB)));
        drop(first);
        assert!(second.memory_growing(0, 2 << 20, None).unwrap());
        drop(second);
        assert_eq!(all.declared(), 0);
    }

    #[test]
    fn a_failed_grow_is_given_back() {
        let all = Arc::new(GuestMemory::new(3 * MIB));
        let mut meter = meter(8 * MIB, &all);
        assert!(meter.memory_growing(0, 2 << 20, None).unwrap());
        meter.memory_grow_failed(wasmtime::format_err!("no address space")).unwrap();
        assert_eq!(all.declared(), 0);
        assert!(meter.memory_growing(0, 3 << 20, None).unwrap());
    }

    #[test]
    fn what_no_engine_can_give_is_refused_by_name() {
        let check = |limits: Limits, profile| limits.check(profile);
        assert_eq!(check(Limits::default(), Profile::Fast), Ok(()));
        assert_eq!(check(Limits { memory: 4 << 30, ..Limits::default() }, Profile::Fast), Ok(()));
        for profile in Profile::ALL {
            let said = check(Limits { memory: 8 << 30, ..Limits::default() }, profile);
            assert!(said.unwrap_err().starts_with("the memory limit of 8 GiB is above"));
        }
        let tables = Limits { table_elements: 100_001, ..Limits::default() };
        assert!(check(tables, Profile::Fast).unwrap_err().contains("100001 elements"));
        assert_eq!(check(tables, Profile::Dense), Ok(()));
    }

    #[test]
    fn tables_share_one_limit() {
        let all = Arc::new(GuestMemory::new(MIB));
        let mut meter = meter(MIB, &all);
        assert!(meter.table_growing(0, 10, None).unwrap());
        assert!(!meter.table_growing(0, 1, None).unwrap());
        assert_eq!(meter.exceeded, Some(Exceeded::Tables(10)));
    }
}
