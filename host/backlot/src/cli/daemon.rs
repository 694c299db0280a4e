//! The verbs on the host itself, as the command line has them.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::Args;

use super::{duration, grace};
use crate::settings;

/// Run the host of the data folder, until it is told to end
///
/// Jobs run in it, and the other commands find it by themselves. It answers at a socket in
/// the data folder, for this user alone, and over HTTP at the address that it listens at.
/// The plugin folder is watched: kinds are loaded, replaced and dropped as their files are.
///
/// What flags do not say is read from the tables [serve] and [mcp] of the file that also
/// has the policy, and from the environment.
///
/// SIGTERM, the first Ctrl-C and `backlot shutdown` end it in order: nothing is begun any
/// more, jobs that run may go on for the time that --drain names and are then stopped, how
/// each has ended is written down, and whoever is connected is answered. A second signal
/// ends it at once; what was not written by then, the next host finds interrupted.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 ended in order, 1 not all endings could be written, 2 usage, 3 refused before it
began, as where another host has the data folder, 4 ended at once.

Examples:
  backlot serve
  backlot serve --listen none --drain 30s

With --json, stdout is JSON lines:
  {\"event\":\"serving\",\"host\":{\"pid\":..,\"addresses\":[..],..},\"data\":..,\"socket\":..,\"recovered\":{..}}
  {\"event\":\"ending\",\"why\":..,\"drain_ms\":..}
  {\"event\":\"ended\",\"written\":true|false}")]
pub(crate) struct Serve {
    /// Where to listen, beside the socket: an address with its port, or `none`
    /// [env: BACKLOT_LISTEN] [default: 127.0.0.1:7420]
    #[arg(long, value_name = "ADDR", value_delimiter = ',', value_parser = settings::address)]
    pub(crate) listen: Vec<Option<SocketAddr>>,
    /// A further name that requests may call this host by
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = settings::host_name)]
    pub(crate) host: Vec<String>,
    /// Speak TLS, with this certificate and those that vouch for it, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The key of the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Listen without TLS at an address that others can reach
    #[arg(long)]
    pub(crate) allow_plain_http: bool,
    /// How long jobs that run may go on at the end before they are stopped [default: 0s]
    #[arg(long, value_name = "DURATION", value_parser = grace)]
    pub(crate) drain: Option<Duration>,
    /// Kinds that models get as tools of their own: a kind, or what several begin with and
    /// a `*`
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = settings::exposed)]
    pub(crate) expose: Vec<String>,
    /// Print JSON lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// Tell whether a host runs on the data folder, and how it is doing
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 one runs, 1 it cannot be asked, 2 usage, 3 none does.

Examples:
  backlot status
  backlot status --json | jq .jobs.working

With --json, stdout is one JSON document:
  {\"running\":true,\"data\":..,\"socket\":..,\"host\":{..},\"jobs\":{..},\"kinds\":..,\"warnings\":[..],..}
  {\"running\":false,\"data\":..,\"error\":{..}}")]
pub(crate) struct Status {
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// End the host of the data folder in order, and wait until it has ended
///
/// Nothing is begun any more. Jobs that run may go on for the time that --drain names, and
/// are then stopped; how each has ended is written down.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 it has ended, or with --no-wait was asked to, 1 it has not ended in time, 2 usage,
3 none runs.

Examples:
  backlot shutdown
  backlot shutdown --drain 5m

With --json, stdout is one JSON document:
  {\"pid\":..,\"drain_ms\":..,\"ended\":true|false}")]
pub(crate) struct Shutdown {
    /// How long jobs that run may go on [default: as the host was set up]
    #[arg(long, value_name = "DURATION", value_parser = grace)]
    pub(crate) drain: Option<Duration>,
    /// Wait until it has ended, which is the default
    #[arg(long, overrides_with = "no_wait")]
    wait: bool,
    /// Only ask for it
    #[arg(long, overrides_with = "wait")]
    no_wait: bool,
    /// How long to wait [default: the time that jobs may go on, and a minute and a half]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Serve an agent on stdin and stdout, over the Model Context Protocol
///
/// An agent starts kinds as work in the background, looks at it, tries it again and stops
/// it, and is told when it ends. The host of the data folder does the work. Where none
/// runs, this process is the host while it is there: when stdin ends, its jobs that run
/// are stopped, and have failed with `host shutdown`, so that they can be tried again.
///
/// An agent works in a session, and finds its jobs again in it. If the host goes away, the
/// next one is waited for, and what the last one was asked is answered with an error.
/// stdout has messages only; all else goes to stderr.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 stdin has ended, 1 no host could be had any more, 2 usage, 3 refused before it began,
4 ended by a second signal before its jobs had ended.

Examples:
  backlot mcp --session editor
  backlot mcp --expose 'grep,check*'

In a client's configuration:
  {\"mcpServers\":{\"backlot\":{\"command\":\"backlot\",\"args\":[\"mcp\",\"--session\",\"editor\"]}}}")]
pub(crate) struct Mcp {
    /// The session that the agent works in [default: a new one, which is told on stderr]
    #[arg(long, value_name = "NAME")]
    pub(crate) session: Option<String>,
    /// Kinds that are tools of their own where this process is the host: a kind, or what
    /// several begin with and a `*`
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = settings::exposed)]
    pub(crate) expose: Vec<String>,
}

impl Shutdown {
    /// Tells whether its end is waited for.
    pub(crate) fn waits(&self) -> bool {
        !self.no_wait
    }
}
