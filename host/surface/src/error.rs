//! The one table from what goes wrong to what programs and people are told of it.

use std::{fmt, io, time::Duration};

use backlot_jobs::{
    InvalidPolicy, InvalidSchedule, LaunchError, LookError, Lost, NoRandom, Refused, ResumeError,
    SpawnError, StopError, StoreError, TreeError, files::OpenError as OpenFileError,
};
use http::StatusCode;

use crate::{tokens::TokenError, wire::ErrorReply};

/// Defines [`Reason`] and its table, so that a reason without a row is none.
macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $status:ident, $code:literal, $exit:literal, $hint:literal;)+) => {
        /// What went wrong, as far as somebody would do something else about it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($(#[$doc])* $name,)+
        }

        impl Reason {
            /// Every reason, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            const fn row(self) -> (StatusCode, &'static str, u8, &'static str) {
                match self {
                    $(Self::$name => (StatusCode::$status, $code, $exit, $hint),)+
                }
            }
        }
    };
}

// The exit codes are those of every command: 1 something went wrong on the way, 2 what
// was asked cannot be understood, 3 it was refused, and nothing was done. There is a
// hint where the message, which says what was found, cannot say what to do.
reasons! {
    /// What was sent is not JSON, or the address has parameters that there are not.
    BadRequest = BAD_REQUEST, "bad_request", 2, "";
    /// Several jobs begin with the digits.
    Ambiguous = BAD_REQUEST, "ambiguous", 2, "";
    /// A value cannot be.
    Invalid = UNPROCESSABLE_ENTITY, "invalid", 2, "";
    /// More was sent than is taken.
    TooLarge = PAYLOAD_TOO_LARGE, "too_large", 2,
        "have the job read what is large from a folder that it is granted";
    /// What was sent did not come in time.
    TooSlow = REQUEST_TIMEOUT, "too_slow", 1, "try again";
    /// There is no such address.
    NoRoute = NOT_FOUND, "no_route", 1, "see that the host and what asks it are of one version";
    /// The address takes no such requests.
    NoMethod = METHOD_NOT_ALLOWED, "no_method", 1,
        "see that the host and what asks it are of one version";
    /// Who asks does not say who it is, or not so that the host knows it.
    Unauthorized = UNAUTHORIZED, "unauthorized", 3,
        "send a token as `Authorization: Bearer ..`; `backlot token add` makes one";
    /// What is asked is meant for another host, or asked by a page of another.
    Foreign = FORBIDDEN, "foreign", 3, "";
    /// What is sent is not said to be JSON.
    MediaType = UNSUPPORTED_MEDIA_TYPE, "media_type", 2,
        "send JSON as `Content-Type: application/json`";
    /// More is asked than is answered in such a time.
    TooMany = TOO_MANY_REQUESTS, "too_many", 1, "try again more slowly";
    /// The caller may not do that.
    Forbidden = FORBIDDEN, "forbidden", 3, "ask whoever runs the host";
    /// The host works with other plugins, or under another policy, than the caller would.
    OtherHost = PRECONDITION_FAILED, "other_host", 3,
        "use the host's own, or another data folder, where a host of your own can run";

    /// There is no such job for the caller.
    UnknownJob = NOT_FOUND, "unknown_job", 3, "";
    /// There is no such session for the caller.
    UnknownSession = NOT_FOUND, "unknown_session", 3, "open the session first";
    /// There is no such task for the caller.
    UnknownTask = NOT_FOUND, "unknown_task", 3, "";
    /// The job has no such file.
    UnknownFile = NOT_FOUND, "unknown_file", 3, "";
    /// There is no such kind.
    UnknownKind = UNPROCESSABLE_ENTITY, "unknown_kind", 3, "";
    /// There is no such kind at the address.
    NoKind = NOT_FOUND, "no_kind", 3, "";

    /// Only what has failed is tried again.
    NotFailed = CONFLICT, "not_failed", 3, "";
    /// All attempts were used.
    Exhausted = CONFLICT, "exhausted", 3, "spawn the work anew if it is to be tried again";
    /// Nothing was asked.
    NotAsked = CONFLICT, "not_asked", 3, "";
    /// The job has ended.
    Ended = CONFLICT, "ended", 3, "";
    /// The job has not ended.
    Live = CONFLICT, "live", 3, "";
    /// Somebody else was there first.
    Changed = CONFLICT, "changed", 3, "look at the job again";
    /// The key has another job.
    KeyTaken = CONFLICT, "key_taken", 3, "use another key, or ask for the same";
    /// The run goes on although it was to stop.
    GoesOn = CONFLICT, "goes_on", 1, "";
    /// The answer is not what was asked for.
    BadAnswer = UNPROCESSABLE_ENTITY, "bad_answer", 3, "answer as the question's schema says";

    /// Too many jobs are live.
    Full = TOO_MANY_REQUESTS, "full", 3, "";
    /// Too many jobs wait.
    QueueFull = TOO_MANY_REQUESTS, "queue_full", 3, "";
    /// The job would be too far below others.
    TooDeep = FORBIDDEN, "too_deep", 3, "do the work in the job itself";

    /// The work cannot be started as it was asked for.
    Refused = UNPROCESSABLE_ENTITY, "refused", 3, "";
    /// The work cannot be started now.
    Unavailable = SERVICE_UNAVAILABLE, "unavailable", 3, "try again later";
    /// Too many are connected.
    Busy = SERVICE_UNAVAILABLE, "busy", 1, "try again once others have what they wait for";
    /// The host is shutting down.
    Closed = SERVICE_UNAVAILABLE, "closed", 1, "try again once it is started anew";

    /// No room is left for what is recorded.
    DiskFull = INSUFFICIENT_STORAGE, "disk_full", 1, "";
    /// The store can only be read.
    ReadOnly = INTERNAL_SERVER_ERROR, "read_only", 1, "let the host write there";
    /// The store is damaged.
    Damaged = INTERNAL_SERVER_ERROR, "damaged", 1, "";
    /// The store is of a newer version.
    Newer = INTERNAL_SERVER_ERROR, "newer", 1, "";
    /// Something cannot be read or written.
    Io = INTERNAL_SERVER_ERROR, "io", 1, "";
    /// The machine gives no random numbers.
    NoRandom = INTERNAL_SERVER_ERROR, "no_random", 1, "see to the machine, then try again";
    /// It is the host's own fault.
    Internal = INTERNAL_SERVER_ERROR, "internal", 1, "see the host's log";
}

