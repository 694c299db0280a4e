//! Every route of the interface, with what is said about it.

use std::sync::LazyLock;

use axum::{
    http::header::CONTENT_TYPE,
    response::{IntoResponse as _, Response},
};
use utoipa::openapi::{ObjectBuilder, Type};

use super::{
    ask::Who,
    events, follow, host, jobs, kinds, metrics, output, sessions, stream,
    table::{About, READING, Table, WRITING},
    tasks,
};
use crate::{
    error::Reason,
    wire::{
        AnswerRequest, BackupRequest, DeleteQuery, DeliveryReply, DroppedView, EntriesQuery,
        EntriesReply, EntryReply, EntryRequest, EventsQuery, FilesQuery, FilesReply, HandQuery,
        HealthReply, JobView, KindView, KindsReply, ListQuery, LiveReply, LookQuery, OutputPiece,
        OutputQuery, OutputReply, Page, PruneReply, PruneRequest, ReadyReply, RemovedView,
        RollbackRequest, SessionView, SettleReply, SettleRequest, ShutdownReply, ShutdownRequest,
        SnapshotView, SpawnRequest, StopReply, StopRequest, StreamQuery, TaskStopReply,
        TaskStopRequest, TaskView, TasksQuery, TasksReply,
    },
};

/// Returns every route of the interface, with what is said about it.
pub(super) fn table() -> Table {
    let table = of_host(Table::new());
    let table = of_tasks(of_kinds(table));
    of_sessions(of_work(of_jobs(table)))
}

/// Returns the addresses of the interface, as the router has them.
pub(crate) fn addresses() -> &'static [String] {
    static ADDRESSES: LazyLock<Vec<String>> =
        LazyLock::new(|| table().addresses.into_iter().collect());
    &ADDRESSES
}

/// Returns the description of the interface.
async fn describe(_: Who) -> Response {
    ([(CONTENT_TYPE, "application/json")], description()).into_response()
}

/// Returns the description of the interface, as it is served.
pub fn description() -> &'static str {
    static DESCRIPTION: LazyLock<String> = LazyLock::new(|| {
        // These shapes have nothing in them that cannot be written.
        let mut text = serde_json::to_string_pretty(&table().description()).unwrap_or_default();
        text.push('\n');
        text
    });
    &DESCRIPTION
}

fn of_jobs(table: Table) -> Table {
    table
        .post(
            "/v1/jobs",
            jobs::spawn,
            About::new("spawnJob", "Spawns a job.")
                .more(
                    "It answers once the job is recorded and its first run is under way, or it \
                     waits. With a key it is spawned once: the same again gets the same job. One \
                     of `kind` and `file` says what runs, and at most one of `after_ms`, `at_ms` \
                     and `cron` when. Files, and grants where the host has no policy, are the \
                     operator's to ask for.",
                )
                .header(jobs::KEY_HEADER, jobs::key_schema(), "As good as `key` in what is sent.")
                .header(
                    "traceparent",
                    ObjectBuilder::new().schema_type(Type::String),
                    "The trace that it belongs to, where what is sent names none. One that \
                     cannot be read is ignored.",
                )
                .sent::<SpawnRequest>()
                .answers::<JobView>(200, "It was spawned before under that key.")
                .answers::<JobView>(201, "It was spawned.")
                .with_location()
                .fails(WRITING)
                .fails(&[
                    Reason::UnknownKind,
                    Reason::UnknownSession,
                    Reason::OtherHost,
                    Reason::KeyTaken,
                    Reason::Changed,
                    Reason::Full,
                    Reason::QueueFull,
                    Reason::TooDeep,
                    Reason::Refused,
                    Reason::Unavailable,
                    Reason::NoRandom,
                ]),
        )
        .get(
            "/v1/jobs",
            jobs::list,
            About::new("listJobs", "Lists jobs, the newest first.")
                .more("Without what only the answer about one job has. Nothing is settled by it.")
                .query::<ListQuery>()
                .answers::<Page>(200, "Some of the jobs.")
                .fails(READING),
        )
        .get_whole(
            "/v1/jobs/{id}",
            jobs::look,
            About::new("getJob", "Looks at a job, and waits for its end where that is asked for.")
                .more(
                    "With `wait_ms` it answers once the job has ended or asks a person, or when \
                     that time is over, which the host bounds. With `hand=model` whoever the job \
                     works for has its ending in hand with the answer, and is not told of it \
                     again.",
                )
                .query::<LookQuery>()
                .answers::<JobView>(200, "The job.")
                .fails(WRITING)
                .fails(OF_JOB),
        )
        .delete(
            "/v1/jobs/{id}",
            jobs::remove,
            About::new("deleteJob", "Deletes a job that has ended, with all that is kept of it.")
                .answers::<PruneReply>(200, "It is gone, and what was below it.")
                .fails(WRITING)
                .fails(OF_JOB)
                .fails(&[Reason::Live]),
        )
        .post(
            "/v1/jobs/{id}/stop",
            jobs::stop,
            About::new("stopJob", "Stops a job.")
                .may_be_sent::<StopRequest>()
                .answers::<StopReply>(200, "What it came to.")
                .fails(WRITING)
                .fails(OF_JOB)
                .fails(&[Reason::GoesOn, Reason::Changed]),
        )
        .post(
            "/v1/jobs/{id}/retry",
            jobs::retry,
            About::new("retryJob", "Tries a job that has failed again.")
                .query::<HandQuery>()
                .answers::<JobView>(200, "The job, on its next attempt.")
                .fails(WRITING)
                .fails(OF_JOB)
                .fails(RESUMING)
                .fails(&[Reason::NotFailed, Reason::Exhausted]),
        )
        .post(
            "/v1/jobs/{id}/answer",
            jobs::answer,
            About::new("answerJob", "Answers what a job asks.")
                .query::<HandQuery>()
                .sent::<AnswerRequest>()
                .answers::<JobView>(200, "The job, which goes on.")
                .fails(WRITING)
                .fails(OF_JOB)
                .fails(RESUMING)
                .fails(&[Reason::NotAsked, Reason::Ended, Reason::BadAnswer]),
        )
}

