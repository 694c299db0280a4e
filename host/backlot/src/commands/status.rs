//! `backlot status`: whether a host runs, and how it is doing.

use std::fmt::Write as _;

use backlot_jobs::DataFolder;
use backlot_surface::{Client, ClientError, Failure, Reason, wire::HealthReply};

use super::{
    jobs::{
        Told,
        ps::{age, now_ms},
        reach,
    },
    print,
};
use crate::{
    cli::{Common, Status},
    console::Console,
    exit::Exit,
    render, wire,
};

pub(crate) async fn status(
    args: Status,
    common: &Common,
    console: &Console,
) -> anyhow::Result<Exit> {
    let asked = async {
        let (client, folder) = running(common).await?;
        Ok((client.health().await?, folder))
    };
    match asked.await {
        Ok((health, folder)) => {
            let text = match args.json {
                true => wire::line(&wire::HostStatus::running(&folder, &health)),
                false => text(&folder, &health, now_ms()),
            };
            print(console, text).await?;
            Ok(Exit::Completed)
        }
        Err(told) => {
            let told: Told = told;
            if args.json {
                let data = common.data();
                print(
                    console,
                    wire::line(&wire::HostStatus::none(data.as_deref(), told.refusal())),
                )
                .await?;
            }
            Ok(told.tell(false, console).await)
        }
    }
}

/// Connects to the host of the data folder.
pub(super) async fn running(common: &Common) -> Result<(Client, DataFolder), Told> {
    let folder = reach::existing(common)?.ok_or_else(|| none(common))?;
    match Client::connect(&folder.socket_address()).await {
        Ok(client) => Ok((client, folder)),
        Err(ClientError::NoHost { .. }) => Err(none(common)),
        Err(error) => Err(error.into()),
    }
}

fn none(common: &Common) -> Told {
    let data = common.data().unwrap_or_default();
    let failure = Failure::new(
        Reason::Unavailable,
        format!("no host runs on the data folder {}", data.display()),
    );
    failure.with_hint("`backlot serve` starts one").into()
}

fn text(folder: &DataFolder, health: &HealthReply, now_ms: u64) -> String {
    let mut text = String::new();
    let mut row = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:10} {}", render::one_line(value));
    };
    let host = &health.host;
    let since = age(now_ms.saturating_sub(host.since_ms));
    row("host", &format!("{} (pid {}), for {since}", host.program, host.pid));
    row("data", &folder.path().display().to_string());
    row("at", &folder.socket().display().to_string());
    for address in &host.addresses {
        row("", address);
    }
    if let Some(plugins) = &host.plugins {
        row("plugins", &format!("{plugins}: {} kinds can be started", health.kinds));
    }
    row("policy", host.policy.as_deref().unwrap_or("none"));
    let jobs = &health.jobs;
    let counts = [
        (jobs.working, "working"),
        (jobs.queued, "queued"),
        (jobs.input_required, "waiting for a person"),
        (jobs.ended, "ended"),
        (jobs.owed, "of them not told yet"),
    ];
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    let counts: Vec<String> = counts.map(|(count, what)| format!("{count} {what}")).collect();
    row("jobs", if counts.is_empty() { "none".to_owned() } else { counts.join(", ") }.as_str());
    if health.unwritten > 0 {
        let why = health.trouble.as_deref().unwrap_or("the reason is in its log");
        row("trouble", &format!("{} changes could not be written yet: {why}", health.unwritten));
    }
    if health.report_panics > 0 {
        row("trouble", &format!("{} reports panicked; see its log", health.report_panics));
    }
    for warning in &health.warnings {
        row("warning", warning);
    }
    text
}

#[cfg(test)]
mod tests {
    use backlot_surface::wire::{HostAbout, JobCounts};

    use super::*;

    #[test]
    fn how_it_is_doing_is_told_in_rows() {
        let outer = tempfile::tempdir().unwrap();
        let folder = DataFolder::open(outer.path()).unwrap();
        let mut health = HealthReply {
            host: HostAbout {
                pid: 7,
                program: "backlot 0.1.0".into(),
                plugins: Some("/p".into()),
                addresses: vec!["http://127.0.0.1:7420".into()],
                since_ms: 1_000,
                ..HostAbout::default()
            },
            kinds: 3,
            ..HealthReply::default()
        };
        let data = outer.path().display();
        let quiet = format!(
            "host       backlot 0.1.0 (pid 7), for 5s\n\
             data       {data}\n\
             at         {data}/socket\n           \
             http://127.0.0.1:7420\n\
             plugins    /p: 3 kinds can be started\n\
             policy     none\n\
             jobs       none\n"
        );
        assert_eq!(text(&folder, &health, 6_000), quiet);
        health.jobs = JobCounts { working: 1, ended: 4, owed: 2, ..JobCounts::default() };
        health.unwritten = 1;
        health.trouble = Some("no space\nleft".into());
        health.warnings = vec!["a cannot be run".into()];
        let told = text(&folder, &health, 6_000);
        let rows = "jobs       1 working, 4 ended, 2 of them not told yet\n\
                    trouble    1 changes could not be written yet: no space left\n\
                    warning    a cannot be run\n";
        assert!(told.ends_with(rows), "{told}");
    }
}
