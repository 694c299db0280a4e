//! `backlot show`: all there is to tell of a job.

use std::fmt::Write as _;

use backlot_surface::wire::JobView;

use super::{
    ps::{age, now_ms},
    reach,
};
use crate::{
    cli::{Common, Show},
    commands::print,
    console::Console,
    exit::Exit,
    render, wire,
};

pub(crate) async fn show(args: Show, common: &Common, console: &Console) -> anyhow::Result<Exit> {
    let job = async {
        let (reach, _folder) = reach::look(common).await?;
        reach.job(&args.job).await
    };
    let job = match job.await {
        Ok(job) => job,
        Err(told) => return Ok(told.tell(args.json, console).await),
    };
    let text = if args.json { wire::line(&job) } else { text(&job, now_ms()) };
    print(console, text).await?;
    Ok(Exit::Completed)
}

fn text(job: &JobView, now_ms: u64) -> String {
    let mut text = String::new();
    let mut row = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:12} {}", render::one_line(value));
    };
    row("job", &job.id.to_string());
    row("kind", &job.kind);
    row("label", &job.label);
    row("status", job.status.as_str());
    if let Some(summary) = job.summary.as_ref().or(job.progress.as_ref()) {
        row("", summary);
    }
    row("attempt", &format!("{} of {}", job.attempt, job.max_attempts));
    row("session", &job.session);
    row("spawned", &format!("{} ago", age(now_ms.saturating_sub(job.created_ms))));
    if let Some(finished_ms) = job.finished_ms {
        let took = finished_ms.saturating_sub(job.created_ms);
        let ended = age(now_ms.saturating_sub(finished_ms));
        row("ended", &format!("{ended} ago, {:.2}s after its spawn", took as f64 / 1e3));
    }
    if let Some(question) = &job.question {
        row("asks", &question.prompt);
        if let Some(schema) = &question.schema {
            row("", &schema.to_string());
        }
        row("", &format!("backlot answer {} ANSWER", job.id.short()));
    }
    if let Some(wait) = &job.waits_for
        && let Some(due_ms) = wait.due_ms
    {
        row("starts in", &age(due_ms.saturating_sub(now_ms)));
    }
    if let Some(stop) = &job.stop {
        let why = stop.why.as_deref().unwrap_or("no reason given");
        row("stopped by", &format!("{}: {why}", stop.by));
    }
    if let Some(webhook) = &job.webhook {
        row("webhook", webhook);
    }
    if let Some(told) = told(job, now_ms) {
        row("", &told);
    }
    if let Some(pinned) = &job.pinned {
        row("pinned", pinned);
    }
    // One that was made up for the way to the host says nothing.
    if let Some(key) = job.key.as_ref().filter(|key| !key.starts_with("run ")) {
        row("key", key);
    }
    if let Some(grant) = &job.grant {
        row("asks for", grant);
    }
    for run in &job.runs {
        let task = run.task.as_deref().unwrap_or("not launched");
        let outcome = run.outcome.as_deref().unwrap_or("under way");
        let digest = run.digest.as_deref().and_then(|digest| digest.get(7..19)).unwrap_or("-");
        let place = format!("run {}.{}", run.attempt, run.step);
        row(&place, &format!("{task} {digest} {outcome}"));
    }
    if let Some(result) = job.result.as_ref().filter(|result| !result.is_empty()) {
        let _ = writeln!(text, "result\n{}", lines(result));
    }
    text
}

/// Tells whether a job's webhook has heard of its ending.
fn told(job: &JobView, now_ms: u64) -> Option<String> {
    let Some(call) = &job.call else {
        return (job.webhook.is_some() && job.status.is_terminal()).then(|| "told".to_owned());
    };
    let tries = match call.tries {
        0 => "not tried yet".to_owned(),
        1 => "tried once".to_owned(),
        tries => format!("tried {tries} times"),
    };
    let why = call.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    Some(match call.due_ms {
        None => format!("given up, {tries}{why}"),
        Some(due_ms) if due_ms <= now_ms => format!("to be told now, {tries}{why}"),
        Some(due_ms) => format!("to be told in {}, {tries}{why}", age(due_ms - now_ms)),
    })
}

/// Returns a text whose lines move no cursor.
fn lines(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(|line| render::line_of(usize::MAX, line)).collect();
    lines.join("\n")
}
