//! Jobs for models, over the Model Context Protocol.

use std::time::Duration;

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
