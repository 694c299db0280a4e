//! Keeps the panics of other people's code where they happen.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use crate::BoxFuture;

/// Code that was called has panicked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("panicked: {message}")]
pub(crate) struct Panic {
    /// What it panicked with, on one line.
    pub(crate) message: String,
}

impl Panic {
    fn new(payload: Box<dyn Any + Send>) -> Self {
        let message = match payload.downcast_ref::<&str>() {
            Some(text) => (*text).to_owned(),
            None => payload
                .downcast_ref::<String>()
                .cloned()
                .unwrap_or_else(|| "a value that is no text".to_owned()),
        };
        // A payload may panic in its own drop. It is forgotten rather than trusted.
        std::mem::forget(payload);
        Self { message }
    }
}

/// Calls the function and returns what it returns, or how it panicked.
///
/// The caller must not go on using what the function may have left half done.
pub(crate) fn contain<T>(call: impl FnOnce() -> T) -> Result<T, Panic> {
    catch_unwind(AssertUnwindSafe(call)).map_err(Panic::new)
}

/// A producer's future whose panics stop here, those of its drop included.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Contained<'a, T> {
    /// Gone once it has resolved, panicked or been dropped.
    future: Option<BoxFuture<'a, T>>,
}

impl<'a, T> Contained<'a, T> {
    pub(crate) fn new(future: BoxFuture<'a, T>) -> Self {
        Self { future: Some(future) }
    }

    /// Drops the future now.
    pub(crate) fn release(&mut self) -> Result<(), Panic> {
        let future = self.future.take();
        contain(move || drop(future))
    }
}

impl<T> Future for Contained<'_, T> {
    type Output = Result<T, Panic>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(future) = &mut self.future else {
            // Whoever polls again after the end waits for ever, as with any future.
            return Poll::Pending;
        };
        match contain(|| future.as_mut().poll(cx)) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(value)) => {
                // What the work held is released before anybody hears that it
                // ended. What it said before it broke in that stands.
                if let Err(panic) = self.release() {
                    tracing::warn!(%panic, "work was done, and broke while it was released");
                }
                Poll::Ready(Ok(value))
            }
            Err(panic) => {
                // The first panic is the one to tell.
                let _ = self.release();
                Poll::Ready(Err(panic))
            }
        }
    }
}

impl<T> Drop for Contained<'_, T> {
    fn drop(&mut self) {
        // Nobody is left to tell; the host must not go down with it.
        let _ = self.release();
    }
}

/// Locks, also after a panic: every change under the registry's locks is whole
/// before anything can panic, so one failed call bricks nothing.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("in drop");
        }
    }

    #[tokio::test]
    async fn c55_a_panic_is_told_with_its_message() {
        let future = Contained::new(Box::pin(async { panic!("broke {}", 7) }));
        let panic: Result<(), Panic> = future.await;
        assert_eq!(panic.unwrap_err().message, "broke 7");
    }

    #[test]
    fn c55_a_panic_under_a_lock_bricks_nothing() {
        let mutex = Mutex::new(7);
        contain(|| {
            let _guard = lock(&mutex);
            panic!("under the lock");
        })
        .unwrap_err();
        assert!(mutex.is_poisoned());
        assert_eq!(*lock(&mutex), 7);
    }

    #[tokio::test]
    async fn c55_a_panic_in_a_drop_goes_no_further() {
        let bomb = Bomb;
        let future = Contained::new(Box::pin(async move {
            let _bomb = bomb;
            std::future::pending::<()>().await
        }));
        drop(future);

        let bomb = Bomb;
        let mut future = Contained::new(Box::pin(async move {
            let _bomb = bomb;
            std::future::pending::<()>().await
        }));
        assert!(futures::poll!(&mut future).is_pending());
        assert_eq!(future.release().unwrap_err().message, "in drop");
    }
}
