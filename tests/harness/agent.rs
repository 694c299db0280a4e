//! Agents: clients of the Model Context Protocol, on stdio and over HTTP.

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::{Value, json};

use crate::{Data, Ended, Event, Events, Process, Response, Site};

/// The time that a server has to end once its client has left (C77).
pub const LEAVE: Duration = Duration::from_secs(2);

/// The revision that agents speak which say who they are first.
const WITH_SESSIONS: &str = "2025-11-25";
/// The one where each request stands for itself.
const WITHOUT_SESSIONS: &str = "2026-07-28";
/// The longest that an agent waits for a task's end in one call, as calls have it.
const WAIT_SECONDS: u64 = 100;

/// What any agent asks, whatever is between it and the host.
pub trait Asks {
    /// Asks something, and returns the whole answer.
    fn ask(&mut self, method: &str, params: Value) -> Value;

    /// Calls a tool, and returns its result.
    ///
    /// # Panics
    ///
    /// When there is none.
    #[track_caller]
    fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let answer = self.ask("tools/call", json!({"name": tool, "arguments": arguments}));
        assert!(answer["result"].is_object(), "{answer}");
        answer["result"].clone()
    }

    /// Starts a task, and returns its id.
    ///
    /// # Panics
    ///
    /// When it is refused.
    #[track_caller]
    fn spawn(&mut self, kind: &str, input: &Value) -> String {
        let spawned = self.call("spawn_task", json!({"kind": kind, "input": input}));
        let id = &spawned["_meta"]["backlot/task"]["task_id"];
        id.as_str().unwrap_or_else(|| panic!("{spawned}")).to_owned()
    }

    /// Looks at a task, and returns what is said of it.
    fn look(&mut self, task: &str) -> String {
        text(&self.call("task_status", json!({"task_id": task})))
    }

    /// Waits for a task's end, and returns what is said of it.
    fn wait(&mut self, task: &str) -> String {
        text(&self.call("task_status", json!({"task_id": task, "wait_seconds": WAIT_SECONDS})))
    }

    /// Returns the names of the tools.
    ///
    /// # Panics
    ///
    /// When they are not told.
    fn tools(&mut self) -> Vec<String> {
        let listed = self.ask("tools/list", json!({}));
        let tools = listed["result"]["tools"].as_array().unwrap_or_else(|| panic!("{listed}"));
        tools.iter().map(|tool| tool["name"].as_str().unwrap_or_default().to_owned()).collect()
    }
}

/// Returns what a result says, all of its texts.
pub fn text(result: &Value) -> String {
    let blocks = result["content"].as_array().into_iter().flatten();
    let texts: Vec<&str> = blocks.filter_map(|block| block["text"].as_str()).collect();
    texts.join("\n")
}

/// Returns the arguments of a call that waits for a task's end.
pub fn waiting(task: &str) -> Value {
    let arguments = json!({"task_id": task, "wait_seconds": WAIT_SECONDS});
    json!({"name": "task_status", "arguments": arguments})
}

fn hello() -> Value {
    json!({
        "protocolVersion": WITH_SESSIONS,
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    })
}

fn message(id: u64, method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

/// An agent on the stdio of a `backlot mcp`.
pub struct Agent {
    /// The server.
    pub process: Process,
    /// What it has said of itself.
    pub begun: Value,
    asked: u64,
    /// What it was told besides answers, since that was asked for last.
    heard: Vec<Value>,
}

impl Agent {
    /// Starts a server with these arguments, and says who it is.
    pub fn start(data: &Data, args: &[&str]) -> Self {
        Self::start_with(data, args, |_| {})
    }

    /// Starts a server with what `change` makes of the command.
    ///
    /// # Panics
    ///
    /// When it is another server that answers.
    pub fn start_with(data: &Data, args: &[&str], change: impl FnOnce(&mut Command)) -> Self {
        let args = ["mcp"].iter().chain(args);
        let process = data.start_with(args, |command| {
            command.stdin(Stdio::piped());
            change(command);
        });
        let mut agent = Self { process, begun: Value::Null, asked: 0, heard: Vec::new() };
        let begun = agent.ask("initialize", hello());
        assert_eq!(begun["result"]["serverInfo"]["name"], "backlot", "{begun}");
        agent.begun = begun;
        agent.notify("notifications/initialized", &json!({}));
        agent
    }

    /// Says something that has no answer.
    pub fn notify(&mut self, method: &str, params: &Value) {
        let message = json!({"jsonrpc": "2.0", "method": method, "params": params});
        self.process.say(&message.to_string());
    }

    /// Asks something, and leaves the answer for later.
    pub fn send(&mut self, method: &str, params: &Value) -> u64 {
        self.asked += 1;
        self.process.say(&message(self.asked, method, params).to_string());
        self.asked
    }

    /// Returns the next message, whatever it is.
    ///
    /// # Panics
    ///
    /// When it is none.
    pub fn message(&mut self) -> Value {
        let line = self.process.line();
        let message: Value =
            serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        assert_eq!(message["jsonrpc"], "2.0", "{message}");
        message
    }

    /// Returns the answer to a request; what is told meanwhile is heard.
    pub fn answer(&mut self, id: u64) -> Value {
        loop {
            let message = self.message();
            if message["id"] == id && message.get("method").is_none() {
                return message;
            }
            self.heard.push(message);
        }
    }

    /// Returns what it was told besides answers, since that was asked for last.
    pub fn heard(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.heard)
    }

    /// Leaves, and returns what became of the server.
    pub fn leave(mut self) -> Ended {
        self.process.close_stdin();
        self.process.wait()
    }
}

