//! Words of other crates as the interface's description has them.

use utoipa::{
    PartialSchema, ToSchema,
    openapi::{ObjectBuilder, RefOr, Schema, Type},
};

/// The id of a job or a run.
pub(super) struct Id;

impl PartialSchema for Id {
    fn schema() -> RefOr<Schema> {
        let id = ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[0-9a-f]{32}$"));
        id.description(Some("The id of a job or a run.")).into()
    }
}

impl ToSchema for Id {}

/// Where a job stands, in a word.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[allow(dead_code, reason = "it stands for a type of another crate")]
pub(super) enum JobStatus {
    Queued,
    Working,
    InputRequired,
    Completed,
    Failed,
    Cancelled,
}

/// What sort of failure ended an attempt, in a word.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[allow(dead_code, reason = "it stands for a type of another crate")]
pub(super) enum FailureName {
    Work,
    Launch,
    Interrupted,
}

/// What was written: text where it is UTF-8, and bytes in base64 where it is not.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[allow(dead_code, reason = "it stands for one whose bytes are shown as text")]
pub(super) enum OutputContent {
    Text(String),
    Base64(String),
}

#[cfg(test)]
mod tests {
    use backlot_jobs::{Failure, Status};
    use serde::Serialize;

    use super::*;

    /// Returns the words that a description allows.
    fn words<T: PartialSchema>() -> Vec<serde_json::Value> {
        let schema = serde_json::to_value(T::schema()).unwrap();
        schema["enum"].as_array().unwrap().clone()
    }

    fn told(all: impl Serialize) -> Vec<serde_json::Value> {
        serde_json::to_value(all).unwrap().as_array().unwrap().clone()
    }

    #[test]
    fn words_are_those_that_are_told() {
        assert_eq!(words::<JobStatus>(), told(Status::ALL));
        let failures = [Failure::Work, Failure::Launch, Failure::Interrupted];
        assert_eq!(words::<FailureName>(), told(failures));
    }
}
