//! `backlot serve`: the host of the data folder, for as long as it is wanted.

use std::{env, net::SocketAddr, time::Duration};

use anyhow::Context as _;
use backlot_jobs::Recovered;
use backlot_surface::Reason;

use super::{
    follow::Signals,
    jobs::{Told, reach},
    print, warn,
};
use crate::{
    cli::{Common, Serve},
    config::{Config, Reload},
    console::Console,
    exit::Exit,
    holding::{Holding, HoldingConfig},
    render,
    service::{self, Inherited},
    settings::{self, DEFAULT_ADDRESS, Settings, Tls},
    wire::{self, HostEvent},
};

/// How much longer than jobs may go on a host takes to end at most, as the service manager
/// is told: the stop ladder of jobs that do not stop, the endings, and those connected.
const ENDING: Duration = Duration::from_secs(90);
/// The variable that says where to listen.
const LISTEN: &str = "BACKLOT_LISTEN";

pub(crate) async fn serve(args: Serve, common: &Common, console: &Console) -> anyhow::Result<Exit> {
    let mut signals = Signals::listen()?;
    let json = args.json;
    let started = tokio::select! {
        started = start(args, common) => started,
        // Nothing was begun.
        _ = signals.next() => return Ok(Exit::Killed),
    };
    let holding = match started {
        Ok(holding) => holding,
        Err(told) => return Ok(told.tell(json, console).await),
    };
    let serving = Serving { holding, json, common, console };
    serving.tell_start().await?;
    let why = tokio::select! {
        name = signals.next() => name,
        () = serving.holding.asked_to_end() => "somebody asked for it",
    };
    serving.tell_end(why).await?;
    tokio::select! {
        exit = serving.end() => exit,
        _ = signals.next() => {
            console.err.note("ended at once; what was not written, the next host finds interrupted");
            Ok(Exit::Killed)
        }
    }
}

/// Takes the data folder.
async fn start(args: Serve, common: &Common) -> Result<Holding, Told> {
    let inherited = Inherited::take().map_err(|error| {
        Told::new(Reason::Invalid, format!("the service manager's sockets: {error}"))
    })?;
    let settings = common.settings().map_err(|error| invalid(error.to_string()))?;
    let listen = match env::var(LISTEN).ok().filter(|said| !said.is_empty()) {
        None => None,
        Some(said) => Some(named(&said).map_err(|why| invalid(format!("{LISTEN}: {why}")))?),
    };
    let settings = over(settings, &args, listen, !inherited.tcp.is_empty()).map_err(invalid)?;
    let folder = reach::folder(common)?;
    let host = common.config_with_policy(reach::INSTANCES);
    let host = host.map_err(|error| invalid(error.to_string()))?;
    let config = HoldingConfig {
        host: Config { reload: Reload::Watch, ..host },
        jobs: reach::jobs_config(&folder, &settings)?,
        policy: common.policy_file(),
        mcp: settings.mcp,
        serve: settings.serve,
        inherited,
        ..HoldingConfig::new(folder.path(), "backlot serve")
    };
    Holding::start(config).await.map_err(|error| reach::refused(&error))
}

fn invalid(why: String) -> Told {
    Told::new(Reason::Invalid, why)
}

/// Reads the addresses that a variable names.
fn named(text: &str) -> Result<Vec<SocketAddr>, String> {
    let said: Result<Vec<_>, _> =
        text.split(',').map(|one| settings::address(one.trim())).collect();
    settings::addresses(&said?)
}

/// Returns the settings with what flags and the environment say over them. A host that was
/// handed sockets of the network makes none that nobody named.
fn over(
    mut settings: Settings,
    args: &Serve,
    variable: Option<Vec<SocketAddr>>,
    has_inherited: bool,
) -> Result<Settings, String> {
    let serve = &mut settings.serve;
    let flags = match args.listen.is_empty() {
        true => None,
        false => Some(settings::addresses(&args.listen).map_err(|why| format!("--listen: {why}"))?),
    };
    let default = || if has_inherited { Vec::new() } else { vec![DEFAULT_ADDRESS] };
    let listen = flags.or(variable).or_else(|| serve.listen.take());
    serve.listen = Some(listen.unwrap_or_else(default));
    serve.hosts.extend_from_slice(&args.host);
    if let (Some(cert), Some(key)) = (&args.tls_cert, &args.tls_key) {
        serve.tls = Some(Tls { cert: cert.clone(), key: key.clone() });
    }
    serve.allow_plain_http |= args.allow_plain_http;
    serve.drain = args.drain.unwrap_or(serve.drain);
    if !args.expose.is_empty() {
        settings.mcp.expose.clone_from(&args.expose);
    }
    Ok(settings)
}

/// A host that runs, and whoever is told how it is doing.
struct Serving<'a> {
    holding: Holding,
    json: bool,
    common: &'a Common,
    console: &'a Console,
}

