//! A data folder that several processes share, one after the other or at once.

use std::{ffi::OsStr, path::Path, process::Command};

use backlot::backlot_jobs::DataFolder;
use backlot_surface::Client;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{Ended, Process, Site, files};

/// A data folder, and the plugin folder of whoever works with it.
pub struct Data {
    outer: TempDir,
    folder: DataFolder,
}

impl Data {
    /// Returns a folder that no host has had.
    ///
    /// # Panics
    ///
    /// When it cannot be made.
    pub fn new() -> Self {
        let outer = TempDir::new().expect("a folder can be made");
        let folder = DataFolder::open(&outer.path().join("data")).expect("a folder can be made");
        Self { outer, folder }
    }

    /// Returns the folder.
    pub fn folder(&self) -> &DataFolder {
        &self.folder
    }

    /// Returns a folder beside it, for what a test needs.
    pub fn outer(&self) -> &Path {
        self.outer.path()
    }

    /// Starts `backlot` on it with these arguments.
    pub fn start<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Process {
        self.start_with(args, |_| {})
    }

    /// Starts `backlot` on it with what `change` makes of the command.
    pub fn start_with<A: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = A>,
        change: impl FnOnce(&mut Command),
    ) -> Process {
        Process::start_with(args, |command| {
            self.name_to(command);
            change(command);
        })
    }

    /// Has a command work on it.
    pub fn name_to(&self, command: &mut Command) {
        command.env("BACKLOT_DATA", self.folder.path());
        command.env("BACKLOT_PLUGINS", files::kinds());
    }

    /// Starts a host on it that stays, at its socket alone, and returns it once it serves.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub fn serve<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Process {
        let all = ["serve", "--json", "--listen", "none"].map(OsStr::new).map(OsStr::to_owned);
        let args = args.into_iter().map(|arg| arg.as_ref().to_owned());
        let mut host = self.start(all.into_iter().chain(args));
        let line = host.line();
        assert!(line.starts_with(r#"{"event":"serving""#), "it does not serve: {line}");
        host
    }

    /// Starts a host on it that stays and listens at a free port, and returns it with where
    /// it is asked by the operator.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub fn serve_at_a_port(&self, args: &[&str]) -> (Process, Site) {
        self.serve_at_a_port_with(args, |_| {})
    }

    /// Starts a host as by [`Data::serve_at_a_port`], with what `change` makes of the command.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub fn serve_at_a_port_with(
        &self,
        args: &[&str],
        change: impl FnOnce(&mut Command),
    ) -> (Process, Site) {
        let all = ["serve", "--json", "--listen", "127.0.0.1:0"];
        let mut host = self.start_with(all.iter().chain(args), change);
        let line = host.line();
        let serving: Value = serde_json::from_str(&line).expect("events are JSON");
        let address = serving["host"]["addresses"][0].as_str().and_then(|it| it.split("//").nth(1));
        let address = address.and_then(|it| it.parse().ok());
        let address = address.unwrap_or_else(|| panic!("it does not serve: {line}"));
        let token = std::fs::read_to_string(self.folder.path().join("operator-token"));
        (host, Site::new(address, token.expect("there is a token").trim()))
    }

    /// Returns where a host is asked with a new token, for a session of the same name.
    ///
    /// # Panics
    ///
    /// When none can be made.
    pub fn token(&self, site: &Site, name: &str, role: &str) -> Site {
        let args = ["token", "add", name, "--role", role, "--session", name, "--json"];
        let added = self.json(args);
        site.with_token(added["token"].as_str().unwrap_or_else(|| panic!("{added}")))
    }

    /// Runs `backlot` on it to its end.
    pub fn run<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Ended {
        self.start(args).wait()
    }

    /// Runs `backlot` on it to its end, which has to be a good one, and returns the JSON
    /// document that it prints.
    ///
    /// # Panics
    ///
    /// When it fails, or prints something else.
    pub fn json<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Value {
        let ended = self.run(args);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
    }

    /// Starts a process that holds it for an hour, and returns it with the id of its job.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub fn hold(&self) -> (Process, String) {
        let input = json!({"count": 2, "every_ms": 3_600_000}).to_string();
        let mut holder = self.start(["run", "ticker", "--json", "--input", &input]);
        let job = started(&mut holder);
        (holder, job)
    }

    /// Connects to the host that holds it.
    ///
    /// # Panics
    ///
    /// When there is none.
    pub async fn client(&self) -> Client {
        Client::connect(&self.folder.socket_address()).await.expect("a host answers")
    }
}

impl Default for Data {
    fn default() -> Self {
        Self::new()
    }
}

/// Waits until a `backlot run --json` has started its job, and returns the job's id.
///
/// # Panics
///
/// When it does something else.
pub fn started(process: &mut Process) -> String {
    let line = process.line();
    let event: Value = serde_json::from_str(&line).expect("events are JSON");
    match (&event["event"], &event["job"]) {
        (Value::String(event), Value::String(job)) if event == "started" => job.clone(),
        _ => panic!("it has not started: {line}"),
    }
}
