//! What people read: errors and final lines, each one line of bounded length.

use std::{error::Error, time::Duration};

use backlot_registry::Snapshot;

/// The longest line that is shown, in bytes: a long path and a reason fit.
pub(crate) const LINE_BYTES: usize = 1 << 10;

/// What stands for the part of a line that was cut off.
const ELLIPSIS: &str = "…";

/// Returns the line that tells of an error.
pub(crate) fn error(error: &(impl Error + ?Sized)) -> String {
    complaint(&chain(error))
}

/// Returns the line that tells of something that is wrong.
pub(crate) fn complaint(what: &str) -> String {
    format!("backlot: {}", one_line(what))
}

/// Returns the error in one line, with the causes that its text leaves out.
pub(crate) fn chain(error: &(impl Error + ?Sized)) -> String {
    one_line(&backlot_wasm::chain(error))
}

/// Returns the text as one line that is safe to show, cut where it is very long.
pub(crate) fn one_line(text: &str) -> String {
    line_of(LINE_BYTES, text)
}

/// Returns the text as one line of at most that many bytes. Line breaks, other
/// control characters and what turns the direction of text become spaces, so
/// that nothing a guest says can move a person's cursor or pass for another text.
pub(crate) fn line_of(most: usize, text: &str) -> String {
    cut(most, text).replace(misleads, " ")
}

/// Returns the text, cut on a character to at most that many bytes.
pub(crate) fn cut(most: usize, text: &str) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(most.saturating_sub(ELLIPSIS.len()));
    format!("{}{ELLIPSIS}", &text[..end])
}

fn misleads(character: char) -> bool {
    character.is_control()
        || matches!(character,
            // Line and paragraph separators.
            '\u{2028}' | '\u{2029}'
            // Marks, embeddings, overrides and isolates of direction.
            | '\u{061C}' | '\u{200E}' | '\u{200F}'
            | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

/// How much of what a task wrote was never shown, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unshown {
    pub(crate) output: u64,
    pub(crate) log: u64,
}

/// Returns the line that ends a run: `grep-1 completed in 0.32s: 12 matches`.
pub(crate) fn ending(task: &Snapshot, unshown: Unshown) -> String {
    let took = Duration::from_millis(
        task.finished_at_ms.unwrap_or(task.started_at_ms).saturating_sub(task.started_at_ms),
    );
    let mut line = format!("{} {} in {:.2}s", task.id, task.status, took.as_secs_f64());
    if let Some(detail) = task.detail.as_deref().filter(|detail| !detail.is_empty()) {
        line = format!("{line}: {}", one_line(detail));
    }
    for (bytes, of) in [(unshown.output, "output"), (unshown.log, "the log")] {
        if bytes > 0 {
            line = format!("{line} ({bytes} bytes of {of} were dropped)");
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_moves_no_cursor_and_turns_no_text() {
        assert_eq!(one_line("a\nb\x1b[2Jc\u{9b}d\u{2028}é"), "a b [2Jc d é");
        assert_eq!(one_line("x\u{202e}y\u{200f}z\u{2066}€\u{61c}!"), "x y z € !");
    }

    #[test]
    fn a_long_line_is_cut_on_a_character() {
        assert_eq!(one_line(&"a".repeat(1024)), "a".repeat(1024));
        assert_eq!(one_line(&"a".repeat(1025)), "a".repeat(1021) + "…");
        let cut = one_line(&"🦀".repeat(300));
        assert!(cut.len() <= 1024 && cut.ends_with("🦀…"), "{cut}");
    }
}
