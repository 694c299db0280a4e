//! `backlot ps`: the jobs of the data folder.

use std::{
    io::{self, IsTerminal as _},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use backlot_jobs::short_ids;
use backlot_surface::wire::{JobView, ListQuery, Page, WaitFor};

use super::{Told, reach};
use crate::{
    cli::{Common, Ps},
    commands::print,
    console::Console,
    exit::Exit,
    render, wire,
};

/// How many are asked for at a time.
const PAGE: usize = 500;

pub(crate) async fn ps(args: Ps, common: &Common, console: &Console) -> anyhow::Result<Exit> {
    let page = match page(&args, common).await {
        Ok(page) => page,
        Err(told) => return Ok(told.tell(args.json, console).await),
    };
    if args.json {
        print(console, wire::line(&page)).await?;
        return Ok(Exit::Completed);
    }
    let ids: Vec<_> = page.jobs.iter().map(|job| job.id).collect();
    let is_terminal = io::stdout().is_terminal();
    let now_ms = now_ms();
    for (job, id) in page.jobs.iter().zip(short_ids(&ids)) {
        if !print(console, line(job, &id, now_ms, is_terminal)).await? {
            return Ok(Exit::Completed);
        }
    }
    if !common.quiet {
        if page.jobs.is_empty() {
            console.err.say(&render::complaint("no jobs")).await;
        } else if page.next.is_some() {
            console.err.say("older ones are left out; --all shows them").await;
        }
    }
    Ok(Exit::Completed)
}

async fn page(args: &Ps, common: &Common) -> Result<Page, Told> {
    let (reach, _folder) = reach::look(common).await?;
    let limit = if args.all { PAGE } else { args.limit };
    let mut query = ListQuery {
        session: args.session.clone(),
        status: args.status.clone(),
        before: None,
        limit: Some(limit),
    };
    let mut all = reach.jobs(&query).await?;
    while all.next.is_some() && (args.all || all.jobs.len() < limit) {
        query.before = all.next;
        query.limit = Some(if args.all { PAGE } else { limit - all.jobs.len() });
        let more = reach.jobs(&query).await?;
        all.jobs.extend(more.jobs);
        all.next = more.next;
    }
    Ok(all)
}

/// Returns the line of a job: in columns on a terminal, separated by tabs elsewhere.
fn line(job: &JobView, id: &str, now_ms: u64, is_terminal: bool) -> String {
    let age = age(now_ms.saturating_sub(job.created_ms));
    let said = render::one_line(&said(job, now_ms));
    match is_terminal {
        true => {
            format!("{id}  {:14}  {:12}  {age:>4}  {said}\n", job.status.as_str(), job.kind)
        }
        false => format!("{id}\t{}\t{}\t{age}\t{said}\n", job.status, job.kind),
    }
}

/// Returns what a job is about, and what there is to say of it.
fn said(job: &JobView, now_ms: u64) -> String {
    let mut said = job.label.clone();
    let waits = job.waits_for.as_ref().map(|wait| {
        let left = wait.due_ms.map(|due_ms| age(due_ms.saturating_sub(now_ms)));
        match (wait.r#for, left) {
            (WaitFor::Place, _) | (_, None) => "waits for a place".to_owned(),
            (WaitFor::Retry, Some(left)) => format!("tries again in {left}"),
            (WaitFor::Time | WaitFor::Cron, Some(left)) => format!("starts in {left}"),
        }
    });
    let asks = job.question.as_ref().map(|question| format!("asks: {}", question.prompt));
    let more = waits.or(asks).or_else(|| job.summary.clone()).or_else(|| job.progress.clone());
    if let Some(more) = more {
        said = format!("{} — {more}", render::line_of(60, &said));
    }
    if job.attempt > 1 {
        said = format!("{said} (attempt {} of {})", job.attempt, job.max_attempts);
    }
    said
}

/// Returns a time as people say it: `12s`, `5m`, `3h`, `2d`.
pub(in crate::commands) fn age(ms: u64) -> String {
    let secs = ms / 1_000;
    match secs {
        0..60 => format!("{secs}s"),
        60..3_600 => format!("{}m", secs / 60),
        3_600..86_400 => format!("{}h", secs / 3_600),
        _ => format!("{}d", secs / 86_400),
    }
}

pub(in crate::commands) fn now_ms() -> u64 {
    let since: Duration = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        let ages = [0, 59_999, 60_000, 3_599_000, 3_600_000, 86_400_000, u64::MAX].map(age);
        assert_eq!(ages[..6], ["0s", "59s", "1m", "59m", "1h", "1d"]);
    }
}
