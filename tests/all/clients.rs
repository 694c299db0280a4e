//! Clients that others wrote, against the real process: the conformance suite of MCP, the
//! clients of the TypeScript SDK, the inspector's command line, and schemathesis.
//!
//! `just test` brings them. Where one is missing, the tests that need it say so and pass;
//! with `BACKLOT_CLIENTS=required`, as in CI, they fail.

use std::{
    env,
    ffi::OsStr,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, Instant},
};

use backlot_tests::{Data, Process, backlot, cache, program};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Where the component has the name of its tool, and how much of it that takes.
const PLACE: &[u8] = b"the tool of this build is:";
const PLACE_BYTES: usize = 80;

/// How long it may take to compile the tools, which is done once for all tests.
const LOADING: Duration = Duration::from_secs(120);

/// The tools that the conformance suite calls, as kinds. Its names have underscores.
const TOOLS: [&str; 26] = [
    "confirm-delete",
    "failing-job",
    "greet",
    "json-schema-2020-12-tool",
    "protocol-error-job",
    "slow-compute",
    "test-audio-content",
    "test-elicitation",
    "test-elicitation-sep1034-defaults",
    "test-elicitation-sep1330-enums",
    "test-embedded-resource",
    "test-error-handling",
    "test-header-parameter",
    "test-image-content",
    "test-input-required-result-elicitation",
    "test-input-required-result-multi-round",
    "test-input-required-result-request-state",
    "test-input-required-result-tampered-state",
    "test-logging-tool",
    "test-multiple-content-types",
    "test-reconnection",
    "test-simple-text",
    "test-streaming-elicitation",
    "test-tool-with-logging",
    "test-tool-with-progress",
    "test-tool-with-task",
];

#[test]
fn each_tool_of_the_suite_is_a_kind() {
    let setup = Setup::new();
    let listed = setup.start(["kinds", "--json"]).wait();
    assert_eq!(listed.code, Some(0), "{listed:?}");
    let document: Value = serde_json::from_str(&listed.stdout).unwrap();
    let kinds = document["kinds"].as_array().unwrap();
    let names: Vec<&str> = kinds.iter().filter_map(|kind| kind["kind"].as_str()).collect();
    assert_eq!(names, TOOLS);
}

#[test]
fn the_conformance_suite_for_2025_11_25() {
    conforms_to("2025-11-25");
}

#[test]
fn the_conformance_suite_for_2026_07_28() {
    conforms_to("2026-07-28");
}

/// Runs the conformance suite for a revision.
fn conforms_to(revision: &str) {
    let Some(node) = Node::found() else { return };
    let (setup, results) = (Setup::new(), TempDir::new().unwrap());
    let server = Server::start(&setup);
    let ran = node.run("conformance.mjs", |command| {
        server.tell(command);
        // Gone and back again where the suite wants the list of tools to change.
        let file = setup.kinds.path().join("test-reconnection.wasm");
        command.arg(revision).arg(results.path()).env("BACKLOT_COMES_AND_GOES", file);
    });
    succeeded(&ran);
}

#[test]
fn the_sdk_over_http() {
    let Some(node) = Node::found() else { return };
    let setup = Setup::new();
    let server = Server::start(&setup);
    for sdk in ["v1", "v2"] {
        let ran = node.run("sdk.mjs", |command| {
            server.tell(command);
            command.args([sdk, "http"]);
        });
        succeeded(&ran);
    }
}

#[test]
fn the_sdk_over_stdio() {
    let Some(node) = Node::found() else { return };
    for sdk in ["v1", "v2"] {
        let setup = Setup::new();
        succeeded(&node.run("sdk.mjs", |command| {
            setup.tell(command);
            command.args([sdk, "stdio", "ends"]).env("BACKLOT_COMMAND", over_stdio());
        }));
    }
}

#[test]
fn the_sdk_over_stdio_to_a_host_that_stays() {
    let Some(node) = Node::found() else { return };
    let setup = Setup::new();
    let _server = Server::start(&setup);
    for sdk in ["v1", "v2"] {
        succeeded(&node.run("sdk.mjs", |command| {
            setup.tell(command);
            command.args([sdk, "stdio"]).env("BACKLOT_COMMAND", over_stdio());
        }));
    }
}

