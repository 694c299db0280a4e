//! The running task as its work sees it.

use crate::bindings::host;
use crate::error::{Stopped, one_line};
use crate::output::{Output, Pending};
use crate::producer::{Form, StopRefusal, Stream};
use crate::request::Request;
use crate::signal::Signal;
use crate::turns;
use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// The running task: its request, its stop token, its progress and its output.
///
/// A clone is another handle on the same task.
pub struct Task<F: Form> {
    shared: Rc<Shared>,
    form: PhantomData<F>,
}

impl<F: Form> Task<F> {
    pub(crate) fn new(shared: Rc<Shared>) -> Self {
        Self { shared, form: PhantomData }
    }

    /// Returns what the run was given.
    pub fn request(&self) -> &Request {
        &self.shared.request
    }

    /// Shows one line of progress; it replaces the line before.
    pub fn report(&self, progress: impl AsRef<str>) {
        host::report(&one_line(progress.as_ref()));
    }

    /// Resolves with the reason, if one was given, once a stop was asked for.
    pub async fn stopped(&self) -> Option<String> {
        let stop = &self.shared.stop;
        stop.bell.wait_for(|| stop.agreed.borrow().clone()).await
    }

    /// Tells whether a stop was asked for, and the reason if one was given,
    /// for code that cannot await.
    ///
    /// From the first yes on the task has a few seconds to end. Code that
    /// awaits now and then need not call this.
    pub fn stop_requested(&self) -> Option<Option<String>> {
        if !self.shared.stop.is_agreed() {
            // The host could not reach the guest yet, so nobody has asked the
            // producer. A stop that it refuses is none, and it is asked again.
            let reason = host::stop_requested()?;
            let _ = self.shared.stop.ask(reason);
        }
        self.shared.stop.agreed.borrow().clone()
    }

    /// Lets the host in now and then, and returns [`Stopped`] once a stop was
    /// asked for.
    ///
    /// It is made to stand in every iteration of a loop, see [`yield_now`](crate::yield_now).
    pub async fn checkpoint(&self) -> Result<(), Stopped> {
        turns::yield_now().await;
        self.shared.stop.check()
    }

    /// Sleeps without keeping the host out, and returns [`Stopped`] as soon as
    /// a stop was asked for.
    pub async fn sleep(&self, duration: Duration) -> Result<(), Stopped> {
        self.until_stopped(turns::sleep(duration)).await
    }

    /// Returns what `work` returns, or [`Stopped`] as soon as a stop was asked
    /// for; the work is dropped then.
    pub async fn until_stopped<T>(&self, work: impl Future<Output = T>) -> Result<T, Stopped> {
        let mut stopped = pin!(self.stopped());
        let mut work = pin!(work);
        poll_fn(|context| {
            if stopped.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err(Stopped::new()));
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }
}

impl Task<Stream> {
    /// Writes all of `bytes` to the output, and waits for the host to collect
    /// some whenever more than 4 MiB of it are pending, so that nothing is lost.
    ///
    /// A write that fits is made also after a stop was asked for; one that would
    /// have to wait returns [`Stopped`] then.
    pub async fn write_all(&self, bytes: impl AsRef<[u8]>) -> Result<(), Stopped> {
        let Shared { output, stop, .. } = &*self.shared;
        let mut rest = bytes.as_ref();
        loop {
            rest = &rest[output.accept(rest)..];
            if rest.is_empty() {
                return Ok(());
            }
            let room = || match output.accept(rest) {
                0 => stop.is_agreed().then_some(0),
                accepted => Some(accepted),
            };
            match output.room.wait_for(room).await {
                0 => return Err(Stopped::new()),
                accepted => rest = &rest[accepted..],
            }
        }
    }

    /// Writes `text` and a line end, as [`write_all`](Self::write_all) does.
    pub async fn write_line(&self, text: impl AsRef<[u8]>) -> Result<(), Stopped> {
        let text = text.as_ref();
        let mut line = Vec::with_capacity(text.len() + 1);
        line.extend_from_slice(text);
        line.push(b'\n');
        self.write_all(line).await
    }

    /// Returns a handle for writing output from code that cannot await.
    pub fn output(&self) -> Output {
        Output::new(self.shared.output.clone())
    }
}

impl<F: Form> Clone for Task<F> {
    fn clone(&self) -> Self {
        Self::new(self.shared.clone())
    }
}

impl<F: Form> fmt::Debug for Task<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Task").field(&self.shared.request.task).finish()
    }
}

/// What the work and the exports of a task share.
pub(crate) struct Shared {
    pub request: Request,
    pub output: Rc<Pending>,
    pub stop: Stop,
}

/// The producer's say in a stop.
type Hook = Box<dyn Fn(Option<&str>) -> Result<(), StopRefusal>>;

/// Whether the task is to stop.
pub(crate) struct Stop {
    /// The reason of the stop that the producer agreed to, once it has.
    agreed: RefCell<Option<Option<String>>>,
    hook: Hook,
    bell: Signal,
    output: Rc<Pending>,
}

impl Stop {
    pub(crate) fn new(hook: Hook, output: Rc<Pending>) -> Self {
        Self { agreed: RefCell::default(), hook, bell: Signal::default(), output }
    }

    /// Asks the producer to agree to a stop, and wakes its work if it does. An
    /// agreed stop is not asked for again; the first reason stands.
    pub(crate) fn ask(&self, reason: Option<String>) -> Result<(), StopRefusal> {
        if self.is_agreed() {
            return Ok(());
        }
        (self.hook)(reason.as_deref())?;
        *self.agreed.borrow_mut() = Some(reason);
        self.bell.ring();
        // A writer that waits for room waits for this as well.
        self.output.room.ring();
        Ok(())
    }

    fn is_agreed(&self) -> bool {
        self.agreed.borrow().is_some()
    }

    fn check(&self) -> Result<(), Stopped> {
        match self.is_agreed() {
            true => Err(Stopped::new()),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_refused_stop_is_none_and_may_be_asked_for_again() {
        let ready = Rc::new(Cell::new(false));
        let hook = ready.clone();
        let stop = Stop::new(
            Box::new(move |_| match hook.get() {
                true => Ok(()),
                false => Err(StopRefusal::NotNow("committing".to_owned())),
            }),
            Rc::default(),
        );
        assert!(stop.ask(Some("first".to_owned())).is_err());
        assert!(stop.check().is_ok());

        ready.set(true);
        assert!(stop.ask(Some("second".to_owned())).is_ok());
        assert!(stop.check().is_err());

        ready.set(false);
        assert!(stop.ask(Some("third".to_owned())).is_ok(), "agreed is agreed");
        assert_eq!(*stop.agreed.borrow(), Some(Some("second".to_owned())));
    }
}