impl Asks for Agent {
    fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, &params);
        self.answer(id)
    }
}

/// An agent over HTTP.
pub struct Remote {
    site: Site,
    /// The session of the transport, where the revision has those.
    session: Option<String>,
    asked: u64,
}

impl Remote {
    /// Begins a session of the transport.
    ///
    /// # Panics
    ///
    /// When it is refused.
    pub fn begin(site: &Site) -> Self {
        let mut agent = Self { site: site.clone(), session: None, asked: 0 };
        let response = agent.post(&message(0, "initialize", &hello()));
        agent.session = response.header("mcp-session-id");
        assert!(agent.session.is_some(), "{}", response.head);
        answer(response, 0);
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        let ready = agent.post(&ready);
        assert_eq!(ready.status, 202, "{}", ready.head);
        agent
    }

    /// Returns one of the revision where each request stands for itself.
    pub fn stateless(site: &Site) -> Self {
        Self { site: site.clone(), session: None, asked: 0 }
    }

    /// Returns the session of the transport.
    ///
    /// # Panics
    ///
    /// When the revision has none.
    pub fn session(&self) -> &str {
        self.session.as_deref().expect("it has begun a session")
    }

    /// Sends a message in its session.
    pub fn post(&self, message: &Value) -> Response {
        self.request("POST").json(message).send()
    }

    /// Sends a notification.
    ///
    /// # Panics
    ///
    /// When it is refused.
    pub fn notify(&self, method: &str, params: &Value) {
        let told = self.post(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
        assert_eq!(told.status, 202, "{}", told.head);
    }

    /// Asks something, and returns the request's id and the connection that the response
    /// will come on.
    pub fn send(&mut self, method: &str, params: &Value) -> (u64, std::net::TcpStream) {
        self.asked += 1;
        let (id, params) = (self.asked, self.with_meta(params));
        let request = self.request("POST").json(&message(id, method, &params));
        let request = match self.session {
            Some(_) => request,
            None => {
                let request = request
                    .header("mcp-protocol-version", WITHOUT_SESSIONS)
                    .header("mcp-method", method);
                match params["name"].as_str().or(params["taskId"].as_str()) {
                    Some(name) => request.header("mcp-name", name),
                    None => request,
                }
            }
        };
        (id, request.leave())
    }

    /// Opens the stream on which it is told what nobody asked for.
    pub fn listen(&self) -> Events {
        self.request("GET").header("accept", "text/event-stream").send().events()
    }

    fn request(&self, method: &str) -> crate::Request<'_> {
        let request = self
            .site
            .request(&format!("{method} /mcp"))
            .header("accept", "application/json, text/event-stream");
        match &self.session {
            Some(session) => request
                .header("mcp-session-id", session)
                .header("mcp-protocol-version", WITH_SESSIONS),
            None => request,
        }
    }

    fn with_meta(&self, params: &Value) -> Value {
        let mut params = params.clone();
        if self.session.is_none() {
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": WITHOUT_SESSIONS,
                "io.modelcontextprotocol/clientCapabilities": {
                    "extensions": {"io.modelcontextprotocol/tasks": {}},
                },
            });
        }
        params
    }
}

impl Asks for Remote {
    fn ask(&mut self, method: &str, params: Value) -> Value {
        let (id, stream) = self.send(method, &params);
        answer(Response::read(stream).expect("an answer comes"), id)
    }
}

/// Returns the answer to a request, out of the response to it.
///
/// # Panics
///
/// When it has none.
pub fn answer(response: Response, id: u64) -> Value {
    let media = response.header("content-type").unwrap_or_default();
    if !media.starts_with("text/event-stream") {
        return response.json();
    }
    let mut messages = response.events().map(|event| Event::json(&event));
    let found = messages.find(|it| it["id"] == id && it.get("method").is_none());
    found.expect("the response has the answer")
}
