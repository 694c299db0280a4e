//! What of ended jobs is kept: so many, for so long, and no more bytes than that.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use backlot_jobs::{Manager, TreeError, files};
use tokio::{
    sync::Notify,
    task::JoinHandle,
    time::{MissedTickBehavior, interval},
};

/// How often it is looked whether there is more than is kept. A minute's jobs are few
/// beside what is kept, and a look costs milliseconds.
const EVERY: Duration = Duration::from_secs(60);
/// How often older jobs are given up for room in one look. Each is a tenth of them.
const ROUNDS: usize = 16;

/// Deletes what is more than is kept, for as long as it is there.
pub(super) struct Keeping(JoinHandle<()>);

impl Keeping {
    /// Begins with what is there now.
    pub(super) fn start(
        manager: Manager,
        jobs: PathBuf,
        bytes: u64,
        clearing: Arc<Clearing>,
    ) -> Self {
        Self(tokio::spawn(async move {
            let mut ticks = interval(EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                if let Err(error) = look(&manager, &jobs, bytes, &clearing).await {
                    tracing::warn!("what is more than is kept cannot be deleted: {error}");
                }
            }
        }))
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Counts the deletions of what jobs have left, which go on threads of their own.
#[derive(Default)]
pub(super) struct Clearing {
    under_way: AtomicUsize,
    ended: Notify,
}

/// A deletion that is under way.
pub(super) struct Deletion(Arc<Clearing>);

impl Clearing {
    /// Counts a deletion, until what is returned is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> Deletion {
        self.under_way.fetch_add(1, Ordering::AcqRel);
        Deletion(self.clone())
    }

    /// Returns once none is under way.
    async fn done(&self) {
        loop {
            // Made before the look, so that no end falls between.
            let ended = self.ended.notified();
            if self.under_way.load(Ordering::Acquire) == 0 {
                return;
            }
            ended.await;
        }
    }
}

impl Drop for Deletion {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::AcqRel);
        self.0.ended.notify_waiters();
    }
}

async fn look(
    manager: &Manager,
    jobs: &Path,
    bytes: u64,
    clearing: &Clearing,
) -> Result<(), TreeError> {
    let config = manager.config();
    manager.prune(config.keep, config.keep_for).await?;
    for _ in 0..ROUNDS {
        // What is still being deleted would count, and more be given up than need be.
        clearing.done().await;
        let folder = jobs.to_owned();
        let used = tokio::task::spawn_blocking(move || files::usage(&folder)).await;
        let used = match used {
            Ok(Ok(used)) => used,
            Ok(Err(error)) => {
                tracing::warn!("the files of jobs cannot be measured: {error}");
                return Ok(());
            }
            Err(_) => return Ok(()),
        };
        if used <= bytes {
            return Ok(());
        }
        let ended = manager.health().await?.census.ended;
        let keep = ended - (ended / 10).max(1).min(ended);
        let gone = manager.prune(keep, Duration::MAX).await?;
        if gone.is_empty() {
            tracing::warn!(
                "jobs have {used} bytes of output and files, and {bytes} are to be kept; none of \
                 the jobs can be deleted: they run, or somebody has still to hear of their end"
            );
            return Ok(());
        }
        tracing::info!("{} jobs were deleted, the oldest, for want of room", gone.len());
    }
    Ok(())
}
