//! When a job is to start, if not at once.

use std::str::FromStr as _;

use chrono::{DateTime, Local};
use croner::Cron;
use serde::{Deserialize, Serialize};

/// When a job is to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// Once, at a time in milliseconds since the Unix epoch.
    At(u64),
    /// Whenever a cron expression says so, in local time. Each time spawns a job of its
    /// own; times that were missed are made up for by one.
    Cron(String),
}

/// A schedule cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSchedule {
    /// It is not a cron expression.
    #[error(
        "{expression:?} is not a cron expression: {why}; it has minute, hour, day of the month, \
         month and day of the week, such as `30 4 * * 1-5`"
    )]
    Expression {
        /// What was given.
        expression: String,
        /// What is wrong with it.
        why: String,
    },
    /// There is no such time.
    #[error("there is no time after now that {0:?} names")]
    Never(String),
}

impl Schedule {
    /// Returns the first time after `now_ms` that it names.
    ///
    /// # Errors
    ///
    /// When it names none, or cannot be read.
    pub fn next_after(&self, now_ms: u64) -> Result<u64, InvalidSchedule> {
        match self {
            Self::At(due_ms) => Ok(*due_ms),
            Self::Cron(expression) => next_of(expression, now_ms, &Local),
        }
    }
}

fn next_of<Z: chrono::TimeZone>(
    expression: &str,
    now_ms: u64,
    zone: &Z,
) -> Result<u64, InvalidSchedule> {
    let invalid = |why: String| InvalidSchedule::Expression {
        expression: expression.chars().take(256).collect(),
        why,
    };
    let cron = Cron::from_str(expression).map_err(|error| invalid(error.to_string()))?;
    let never = || InvalidSchedule::Never(expression.to_owned());
    let now = i64::try_from(now_ms).ok().and_then(DateTime::from_timestamp_millis);
    let now = zone.from_utc_datetime(&now.ok_or_else(never)?.naive_utc());
    let next = cron.find_next_occurrence(&now, false).map_err(|_| never())?;
    u64::try_from(next.timestamp_millis()).map_err(|_| never())
}

#[cfg(test)]
mod tests {
    use chrono::Utc;

    use super::*;

    #[test]
    fn j25_the_next_time_is_after_now() {
        // 2026-11-30 04:30:00 UTC, a Monday.
        let now_ms = 1_796_013_000_000;
        let next =
            |expression| next_of(expression, now_ms, &Utc).map(|next| (next - now_ms) / 1_000);
        assert_eq!(next("30 4 * * *"), Ok(24 * 3_600));
        assert_eq!(next("31 4 * * 1"), Ok(60));
        assert_eq!(next("@hourly"), Ok(30 * 60));
        assert!(matches!(next("61 * * * *"), Err(InvalidSchedule::Expression { .. })));
        assert!(matches!(next(""), Err(InvalidSchedule::Expression { .. })));
        assert_eq!(next("0 0 30 2 *"), Err(InvalidSchedule::Never("0 0 30 2 *".into())));
        assert!(next_of("* * * * *", u64::MAX, &Utc).is_err());
    }
}
