//! Where the driver of a task, its control handle and its guest's imports meet.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use backlot_registry::{Agreed, Channel, Outcome, Refusal, StopRefusal, Stream, TaskHost, Usage};
use futures::task::AtomicWaker;
use tokio::sync::{Notify, oneshot};

use crate::{
    audit,
    secret::{Outlet, Secrets},
    signal::Signal,
};

/// How many denials of one task are told one by one: enough to see what it wants,
/// and not so many that a task could fill a log with them.
const DENIALS: u64 = 20;

/// A call into the guest that can be in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Call {
    Instantiate,
    Run,
    Done,
    Cancel,
    ReadOutput,
}

impl Call {
    /// Returns the name that the contract gives the call.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Instantiate => "instantiation",
            Self::Run => "run",
            Self::Done => "done",
            Self::Cancel => "cancel",
            Self::ReadOutput => "read-output",
        }
    }
}

/// What passes between the driver of a task and everybody who reaches for it.
pub(crate) struct Link {
    pub(crate) host: TaskHost,
    state: Mutex<State>,
    /// Wakes the conversation with the guest when there is something to ask.
    waker: AtomicWaker,
    /// Wakes everybody who waits for the guest to be told of a stop.
    told: Notify,
    drain_wanted: AtomicBool,
    /// Whether the last drain has taken all that the guest held.
    dry: AtomicBool,
    /// The driver is gone: nothing that is asked for will be answered.
    ended: AtomicBool,
    is_command: bool,
    /// Counts the drains that were finished.
    drains: AtomicU64,
    /// Wakes everybody who waits for a drain. With the counter it is what a
    /// `watch` channel is, without the eight queues that every task would pay for.
    drained: Notify,
    /// Counts what the guest was denied.
    denials: AtomicU64,
    secrets: Option<Arc<Secrets>>,
    call: AtomicU8,
    cpu_ns: AtomicU64,
    pub(crate) peak_memory: Arc<AtomicU64>,
}

#[derive(Default)]
struct State {
    signal: Signal,
    cancel: Option<oneshot::Sender<Result<Agreed, StopRefusal>>>,
    outcome: Option<Outcome>,
}

