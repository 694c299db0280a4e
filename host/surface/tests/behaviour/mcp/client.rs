//! A client that says what a test has it say.

use std::sync::Arc;

use backlot_registry::{
    Change, Form, Generation, GenerationView, Kind, KindDescriptor, KindState, KindView,
};
use backlot_surface::{Api, Failure, Principal, mcp::serve_stream};
use serde_json::{Value, json};
use tokio::{
    io::{
        AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, Lines, ReadHalf,
        WriteHalf, duplex, split,
    },
    sync::oneshot,
    task::JoinHandle,
};

use crate::harness::Host;

/// A client at one end of a pair of streams; a server is at the other.
pub(super) struct Wire {
    pub(super) write: WriteHalf<DuplexStream>,
    read: Lines<BufReader<ReadHalf<DuplexStream>>>,
    pub(super) serving: JoinHandle<Result<(), Failure>>,
    pub(super) close: Option<oneshot::Sender<()>>,
    /// What came besides answers.
    pub(super) heard: Vec<Value>,
    /// What stands in the `_meta` of every request.
    pub(super) meta: Value,
    count: u64,
}

/// What a client of the revision without `initialize` says with every request.
pub(super) fn meta_2026(capabilities: &Value) -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": capabilities,
    })
}

pub(super) fn with_tasks() -> Value {
    json!({"extensions": {"io.modelcontextprotocol/tasks": {}}})
}

impl Wire {
    /// Connects, and says nothing yet.
    pub(super) fn connect(api: &Api, principal: Principal) -> Self {
        // More than what either end leaves unread for long.
        let (near, far) = duplex(1 << 20);
        let (far_read, far_write) = split(far);
        let (close, closing) = oneshot::channel();
        let api = api.clone();
        let serving = tokio::spawn(async move {
            serve_stream(api, principal, far_read, far_write, async {
                let _ = closing.await;
            })
            .await
        });
        let (read, write) = split(near);
        let read = BufReader::new(read).lines();
        let close = Some(close);
        Self { write, read, serving, close, heard: Vec::new(), meta: Value::Null, count: 0 }
    }

    /// Connects as a client of the last revision with `initialize`.
    pub(super) async fn initialized(api: &Api, principal: Principal, capabilities: Value) -> Self {
        let mut wire = Self::connect(api, principal);
        let answer = wire
            .ask(
                "initialize",
                json!({
                    "protocolVersion": "2025-11-25",
                    "capabilities": capabilities,
                    "clientInfo": {"name": "test", "version": "1"},
                }),
            )
            .await;
        assert_eq!(answer["result"]["protocolVersion"], "2025-11-25");
        wire.notify("notifications/initialized", json!({})).await;
        wire
    }

    /// Connects as a user of the session `chat`.
    pub(super) async fn user(api: &Api) -> Self {
        Self::initialized(api, Principal::user("ann", "chat".into()), json!({})).await
    }

    /// Connects as a user of the session `chat`, of the revision without `initialize`.
    pub(super) fn user_2026(api: &Api, capabilities: &Value) -> Self {
        let mut wire = Self::connect(api, Principal::user("ann", "chat".into()));
        wire.meta = meta_2026(capabilities);
        wire
    }

    pub(super) async fn send(&mut self, line: &str) {
        self.write.write_all(line.as_bytes()).await.unwrap();
        self.write.write_all(b"\n").await.unwrap();
    }

    pub(super) async fn notify(&mut self, method: &str, params: Value) {
        let message = json!({"jsonrpc": "2.0", "method": method, "params": params});
        self.send(&message.to_string()).await;
    }

    /// Sends a request, and returns its id.
    pub(super) async fn request(&mut self, method: &str, mut params: Value) -> u64 {
        self.count += 1;
        if !self.meta.is_null() {
            let mut meta = self.meta.clone();
            if let Value::Object(own) = &params["_meta"] {
                meta.as_object_mut().unwrap().extend(own.clone());
            }
            params["_meta"] = meta;
        }
        let message =
            json!({"jsonrpc": "2.0", "id": self.count, "method": method, "params": params});
        self.send(&message.to_string()).await;
        self.count
    }

