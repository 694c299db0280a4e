//! Inputs of other kinds, with places for what is not known yet.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The input of a run of another kind, with places such as `{{output}}` in it that
/// are filled when the run is due.
///
/// It is written as JSON: a text is an input as it is, and any other value is one
/// that takes JSON. Places are in texts, at any depth; the names of fields have
/// none. What fills a place is never looked at again, so it cannot bring places of
/// its own.
///
/// ```
/// use backlot_sdk::Template;
///
/// let template: Template = serde_json::from_str(r#"{"pattern": "from {{who}}"}"#)?;
/// assert!(template.names("who"));
/// assert_eq!(template.fill(&[("who", "a \"b\"")]), r#"{"pattern":"from a \"b\""}"#);
///
/// let text: Template = serde_json::from_str(r#""say {{what}}""#)?;
/// assert_eq!(text.fill(&[("what", "{{who}}")]), "say {{who}}");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Template(Value);

impl Template {
    /// Tells whether there is a place of that name.
    pub fn names(&self, place: &str) -> bool {
        let place = format!("{{{{{place}}}}}");
        let mut left = vec![&self.0];
        while let Some(value) = left.pop() {
            match value {
                Value::String(text) if text.contains(&place) => return true,
                Value::Array(items) => left.extend(items),
                Value::Object(fields) => left.extend(fields.values()),
                _ => {}
            }
        }
        false
    }

    /// Returns the input, with its places filled. Places of other names stay as they
    /// are.
    pub fn fill(&self, places: &[(&str, &str)]) -> String {
        match &self.0 {
            Value::String(text) => fill(text, places),
            value => filled(value, places).to_string(),
        }
    }
}

impl From<&str> for Template {
    fn from(text: &str) -> Self {
        Self(Value::from(text))
    }
}

fn filled(value: &Value, places: &[(&str, &str)]) -> Value {
    match value {
        Value::String(text) => Value::String(fill(text, places)),
        Value::Array(items) => items.iter().map(|item| filled(item, places)).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(name, field)| (name.clone(), filled(field, places))).collect()
        }
        other => other.clone(),
    }
}

/// Fills the places of a text in one pass from its start.
fn fill(text: &str, places: &[(&str, &str)]) -> String {
    let mut whole = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("{{") {
        whole.push_str(&rest[..at]);
        rest = &rest[at..];
        let found = places.iter().find_map(|(name, value)| {
            let after = rest.strip_prefix("{{")?.strip_prefix(name)?.strip_prefix("}}")?;
            Some((value, after))
        });
        match found {
            Some((value, after)) => {
                whole.push_str(value);
                rest = after;
            }
            None => {
                // Of three braces the first may be one before a place.
                whole.push('{');
                rest = &rest[1..];
            }
        }
    }
    whole.push_str(rest);
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(json: &str) -> Template {
        serde_json::from_str(json).expect("a template")
    }

    #[test]
    fn places_are_filled_at_any_depth() {
        let places = [("output", "a\nb"), ("round", "3")];
        let nested = template(r#"{"{{round}}":[{"a":"{{output}}-{{round}}"},1,null]}"#);
        assert_eq!(nested.fill(&places), r#"{"{{round}}":[{"a":"a\nb-3"},1,null]}"#);
        assert_eq!(Template::from("{{round}}{{round}}").fill(&places), "33");
    }

    #[test]
    fn what_is_no_place_stays() {
        let places = [("output", "x")];
        for same in ["{{other}}", "{{ output }}", "{output}", "{{output}", "{{", "€{{"] {
            assert_eq!(Template::from(same).fill(&places), same);
        }
        assert_eq!(Template::from("{{{output}}}").fill(&places), "{x}");
        assert_eq!(template("{\"n\":1.5}").fill(&places), "{\"n\":1.5}");
    }

    #[test]
    fn what_fills_a_place_brings_none() {
        let places = [("output", "{{round}}"), ("round", "3")];
        assert_eq!(Template::from("{{output}} {{round}}").fill(&places), "{{round}} 3");
    }

    #[test]
    fn places_are_found_where_they_would_be_filled() {
        assert!(template(r#"[{"a":["{{output}}"]}]"#).names("output"));
        assert!(!template(r#"{"{{output}}":"output"}"#).names("output"));
        assert!(!template("3").names("output"));
    }
}