#[test]
fn the_inspector_over_http() {
    let Some(node) = Node::found() else { return };
    let setup = Setup::new();
    let server = Server::start(&setup);
    let header = format!("authorization: Bearer {}", server.token);
    let reached = [&server.mcp(), "--transport", "http", "--header", &header];
    inspected(&node, &setup, &reached);

    // Each command is a client of its own, which finds what the one before has started.
    let call = |tool: &str, arguments: &[&str]| {
        let call = ["--method", "tools/call", "--tool-name", tool, "--tool-arg"];
        inspect(&node, &setup, &reached, &[&call[..], arguments].concat())
    };
    let status = |answer: &Value| answer["_meta"]["backlot/task"]["status"].clone();
    let id = |answer: &Value| {
        format!("task_id={}", answer["_meta"]["backlot/task"]["task_id"].as_str().unwrap())
    };
    let endless = call("spawn_task", &["kind=slow-compute", r#"input={"seconds":600}"#]);
    assert_eq!(status(&call("task_status", &[&id(&endless)])), json!("working"));
    call("task_stop", &[&id(&endless)]);
    let stopped = call("task_status", &[&id(&endless), "wait_seconds=30"]);
    assert_eq!(status(&stopped), json!("cancelled"));
    let failed = call("spawn_task", &["kind=test-error-handling", "input={}", "wait_seconds=30"]);
    assert_eq!(status(&failed), json!("failed"));
    call("task_retry", &[&id(&failed)]);
    let again = call("task_status", &[&id(&failed), "wait_seconds=30"]);
    assert_eq!(again["_meta"]["backlot/task"]["attempt"], json!(2), "{again}");
}

#[test]
fn the_inspector_over_stdio() {
    let Some(node) = Node::found() else { return };
    let (setup, program) = (Setup::new(), backlot());
    let _server = Server::start(&setup);
    // What it starts has nothing of its environment.
    let data = format!("BACKLOT_DATA={}", setup.data.folder().path().display());
    inspected(&node, &setup, &[program.to_str().unwrap(), "mcp", "-e", &data]);
}

/// Lists, and calls at once and in the background, with the inspector's command line.
fn inspected(node: &Node, setup: &Setup, server: &[&str]) {
    let inspect = |method: &[&str]| inspect(node, setup, server, method);
    let listed = inspect(&["--method", "tools/list"]);
    let tools = listed["tools"].as_array().unwrap();
    let names: Vec<&str> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
    for name in ["spawn_task", "task_status", "task_retry", "task_stop", "greet"] {
        assert!(names.contains(&name), "{name} is among {names:?}");
    }
    let call = ["--method", "tools/call", "--tool-name"];
    let greeted = inspect(&[&call[..], &["greet", "--tool-arg", "name=Ada"]].concat());
    assert_eq!(greeted["content"][0]["text"], json!("Hello, Ada!"), "{greeted}");
    let spawn = ["spawn_task", "--tool-arg", "kind=greet", r#"input={"name":"Bob"}"#];
    let spawned = inspect(&[&call[..], &spawn, &["wait_seconds=30"]].concat());
    assert_eq!(spawned["_meta"]["backlot/task"]["status"], json!("completed"), "{spawned}");
}

/// Returns what the inspector's command line prints of a call.
fn inspect(node: &Node, setup: &Setup, server: &[&str], method: &[&str]) -> Value {
    const INSPECTOR: &str =
        "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js";
    let ran = node.run(INSPECTOR, |command| {
        setup.tell(command);
        // It keeps a catalogue of servers at home.
        command.env("HOME", setup.data.outer()).arg("--cli").args(server).args(method);
    });
    let errors = String::from_utf8_lossy(&ran.stderr);
    serde_json::from_slice(&ran.stdout)
        .unwrap_or_else(|error| panic!("{method:?}: {}: {error}\n{errors}", ran.status))
}

#[test]
fn schemathesis_finds_nothing() {
    let program = brought().join("python/bin/schemathesis");
    if !program.exists() {
        missing::<()>("schemathesis");
        return;
    }
    let setup = Setup::new();
    let server = Server::start(&setup);
    // One that a person is asked by, so that there is something to look at, answer and stop.
    let input = json!({"message": "Who?"}).to_string();
    let spawned = setup.start(["run", "test-elicitation", "--detach", "--input", &input]).wait();
    assert_eq!(spawned.code, Some(0), "{spawned:?}");
    let job = spawned.stdout.trim();
    let mut command = Command::new(program);
    command
        .current_dir(setup.data.outer())
        .arg("--config-file")
        .arg(scripts().join("schemathesis.toml"))
        .args(["--no-color", "run", &format!("{}/v1/openapi.json", server.url)])
        .env("BACKLOT_HOST", &server.url)
        .env("BACKLOT_JOB", job);
    server.tell(&mut command);
    succeeded(&command.output().unwrap());
    let shown = setup.start(["show", job, "--json"]).wait();
    let shown: Value = serde_json::from_str(&shown.stdout).unwrap();
    // It was found, and answered or stopped; and then pruned, perhaps.
    let told = shown["status"].as_str().or(shown["error"]["code"].as_str()).unwrap_or_default();
    assert!(["completed", "cancelled", "unknown_job"].contains(&told), "{shown}");
}

/// Prints what was said, and fails unless it ended well.
fn succeeded(ran: &Output) {
    let (said, errors) =
        (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{}\n{said}\n{errors}", ran.status);
    println!("{said}");
}

/// Returns the command that serves MCP over stdio, as JSON.
fn over_stdio() -> String {
    json!([backlot(), "mcp", "--session", "sdk"]).to_string()
}

/// A data folder, and the tools as the kinds of a plugin folder, which models see.
struct Setup {
    data: Data,
    kinds: TempDir,
}

impl Setup {
    fn new() -> Self {
        let (data, kinds) = (Data::new(), TempDir::new().unwrap());
        let component = fs::read(program("conformance")).unwrap();
        for tool in TOOLS {
            fs::write(kinds.path().join(format!("{tool}.wasm")), named(&component, tool)).unwrap();
        }
        fs::write(data.outer().join("backlot.toml"), "[mcp]\nexpose = ['*']\n").unwrap();
        Self { data, kinds }
    }

    /// Tells a command where they are.
    fn tell(&self, command: &mut Command) {
        command
            .env("BACKLOT_DATA", self.data.folder().path())
            .env("BACKLOT_PLUGINS", self.kinds.path())
            .env("BACKLOT_POLICY", self.data.outer().join("backlot.toml"))
            .env("BACKLOT_CACHE", cache());
    }

    /// Waits until the host of the data folder has loaded the tools.
    fn wait_for_kinds(&self) {
        let until = Instant::now() + LOADING;
        loop {
            let told = self.start(["status", "--json"]).wait();
            let status: Value = serde_json::from_str(&told.stdout).unwrap_or_default();
            if status["kinds"] == json!(TOOLS.len()) {
                return;
            }
            assert!(Instant::now() < until, "the tools are not loaded: {told:?}");
        }
    }

    /// Starts `backlot` with them.
    fn start<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Process {
        Process::start_with(args, |command| self.tell(command))
    }
}

/// Returns the component in the build that is the tool of that name.
fn named(component: &[u8], tool: &str) -> Vec<u8> {
    let mut bytes = component.to_vec();
    let places: Vec<usize> =
        (0..bytes.len() - PLACE_BYTES).filter(|&at| bytes[at..].starts_with(PLACE)).collect();
    assert!(!places.is_empty(), "the component has the name of its tool in it");
    let name = format!("{tool:.<width$}", width = PLACE_BYTES - PLACE.len());
    for place in places {
        bytes[place + PLACE.len()..place + PLACE_BYTES].copy_from_slice(name.as_bytes());
    }
    bytes
}

/// A host that serves over HTTP.
struct Server {
    _process: Process,
    url: String,
    token: String,
}

impl Server {
    fn start(setup: &Setup) -> Self {
        let mut process = setup.start(["serve", "--listen", "127.0.0.1:0", "--json", "--quiet"]);
        let line = process.line();
        let event: Value = serde_json::from_str(&line).unwrap();
        let url = event["host"]["addresses"][0].as_str().unwrap().to_owned();
        let token = fs::read_to_string(setup.data.folder().path().join("operator-token")).unwrap();
        setup.wait_for_kinds();
        Self { _process: process, url, token: token.trim().to_owned() }
    }

    fn mcp(&self) -> String {
        format!("{}/mcp", self.url)
    }

    /// Tells a command how to reach it.
    fn tell(&self, command: &mut Command) {
        command.env("BACKLOT_URL", self.mcp()).env("BACKLOT_TOKEN", &self.token);
    }
}

/// Node, and a folder with our scripts and what they import.
struct Node {
    program: PathBuf,
    folder: TempDir,
}

impl Node {
    /// Returns it, or says that it is missing.
    fn found() -> Option<Self> {
        let packages = brought().join("node_modules");
        if !packages.exists() {
            return missing("the clients of MCP");
        }
        let Some(program) = node_in(&packages) else { return missing("Node 22") };
        let folder = TempDir::new().unwrap();
        symlink(packages, folder.path().join("node_modules")).unwrap();
        for file in fs::read_dir(scripts()).unwrap() {
            let file = file.unwrap();
            if Path::new(&file.file_name()).extension() == Some(OsStr::new("mjs")) {
                fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
            }
        }
        Some(Self { program, folder })
    }

    /// Runs a script to its end with what `change` makes of the command.
    fn run(&self, script: &str, change: impl FnOnce(&mut Command)) -> Output {
        let mut command = Command::new(&self.program);
        command.arg(self.folder.path().join(script)).env("XDG_CONFIG_HOME", "/nonexistent");
        change(&mut command);
        command.output().unwrap()
    }
}

/// Returns the Node that came with the packages, or else the machine's own if it is new
/// enough for them.
fn node_in(packages: &Path) -> Option<PathBuf> {
    let brought = ["x64", "arm64"].map(|cpu| packages.join(format!("node-linux-{cpu}/bin/node")));
    if let Some(program) = brought.into_iter().find(|program| program.exists()) {
        return Some(program);
    }
    let told = Command::new("node").arg("--version").output().ok()?;
    let version = String::from_utf8_lossy(&told.stdout).into_owned();
    let major: u32 = version.trim_start_matches('v').split('.').next()?.parse().ok()?;
    (major >= 22).then(|| "node".into())
}

/// Returns where the scripts are that use what others wrote.
fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients")
}

/// Returns where `just test` brings what others wrote.
fn brought() -> PathBuf {
    cache().with_file_name("clients")
}

/// Says that something is missing, which is a failure where nothing may be.
fn missing<T>(what: &str) -> Option<T> {
    assert_ne!(
        env::var("BACKLOT_CLIENTS").as_deref(),
        Ok("required"),
        "missing: {what}; run `just clients`"
    );
    eprintln!(
        "SKIPPED, since this is missing: {what}; `just clients` brings it, where npm and pip can"
    );
    None
}
