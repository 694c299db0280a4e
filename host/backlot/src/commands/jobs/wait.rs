//! `backlot wait`: until jobs have ended.

use std::time::Duration;

use backlot_jobs::Status;
use backlot_surface::wire::{JobView, LookQuery};
use tokio::time::Instant;

use super::{
    Told, exit_with, gist,
    reach::{self, Looking, Onlooker, Reach},
};
use crate::{
    cli::{Common, Wait},
    commands::{follow::Signals, print},
    console::Console,
    exit::Exit,
    wire,
};

/// How long a host is asked to wait at a time.
const WAIT: Duration = Duration::from_secs(60);

pub(crate) async fn wait(args: Wait, common: &Common, console: &Console) -> anyhow::Result<Exit> {
    let mut signals = Signals::listen()?;
    let onlooker = match reach::look(common).await {
        Ok(looking) => Onlooker::new(common, looking),
        Err(told) => return Ok(told.tell(args.json, console).await),
    };
    let deadline = args.timeout.map(|timeout| Instant::now() + timeout);
    let mut exit = Exit::Completed;
    for digits in &args.jobs {
        let job = tokio::select! {
            job = ended(&onlooker, digits, deadline) => job,
            _ = signals.next() => return Ok(Exit::Failed),
        };
        let own = match job {
            Ok(job) => {
                let text = if args.json { wire::line(&job) } else { gist(&job) + "\n" };
                print(console, text).await?;
                exit_with(&job)
            }
            Err(told) => told.tell(args.json, console).await,
        };
        // The first that went wrong is told of.
        if exit == Exit::Completed {
            exit = own;
        }
    }
    Ok(exit)
}

/// Returns a job once it has ended or waits for a person, or the time is over.
async fn ended(
    onlooker: &Onlooker<'_>,
    digits: &str,
    deadline: Option<Instant>,
) -> Result<JobView, Told> {
    loop {
        let left = deadline
            .map_or(WAIT, |deadline| deadline.saturating_duration_since(Instant::now()).min(WAIT));
        let query = LookQuery { wait_ms: u64::try_from(left.as_millis()).ok(), hand: None };
        let ask = async |(reach, _): &Looking| match reach {
            Reach::Host(client) => Ok((client.job(digits, &query).await?, true)),
            _ => Ok((reach.job(digits).await?, false)),
        };
        let (job, has_host) = onlooker.ask(ask).await?;
        let is_over = job.status.is_terminal() || job.status == Status::InputRequired;
        let is_late = deadline.is_some_and(|deadline| deadline <= Instant::now());
        // Without a host nothing goes on.
        if is_over || is_late || !has_host {
            return Ok(job);
        }
    }
}
