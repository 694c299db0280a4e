//! The reading side of what a job's producers wrote.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{
    Part, Stream,
    segment::{self, Header, Next, Segment},
};

/// How often segments that were there a moment ago may be gone when they are opened.
/// Each time, a writer must have filled one.
const TRIES: usize = 8;

/// Bytes that were written together, or what is left of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// How many bytes of its part were before it.
    pub offset: u64,
    /// How many bytes are gone that would have been between the one before and this.
    pub dropped: u64,
    /// The number of the run that wrote it.
    pub run: u32,
    /// Where it was written to.
    pub stream: Stream,
    /// When, in milliseconds of Unix time.
    pub time_ms: u64,
    /// The bytes. There are none if all this tells is what was dropped.
    pub bytes: Vec<u8>,
}

/// What was read, and where to go on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Portion {
    /// The pieces, in order.
    pub pieces: Vec<Piece>,
    /// The offset after the last of them, to read from next.
    pub next: u64,
}

/// Reads what was recorded for a job, also while another process goes on recording.
///
/// Reading from where the last portion ended costs what is new; from elsewhere, a
/// segment may have to be gone through.
#[derive(Debug)]
pub struct Recording {
    folder: PathBuf,
    output: Cursor,
    log: Cursor,
}

impl Recording {
    /// Returns the recording in a job's folder. Nothing is touched before it is read.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        let cursor = |part| Cursor { part, passed: 0, segment: None };
        Self { folder: folder.into(), output: cursor(Part::Output), log: cursor(Part::Log) }
    }

    /// Returns what there is of a part from an offset on, at most that many bytes.
    ///
    /// Only the first piece is ever cut to fit: others that do not are left for the next
    /// time. Where nothing was recorded, or the folder is gone, there is nothing.
    ///
    /// # Errors
    ///
    /// When a file cannot be read. What is damaged is no error, but dropped.
    pub fn read(&mut self, part: Part, after: u64, max_bytes: usize) -> io::Result<Portion> {
        let cursor = match part {
            Part::Output => &mut self.output,
            Part::Log => &mut self.log,
        };
        let mut portion = Portion { pieces: Vec::new(), next: after };
        cursor.seek(&self.folder, after)?;
        let mut room = max_bytes;
        while room > 0 {
            let Some((piece, is_whole)) = cursor.piece(&self.folder, portion.next, room)? else {
                break;
            };
            if !is_whole && !portion.pieces.is_empty() {
                break;
            }
            room -= piece.bytes.len();
            portion.next = piece.offset + piece.bytes.len() as u64;
            portion.pieces.push(piece);
            if !is_whole {
                break;
            }
        }
        cursor.rest();
        Ok(portion)
    }

    /// Returns the offset after the newest byte of a part.
    ///
    /// # Errors
    ///
    /// When a file cannot be read.
    pub fn end(&self, part: Part) -> io::Result<u64> {
        let mut cursor = Cursor { part, passed: 0, segment: None };
        // The newest segment begins before that.
        cursor.seek(&self.folder, u64::MAX)?;
        cursor.piece(&self.folder, u64::MAX, 0)?;
        Ok(cursor.passed)
    }

    /// Returns how many bytes the files have.
    ///
    /// # Errors
    ///
    /// When they cannot be looked at.
    pub fn size(&self) -> io::Result<u64> {
        let mut size = 0;
        for part in Part::ALL {
            for number in segment::numbers(&self.folder, part)? {
                match self.folder.join(part.file(number)).symlink_metadata() {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    about => size += about?.len(),
                }
            }
        }
        Ok(size)
    }
}

/// Where a part is read.
#[derive(Debug)]
struct Cursor {
    part: Part,
    /// The offset after the last frame that was passed.
    passed: u64,
    segment: Option<Segment>,
}

impl Cursor {
    /// Goes to the newest segment that begins at or before an offset, or else to the
    /// oldest, unless it is on the way already.
    fn seek(&mut self, folder: &Path, offset: u64) -> io::Result<()> {
        if self.segment.is_some() && self.passed <= offset {
            return Ok(());
        }
        self.segment = None;
        self.passed = 0;
        for _ in 0..TRIES {
            let numbers = segment::numbers(folder, self.part)?;
            for number in numbers.iter().rev() {
                let Some(mut segment) = Segment::open(folder, self.part, *number)? else {
                    continue;
                };
                let first = first_offset(&mut segment)?;
                // One that has not begun is better than none, and worse than an older one.
                if first.is_some() || self.segment.is_none() {
                    self.segment = Some(segment);
                }
                if let Some(first) = first.filter(|first| *first <= offset) {
                    self.passed = first;
                    return Ok(());
                }
            }
            if self.segment.is_some() || numbers.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Returns the next piece that has something behind an offset, cut to that many bytes, and
    /// whether it is whole. One that is not stays the next.
    fn piece(
        &mut self,
        folder: &Path,
        after: u64,
        room: usize,
    ) -> io::Result<Option<(Piece, bool)>> {
        loop {
            let Some(segment) = &mut self.segment else { return Ok(None) };
            let (header, payload) = match segment.next()? {
                Next::Frame(header, payload) => (header, payload),
                Next::Damage => continue,
                Next::Nothing => match self.go_on(folder)? {
                    true => continue,
                    false => return Ok(None),
                },
            };
            let offset = header.offset.max(after);
            let dropped = offset - after;
            let skipped = usize::try_from(offset - header.offset).unwrap_or(usize::MAX);
            let rest = payload.get(skipped..).unwrap_or_default();
            let bytes = rest[..rest.len().min(room)].to_vec();
            let is_whole = bytes.len() == rest.len();
            let is_news = dropped > 0 || !bytes.is_empty();
            if is_whole {
                segment.pass(&header);
                self.passed = self.passed.max(header.end());
            }
            if is_news {
                let Header { run, stream, time_ms, .. } = header;
                let piece = Piece { offset, dropped, run, stream, time_ms, bytes };
                return Ok(Some((piece, is_whole)));
            }
        }
    }
    /// Goes to the segment after this one, if there is nothing to come in this.
    fn go_on(&mut self, folder: &Path) -> io::Result<bool> {
        let Some(segment) = &mut self.segment else { return Ok(false) };
        let mut later = Segment::open(folder, self.part, segment.number + 1)?;
        if later.is_none() && segment.is_removed()? {
            // A writer has filled more than one since.
            for number in segment::numbers(folder, self.part)? {
                if number > segment.number && later.is_none() {
                    later = Segment::open(folder, self.part, number)?;
                }
            }
        }
        let Some(later) = later else { return Ok(false) };
        // Now it is as long as it will ever be, and may be longer than it was.
        if let Next::Nothing = segment.next()? {
            self.segment = Some(later);
        }
        Ok(true)
    }

    fn rest(&mut self) {
        if let Some(segment) = &mut self.segment {
            segment.rest();
        }
    }
}

/// Returns the offset of the first frame that is whole, if there is one.
fn first_offset(segment: &mut Segment) -> io::Result<Option<u64>> {
    loop {
        match segment.next()? {
            Next::Frame(header, _) => return Ok(Some(header.offset)),
            Next::Damage => {}
            Next::Nothing => return Ok(None),
        }
    }
}
