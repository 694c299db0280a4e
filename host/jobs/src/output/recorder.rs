//! The writing side of what a job's producers wrote.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::OFlags;

use super::{
    Part, Stream,
    segment::{self, Begun, HEAD, HEADER, Header, Next, PAYLOAD, Segment},
};

/// The smallest segment: room for a few lines. Below it, headers would be all there is.
const SEGMENT: u64 = 1 << 10;

/// How much of a job's output and log is kept, in bytes on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For output.
    pub output: u64,
    /// For the log.
    pub log: u64,
}

impl Limits {
    /// Returns limits that together are so many bytes, an eighth of them for the log.
    pub fn total(bytes: u64) -> Self {
        Self { output: bytes - bytes / 8, log: bytes / 8 }
    }
}

impl Default for Limits {
    /// Returns limits of 64 MiB together.
    fn default() -> Self {
        Self::total(64 << 20)
    }
}

/// Records what a job's producers write, in the job's folder.
///
/// A job has one at a time. It blocks on files, a write for each record of up to 64 KiB,
/// so it belongs on a thread that may block. Nothing is synced but by
/// [`Recorder::sync`].
#[derive(Debug)]
pub struct Recorder {
    folder: PathBuf,
    output: Track,
    log: Track,
    trouble: Option<io::Error>,
}

impl Recorder {
    /// Returns one that goes on where the last one of the job ended. It touches nothing
    /// before the first byte is appended.
    pub fn new(folder: impl Into<PathBuf>, limits: Limits) -> Self {
        let track = |part, bytes: u64| Track {
            part,
            segment_bytes: (bytes / 2).max(SEGMENT),
            written: 0,
            lost: 0,
            last: None,
            target: None,
        };
        Self {
            folder: folder.into(),
            output: track(Part::Output, limits.output),
            log: track(Part::Log, limits.log),
            trouble: None,
        }
    }

    /// Appends bytes to a stream, as written by the run of that number at that time.
    ///
    /// It always goes on: what cannot be written is lost, and shows as dropped to
    /// readers from the next record on that can be.
    pub fn append(&mut self, run: u32, stream: Stream, time_ms: u64, bytes: &[u8]) {
        let track = match stream.part() {
            Part::Output => &mut self.output,
            Part::Log => &mut self.log,
        };
        if !bytes.is_empty() {
            let appended = track.append(&self.folder, Mark { run, stream, time_ms }, bytes);
            self.told(appended);
        }
    }

    /// Counts bytes of a stream that never came here, so that readers miss them.
    pub fn skip(&mut self, run: u32, stream: Stream, time_ms: u64, bytes: u64) {
        let track = match stream.part() {
            Part::Output => &mut self.output,
            Part::Log => &mut self.log,
        };
        track.lost += bytes;
        track.last = Some(Mark { run, stream, time_ms });
    }

    /// Returns why what was appended last is lost, if it is.
    pub fn trouble(&self) -> Option<&io::Error> {
        self.trouble.as_ref()
    }

    /// Returns how many bytes are lost that readers are not told of yet.
    pub fn lost(&self) -> u64 {
        self.output.lost + self.log.lost
    }

    /// Returns the offset after the newest byte of a part, whether it was written or
    /// lost.
    ///
    /// # Errors
    ///
    /// When what was recorded before cannot be read.
    pub fn end(&mut self, part: Part) -> io::Result<u64> {
        let track = match part {
            Part::Output => &mut self.output,
            Part::Log => &mut self.log,
        };
        track.attach(&self.folder)?;
        Ok(track.end())
    }

    /// Closes the files until the next record is appended.
    pub fn rest(&mut self) {
        for track in [&mut self.output, &mut self.log] {
            if let Some(target) = &mut track.target {
                target.file = None;
            }
        }
    }

    /// Tells readers of what is lost, and returns once everything is on the disk.
    ///
    /// # Errors
    ///
    /// When it cannot be put there. What was lost is told later then.
    pub fn sync(&mut self) -> io::Result<()> {
        let told = self.tell_lost();
        let mut is_written = false;
        for track in [&mut self.output, &mut self.log] {
            if let Some(target) = track.target.as_mut().filter(|target| target.size > 0) {
                target.open(&self.folder, track.part)?.sync_all()?;
                is_written = true;
            }
        }
        // The names of the files are in the folder, and its own is in the one above.
        let folders = self.folder.ancestors().take(2).filter(|it| !it.as_os_str().is_empty());
        for folder in folders.filter(|_| is_written) {
            File::open(folder)?.sync_all()?;
        }
        told
    }