/// After what time to try again where nothing better is known. Places become free as jobs
/// and connections end, which is a matter of moments on a host that is busy.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How a command ends that fails for a reason this version does not know.
const FAILED: u8 = 1;

impl Reason {
    /// Returns the status of the reply.
    pub fn status(self) -> StatusCode {
        self.row().0
    }

    /// Returns after what time it is worth to try again, where that is all there is to do.
    pub fn retry_after(self) -> Option<Duration> {
        match self.status() {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Some(RETRY_AFTER),
            _ => None,
        }
    }

    /// Returns the word that programs tell it by.
    pub fn code(self) -> &'static str {
        self.row().1
    }

    /// Returns the exit code of a command that fails for it.
    pub fn exit(self) -> u8 {
        self.row().2
    }

    /// Returns what to do about it, where the message does not say so.
    pub fn hint(self) -> Option<&'static str> {
        Some(self.row().3).filter(|hint| !hint.is_empty())
    }

    /// Returns the reason of that word.
    pub fn of_code(code: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.code() == code)
    }
}

/// Something went wrong: why, and in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Why.
    pub reason: Reason,
    /// What was found, and of what.
    pub message: String,
    /// What to do about it, where that is known better than from the reason.
    pub hint: Option<String>,
}

/// How much is told of what went wrong, in bytes: more than anybody has written here, and
/// less than somebody may have sent that is told of.
const MESSAGE: usize = 16 << 10;

