//! How a segment file is laid out, and how it is read.
//!
//! It begins with a mark and a random key, then come frames: a header and up to 64 KiB
//! of payload. Header and payload have checksums that depend on the key and on where in
//! the file the frame is. So what was torn or damaged is recognised, the frames behind
//! it are found again, and nothing that a producer writes can pass for a frame.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::Path,
};

use rustix::fs::OFlags;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Part, Stream};

/// What a segment begins with: the version of the format, and the key.
pub(super) const HEAD: usize = MARK.len() + 8;
const MARK: &[u8; 8] = b"BLOUT\x00\x00\x01";
/// The header of a frame, in bytes.
pub(super) const HEADER: usize = 33;
/// How much payload a frame has at most: enough that headers do not show, and little
/// enough to be held in memory whole.
pub(super) const PAYLOAD: usize = 64 << 10;
/// How much is read at a time: a few of the largest frames.
const WINDOW: u64 = 256 << 10;

/// What stands before the payload of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) len: usize,
    pub(super) run: u32,
    /// How many bytes of its part were before the payload.
    pub(super) offset: u64,
    pub(super) time_ms: u64,
    pub(super) stream: Stream,
}

impl Header {
    /// Returns the offset after the payload.
    pub(super) fn end(&self) -> u64 {
        self.offset.saturating_add(self.len as u64)
    }

    /// Returns how many bytes the frame has.
    pub(super) fn frame(&self) -> u64 {
        (HEADER + self.len) as u64
    }

    /// Appends the frame to bytes that go to that place in a file.
    pub(super) fn write(&self, key: u64, place: u64, payload: &[u8], to: &mut Vec<u8>) {
        let start = to.len();
        // The length is at most `PAYLOAD`.
        to.extend_from_slice(&u32::try_from(self.len).unwrap_or(u32::MAX).to_le_bytes());
        to.extend_from_slice(&self.run.to_le_bytes());
        to.extend_from_slice(&self.offset.to_le_bytes());
        to.extend_from_slice(&self.time_ms.to_le_bytes());
        to.push(self.stream as u8);
        to.extend_from_slice(&checksum(payload, key, place));
        let sum = checksum(&to[start..], key, place);
        to.extend_from_slice(&sum);
        to.extend_from_slice(payload);
    }

    /// Returns the header that bytes begin with, and the checksum of its payload.
    fn read(bytes: &[u8], key: u64, place: u64) -> Option<(Self, [u8; 4])> {
        let (header, sum) = bytes.get(..HEADER)?.split_at(HEADER - 4);
        if sum != checksum(header, key, place) {
            return None;
        }
        let header = Self {
            len: usize::try_from(u32::from_le_bytes(array(header, 0)?)).ok()?,
            run: u32::from_le_bytes(array(header, 4)?),
            offset: u64::from_le_bytes(array(header, 8)?),
            time_ms: u64::from_le_bytes(array(header, 16)?),
            stream: *Stream::ALL.get(usize::from(header[24]))?,
        };
        (header.len <= PAYLOAD).then_some((header, array(bytes, 25)?))
    }
}

/// Returns what a segment with that key begins with.
pub(super) fn head(key: u64) -> Vec<u8> {
    [*MARK, key.to_le_bytes()].concat()
}

fn array<const N: usize>(bytes: &[u8], from: usize) -> Option<[u8; N]> {
    bytes.get(from..)?.first_chunk().copied()
}

fn checksum(bytes: &[u8], key: u64, place: u64) -> [u8; 4] {
    let [a, b, c, d, ..] = xxh3_64_with_seed(bytes, key.wrapping_add(place)).to_le_bytes();
    [a, b, c, d]
}

/// Returns the numbers of a part's segments, the oldest first. None where there is no
/// folder.
pub(super) fn numbers(folder: &Path, part: Part) -> io::Result<Vec<u64>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut numbers = Vec::new();
    for entry in entries {
        numbers.extend(entry?.file_name().to_str().and_then(|name| part.number(name)));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// A segment that is read, from one frame to the next.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) number: u64,
    file: File,
    key: Option<u64>,
    /// Where the next frame begins.
    place: u64,
    /// Bytes of the file, from `window_place` on.
    window: Vec<u8>,
    window_place: u64,
}

/// What comes next in a segment.
#[derive(Debug)]
pub(super) enum Next<'a> {
    /// A frame that is whole.
    Frame(Header, &'a [u8]),
    /// Something damaged, with frames behind it; they have been gone to.
    Damage,
    /// Nothing that is whole, so far.
    Nothing,
}

/// What is known about a segment before its first frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Begun {
    Well,
    /// Its first bytes are not all there.
    NotYet,
    /// It is no segment, or of a version that is not known.
    Foreign,
}