impl Link {
    pub(crate) fn new(host: TaskHost, is_command: bool, secrets: Option<Arc<Secrets>>) -> Self {
        Self {
            host,
            state: Mutex::default(),
            waker: AtomicWaker::new(),
            told: Notify::new(),
            drain_wanted: AtomicBool::new(false),
            dry: AtomicBool::new(true),
            ended: AtomicBool::new(false),
            is_command,
            drains: AtomicU64::new(0),
            drained: Notify::new(),
            denials: AtomicU64::new(0),
            secrets,
            call: AtomicU8::new(Call::Instantiate as u8),
            cpu_ns: AtomicU64::new(0),
            peak_memory: Arc::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change below is whole before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // What the control handle does.

    /// Asks the guest to stop. Resolves when it has answered, or has read of it.
    pub(crate) async fn ask(&self, reason: Option<String>) -> Result<Agreed, StopRefusal> {
        let (reply, answer) = oneshot::channel();
        {
            let mut state = self.state();
            state.signal.ask(reason);
            state.cancel = Some(reply);
        }
        self.waker.wake();
        tokio::select! {
            // The guest is dropped while it is being asked only when it traps then.
            answer = answer => answer.unwrap_or_else(|_| {
                Err(StopRefusal::Crashed("the guest trapped in cancel".to_owned()))
            }),
            _ = self.told() => Ok(Agreed::WindsDown),
        }
    }

    /// Asks for the output that the guest holds. Resolves when it is in the spool.
    pub(crate) async fn drain(&self) {
        let mut drained = pin!(self.drained.notified());
        // Registered before the look, so that no wake-up falls between.
        drained.as_mut().enable();
        if self.ended.load(Ordering::Acquire) {
            return;
        }
        self.want_drain();
        self.waker.wake();
        drained.await;
    }

    /// Returns what the task has used.
    pub(crate) fn usage(&self) -> Usage {
        Usage { cpu: self.cpu(), peak_memory: self.peak_memory.load(Ordering::Relaxed) }
    }

    /// Returns the linear memory of the guest, in bytes. It never shrinks.
    pub(crate) fn memory(&self) -> u64 {
        self.peak_memory.load(Ordering::Relaxed)
    }

    // What the guest's imports do.

    /// Returns the secrets that the guest may use, if there are any.
    pub(crate) fn secrets(&self) -> Option<&Arc<Secrets>> {
        self.secrets.as_ref()
    }

    /// Returns the text with the secrets in it hidden.
    pub(crate) fn masked(&self, text: String) -> String {
        match &self.secrets {
            Some(secrets) => secrets.mask_text(text),
            None => text,
        }
    }

    /// Shows what the guest reports of its progress.
    pub(crate) fn report(&self, detail: String) {
        self.host.report(&self.masked(detail));
    }

    /// Counts a denial, and tells whether it is one of those that are told.
    pub(crate) fn is_denial_told(&self) -> bool {
        self.denials.fetch_add(1, Ordering::Relaxed) < DENIALS
    }

    /// Answers `stop-requested`.
    pub(crate) fn look(&self) -> Option<Option<String>> {
        let answer = self.state().signal.look();
        if answer.is_some() {
            self.told.notify_waiters();
        }
        answer
    }

    /// Resolves with the reason once the guest has been told of a stop.
    pub(crate) async fn told(&self) -> Option<String> {
        loop {
            let told = self.told.notified();
            tokio::pin!(told);
            // Registered before the look, so that no wake-up falls between.
            told.as_mut().enable();
            if let Some(reason) = self.state().signal.told() {
                return reason;
            }
            told.await;
        }
    }

    // What the driver does.

    /// Resolves when somebody wants something of the guest.
    pub(crate) async fn wanted(&self) {
        poll_fn(|cx| {
            self.waker.register(cx.waker());
            match self.is_wanted() {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }

    fn is_wanted(&self) -> bool {
        self.is_drain_wanted() || self.state().cancel.is_some()
    }

    /// Takes the stop that was asked for, if one was, and its reason.
    pub(crate) fn take_cancel(&self) -> Option<(Option<String>, CancelReply<'_>)> {
        let mut state = self.state();
        let reply = state.cancel.take()?;
        let reason = state.signal.enter();
        Some((reason, CancelReply { link: self, reply }))
    }

    /// Asks for a drain. The conversation sees it when it is polled next.
    pub(crate) fn want_drain(&self) {
        self.drain_wanted.store(true, Ordering::Release);
    }

    pub(crate) fn is_drain_wanted(&self) -> bool {
        self.drain_wanted.load(Ordering::Acquire)
    }

    pub(crate) fn take_drain(&self) -> bool {
        self.drain_wanted.swap(false, Ordering::AcqRel)
    }

    /// Notes that a drain was finished, and whether the guest ran dry.
    pub(crate) fn drained(&self, dry: bool) {
        self.dry.store(dry, Ordering::Relaxed);
        self.drains.fetch_add(1, Ordering::Relaxed);
        self.drained.notify_waiters();
    }

    /// Returns how many drains were finished.
    pub(crate) fn drains(&self) -> u64 {
        self.drains.load(Ordering::Relaxed)
    }

    /// Tells whether the last drain has taken all that the guest held.
    pub(crate) fn is_dry(&self) -> bool {
        self.dry.load(Ordering::Relaxed)
    }

    pub(crate) fn enter(&self, call: Call) {
        self.call.store(call as u8, Ordering::Relaxed);
    }

    /// Returns the call that is in flight.
    pub(crate) fn call(&self) -> Call {
        match self.call.load(Ordering::Relaxed) {
            call if call == Call::Instantiate as u8 => Call::Instantiate,
            call if call == Call::Run as u8 => Call::Run,
            call if call == Call::Cancel as u8 => Call::Cancel,
            call if call == Call::ReadOutput as u8 => Call::ReadOutput,
            _ => Call::Done,
        }
    }

    /// Tells whether the guest is a program.
    pub(crate) fn is_command(&self) -> bool {
        self.is_command
    }

    /// Takes a piece of the output that the guest held.
    pub(crate) fn write(&self, piece: &[u8]) {
        let secrets = self.secrets.as_deref();
        Outlet::new(&self.host, secrets, Stream::Output, Channel::Out).write(piece);
    }

    /// Writes a line of the host's own into the task's log.
    pub(crate) fn note(&self, line: &str) {
        let line = self.masked(format!("{line}\n"));
        self.host.log().write_as(Channel::Err, line.as_bytes());
    }

    pub(crate) fn settle(&self, outcome: Outcome) {
        let outcome = self.masked_outcome(outcome);
        self.state().outcome = Some(outcome);
    }

    /// Returns the outcome with the secrets in it hidden.
    pub(crate) fn masked_outcome(&self, outcome: Outcome) -> Outcome {
        match &self.secrets {
            Some(secrets) => secrets.mask_outcome(outcome),
            None => outcome,
        }
    }

    /// Returns the refusal with the secrets in it hidden.
    pub(crate) fn masked_refusal(&self, refusal: Refusal) -> Refusal {
        match &self.secrets {
            Some(secrets) => secrets.mask_refusal(refusal),
            None => refusal,
        }
    }

    pub(crate) fn settled(&self) -> bool {
        self.state().outcome.is_some()
    }

    pub(crate) fn take_outcome(&self) -> Option<Outcome> {
        self.state().outcome.take()
    }

    /// Writes what is left to say, and tells everybody who waits for output that no
    /// more will come. Who waits for a stop hears of the end from the task itself.
    pub(crate) fn hang_up(&self) {
        if let Some(secrets) = &self.secrets {
            secrets.flush(&self.host);
        }
        let untold = self.denials.load(Ordering::Relaxed).saturating_sub(DENIALS);
        if untold > 0 {
            self.note(&format!("denied: {untold} more"));
            audit::more_denials(self.host.task(), untold);
        }
        self.ended.store(true, Ordering::Release);
        self.drained(true);
    }

    pub(crate) fn add_cpu(&self, spent: Duration) {
        let ns = u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX);
        self.cpu_ns.fetch_add(ns, Ordering::Relaxed);
    }

    pub(crate) fn cpu(&self) -> Duration {
        Duration::from_nanos(self.cpu_ns.load(Ordering::Relaxed))
    }
}

/// The answer that somebody who asked for a stop waits for.
#[must_use = "whoever asked waits for the answer"]
pub(crate) struct CancelReply<'a> {
    link: &'a Link,
    reply: oneshot::Sender<Result<Agreed, StopRefusal>>,
}

impl CancelReply<'_> {
    pub(crate) fn agreed(self) {
        self.link.state().signal.agree();
        self.link.told.notify_waiters();
        // Whoever asked may have stopped listening.
        let _ = self.reply.send(Ok(Agreed::WindsDown));
    }

    pub(crate) fn refused(self, why: StopRefusal) {
        let why = match &self.link.secrets {
            Some(secrets) => secrets.mask_stop_refusal(why),
            None => why,
        };
        self.link.state().signal.refuse();
        // Whoever asked may have stopped listening.
        let _ = self.reply.send(Err(why));
    }
}
