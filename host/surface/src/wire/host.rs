//! The host, what is done to all of its jobs, their files, and what goes wrong.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use backlot_jobs::{
    Census, Health,
    files::{FileEntry, Listing},
};
use data_encoding::BASE64;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::spawn::absolute;
use crate::error::Failure;

/// Which host this is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostAbout {
    /// The number of its process.
    pub pid: u32,
    /// What it is, with its version.
    pub program: String,
    /// Its plugin folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugins: Option<String>,
    /// Its policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Where it listens beside the socket in its data folder, as URLs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// Since when it runs.
    pub since_ms: u64,
}

/// How a host is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HealthReply {
    /// Which host.
    pub host: HostAbout,
    /// Its jobs by where they stand.
    pub jobs: JobCounts,
    /// Changes that could not be written yet and are tried again.
    pub unwritten: usize,
    /// Why the last one could not be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Reports that panicked.
    pub report_panics: u64,
    /// How many kinds tasks can be started of.
    #[serde(default)]
    pub kinds: usize,
    /// What does not work as it should and keeps nothing from working, a line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl HealthReply {
    pub(crate) fn of(host: HostAbout, health: Health) -> Self {
        let Health { census, unwritten, trouble, report_panics } = health;
        let jobs = JobCounts::of(census);
        Self { host, jobs, unwritten, trouble, report_panics, ..Self::default() }
    }

    /// Returns it with what there is to say of kinds and of the host itself.
    #[must_use]
    pub(crate) fn with(self, kinds: usize, warnings: Vec<String>) -> Self {
        Self { kinds, warnings, ..self }
    }
}

/// Asks for the host's end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ShutdownRequest {
    /// How long jobs that run may go on before they are stopped; as the host is set up
    /// where it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_ms: Option<u64>,
}

/// The host is going to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShutdownReply {
    /// The number of its process.
    pub pid: u32,
    /// How long jobs that run may go on before they are stopped.
    pub drain_ms: u64,
}

/// The host answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LiveReply {
    /// Always true: a host that does not live does not answer.
    pub live: bool,
}

/// The host takes work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReadyReply {
    /// Always true: one that is not ready answers why instead.
    pub ready: bool,
}

/// How many jobs there are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobCounts {
    /// Waiting for a place or their time.
    pub queued: u64,
    /// The earliest time that one waits for; 0 where it waits for a place alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_due_ms: Option<u64>,
    /// With a run under way.
    pub working: u64,
    /// Waiting for a person.
    pub input_required: u64,
    /// Ended.
    pub ended: u64,
    /// Ended, and the ending is owed to somebody.
    pub owed: u64,
}

impl JobCounts {
    fn of(census: Census) -> Self {
        let Census { queued, next_due_ms, working, input_required, ended, owed } = census;
        Self { queued, next_due_ms, working, input_required, ended, owed }
    }
}

/// Asks for jobs that have ended to be deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PruneRequest {
    /// How many are kept; as many as the host is set up for where it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep: Option<u64>,
    /// How long they are kept; as the host is set up where it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
}

/// Jobs are gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PruneReply {
    /// How many, with those below them.
    pub removed: usize,
}

/// Asks for a copy of all that is recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BackupRequest {
    /// Where to, as an absolute path.
    #[schema(value_type = String)]
    pub to: PathBuf,
}

impl BackupRequest {
    /// Checks what the types cannot say.
    ///
    /// # Errors
    ///
    /// When the path is not absolute.
    pub fn check(&self) -> Result<(), Failure> {
        absolute("to", &self.to)
    }
}

/// The files that a job has left.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FilesReply {
    /// The files, by path.
    pub files: Vec<FileView>,
    /// Whether there may be others.
    pub has_more: bool,
}

impl FilesReply {
    /// Returns what was listed.
    pub fn of(listing: &Listing) -> Self {
        let files = listing.files.iter().map(FileView::of).collect();
        Self { files, has_more: listing.has_more }
    }
}

/// A file that a job has left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileView {
    /// Its path from the work folder on.
    #[serde(flatten)]
    pub name: FileName,
    /// Its size.
    pub bytes: u64,
    /// When it was changed last. Guests can set it.
    pub modified_ms: i64,
}

impl FileView {
    fn of(entry: &FileEntry) -> Self {
        let FileEntry { path, bytes, modified_ms } = entry;
        Self { name: FileName::of(path), bytes: *bytes, modified_ms: *modified_ms }
    }
}

/// The path of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileName {
    /// As text, where it is UTF-8.
    Path(String),
    /// In base64, where it is not.
    PathBase64(String),
}

impl FileName {
    fn of(path: &Path) -> Self {
        match path.to_str() {
            Some(text) => Self::Path(text.to_owned()),
            None => Self::PathBase64(BASE64.encode(path.as_os_str().as_bytes())),
        }
    }

    /// Returns the path; an empty one where it is none.
    pub fn to_path(&self) -> PathBuf {
        match self {
            Self::Path(text) => text.into(),
            Self::PathBase64(text) => {
                let bytes = BASE64.decode(text.as_bytes()).unwrap_or_default();
                OsStr::from_bytes(&bytes).into()
            }
        }
    }
}

