//! What is tried again without being asked.

use serde::{Deserialize, Serialize};

use crate::{
    job::{Ending, Failure, Job},
    waiting::NEVER,
};

/// What is tried again without being asked, and when. How often is a matter of the
/// job's attempts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RetryPolicy {
    /// The failures after which it is.
    pub on: Vec<Failure>,
    /// How long the first attempt is waited for, in milliseconds.
    pub first_ms: u64,
    /// By how much each wait is longer than the one before.
    pub factor: f64,
    /// The longest wait, in milliseconds.
    pub max_ms: u64,
    /// How much of a wait is left to chance, from 0 to 1, so that what failed together
    /// is not tried again together.
    pub jitter: f64,
}

impl Default for RetryPolicy {
    /// Returns a policy that tries again what failed by itself or could not be launched:
    /// after a second, and after twice as long each time, up to five minutes.
    fn default() -> Self {
        Self {
            on: vec![Failure::Work, Failure::Launch],
            first_ms: 1_000,
            factor: 2.0,
            max_ms: 300_000,
            jitter: 0.2,
        }
    }
}

/// A policy cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the retry policy cannot be followed: {0}")]
pub struct InvalidPolicy(pub &'static str);

impl RetryPolicy {
    /// Checks that it can be followed.
    ///
    /// # Errors
    ///
    /// Says which value is out of bounds.
    pub fn check(&self) -> Result<(), InvalidPolicy> {
        // Comparisons that a NaN fails.
        if !(self.factor >= 1.0 && self.factor <= 1_000.0) {
            return Err(InvalidPolicy("`factor` must be from 1 to 1000"));
        }
        if !(self.jitter >= 0.0 && self.jitter <= 1.0) {
            return Err(InvalidPolicy("`jitter` must be from 0 to 1"));
        }
        if self.on.is_empty() {
            return Err(InvalidPolicy("`on` names no failure"));
        }
        // Each job has the list, and shows it wherever it is shown.
        let mut named = self.on.iter().enumerate();
        if named.any(|(nth, failure)| self.on[..nth].contains(failure)) {
            return Err(InvalidPolicy("`on` names a failure twice"));
        }
        Ok(())
    }

    /// Returns how long the attempt after this one is waited for, in milliseconds.
    /// `chance` is from 0 to 1, and shortens the wait by as much of the jitter.
    pub fn wait_ms(&self, attempt: u32, chance: f64) -> u64 {
        let exponent = i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX);
        let whole = (self.first_ms as f64 * self.factor.powi(exponent)).min(self.max_ms as f64);
        // A cast from a float saturates.
        (whole * (1.0 - self.jitter * chance)) as u64
    }
}

/// Returns when a job is tried again after such an ending, if its policy says so.
pub(crate) fn again_ms(job: &Job, ending: Ending, now_ms: u64, chance: f64) -> Option<u64> {
    let Ending::Failed(failure) = ending else { return None };
    let policy = job.spec.retry.as_ref()?;
    let is_due = policy.on.contains(&failure) && job.attempt < job.spec.max_attempts;
    is_due.then(|| now_ms.saturating_add(policy.wait_ms(job.attempt, chance)).min(NEVER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn j29_waits_grow_to_a_bound_and_are_spread() {
        let policy = RetryPolicy { max_ms: 5_000, ..RetryPolicy::default() };
        let waits: Vec<u64> = (1..=5).map(|attempt| policy.wait_ms(attempt, 0.0)).collect();
        assert_eq!(waits, [1_000, 2_000, 4_000, 5_000, 5_000]);
        assert_eq!(policy.wait_ms(1, 1.0), 800);
        assert_eq!(policy.wait_ms(u32::MAX, 0.0), 5_000);
        assert_eq!(RetryPolicy { max_ms: u64::MAX, ..policy }.wait_ms(u32::MAX, 0.0), u64::MAX);
    }

    #[test]
    fn j29_a_policy_that_cannot_be_followed_is_refused() {
        let good = RetryPolicy::default();
        good.check().unwrap();
        for bad in [
            RetryPolicy { factor: 0.5, ..good.clone() },
            RetryPolicy { factor: f64::NAN, ..good.clone() },
            RetryPolicy { jitter: 1.5, ..good.clone() },
            RetryPolicy { jitter: f64::NAN, ..good.clone() },
            RetryPolicy { on: Vec::new(), ..good.clone() },
            RetryPolicy { on: vec![Failure::Launch, Failure::Work, Failure::Launch], ..good },
        ] {
            bad.check().unwrap_err();
        }
    }
}