fn of_work(table: Table) -> Table {
    table
        .get(
            "/v1/jobs/{id}/output",
            output::read,
            About::new("readOutput", "Reads what a job has written, or waits for it.")
                .query::<OutputQuery>()
                .answers::<OutputReply>(200, "What there is behind the offset.")
                .fails(READING)
                .fails(OF_JOB),
        )
        .get(
            "/v1/jobs/{id}/stream",
            follow::stream,
            About::new("streamOutput", "Follows what a job writes, to its end.")
                .more(
                    "A live stream of Server-Sent Events, whose data are JSON. `output` has a \
                     piece of output (`OutputPiece`); its id is the offset to come back with, by \
                     `Last-Event-ID` or `after`, and a piece without one goes together with what \
                     follows. `dropped` tells of a hole in the record (`DroppedView`), `status` \
                     where the job stands when that changes (`JobView`). All of the output comes \
                     before `ended` (`JobView`), which is the last event; so are `removed` \
                     (`RemovedView`), `closing`, when the host ends, and `error` (`Problem`). A \
                     stream with nothing to say has a comment every 15 seconds.",
                )
                .query::<StreamQuery>()
                .header(
                    stream::LAST_HEADER.as_str(),
                    ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[0-9]{1,19}$")),
                    "The id of the last event that was received.",
                )
                .answers_events("The events.")
                .event::<OutputPiece>()
                .event::<DroppedView>()
                .event::<RemovedView>()
                .fails(READING)
                .fails(OF_JOB),
        )
        .get(
            "/v1/events",
            events::stream,
            About::new("streamEvents", "Follows what becomes of jobs.")
                .more(
                    "A live stream of Server-Sent Events, whose data are JSON. First come the \
                     jobs that have not ended, in one or more `snapshot` events \
                     (`SnapshotView`), then `job` for each change (`JobView`, without progress) \
                     and `removed` for each job that is gone (`RemovedView`). A job never goes \
                     back in it, and no change falls between. Who comes back with the id of the \
                     last event, by `Last-Event-ID` or `after`, gets exactly what came since; \
                     where that is not kept any more, or was another host's, or a reader is too \
                     slow, `reset` says so and the jobs are shown anew. `closing` is the last \
                     event when the host ends, and `error` (`Problem`) where the store cannot be \
                     read. A stream with nothing to say repeats its last id every 15 seconds.",
                )
                .query::<EventsQuery>()
                .header(
                    stream::LAST_HEADER.as_str(),
                    ObjectBuilder::new().schema_type(Type::String),
                    "The id of the last event that was received.",
                )
                .answers_events("The events.")
                .event::<SnapshotView>()
                .event::<RemovedView>()
                .fails(&[Reason::UnknownSession, Reason::Invalid]),
        )
        .get(
            "/v1/jobs/{id}/files",
            jobs::files,
            About::new("listFiles", "Lists the files that a job has left.")
                .query::<FilesQuery>()
                .answers::<FilesReply>(200, "Its files.")
                .fails(READING)
                .fails(OF_JOB),
        )
        .get(
            "/v1/jobs/{id}/files/{*path}",
            jobs::file,
            About::new("readFile", "Reads a file that a job has left.")
                .answers_bytes("Its content, which is whatever a guest wrote.")
                .fails(READING)
                .fails(OF_JOB)
                .fails(&[Reason::UnknownFile, Reason::Invalid, Reason::NoRoute]),
        )
}