    /// Returns the next message; `None` once the server has ended.
    pub(super) async fn next(&mut self) -> Option<Value> {
        let line = self.read.next_line().await.unwrap()?;
        let message: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(message["jsonrpc"], "2.0", "{line}");
        Some(message)
    }

    /// Returns the answer to a request.
    pub(super) async fn answer(&mut self, id: u64) -> Value {
        loop {
            let message = self.next().await.unwrap();
            if message["id"] == id && message.get("method").is_none() {
                return message;
            }
            self.heard.push(message);
        }
    }

    pub(super) async fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params).await;
        self.answer(id).await
    }

    /// Calls a tool, and returns its result.
    pub(super) async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let params = json!({"name": tool, "arguments": arguments});
        let answer = self.ask("tools/call", params).await;
        assert!(answer.get("error").is_none(), "{answer}");
        answer["result"].clone()
    }

    pub(super) async fn tools(&mut self) -> Vec<Value> {
        let answer = self.ask("tools/list", json!({})).await;
        answer["result"]["tools"].as_array().unwrap_or_else(|| panic!("{answer}")).clone()
    }
}

/// Returns the text of a result, block by block.
pub(super) fn texts(result: &Value) -> Vec<String> {
    let blocks = result["content"].as_array().unwrap_or_else(|| panic!("{result}"));
    blocks.iter().map(|block| block["text"].as_str().unwrap_or_default().to_owned()).collect()
}

pub(super) fn text(result: &Value) -> String {
    texts(result).join("\n---\n")
}

/// Returns the id of the task that a result is about.
pub(super) fn task_of(result: &Value) -> String {
    let facts = &result["_meta"]["backlot/task"];
    facts["task_id"].as_str().unwrap_or_else(|| panic!("{result}")).to_owned()
}

/// Returns a text without the ids of the run of the test.
pub(super) fn without(text: &str, ids: &[&str]) -> String {
    let mut text = text.to_owned();
    for (place, id) in ids.iter().enumerate() {
        let letter = char::from(b'A' + u8::try_from(place).unwrap());
        text = text.replace(id, &format!("<{letter}>")).replace(&id[..8], &format!("<{letter}:8>"));
    }
    text
}

/// Returns a kind that can be started.
pub(super) fn kind(name: &str, schema: Option<&str>, form: Form) -> KindView {
    let descriptor = KindDescriptor {
        summary: format!("Does {name}."),
        input_schema: schema.map(Into::into),
        form,
    };
    let generation = Generation { number: 1, digest: "sha256:00".into() };
    let current = GenerationView {
        generation,
        contract: Some("0.1.0"),
        loaded_at_ms: 1,
        tasks: 0,
        kept: true,
        descriptor: Arc::new(descriptor),
    };
    KindView {
        kind: Kind::new(name).unwrap(),
        state: KindState::Serving,
        current: Some(current),
        earlier: Vec::new(),
        trouble: None,
    }
}

/// Has those kinds be all there are.
pub(super) fn set_kinds(host: &Host, kinds: Vec<KindView>) {
    let generation = Generation { number: 1, digest: "sha256:00".into() };
    let swapped = Change::Swapped { kind: Kind::new("any").unwrap(), generation };
    host.script.set_kinds(kinds, swapped);
}

/// Returns the host's surface with kinds that are tools of their own.
pub(super) fn exposing(host: &Host, patterns: &[&str]) -> Api {
    let mut api = host.api.clone();
    api.mcp.expose = patterns.iter().map(|it| (*it).to_owned()).collect();
    api
}

/// Waits until so many endings are owed to a session.
pub(super) async fn owes(host: &Host, session: &str, count: usize) {
    let begun = std::time::Instant::now();
    loop {
        let owed = host.manager.owed(&session.into()).await.unwrap();
        let found = owed.map_or(0, |owed| owed.jobs.len());
        if found == count {
            return;
        }
        // The test's own time may be paused.
        assert!(begun.elapsed().as_secs() < 10, "{found} are owed to {session}, not {count}");
        tokio::task::yield_now().await;
    }
}
