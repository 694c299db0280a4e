//! Words of guests, made fit to be shown: one line, and not a long one.

use std::error::Error;

/// How much of a guest's words is shown, in bytes.
const LINE_BYTES: usize = 1 << 10;

/// Returns the text as one line of at most a kilobyte.
pub(crate) fn line(text: &str) -> String {
    let text = text.trim();
    let end = text.floor_char_boundary(LINE_BYTES);
    let mut line: String =
        text[..end].chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if end < text.len() {
        line.push('…');
    }
    line
}

/// Returns an error in one line, with the causes that its text leaves out.
pub fn chain(error: &(impl Error + ?Sized)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    line(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_one_short_line() {
        assert_eq!(line(" a\nb\x1b[2J\u{9b}c "), "a b [2J c");
        let long = "€".repeat(1000);
        assert_eq!(line(&long), "€".repeat(341) + "…");
    }
}
