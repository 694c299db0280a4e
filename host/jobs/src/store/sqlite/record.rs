//! How a job is written down: what changes as one piece of JSON, and what it was
//! spawned with as another. Inputs and results are texts of their own, so that
//! listings need not read them.

use std::{borrow::Cow, sync::Arc};

use rusqlite::Row;
use serde::{Deserialize, Serialize};

use super::fault::Fault;
use crate::{
    id::{DeliveryId, JobId},
    job::{Call, Code, Job, Phase, Spec, Stage, Status, StopRequest, Wait},
};

/// The columns that [`brief`] reads, in its order.
macro_rules! brief_columns {
    () => {
        "job.seq, job.id, spec.depth, spec.created_ms, spec.spec, job.life"
    };
}

/// The columns that [`whole`] reads, and where they are.
macro_rules! select_whole {
    () => {
        concat!(
            "SELECT job.seq, job.id, spec.depth, spec.created_ms, spec.spec, job.life,
                    spec.input, job.stage_input, result.result
             FROM job LEFT JOIN spec ON spec.seq = job.seq
                      LEFT JOIN result ON result.seq = job.seq "
        )
    };
}

pub(super) use {brief_columns, select_whole};

/// What of a job changes, without what are texts of their own.
#[derive(Serialize, Deserialize)]
struct Life<'a> {
    phase: Cow<'a, Phase>,
    stage: Cow<'a, Stage>,
    attempt: u32,
    step: u32,
    continuations: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    state: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "is_empty")]
    code: Cow<'a, [Code]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stop: Option<Cow<'a, StopRequest>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    detail: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    debt: Option<Cow<'a, DeliveryId>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    call: Option<Cow<'a, Call>>,
    endings: u32,
    updated_ms: u64,
}

fn is_empty(code: &[Code]) -> bool {
    code.is_empty()
}

/// What a job is found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marks {
    pub(super) status: i64,
    pub(super) place: Option<i64>,
    pub(super) due_ms: Option<i64>,
    pub(super) ended_ms: Option<i64>,
    pub(super) owed: bool,
}

impl Marks {
    pub(super) fn of(job: &Job) -> Self {
        let marks = Self {
            status: number_of(job.status()),
            place: None,
            due_ms: None,
            ended_ms: None,
            owed: job.debt.is_some(),
        };
        match &job.phase {
            Phase::Queued { wait, place, .. } => {
                // A schedule is never the head of a queue.
                let is_head = !matches!(wait, Wait::Cron { .. });
                let due_ms = Some(stored(wait.due_ms()));
                Self { place: is_head.then(|| stored(*place)), due_ms, ..marks }
            }
            Phase::Ended { ended, .. } => Self { ended_ms: Some(stored(ended.at_ms)), ..marks },
            Phase::Working { .. } | Phase::InputRequired { .. } => marks,
        }
    }
}

/// Returns the number that a status is stored as.
pub(super) fn number_of(status: Status) -> i64 {
    match status {
        Status::Queued => 0,
        Status::Working => 1,
        Status::InputRequired => 2,
        Status::Completed => 3,
        Status::Failed => 4,
        Status::Cancelled => 5,
    }
}

/// Returns a time or a count as SQLite can hold it: what is past its end is at its end.
pub(super) fn stored(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Returns the bytes of an id, which sort as the ids do.
pub(super) fn bytes_of(id: JobId) -> [u8; 16] {
    id.bits().to_be_bytes()
}

/// Returns what was written into the column of a job's id.
pub(super) fn id_at(row: &Row<'_>, column: usize) -> Result<JobId, rusqlite::Error> {
    Ok(JobId::from_bits(u128::from_be_bytes(row.get(column)?)))
}

/// Returns what changes of a job, without what are texts of their own.
pub(super) fn life_of(job: &Job) -> Result<String, Fault> {
    let phase = match &job.phase {
        Phase::Ended { ended, last } if ended.result.is_some() => {
            let mut ended = ended.clone();
            ended.result = None;
            Cow::Owned(Phase::Ended { ended, last: last.clone() })
        }
        phase => Cow::Borrowed(phase),
    };
    let stage = match &job.stage {
        stage if stage.input.is_some() => Cow::Owned(Stage { input: None, ..stage.clone() }),
        stage => Cow::Borrowed(stage),
    };
    let life = Life {
        phase,
        stage,
        attempt: job.attempt,
        step: job.step,
        continuations: job.continuations,
        state: job.state.as_deref().map(Cow::Borrowed),
        code: Cow::Borrowed(&job.code),
        stop: job.stop.as_ref().map(Cow::Borrowed),
        detail: job.detail.as_deref().map(Cow::Borrowed),
        debt: job.debt.as_ref().map(Cow::Borrowed),
        call: job.call.as_deref().map(Cow::Borrowed),
        endings: job.endings,
        updated_ms: job.updated_ms,
    };
    json_of(&life)
}

/// Returns what a job was spawned with, without its input.
pub(super) fn spec_of(job: &Job) -> Result<String, Fault> {
    json_of(&Spec { input: String::new(), ..(*job.spec).clone() })
}

/// Returns a value as JSON.
pub(super) fn json_of(value: &impl Serialize) -> Result<String, Fault> {
    serde_json::to_string(value)
        .map_err(|error| Fault::Row { row: "a new row".to_owned(), why: error.to_string() })
}

/// Returns a value that was written as JSON. `row` says where.
pub(super) fn from_json<'de, T: Deserialize<'de>>(
    json: &'de str,
    row: impl FnOnce() -> String,
) -> Result<T, Fault> {
    serde_json::from_str(json).map_err(|error| Fault::Row { row: row(), why: error.to_string() })
}

/// Returns the job of a row of [`select_whole!`], with its place in the table.
pub(super) fn whole(row: &Row<'_>) -> Result<(i64, Job), Fault> {
    let (sequence, mut job) = brief(row)?;
    if let Some(spec) = Arc::get_mut(&mut job.spec) {
        spec.input = row.get(6)?;
    }
    job.stage.input = row.get(7)?;
    if let Phase::Ended { ended, .. } = &mut job.phase {
        ended.result = row.get(8)?;
    }
    Ok((sequence, job))
}

/// Returns the job of a row of [`brief_columns!`], as listings have it, with its place in the
/// table.
pub(super) fn brief(row: &Row<'_>) -> Result<(i64, Job), Fault> {
    let sequence: i64 = row.get(0)?;
    let name = || format!("job {sequence}");
    let missing = |_| Fault::Row { row: name(), why: "what it was spawned with is gone".into() };
    let spec: &str = row.get_ref(4)?.as_str().map_err(missing)?;
    let spec: Spec = from_json(spec, name)?;
    let life: &str = row.get_ref(5)?.as_str().map_err(rusqlite::Error::from)?;
    let life: Life<'_> = from_json(life, name)?;
    let job = Job {
        id: id_at(row, 1)?,
        spec: Arc::new(spec),
        depth: row.get(2)?,
        phase: life.phase.into_owned(),
        stage: life.stage.into_owned(),
        attempt: life.attempt,
        step: life.step,
        continuations: life.continuations,
        state: life.state.map(Cow::into_owned),
        code: life.code.into_owned(),
        stop: life.stop.map(Cow::into_owned),
        detail: life.detail.map(Cow::into_owned),
        debt: life.debt.map(Cow::into_owned),
        call: life.call.map(|call| Box::new(call.into_owned())),
        endings: life.endings,
        created_ms: row.get::<_, i64>(3)?.cast_unsigned(),
        updated_ms: life.updated_ms,
    };
    Ok((sequence, job))
}