impl Failure {
    /// Returns the failure for that reason. A message that is very long is cut.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > MESSAGE {
            message.truncate(message.floor_char_boundary(MESSAGE));
            message.push('…');
        }
        Self { reason, message, hint: None }
    }

    /// Returns it with what to do about it.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Reason::Invalid, message)
    }

    pub(crate) fn unknown_session(session: &str) -> Self {
        let session: String = session.chars().take(64).collect();
        Self::new(Reason::UnknownSession, format!("no session {session:?}"))
    }

    pub(crate) fn io(doing: &str, error: &io::Error) -> Self {
        Self::new(Reason::Io, format!("{doing}: {error}"))
    }

    /// Returns what is told of it.
    pub fn reply(&self) -> ErrorReply {
        let status = self.reason.status();
        ErrorReply {
            r#type: "about:blank".to_owned(),
            title: status.canonical_reason().unwrap_or_default().to_owned(),
            status: status.as_u16(),
            detail: self.message.clone(),
            code: self.reason.code().to_owned(),
            hint: self.hint.clone().or_else(|| self.reason.hint().map(Into::into)),
        }
    }

    fn of(reason: Reason, error: &impl fmt::Display) -> Self {
        Self::new(reason, error.to_string())
    }
}

impl ErrorReply {
    /// Returns the exit code of a command that fails with it.
    pub fn exit(&self) -> u8 {
        Reason::of_code(&self.code).map_or(FAILED, Reason::exit)
    }
}

fn of_store(error: &StoreError) -> Reason {
    match error {
        StoreError::Full { .. } => Reason::DiskFull,
        StoreError::ReadOnly { .. } => Reason::ReadOnly,
        StoreError::Damaged { .. } => Reason::Damaged,
        StoreError::Newer { .. } => Reason::Newer,
        StoreError::Io { .. } => Reason::Io,
        StoreError::Closed => Reason::Closed,
    }
}

fn of_lost(lost: &Lost) -> Reason {
    match lost {
        Lost::NotFailed { .. } => Reason::NotFailed,
        Lost::Exhausted { .. } => Reason::Exhausted,
        Lost::NotAsked { .. } => Reason::NotAsked,
        Lost::Ended { .. } => Reason::Ended,
        Lost::Moved { .. } | Lost::NotQueued { .. } | Lost::NotOwed => Reason::Changed,
    }
}

fn of_refused(refused: &Refused) -> Reason {
    match refused {
        Refused::NoJob(_) => Reason::UnknownJob,
        Refused::NoSession(_) => Reason::UnknownSession,
        Refused::Lost(lost) => of_lost(lost),
        Refused::Full { .. } | Refused::ManySessions { .. } => Reason::Full,
        Refused::QueueFull { .. } => Reason::QueueFull,
        Refused::TooDeep { .. } => Reason::TooDeep,
        Refused::KeyTaken { .. } => Reason::KeyTaken,
        Refused::Live { .. } => Reason::Live,
    }
}

fn of_launch(error: &LaunchError) -> Reason {
    match error {
        LaunchError::Refused(_) => Reason::Refused,
        LaunchError::Unavailable(_) => Reason::Unavailable,
    }
}

fn of_stop(error: &StopError) -> Reason {
    match error {
        StopError::Unknown(_) => Reason::UnknownJob,
        StopError::Refused(_) => Reason::GoesOn,
        StopError::Store(error) => of_store(error),
        StopError::Elusive => Reason::Changed,
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::of(of_store(&error), &error)
    }
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        Self::of(of_refused(&refused), &refused)
    }
}

impl From<LaunchError> for Failure {
    fn from(error: LaunchError) -> Self {
        Self::of(of_launch(&error), &error)
    }
}

impl From<InvalidPolicy> for Failure {
    fn from(error: InvalidPolicy) -> Self {
        Self::of(Reason::Invalid, &error)
    }
}

impl From<InvalidSchedule> for Failure {
    fn from(error: InvalidSchedule) -> Self {
        Self::of(Reason::Invalid, &error)
    }
}

