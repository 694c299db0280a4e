//! How a run ends when it does not complete.

use crate::bindings::types::{Ending, Outcome};

/// Details are for status displays; what is longer belongs into the output.
const LONGEST_DETAIL: usize = 1024;

/// Why a run did not complete.
///
/// Any error of the standard kind turns into a failure with `?`, and [`Stopped`]
/// turns into the ending `killed`.
#[derive(Debug)]
pub struct Error {
    ending: Ending,
    detail: Option<String>,
}

impl Error {
    /// Returns a failure with one line that says what went wrong.
    pub fn failed(detail: impl Into<String>) -> Self {
        Self { ending: Ending::Failed, detail: Some(detail.into()) }
    }

    /// Returns the outcome that the host is told.
    pub(crate) fn into_outcome(self) -> Outcome {
        Outcome {
            ending: self.ending,
            detail: self.detail.map(|detail| one_line(&detail)),
            output: None,
        }
    }
}

// `Error` itself is no `std::error::Error`: that would overlap with this
// conversion, which is worth more to authors.
impl<E: std::error::Error> From<E> for Error {
    fn from(error: E) -> Self {
        let mut detail = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let text = error.to_string();
            // Many errors repeat their cause in their own text.
            if !detail.contains(&text) {
                detail = format!("{detail}: {text}");
            }
            cause = error.source();
        }
        Self::failed(detail)
    }
}

impl From<Stopped> for Error {
    fn from(stopped: Stopped) -> Self {
        Self { ending: Ending::Killed, detail: stopped.detail }
    }
}

/// The work was given up because a stop was asked for.
///
/// Only the SDK makes one, after a stop was really asked for; a run passes it
/// on with `?`.
#[derive(Debug)]
pub struct Stopped {
    detail: Option<String>,
}

impl Stopped {
    pub(crate) fn new() -> Self {
        Self { detail: None }
    }

    /// Adds one line about how far the work had come.
    pub fn with_detail(self, detail: impl Into<String>) -> Self {
        Self { detail: Some(detail.into()) }
    }
}

/// Returns `text` as one line of bounded length.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len().min(LONGEST_DETAIL));
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        if line.len() > LONGEST_DETAIL {
            let ellipsis = '…';
            line.truncate(line.floor_char_boundary(LONGEST_DETAIL - ellipsis.len_utf8()));
            line.push(ellipsis);
            break;
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt;

    #[derive(Debug)]
    struct Layer(&'static str, Option<Box<Layer>>);

    impl fmt::Display for Layer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl std::error::Error for Layer {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }

    fn detail_of(error: impl Into<Error>) -> String {
        error.into().into_outcome().detail.unwrap_or_default()
    }

    #[test]
    fn a_failure_names_its_causes_once() {
        let cause = Box::new(Layer("disk full", None));
        assert_eq!(
            detail_of(Layer("cannot write /out/a", Some(cause))),
            "cannot write /out/a: disk full"
        );
        let cause = Box::new(Layer("disk full", None));
        assert_eq!(
            detail_of(Layer("cannot write: disk full", Some(cause))),
            "cannot write: disk full"
        );
    }

    #[test]
    fn a_detail_is_one_bounded_line() {
        assert_eq!(detail_of(Error::failed("a\n  b\r\nc\n")), "a b c");
        let long = detail_of(Error::failed("€".repeat(1000)));
        assert!(long.len() <= LONGEST_DETAIL);
        assert!(long.ends_with("€…"));
    }

    #[test]
    fn a_stop_ends_killed() {
        let outcome = Error::from(Stopped::new().with_detail("3 of 10 files")).into_outcome();
        assert_eq!(outcome.ending, Ending::Killed);
        assert_eq!(outcome.detail.as_deref(), Some("3 of 10 files"));
    }
}
