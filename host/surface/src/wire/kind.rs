//! A kind as it is shown, and how it is changed.

use backlot_registry::{Form, Generation, GenerationView, KindState, KindView as Found};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// The kinds of a host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KindsReply {
    /// The kinds, by name, without the schemas of their inputs.
    pub kinds: Vec<KindView>,
}

/// A kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KindView {
    /// Its name.
    pub kind: String,
    /// Whether tasks of it can be started.
    pub state: KindStateName,
    /// What it does, in a line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// How its tasks hand over their output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub form: Option<FormName>,
    /// The version that tasks started now will run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current: Option<VersionView>,
    /// Versions before it, the newest first: those that are kept to go back to, and those
    /// that tasks still run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<VersionView>,
    /// How many tasks of it live.
    pub tasks: usize,
    /// Why the version that was offered last was not taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// A JSON Schema for its input; none where any text will do. It is in the answer about
    /// one kind alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_schema: Option<Value>,
}

impl KindView {
    /// Returns the view of a kind, as lists have it.
    pub fn brief(kind: &Found) -> Self {
        // One that is not served any more is still described.
        let about = kind.current.iter().chain(&kind.earlier).next().map(|it| &it.descriptor);
        Self {
            kind: kind.kind.to_string(),
            state: KindStateName::of(kind.state),
            summary: about.map(|about| about.summary.clone()),
            form: about.map(|about| FormName::of(about.form)),
            current: kind.current.as_ref().map(VersionView::of),
            earlier: kind.earlier.iter().map(VersionView::of).collect(),
            tasks: kind.tasks(),
            trouble: kind.trouble.clone(),
            input_schema: None,
        }
    }

    /// Returns the view of a kind with all that there is to it.
    pub fn whole(kind: &Found) -> Self {
        let about = kind.current.iter().chain(&kind.earlier).next().map(|it| &it.descriptor);
        let schema = about.and_then(|about| about.input_schema.as_deref()).map(|schema| {
            // One that cannot be read is shown as it is.
            serde_json::from_str(schema).unwrap_or_else(|_| Value::String(schema.to_owned()))
        });
        Self { input_schema: schema, ..Self::brief(kind) }
    }
}

/// Whether tasks of a kind can be started, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum KindStateName {
    /// They can.
    Serving,
    /// They cannot, and those that run go on.
    Draining,
    /// They cannot: it was unloaded, or its file is gone.
    Unloaded,
    /// They cannot yet: the first version is being loaded.
    Loading,
    /// They cannot: no version was ever good.
    Broken,
}

impl KindStateName {
    fn of(state: KindState) -> Self {
        match state {
            KindState::Serving => Self::Serving,
            KindState::Draining => Self::Draining,
            KindState::Unloaded => Self::Unloaded,
            KindState::Loading => Self::Loading,
            KindState::Broken => Self::Broken,
        }
    }
}

/// How tasks hand over their output, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FormName {
    /// Piece by piece while they run.
    Stream,
    /// Once, when they end.
    Final,
}

impl FormName {
    fn of(form: Form) -> Self {
        match form {
            Form::Stream => Self::Stream,
            Form::Final => Self::Final,
        }
    }
}

/// Which version of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GenerationName {
    /// Counts the versions that the host has loaded, from 1.
    pub number: u64,
    /// Identifies the code.
    pub digest: String,
}

impl GenerationName {
    pub(super) fn of(generation: Generation) -> Self {
        Self { number: generation.number, digest: generation.digest.to_string() }
    }
}

/// One version of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VersionView {
    /// Counts the versions that the host has loaded, from 1.
    pub number: u64,
    /// Identifies the code.
    pub digest: String,
    /// The version of the contract that it implements; programs implement none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contract: Option<String>,
    /// When it was loaded.
    pub loaded_ms: u64,
    /// How many tasks run it.
    pub tasks: usize,
    /// Whether it is kept to go back to.
    pub kept: bool,
}

impl VersionView {
    fn of(version: &GenerationView) -> Self {
        Self {
            number: version.generation.number,
            digest: version.generation.digest.to_string(),
            contract: version.contract.map(str::to_owned),
            loaded_ms: version.loaded_at_ms,
            tasks: version.tasks,
            kept: version.kept,
        }
    }
}

/// Asks for a kind to go back to a version from before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RollbackRequest {
    /// The version of that number; the one that was current before where it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use backlot_registry::{Kind, KindDescriptor};

    use super::*;
    use crate::wire::tests::check;

    fn version(number: u64, schema: &str) -> GenerationView {
        let descriptor = KindDescriptor {
            summary: "finds lines".into(),
            input_schema: Some(schema.into()),
            form: Form::Stream,
        };
        GenerationView {
            generation: Generation { number, digest: "sha256:00".into() },
            contract: Some("0.2.0"),
            loaded_at_ms: 5,
            tasks: 1,
            kept: number == 1,
            descriptor: Arc::new(descriptor),
        }
    }

    fn kind(state: KindState, versions: Vec<GenerationView>) -> Found {
        let mut versions = versions.into_iter();
        Found {
            kind: Kind::new("grep").unwrap(),
            state,
            current: versions.next(),
            earlier: versions.collect(),
            trouble: None,
        }
    }

    #[test]
    fn a_kind_with_all_that_there_is_to_it() {
        let versions = vec![version(2, r#"{"type":"object"}"#), version(1, "true")];
        check(
            &KindView::whole(&kind(KindState::Serving, versions)),
            r#"
{
  "kind": "grep",
  "state": "serving",
  "summary": "finds lines",
  "form": "stream",
  "current": {
    "number": 2,
    "digest": "sha256:00",
    "contract": "0.2.0",
    "loaded_ms": 5,
    "tasks": 1,
    "kept": false
  },
  "earlier": [
    {
      "number": 1,
      "digest": "sha256:00",
      "contract": "0.2.0",
      "loaded_ms": 5,
      "tasks": 1,
      "kept": true
    }
  ],
  "tasks": 2,
  "input_schema": {
    "type": "object"
  }
}"#,
        );
    }

    #[test]
    fn a_kind_that_never_was_good() {
        let trouble = Some("it is no component".to_owned());
        let broken = Found { trouble, ..kind(KindState::Broken, Vec::new()) };
        check(
            &KindsReply { kinds: vec![KindView::brief(&broken)] },
            r#"
{
  "kinds": [
    {
      "kind": "grep",
      "state": "broken",
      "tasks": 0,
      "trouble": "it is no component"
    }
  ]
}"#,
        );
    }

    #[test]
    fn a_schema_that_cannot_be_read_is_shown_as_it_is() {
        let kind = kind(KindState::Serving, vec![version(1, "{")]);
        assert_eq!(KindView::whole(&kind).input_schema, Some(Value::String("{".into())));
        assert_eq!(KindView::brief(&kind).input_schema, None);
    }

    #[test]
    fn a_kind_goes_back() {
        check(&RollbackRequest { to: Some(3) }, "{\n  \"to\": 3\n}");
        check(&RollbackRequest::default(), "{}");
    }
}