impl From<NoRandom> for Failure {
    fn from(error: NoRandom) -> Self {
        Self::of(Reason::NoRandom, &error)
    }
}

impl From<SpawnError> for Failure {
    fn from(error: SpawnError) -> Self {
        let reason = match &error {
            SpawnError::Unresolved { .. } => Reason::UnknownKind,
            SpawnError::Attempts { .. } | SpawnError::Policy(_) | SpawnError::Schedule(_) => {
                Reason::Invalid
            }
            SpawnError::Refused(refused) => of_refused(refused),
            SpawnError::Launch(error) => of_launch(error),
            SpawnError::Store(error) => of_store(error),
            SpawnError::Random(_) => Reason::NoRandom,
            SpawnError::Closed => Reason::Closed,
        };
        Self::of(reason, &error)
    }
}

impl From<ResumeError> for Failure {
    fn from(error: ResumeError) -> Self {
        let reason = match &error {
            ResumeError::Unknown(_) => Reason::UnknownJob,
            ResumeError::Refused(refused) => of_refused(refused),
            ResumeError::Answer(_) => Reason::BadAnswer,
            ResumeError::Launch(error) => of_launch(error),
            ResumeError::Store(error) => of_store(error),
            ResumeError::Random(_) => Reason::NoRandom,
            ResumeError::Closed => Reason::Closed,
        };
        Self::of(reason, &error)
    }
}

impl From<StopError> for Failure {
    fn from(error: StopError) -> Self {
        Self::of(of_stop(&error), &error)
    }
}

impl From<LookError> for Failure {
    fn from(error: LookError) -> Self {
        let reason = match &error {
            LookError::Unknown(_) => Reason::UnknownJob,
            LookError::Ambiguous(_) => Reason::Ambiguous,
            LookError::Store(error) => of_store(error),
        };
        Self::of(reason, &error)
    }
}

impl From<TreeError> for Failure {
    fn from(error: TreeError) -> Self {
        let reason = match &error {
            TreeError::Reserved(_) => Reason::Invalid,
            TreeError::Refused(refused) => of_refused(refused),
            TreeError::Stop(error) => of_stop(error),
            TreeError::Store(error) => of_store(error),
            TreeError::Random(_) => Reason::NoRandom,
        };
        Self::of(reason, &error)
    }
}

impl From<TokenError> for Failure {
    fn from(error: TokenError) -> Self {
        let reason = match &error {
            TokenError::Name(_) | TokenError::Session(_) | TokenError::OperatorSession => {
                Reason::Invalid
            }
            TokenError::Reserved
            | TokenError::Taken(_)
            | TokenError::Full(_)
            | TokenError::Unknown(_)
            | TokenError::Exposed { .. }
            | TokenError::NotOwn { .. }
            | TokenError::Locked { .. } => Reason::Refused,
            TokenError::Damaged { .. } => Reason::Damaged,
            TokenError::Io { .. } => Reason::Io,
            TokenError::NoRandom(_) => Reason::NoRandom,
        };
        Self::of(reason, &error)
    }
}

impl From<OpenFileError> for Failure {
    fn from(error: OpenFileError) -> Self {
        let reason = match &error {
            OpenFileError::Outside { .. } => Reason::Invalid,
            OpenFileError::Missing { .. } | OpenFileError::NotAFile { .. } => Reason::UnknownFile,
            // Of a path that no system call takes there is no file.
            OpenFileError::Failed { source, .. } => match source.kind() {
                io::ErrorKind::InvalidFilename | io::ErrorKind::InvalidInput => Reason::UnknownFile,
                _ => Reason::Io,
            },
        };
        Self::of(reason, &error)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, path::PathBuf};

    use backlot_jobs::{JobId, RunId, Scope, Status};
    use backlot_registry::Kind;

    use super::*;

    #[test]
    fn what_somebody_sent_is_not_sent_back_at_any_length() {
        let failure = Failure::new(Reason::Invalid, "ä".repeat(1 << 20));
        assert_eq!(failure.message.len(), MESSAGE + "…".len());
        assert!(failure.message.ends_with("ä…"));
        assert_eq!(Failure::new(Reason::Invalid, "short").message, "short");
    }

