//! A connection that ends when nobody takes what is sent on it.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// A stream whose writes fail where not a byte was taken for some time. Who reads slowly
/// is served; who does not read at all holds nothing for ever.
///
/// It stands below any encryption, so that it sees what the network takes.
#[derive(Debug)]
pub(super) struct Stall<S> {
    stream: S,
    patience: Duration,
    /// Since when a write waits, as the end of that.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> Stall<S> {
    pub(super) fn new(stream: S, patience: Duration) -> Self {
        Self { stream, patience, waiting: None }
    }

    /// Returns what came of a write, or its failure where it waits for too long.
    fn patiently<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let patience = self.patience;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(waiting.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "what is sent is not taken")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stall<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stall<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.patiently(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.patiently(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
        time::{Instant, advance},
    };

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn who_never_reads_is_given_up() {
        let (near, _far) = duplex(16);
        let mut stalls = Stall::new(near, PATIENCE);
        let since = Instant::now();
        let error = stalls.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(since.elapsed().as_secs(), 60);
    }

    #[tokio::test(start_paused = true)]
    async fn who_reads_slowly_is_served() {
        let (near, mut far) = duplex(16);
        let mut slow = Stall::new(near, PATIENCE);
        let reader = tokio::spawn(async move {
            let mut read = 0;
            while let Ok(some @ 1..) = far.read(&mut [0; 8]).await {
                read += some;
                advance(Duration::from_secs(50)).await;
            }
            read
        });
        slow.write_all(&[0; 640]).await.unwrap();
        // Nor does it matter how long there was nothing to send.
        advance(Duration::from_secs(3_600)).await;
        slow.write_all(&[0; 8]).await.unwrap();
        drop(slow);
        assert_eq!(reader.await.unwrap(), 648);
    }
}
