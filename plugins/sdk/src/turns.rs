//! Giving the host its turn: yielding and sleeping.

use std::cell::RefCell;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use wasip3::clocks::monotonic_clock;

/// How long a guest may compute before a yield takes effect. Short beside what
/// a person notices, long beside the few microseconds that a yield costs.
const TURN_NS: u64 = 5_000_000;

/// Lets the host in: it collects output and delivers a stop.
///
/// It is made to stand in every iteration of a loop. It really yields once five
/// milliseconds have passed since the guest yielded last; otherwise it costs a
/// few nanoseconds. [`Task::checkpoint`](crate::Task::checkpoint) tells of a stop
/// as well.
pub async fn yield_now() {
    if PACE.with_borrow_mut(|pace| pace.is_due(monotonic_clock::now)) {
        Yield::default().await;
        PACE.with_borrow_mut(|pace| pace.start_turn(monotonic_clock::now()));
    }
}

/// Sleeps without keeping the host out.
///
/// It sleeps through a stop; [`Task::sleep`](crate::Task::sleep) ends early.
pub async fn sleep(duration: Duration) {
    let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    monotonic_clock::wait_for(ns).await;
    PACE.with_borrow_mut(|pace| pace.start_turn(monotonic_clock::now()));
}

thread_local! {
    static PACE: RefCell<Pace> = RefCell::default();
}

/// Decides when a yield is due without reading the clock every time.
///
/// Reading the clock is a call into the host, so quick iterations are counted
/// between two readings. The count adapts and stays small, so that a loop whose
/// iterations suddenly take long is off by a few of them only.
#[derive(Debug, Default)]
struct Pace {
    turn_started: u64,
    looked: u64,
    /// How many calls pass from one look at the clock to the next.
    stride: u32,
    until_look: u32,
}

impl Pace {
    const LONGEST_STRIDE: u32 = 64;
    /// Below this many nanoseconds from look to look the stride grows.
    const CLOSE: u64 = TURN_NS / 50;

    fn is_due(&mut self, now: impl FnOnce() -> u64) -> bool {
        if self.until_look > 1 {
            self.until_look -= 1;
            return false;
        }
        let now = now();
        self.stride = if now.saturating_sub(self.looked) < Self::CLOSE {
            (self.stride * 2).clamp(1, Self::LONGEST_STRIDE)
        } else {
            1
        };
        self.until_look = self.stride;
        self.looked = now;
        now.saturating_sub(self.turn_started) >= TURN_NS
    }

    fn start_turn(&mut self, now: u64) {
        self.turn_started = now;
        self.looked = now;
    }
}

/// A future that is pending once.
#[derive(Default)]
struct Yield {
    yielded: bool,
}

impl Future for Yield {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.yielded {
            return Poll::Ready(());
        }
        self.yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs iterations of `each_ns` until a yield is due; returns how many ran
    /// and how often the clock was read.
    fn until_due(pace: &mut Pace, time: &mut u64, each_ns: u64) -> (u64, u64) {
        let (mut calls, mut looks) = (0, 0);
        loop {
            *time += each_ns;
            calls += 1;
            let due = pace.is_due(|| {
                looks += 1;
                *time
            });
            if due {
                pace.start_turn(*time);
                return (calls, looks);
            }
        }
    }

    #[test]
    fn quick_iterations_yield_after_a_turn_and_seldom_read_the_clock() {
        let mut pace = Pace::default();
        let mut time = 1;
        pace.start_turn(time);
        until_due(&mut pace, &mut time, 100);
        let (calls, looks) = until_due(&mut pace, &mut time, 100);
        assert!((50_000..50_100).contains(&calls), "{calls}");
        assert!(looks < calls / 50, "{looks} looks in {calls} calls");
    }

    #[test]
    fn slow_iterations_yield_every_time() {
        let mut pace = Pace::default();
        let mut time = 1;
        for _ in 0..5 {
            assert_eq!(until_due(&mut pace, &mut time, TURN_NS + 1), (1, 1));
        }
    }

    #[test]
    fn iterations_that_turn_slow_are_noticed_soon() {
        let mut pace = Pace::default();
        let mut time = 1;
        until_due(&mut pace, &mut time, 10);
        let (calls, _) = until_due(&mut pace, &mut time, 1_000_000_000);
        assert!(calls <= u64::from(Pace::LONGEST_STRIDE));
        assert_eq!(until_due(&mut pace, &mut time, 1_000_000_000), (1, 1));
    }
}
