//! The driver of one task: its `done`, from `run` to quiescence.
//!
//! It owns the store, so dropping it ends the guest at any point. Inside the
//! store a conversation calls the guest: `done`, and beside it `cancel` and
//! `read-output` whenever the guest is not executing. Around the store stand
//! the bounds that must hold while the guest computes or blocks: nothing inside
//! is polled then.

use std::{
    future::Future,
    mem,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use backlot_registry::Outcome;
use rustix::time::{ClockId, Timespec, clock_gettime};
use tokio::time::{Instant, Sleep, sleep_until};
use wasmtime::{Store, component::Accessor};

use crate::{
    command,
    component::Running,
    contract::Exports,
    engine::Polled,
    instance::Entered,
    limits::{Bytes, Exceeded, Limits},
    link::{Call, Link},
    store::Guest,
    trap,
};

/// What one `read-output` call is asked for, in bytes: large enough that the
/// cost of a call disappears, small enough that it never nears the limit of
/// what a call may make the host allocate.
const PIECE_BYTES: u32 = 256 << 10;
/// How many pieces one drain takes before others get their turn.
const PIECES: usize = 16;
/// How long after a guest has executed its output is fetched. A guest that only
/// yields gets no turn beside back-to-back calls.
const DRAIN_DELAY: Duration = Duration::from_millis(2);
/// A poll that is long enough for its exact CPU time to be worth two system calls.
const LONG_POLL: Duration = Duration::from_micros(100);
/// How many dry drains in a row make a parked guest.
const PARKED: u32 = 3;
/// How long the last drain may take once `done` has resolved. Less than a stop
/// waits for its answer, so that a stop does not overtake an outcome.
const TAIL_DEADLINE: Duration = Duration::from_millis(500);

/// What a guest holds: its store, and then the code that it runs.
pub(crate) struct Seat {
    pub(crate) store: Store<Guest>,
    pub(crate) _running: Running,
}

/// Drives a guest to its end, lets go of everything it held, and says how it
/// ended.
pub(crate) async fn drive(
    mut seat: Seat,
    entered: Entered,
    limits: Limits,
    polled: Polled,
    link: HangUp,
) -> Outcome {
    let holds_output = entered.holds_output();
    let end = {
        let link = &*link.0;
        let conversation = seat.store.run_concurrent(async |accessor: &Accessor<Guest>| {
            converse(accessor, &entered, link).await
        });
        let conversation = pin!(conversation);
        let guest = Metered::new(conversation, link, polled);
        Bounded::new(guest, limits, holds_output).await
    };
    let exceeded = match &end {
        End::Over(Err(error)) => seat.store.data().meter.exceeded(error),
        End::Over(Ok(())) | End::Limit(_) | End::Tail => None,
    };
    // What the guest held is released before its end is known to anybody, and so is
    // the code that it ran.
    drop(seat);
    let outcome = judge(end, exceeded, holds_output, &link.0);
    cut(link.0.masked_outcome(outcome), limits.final_output)
}

/// Talks with the guest until `done` has resolved and its output is drained. The
/// outcome is in the link as soon as it is known.
async fn converse(
    accessor: &Accessor<Guest>,
    entered: &Entered,
    link: &Link,
) -> wasmtime::Result<()> {
    link.enter(Call::Done);
    let guest = match entered {
        Entered::Command { run } => {
            let ended = run.call_concurrent(accessor, ()).await?.0;
            link.settle(command::outcome(i32::from(ended.is_err())));
            return Ok(());
        }
        Entered::Producer { guest, .. } => guest,
    };
    let mut done = pin!(guest.done(accessor));
    loop {
        if let Some((reason, reply)) = link.take_cancel() {
            link.enter(Call::Cancel);
            match guest.cancel(accessor, reason).await? {
                Ok(()) => reply.agreed(),
                Err(refusal) => reply.refused(refusal),
            }
            link.enter(Call::Done);
        }
        if link.take_drain() {
            let mut dry = true;
            if guest.has_output() {
                dry = drain(accessor, guest, link, PIECES).await?;
                link.enter(Call::Done);
            }
            link.drained(dry);
        }
        tokio::select! {
            biased;
            outcome = &mut done => {
                link.settle(outcome?);
                break;
            }
            () = link.wanted() => {}
        }
    }
    if guest.has_output() {
        // The bound on a guest that never runs dry is the deadline of the tail.
        drain(accessor, guest, link, usize::MAX).await?;
    }
    Ok(())
}

/// Moves what the guest has ready into the spool, until it has no more or
/// `pieces` were taken, and tells whether it has no more.
async fn drain(
    accessor: &Accessor<Guest>,
    guest: &Exports,
    link: &Link,
    pieces: usize,
) -> wasmtime::Result<bool> {
    for _ in 0..pieces {
        link.enter(Call::ReadOutput);
        let piece = guest.read_output(accessor, PIECE_BYTES).await?;
        if piece.is_empty() {
            return Ok(true);
        }
        link.write(&piece);
    }
    Ok(false)
}

/// Why the driver is no longer polling the guest.
enum End {
    /// The conversation is over, by itself or by a trap.
    Over(wasmtime::Result<()>),
    /// A limit was hit that wasmtime does not watch.
    Limit(Exceeded),
    /// The last drain took too long.
    Tail,
}

/// Says how the guest has ended.
fn judge(end: End, exceeded: Option<Exceeded>, holds_output: bool, link: &Link) -> Outcome {
    let lost = || match holds_output {
        true => "; output that was not handed over is lost",
        false => "",
    };
    let error = match (end, link.take_outcome()) {
        // What reached the host stands, whatever the guest does afterwards.
        (End::Over(Ok(())), Some(outcome)) => return outcome,
        (End::Over(Err(error)), Some(outcome)) => {
            let why = trap::because(&error, exceeded);
            let call = trap::executing(&error).unwrap_or_else(|| link.call()).name();
            link.note(&format!("trap in {call} after the end: {why}"));
            return tell(outcome, "the end of the output is lost: the guest trapped after its end");
        }
        (End::Tail | End::Limit(_), Some(outcome)) => {
            return tell(outcome, "the end of the output is lost: it was not handed over in time");
        }
        (End::Limit(limit), None) => return Outcome::failed(format!("{limit}{}", lost())),
        (End::Over(Err(error)), None) => error,
        (End::Over(Ok(())) | End::Tail, None) => {
            return Outcome::failed("the guest ended without an outcome");
        }
    };
    if let Some(code) = trap::exit_code(&error)
        && link.is_command()
    {
        return command::outcome(code);
    }
    let call = trap::executing(&error).unwrap_or_else(|| link.call()).name();
    let trapped = format!("trap in {call}: {}", trap::because(&error, None));
    tracing::debug!(task = %link.host.task(), call, ?error, "a guest has trapped");
    link.note(&trapped);
    if let Some(frames) = trap::frames(&error) {
        link.note(&frames);
    }
    Outcome::failed(match exceeded {
        Some(limit) => format!("{limit}; {trapped}{}", lost()),
        None => format!("{trapped}{}", lost()),
    })
}

/// Adds to an outcome what the guest could not know of it.
fn tell(mut outcome: Outcome, what: &str) -> Outcome {
    outcome.detail = Some(match outcome.detail {
        Some(detail) => format!("{detail}; {what}"),
        None => what.to_owned(),
    });
    outcome
}

/// Cuts a final output at its limit, on a character, and says how much is gone.
fn cut(mut outcome: Outcome, limit: usize) -> Outcome {
    let Some(output) = outcome.output.as_mut().filter(|output| output.len() > limit) else {
        return outcome;
    };
    let end = output.floor_char_boundary(limit);
    let gone = output.len() - end;
    output.truncate(end);
    tell(outcome, &format!("final output cut at {}, {gone} bytes dropped", Bytes(limit as u64)))
}

/// Counts the CPU time that polls of a guest take.
///
/// Epochs would bill a guest that wakes often for time it slept. The clock of
/// the thread is exact, and a system call; so until a guest has had one long
/// poll, the time that passes stands in for it. That differs only where the
/// thread was interrupted, and only up to the first long poll.
pub(crate) struct Metered<'a, F> {
    guest: Pin<&'a mut F>,
    link: &'a Link,
    polled: Polled,
    exact: bool,
}

