//! The search of one file, piece by piece.

use backlot_sdk::{Stopped, Stream, Task};
use grep_regex::RegexMatcher;
use grep_searcher::{Searcher, SearcherBuilder, Sink, SinkMatch};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// How much is searched between two looks at whether to go on. It takes about
/// as long as the SDK lets a turn last.
const PIECE: usize = 256 << 10;

/// Above this a "line" is data that nobody reads, and would fill the memory.
const LONGEST_LINE: usize = 16 << 20;

/// As much of a file as git looks at to tell binary files from text.
const HEAD: usize = 8000;

/// A search over many files with a bound on the matching lines of all of them.
pub(crate) struct Search<'m> {
    matcher: &'m RegexMatcher,
    searcher: Searcher,
    matches_left: u64,
}

impl<'m> Search<'m> {
    pub(crate) fn new(matcher: &'m RegexMatcher, max_matches: u64) -> Self {
        Self {
            matcher,
            searcher: SearcherBuilder::new().bom_sniffing(false).build(),
            matches_left: max_matches,
        }
    }

    /// Writes the matching lines of a file and returns their number. A binary
    /// file has none.
    pub(crate) async fn file(
        &mut self,
        path: &Path,
        task: &Task<Stream>,
    ) -> Result<io::Result<u64>, Stopped> {
        let mut pieces = match File::open(path) {
            Ok(file) => Pieces::new(file),
            Err(error) => return Ok(Err(about(path, error))),
        };
        let before = self.matches_left;
        let mut found = Vec::new();
        while self.matches_left > 0 {
            match pieces.next() {
                Ok(Some(piece)) => {
                    found.clear();
                    if let Err(error) = self.piece(path, piece, &mut found) {
                        return Ok(Err(about(path, error)));
                    }
                    task.write_all(&found).await?;
                }
                Ok(None) => break,
                Err(error) => return Ok(Err(about(path, error))),
            }
            task.checkpoint().await?;
        }
        Ok(Ok(before - self.matches_left))
    }

    fn piece(&mut self, path: &Path, piece: Piece<'_>, found: &mut Vec<u8>) -> io::Result<()> {
        let lines =
            Lines { path, before: piece.lines_before, matches_left: &mut self.matches_left, found };
        self.searcher.search_slice(self.matcher, piece.bytes, lines)
    }
}

/// Whole lines from the middle of a file.
struct Piece<'a> {
    bytes: &'a [u8],
    lines_before: u64,
}

/// A file in pieces that end where a line ends.
struct Pieces<R> {
    source: R,
    buffer: Vec<u8>,
    /// How much of the buffer was handed out by the last call.
    used: usize,
    lines: u64,
    begun: bool,
}

impl<R: Read> Pieces<R> {
    fn new(source: R) -> Self {
        Self { source, buffer: Vec::new(), used: 0, lines: 0, begun: false }
    }

    /// Returns the next piece; none after the last one and for a binary file.
    fn next(&mut self) -> io::Result<Option<Piece<'_>>> {
        let used = &self.buffer[..self.used];
        self.lines += used.iter().filter(|&&byte| byte == b'\n').count() as u64;
        self.buffer.drain(..self.used);
        self.used = 0;
        loop {
            let more = PIECE as u64;
            let at_end = self.source.by_ref().take(more).read_to_end(&mut self.buffer)? < PIECE;
            let head = &self.buffer[..self.buffer.len().min(HEAD)];
            if !self.begun && head.contains(&0) {
                return Ok(None);
            }
            self.begun = true;
            self.used = match self.buffer.iter().rposition(|&byte| byte == b'\n') {
                _ if at_end => self.buffer.len(),
                Some(line_end) => line_end + 1,
                None if self.buffer.len() > LONGEST_LINE => {
                    let line = self.lines + 1;
                    let most = LONGEST_LINE >> 20;
                    return Err(io::Error::other(format!("line {line} is over {most} MiB long")));
                }
                None => continue,
            };
            return Ok((self.used > 0)
                .then_some(Piece { bytes: &self.buffer[..self.used], lines_before: self.lines }));
        }
    }
}

/// Formats matching lines as `path:line:text`.
struct Lines<'a> {
    path: &'a Path,
    before: u64,
    matches_left: &'a mut u64,
    found: &'a mut Vec<u8>,
}

impl Sink for Lines<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, line: &SinkMatch<'_>) -> io::Result<bool> {
        let number = self.before + line.line_number().unwrap_or(1);
        self.found.extend(self.path.as_os_str().as_encoded_bytes());
        self.found.extend(format!(":{number}:").bytes());
        self.found.extend(line.bytes());
        if !line.bytes().ends_with(b"\n") {
            self.found.push(b'\n');
        }
        *self.matches_left -= 1;
        Ok(*self.matches_left > 0)
    }
}

/// Adds to an error which file it is about.
fn about(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(text: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let mut pieces = Pieces::new(text);
        let mut all = Vec::new();
        while let Some(piece) = pieces.next().expect("reads") {
            all.push((piece.lines_before, piece.bytes.to_vec()));
        }
        all
    }

    #[test]
    fn pieces_end_with_lines_and_know_their_place() {
        let text: Vec<u8> = (0..100_000).flat_map(|n| format!("line {n}\n").into_bytes()).collect();
        let pieces = pieces(&text);
        assert!(pieces.len() > 3);
        for (before, bytes) in &pieces {
            assert!(bytes.starts_with(format!("line {before}\n").as_bytes()));
            assert!(bytes.ends_with(b"\n"));
        }
        let together: Vec<u8> = pieces.into_iter().flat_map(|(_, bytes)| bytes).collect();
        assert_eq!(together, text);
    }

    #[test]
    fn the_last_line_needs_no_end() {
        assert_eq!(pieces(b"a\nb"), [(0, b"a\nb".to_vec())]);
        assert_eq!(pieces(b""), []);
    }

    #[test]
    fn a_zero_byte_in_the_head_makes_a_file_binary() {
        assert_eq!(pieces(b"text\nand \0"), []);
        let mut late = vec![b'x'; HEAD];
        late.push(0);
        assert_eq!(pieces(&late).len(), 1);
    }

    #[test]
    fn a_line_without_end_is_an_error_in_bounded_memory() {
        let mut pieces = Pieces::new(io::repeat(b'x'));
        let error = pieces.next().err().map(|error| error.to_string());
        assert_eq!(error.as_deref(), Some("line 1 is over 16 MiB long"));
    }
}