impl Serving<'_> {
    async fn tell_start(&self) -> anyhow::Result<()> {
        let (holding, console) = (&self.holding, self.console);
        let folder = holding.jobs().folder();
        let (data, socket) = (folder.path().display(), folder.socket());
        warn(console, holding.host(), self.common).await;
        for warning in holding.warnings() {
            console.err.note(&render::complaint(&format!("warning: {warning}")));
        }
        if !self.common.quiet {
            let about = holding.about();
            console.err.note(&render::one_line(&format!(
                "{} (pid {}) serves the data folder {data}",
                about.program, about.pid
            )));
            let at = about.addresses.iter().map(String::as_str);
            for at in [&*socket.to_string_lossy()].into_iter().chain(at) {
                console.err.note(&render::one_line(&format!("  at {at}")));
            }
            if let Some(token) = holding.token() {
                let token = token.display();
                console.err.note(&render::one_line(&format!("  with the token in {token}")));
            }
            if let Some(line) = found(holding.recovered()) {
                console.err.note(&line);
            }
        }
        self.event(&HostEvent::serving(holding)).await?;
        service::notify(&format!("READY=1\nSTATUS=serves {data}"));
        Ok(())
    }

    async fn tell_end(&self, why: &str) -> anyhow::Result<()> {
        let drain = self.holding.drain_time();
        let bound = drain.saturating_add(ENDING).as_micros();
        service::notify(&format!("STOPPING=1\nSTATUS=ends\nEXTEND_TIMEOUT_USEC={bound}"));
        self.say(&format!("ends: {why}"));
        let drain_ms = u64::try_from(drain.as_millis()).unwrap_or(u64::MAX);
        self.event(&HostEvent::Ending { why, drain_ms }).await
    }

    /// Ends the host in order.
    async fn end(self) -> anyhow::Result<Exit> {
        let drain = self.holding.drain_time();
        let tell = |working| {
            let jobs =
                if working == 1 { "1 job runs".to_owned() } else { format!("{working} jobs run") };
            let left = humantime::format_duration(drain);
            self.say(&format!("{jobs}; what does after {left} is stopped"));
        };
        match drain {
            Duration::ZERO => self.holding.jobs().refuse(),
            drain => self.holding.drain(drain, tell).await,
        }
        let Self { holding, json, console, common } = self;
        let written = holding.end().await;
        if !written {
            console.err.note(&render::complaint("not all endings could be written"));
        } else if !common.quiet {
            console.err.note("ended");
        }
        if json {
            print(console, wire::line(&HostEvent::Ended { written })).await?;
        }
        Ok(if written { Exit::Completed } else { Exit::Failed })
    }

    fn say(&self, line: &str) {
        if !self.common.quiet {
            self.console.err.note(&render::one_line(line));
        }
    }

    /// Tells programs, as long as one reads. The host goes on without.
    async fn event(&self, event: &HostEvent<'_>) -> anyhow::Result<()> {
        if self.json {
            print(self.console, wire::line(event)).await.context("cannot tell")?;
        }
        Ok(())
    }
}

/// Returns what was found when the folder was taken, where that is anything.
fn found(recovered: &Recovered) -> Option<String> {
    let Recovered { interrupted, cancelled, queued, owed } = recovered;
    let parts = [
        (interrupted, "interrupted"),
        (cancelled, "cancelled"),
        (queued, "waiting"),
        (owed, "ended and not told yet"),
    ];
    let parts = parts.iter().filter(|(count, _)| **count > 0);
    let parts: Vec<String> = parts.map(|(count, what)| format!("{count} {what}")).collect();
    (!parts.is_empty()).then(|| format!("jobs of before: {}", parts.join(", ")))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn flags_come_before_the_environment_and_that_before_the_file() {
        let file = "[serve]\nlisten = '127.0.0.1:1'\nhosts = ['a']\ndrain = '1s'\n\
                    [mcp]\nexpose = ['x']";
        let over = |words: &[&str], file: &str, variable: Option<&str>, has_inherited| {
            let cli = Cli::parse_from(["backlot", "serve"].iter().chain(words));
            let Command::Serve(args) = cli.command else { panic!("another command") };
            let settings = Settings::parse(file, "f", "/".as_ref()).unwrap();
            over(settings, &args, variable.map(|it| named(it).unwrap()), has_inherited)
        };
        let listens = |words: &[&str], file, variable, has_inherited| {
            let settings = over(words, file, variable, has_inherited).unwrap();
            settings.serve.listen.unwrap().iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(listens(&[], "", None, false), ["127.0.0.1:7420"]);
        assert_eq!(listens(&[], "", None, true), [""; 0]);
        assert_eq!(listens(&[], file, None, true), ["127.0.0.1:1"]);
        assert_eq!(listens(&[], file, Some("none"), false), [""; 0]);
        assert_eq!(
            listens(&[], file, Some("[::1]:2, 127.0.0.1:3"), false),
            ["[::1]:2", "127.0.0.1:3"]
        );
        assert_eq!(
            listens(&["--listen", "127.0.0.1:4"], file, Some("none"), false),
            ["127.0.0.1:4"]
        );
        let both = over(&["--listen", "127.0.0.1:4,none"], file, None, false);
        assert!(both.unwrap_err().starts_with("--listen: `none` and an address"));
        let all = ["--host", "b", "--drain", "2s", "--expose", "y,z*", "--allow-plain-http"];
        let settings = over(&all, file, None, false).unwrap();
        assert_eq!(settings.serve.hosts, ["a", "b"]);
        assert_eq!(settings.serve.drain, Duration::from_secs(2));
        assert_eq!(settings.mcp.expose, ["y", "z*"]);
        assert!(settings.serve.allow_plain_http);
    }

    #[test]
    fn what_was_found_is_told_where_it_is_anything() {
        assert_eq!(found(&Recovered::default()), None);
        let recovered = Recovered { interrupted: 2, owed: 3, ..Recovered::default() };
        let line = "jobs of before: 2 interrupted, 3 ended and not told yet";
        assert_eq!(found(&recovered).as_deref(), Some(line));
    }
}
