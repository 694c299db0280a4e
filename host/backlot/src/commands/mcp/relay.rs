//! Messages between a client, on stdin and stdout, and a server that may be replaced.
//!
//! What was asked of a server that is gone is answered with an error, since nobody else
//! will. The next one is told who the client is as the first one was, and what it answers
//! to that is not told a second time.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, split},
    pin,
    time::timeout,
};

use super::{
    input::{Input, Line},
    pipes::Out,
};
use crate::console::is_closed;

/// How long the server may take for its last answers once the client has left.
const FAREWELL: Duration = Duration::from_secs(1);
/// How many requests are remembered that are under way: more than a server answers at a
/// time. One that is past it has no answer if the server goes.
const REQUESTS: usize = 1_024;
/// The longest message that introduces a client and is kept, in bytes.
const INTRODUCTION_BYTES: usize = 1 << 20;
/// What is answered where the server is gone. The protocol leaves it to servers.
const GONE: i32 = -32_000;

/// Why messages are handed on no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The client has left, or reads no more.
    Client,
    /// The server is gone.
    Host,
}

/// A client, and what has to be known of it when the server is replaced.
pub(super) struct Relay<R> {
    input: Input<R>,
    out: Out,
    asked: Mutex<Asked>,
}

impl<R: AsyncRead + Unpin> Relay<R> {
    pub(super) fn new(out: Out, input: Input<R>) -> Self {
        Self { input, out, asked: Mutex::default() }
    }

    /// Resolves once the client has left, whom nobody reads from meanwhile. What it says
    /// until then is kept.
    pub(super) async fn left(&mut self) {
        self.input.ended().await;
    }

    /// Hands messages on until one of the two is gone.
    pub(super) async fn run(
        &mut self,
        server: impl AsyncRead + AsyncWrite + Unpin,
    ) -> anyhow::Result<End> {
        let (read, mut write) = split(server);
        let Self { input, out, asked } = self;
        let introduction = lock(asked).introduce();
        let asked = &*asked;
        let up = async {
            if write.write_all(&introduction).await.is_err() || write.flush().await.is_err() {
                return Ok(End::Host);
            }
            loop {
                let line = match input.next().await.context("cannot read stdin")? {
                    None => break,
                    Some(Line::Whole(line)) => {
                        lock(asked).says(&line);
                        line
                    }
                    Some(Line::Piece(piece)) => piece,
                };
                if write.write_all(&line).await.is_err() || write.flush().await.is_err() {
                    return Ok(End::Host);
                }
            }
            // The server hears that nothing more comes, and answers what there is.
            let _ = write.shutdown().await;
            anyhow::Ok(End::Client)
        };
        let down = async {
            let mut from = Input::new(read);
            // A server that breaks off is as gone as one that ends.
            while let Ok(Some(line)) = from.next().await {
                let line = match line {
                    Line::Whole(line) if lock(asked).hears(&line) => line,
                    Line::Whole(_) => continue,
                    Line::Piece(piece) => piece,
                };
                match out.write(line).await {
                    Ok(()) => {}
                    Err(error) if is_closed(&error) => return Ok(End::Client),
                    Err(error) => return Err(error).context("cannot write to stdout"),
                }
            }
            Ok(End::Host)
        };
        pin!(up, down);
        tokio::select! {
            end = &mut down => end,
            end = &mut up => {
                let end = end?;
                match timeout(FAREWELL, &mut down).await {
                    // What it ended with is what counts.
                    Ok(Err(error)) => Err(error),
                    Ok(Ok(_)) | Err(_) => Ok(end),
                }
            }
        }
    }

    /// Answers what a server was asked that is gone.
    pub(super) async fn give_up(&self, why: &str) {
        let answers = lock(&self.asked).give_up(why);
        if !answers.is_empty() {
            // Whoever reads no more is noticed by the next one.
            let _ = self.out.write(answers).await;
        }
    }
}

fn lock(asked: &Mutex<Asked>) -> MutexGuard<'_, Asked> {
    asked.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What of a message is looked at.
#[derive(Deserialize)]
struct Head {
    id: Option<Value>,
    method: Option<String>,
}

/// What was asked and not answered, and how the client has introduced itself.
#[derive(Debug, Default)]
struct Asked {
    /// The ids, as they are written.
    open: HashMap<String, Value>,
    initialize: Option<(String, Vec<u8>)>,
    initialized: Option<Vec<u8>>,
    /// What is not told the client, since it has heard it from the server before.
    unheard: HashSet<String>,
}

