//! Words of guests, made fit to be shown: one line, and not a long one.

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