    fn tell_lost(&mut self) -> io::Result<()> {
        let output = self.output.tell_lost(&self.folder);
        let log = self.log.tell_lost(&self.folder);
        output.and(log)
    }

    fn told(&mut self, appended: io::Result<()>) {
        let folder = self.folder.display();
        match (&appended, &self.trouble) {
            (Err(error), None) => tracing::warn!(%folder, %error, "output cannot be recorded"),
            (Ok(()), Some(_)) => tracing::info!(%folder, "output is recorded again"),
            _ => {}
        }
        self.trouble = appended.err();
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // If it does not work now either, nobody is left to try again.
        let _ = self.tell_lost();
    }
}

/// Where a record is from.
#[derive(Clone, Copy, Debug)]
struct Mark {
    run: u32,
    stream: Stream,
    time_ms: u64,
}

/// One part of what is recorded.
#[derive(Debug)]
struct Track {
    part: Part,
    segment_bytes: u64,
    /// The offset after the newest byte that was written.
    written: u64,
    /// How many bytes after that one were not.
    lost: u64,
    /// Where the newest of them were from.
    last: Option<Mark>,
    /// What is written to, once it is known.
    target: Option<Target>,
}

/// The segment that is written to.
#[derive(Debug)]
struct Target {
    number: u64,
    key: u64,
    /// Where the next frame goes; 0 before the segment has begun.
    size: u64,
    file: Option<File>,
}

impl Track {
    fn end(&self) -> u64 {
        self.written + self.lost
    }

    fn append(&mut self, folder: &Path, mark: Mark, mut bytes: &[u8]) -> io::Result<()> {
        let room = self.segment_bytes - (HEAD + HEADER) as u64;
        let most = usize::try_from(room).unwrap_or(PAYLOAD).min(PAYLOAD);
        while !bytes.is_empty() {
            let (piece, rest) = bytes.split_at(bytes.len().min(most));
            if let Err(error) = self.write(folder, mark, piece) {
                self.lost += bytes.len() as u64;
                self.last = Some(mark);
                return Err(error);
            }
            bytes = rest;
        }
        Ok(())
    }

    /// Writes an empty frame behind what is lost, which readers miss then.
    fn tell_lost(&mut self, folder: &Path) -> io::Result<()> {
        match self.last {
            Some(mark) if self.lost > 0 => self.write(folder, mark, &[]),
            _ => Ok(()),
        }
    }

    fn write(&mut self, folder: &Path, mark: Mark, payload: &[u8]) -> io::Result<()> {
        self.attach(folder)?;
        let (part, offset) = (self.part, self.end());
        let Mark { run, stream, time_ms } = mark;
        let header = Header { len: payload.len(), run, offset, time_ms, stream };
        let target = self.with_room(folder, header.frame())?;
        let mut bytes = Vec::with_capacity(HEAD + HEADER + payload.len());
        if target.size == 0 {
            bytes.extend_from_slice(&segment::head(target.key));
        }
        let place = target.size + bytes.len() as u64;
        header.write(target.key, place, payload, &mut bytes);
        match target.write(folder, part, &bytes) {
            Ok(()) => {
                self.written = header.end();
                self.lost = 0;
                Ok(())
            }
            Err(error) => {
                if error.kind() == ErrorKind::NotFound {
                    // Somebody removed the file. The next record looks at what is there.
                    self.target = None;
                }
                Err(error)
            }
        }
    }

