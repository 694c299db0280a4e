//! Inputs: text from the host turned into what a producer starts from.

use crate::producer::Refusal;
use serde::de::DeserializeOwned;

/// What a producer can start from.
///
/// Every type that `serde` can deserialize is an input and is read as JSON;
/// [`Text`] takes the input as it is.
pub trait Input: Sized {
    /// Returns the input that `text` stands for, or a refusal that tells a
    /// person which part of the text is wrong.
    fn parse(text: &str) -> Result<Self, Refusal>;
}

/// An input taken as it is, whatever it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text(
    /// The text.
    pub String,
);

impl Input for Text {
    fn parse(text: &str) -> Result<Self, Refusal> {
        Ok(Text(text.to_owned()))
    }
}

impl<T: DeserializeOwned> Input for T {
    /// Reads JSON. An absent input is an empty object, so that a producer
    /// whose fields are all optional starts without one.
    fn parse(text: &str) -> Result<Self, Refusal> {
        let text = if text.trim().is_empty() { "{}" } else { text };
        let mut json = serde_json::Deserializer::from_str(text);
        let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let field = error.path().to_string();
            let error = error.into_inner();
            // The path of the value as a whole is written as a dot.
            Refusal::InvalidInput(if field == "." {
                format!("the input is not as expected: {error}")
            } else {
                format!("`{field}` is not as expected: {error}")
            })
        })?;
        json.end().map_err(|error| {
            Refusal::InvalidInput(format!("the input is not one JSON value: {error}"))
        })?;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Ticks {
        count: u64,
        pause: Option<Pause>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Pause {
        ms: u64,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Nothing {}

    fn refusal(text: &str) -> String {
        match Ticks::parse(text) {
            Err(Refusal::InvalidInput(text)) => text,
            other => panic!("{text} gave {other:?}"),
        }
    }

    #[test]
    fn a_refusal_names_the_field() {
        assert_eq!(
            refusal(r#"{"count": "three"}"#),
            "`count` is not as expected: invalid type: string \"three\", expected u64 \
             at line 1 column 17"
        );
        assert_eq!(
            refusal(r#"{"count": 3, "pause": {"ms": -1}}"#),
            "`pause.ms` is not as expected: invalid value: integer `-1`, expected u64 \
             at line 1 column 31"
        );
        assert_eq!(
            refusal("{}"),
            "the input is not as expected: missing field `count` at line 1 column 2"
        );
    }

    #[test]
    fn text_that_is_no_json_is_refused() {
        assert!(refusal("please tick").contains("expected value at line 1 column 1"));
        assert!(refusal(r#"{"count": 3} {}"#).starts_with("the input is not one JSON value"));
    }

    #[test]
    fn an_absent_input_is_an_empty_object() {
        assert_eq!(Nothing::parse(" \n").ok(), Some(Nothing {}));
        assert!(refusal("").contains("missing field `count`"));
    }

    #[test]
    fn text_is_taken_as_it_is() {
        assert_eq!(Text::parse(" {").ok(), Some(Text(" {".to_owned())));
    }
}
