//! What the verbs are called with.

use rmcp::model::JsonObject;
use serde::{Deserialize, Deserializer, de::DeserializeOwned, de::Error as _};
use serde_json::Value;

use super::tools::{Verb, WAIT_MOST};

/// The arguments of `spawn_task`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SpawnArguments {
    pub(super) kind: String,
    #[serde(default)]
    pub(super) input: Option<Value>,
    #[serde(default)]
    pub(super) args: Option<Vec<String>>,
    #[serde(default)]
    pub(super) label: Option<String>,
    #[serde(default, deserialize_with = "whole")]
    pub(super) wait_seconds: Option<u64>,
    #[serde(default)]
    pub(super) key: Option<String>,
    #[serde(default, deserialize_with = "whole")]
    pub(super) attempts: Option<u64>,
    #[serde(default)]
    pub(super) retry: Option<bool>,
    #[serde(default)]
    pub(super) queue: Option<bool>,
}

/// The arguments of `task_status`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StatusArguments {
    #[serde(default)]
    pub(super) task_id: Option<String>,
    #[serde(default, deserialize_with = "whole")]
    pub(super) wait_seconds: Option<u64>,
    #[serde(default, deserialize_with = "whole")]
    pub(super) after: Option<u64>,
    #[serde(default, deserialize_with = "whole")]
    pub(super) before: Option<u64>,
}

/// The arguments of `task_retry`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RetryArguments {
    pub(super) task_id: String,
}

/// The arguments of `task_stop`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StopArguments {
    pub(super) task_id: String,
    #[serde(default)]
    pub(super) reason: Option<String>,
    #[serde(default)]
    pub(super) force: Option<bool>,
}

/// Reads the arguments of a verb.
///
/// # Errors
///
/// In words that tell a model what to do about it.
pub(super) fn read<T: DeserializeOwned>(verb: Verb, arguments: JsonObject) -> Result<T, String> {
    serde_path_to_error::deserialize(Value::Object(arguments)).map_err(|error| {
        let path = error.path().to_string();
        let why = error.into_inner();
        let at = if path == "." { String::new() } else { format!("`{path}`: ") };
        format!("{} was not called right, and nothing was done: {at}{why}", verb.name())
    })
}

/// Reads a whole number, which some clients write as `5.0`.
fn whole<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let Some(number) = Option::<serde_json::Number>::deserialize(from)? else { return Ok(None) };
    if let Some(number) = number.as_u64() {
        return Ok(Some(number));
    }
    let float = number.as_f64().filter(|float| float.fract() == 0.0);
    // Offsets are far below what a float has exactly.
    let float = float.filter(|float| (0.0..9e15).contains(float));
    let number =
        float.ok_or_else(|| D::Error::custom(format!("{number} is no whole number from 0 on")));
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is whole, not negative and small enough"
    )]
    number.map(|number| Some(number as u64))
}

/// Returns how long is waited where so many seconds were asked for.
pub(super) fn wait(seconds: Option<u64>) -> std::time::Duration {
    std::time::Duration::from_secs(seconds.unwrap_or_default().min(WAIT_MOST))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(arguments: &Value) -> Result<StatusArguments, String> {
        read(Verb::Status, arguments.as_object().cloned().unwrap())
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        assert_eq!(
            status(&json!({"wait_seconds": "soon"})).unwrap_err(),
            "task_status was not called right, and nothing was done: `wait_seconds`: invalid \
             type: string \"soon\", expected a JSON number"
        );
        assert_eq!(
            status(&json!({"id": "a"})).unwrap_err(),
            "task_status was not called right, and nothing was done: `id`: unknown field `id`, \
             expected one of `task_id`, `wait_seconds`, `after`, `before`"
        );
        let missing = read::<StopArguments>(Verb::Stop, JsonObject::new()).unwrap_err();
        assert!(missing.ends_with("missing field `task_id`"), "{missing}");
    }

    #[test]
    fn numbers_are_whole() {
        let wait = |value: Value| status(&json!({"wait_seconds": value})).map(|it| it.wait_seconds);
        assert_eq!(wait(json!(5)), Ok(Some(5)));
        assert_eq!(wait(json!(5.0)), Ok(Some(5)));
        assert_eq!(wait(json!(null)), Ok(None));
        for wrong in [json!(-1), json!(1.5), json!(1e300)] {
            wait(wrong.clone()).expect_err(&wrong.to_string());
        }
        assert_eq!(super::wait(Some(1 << 40)).as_secs(), WAIT_MOST);
    }
}