fn of_sessions(table: Table) -> Table {
    table
        .put(
            "/v1/sessions/{id}",
            sessions::open,
            About::new("openSession", "Opens a session, unless it is open.")
                .answers::<SessionView>(200, "It is open.")
                .fails(WRITING)
                .fails(OF_SESSION)
                .fails(&[Reason::Full]),
        )
        .delete(
            "/v1/sessions/{id}",
            sessions::remove,
            About::new("deleteSession", "Deletes a session with all that belongs to it.")
                .more("Its jobs are stopped first.")
                .query::<DeleteQuery>()
                .answers::<PruneReply>(200, "It is gone, and its jobs are.")
                .fails(WRITING)
                .fails(OF_SESSION)
                .fails(&[Reason::Live, Reason::GoesOn, Reason::Changed, Reason::NoRandom]),
        )
        .get(
            "/v1/sessions/{id}/entries",
            sessions::entries,
            About::new("listEntries", "Reads what was written down for a session.")
                .query::<EntriesQuery>()
                .answers::<EntriesReply>(200, "Some of the entries.")
                .fails(READING)
                .fails(OF_SESSION),
        )
        .post(
            "/v1/sessions/{id}/entries",
            sessions::append,
            About::new("appendEntry", "Writes an entry into a session, unless it is there.")
                .sent::<EntryRequest>()
                .answers::<EntryReply>(200, "It is there.")
                .fails(WRITING)
                .fails(OF_SESSION),
        )
        .get(
            "/v1/sessions/{id}/owed",
            sessions::owed,
            About::new("getOwed", "Returns the endings that a session still has to hear of.")
                .more("They are told until they are settled.")
                .answers::<DeliveryReply>(200, "What is owed, or nothing.")
                .fails(READING)
                .fails(OF_SESSION),
        )
        .post(
            "/v1/sessions/{id}/settle",
            sessions::settle,
            About::new("settle", "Settles what a session was told.")
                .sent::<SettleRequest>()
                .answers::<SettleReply>(200, "How much was settled.")
                .fails(WRITING)
                .fails(OF_SESSION),
        )
}

fn of_tasks(table: Table) -> Table {
    table
        .get(
            "/v1/tasks",
            tasks::list,
            About::new(
                "listTasks",
                "Lists the tasks of the registry, in the order of their start.",
            )
            .more(
                "A task is one live run. One that does a run of a job belongs to the session that \
                     the job works for. What it writes is read of its job.",
            )
            .query::<TasksQuery>()
            .answers::<TasksReply>(200, "Some of the tasks."),
        )
        .get(
            "/v1/tasks/{id}",
            tasks::look,
            About::new("getTask", "Looks at a task.")
                .answers::<TaskView>(200, "The task.")
                .fails(&[Reason::UnknownTask]),
        )
        .post(
            "/v1/tasks/{id}/stop",
            tasks::stop,
            About::new("stopTask", "Stops a task.")
                .may_be_sent::<TaskStopRequest>()
                .answers::<TaskStopReply>(200, "What it came to.")
                .fails(&[Reason::UnknownTask, Reason::GoesOn]),
        )
}

