//! A spill file used as a ring: what does not fit in memory, up to a cap.

use std::io;

use crate::{SpillFile, contain::contain, output::Totals};

/// The bytes that were spilled last, as many as the limits allow.
///
/// The file grows whenever the ring's end is also the file's; everywhere else
/// it is written over. So it ends up as large as its limit, the total and the
/// disk allow, and whatever happens the newest bytes are the ones it holds.
pub(crate) struct Ring {
    file: Box<dyn SpillFile>,
    limit: u64,
    /// How large the file is. Counted in the totals.
    size: u64,
    /// Where the next byte goes.
    head: u64,
    /// How many bytes are held; the newest ends at `head`.
    len: u64,
    /// Whether the disk let the file grow so far.
    grows: bool,
}

impl Ring {
    pub(crate) fn new(file: Box<dyn SpillFile>, limit: u64) -> Self {
        Self { file, limit, size: 0, head: 0, len: 0, grows: true }
    }

    /// Returns how many bytes are held.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Returns how large the file is.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Forgets what is held. The file stays as large as it is.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Appends the bytes; the oldest go where there is no room.
    ///
    /// After an error, what the ring holds cannot be relied on.
    pub(crate) fn push(&mut self, mut bytes: &[u8], totals: &Totals) -> io::Result<()> {
        while !bytes.is_empty() {
            if self.head == self.size {
                let grown = self.grow(bytes, totals)?;
                if grown > 0 {
                    bytes = &bytes[grown..];
                    continue;
                }
                if self.size == 0 {
                    // There is no room at all, now at least.
                    return Ok(());
                }
                self.head = 0;
            }
            let fits =
                bytes.len().min(usize::try_from(self.size - self.head).unwrap_or(usize::MAX));
            let (now, rest) = bytes.split_at(fits);
            let free = self.size - self.len;
            self.len -= (fits as u64).saturating_sub(free);
            contained(|| self.file.write_at(self.head, now))?;
            self.head += fits as u64;
            self.len += fits as u64;
            bytes = rest;
        }
        Ok(())
    }

    /// Appends as many bytes as the file may grow by.
    fn grow(&mut self, bytes: &[u8], totals: &Totals) -> io::Result<usize> {
        if !self.grows {
            return Ok(0);
        }
        let wanted = (bytes.len() as u64).min(self.limit.saturating_sub(self.size));
        let granted = totals.take_disk(wanted);
        if granted == 0 {
            return Ok(0);
        }
        let count = usize::try_from(granted).unwrap_or(usize::MAX).min(bytes.len());
        match contained(|| self.file.write_at(self.head, &bytes[..count])) {
            Ok(()) => {
                self.size += granted;
                self.head += granted;
                self.len += granted;
                Ok(count)
            }
            Err(error) => {
                totals.give_disk(granted);
                self.grows = false;
                if self.size == 0 {
                    return Err(error);
                }
                // What the disk gave so far can still be written over.
                tracing::warn!(%error, size = self.size, "a spill file cannot grow; it goes on as large as it is");
                Ok(0)
            }
        }
    }

    /// Reads bytes that lie that far before the end, and returns how many it
    /// read: at most the buffer, and less where the ring wraps.
    pub(crate) fn read(&mut self, before_end: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let at = if self.head >= before_end {
            self.head - before_end
        } else {
            self.size + self.head - before_end
        };
        let count = (self.size - at).min(before_end).min(buffer.len() as u64);
        let count = usize::try_from(count).unwrap_or(buffer.len());
        contained(|| self.file.read_at(at, &mut buffer[..count]))?;
        Ok(count)
    }
}

fn contained(call: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    contain(call).unwrap_or_else(|panic| Err(io::Error::other(panic)))
}