/// Something went wrong: a problem of RFC 9457, of the type `application/problem+json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorReply {
    /// The type of the problem. It is `about:blank`, since the word says more than an
    /// address would that nobody reads.
    #[serde(default)]
    pub r#type: String,
    /// What the status is called.
    #[serde(default)]
    pub title: String,
    /// The status.
    #[serde(default)]
    pub status: u16,
    /// What went wrong, in words, for people.
    pub detail: String,
    /// What went wrong, in a word, for programs.
    pub code: String,
    /// What to do about it, where the detail does not say so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{error::Reason, wire::tests::check};

    #[test]
    fn how_a_host_is_doing() {
        let host = HostAbout {
            pid: 7,
            program: "backlot 0.1.0".into(),
            plugins: Some("/plugins".into()),
            policy: None,
            addresses: vec!["http://127.0.0.1:7420".into()],
            since_ms: 5,
        };
        let census = Census {
            queued: 1,
            next_due_ms: Some(9),
            working: 2,
            input_required: 3,
            ended: 4,
            owed: 5,
        };
        let trouble = Some("no space".to_owned());
        let health = Health { census, unwritten: 6, trouble, report_panics: 7 };
        check(
            &HealthReply::of(host, health).with(8, vec!["slow".into()]),
            r#"
{
  "host": {
    "pid": 7,
    "program": "backlot 0.1.0",
    "plugins": "/plugins",
    "addresses": [
      "http://127.0.0.1:7420"
    ],
    "since_ms": 5
  },
  "jobs": {
    "queued": 1,
    "next_due_ms": 9,
    "working": 2,
    "input_required": 3,
    "ended": 4,
    "owed": 5
  },
  "unwritten": 6,
  "trouble": "no space",
  "report_panics": 7,
  "kinds": 8,
  "warnings": [
    "slow"
  ]
}"#,
        );
    }

    #[test]
    fn that_it_lives_and_takes_work() {
        check(&LiveReply { live: true }, "{\n  \"live\": true\n}");
        check(&ReadyReply { ready: true }, "{\n  \"ready\": true\n}");
    }

    #[test]
    fn a_host_is_asked_to_end() {
        check(&ShutdownRequest { drain_ms: Some(1) }, "{\n  \"drain_ms\": 1\n}");
        check(&ShutdownRequest::default(), "{}");
        let reply = ShutdownReply { pid: 7, drain_ms: 1 };
        check(&reply, "{\n  \"pid\": 7,\n  \"drain_ms\": 1\n}");
    }

    #[test]
    fn jobs_are_pruned_and_copied() {
        let prune = PruneRequest { keep: Some(1), age_ms: Some(2) };
        check(&prune, "{\n  \"keep\": 1,\n  \"age_ms\": 2\n}");
        check(&PruneRequest::default(), "{}");
        check(&PruneReply { removed: 3 }, "{\n  \"removed\": 3\n}");
        let backup = BackupRequest { to: "/b.db".into() };
        check(&backup, "{\n  \"to\": \"/b.db\"\n}");
        backup.check().unwrap();
        BackupRequest { to: "b.db".into() }.check().unwrap_err();
    }

    #[test]
    fn files_have_any_names() {
        let file = |path: &[u8]| {
            let path = OsStr::from_bytes(path).into();
            FileEntry { path, bytes: 5, modified_ms: -1 }
        };
        let listing = Listing { files: vec![file(b"a/b"), file(b"\xff")], has_more: true };
        let reply = FilesReply::of(&listing);
        check(
            &reply,
            r#"
{
  "files": [
    {
      "path": "a/b",
      "bytes": 5,
      "modified_ms": -1
    },
    {
      "path_base64": "/w==",
      "bytes": 5,
      "modified_ms": -1
    }
  ],
  "has_more": true
}"#,
        );
        for (shown, file) in reply.files.iter().zip(listing.files) {
            assert_eq!(shown.name.to_path(), file.path);
        }
    }

    #[test]
    fn what_goes_wrong() {
        let failure = Failure::new(Reason::Exhausted, "had 3 of 3");
        check(
            &failure.reply(),
            r#"
{
  "type": "about:blank",
  "title": "Conflict",
  "status": 409,
  "detail": "had 3 of 3",
  "code": "exhausted",
  "hint": "spawn the work anew if it is to be tried again"
}"#,
        );
        let hinted = failure.with_hint("ask ann").reply();
        assert_eq!(hinted.hint.as_deref(), Some("ask ann"));
        let plain = Failure::new(Reason::Full, "full").reply();
        check(
            &plain,
            r#"
{
  "type": "about:blank",
  "title": "Too Many Requests",
  "status": 429,
  "detail": "full",
  "code": "full"
}"#,
        );
        assert_eq!(plain.exit(), 3);
        let newer = r#"{"code":"something new","detail":"","more":1}"#;
        assert_eq!(serde_json::from_str::<ErrorReply>(newer).unwrap().exit(), 1);
    }
}
