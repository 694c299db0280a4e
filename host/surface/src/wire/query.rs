//! What stands behind the question mark of an address.

use backlot_jobs::{Hand, Status, output::Part};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::schema::JobStatus;

/// Which jobs are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
pub struct ListQuery {
    /// Those that work for that session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Those that stand so, separated by commas.
    #[serde(with = "statuses", skip_serializing_if = "Vec::is_empty")]
    #[param(value_type = Vec<JobStatus>, inline, style = Form, explode = false)]
    pub status: Vec<Status>,
    /// Those after a page that says this is `next`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
    /// At most so many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// How a job is looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
pub struct LookQuery {
    /// How long its end, or its question, is waited for at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// Who looks.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(inline)]
    pub hand: Option<HandView>,
}

/// Who asks for something.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
pub struct HandQuery {
    /// A person where it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(inline)]
    pub hand: Option<HandView>,
}

/// Who asks for something, as far as who is told matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HandView {
    /// Whoever the job works for: what it gets in hand is told.
    Model,
    /// Somebody else.
    #[default]
    Person,
}

impl From<HandView> for Hand {
    fn from(hand: HandView) -> Self {
        match hand {
            HandView::Model => Self::Model,
            HandView::Person => Self::Person,
        }
    }
}

/// Which part of a job's output is read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
pub struct OutputQuery {
    /// Output or log.
    #[param(inline)]
    pub part: PartName,
    /// What is behind so many bytes.
    pub after: u64,
    /// At most about so many bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<usize>,
    /// How long something is waited for at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
}

/// Which part of a job's output is followed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
pub struct StreamQuery {
    /// Output or log.
    #[param(inline)]
    pub part: PartName,
    /// What is behind so many bytes. The header `Last-Event-ID` stands above it.
    pub after: u64,
}

/// Of which jobs it is told what becomes of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
pub struct EventsQuery {
    /// Those that work for that session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Those that stand so, or have come to, separated by commas.
    #[serde(with = "statuses", skip_serializing_if = "Vec::is_empty")]
    #[param(value_type = Vec<JobStatus>, inline, style = Form, explode = false)]
    pub status: Vec<Status>,
    /// What has happened behind the event of that id. The header `Last-Event-ID` stands
    /// above it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// One of the two parts of what is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PartName {
    /// What producers wrote.
    #[default]
    Output,
    /// What is told about them.
    Log,
}

impl From<PartName> for Part {
    fn from(part: PartName) -> Self {
        match part {
            PartName::Output => Self::Output,
            PartName::Log => Self::Log,
        }
    }
}

/// Which files are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
pub struct FilesQuery {
    /// At most so many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// Which tasks are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
pub struct TasksQuery {
    /// Those after a page that says this is `next`.
    pub after: u64,
    /// At most so many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// Which entries of a session are read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
pub struct EntriesQuery {
    /// Those behind the one of that number.
    pub after: u64,
    /// At most so many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// How a session is deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
pub struct DeleteQuery {
    /// How long its jobs have to stop before they are dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
}

/// Statuses, separated by commas.
mod statuses {
    use serde::{Deserializer, Serializer, de};

    use super::*;

    pub(super) fn serialize<S: Serializer>(all: &[Status], to: S) -> Result<S::Ok, S::Error> {
        let words: Vec<&str> = all.iter().map(|status| status.as_str()).collect();
        to.serialize_str(&words.join(","))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Status>, D::Error> {
        let text = String::deserialize(from)?;
        let words = text.split(',').filter(|word| !word.is_empty());
        let read = |word: &str| {
            let found = Status::ALL.into_iter().find(|status| status.as_str() == word);
            found.ok_or_else(|| {
                let word: String = word.chars().take(64).collect();
                let all = Status::ALL.map(Status::as_str).join(", ");
                de::Error::custom(format!("{word:?} is no status: there are {all}"))
            })
        };
        words.map(read).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use serde::de::DeserializeOwned;

    use super::*;

    #[track_caller]
    fn check<T: Serialize + DeserializeOwned + PartialEq + Debug>(query: &T, expected: &str) {
        let written = serde_urlencoded::to_string(query).unwrap();
        assert_eq!(written, expected);
        assert_eq!(serde_urlencoded::from_str::<T>(&written).unwrap(), *query);
    }

    #[test]
    fn what_stands_behind_the_question_mark() {
        check(&ListQuery::default(), "");
        check(
            &ListQuery {
                session: Some("a b".into()),
                status: vec![Status::Queued, Status::InputRequired],
                before: Some(7),
                limit: Some(5),
            },
            "session=a+b&status=queued%2Cinput_required&before=7&limit=5",
        );
        check(&LookQuery { wait_ms: Some(5), hand: Some(HandView::Model) }, "wait_ms=5&hand=model");
        check(&HandQuery { hand: Some(HandView::Person) }, "hand=person");
        let output = OutputQuery { part: PartName::Log, after: 7, max: Some(1), wait_ms: Some(5) };
        check(&output, "part=log&after=7&max=1&wait_ms=5");
        check(&StreamQuery { part: PartName::Log, after: 7 }, "part=log&after=7");
        let events = EventsQuery {
            session: Some("chat".into()),
            status: vec![Status::Failed],
            after: Some("ab-7".into()),
        };
        check(&events, "session=chat&status=failed&after=ab-7");
        check(&EventsQuery::default(), "");
        check(&FilesQuery { limit: Some(5) }, "limit=5");
        check(&TasksQuery { after: 7, limit: Some(5) }, "after=7&limit=5");
        check(&EntriesQuery { after: 7, limit: Some(5) }, "after=7&limit=5");
        check(&DeleteQuery { grace_ms: Some(5) }, "grace_ms=5");
    }

    #[test]
    fn a_status_that_there_is_not_is_named() {
        let refused = serde_urlencoded::from_str::<ListQuery>("status=queued,done").unwrap_err();
        assert_eq!(
            refused.to_string(),
            "\"done\" is no status: there are queued, working, input_required, completed, \
             failed, cancelled"
        );
    }
}
