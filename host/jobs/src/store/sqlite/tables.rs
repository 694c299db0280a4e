//! The tables, as a change reads and writes them within one transaction.

use std::path::Path;

use backlot_registry::SessionId;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::{
    fault::Fault,
    memory::{Held, Loads, Memory},
    record::{
        Marks, bytes_of, from_json, id_at, json_of, life_of, number_of, select_whole, spec_of,
        stored, whole,
    },
};
use crate::{
    id::JobId,
    job::{Job, Run, Status, Webhook},
    session::{Entry, Session},
    store::{Head, Load, Of, Rows, StoreError, family_of},
};

/// The tables within a transaction.
pub(super) struct Tables<'a> {
    pub(super) connection: &'a Connection,
    pub(super) memory: &'a mut Memory,
    pub(super) file: &'a Path,
    /// Whether the file turned out to be damaged.
    pub(super) is_damaged: bool,
}

impl Tables<'_> {
    /// Writes what is counted once for all changes of a transaction.
    pub(super) fn finish(&mut self) -> Result<(), StoreError> {
        let finished = self.write_ended();
        self.told(finished)
    }

    fn write_ended(&mut self) -> Result<(), Fault> {
        if let Some(ended) = self.memory.ended
            && self.memory.is_ended_new
        {
            self.execute("UPDATE store SET ended = ?1", params![stored(ended)])?;
            self.memory.is_ended_new = false;
        }
        Ok(())
    }

    fn told<T>(&mut self, result: Result<T, Fault>) -> Result<T, StoreError> {
        result.map_err(|fault| {
            self.is_damaged |= fault.is_of_file();
            fault.at(self.file)
        })
    }

    fn execute(&self, sql: &str, values: impl rusqlite::Params) -> Result<usize, Fault> {
        Ok(self.connection.prepare_cached(sql)?.execute(values)?)
    }

    /// Returns the first column of the first row as a number; 0 where there is none.
    fn number(&self, sql: &str, values: impl rusqlite::Params) -> Result<u64, Fault> {
        let mut statement = self.connection.prepare_cached(sql)?;
        let number = statement.query_row(values, |row| row.get::<_, i64>(0)).optional()?;
        Ok(number.and_then(|number| u64::try_from(number).ok()).unwrap_or_default())
    }

    fn count(&self, sql: &str, values: impl rusqlite::Params) -> Result<usize, Fault> {
        Ok(usize::try_from(self.number(sql, values)?).unwrap_or(usize::MAX))
    }

    /// Returns a job with its place in the table.
    fn held(&mut self, id: JobId) -> Result<Option<Held>, Fault> {
        if let Some(held) = self.memory.job(id) {
            return Ok(Some(held.clone()));
        }
        let sql = concat!(select_whole!(), "WHERE job.id = ?1");
        let held = self.one_whole(sql, params![bytes_of(id)])?;
        if let Some(Held { sequence, job }) = &held {
            self.memory.keep(*sequence, job);
        }
        Ok(held)
    }

    fn one_whole(&self, sql: &str, values: impl rusqlite::Params) -> Result<Option<Held>, Fault> {
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query(values)?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let (sequence, job) = whole(row)?;
        Ok(Some(Held { sequence, job }))
    }

    fn insert(&mut self, job: &Job) -> Result<(), Fault> {
        let (marks, spec) = (Marks::of(job), &job.spec);
        self.count_status(job, None)?;
        self.execute(
            "INSERT INTO job (id, parent, incarnation, key, status, place, due_ms, ended_ms, \
                              owed, life, stage_input)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
            params![
                bytes_of(job.id),
                spec.parent.as_str(),
                spec.incarnation.cast_signed(),
                spec.key,
                marks.status,
                marks.place,
                marks.due_ms,
                marks.ended_ms,
                marks.owed,
                life_of(job)?,
                job.stage.input,
            ],
        )?;
        let sequence = self.connection.last_insert_rowid();
        self.execute(
            "INSERT INTO spec (seq, depth, created_ms, spec, input) VALUES (?1, ?2, ?3, ?4, ?5)",
            params![sequence, job.depth, job.created_ms.cast_signed(), spec_of(job)?, spec.input],
        )?;
        self.write_result(sequence, None, result_of(job))?;
        self.write_call(sequence, None, call_of(job))?;
        self.memory.keep(sequence, job);
        Ok(())
    }

    fn update(&mut self, job: &Job) -> Result<(), Fault> {
        let Some(Held { sequence, job: old }) = self.held(job.id)? else { return Ok(()) };
        let marks = Marks::of(job);
        if marks == Marks::of(&old) {
            // No index knows of it.
            self.execute(
                "UPDATE job SET life = ?2, stage_input = ?3 WHERE seq = ?1",
                params![sequence, life_of(job)?, job.stage.input],
            )?;
        } else {
            self.count_status(job, Some(old.status()))?;
            self.execute(
                "UPDATE job SET status = ?2, place = ?3, due_ms = ?4, ended_ms = ?5, owed = ?6, \
                                life = ?7, stage_input = ?8
                 WHERE seq = ?1",
                params![
                    sequence,
                    marks.status,
                    marks.place,
                    marks.due_ms,
                    marks.ended_ms,
                    marks.owed,
                    life_of(job)?,
                    job.stage.input,
                ],
            )?;
        }
        self.write_result(sequence, result_of(&old), result_of(job))?;
        self.write_call(sequence, call_of(&old), call_of(job))?;
        if job.status().is_terminal() && job.debt.is_none() {
            // Hardly anything happens to it any more.
            self.memory.drop_job(job.id);
        } else {
            self.memory.keep(sequence, job);
        }
        Ok(())
    }

    fn write_result(
        &mut self,
        sequence: i64,
        old: Option<&str>,
        new: Option<&str>,
    ) -> Result<(), Fault> {
        match new {
            new if new == old => {}
            Some(result) => {
                let sql = "INSERT OR REPLACE INTO result (seq, result) VALUES (?1, ?2)";
                self.execute(sql, params![sequence, result])?;
            }
            None => {
                self.execute("DELETE FROM result WHERE seq = ?1", params![sequence])?;
            }
        }
        Ok(())
    }

    fn write_call(
        &mut self,
        sequence: i64,
        old: Option<(u64, &Webhook)>,
        new: Option<(u64, &Webhook)>,
    ) -> Result<(), Fault> {
        match new {
            new if new == old => {}
            Some((due_ms, webhook)) => {
                let sql = "INSERT OR REPLACE INTO call (seq, due_ms, receiver) VALUES (?1, ?2, ?3)";
                self.execute(sql, params![sequence, stored(due_ms), webhook.receiver()])?;
            }
            None => {
                self.execute("DELETE FROM call WHERE seq = ?1", params![sequence])?;
            }
        }
        Ok(())
    }

    fn remove(&mut self, id: JobId) -> Result<(), Fault> {
        let mut found = self
            .connection
            .prepare_cached("DELETE FROM job WHERE id = ?1 RETURNING parent, status")?;
        let row = |row: &rusqlite::Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?));
        let gone = found.query_row(params![bytes_of(id)], row).optional()?;
        self.memory.drop_job(id);
        if let Some((parent, number)) = gone {
            let status = Status::ALL.into_iter().find(|status| number_of(*status) == number);
            self.recount(&parent.into(), status, None)?;
        }
        Ok(())
    }

    /// Counts a job as what it is now, and no more as what it was.
    fn count_status(&mut self, job: &Job, old: Option<Status>) -> Result<(), Fault> {
        self.recount(&job.spec.parent, old, Some(job.status()))
    }

    fn recount(
        &mut self,
        parent: &SessionId,
        old: Option<Status>,
        new: Option<Status>,
    ) -> Result<(), Fault> {
        if old != new && [old, new].into_iter().flatten().any(Status::is_terminal) {
            self.ended()?;
        }
        self.memory.count(parent, old, new);
        Ok(())
    }

    fn ended(&mut self) -> Result<u64, Fault> {
        if let Some(ended) = self.memory.ended {
            return Ok(ended);
        }
        let ended = self.number("SELECT ended FROM store", [])?;
        self.memory.ended = Some(ended);
        Ok(ended)
    }

    fn load_of(&mut self, of: Of<'_>) -> Result<Load, Fault> {
        if self.memory.loads.is_none() {
            let mut loads = Loads::default();
            for status in Status::ALL.into_iter().filter(|status| !status.is_terminal()) {
                let sql = "SELECT parent, count(*) FROM job WHERE status = ?1 GROUP BY parent";
                let mut statement = self.connection.prepare_cached(sql)?;
                let mut rows = statement.query([number_of(status)])?;
                while let Some(row) = rows.next()? {
                    let parent: String = row.get(0)?;
                    let count = usize::try_from(row.get::<_, i64>(1)?).unwrap_or_default();
                    loads.add(&parent.into(), status, count);
                }
            }
            self.memory.loads = Some(loads);
        }
        Ok(self.memory.loads.as_ref().map(|loads| loads.of(of)).unwrap_or_default())
    }

    fn heads_of_all(&mut self, now_ms: u64) -> Result<Vec<Head>, Fault> {
        let mut heads = Vec::new();
        let mut parent = self.text("SELECT min(parent) FROM job WHERE place IS NOT NULL", [])?;
        while let Some(session) = parent {
            let after = "SELECT min(parent) FROM job WHERE place IS NOT NULL AND parent > ?1";
            parent = self.text(after, params![session])?;
            if let Some((place, job)) = self.head_of(&session, now_ms)? {
                let session = session.into();
                let live = self.load_of(Of::Session(&session))?.live;
                let family_live = self.load_of(Of::Family(family_of(&session)))?.live;
                heads.push(Head { job, session, place, live, family_live });
            }
        }
        Ok(heads)
    }

    /// Returns the queued job of a session whose turn it is, with its place.
    fn head_of(&self, session: &str, now_ms: u64) -> Result<Option<(u64, JobId)>, Fault> {
        // Those that wait for a place alone lie together, in order; of the others, only
        // those are looked at that are due.
        const WAITING: &str = "SELECT place, id FROM job
             WHERE place IS NOT NULL AND parent = ?1 AND due_ms = 0 ORDER BY place LIMIT 1";
        const DUE: &str = "SELECT place, id FROM job
             WHERE place IS NOT NULL AND parent = ?1 AND due_ms > 0 AND due_ms <= ?2
             ORDER BY place LIMIT 1";
        let head = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, id_at(row, 1)?));
        let mut waiting = self.connection.prepare_cached(WAITING)?;
        let waiting = waiting.query_row(params![session], head).optional()?;
        let mut due = self.connection.prepare_cached(DUE)?;
        let due = due.query_row(params![session, stored(now_ms)], head).optional()?;
        let first = [waiting, due].into_iter().flatten().min_by_key(|(place, _)| *place);
        Ok(first.map(|(place, id)| (place.cast_unsigned(), id)))
    }

    fn text(&self, sql: &str, values: impl rusqlite::Params) -> Result<Option<String>, Fault> {
        let mut statement = self.connection.prepare_cached(sql)?;
        Ok(statement.query_row(values, |row| row.get(0))?)
    }

    fn ids(&self, sql: &str, values: impl rusqlite::Params) -> Result<Vec<JobId>, Fault> {
        let mut statement = self.connection.prepare_cached(sql)?;
        let ids = statement.query_map(values, |row| id_at(row, 0))?;
        Ok(ids.collect::<Result<_, _>>()?)
    }

    fn oldest(&mut self, before_ms: u64, keep: u64, limit: usize) -> Result<Vec<JobId>, Fault> {
        // What is owed, or a webhook is to be told of, is passed over, and counts all the
        // same.
        const ALL_ENDED: &str = "SELECT ended_ms, seq, id,
                    EXISTS (SELECT 1 FROM call WHERE call.seq = job.seq) FROM job
                 WHERE ended_ms IS NOT NULL AND owed = 0
             UNION ALL
             SELECT ended_ms, seq, id, 1 FROM job
                 WHERE ended_ms IS NOT NULL AND owed = 1
             ORDER BY 1, 2";
        let surplus = self.ended()?.saturating_sub(keep);
        let before_ms = stored(before_ms);
        let mut statement = self.connection.prepare_cached(ALL_ENDED)?;
        let (mut rows, mut due, mut place) = (statement.query([])?, Vec::new(), 0);
        while due.len() < limit
            && let Some(row) = rows.next()?
        {
            if place >= surplus && row.get::<_, i64>(0)? >= before_ms {
                break;
            }
            place += 1;
            if !row.get::<_, bool>(3)? {
                due.push(id_at(row, 2)?);
            }
        }
        Ok(due)
    }

    fn session_of(&mut self, id: &SessionId) -> Result<Option<Session>, Fault> {
        if let Some(session) = self.memory.session(id) {
            return Ok(Some(session.clone()));
        }
        let found = session(self.connection, id)?;
        if let Some(session) = &found {
            self.memory.keep_session(session);
        }
        Ok(found)
    }

    fn append(&mut self, session: &SessionId, entry: &Entry) -> Result<u64, Fault> {
        let session = session.as_str();
        const THERE: &str = "SELECT number FROM entry WHERE session = ?1 AND id = ?2";
        let there = self.number(THERE, params![session, entry.id])?;
        if there > 0 {
            return Ok(there);
        }
        const LAST: &str = "SELECT max(number) FROM entry WHERE session = ?1";
        let number = self.connection.prepare_cached(LAST)?.query_row(params![session], |row| {
            Ok(row.get::<_, Option<i64>>(0)?.unwrap_or_default() + 1)
        })?;
        self.execute(
            "INSERT INTO entry (session, number, id, entry) VALUES (?1, ?2, ?3, ?4)",
            params![session, number, entry.id, json_of(entry)?],
        )?;
        Ok(number.cast_unsigned())
    }
}

