//! Keeps what people see of a task to one line of bounded length.

use std::borrow::Cow;

/// The longest line that is shown, in bytes: a long command still fits.
const LINE_BYTES: usize = 1 << 10;

/// What stands for the part of a line that was cut off.
const ELLIPSIS: &str = "…";

/// Says whether a character cannot stand in a line.
pub(crate) fn breaks_line(character: char) -> bool {
    character.is_control() || matches!(character, '\u{2028}' | '\u{2029}')
}

/// Returns the line, cut on a character if it is too long.
pub(crate) fn cut(line: &str) -> Cow<'_, str> {
    if line.len() <= LINE_BYTES {
        return Cow::Borrowed(line);
    }
    let end = line.floor_char_boundary(LINE_BYTES - ELLIPSIS.len());
    Cow::Owned(format!("{}{ELLIPSIS}", &line[..end]))
}

/// Returns the text as one line: cut, and with spaces for what breaks lines.
pub(crate) fn one_line(text: &str) -> String {
    cut(text).replace(breaks_line, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r2_a_long_line_is_cut_on_a_character() {
        assert_eq!(cut(&"a".repeat(1024)), "a".repeat(1024));
        assert_eq!(cut(&"a".repeat(1025)), "a".repeat(1021) + "…");
        for lead in 0..4 {
            let line = "a".repeat(lead) + &"🦀".repeat(300);
            let cut = cut(&line);
            assert!(cut.len() <= 1024 && cut.len() > 1016, "{}", cut.len());
            assert!(line.starts_with(cut.strip_suffix('…').unwrap()));
        }
    }

    #[test]
    fn one_line_has_no_breaks() {
        assert_eq!(one_line("a\nb\r\tc\u{7f}\u{85}\u{2028}é"), "a b  c   é");
    }
}