    #[test]
    fn the_table() {
        let row = |reason: &Reason| {
            let (status, code, exit, hint) = reason.row();
            let line = format!("{} {code:15} exit {exit}  {hint}", status.as_u16());
            line.trim_end().to_owned()
        };
        let table: Vec<String> = Reason::ALL.iter().map(row).collect();
        let table = table.join("\n");
        let expected = "\
400 bad_request     exit 2
400 ambiguous       exit 2
422 invalid         exit 2
413 too_large       exit 2  have the job read what is large from a folder that it is granted
408 too_slow        exit 1  try again
404 no_route        exit 1  see that the host and what asks it are of one version
405 no_method       exit 1  see that the host and what asks it are of one version
401 unauthorized    exit 3  send a token as `Authorization: Bearer ..`; `backlot token add` makes one
403 foreign         exit 3
415 media_type      exit 2  send JSON as `Content-Type: application/json`
429 too_many        exit 1  try again more slowly
403 forbidden       exit 3  ask whoever runs the host
412 other_host      exit 3  use the host's own, or another data folder, where a host of your own can run
404 unknown_job     exit 3
404 unknown_session exit 3  open the session first
404 unknown_task    exit 3
404 unknown_file    exit 3
422 unknown_kind    exit 3
404 no_kind         exit 3
409 not_failed      exit 3
409 exhausted       exit 3  spawn the work anew if it is to be tried again
409 not_asked       exit 3
409 ended           exit 3
409 live            exit 3
409 changed         exit 3  look at the job again
409 key_taken       exit 3  use another key, or ask for the same
409 goes_on         exit 1
422 bad_answer      exit 3  answer as the question's schema says
429 full            exit 3
429 queue_full      exit 3
403 too_deep        exit 3  do the work in the job itself
422 refused         exit 3
503 unavailable     exit 3  try again later
503 busy            exit 1  try again once others have what they wait for
503 closed          exit 1  try again once it is started anew
507 disk_full       exit 1
500 read_only       exit 1  let the host write there
500 damaged         exit 1
500 newer           exit 1
500 io              exit 1
500 no_random       exit 1  see to the machine, then try again
500 internal        exit 1  see the host's log";
        assert_eq!(table, expected, "\n{table}");
        let codes: HashSet<&str> = Reason::ALL.iter().map(|reason| reason.code()).collect();
        assert_eq!(codes.len(), Reason::ALL.len());
        for reason in Reason::ALL {
            assert_eq!(Reason::of_code(reason.code()), Some(*reason));
        }
    }

    /// Checks what several errors are told as.
    macro_rules! check {
        ($($error:expr => $reason:ident),+ $(,)?) => {
            $(
                let error = $error;
                let message = error.to_string();
                assert_eq!(Failure::from(error), Failure::new(Reason::$reason, message));
            )+
        };
    }