impl<'a, F> Metered<'a, F> {
    pub(crate) fn new(guest: Pin<&'a mut F>, link: &'a Link, polled: Polled) -> Self {
        Self { guest, link, polled, exact: false }
    }
}

impl<F: Future> Future for Metered<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self { guest, link, polled, exact } = &mut *self;
        let before = if *exact { Clock::Thread(thread_cpu()) } else { Clock::Wall(Instant::now()) };
        let result = polled.during(|| guest.as_mut().poll(cx));
        let spent = match before {
            Clock::Thread(before) => thread_cpu().saturating_sub(before),
            Clock::Wall(before) => before.elapsed(),
        };
        *exact |= spent >= LONG_POLL;
        link.add_cpu(spent);
        result
    }
}

enum Clock {
    Thread(Duration),
    Wall(Instant),
}

fn thread_cpu() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(tv_sec.unsigned_abs(), u32::try_from(tv_nsec).unwrap_or(0))
}

/// A guest under the bounds that hold from outside.
struct Bounded<'a, F> {
    guest: Metered<'a, F>,
    limits: Limits,
    deadline: Option<Pin<Box<Sleep>>>,
    tail: Option<Pin<Box<Sleep>>>,
    drains: Option<DrainClock>,
}

/// When the output of a guest is fetched next.
#[derive(Default)]
struct DrainClock {
    due: Option<Pin<Box<Sleep>>>,
    /// How many drains were finished when this clock asked for the one that is
    /// under way.
    asked_after: Option<u64>,
    /// A drain of this clock was finished, whose result wakes the driver once more.
    aftermath: bool,
    /// How many drains of this clock in a row found nothing.
    dry: u32,
}