impl Asked {
    /// Takes note of what the client says.
    fn says(&mut self, line: &[u8]) {
        let Ok(Head { id, method: Some(method) }) = serde_json::from_slice(line) else { return };
        let is_short = line.len() <= INTRODUCTION_BYTES;
        match (method.as_str(), id) {
            ("notifications/initialized", None) if is_short => {
                self.initialized = Some(line.to_vec());
            }
            (method, Some(id)) => {
                let written = id.to_string();
                if method == "initialize" && is_short {
                    self.initialize = Some((written.clone(), line.to_vec()));
                }
                if self.open.len() < REQUESTS {
                    self.open.insert(written, id);
                }
            }
            _ => {}
        }
    }

    /// Takes note of what a server says, and tells whether the client is to hear it.
    fn hears(&mut self, line: &[u8]) -> bool {
        let Ok(Head { id: Some(id), method: None }) = serde_json::from_slice(line) else {
            return true;
        };
        let id = id.to_string();
        self.open.remove(&id);
        !self.unheard.remove(&id)
    }

    /// Returns what a new server is told first.
    fn introduce(&mut self) -> Vec<u8> {
        let Some((id, line)) = &self.initialize else { return Vec::new() };
        let mut introduction = line.clone();
        // A client that still waits for the answer hears this one.
        if !self.open.contains_key(id) {
            self.unheard.insert(id.clone());
        }
        introduction.extend(self.initialized.iter().flatten());
        introduction
    }

    /// Returns the answers to what is open, which then is not any more.
    fn give_up(&mut self, why: &str) -> Vec<u8> {
        self.unheard.clear();
        let initialize = self.initialize.as_ref().map(|(id, _)| id.clone());
        let mut answers = Vec::new();
        self.open.retain(|written, id| {
            // The next server is asked that anyway.
            if Some(written) == initialize.as_ref() {
                return true;
            }
            let error = json!({"code": GONE, "message": why});
            let answer = json!({"jsonrpc": "2.0", "id": id, "error": error});
            answers.extend(answer.to_string().bytes());
            answers.push(b'\n');
            false
        });
        answers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INITIALIZE: &[u8] = b"{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"initialize\"}\n";
    const INITIALIZED: &[u8] = b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n";
    const CALL: &[u8] = b"{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"tools/call\"}\n";

    #[test]
    fn what_a_server_did_not_answer_is_answered() {
        let mut asked = Asked::default();
        asked.says(CALL);
        asked.says(b"{\"id\":7,\"method\":\"tools/list\"}\n");
        // What is no request has no answer.
        asked.says(b"{\"id\":8,\"result\":{}}\n");
        asked.says(b"{\"method\":\"notifications/cancelled\"}\n");
        asked.says(b"no message\n");
        assert!(asked.hears(b"{\"id\":7,\"result\":{}}\n"));
        let answers = String::from_utf8(asked.give_up("gone")).unwrap();
        let answer: Value = serde_json::from_str(&answers).unwrap();
        let error = json!({"code": GONE, "message": "gone"});
        assert_eq!(answer, json!({"jsonrpc": "2.0", "id": "a", "error": error}));
        assert_eq!(asked.give_up("gone"), b"");
    }

    #[test]
    fn the_next_server_is_told_who_the_client_is_and_the_client_hears_it_once() {
        let mut asked = Asked::default();
        assert_eq!(asked.introduce(), b"");
        asked.says(INITIALIZE);
        assert!(asked.hears(b"{\"id\":0,\"result\":{}}\n"));
        asked.says(INITIALIZED);
        asked.give_up("gone");
        assert_eq!(asked.introduce(), [INITIALIZE, INITIALIZED].concat());
        assert!(!asked.hears(b"{\"id\":0,\"result\":{}}\n"));
        // A request of the server's own may have the same number.
        assert!(asked.hears(b"{\"id\":0,\"method\":\"elicitation/create\"}\n"));
        assert!(asked.hears(b"{\"id\":0,\"result\":{}}\n"));
    }

    #[test]
    fn a_client_that_was_not_answered_yet_hears_the_next_server() {
        let mut asked = Asked::default();
        asked.says(INITIALIZE);
        asked.says(CALL);
        let answers = String::from_utf8(asked.give_up("gone")).unwrap();
        assert_eq!(answers.lines().count(), 1, "{answers}");
        assert_eq!(asked.introduce(), INITIALIZE);
        assert!(asked.hears(b"{\"id\":0,\"result\":{}}\n"));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut asked = Asked::default();
        for id in 0..2 * REQUESTS {
            asked.says(format!("{{\"id\":{id},\"method\":\"a\"}}\n").as_bytes());
        }
        assert_eq!(asked.open.len(), REQUESTS);
    }
}
