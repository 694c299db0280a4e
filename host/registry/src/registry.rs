//! The registry itself: what its parts share, and how it ends.

use std::{
    fmt,
    pin::pin,
    sync::{Arc, Mutex, Weak, atomic::Ordering},
};

use tokio::{sync::Notify, time::Instant};

use crate::{
    Config, Environment, Notice, Owner, StopCause,
    contain::lock,
    listeners::{Listeners, count},
    output::Totals,
    retention::Swept,
    stop::{Insist, MARGIN},
    table::Table,
    task::{Announcement, Counters, Shared, Stage, Task},
};

/// The live tasks of a host, and those that ended lately. A cheap handle; all
/// clones are one registry.
///
/// When the last handle is dropped without [`dispose`](Self::dispose), the
/// tasks that still run are dropped too, for nobody could see them any more.
#[derive(Clone)]
pub struct Registry {
    pub(crate) inner: Arc<Inner>,
}

/// A handle that does not keep the registry.
#[derive(Clone)]
pub struct WeakRegistry {
    inner: Weak<Inner>,
}

/// How a registry is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Tasks that have not ended, and starts that are on their way.
    pub live: usize,
    /// Records of ended tasks that are kept.
    pub terminal: usize,
    /// Waits that are on their way.
    pub waiters: u64,
    /// Control surfaces that are attached.
    pub surfaces: usize,
    /// Bytes of output in memory.
    pub output_memory: u64,
    /// Bytes of spill files.
    pub output_disk: u64,
    /// How often a listener failed or panicked.
    pub listener_failures: u64,
    /// How often a producer panicked.
    pub producer_panics: u64,
    /// Notices that a listener was too slow for.
    pub missed_notices: u64,
    /// Tasks whose work may have gone on after its end was declared.
    pub orphans: u64,
    /// Endings that nobody was told of before their record was dropped.
    pub untold_dropped: u64,
}

pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    table: Mutex<Table>,
    pub(crate) listeners: Arc<Listeners>,
    /// Wakes the unowned starts that are on their way at the disposal.
    pub(crate) closed: Notify,
    /// Wakes whoever waits for starts to come to an end.
    pub(crate) start_over: Notify,
}

impl Registry {
    /// Returns an empty registry.
    pub fn new(config: Config, environment: Environment) -> Self {
        let totals = Totals::new(config.spool.total_memory, config.spool.total_disk);
        let shared = Shared { config, environment, totals, counters: Counters::default() };
        Self {
            inner: Arc::new(Inner {
                shared: Arc::new(shared),
                table: Mutex::new(Table::new()),
                listeners: Arc::default(),
                closed: Notify::new(),
                start_over: Notify::new(),
            }),
        }
    }

    /// Returns how the registry is doing.
    pub fn health(&self) -> Health {
        let counters = &self.inner.shared.counters;
        let (output_memory, output_disk) = self.inner.shared.totals.used();
        let (live, terminal, surfaces) =
            self.inner.with_swept_table(|table| (table.live(), table.terminal(), table.surfaces));
        Health {
            live,
            terminal,
            waiters: count(&counters.waiters),
            surfaces,
            output_memory,
            output_disk,
            listener_failures: count(&counters.listener_failures),
            producer_panics: count(&counters.producer_panics),
            missed_notices: count(&counters.missed_notices),
            orphans: count(&counters.orphans),
            untold_dropped: count(&counters.untold_dropped),
        }
    }

    /// Ends the registry for good: listeners first, then every task by the stop
    /// ladder, then the ties to owners that live on.
    ///
    /// Running tasks end `failed` with the detail `host shutdown`, unless they
    /// finish by themselves, and are announced to nobody. What has ended can
    /// still be read. Takes no longer than the bounds of the ladder together, and
    /// than [`Config::report_delay`] for listeners to get through their queues;
    /// calling it again is harmless.
    pub async fn dispose(&self) {
        let inner = &self.inner;
        inner.listeners.close();
        let (tasks, owners) = inner.with_table(|table| (table.close(), table.owners()));
        inner.closed.notify_waiters();
        owners.iter().for_each(Owner::close_starts);
        inner.tear_down(&tasks, StopCause::Shutdown).await;
        inner.until_table(|table| table.live() == 0).await;
        inner.with_table(Table::detach_owners);
        // A listener that keeps up is through long before; one that blocks is left.
        tokio::select! {
            () = inner.listeners.drained() => {}
            () = inner.shared.sleep(inner.shared.config.report_delay) => {}
        }
        let missed = inner.listeners.silence();
        inner.shared.counters.missed_notices.fetch_add(missed, Ordering::Relaxed);
    }

