//! What is read from the tables, each within one transaction, so that it is all of
//! one moment.

use std::collections::HashMap;

use backlot_registry::SessionId;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::{
    fault::Fault,
    record::{
        brief, brief_columns, bytes_of, from_json, id_at, json_of, number_of, select_whole, stored,
        whole,
    },
    tables,
};
use crate::{
    id::{JobId, Prefix},
    job::{Job, Status},
    session::Entry,
    store::{Census, Page, Query},
};

/// Returns a job.
pub(super) fn job(connection: &Connection, id: JobId) -> Result<Option<Job>, Fault> {
    let mut statement = connection.prepare_cached(concat!(select_whole!(), "WHERE job.id = ?1"))?;
    let mut rows = statement.query(params![bytes_of(id)])?;
    rows.next()?.map(|row| Ok(whole(row)?.1)).transpose()
}

/// Returns a job if it works for that session as it is now.
pub(super) fn job_of(
    connection: &Connection,
    id: JobId,
    session: &SessionId,
) -> Result<Option<Job>, Fault> {
    let moment = connection.unchecked_transaction()?;
    let own = job(&moment, id)?.filter(|job| job.spec.parent == *session);
    let Some(job) = own else { return Ok(None) };
    let is_current = current(&moment, session)? == Some(job.spec.incarnation.cast_signed());
    Ok(is_current.then_some(job))
}

/// Returns the ids that begin so, at most two of them.
pub(super) fn find(connection: &Connection, prefix: Prefix) -> Result<Vec<JobId>, Fault> {
    let sql = "SELECT id FROM job WHERE id BETWEEN ?1 AND ?2 LIMIT 2";
    let mut statement = connection.prepare_cached(sql)?;
    let within = params![bytes_of(prefix.first()), bytes_of(prefix.last())];
    let ids = statement.query_map(within, |row| id_at(row, 0))?;
    Ok(ids.collect::<Result<_, _>>()?)
}

/// Returns a part of a listing.
pub(super) fn list(connection: &Connection, query: &Query) -> Result<Page, Fault> {
    let moment = connection.unchecked_transaction()?;
    let mut page = Page::default();
    let of = match &query.session {
        None => None,
        Some(session) => match current(&moment, session)? {
            None => return Ok(page),
            Some(incarnation) => Some((session.as_str(), incarnation)),
        },
    };
    let (mut statuses, mut sql) = (query.status.clone(), String::new());
    statuses.sort();
    statuses.dedup();
    if statuses.is_empty() && of.is_some() {
        statuses = Status::ALL.to_vec();
    }
    // The rows of one status, and of one status of a session, lie in order; so parts of
    // the listing are put together as they are read, and nothing is sorted.
    let by_session = if of.is_some() { " AND parent = ?1 AND incarnation = ?2" } else { "" };
    let statuses =
        statuses.into_iter().map(|status| format!(" AND status = {}", number_of(status)));
    let parts: Vec<String> = statuses.collect();
    let parts = if parts.is_empty() { vec![String::new()] } else { parts };
    for (index, part) in parts.iter().enumerate() {
        let union = if index > 0 { " UNION ALL " } else { "" };
        sql += &format!("{union}SELECT seq FROM job WHERE seq < ?3{by_session}{part}");
    }
    sql += " ORDER BY 1 DESC LIMIT ?4";
    let (parent, incarnation) = of.unwrap_or_default();
    let before = query.before.map_or(i64::MAX, stored);
    let one_more = stored(query.limit as u64).saturating_add(1);
    let mut statement = moment.prepare_cached(&sql)?;
    let sequences = statement
        .query_map(params![parent, incarnation, before, one_more], |row| row.get(0))?
        .collect::<Result<Vec<i64>, _>>()?;
    let mut row = moment.prepare_cached(concat!(
        "SELECT ",
        brief_columns!(),
        " FROM job LEFT JOIN spec ON spec.seq = job.seq WHERE job.seq = ?1"
    ))?;
    for sequence in sequences.iter().take(query.limit) {
        let mut rows = row.query(params![sequence])?;
        if let Some(row) = rows.next()? {
            page.jobs.push(brief(row)?.1);
        }
    }
    if sequences.len() > query.limit {
        let last = query.limit.checked_sub(1).and_then(|last| sequences.get(last));
        page.next = last.map(|last| last.cast_unsigned());
    }
    Ok(page)
}

/// Returns what is owed, the oldest ending first.
pub(super) fn owed(
    connection: &Connection,
    session: Option<&SessionId>,
    after: Option<(u64, JobId)>,
    limit: usize,
) -> Result<Vec<Job>, Fault> {
    const ALL: &str = "SELECT seq, parent, incarnation FROM job
         WHERE ended_ms IS NOT NULL AND owed = 1 AND ?1 IS NULL AND (ended_ms, seq) > (?2, ?3)
         ORDER BY ended_ms, seq";
    const OF: &str = "SELECT seq, parent, incarnation FROM job
         WHERE ended_ms IS NOT NULL AND owed = 1 AND parent = ?1 AND (ended_ms, seq) > (?2, ?3)
         ORDER BY ended_ms, seq";
    let moment = connection.unchecked_transaction()?;
    let mut statement = moment.prepare_cached(if session.is_some() { OF } else { ALL })?;
    let after = match after {
        None => (-1, 0),
        Some((ended_ms, id)) => {
            let sql = "SELECT seq FROM job WHERE id = ?1";
            let mut sequence = moment.prepare_cached(sql)?;
            let sequence =
                sequence.query_row(params![bytes_of(id)], |row| row.get(0)).optional()?;
            (stored(ended_ms), sequence.unwrap_or(0))
        }
    };
    let values = params![session.map(SessionId::as_str), after.0, after.1];
    let mut owed = statement.query(values)?;
    let mut whole_row = moment.prepare_cached(concat!(select_whole!(), "WHERE job.seq = ?1"))?;
    let (mut parents, mut jobs) = (Parents::default(), Vec::new());
    while jobs.len() < limit
        && let Some(row) = owed.next()?
    {
        if parents.is_current(&moment, row.get(1)?, row.get(2)?)? {
            let mut rows = whole_row.query(params![row.get::<_, i64>(0)?])?;
            if let Some(row) = rows.next()? {
                jobs.push(whole(row)?.1);
            }
        }
    }
    Ok(jobs)
}

