//! What is said of an ending, in a line.

use crate::job::{Ending, Report};

/// How much of a result a summary has, in characters: some lines of a terminal, and
/// little of what a model can take in.
const SUMMARY: usize = 400;

/// Returns the beginning of a result, or why there is none, without line breaks.
pub(crate) fn summary(report: &Report) -> String {
    let said = match report.ending {
        Ending::Completed => report.result.as_deref().filter(|it| !it.trim().is_empty()),
        Ending::Failed(_) | Ending::Cancelled => None,
    };
    let said = said.or(report.detail.as_deref()).unwrap_or(match report.ending {
        Ending::Completed => "completed",
        Ending::Failed(_) => "failed",
        Ending::Cancelled => "cancelled",
    });
    line(said, SUMMARY)
}

/// Returns what is said of a job that somebody stopped.
pub(crate) fn cancelled(why: Option<&str>) -> String {
    why.map_or_else(|| "cancelled".to_owned(), |why| line(why, SUMMARY))
}

/// Returns how a run ended, in a line.
pub(crate) fn outcome(report: &Report) -> String {
    let detail = report.detail.as_deref().map(|it| line(it, SUMMARY));
    let word = match report.ending {
        Ending::Completed => "completed",
        Ending::Failed(_) => "failed",
        Ending::Cancelled => "cancelled",
    };
    detail.map_or_else(|| word.to_owned(), |detail| format!("{word}: {detail}"))
}

/// Folds line breaks and control characters, and cuts what is longer.
pub(crate) fn line(text: &str, limit: usize) -> String {
    let mut line = String::new();
    // What begins with blanks, or has many in a row, has one of each.
    let mut length = 0;
    for word in text.split(|c: char| c.is_whitespace() || is_break(c)).filter(|it| !it.is_empty()) {
        if length > 0 {
            line.push(' ');
            length += 1;
        }
        for character in word.chars() {
            if length >= limit {
                line.push('…');
                return line;
            }
            line.push(character);
            length += 1;
        }
    }
    line
}

/// Cuts a text that is longer than so many bytes, on a character, and says so.
pub(crate) fn shorten(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let cut = text.floor_char_boundary(bytes);
    format!("{}\n[the other {} bytes are in its output]", &text[..cut], text.len() - cut)
}

/// Tells whether a terminal or a parser may take the character for the end of a line,
/// or for a command.
fn is_break(character: char) -> bool {
    character.is_control() || matches!(character, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Failure;

    fn report(ending: Ending, result: Option<&str>, detail: Option<&str>) -> Report {
        Report {
            ending,
            result: result.map(Into::into),
            detail: detail.map(Into::into),
            state: None,
            again_ms: None,
            told: false,
        }
    }

    #[test]
    fn a_summary_is_one_line() {
        assert_eq!(line("a\nb\r\n c\u{2028}d\u{1b}[2Je\0", 100), "a b c d [2Je");
        assert_eq!(line("ééé", 2), "éé…");
        assert_eq!(line("a b", 2), "a …");
    }

    #[test]
    fn a_summary_says_what_there_is_to_say() {
        let failed = Ending::Failed(Failure::Work);
        let said = |ending, result, detail| summary(&report(ending, result, detail));
        assert_eq!(said(Ending::Completed, Some("4 files\n"), Some("done")), "4 files");
        assert_eq!(said(Ending::Completed, Some(" \n"), Some("done")), "done");
        assert_eq!(said(Ending::Completed, None, None), "completed");
        assert_eq!(said(failed, Some("half"), Some("exit code: 3")), "exit code: 3");
        assert_eq!(outcome(&report(failed, None, Some("a\nb"))), "failed: a b");
    }
}
