//! What an author implements, and the values that it is made of.

use crate::bindings::types;
use crate::error::{Error, one_line};
use crate::input::Input;
use crate::request::Request;
use crate::task::Task;

/// Work of one kind: what it is called, how it starts, what it does.
///
/// A value of the type is one started piece of work. See the [crate] for a
/// complete example, and [`export!`](crate::export!) for making a component of
/// it.
// One instance serves one task on one thread, so no future here has to be `Send`.
#[allow(async_fn_in_trait)]
pub trait Producer: Sized + 'static {
    /// What the work starts from: anything that deserializes from JSON, or
    /// [`Text`](crate::Text).
    type Input: Input;

    /// How the work hands over its output: [`Stream`], [`Final`] or [`Printed`].
    type Form: Form;

    /// What the producer says of itself.
    const DESCRIPTOR: Descriptor;

    /// Returns the started work, or refuses to start it.
    ///
    /// Must return soon: whoever started the task waits for it. It is the place
    /// to check what can be checked, since a refusal leaves no task behind.
    fn start(input: Self::Input, request: &Request) -> Result<Self, Refusal>;

    /// Does the work.
    ///
    /// When it returns, the task has ended, so whatever it holds should be
    /// released by then.
    async fn run(&self, task: &Task<Self::Form>) -> Result<Completed, Error>;

    /// Agrees to a stop, or says why the work must go on; agrees by default.
    ///
    /// Must return at once. Once it has agreed, [`run`](Self::run) is told by
    /// everything in [`Task`] that knows of stops, and it is not asked again.
    fn cancel(&self, _reason: Option<&str>) -> Result<(), StopRefusal> {
        Ok(())
    }
}

/// How a kind hands over its output. Implemented by [`Stream`], [`Final`] and
/// [`Printed`] and by nothing else.
pub trait Form: sealed::Sealed + 'static {
    /// Tells whether what the guest prints is its output.
    #[doc(hidden)]
    const STDOUT_IS_OUTPUT: bool = false;
}

/// Output while the work goes on, through [`Task::write_all`] and
/// [`Task::output`].
#[derive(Debug)]
pub enum Stream {}

/// One output at the end, given with [`Completed::with_output`].
#[derive(Debug)]
pub enum Final {}

/// What the work prints with `println!` is its output.
///
/// For code written in blocking style, which the host cannot enter while it
/// works: the host holds what was printed and can show it at any moment.
#[derive(Debug)]
pub enum Printed {}

impl Form for Stream {}
impl Form for Final {}
impl Form for Printed {
    const STDOUT_IS_OUTPUT: bool = true;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Stream {}
    impl Sealed for super::Final {}
    impl Sealed for super::Printed {}
}

/// What a producer says of itself.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    kind: &'static str,
    summary: &'static str,
    input_schema: Option<&'static str>,
    stops_by_drop: bool,
}

impl Descriptor {
    /// Returns the descriptor of a kind whose input may be any text.
    ///
    /// The kind is the prefix of its task ids and has the form
    /// `[a-z][a-z0-9]*(-[a-z0-9]+)*`, at most 64 bytes; another one does not
    /// compile. The summary is one line that tells a person or a model what the
    /// kind does.
    pub const fn new(kind: &'static str, summary: &'static str) -> Self {
        assert!(is_kind(kind), "a kind has the form [a-z][a-z0-9]*(-[a-z0-9]+)*, at most 64 bytes");
        Self { kind, summary, input_schema: None, stops_by_drop: false }
    }

    /// Adds the JSON Schema (draft 2020-12) that the host checks inputs
    /// against before it starts anything.
    pub const fn input_schema(self, schema: &'static str) -> Self {
        Self { input_schema: Some(schema), ..self }
    }

    /// Tells the host that a stop need not be asked for: dropping the instance
    /// is enough.
    pub const fn stops_by_drop(self) -> Self {
        Self { stops_by_drop: true, ..self }
    }

    /// Returns the descriptor in the words of the contract.
    pub(crate) fn to_wit<F: Form>(self) -> types::Descriptor {
        let mut manner = types::Manner::empty();
        manner.set(types::Manner::STDOUT_IS_OUTPUT, F::STDOUT_IS_OUTPUT);
        manner.set(types::Manner::STOPS_BY_DROP, self.stops_by_drop);
        types::Descriptor {
            kind: self.kind.to_owned(),
            summary: self.summary.to_owned(),
            input_schema: self.input_schema.map(str::to_owned),
            manner,
        }
    }
}

/// Tells whether `kind` has the form `[a-z][a-z0-9]*(-[a-z0-9]+)*` and at most
/// 64 bytes.
const fn is_kind(kind: &str) -> bool {
    let bytes = kind.as_bytes();
    if bytes.is_empty() || bytes.len() > 64 || !bytes[0].is_ascii_lowercase() {
        return false;
    }
    // A hyphen stands between two other characters.
    let mut at = 1;
    let mut after_hyphen = false;
    while at < bytes.len() {
        match bytes[at] {
            b'a'..=b'z' | b'0'..=b'9' => after_hyphen = false,
            b'-' if !after_hyphen => after_hyphen = true,
            _ => return false,
        }
        at += 1;
    }
    !after_hyphen
}

/// Why a producer does not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The input cannot be worked on; the text says what is wrong with it.
    InvalidInput(String),
    /// The input is fine, but something that the work needs is missing now.
    Unavailable(String),
}

impl From<Refusal> for types::Refusal {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::InvalidInput(text) => Self::InvalidInput(text),
            Refusal::Unavailable(text) => Self::Unavailable(text),
        }
    }
}

/// Why a producer does not agree to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopRefusal {
    /// The work must not be interrupted at this point; asking again may help.
    NotNow(String),
    /// Stopping failed; only force can end the task.
    Broken(String),
}

impl From<StopRefusal> for types::StopRefusal {
    fn from(refusal: StopRefusal) -> Self {
        match refusal {
            StopRefusal::NotNow(text) => Self::NotNow(text),
            StopRefusal::Broken(text) => Self::Broken(text),
        }
    }
}

/// What work that was finished came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Completed {
    detail: Option<String>,
    output: Option<String>,
}

impl Completed {
    /// Returns a completion that needs no words.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a completion with one line for status displays, such as
    /// `12 matches in 340 files`.
    pub fn with_detail(detail: impl Into<String>) -> Self {
        Self::new().and_detail(detail)
    }

    /// Returns a completion with the final output. For a stream kind it is
    /// appended to the stream.
    pub fn with_output(output: impl Into<String>) -> Self {
        Self::new().and_output(output)
    }

    /// Adds one line for status displays.
    pub fn and_detail(self, detail: impl Into<String>) -> Self {
        Self { detail: Some(detail.into()), ..self }
    }

    /// Adds the final output.
    pub fn and_output(self, output: impl Into<String>) -> Self {
        Self { output: Some(output.into()), ..self }
    }

    /// Returns the outcome that the host is told.
    pub(crate) fn into_outcome(self) -> types::Outcome {
        types::Outcome {
            ending: types::Ending::Completed,
            detail: self.detail.map(|detail| one_line(&detail)),
            output: self.output,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_the_form_that_the_registry_wants() {
        for good in ["a", "grep", "a1", "a-b", "a-1", "a1-b2-c3"] {
            assert!(is_kind(good), "{good}");
        }
        for bad in ["", "A", "1a", "-a", "a-", "a--b", "a_b", "ä", "a b"] {
            assert!(!is_kind(bad), "{bad}");
        }
        assert!(is_kind(&"a".repeat(64)));
        assert!(!is_kind(&"a".repeat(65)));
    }
}
