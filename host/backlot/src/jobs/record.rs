//! Recording what runs write, in the data folder.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
};

use backlot_jobs::{
    DataFolder, JobId,
    output::{Limits, Recorder, Stream as Recorded},
};
use backlot_registry::{Caller, Channel, Clock as _, Observer, Piece, Registry, Stream, TaskId};
use backlot_surface::Metrics;
use tokio::sync::Notify;

use super::{CLOCK, lock};

/// How much is recorded at a time, in bytes.
const PIECE_BYTES: usize = 64 << 10;

/// Where output of jobs is recorded, and who waits for it.
pub(super) struct Records {
    folder: DataFolder,
    limits: Limits,
    metrics: Metrics,
    watched: Mutex<HashMap<JobId, Weak<Notify>>>,
}

impl Records {
    pub(super) fn new(folder: DataFolder, limits: Limits, metrics: Metrics) -> Self {
        Self { folder, limits, metrics, watched: Mutex::default() }
    }

    pub(super) fn folder(&self) -> &DataFolder {
        &self.folder
    }

    /// Returns what is notified whenever something of a job was recorded.
    pub(super) fn watch(&self, job: JobId) -> Arc<Notify> {
        let mut watched = lock(&self.watched);
        if let Some(notify) = watched.get(&job).and_then(Weak::upgrade) {
            return notify;
        }
        watched.retain(|_, notify| notify.strong_count() > 0);
        let notify = Arc::new(Notify::new());
        watched.insert(job, Arc::downgrade(&notify));
        notify
    }

    fn tell(&self, job: JobId) {
        let notify = lock(&self.watched).get(&job).and_then(Weak::upgrade);
        if let Some(notify) = notify {
            notify.notify_waiters();
        }
    }

    /// Records what a task writes, until it has ended and all is recorded.
    pub(super) async fn record(&self, registry: &Registry, job: JobId, run: u32, task: &TaskId) {
        // A job is recorded for as long as it lives, and most have little to say.
        let observe = |stream| {
            let observer = registry.observe(task, &Caller::Operator, stream, 0).ok()?;
            Some(observer.passive())
        };
        let mut output = observe(Stream::Output);
        let mut log = observe(Stream::Log);
        let mut recorder = None;
        loop {
            let (piece, stream) = tokio::select! {
                piece = next(&mut output) => (piece, Stream::Output),
                piece = next(&mut log) => (piece, Stream::Log),
                else => break,
            };
            let Some(piece) = piece else {
                match stream {
                    Stream::Output => output = None,
                    Stream::Log => log = None,
                }
                if output.is_none() && log.is_none() {
                    break;
                }
                continue;
            };
            let into =
                recorder.take().unwrap_or_else(|| Recorder::new(self.folder.job(job), self.limits));
            self.metrics.recorded(piece.bytes.len());
            recorder = append(into, run, stream, piece).await;
            self.tell(job);
        }
        if let Some(mut recorder) = recorder {
            let ended = tokio::task::spawn_blocking(move || recorder.sync());
            if let Ok(Err(error)) = ended.await {
                tracing::warn!(%job, "its output may not outlive a power cut: {error}");
            }
        }
    }
}

async fn next(observer: &mut Option<Observer>) -> Option<Piece> {
    match observer {
        Some(observer) => observer.next(PIECE_BYTES).await,
        None => std::future::pending().await,
    }
}

/// Appends a piece, on a thread that may block, and returns the recorder.
async fn append(
    mut recorder: Recorder,
    run: u32,
    stream: Stream,
    piece: Piece,
) -> Option<Recorder> {
    let appended = tokio::task::spawn_blocking(move || {
        let now_ms = CLOCK.epoch_ms();
        let channel = match (stream, piece.channel) {
            (Stream::Log, _) => Recorded::Log,
            (Stream::Output, Channel::Out) => Recorded::Stdout,
            (Stream::Output, Channel::Err) => Recorded::Stderr,
        };
        if piece.dropped > 0 {
            recorder.skip(run, channel, now_ms, piece.dropped);
        }
        recorder.append(run, channel, now_ms, &piece.bytes);
        recorder
    });
    appended.await.ok()
}