/// Returns when a job's webhook is to be told, and which that is, if it is to be.
fn call_of(job: &Job) -> Option<(u64, &Webhook)> {
    let due_ms = job.due_call().and_then(|call| call.due_ms)?;
    Some((due_ms, job.spec.webhook.as_ref()?))
}

fn result_of(job: &Job) -> Option<&str> {
    job.ended().and_then(|ended| ended.result.as_deref())
}

/// Returns a session.
pub(super) fn session(connection: &Connection, id: &SessionId) -> Result<Option<Session>, Fault> {
    let sql = "SELECT incarnation, created_ms FROM session WHERE id = ?1";
    let session = |row: &rusqlite::Row<'_>| {
        Ok(Session {
            id: id.clone(),
            incarnation: row.get::<_, i64>(0)?.cast_unsigned(),
            created_ms: row.get::<_, i64>(1)?.cast_unsigned(),
        })
    };
    Ok(connection.prepare_cached(sql)?.query_row(params![id.as_str()], session).optional()?)
}

/// Returns the runs of a job that others have followed.
pub(super) fn past_runs(connection: &Connection, id: JobId) -> Result<Vec<Run>, Fault> {
    let sql = "SELECT past_run.seq, past_run.number, past_run.run
               FROM past_run JOIN job ON job.seq = past_run.seq
               WHERE job.id = ?1 ORDER BY past_run.number";
    let mut statement = connection.prepare_cached(sql)?;
    let (mut rows, mut runs) = (statement.query(params![bytes_of(id)])?, Vec::new());
    while let Some(row) = rows.next()? {
        let (sequence, number): (i64, i64) = (row.get(0)?, row.get(1)?);
        let run = row.get_ref(2)?.as_str().map_err(rusqlite::Error::from)?;
        runs.push(from_json(run, || format!("run {number} of job {sequence}"))?);
    }
    Ok(runs)
}

