//! The manifest's text.

use std::fmt::Write;

/// A final output crosses the boundary in one piece; this keeps it within what
/// a host is ready to take. It is room for some 80,000 files.
const BOUND: usize = 8 << 20;

/// The digest in hexadecimal digits, two spaces and a line end.
const BESIDES_PATH: usize = 64 + 2 + 1;

/// A manifest in the making.
#[derive(Default)]
pub(crate) struct Manifest {
    lines: String,
    files: usize,
    skipped: String,
    skips: usize,
    /// How long the manifest will be with everything that was announced.
    expected: usize,
}

impl Manifest {
    /// Announces a line for `path`, or says why there is no room for it.
    pub(crate) fn make_room(&mut self, path: &str) -> Result<(), String> {
        self.expected += BESIDES_PATH + path.len();
        match self.expected <= BOUND {
            true => Ok(()),
            false => Err(format!(
                "the manifest would be longer than {} MiB; start one for each part of the tree",
                BOUND >> 20
            )),
        }
    }

    /// Adds the line of a file.
    pub(crate) fn add(&mut self, digest: &str, path: &str) {
        let (mark, path) = escape(path);
        // Writing to a `String` cannot fail.
        let _ = writeln!(self.lines, "{mark}{digest}  {path}");
        self.files += 1;
    }

    /// Adds a comment about what the manifest leaves out.
    pub(crate) fn skip(&mut self, what: &str, path: &str) {
        let (_, path) = escape(path);
        let _ = writeln!(self.skipped, "# skipped, {what}: {path}");
        self.skips += 1;
    }

    /// Returns one line that says what the manifest holds.
    pub(crate) fn summary(&self) -> String {
        let s = if self.files == 1 { "" } else { "s" };
        let files = format!("{} file{s}", self.files);
        match self.skips {
            0 => files,
            skips => format!("{files}, {skips} skipped"),
        }
    }

    pub(crate) fn into_text(self) -> String {
        self.lines + &self.skipped
    }
}

/// Returns the path as `sha256sum` writes it, and the mark that goes before a
/// line whose path is escaped.
fn escape(path: &str) -> (&'static str, String) {
    let escaped = path.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r");
    (if escaped == path { "" } else { "\\" }, escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_sha256sum() {
        let mut manifest = Manifest::default();
        manifest.add("ab", "/src/a file");
        manifest.add("cd", "/src/a\nb\\c");
        manifest.skip("a symbolic link", "/src/l");
        assert_eq!(manifest.summary(), "2 files, 1 skipped");
        assert_eq!(
            manifest.into_text(),
            "ab  /src/a file\n\\cd  /src/a\\nb\\\\c\n# skipped, a symbolic link: /src/l\n"
        );
    }

    #[test]
    fn a_manifest_has_a_bound() {
        let mut manifest = Manifest::default();
        let path = "x".repeat(1 << 20);
        let fitting = (0..10).take_while(|_| manifest.make_room(&path).is_ok()).count();
        assert_eq!(fitting, 7);
    }
}
