//! What jobs and their runs are called.
//!
//! Both are random: whoever holds one was given it. A run's id is never the
//! registry's id of the task that does it; that one is predictable, and counts anew
//! when the host is started anew.

use std::{fmt, str::FromStr};

use backlot_registry::SessionId;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// How many digits of an id are shown where there is no other that begins like it.
pub const SHORT: usize = 8;

/// The id of a job: 128 random bits, written as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(u128);

/// The id of one run of a job, an attempt or a step: 128 random bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(u128);

/// A text is not an id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an id: an id is 32 hexadecimal digits")]
pub struct InvalidId {
    /// The text as it was given, cut if it is long.
    pub text: String,
}

/// The machine gave no random bits, so nothing can be named.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system gives no random numbers: {0}")]
pub struct NoRandom(pub String);

macro_rules! random_id {
    ($name:ident) => {
        impl $name {
            /// Returns a new id.
            ///
            /// # Errors
            ///
            /// [`NoRandom`] when the system has no random numbers to give.
            pub fn random() -> Result<Self, NoRandom> {
                random().map(Self)
            }

            /// Returns the id of those bits.
            pub const fn from_bits(bits: u128) -> Self {
                Self(bits)
            }

            /// Returns its bits.
            pub const fn bits(self) -> u128 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{self}")
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                let digits = text.len() == 32 && text.bytes().all(is_digit);
                let bits = digits.then(|| u128::from_str_radix(text, 16).ok()).flatten();
                bits.map(Self).ok_or_else(|| InvalidId { text: text.chars().take(64).collect() })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                String::deserialize(from)?.parse().map_err(de::Error::custom)
            }
        }
    };
}

random_id!(JobId);
random_id!(RunId);

/// Returns random bits.
pub(crate) fn random() -> Result<u128, NoRandom> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| NoRandom(error.to_string()))?;
    Ok(u128::from_le_bytes(bytes))
}

/// One way to write an id: lower case.
fn is_digit(byte: u8) -> bool {
    byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)
}

/// What the sessions that jobs run in begin with. No other session may.
const OWN: &str = "job-";

impl JobId {
    /// Returns its first digits, for people.
    pub fn short(&self) -> String {
        self.to_string()[..SHORT].to_owned()
    }

    /// Returns the session that the job's runs belong to.
    pub fn session(&self) -> SessionId {
        format!("{OWN}{self}").into()
    }

    /// Returns the job whose own session that is, if it is a job's.
    pub fn of_session(session: &SessionId) -> Option<Self> {
        session.as_str().strip_prefix(OWN)?.parse().ok()
    }
}

/// The ids that begin with certain digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    first: u128,
    last: u128,
}

impl Prefix {
    /// Returns the first id that begins so.
    pub fn first(&self) -> JobId {
        JobId(self.first)
    }

    /// Returns the last id that begins so.
    pub fn last(&self) -> JobId {
        JobId(self.last)
    }
}

impl FromStr for Prefix {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let invalid = || InvalidId { text: text.chars().take(64).collect() };
        let digits = (1..=32).contains(&text.len()) && text.bytes().all(is_digit);
        let bits = digits.then(|| u128::from_str_radix(text, 16).ok()).flatten();
        let bits = bits.ok_or_else(invalid)?;
        let open = 4 * (32 - text.len());
        // All 128 bits cannot be shifted out, and a digit is left in any case.
        let first = bits << open;
        Ok(Self { first, last: first | ((1 << open) - 1) })
    }
}

/// Names the telling of one ending of one job. Whoever is told twice is told the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DeliveryId(String);

impl DeliveryId {
    /// Returns that of a job's `number`th ending.
    pub fn new(job: JobId, number: u32) -> Self {
        Self(format!("{job}.{number}"))
    }

    /// Returns the id of that text, which may be any.
    pub fn from_text(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the job and the number of the ending, if that is what it says.
    pub fn parts(&self) -> Option<(JobId, u32)> {
        let (job, number) = self.0.split_once('.')?;
        Some((job.parse().ok()?, number.parse().ok()?))
    }
}

impl fmt::Display for DeliveryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_way_to_write_an_id() {
        let id = JobId::random().unwrap();
        assert_eq!(id.to_string().parse(), Ok(id));
        let upper = "ABCDEF00000000000000000000000000";
        for text in ["", "12", &id.to_string()[1..], &format!("{id}0"), upper, "é"] {
            text.parse::<JobId>().unwrap_err();
        }
        assert_ne!(JobId::random().unwrap(), id);
    }

    #[test]
    fn a_prefix_holds_the_ids_that_begin_so() {
        let prefix: Prefix = "a0".parse().unwrap();
        assert_eq!(prefix.first().to_string(), format!("a0{}", "0".repeat(30)));
        assert_eq!(prefix.last().to_string(), format!("a0{}", "f".repeat(30)));
        let whole: Prefix = "1".repeat(32).parse().unwrap();
        assert_eq!(whole.first(), whole.last());
        for text in ["", "g", "+1", &"1".repeat(33)] {
            text.parse::<Prefix>().unwrap_err();
        }
    }

    #[test]
    fn a_session_of_a_job_names_it() {
        let id = JobId::from_bits(7);
        assert_eq!(JobId::of_session(&id.session()), Some(id));
        assert_eq!(JobId::of_session(&"job-7".into()), None);
        assert_eq!(JobId::of_session(&"chat".into()), None);
    }

    #[test]
    fn a_delivery_names_the_job_and_which_of_its_endings() {
        let id = DeliveryId::new(JobId::from_bits(7), 2);
        assert_eq!(id.parts(), Some((JobId::from_bits(7), 2)));
        assert_eq!(DeliveryId::from_text("x").parts(), None);
    }
}
