//! The process's own stdout and stderr.
//!
//! Each is written by a thread of its own, so that a reader who does not read
//! holds up who waits for the write, and nobody else. A thread that is stuck in a
//! write ends with the process.

use std::{
    fs::File,
    io::{self, Write as _},
    os::fd::{AsFd as _, BorrowedFd},
    thread,
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

/// How many writes can wait for their turn: a few that somebody waits for, and
/// the lines of a burst in the host's own log, some hundred bytes each.
const QUEUE: usize = 4096;

/// Both streams.
#[derive(Clone)]
pub(crate) struct Console {
    /// For data.
    pub(crate) out: Writer,
    /// For people.
    pub(crate) err: Writer,
}

impl Console {
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self {
            out: Writer::start("backlot-stdout", io::stdout().as_fd())?,
            err: Writer::start("backlot-stderr", io::stderr().as_fd())?,
        })
    }
}

/// Writes to one stream, in the order in which it is asked to.
#[derive(Clone)]
pub(crate) struct Writer {
    queue: mpsc::Sender<Write>,
}

struct Write {
    bytes: Bytes,
    done: oneshot::Sender<io::Result<()>>,
}

impl Writer {
    pub(crate) fn start(name: &str, stream: BorrowedFd<'_>) -> io::Result<Self> {
        // Not std's own handle: its buffer would be flushed on the way out of the
        // process, and its lock is held by a write that is stuck.
        let mut file = File::from(stream.try_clone_to_owned()?);
        let (queue, mut writes) = mpsc::channel::<Write>(QUEUE);
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            while let Some(Write { bytes, done }) = writes.blocking_recv() {
                // Nobody may be waiting for it any more.
                let _ = done.send(file.write_all(&bytes));
            }
        })?;
        Ok(Self { queue })
    }

    /// Writes all of it. Dropping the future takes nothing back.
    pub(crate) async fn write(&self, bytes: impl Into<Bytes>) -> io::Result<()> {
        let gone = || io::Error::other("its thread is gone");
        let (done, written) = oneshot::channel();
        let write = Write { bytes: bytes.into(), done };
        self.queue.send(write).await.map_err(|_| gone())?;
        written.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Writes a line for people, whether or not anybody reads it.
    pub(crate) async fn say(&self, line: &str) {
        let _ = self.write(format!("{line}\n")).await;
    }

    /// Has a line for people written in its turn, without waiting. It is lost
    /// when too much waits already.
    pub(crate) fn note(&self, line: &str) {
        self.enqueue(format!("{line}\n").into());
    }

    /// Waits for what is on its way, but not for a reader who does not read.
    pub(crate) async fn flush(&self, bound: Duration) {
        let _ = timeout(bound, self.write(Bytes::new())).await;
    }

    fn enqueue(&self, bytes: Bytes) {
        let (done, _) = oneshot::channel();
        let _ = self.queue.try_send(Write { bytes, done });
    }
}

/// For the host's own log, which waits for no reader either.
impl io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.enqueue(Bytes::copy_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Tells a reader that is gone from a write that went wrong.
pub(crate) fn is_closed(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}
