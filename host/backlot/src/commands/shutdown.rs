//! `backlot shutdown`: the host of the data folder ends in order.

use std::time::Duration;

use backlot_jobs::{DataFolder, HoldError, Holder};
use backlot_surface::{
    Client,
    wire::{ShutdownReply, ShutdownRequest},
};
use tokio::time::{Instant, sleep, timeout_at};

use super::{follow::Signals, jobs::Told, print, status::running};
use crate::{
    cli::{Common, Shutdown},
    console::Console,
    exit::Exit,
    render, wire,
};

/// How much longer than jobs may go on its end is waited for: as long as it can take, with
/// jobs that do not stop.
const ENDING: Duration = Duration::from_secs(90);
/// How often it is looked meanwhile, once it does not answer any more.
const AGAIN: Duration = Duration::from_millis(50);
/// How often it is asked what it still waits for.
const ASK: Duration = Duration::from_millis(500);

pub(crate) async fn shutdown(
    args: Shutdown,
    common: &Common,
    console: &Console,
) -> anyhow::Result<Exit> {
    let mut signals = Signals::listen()?;
    let asked = async {
        let (client, folder) = running(common).await?;
        let drain_ms = args.drain.map(|it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX));
        let reply = client.shutdown(&ShutdownRequest { drain_ms }).await?;
        Ok::<_, Told>((client, folder, reply))
    };
    let (client, folder, reply) = match asked.await {
        Ok(asked) => asked,
        Err(told) => return Ok(told.tell(args.json, console).await),
    };
    let ShutdownReply { pid, drain_ms } = reply;
    let has_ended = args.waits() && {
        let bound = args.timeout.unwrap_or(Duration::from_millis(drain_ms).saturating_add(ENDING));
        // No longer than a clock can tell.
        let now = Instant::now();
        let deadline = now.checked_add(bound).unwrap_or(now + Duration::from_secs(1 << 30));
        let told = tell(&client, console, common.quiet || args.json);
        tokio::select! {
            ended = ended(folder, pid, deadline) => ended,
            never = told => match never {},
            _ = signals.next() => false,
        }
    };
    if args.json {
        print(console, wire::line(&wire::HostEnd { pid, drain_ms, ended: has_ended })).await?;
    } else if !common.quiet {
        let line = match (has_ended, args.waits()) {
            (true, _) => format!("the host (pid {pid}) has ended"),
            (false, false) => format!("the host (pid {pid}) ends"),
            (false, true) => render::complaint(&format!("the host (pid {pid}) has not ended yet")),
        };
        console.err.say(&line).await;
    }
    Ok(if has_ended || !args.waits() { Exit::Completed } else { Exit::Failed })
}

/// Tells what the host waits for, whenever that changes.
async fn tell(client: &Client, console: &Console, quiet: bool) -> std::convert::Infallible {
    let mut told = None;
    loop {
        // One that does not answer is about to be gone.
        if let Ok(health) = client.health().await
            && health.jobs.working > 0
            && told.replace(health.jobs.working) != Some(health.jobs.working)
            && !quiet
        {
            let working = health.jobs.working;
            let jobs = if working == 1 { "1 job".to_owned() } else { format!("{working} jobs") };
            console.err.note(&format!("{jobs} to end"));
        }
        sleep(ASK).await;
    }
}

/// Waits until the process has given the folder free, and tells whether it has in time.
async fn ended(folder: DataFolder, pid: u32, deadline: Instant) -> bool {
    let looks = async {
        loop {
            let folder = folder.clone();
            // The folder is free when it can be had; it is given back at once.
            let had = tokio::task::spawn_blocking(move || {
                folder.hold(&Holder::this("backlot shutdown")).map(drop)
            });
            match had.await {
                Ok(Err(HoldError::Held { holder, .. })) => {
                    // The next one may be there already.
                    if holder.is_some_and(|holder| holder.pid != pid) {
                        return true;
                    }
                }
                Ok(Ok(())) => return true,
                Ok(Err(_)) | Err(_) => return false,
            }
            sleep(AGAIN).await;
        }
    };
    timeout_at(deadline, looks).await.unwrap_or(false)
}
