//! `wasi:cli` standard streams: what a guest prints goes to its task's spool.
//!
//! The spool is bounded and takes every write at once, so a guest never waits
//! for a reader, and a reader that never comes costs nothing but the bound.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use tokio::io::AsyncWrite;
use wasmtime_wasi::{
    cli::{IsTerminal, StdoutStream},
    p2::{OutputStream, Pollable, StreamResult},
};

use crate::secret::Outlet;

/// What one write may bring; wasi-libc and std split larger ones themselves.
const WRITE_BYTES: usize = 64 << 10;

/// One of a guest's standard output streams.
#[derive(Clone)]
pub(crate) struct SpoolStream(Outlet);

impl SpoolStream {
    pub(crate) fn new(outlet: Outlet) -> Self {
        Self(outlet)
    }
}

impl StdoutStream for SpoolStream {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

impl IsTerminal for SpoolStream {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl OutputStream for SpoolStream {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.0.write(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(WRITE_BYTES)
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for SpoolStream {
    async fn ready(&mut self) {}
}

impl AsyncWrite for SpoolStream {
    fn poll_write(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.write(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
