//! What tasks, kinds, sessions and agents are called.

use std::{fmt, str::FromStr, sync::Arc};

/// The name of a kind of work, the prefix of its task ids.
///
/// Lower-case letters and digits in groups that single hyphens join, beginning
/// with a letter, at most 64 bytes: `grep`, `site-check`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(Arc<str>);

/// The longest name of a kind, in bytes. Long enough for any sensible name,
/// short enough to stand in every log line.
const KIND_BYTES: usize = 64;

impl Kind {
    /// Returns the kind of that name.
    ///
    /// # Errors
    ///
    /// [`InvalidKind`] unless the name has the form that [`Kind`] describes.
    pub fn new(name: &str) -> Result<Self, InvalidKind> {
        if is_kind(name) {
            Ok(Self(name.into()))
        } else {
            Err(InvalidKind { name: name.chars().take(KIND_BYTES).collect() })
        }
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_kind(name: &str) -> bool {
    name.len() <= KIND_BYTES
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.split('-').all(|group| {
            !group.is_empty()
                && group.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        })
}

impl FromStr for Kind {
    type Err = InvalidKind;

    fn from_str(name: &str) -> Result<Self, InvalidKind> {
        Self::new(name)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A name cannot be that of a kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} is not a kind: use lower-case letters and digits, in groups joined by single \
     hyphens, beginning with a letter, at most 64 bytes"
)]
pub struct InvalidKind {
    /// The name as it was given, cut if it is long.
    pub name: String,
}

/// The id of a task: its kind and a number that is never used twice, `grep-7`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId {
    /// The kind of the task.
    pub kind: Kind,
    /// Counts the tasks of the kind.
    pub number: u64,
}

impl FromStr for TaskId {
    type Err = InvalidTaskId;

    /// Parses an id at its last hyphen. There is one way to write an id, so a
    /// sign or a leading zero is refused.
    fn from_str(text: &str) -> Result<Self, InvalidTaskId> {
        parse(text).ok_or_else(|| InvalidTaskId { text: text.chars().take(96).collect() })
    }
}

fn parse(text: &str) -> Option<TaskId> {
    let (kind, digits) = text.rsplit_once('-')?;
    let kind = Kind::new(kind).ok()?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    if digits.len() > 1 && digits.starts_with('0') {
        return None;
    }
    Some(TaskId { kind, number: digits.parse().ok()? })
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.kind, self.number)
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A text is not the id of a task.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a task id: a task id is a kind, a hyphen and a number, such as grep-7")]
pub struct InvalidTaskId {
    /// The text as it was given, cut if it is long.
    pub text: String,
}

/// Names the session that a caller belongs to.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(Arc<str>);

/// Names an agent that can own tasks.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentId(Arc<str>);

macro_rules! opaque_id {
    ($name:ident) => {
        impl $name {
            /// Returns the id of that text, which may be any.
            pub fn new(text: impl Into<Arc<str>>) -> Self {
                Self(text.into())
            }

            /// Returns the text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

opaque_id!(SessionId);
opaque_id!(AgentId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r1_kinds_are_groups_of_letters_and_digits() {
        for name in ["a", "grep", "site-check", "a1-2-b3", &"k".repeat(64)] {
            assert_eq!(Kind::new(name).unwrap().as_str(), name);
        }
        for name in [
            "",
            "-",
            "1a",
            "Grep",
            "grep-",
            "-grep",
            "a--b",
            "a_b",
            "a b",
            "é",
            "grep\n",
            &"k".repeat(65),
        ] {
            Kind::new(name).unwrap_err();
        }
    }

    #[test]
    fn r1_an_id_is_parsed_at_its_last_hyphen() {
        for (text, kind, number) in [
            ("grep-7", "grep", 7),
            ("site-check-12", "site-check", 12),
            ("a-2-3", "a-2", 3),
            ("a-0", "a", 0),
            ("a-18446744073709551615", "a", u64::MAX),
        ] {
            let id: TaskId = text.parse().unwrap();
            assert_eq!((id.kind.as_str(), id.number), (kind, number));
            assert_eq!(id.to_string(), text);
        }
    }

    #[test]
    fn r1_there_is_one_way_to_write_an_id() {
        for text in [
            "",
            "grep",
            "grep-",
            "-7",
            "grep-07",
            "grep-00",
            "grep-+7",
            "grep--7",
            "grep-7 ",
            "grep-٧",
            "Grep-7",
            "grep-18446744073709551616",
            "grep-7a",
        ] {
            text.parse::<TaskId>().unwrap_err();
        }
    }
}
