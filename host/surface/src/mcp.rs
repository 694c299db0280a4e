//! Jobs for models, over the Model Context Protocol.
//!
//! A model has four verbs: start, look, retry, stop. What is started is a parameter of the
//! first; kinds that are exposed are tools of their own besides. Whatever a call answers,
//! what its session is owed comes with it, and is settled once the answer was handed over:
//! written to the stream, or sent as the body of a response. A crash between the two tells
//! the same again, under the same delivery ids.
//!
//! One server speaks the revisions with `initialize` and the one without; what differs
//! between them is how the person is asked (`asking`), tasks (`tasks`), and how a client
//! hears of changed tools (`changes`).

mod answer;
mod arguments;
mod asking;
mod changes;
mod foreground;
mod http;
mod kinds;
mod lines;
mod logging;
mod message;
mod output;
mod server;
mod tasks;
mod told;
mod tools;
mod verbs;
mod who;

use std::time::Duration;

pub use self::{http::router, lines::serve_stream, told::Claims};

/// How the host is shown to models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The kinds that are tools of their own: names, or what they begin with and a `*`.
    pub expose: Vec<String>,
    /// How long a call of such a tool is waited for before its work goes on in the
    /// background.
    pub foreground: Duration,
}

impl Default for Options {
    fn default() -> Self {
        // Many clients give up after a minute; a third of it leaves room for what is slow.
        Self { expose: Vec::new(), foreground: Duration::from_secs(20) }
    }
}

impl Options {
    /// Tells whether kinds of that name are tools of their own.
    fn exposes(&self, kind: &str) -> bool {
        self.expose.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(beginning) => kind.starts_with(beginning),
            None => kind == pattern,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_exposed() {
        let exposes = |patterns: &[&str], kind| {
            let expose = patterns.iter().map(|it| (*it).to_owned()).collect();
            Options { expose, ..Options::default() }.exposes(kind)
        };
        assert!(!exposes(&[], "grep"));
        assert!(exposes(&["grep"], "grep"));
        assert!(!exposes(&["grep"], "grep-all"));
        assert!(exposes(&["find", "grep*"], "grep-all"));
        assert!(exposes(&["*"], "any"));
    }
}
