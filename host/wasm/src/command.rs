//! Programs as producers: `wasi:cli/command` components.
//!
//! A program needs no SDK and no contract. Its output is what it prints, its
//! ending is its exit code, and a stop drops its store.

use backlot_registry::{InvalidKind, Kind, Outcome, Refusal};
use serde::{Deserialize, Serialize};

/// The input of a program, as JSON: `{"args": [..], "stdin": ".."}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CommandInput {
    /// Its arguments, without its name.
    pub args: Vec<String>,
    /// What it reads from its standard input.
    pub stdin: String,
}

impl CommandInput {
    /// Returns the input as the text that a task is started with.
    pub fn to_text(&self) -> String {
        serde_json::json!(self).to_string()
    }

    /// Reads the text that a task is started with; an empty one is no input.
    pub(crate) fn from_text(text: &str) -> Result<Self, Refusal> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        // An object, to begin with: serde would take an array for one as well.
        serde_json::from_str::<serde_json::Map<_, _>>(text)
            .and_then(|object| serde_json::from_value(object.into()))
            .map_err(|error| {
                Refusal::InvalidInput(format!(
                    "a program takes {{\"args\": [..], \"stdin\": \"..\"}}: {error}"
                ))
            })
    }
}

/// Returns how a program that ended with `code` has ended.
pub(crate) fn outcome(code: i32) -> Outcome {
    match code {
        0 => Outcome::completed(),
        code => Outcome::failed(format!("exit code: {code}")),
    }
}

/// Returns a kind for the program in a file of this name: what of it can be
/// part of a kind, in lower case.
pub(crate) fn kind(file_stem: &str) -> Result<Kind, InvalidKind> {
    let mut name = String::new();
    for c in file_stem.chars() {
        match c.to_ascii_lowercase() {
            c @ 'a'..='z' => name.push(c),
            // A kind begins with a letter, and so may each part but the first not.
            c @ '0'..='9' if !name.is_empty() => name.push(c),
            _ if !name.is_empty() && !name.ends_with('-') => name.push('-'),
            _ => {}
        }
    }
    // All characters are ASCII, so any length is a boundary.
    name.truncate(64);
    match name.trim_end_matches('-') {
        "" => Kind::new("command"),
        name => Kind::new(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_is_arguments_and_standard_input() {
        let input = CommandInput { args: vec!["-v".into(), "a b".into()], stdin: "x\n".into() };
        assert_eq!(CommandInput::from_text(&input.to_text()), Ok(input));
        assert_eq!(CommandInput::from_text(" "), Ok(CommandInput::default()));
        for bad in ["x", "[]", r#"{"arg":[]}"#, r#"{"args":"x"}"#] {
            let error = CommandInput::from_text(bad).unwrap_err().to_string();
            assert!(error.contains(r#"{"args": [..], "stdin": ".."}"#), "{error}");
        }
    }

    #[test]
    fn file_names_become_kinds() {
        for (stem, want) in [
            ("hello", "hello"),
            ("My Tool_v2", "my-tool-v2"),
            ("2048", "command"),
            ("--", "command"),
            ("", "command"),
            ("a/../b", "a-b"),
            ("7zip-", "zip"),
        ] {
            assert_eq!(kind(stem).unwrap().as_str(), want);
        }
        assert_eq!(kind(&"x".repeat(99)).unwrap().as_str().len(), 64);
    }

    #[test]
    fn exit_codes_are_endings() {
        assert_eq!(outcome(0), Outcome::completed());
        assert_eq!(outcome(3), Outcome::failed("exit code: 3"));
    }
}