impl Segment {
    /// Opens a segment, if it is there.
    pub(super) fn open(folder: &Path, part: Part, number: u64) -> io::Result<Option<Self>> {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits().cast_signed())
            .open(folder.join(part.file(number)));
        let file = match opened {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let place = HEAD as u64;
        let window = Vec::new();
        Ok(Some(Self { number, file, key: None, place, window, window_place: place }))
    }

    /// Returns whether the segment has begun, and how.
    pub(super) fn begun(&mut self) -> io::Result<Begun> {
        if self.key.is_some() {
            return Ok(Begun::Well);
        }
        let mut head = [0; HEAD];
        match self.file.read_exact_at(&mut head, 0) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(Begun::NotYet),
            other => other?,
        }
        if !head.starts_with(MARK) {
            return Ok(Begun::Foreign);
        }
        self.key = array(&head, MARK.len()).map(u64::from_le_bytes);
        Ok(Begun::Well)
    }

    /// Returns the key, once the segment has begun.
    pub(super) fn key(&self) -> Option<u64> {
        self.key
    }

    /// Returns where the next frame begins, or is to begin.
    pub(super) fn place(&self) -> u64 {
        self.place
    }

    /// Tells whether the file was removed since it was opened.
    pub(super) fn is_removed(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.nlink() == 0)
    }

    /// Goes on behind a frame.
    pub(super) fn pass(&mut self, header: &Header) {
        self.place += header.frame();
    }

    /// Forgets what was read ahead.
    pub(super) fn rest(&mut self) {
        self.window = Vec::new();
    }

    /// Returns what comes next. A frame stays the next one until it is passed.
    pub(super) fn next(&mut self) -> io::Result<Next<'_>> {
        if self.begun()? != Begun::Well {
            return Ok(Next::Nothing);
        }
        let mut found = self.look();
        if !matches!(found, Look::Frame(_)) {
            // More may be there than was when this was read.
            self.fill()?;
            found = self.look();
        }
        match found {
            Look::Frame(header) => {
                let from = self.ahead() + HEADER;
                Ok(Next::Frame(header, &self.window[from..from + header.len]))
            }
            Look::Part => Ok(Next::Nothing),
            Look::Damage(header) => {
                // The header tells where the next frame is, if there is one to tell.
                let after = self.place + header.map_or(1, |header| header.frame());
                Ok(match self.find_frame(after)? {
                    Some(place) => {
                        self.place = place;
                        Next::Damage
                    }
                    None => Next::Nothing,
                })
            }
        }
    }

    /// Returns the header of the next frame, also if its payload is not whole.
    pub(super) fn header(&self) -> Option<Header> {
        let (header, _) = Header::read(self.window.get(self.ahead()..)?, self.key?, self.place)?;
        Some(header)
    }

    fn look(&self) -> Look {
        let bytes = self.window.get(self.ahead()..).unwrap_or_default();
        let Some(key) = self.key.filter(|_| bytes.len() >= HEADER) else { return Look::Part };
        match Header::read(bytes, key, self.place) {
            None => Look::Damage(None),
            Some((header, sum)) => match bytes.get(HEADER..HEADER + header.len) {
                None => Look::Part,
                Some(payload) if checksum(payload, key, self.place) == sum => Look::Frame(header),
                Some(_) => Look::Damage(Some(header)),
            },
        }
    }

    /// Returns where in the window the next frame is.
    fn ahead(&self) -> usize {
        let ahead = self.place.checked_sub(self.window_place);
        ahead.and_then(|ahead| usize::try_from(ahead).ok()).unwrap_or(usize::MAX)
    }

    /// Reads from the next frame on.
    fn fill(&mut self) -> io::Result<()> {
        self.window_place = self.place;
        self.window = self.read(self.place)?;
        Ok(())
    }

    /// Returns what is there from a place on, up to [`WINDOW`] bytes.
    fn read(&self, place: u64) -> io::Result<Vec<u8>> {
        let there = self.file.metadata()?.len().saturating_sub(place).min(WINDOW);
        let mut bytes = vec![0; usize::try_from(there).unwrap_or(0)];
        let mut count = 0;
        while count < bytes.len() {
            match self.file.read_at(&mut bytes[count..], place + count as u64) {
                Ok(0) => break,
                Ok(more) => count += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(count);
        Ok(bytes)
    }

    /// Returns the first place from that one on which a frame begins at.
    fn find_frame(&self, mut place: u64) -> io::Result<Option<u64>> {
        let Some(key) = self.key else { return Ok(None) };
        loop {
            let bytes = self.read(place)?;
            let Some(last) = bytes.len().checked_sub(HEADER) else { return Ok(None) };
            let is_frame =
                |at: &usize| Header::read(&bytes[*at..], key, place + *at as u64).is_some();
            if let Some(at) = (0..=last).find(is_frame) {
                return Ok(Some(place + at as u64));
            }
            place += last as u64 + 1;
        }
    }
}

enum Look {
    Frame(Header),
    /// The rest may be about to come.
    Part,
    /// It is not what was written; this is its header, if that is.
    Damage(Option<Header>),
}
