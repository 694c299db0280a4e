//! The threads that guests run on, and those of them that do not come back.
//!
//! A file call blocks its thread, and there are file systems whose calls never
//! return. Such a thread outlives the task that made the call, so it is counted.

use std::{
    collections::HashMap,
    fs, io,
    num::NonZero,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rustix::thread::gettid;
use tokio::{
    runtime::{Builder, Handle, Runtime},
    signal::unix::{SignalKind, signal},
    time::{MissedTickBehavior, interval},
};

/// How long a thread has to be in one and the same call to be stuck.
const STUCK: Duration = Duration::from_secs(1);
/// How often the host looks by itself, for its log; whoever asks has it look as well. Each
/// time wakes an idle host thrice, which is the way that the runtime's clock goes.
const LOOK: Duration = Duration::from_secs(30);

/// The threads that guests run on.
pub(crate) struct Threads {
    handle: Handle,
    /// `None` only while it is being dropped.
    runtime: Option<Runtime>,
    calls: Arc<Calls>,
}

impl Threads {
    /// Starts them; as many as there are cores when no number is given.
    pub(crate) fn start(count: Option<usize>) -> io::Result<Self> {
        let calls = Arc::new(Calls::default());
        let (started, stopped) = (Arc::clone(&calls), Arc::clone(&calls));
        let mut runtime = Builder::new_multi_thread();
        runtime
            .enable_all()
            .thread_name("backlot-guests")
            .on_thread_start(move || started.add(gettid().as_raw_pid()))
            .on_thread_stop(move || stopped.remove(gettid().as_raw_pid()));
        // Said in any case, or tokio's own variable would say it, or what is no number.
        runtime.worker_threads(count.unwrap_or_else(cores));
        let runtime = runtime.build()?;
        runtime.spawn(look(Arc::clone(&calls)));
        Ok(Self { handle: runtime.handle().clone(), runtime: Some(runtime), calls })
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Returns how many threads have been in one call for a second or more, as far
    /// as earlier looks tell.
    pub(crate) fn stuck(&self) -> usize {
        self.calls.look(Instant::now())
    }

    /// Sees to it that a write past the process's file-size limit is an error of
    /// that write. Unhandled, its signal ends the process, and a guest with one
    /// writable folder, or only much output, could send it.
    pub(crate) fn survive_large_files(&self) -> io::Result<()> {
        let _inside = self.handle.enter();
        let too_large = SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw());
        // The handler stays for as long as the process lives.
        signal(too_large).map(drop)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // A guest's file call may block a thread for ever; the process must not
        // wait for it. Nor may an async function, from which a host that could
        // not be started is dropped.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Looks now and then, and logs a number that has grown.
async fn look(calls: Arc<Calls>) {
    let mut known = 0;
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let stuck = calls.look(Instant::now());
        if stuck > known {
            tracing::warn!(threads = stuck, "threads are stuck in file calls of guests");
        }
        known = stuck;
    }
}

/// What each thread does, as far as the kernel tells.
#[derive(Default)]
struct Calls(Mutex<HashMap<i32, Option<Call>>>);

/// A system call that a thread was in when it was looked at.
struct Call {
    /// The call and its arguments, as the kernel shows them.
    text: String,
    since: Instant,
}

impl Calls {
    fn threads(&self) -> MutexGuard<'_, HashMap<i32, Option<Call>>> {
        // Every change is whole before anything can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, thread: i32) {
        self.threads().insert(thread, None);
    }

    fn remove(&self, thread: i32) {
        self.threads().remove(&thread);
    }

    fn look(&self, now: Instant) -> usize {
        let mut stuck = 0;
        for (thread, seen) in self.threads().iter_mut() {
            let text = fs::read_to_string(format!("/proc/self/task/{thread}/syscall"));
            let Some(text) = text.ok().filter(|text| !is_idle(text)) else {
                *seen = None;
                continue;
            };
            match seen {
                Some(call) if call.text == text => {
                    stuck += usize::from(now.duration_since(call.since) >= STUCK);
                }
                _ => *seen = Some(Call { text, since: now }),
            }
        }
        stuck
    }
}

/// Tells whether a thread computes or waits for work, by what the kernel shows of
/// the call that it is in.
fn is_idle(call: &str) -> bool {
    let number = call.split_whitespace().next().unwrap_or_default();
    // Computing, or in no call that it came from; or else waiting on a lock, or for
    // events.
    number == "running" || number == "-1" || WAITS.contains(&number)
}

/// The numbers of futex, epoll_wait and epoll_pwait.
#[cfg(target_arch = "x86_64")]
const WAITS: &[&str] = &["202", "232", "281"];
/// The numbers of futex and epoll_pwait.
#[cfg(not(target_arch = "x86_64"))]
const WAITS: &[&str] = &["98", "22"];

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Looks until so many threads are stuck. There is no event to wait for: that a
    /// call has not returned is told by time alone.
    async fn until_stuck(threads: &Threads, count: usize) {
        let looks = async {
            while threads.stuck() != count {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), looks).await.expect("the number is reached");
    }

    fn fifo(folder: &Path) -> std::path::PathBuf {
        let path = folder.join("fifo");
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
        path
    }

    #[test]
    fn threads_that_do_not_come_back_are_counted_until_they_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = fifo(folder.path());
        let threads = Threads::start(Some(1)).unwrap();
        let outside = Builder::new_current_thread().enable_all().build().unwrap();
        outside.block_on(async {
            // As a file call of a guest would, whose task is gone by now.
            let blocked: Vec<_> = (0..3)
                .map(|_| {
                    let path = path.clone();
                    threads.handle().spawn_blocking(move || drop(fs::File::open(path)))
                })
                .collect();
            let idle = threads.handle().spawn_blocking(|| ());
            idle.await.unwrap();
            until_stuck(&threads, 3).await;
            // Whoever opens the other end lets all of them go.
            let writer = fs::File::options().write(true).open(&path).unwrap();
            for call in blocked {
                call.await.unwrap();
            }
            until_stuck(&threads, 0).await;
            drop(writer);
        });
    }

    #[test]
    fn what_waits_for_work_is_not_stuck() {
        assert!(is_idle("running\n"));
        assert!(is_idle("-1 0x7ffc 0x7f\n"));
        assert!(is_idle(&format!("{} 0x7f 0x80 0x0 0x0 0x0 0x0 0x7ffc 0x7f12\n", WAITS[0])));
        assert!(!is_idle("257 0xffffff9c 0x7f 0x80000 0x0 0x0 0x0 0x7ffc 0x7f12\n"));
    }
}
