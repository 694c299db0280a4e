//! Who is told when a task ends.
//!
//! Every listener has a bounded queue and a thread of its own, so that one that
//! blocks, fails or panics is nobody else's concern. It is called outside every
//! lock and may call the registry.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use tokio::sync::Notify;

use crate::{
    Owner, Registry, Snapshot,
    contain::{contain, lock},
    task::Shared,
};

/// Any error, as listeners return them.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The news that a task has ended.
#[derive(Clone, Debug)]
pub struct Notice {
    /// The task, as it ended. If it is `reported`, somebody knows already.
    pub snapshot: Snapshot,
    /// The very owner that the task belonged to.
    pub owner: Option<Owner>,
}

/// Keeps a listener subscribed. Dropping it unsubscribes: no notice is handed
/// over any more, and one that is being worked on is finished.
#[must_use = "the listener is unsubscribed when this is dropped"]
pub struct ListenerGuard {
    listener: Arc<Listener>,
    listeners: Arc<Listeners>,
}

impl Registry {
    /// Calls the function once for every task that ends from now on.
    ///
    /// The function runs on a thread of its own. What it returns or panics with
    /// is counted and logged, and changes nothing else.
    pub fn on_task_done(
        &self,
        name: impl Into<Arc<str>>,
        listener: impl Fn(&Notice) -> Result<(), BoxError> + Send + Sync + 'static,
    ) -> ListenerGuard {
        let queue = self.inner.shared.config.notice_queue;
        let entry = Arc::new(Listener {
            name: name.into(),
            bound: queue,
            queue: Mutex::default(),
            changed: Condvar::new(),
            ended: Notify::new(),
        });
        self.inner.listeners.subscribe(&entry);
        let worker = entry.clone();
        let shared = self.inner.shared.clone();
        let spawned = thread::Builder::new()
            .name("backlot-notices".to_owned())
            .spawn(move || worker.work(&shared, &listener));
        if let Err(error) = spawned {
            tracing::error!(listener = &*entry.name, %error, "no thread for a listener: it will miss every notice");
            entry.finish(Finish::Now);
            lock(&entry.queue).over = true;
        }
        ListenerGuard { listener: entry, listeners: self.inner.listeners.clone() }
    }
}

impl Drop for ListenerGuard {
    fn drop(&mut self) {
        self.listeners.unsubscribe(&self.listener);
        self.listener.finish(Finish::Now);
    }
}

impl fmt::Debug for ListenerGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ListenerGuard").field(&self.listener.name).finish()
    }
}

/// All listeners of a registry.
#[derive(Default)]
pub(crate) struct Listeners {
    subscribed: Mutex<Subscribed>,
}

#[derive(Default)]
struct Subscribed {
    closed: bool,
    /// Replaced as a whole, so that an announcement takes it along cheaply.
    listeners: Arc<Vec<Arc<Listener>>>,
}

impl Listeners {
    fn subscribe(&self, listener: &Arc<Listener>) {
        let mut subscribed = lock(&self.subscribed);
        if subscribed.closed {
            drop(subscribed);
            listener.finish(Finish::Now);
        } else {
            Arc::make_mut(&mut subscribed.listeners).push(listener.clone());
        }
    }

    fn unsubscribe(&self, listener: &Arc<Listener>) {
        let mut subscribed = lock(&self.subscribed);
        Arc::make_mut(&mut subscribed.listeners).retain(|known| !Arc::ptr_eq(known, listener));
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.subscribed).listeners.is_empty()
    }

    /// Hands a notice to everybody who listens, and says whether somebody took it.
    pub(crate) fn announce(&self, shared: &Shared, notice: impl FnOnce() -> Notice) -> bool {
        let listeners = lock(&self.subscribed).listeners.clone();
        if listeners.is_empty() {
            return false;
        }
        let notice = notice();
        let mut taken = false;
        for listener in &*listeners {
            taken |= listener.push(shared, &notice);
        }
        taken
    }

    /// Takes no notice any more. Those that wait are still handed over.
    pub(crate) fn close(&self) {
        let listeners = {
            let mut subscribed = lock(&self.subscribed);
            subscribed.closed = true;
            subscribed.listeners.clone()
        };
        for listener in &*listeners {
            listener.finish(Finish::WhenEmpty);
        }
    }

    /// Returns when every listener has got through its queue after the closing.
    pub(crate) async fn drained(&self) {
        let listeners = lock(&self.subscribed).listeners.clone();
        for listener in &*listeners {
            listener.over().await;
        }
    }

    /// Hands nothing over any more. Returns how many notices were still waiting.
    pub(crate) fn silence(&self) -> u64 {
        let listeners = std::mem::take(&mut lock(&self.subscribed).listeners);
        listeners.iter().map(|listener| listener.finish(Finish::Now)).sum()
    }
}

/// One listener: its queue, and when its thread is to end.
struct Listener {
    name: Arc<str>,
    bound: usize,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Tells when the thread has ended.
    ended: Notify,
}

#[derive(Default)]
struct Queue {
    notices: VecDeque<Notice>,
    finish: Option<Finish>,
    /// Whether the thread has ended, or is about to.
    over: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Finish {
    WhenEmpty,
    Now,
}

impl Listener {
    fn push(&self, shared: &Shared, notice: &Notice) -> bool {
        {
            let mut queue = lock(&self.queue);
            if queue.finish.is_some() {
                return false;
            }
            if queue.notices.len() < self.bound {
                queue.notices.push_back(notice.clone());
                drop(queue);
                self.changed.notify_one();
                return true;
            }
        }
        shared.counters.missed_notices.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(
            listener = &*self.name,
            task = %notice.snapshot.id,
            bound = self.bound,
            "a listener is too slow and misses the end of a task"
        );
        false
    }

    /// Ends the listener's thread, and returns how many notices it does not get to.
    fn finish(&self, finish: Finish) -> u64 {
        let dropped = {
            let mut queue = lock(&self.queue);
            if queue.finish != Some(Finish::Now) {
                queue.finish = Some(finish);
            }
            match finish {
                Finish::Now => std::mem::take(&mut queue.notices),
                Finish::WhenEmpty => VecDeque::new(),
            }
        };
        self.changed.notify_one();
        dropped.len() as u64
    }

    fn work(&self, shared: &Shared, listener: &dyn Fn(&Notice) -> Result<(), BoxError>) {
        while let Some(notice) = self.pop() {
            let failure = match contain(|| listener(&notice)) {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error.to_string(),
                Err(panic) => panic.to_string(),
            };
            shared.counters.listener_failures.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                listener = &*self.name,
                task = %notice.snapshot.id,
                failure,
                "a listener failed on the end of a task"
            );
        }
        lock(&self.queue).over = true;
        self.ended.notify_waiters();
    }

    /// Resolves when the thread has ended.
    async fn over(&self) {
        let ended = self.ended.notified();
        tokio::pin!(ended);
        // Registered before the look, so that no wake-up falls between.
        ended.as_mut().enable();
        if !lock(&self.queue).over {
            ended.await;
        }
    }

    /// Waits for the next notice; `None` ends the thread.
    fn pop(&self) -> Option<Notice> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.finish == Some(Finish::Now) {
                return None;
            }
            if let Some(notice) = queue.notices.pop_front() {
                return Some(notice);
            }
            if queue.finish.is_some() {
                return None;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Reads a counter.
pub(crate) fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
