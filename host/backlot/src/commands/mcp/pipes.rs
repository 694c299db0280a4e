//! The client's messages where they come and go by pipes, as they mostly do.
//!
//! A pipe is opened anew, so that it can be read and written without blocking while whoever
//! else has it notices nothing. So no other thread has to be woken for a message.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
    sync::atomic::{AtomicBool, Ordering},
};

use bytes::{Buf as _, Bytes};
use tokio::{
    io::{AsyncRead, stdin},
    net::unix::pipe,
};

use crate::console::Writer;

/// Returns what a client says on stdin.
pub(super) fn messages() -> Box<dyn AsyncRead + Send + Unpin> {
    let pipe = opened(&io::stdin()).and_then(|path| options().open_receiver(path).ok());
    match pipe {
        Some(pipe) => Box::new(pipe),
        // A file, a terminal, a socket; then a thread waits for it.
        None => Box::new(stdin()),
    }
}

/// What is said to a client.
pub(super) struct Out {
    writer: Writer,
    pipe: Option<pipe::Sender>,
    /// Whether something may be on its way through the writer, which comes first.
    is_behind: AtomicBool,
}

impl Out {
    /// Returns that of stdout, which the writer writes to.
    pub(super) fn new(writer: Writer) -> Self {
        let pipe = opened(&io::stdout()).and_then(|path| options().open_sender(path).ok());
        Self { writer, pipe, is_behind: AtomicBool::new(false) }
    }

    /// Writes all of it. Dropping the future takes nothing back.
    pub(super) async fn write(&self, bytes: Vec<u8>) -> io::Result<()> {
        let mut left = Bytes::from(bytes);
        if let Some(pipe) = &self.pipe
            && !self.is_behind.load(Ordering::Acquire)
        {
            match pipe.try_write(&left) {
                Ok(written) => left.advance(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if left.is_empty() {
                return Ok(());
            }
        }
        // It waits for a reader who takes his time, also where nobody waits for it.
        self.is_behind.store(true, Ordering::Release);
        self.writer.write(left).await?;
        self.is_behind.store(false, Ordering::Release);
        Ok(())
    }
}

/// The file system of pipes that have no name, as statfs(2) numbers it.
const PIPES: u64 = 0x5049_5045;

/// Returns the path by which this process can open a stream anew. That is for pipes without a
/// name: one that has a name tells nobody of its end who opens it after that.
fn opened(stream: &(impl AsFd + AsRawFd)) -> Option<String> {
    let about = rustix::fs::fstatfs(stream.as_fd()).ok()?;
    (about.f_type as u64 == PIPES).then(|| format!("/proc/self/fd/{}", stream.as_raw_fd()))
}

fn options() -> pipe::OpenOptions {
    pipe::OpenOptions::new()
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Read as _, os::fd::OwnedFd, thread};

    use super::*;

    fn out(to: OwnedFd) -> Out {
        let pipe = options().open_sender(opened(&to).unwrap()).unwrap();
        let writer = Writer::start("backlot-test", to.as_fd()).unwrap();
        Out { writer, pipe: Some(pipe), is_behind: AtomicBool::new(false) }
    }

    #[tokio::test]
    async fn all_comes_in_order_whether_the_reader_is_quick_or_slow() {
        let (read, write) = io::pipe().unwrap();
        let out = out(write.into());
        let line = |number: usize| {
            let length = if number.is_multiple_of(10) { 200_000 } else { 100 };
            format!("{number} {}\n", "x".repeat(length)).into_bytes()
        };
        let expected: Vec<u8> = (0..200).flat_map(line).collect();
        let reader = thread::spawn(move || {
            let mut read = File::from(OwnedFd::from(read));
            let mut all = Vec::new();
            read.read_to_end(&mut all).map(|_| all)
        });
        for number in 0..200 {
            let whole = out.write(line(number));
            // Some are given up by whoever has begun them, and come all the same.
            match number % 20 {
                0 => _ = tokio::time::timeout(std::time::Duration::ZERO, whole).await,
                _ => whole.await.unwrap(),
            }
        }
        out.writer.write(Bytes::new()).await.unwrap();
        drop(out);
        assert!(reader.join().unwrap().unwrap() == expected);
    }

    #[tokio::test]
    async fn a_reader_that_is_gone_is_told_of() {
        let (read, write) = io::pipe().unwrap();
        let out = out(write.into());
        out.write(b"one\n".to_vec()).await.unwrap();
        drop(read);
        assert!(crate::console::is_closed(&out.write(b"two\n".to_vec()).await.unwrap_err()));
    }

    #[test]
    fn only_what_has_no_name_is_opened_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fifo");
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
        let named = File::options().read(true).write(true).open(&path).unwrap();
        assert_eq!(opened(&named), None);
        assert_eq!(opened(&File::open("/dev/null").unwrap()), None);
        assert!(opened(&io::pipe().unwrap().0).is_some());
    }
}
