//! What people read: errors, final lines, and writes that survive a closed pipe.

use std::{
    error::Error,
    io::{self, Write as _},
    time::Duration,
};

use backlot_registry::Snapshot;
use serde::Serialize;

/// What became of a write to stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "nobody reads on when the pipe is closed"]
pub(crate) enum Written {
    Whole,
    /// The reader is gone.
    Closed,
}

impl Written {
    pub(crate) fn is_closed(self) -> bool {
        self == Self::Closed
    }

    /// Tells a closed pipe from a write that went wrong.
    pub(crate) fn of(result: io::Result<()>) -> io::Result<Self> {
        match result {
            Ok(()) => Ok(Self::Whole),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Self::Closed),
            Err(error) => Err(error),
        }
    }
}

/// Writes to stdout and flushes.
pub(crate) fn out(text: &str) -> io::Result<Written> {
    let mut stdout = io::stdout().lock();
    Written::of(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
}

/// Prints one JSON document in one line.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<Written> {
    Ok(out(&format!("{}\n", serde_json::to_string(value)?))?)
}

/// Prints an error of the program in one line on stderr.
pub(crate) fn error(error: &anyhow::Error) {
    note(&format!("backlot: {error:#}"));
}

/// Prints a refusal in one line on stderr.
pub(crate) fn refusal(error: &dyn Error) {
    note(&format!("backlot: {}", chain(error)));
}

/// Prints a line on stderr. Nobody may be reading it.
pub(crate) fn note(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Returns the error in one line, with the causes that its text leaves out.
pub(crate) fn chain(error: &(impl Error + ?Sized)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    one_line(&text)
}

/// Returns the text with line breaks and other control characters as spaces, so
/// that nothing a guest says can move a person's cursor.
pub(crate) fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Returns the line that ends a run: `grep-1 completed in 0.32s: 12 matches`.
pub(crate) fn ending(task: &Snapshot) -> String {
    let took = Duration::from_millis(
        task.finished_at_ms.unwrap_or(task.started_at_ms).saturating_sub(task.started_at_ms),
    );
    let mut line = format!("{} {} in {}", task.id, task.status, seconds(took));
    if let Some(detail) = task.detail.as_deref().filter(|detail| !detail.is_empty()) {
        line = format!("{line}: {}", one_line(detail));
    }
    if task.dropped_bytes > 0 {
        line = format!("{line} ({} bytes of output were dropped)", task.dropped_bytes);
    }
    line
}

fn seconds(time: Duration) -> String {
    format!("{:.2}s", time.as_secs_f64())
}