impl<'a, F: Future<Output = wasmtime::Result<wasmtime::Result<()>>>> Bounded<'a, F> {
    fn new(guest: Metered<'a, F>, limits: Limits, drains: bool) -> Self {
        // A deadline past the clock's range is none.
        let deadline = limits.deadline.and_then(|limit| Instant::now().checked_add(limit));
        Self {
            guest,
            limits,
            deadline: deadline.map(|then| Box::pin(sleep_until(then))),
            tail: None,
            drains: drains.then(DrainClock::default),
        }
    }
}

impl<F: Future<Output = wasmtime::Result<wasmtime::Result<()>>>> Future for Bounded<'_, F> {
    type Output = End;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<End> {
        let this = &mut *self;
        let link = this.guest.link;
        // Before the guest is polled, so that it finds the request.
        if let Some(drains) = &mut this.drains {
            drains.fire(cx, link);
        }
        if let Poll::Ready(over) = Pin::new(&mut this.guest).poll(cx) {
            return Poll::Ready(End::Over(over.and_then(|over| over)));
        }
        if let Some(drains) = &mut this.drains {
            drains.guest_was_polled(cx, link);
        }
        if let Some(limit) = this.limits.cpu
            && link.cpu() > limit
        {
            return Poll::Ready(End::Limit(Exceeded::Cpu(limit)));
        }
        if let Some(limit) = this.guest.polled.must_go(link.memory()) {
            return Poll::Ready(End::Limit(limit));
        }
        if let (Some(deadline), Some(limit)) = (&mut this.deadline, this.limits.deadline)
            && deadline.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(End::Limit(Exceeded::Deadline(limit)));
        }
        if !link.settled() {
            return Poll::Pending;
        }
        let tail =
            this.tail.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + TAIL_DEADLINE)));
        ready!(tail.as_mut().poll(cx));
        Poll::Ready(End::Tail)
    }
}

impl DrainClock {
    /// Asks for a drain when one is due.
    fn fire(&mut self, cx: &mut Context<'_>, link: &Link) {
        if self.due.as_mut().is_some_and(|due| due.as_mut().poll(cx).is_ready()) {
            self.due = None;
            self.asked_after = Some(link.drains());
            link.want_drain();
        }
    }

    /// Notes that the guest was polled: it may have executed, and hold output
    /// that is to be fetched soon.
    ///
    /// A drain is itself an execution, and it may be followed by another in the
    /// same poll; so it takes a few dry ones in a row to call a guest parked. A
    /// parked guest is not polled, and costs no drain at all.
    fn guest_was_polled(&mut self, cx: &mut Context<'_>, link: &Link) {
        if self.asked_after == Some(link.drains()) || link.is_drain_wanted() {
            // A drain is under way, and finds what there is.
            return;
        }
        if self.asked_after.take().is_some() {
            self.dry = if link.is_dry() { self.dry + 1 } else { 0 };
            self.aftermath = true;
        } else if mem::take(&mut self.aftermath) {
            return;
        } else {
            self.dry = 0;
        }
        if self.due.is_some() || self.dry == PARKED {
            return;
        }
        let mut due = Box::pin(sleep_until(Instant::now() + DRAIN_DELAY * (1 << self.dry)));
        // Registers the wake-up; it cannot be due yet.
        let _ = due.as_mut().poll(cx);
        self.due = Some(due);
    }
}

/// Lets nobody wait for output once the driver is gone, however it went.
pub(crate) struct HangUp(pub(crate) Arc<Link>);

impl Drop for HangUp {
    fn drop(&mut self) {
        self.0.hang_up();
    }
}