impl Rows for Tables<'_> {
    fn job(&mut self, id: JobId) -> Result<Option<Job>, StoreError> {
        let held = self.held(id);
        Ok(self.told(held)?.map(|held| held.job))
    }

    fn insert_job(&mut self, job: &Job) -> Result<(), StoreError> {
        let inserted = self.insert(job);
        self.told(inserted)
    }

    fn update_job(&mut self, job: &Job) -> Result<(), StoreError> {
        let updated = self.update(job);
        self.told(updated)
    }

    fn remove_job(&mut self, id: JobId) -> Result<(), StoreError> {
        let removed = self.remove(id);
        self.told(removed)
    }

    fn append_run(&mut self, id: JobId, run: &Run) -> Result<(), StoreError> {
        const APPEND: &str = "INSERT INTO past_run (seq, number, run)
             SELECT job.seq,
                    (SELECT ifnull(max(number), 0) + 1 FROM past_run WHERE seq = job.seq), ?2
             FROM job WHERE id = ?1";
        let appended =
            json_of(run).and_then(|run| self.execute(APPEND, params![bytes_of(id), run]));
        self.told(appended).map(drop)
    }

    fn keyed(
        &mut self,
        session: &SessionId,
        incarnation: u64,
        key: &str,
    ) -> Result<Option<Job>, StoreError> {
        let sql = concat!(
            select_whole!(),
            "WHERE job.parent = ?1 AND job.incarnation = ?2 AND job.key = ?3"
        );
        let values = params![session.as_str(), incarnation.cast_signed(), key];
        let held = self.one_whole(sql, values);
        Ok(self.told(held)?.map(|held| held.job))
    }

    fn load(&mut self, of: Of<'_>) -> Result<Load, StoreError> {
        let load = self.load_of(of);
        self.told(load)
    }

    fn next_place(&mut self) -> Result<u64, StoreError> {
        let place =
            self.number("UPDATE store SET last_place = last_place + 1 RETURNING last_place", []);
        self.told(place)
    }

    fn heads(&mut self, now_ms: u64) -> Result<Vec<Head>, StoreError> {
        let heads = self.heads_of_all(now_ms);
        self.told(heads)
    }

    fn jobs_of(&mut self, session: &SessionId) -> Result<Vec<JobId>, StoreError> {
        let sql = "SELECT id FROM job WHERE parent = ?1 ORDER BY seq";
        let ids = self.ids(sql, params![session.as_str()]);
        self.told(ids)
    }

    fn prunable(
        &mut self,
        before_ms: u64,
        keep: u64,
        limit: usize,
    ) -> Result<Vec<JobId>, StoreError> {
        let due = self.oldest(before_ms, keep, limit);
        self.told(due)
    }

    fn session(&mut self, id: &SessionId) -> Result<Option<Session>, StoreError> {
        let session = self.session_of(id);
        self.told(session)
    }

    fn sessions_below(&mut self, family: &str, most: usize) -> Result<usize, StoreError> {
        // The names that begin with the family's and a `/`: `0` is the character after it.
        let sql = "SELECT count(*) FROM
             (SELECT 1 FROM session WHERE id > ?1 || '/' AND id < ?1 || '0' LIMIT ?2)";
        let below = self.count(sql, params![family, stored(most as u64)]);
        self.told(below)
    }

    fn insert_session(&mut self, session: &Session) -> Result<(), StoreError> {
        const INSERT: &str =
            "INSERT OR REPLACE INTO session (id, incarnation, created_ms) VALUES (?1, ?2, ?3)";
        let (incarnation, created_ms) =
            (session.incarnation.cast_signed(), session.created_ms.cast_signed());
        let inserted = self.execute(INSERT, params![session.id.as_str(), incarnation, created_ms]);
        self.told(inserted)?;
        self.memory.keep_session(session);
        Ok(())
    }

    fn remove_session(&mut self, id: &SessionId) -> Result<(), StoreError> {
        self.memory.drop_session(id);
        for sql in ["DELETE FROM session WHERE id = ?1", "DELETE FROM entry WHERE session = ?1"] {
            let removed = self.execute(sql, params![id.as_str()]);
            self.told(removed)?;
        }
        Ok(())
    }

    fn append_entry(&mut self, session: &SessionId, entry: &Entry) -> Result<u64, StoreError> {
        let appended = self.append(session, entry);
        self.told(appended)
    }
}