/// Returns the jobs whose webhook is still to be told, those that are due first first.
pub(super) fn calls(
    connection: &Connection,
    except: &[String],
    limit: usize,
) -> Result<Vec<Job>, Fault> {
    const CALLS: &str = concat!(
        "SELECT ",
        brief_columns!(),
        " FROM call JOIN job ON job.seq = call.seq LEFT JOIN spec ON spec.seq = job.seq
         WHERE call.receiver NOT IN (SELECT value FROM json_each(?1))
         ORDER BY call.due_ms, call.seq LIMIT ?2"
    );
    let mut statement = connection.prepare_cached(CALLS)?;
    let mut rows = statement.query(params![json_of(&except)?, stored(limit as u64)])?;
    let mut jobs = Vec::new();
    while let Some(row) = rows.next()? {
        jobs.push(brief(row)?.1);
    }
    Ok(jobs)
}

/// Returns entries of a session, with their numbers.
pub(super) fn entries(
    connection: &Connection,
    session: &SessionId,
    after: u64,
    limit: usize,
) -> Result<Vec<(u64, Entry)>, Fault> {
    let sql = "SELECT number, entry FROM entry WHERE session = ?1 AND number > ?2
               ORDER BY number LIMIT ?3";
    let mut statement = connection.prepare_cached(sql)?;
    let values = params![session.as_str(), stored(after), stored(limit as u64)];
    let (mut rows, mut entries) = (statement.query(values)?, Vec::new());
    while let Some(row) = rows.next()? {
        let number = row.get::<_, i64>(0)?.cast_unsigned();
        let entry = row.get_ref(1)?.as_str().map_err(rusqlite::Error::from)?;
        let name = || format!("entry {number} of session {:?}", session.as_str());
        entries.push((number, from_json(entry, name)?));
    }
    Ok(entries)
}

/// Returns how many jobs there are of each status.
pub(super) fn census(connection: &Connection) -> Result<Census, Fault> {
    let moment = connection.unchecked_transaction()?;
    let count = |sql: &str| -> Result<u64, Fault> {
        let count: i64 = moment.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
        Ok(count.cast_unsigned())
    };
    let next_due_ms = moment
        .prepare_cached("SELECT min(due_ms) FROM job WHERE status = 0")?
        .query_row([], |row| row.get::<_, Option<i64>>(0))?;
    let mut census = Census {
        queued: count("SELECT count(*) FROM job WHERE status = 0")?,
        next_due_ms: next_due_ms.map(i64::cast_unsigned),
        working: count("SELECT count(*) FROM job WHERE status = 1")?,
        input_required: count("SELECT count(*) FROM job WHERE status = 2")?,
        ended: count("SELECT ended FROM store")?,
        owed: 0,
    };
    let mut statement = moment.prepare_cached(
        "SELECT parent, incarnation FROM job WHERE ended_ms IS NOT NULL AND owed = 1",
    )?;
    let (mut owed, mut parents) = (statement.query([])?, Parents::default());
    while let Some(row) = owed.next()? {
        census.owed += u64::from(parents.is_current(&moment, row.get(0)?, row.get(1)?)?);
    }
    drop(owed);
    drop(statement);
    Ok(census)
}

/// Sessions that jobs work for, with the incarnation that they are in, as they were
/// looked up.
#[derive(Default)]
struct Parents(HashMap<String, Option<i64>>);

impl Parents {
    /// Tells whether a session is still the one that spawned a job.
    fn is_current(
        &mut self,
        connection: &Connection,
        parent: String,
        incarnation: i64,
    ) -> Result<bool, Fault> {
        let found = match self.0.get(&parent) {
            Some(found) => *found,
            None => {
                let found = current(connection, &parent.as_str().into())?;
                self.0.insert(parent, found);
                found
            }
        };
        Ok(found == Some(incarnation))
    }
}

/// Returns the incarnation that a session is in, if it is there. That of a job is in
/// its first while the job is there.
fn current(connection: &Connection, session: &SessionId) -> Result<Option<i64>, Fault> {
    let Some(job) = JobId::of_session(session) else {
        let session = tables::session(connection, session)?;
        return Ok(session.map(|session| session.incarnation.cast_signed()));
    };
    let mut statement = connection.prepare_cached("SELECT 0 FROM job WHERE id = ?1")?;
    Ok(statement.query_row(params![bytes_of(job)], |row| row.get(0)).optional()?)
}