    #[test]
    fn everything_that_goes_wrong_has_its_row() {
        let (job, status) = (JobId::from_bits(7), Status::Working);
        let path = || PathBuf::from("/d/jobs.db");
        let why = || "why".to_owned();
        let lost = || SpawnError::Refused(Lost::Ended { status }.into());
        check! {
            StoreError::Full { path: path() } => DiskFull,
            StoreError::ReadOnly { path: path(), why: why() } => ReadOnly,
            StoreError::Damaged { path: path(), why: why() } => Damaged,
            StoreError::Newer { path: path(), found: 2, known: 1 } => Newer,
            StoreError::Io { path: path(), why: why() } => Io,
            StoreError::Closed => Closed,
            Refused::NoJob(job) => UnknownJob,
            Refused::NoSession(why()) => UnknownSession,
            Refused::Full { scope: Scope::Host, limit: 1 } => Full,
            Refused::QueueFull { scope: Scope::Host, limit: 1 } => QueueFull,
            Refused::ManySessions { family: why(), limit: 1 } => Full,
            Refused::TooDeep { depth: 2, max: 1 } => TooDeep,
            Refused::KeyTaken { key: why(), job } => KeyTaken,
            Refused::Live { job, status } => Live,
            Refused::Lost(Lost::NotFailed { status }) => NotFailed,
            Refused::Lost(Lost::Exhausted { used: 3, max: 3 }) => Exhausted,
            Refused::Lost(Lost::NotAsked { status }) => NotAsked,
            Refused::Lost(Lost::Ended { status }) => Ended,
            Refused::Lost(Lost::NotQueued { status }) => Changed,
            Refused::Lost(Lost::Moved { status, run: Some(RunId::from_bits(1)) }) => Changed,
            Refused::Lost(Lost::NotOwed) => Changed,
            LaunchError::Refused(why()) => Refused,
            LaunchError::Unavailable(why()) => Unavailable,
            InvalidPolicy("no") => Invalid,
            InvalidSchedule::Never(why()) => Invalid,
            NoRandom(why()) => NoRandom,
            SpawnError::Unresolved { kind: Kind::new("a").unwrap(), why: why() } => UnknownKind,
            SpawnError::Attempts { asked: 9, max: 3 } => Invalid,
            SpawnError::Policy(InvalidPolicy("no")) => Invalid,
            SpawnError::Schedule(InvalidSchedule::Never(why())) => Invalid,
            lost() => Ended,
            SpawnError::Launch(LaunchError::Refused(why())) => Refused,
            SpawnError::Store(StoreError::Closed) => Closed,
            SpawnError::Random(NoRandom(why())) => NoRandom,
            SpawnError::Closed => Closed,
            ResumeError::Unknown(job) => UnknownJob,
            ResumeError::Refused(Lost::NotAsked { status }.into()) => NotAsked,
            ResumeError::Answer(why()) => BadAnswer,
            ResumeError::Launch(LaunchError::Unavailable(why())) => Unavailable,
            ResumeError::Store(StoreError::Closed) => Closed,
            ResumeError::Random(NoRandom(why())) => NoRandom,
            ResumeError::Closed => Closed,
            StopError::Unknown(job) => UnknownJob,
            StopError::Refused(why()) => GoesOn,
            StopError::Store(StoreError::Full { path: path() }) => DiskFull,
            StopError::Elusive => Changed,
            LookError::Unknown(why()) => UnknownJob,
            LookError::Ambiguous(why()) => Ambiguous,
            LookError::Store(StoreError::Closed) => Closed,
            TreeError::Reserved(why()) => Invalid,
            TreeError::Refused(Refused::Live { job, status }) => Live,
            TreeError::Stop(StopError::Refused(why())) => GoesOn,
            TreeError::Store(StoreError::Closed) => Closed,
            TreeError::Random(NoRandom(why())) => NoRandom,
            TokenError::Name(why()) => Invalid,
            TokenError::Session(why()) => Invalid,
            TokenError::OperatorSession => Invalid,
            TokenError::Taken(why()) => Refused,
            TokenError::Full(1) => Refused,
            TokenError::Unknown(why()) => Refused,
            TokenError::Exposed { path: path(), mode: 0o644 } => Refused,
            TokenError::NotOwn { path: path() } => Refused,
            TokenError::Locked { path: path() } => Refused,
            TokenError::Damaged { path: path(), why: why() } => Damaged,
            TokenError::Io { path: path(), source: io::ErrorKind::PermissionDenied.into() } => Io,
            TokenError::NoRandom(why()) => NoRandom,
            OpenFileError::Outside { path: path() } => Invalid,
            OpenFileError::Missing { path: path() } => UnknownFile,
            OpenFileError::NotAFile { path: path() } => UnknownFile,
            OpenFileError::Failed { path: path(), source: io::ErrorKind::InvalidInput.into() } => UnknownFile,
            OpenFileError::Failed { path: path(), source: io::ErrorKind::InvalidFilename.into() } => UnknownFile,
            OpenFileError::Failed { path: path(), source: io::ErrorKind::PermissionDenied.into() } => Io,
        }
    }
}
