//! A bell that any number of futures can wait for.

use std::cell::RefCell;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// A bell: ringing it wakes every future that waits for something.
///
/// It holds no state of its own. A future waits for a condition, which is
/// looked at first and again after every ring.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    /// The futures that wait, at the places that they hold. A place is given
    /// back when its future is dropped, so that a long run of waits that end
    /// early does not pile up wakers.
    waiting: RefCell<Vec<Place>>,
}

#[derive(Debug)]
enum Place {
    Free,
    /// Held by a future that was woken and has not been polled since.
    Woken,
    Waiting(Waker),
}

impl Signal {
    /// Wakes every future that waits.
    pub(crate) fn ring(&self) {
        // Collected first: a waker may run code that comes back here.
        let wakers: Vec<Waker> = self
            .waiting
            .borrow_mut()
            .iter_mut()
            .filter(|place| matches!(place, Place::Waiting(_)))
            .filter_map(|place| match std::mem::replace(place, Place::Woken) {
                Place::Waiting(waker) => Some(waker),
                Place::Free | Place::Woken => None,
            })
            .collect();
        for waker in wakers {
            waker.wake();
        }
    }

    /// Returns what `condition` returns, once it returns something.
    pub(crate) fn wait_for<T, C: FnMut() -> Option<T> + Unpin>(
        &self,
        condition: C,
    ) -> WaitFor<'_, C> {
        WaitFor { signal: self, place: None, condition }
    }

    fn hold(&self, held: Option<usize>, waker: &Waker) -> usize {
        let mut waiting = self.waiting.borrow_mut();
        let free = || waiting.iter().position(|place| matches!(place, Place::Free));
        match held.or_else(free) {
            Some(at) => {
                waiting[at] = Place::Waiting(waker.clone());
                at
            }
            None => {
                waiting.push(Place::Waiting(waker.clone()));
                waiting.len() - 1
            }
        }
    }

    fn give_back(&self, at: usize) {
        self.waiting.borrow_mut()[at] = Place::Free;
    }
}

/// A wait for a condition that may change when its signal rings.
#[derive(Debug)]
pub(crate) struct WaitFor<'a, C> {
    signal: &'a Signal,
    place: Option<usize>,
    condition: C,
}

impl<T, C: FnMut() -> Option<T> + Unpin> Future for WaitFor<'_, C> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match (self.condition)() {
            Some(value) => Poll::Ready(value),
            None => {
                self.place = Some(self.signal.hold(self.place, context.waker()));
                Poll::Pending
            }
        }
    }
}

impl<C> Drop for WaitFor<'_, C> {
    fn drop(&mut self) {
        if let Some(at) = self.place {
            self.signal.give_back(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_ring_wakes_all_and_the_condition_decides() {
        let signal = Signal::default();
        let open = Cell::new(false);
        let wakes = Arc::new(Count::default());
        let waker = wakes.clone().into();
        let mut context = Context::from_waker(&waker);
        let mut one = pin!(signal.wait_for(|| open.get().then_some(1)));
        let mut two = pin!(signal.wait_for(|| open.get().then_some(2)));
        assert!(one.as_mut().poll(&mut context).is_pending());
        assert!(two.as_mut().poll(&mut context).is_pending());

        signal.ring();
        signal.ring();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 2, "woken once each");
        assert!(one.as_mut().poll(&mut context).is_pending());

        open.set(true);
        signal.ring();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 3);
        assert_eq!(one.as_mut().poll(&mut context), Poll::Ready(1));
        assert_eq!(two.as_mut().poll(&mut context), Poll::Ready(2));
    }

    #[test]
    fn waits_that_end_early_leave_nothing_behind() {
        let signal = Signal::default();
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..1000 {
            let mut wait = pin!(signal.wait_for(|| None::<()>));
            assert!(wait.as_mut().poll(&mut context).is_pending());
        }
        assert_eq!(signal.waiting.borrow().len(), 1);
    }
}