    /// Finds out where to go on, unless that is known.
    fn attach(&mut self, folder: &Path) -> io::Result<()> {
        if self.target.is_some() {
            return Ok(());
        }
        let numbers = segment::numbers(folder, self.part)?;
        let (old, mut kept) = numbers.split_at(numbers.len().saturating_sub(2));
        // A host that was killed may not have come to it.
        for number in old {
            fs::remove_file(folder.join(self.part.file(*number)))?;
        }
        let mut newest = None;
        while let Some((number, older)) = kept.split_last() {
            kept = older;
            let Some(mut segment) = Segment::open(folder, self.part, *number)? else { continue };
            let tail = read_tail(&mut segment)?;
            if newest.is_none() {
                let mut target = Target::of(&mut segment)?;
                target.cut(folder, self.part)?;
                newest = Some(target);
            }
            if let Some((whole, torn)) = tail {
                self.written = self.written.max(whole);
                if let Some(torn) = torn {
                    self.lost += torn.end().saturating_sub(self.written);
                    let Header { run, stream, time_ms, .. } = torn;
                    self.last = Some(Mark { run, stream, time_ms });
                }
                break;
            }
        }
        self.target = Some(newest.map_or_else(|| Target::new(0), Ok)?);
        Ok(())
    }

    /// Returns a segment that has room for a frame: the newest, or else a new one, for
    /// which the oldest goes.
    fn with_room(&mut self, folder: &Path, frame: u64) -> io::Result<&mut Target> {
        let mut target = match self.target.take() {
            Some(target) => target,
            None => Target::new(0)?,
        };
        if target.size.saturating_add(frame) > self.segment_bytes {
            // First it goes, so that there is room when the disk is full as well.
            let old = target.number.checked_sub(1).map(|number| self.part.file(number));
            match old.map_or(Ok(()), |old| fs::remove_file(folder.join(old))) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    self.target = Some(target);
                    return Err(error);
                }
                _ => target = Target::new(target.number + 1)?,
            }
        }
        Ok(self.target.insert(target))
    }
}

/// Goes behind the last whole frame of a segment. Returns the offset there, and the header
/// of what is torn behind it; `None` if there is neither.
fn read_tail(segment: &mut Segment) -> io::Result<Option<(u64, Option<Header>)>> {
    let mut whole = None;
    loop {
        match segment.next()? {
            Next::Frame(header, _) => {
                whole = Some(header.end());
                segment.pass(&header);
            }
            Next::Damage => {}
            Next::Nothing => break,
        }
    }
    let torn = segment.header();
    Ok(whole.or(torn.map(|torn| torn.offset)).map(|whole| (whole, torn)))
}

impl Target {
    fn new(number: u64) -> io::Result<Self> {
        let key = getrandom::u64().map_err(io::Error::other)?;
        Ok(Self { number, key, size: 0, file: None })
    }

    /// Returns a segment as one to go on with, from where it was read to.
    fn of(segment: &mut Segment) -> io::Result<Self> {
        let number = segment.number;
        match (segment.begun()?, segment.key()) {
            (Begun::Well, Some(key)) => Ok(Self { number, key, size: segment.place(), file: None }),
            (Begun::NotYet, _) => Self::new(number),
            // Who knows what it is. Nothing is put into it.
            _ => Ok(Self { size: u64::MAX, ..Self::new(number)? }),
        }
    }

    /// Cuts off what is behind the last whole frame.
    fn cut(&mut self, folder: &Path, part: Part) -> io::Result<()> {
        let size = self.size;
        let file = self.open(folder, part)?;
        if file.metadata()?.len() > size { file.set_len(size) } else { Ok(()) }
    }

    fn write(&mut self, folder: &Path, part: Part, bytes: &[u8]) -> io::Result<()> {
        let size = self.size;
        let file = self.open(folder, part)?;
        if let Err(error) = file.write_all_at(bytes, size) {
            // A part of it may be there. If it cannot be cut off, the next frame goes
            // over it, and what is left behind that one is nothing to readers.
            let _ = file.set_len(size);
            return Err(error);
        }
        self.size += bytes.len() as u64;
        Ok(())
    }

    fn open(&mut self, folder: &Path, part: Part) -> io::Result<&mut File> {
        let file = match self.file.take() {
            Some(file) => file,
            None => {
                let mut options = OpenOptions::new();
                options.write(true).mode(0o600);
                options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
                if self.size == 0 {
                    options.create(true);
                    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
                }
                options.open(folder.join(part.file(self.number)))?
            }
        };
        Ok(self.file.insert(file))
    }
}
