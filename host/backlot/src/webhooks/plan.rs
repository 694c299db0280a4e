//! What follows a call: decided, not done.

use std::time::Duration;

use backlot_jobs::Call;

/// The longest wait for another try. A receiver that is back is told within it.
pub(super) const LONGEST_MS: u64 = 60 * 60 * 1_000;

/// For how long a call is tried, from the ending on: a weekend in which nobody repairs the
/// receiver is survived.
const AGE_MS: u64 = 3 * 24 * 60 * 60 * 1_000;

/// How often a call is tried. Three days have room for about eighty.
const TRIES: u32 = 100;

/// How much of a wait is left to chance, so that what failed together is not tried again
/// together.
const JITTER: f64 = 0.2;

/// How long calls that failed are waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// How long the second try is; each wait is twice the one before.
    pub(super) first_ms: u64,
}

impl Default for Pace {
    fn default() -> Self {
        // What is just being restarted is there again by then.
        Self { first_ms: 5_000 }
    }
}

/// Why a receiver was not told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// It may be told later.
    Again(String),
    /// It never will be.
    Never(String),
}

impl Trouble {
    /// Returns what a status means. `None` where the receiver has been told.
    pub(super) fn of_status(status: u16) -> Option<Self> {
        match status {
            200..=299 => None,
            // It says itself that it is gone for good.
            410 => Some(Self::Never("it answered 410: it is gone".to_owned())),
            300..=399 => {
                Some(Self::Again(format!("it answered {status}, and no redirect is followed")))
            }
            status => Some(Self::Again(format!("it answered {status}"))),
        }
    }
}

/// What becomes of a call that was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It was made.
    Made,
    /// It is tried again.
    Again {
        /// Why.
        why: String,
        /// When, in milliseconds since the Unix epoch.
        due_ms: u64,
    },
    /// It is given up.
    GivenUp {
        /// Why.
        why: String,
    },
}

/// Decides what becomes of a call for an ending of that time, once it was tried. `chance`
/// is from 0 to 1.
pub(super) fn after(
    pace: Pace,
    tried: Result<(), Trouble>,
    call: &Call,
    ended_ms: u64,
    now_ms: u64,
    chance: f64,
) -> Next {
    let why = match tried {
        Ok(()) => return Next::Made,
        Err(Trouble::Never(why)) => return Next::GivenUp { why },
        Err(Trouble::Again(why)) => why,
    };
    let due_ms = now_ms.saturating_add(wait_ms(pace, call.tries, chance));
    let is_over = call.tries.saturating_add(1) >= TRIES || due_ms > ended_ms.saturating_add(AGE_MS);
    if is_over { Next::GivenUp { why } } else { Next::Again { why, due_ms } }
}

/// Returns how long the next try is waited for after so many before this one.
fn wait_ms(pace: Pace, tries: u32, chance: f64) -> u64 {
    let doubled = 1_u64.checked_shl(tries).and_then(|times| pace.first_ms.checked_mul(times));
    let whole = doubled.unwrap_or(LONGEST_MS).min(LONGEST_MS);
    (whole as f64 * (1.0 - JITTER * chance)) as u64
}

/// Returns how long a call is waited for that is due then.
pub(super) fn until(due_ms: u64, now_ms: u64) -> Duration {
    match due_ms.saturating_sub(now_ms) {
        // No wait is so long: the clock was set back since.
        wait_ms if wait_ms > LONGEST_MS => Duration::ZERO,
        wait_ms => Duration::from_millis(wait_ms),
    }
}

#[cfg(test)]
mod tests {
    use backlot_jobs::{DeliveryId, JobId};

    use super::*;

    fn call(tries: u32) -> Call {
        Call {
            delivery: DeliveryId::new(JobId::from_bits(1), 1),
            tries,
            due_ms: Some(1),
            why: None,
        }
    }

    const PACE: Pace = Pace { first_ms: 5_000 };

    fn again(why: &str) -> Result<(), Trouble> {
        Err(Trouble::Again(why.to_owned()))
    }

    #[test]
    fn waits_double_up_to_an_hour_and_are_spread() {
        let waits: Vec<u64> = (0..13).map(|tries| wait_ms(PACE, tries, 0.0) / 1_000).collect();
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600, 3600]);
        assert_eq!((wait_ms(PACE, 0, 1.0), wait_ms(PACE, 0, 0.5)), (4_000, 4_500));
        assert_eq!(wait_ms(PACE, 63, 0.0), LONGEST_MS);
        assert_eq!(wait_ms(PACE, u32::MAX, 0.0), LONGEST_MS);
    }

    #[test]
    fn a_call_is_made_tried_again_or_given_up() {
        assert_eq!(after(PACE, Ok(()), &call(0), 0, 0, 0.0), Next::Made);
        let next = Next::Again { why: "no".into(), due_ms: 25_000 };
        assert_eq!(after(PACE, again("no"), &call(1), 0, 15_000, 0.0), next);
        let given_up = Next::GivenUp { why: "no".into() };
        assert_eq!(after(PACE, Err(Trouble::Never("no".into())), &call(0), 0, 0, 0.0), given_up);
        // After three days, or a hundred tries.
        assert_eq!(after(PACE, again("no"), &call(90), 0, AGE_MS - 1_000, 0.0), given_up);
        assert!(matches!(
            after(PACE, again("no"), &call(90), 0, AGE_MS - LONGEST_MS, 0.0),
            Next::Again { due_ms: AGE_MS, .. }
        ));
        assert_eq!(after(PACE, again("no"), &call(TRIES - 1), 0, 0, 0.0), given_up);
        assert_eq!(after(PACE, again("no"), &call(u32::MAX), u64::MAX, u64::MAX, 0.0), given_up);
    }

    #[test]
    fn a_call_that_nobody_answers_is_given_up_within_three_days() {
        let (mut now_ms, mut tries) = (0, 0);
        while let Next::Again { due_ms, .. } =
            after(PACE, again("no"), &call(tries), 0, now_ms, 0.0)
        {
            (now_ms, tries) = (due_ms, tries + 1);
        }
        assert!((70..TRIES).contains(&tries), "{tries}");
        assert!((AGE_MS - LONGEST_MS..=AGE_MS).contains(&now_ms), "{now_ms}");
    }

    #[test]
    fn a_status_says_what_there_is_to_do() {
        for status in [200, 202, 204, 299] {
            assert_eq!(Trouble::of_status(status), None);
        }
        assert!(matches!(Trouble::of_status(410), Some(Trouble::Never(_))));
        for status in [100, 301, 302, 307, 400, 404, 429, 500, 503, 999] {
            assert!(matches!(Trouble::of_status(status), Some(Trouble::Again(_))), "{status}");
        }
    }

    #[test]
    fn a_clock_that_was_set_back_holds_no_call_up() {
        assert_eq!(until(5, 9), Duration::ZERO);
        assert_eq!(until(9, 5), Duration::from_millis(4));
        assert_eq!(until(LONGEST_MS, 0), Duration::from_millis(LONGEST_MS));
        assert_eq!(until(LONGEST_MS + 1, 0), Duration::ZERO);
    }
}