    /// Returns a handle that does not keep the registry.
    pub fn downgrade(&self) -> WeakRegistry {
        WeakRegistry { inner: Arc::downgrade(&self.inner) }
    }
}

impl WeakRegistry {
    /// Returns the registry unless it has been freed.
    pub fn upgrade(&self) -> Option<Registry> {
        Some(Registry { inner: self.inner.upgrade()? })
    }
}

impl Inner {
    /// Runs the function on the table.
    pub(crate) fn with_table<T>(&self, work: impl FnOnce(&mut Table) -> T) -> T {
        work(&mut lock(&self.table))
    }

    /// Runs the function on the table without the records that are due to go.
    ///
    /// Whoever looks does this, so that a record goes in time without a timer.
    pub(crate) fn with_swept_table<T>(&self, work: impl FnOnce(&mut Table) -> T) -> T {
        let now = Instant::now();
        let retention = &self.shared.config.retention;
        let mut swept = Vec::new();
        let result = {
            let mut table = lock(&self.table);
            table.sweep(now, retention, &mut swept);
            work(&mut table)
        };
        self.tell_swept(swept);
        result
    }

    fn tell_swept(&self, swept: Vec<Swept>) {
        for Swept { task, told } in swept {
            if !told {
                self.shared.counters.untold_dropped.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(
                    task = %task.id,
                    status = %task.body().state.status(),
                    "the record of a task was dropped, and nobody had been told of its end"
                );
            }
        }
    }

    /// Tells the listeners of an end, and files the record for retention.
    ///
    /// Called once for each task, by whoever made the announcement due.
    pub(crate) fn announce(&self, task: &Arc<Task>) {
        let taken = self.listeners.announce(&self.shared, || Notice {
            snapshot: task.snapshot(),
            owner: task.owner.clone(),
        });
        if let Stage::Over(over) = &mut task.body().stage {
            over.announcement = Announcement::Made { taken };
        }
        self.file(task);
        // The driver may wait to make the announcement itself.
        task.wake.notify_one();
    }

    /// Files an ended task, or moves it after somebody was told of its end.
    pub(crate) fn file(&self, task: &Arc<Task>) {
        self.with_swept_table(|table| table.file(task));
    }

    /// Stops the tasks, all at once, and returns when each has ended.
    pub(crate) async fn tear_down(&self, tasks: &[Arc<Task>], cause: StopCause) {
        let asked = Instant::now();
        for task in tasks {
            task.insist(Insist::TearDown, cause, None);
        }
        for task in tasks {
            let bound = task.bounds.whole().saturating_add(MARGIN);
            let left = bound.saturating_sub(asked.elapsed());
            if !task.ends_within(left).await {
                self.abandon(task, bound);
            }
        }
    }

    /// Returns when the table is as it should be after starts have come to an end.
    ///
    /// A start that nobody polls holds nobody up for longer than the ladder:
    /// once it is polled again it finds that it may not go on.
    pub(crate) async fn until_table(&self, is_right: impl Fn(&Table) -> bool) {
        let bounds = &self.shared.config.bounds;
        let mut late = pin!(self.shared.sleep(bounds.whole().saturating_add(MARGIN)));
        loop {
            let mut over = pin!(self.start_over.notified());
            // Registered before the look, so that no wake-up falls between.
            over.as_mut().enable();
            if self.with_table(|table| is_right(table)) {
                return;
            }
            tokio::select! {
                () = over => {}
                () = &mut late => return,
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Notices that wait now are for nobody.
        let _ = self.listeners.silence();
        let tasks: Vec<_> = lock(&self.table).live_tasks().cloned().collect();
        for task in tasks {
            tracing::warn!(task = %task.id, "the registry is gone, so its task is dropped");
            task.insist(Insist::Force, StopCause::Shutdown, None);
        }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}

impl fmt::Debug for WeakRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakRegistry").finish_non_exhaustive()
    }
}