fn of_kinds(table: Table) -> Table {
    table
        .get(
            "/v1/kinds",
            kinds::list,
            About::new("listKinds", "Lists the kinds of the host, by name.")
                .answers::<KindsReply>(200, "The kinds."),
        )
        .get(
            "/v1/kinds/{kind}",
            kinds::look,
            About::new("getKind", "Looks at a kind.")
                .answers::<KindView>(200, "The kind.")
                .fails(&[Reason::NoKind]),
        )
        .post(
            "/v1/kinds/{kind}/load",
            kinds::load,
            About::new("loadKind", "Loads the file of a kind.")
                .more("Also where it was unloaded or drained. The operator's.")
                .answers::<KindView>(200, "The kind, as it is then.")
                .fails(CHANGING_KIND),
        )
        .post(
            "/v1/kinds/{kind}/drain",
            kinds::drain,
            About::new(
                "drainKind",
                "Starts no more tasks of a kind, and unloads it with its last.",
            )
            .more(
                "It answers after a second at most. Where tasks of it go on, so does the \
                     drain: the kind is `draining` until the last of them has ended, and \
                     `unloaded` then. The operator's.",
            )
            .answers::<KindView>(200, "It is drained.")
            .answers::<KindView>(202, "It starts no more tasks, and some still run.")
            .fails(CHANGING_KIND),
        )
        .post(
            "/v1/kinds/{kind}/unload",
            kinds::unload,
            About::new("unloadKind", "Starts no more tasks of a kind until its file changes.")
                .more("Those that run go on. The operator's.")
                .answers::<KindView>(200, "The kind, as it is then.")
                .fails(CHANGING_KIND),
        )
        .post(
            "/v1/kinds/{kind}/rollback",
            kinds::rollback,
            About::new("rollbackKind", "Goes back to a version of a kind from before.")
                .more("The operator's.")
                .may_be_sent::<RollbackRequest>()
                .answers::<KindView>(200, "The kind, as it is then.")
                .fails(CHANGING_KIND),
        )
        .post(
            "/v1/reload",
            kinds::reload,
            About::new("reload", "Looks at the plugin folder, and takes what has changed in it.")
                .more("The operator's.")
                .answers::<KindsReply>(200, "The kinds, as they are then.")
                .fails(&[Reason::Io, Reason::Closed]),
        )
}

fn of_host(table: Table) -> Table {
    table
        .get(
            "/v1/openapi.json",
            describe,
            About::new("getDescription", "Returns this description.")
                .answers_any("The description."),
        )
        .get(
            "/v1/live",
            host::live,
            About::new("isLive", "Tells that the host answers.")
                .open()
                .answers::<LiveReply>(200, "It does."),
        )
        .get(
            "/v1/ready",
            host::ready,
            About::new("isReady", "Tells whether the host takes work.")
                .open()
                .answers::<ReadyReply>(200, "It does.")
                .fails(READING)
                .fails(&[Reason::Unavailable]),
        )
        .get(
            "/v1/health",
            host::health,
            About::new("getHealth", "Tells how the host is doing.")
                .more("The operator's.")
                .answers::<HealthReply>(200, "How it is doing.")
                .fails(READING),
        )
        .get(
            "/metrics",
            metrics::page,
            About::new("getMetrics", "Returns what is counted, for Prometheus.")
                .more(
                    "In its text format, or in that of OpenMetrics where that is asked for. For \
                     the operator, and observers of all.",
                )
                .answers_text("What is counted.")
                .fails(READING),
        )
        .post(
            "/v1/prune",
            host::prune,
            About::new("prune", "Deletes jobs that ended some time ago.")
                .more("The operator's.")
                .may_be_sent::<PruneRequest>()
                .answers::<PruneReply>(200, "How many are gone.")
                .fails(WRITING),
        )
        .post(
            "/v1/backup",
            host::backup,
            About::new("backup", "Writes a copy of all that is recorded to a path of the host's.")
                .more("The operator's.")
                .sent::<BackupRequest>()
                .answers_nothing(204, "It is there.")
                .fails(WRITING),
        )
        .post(
            "/v1/shutdown",
            host::shutdown,
            About::new("shutDown", "Ends the host in order.")
                .more("It does not wait for that. The operator's.")
                .may_be_sent::<ShutdownRequest>()
                .answers::<ShutdownReply>(202, "It ends."),
        )
}

/// What may be wrong with the digits of a job.
const OF_JOB: &[Reason] = &[Reason::UnknownJob, Reason::Ambiguous];
/// What may be wrong with the name of a session.
const OF_SESSION: &[Reason] = &[Reason::UnknownSession, Reason::Invalid];
/// Why a job may not go on.
const RESUMING: &[Reason] =
    &[Reason::Changed, Reason::Full, Reason::Refused, Reason::Unavailable, Reason::NoRandom];
/// Why a kind may not be changed.
const CHANGING_KIND: &[Reason] = &[
    Reason::NoKind,
    Reason::UnknownKind,
    Reason::Refused,
    Reason::Changed,
    Reason::Io,
    Reason::Closed,
];
