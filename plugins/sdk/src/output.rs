//! The output that waits in the guest for the host to collect it.

use crate::signal::Signal;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

/// Enough to work on for a while without the host, and little beside the memory
/// that a guest is given by default.
const BOUND: usize = 4 << 20;

/// The longest line that is kept whole: how far past the bytes that have to go a
/// line end is looked for, and what is not split by a writer that waits.
const LONGEST_LINE: usize = 64 << 10;

/// A handle for writing output from code that cannot await.
///
/// What the host has not collected yet is kept up to 4 MiB. Past that the
/// oldest of it is dropped, and a notice that counts the dropped bytes takes its
/// place. Code that can await should prefer
/// [`Task::write_all`](crate::Task::write_all), which loses nothing.
///
/// Writing never fails and never blocks, and flushing does nothing.
#[derive(Clone, Debug)]
pub struct Output {
    pending: Rc<Pending>,
}

impl Output {
    pub(crate) fn new(pending: Rc<Pending>) -> Self {
        Self { pending }
    }
}

impl io::Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.buffer.borrow_mut().push(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The buffer of a task and the bell that rings when there is room in it again.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    buffer: RefCell<Buffer>,
    /// Rings after each collection. A stop rings it too, so that a writer that
    /// waits for room hears of it.
    pub room: Signal,
}

impl Pending {
    /// Hands over the oldest bytes, at most `most` of them.
    pub(crate) fn collect(&self, most: usize) -> Vec<u8> {
        let bytes = self.buffer.borrow_mut().take(most);
        if !bytes.is_empty() {
            self.room.ring();
        }
        bytes
    }

    /// Takes in as many of `bytes` as there is room for, and returns how many.
    /// What is no longer than a long line is taken in whole or not at all, so
    /// that a writer that gives up waiting leaves no half of one behind.
    pub(crate) fn accept(&self, bytes: &[u8]) -> usize {
        let mut buffer = self.buffer.borrow_mut();
        let room = buffer.room();
        if bytes.len() <= LONGEST_LINE && bytes.len() > room {
            return 0;
        }
        let fitting = room.min(bytes.len());
        buffer.push(&bytes[..fitting]);
        fitting
    }
}

/// Bytes in order, bounded by dropping the oldest.
#[derive(Clone, Debug)]
struct Buffer {
    bound: usize,
    /// A notice that is being handed over. It goes before everything else, also
    /// when more bytes are dropped meanwhile.
    notice: VecDeque<u8>,
    /// How many bytes were dropped from the front of `bytes` since the last notice.
    dropped: u64,
    bytes: VecDeque<u8>,
    /// Whether the byte handed over last ended a line.
    at_line_start: bool,
}

impl Default for Buffer {
    fn default() -> Self {
        Self::with_bound(BOUND)
    }
}

impl Buffer {
    fn with_bound(bound: usize) -> Self {
        Self {
            bound,
            notice: VecDeque::new(),
            dropped: 0,
            bytes: VecDeque::new(),
            at_line_start: true,
        }
    }

    fn room(&self) -> usize {
        self.bound.saturating_sub(self.bytes.len())
    }

    fn push(&mut self, bytes: &[u8]) {
        let kept = &bytes[bytes.len().saturating_sub(self.bound)..];
        // What goes of the new bytes themselves follows all that is here.
        let skipped = bytes.len() - kept.len();
        let excess = (self.bytes.len() + kept.len()).saturating_sub(self.bound);
        self.bytes.drain(..excess);
        self.bytes.extend(kept);
        if skipped + excess > 0 {
            self.dropped += (skipped + excess) as u64;
            self.drop_broken_line();
        }
    }

    /// Drops the rest of a line whose start is gone, or of a character if no
    /// line ends nearby.
    fn drop_broken_line(&mut self) {
        let line_end = self.bytes.iter().take(LONGEST_LINE).position(|&byte| byte == b'\n');
        let broken = match line_end {
            // Not if nothing would be left of the newest output.
            Some(end) if end + 1 < self.bytes.len() => end + 1,
            _ => self.bytes.iter().take(3).take_while(|&&byte| is_continuation(byte)).count(),
        };
        self.bytes.drain(..broken);
        self.dropped += broken as u64;
    }

    fn take(&mut self, most: usize) -> Vec<u8> {
        if self.notice.is_empty() && self.dropped > 0 && most > 0 {
            self.notice = notice(self.dropped, self.at_line_start).into();
            self.dropped = 0;
        }
        let mut taken = Vec::with_capacity(most.min(self.notice.len() + self.bytes.len()));
        take_front(&mut self.notice, most, &mut taken);
        // A second notice may be due before the bytes are.
        if self.dropped == 0 {
            take_front(&mut self.bytes, most - taken.len(), &mut taken);
        }
        if let Some(&last) = taken.last() {
            self.at_line_start = last == b'\n';
        }
        taken
    }
}

/// Moves at most `most` bytes from the front of `from` to the end of `to`.
fn take_front(from: &mut VecDeque<u8>, most: usize, to: &mut Vec<u8>) {
    let count = most.min(from.len());
    let (front, back) = from.as_slices();
    let of_front = count.min(front.len());
    to.extend_from_slice(&front[..of_front]);
    to.extend_from_slice(&back[..count - of_front]);
    from.drain(..count);
}

fn notice(dropped: u64, at_line_start: bool) -> Vec<u8> {
    let line_end = if at_line_start { "" } else { "\n" };
    format!("{line_end}[{dropped} bytes of output were dropped here]\n").into_bytes()
}

fn is_continuation(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(buffer: &mut Buffer, most: usize) -> String {
        let mut all = Vec::new();
        loop {
            let piece = buffer.take(most);
            assert!(piece.len() <= most);
            if piece.is_empty() {
                return String::from_utf8(all).expect("characters stay whole");
            }
            all.extend(piece);
        }
    }

    #[test]
    fn bytes_come_out_in_order_in_pieces_of_any_size() {
        for most in [1, 2, 3, 7, 100] {
            let mut buffer = Buffer::with_bound(100);
            buffer.push("€✓🦀\n".as_bytes());
            buffer.push(b"two\n");
            assert_eq!(take_all(&mut buffer, most), "€✓🦀\ntwo\n");
        }
    }

    #[test]
    fn past_the_bound_the_oldest_lines_make_way_for_a_notice() {
        let mut buffer = Buffer::with_bound(20);
        for line in 0..100 {
            buffer.push(format!("line {line}\n").as_bytes());
        }
        // 790 bytes are in 100 such lines, and 16 in the last two.
        for most in [1, 1000] {
            let mut buffer = buffer.clone();
            assert_eq!(
                take_all(&mut buffer, most),
                "[774 bytes of output were dropped here]\nline 98\nline 99\n"
            );
        }
    }

    #[test]
    fn one_write_above_the_bound_keeps_its_end() {
        let mut buffer = Buffer::with_bound(10);
        buffer.push(b"old\n");
        buffer.push(b"first line\nsecond\n");
        assert_eq!(take_all(&mut buffer, 100), "[15 bytes of output were dropped here]\nsecond\n");
    }

    #[test]
    fn a_notice_starts_a_line_of_its_own() {
        let mut buffer = Buffer::with_bound(10);
        buffer.push(b"begun ");
        assert_eq!(buffer.take(100), b"begun ");
        buffer.push("€".repeat(5).as_bytes());
        assert_eq!(take_all(&mut buffer, 100), "\n[6 bytes of output were dropped here]\n€€€");
    }

    #[test]
    fn a_notice_is_finished_before_the_next_one() {
        let mut buffer = Buffer::with_bound(10);
        buffer.push(b"0123456789\nabc\n");
        let mut all = buffer.take(5);
        buffer.push(b"def\nghijklm\n");
        all.extend(take_all(&mut buffer, 4).into_bytes());
        assert_eq!(
            String::from_utf8_lossy(&all),
            "[11 bytes of output were dropped here]\n\
             [8 bytes of output were dropped here]\nghijklm\n"
        );
    }

    #[test]
    fn nothing_is_lost_when_the_writer_waits_for_room() {
        let pending = Pending::default();
        let bytes = vec![b'x'; BOUND + LONGEST_LINE + 1];
        assert_eq!(pending.accept(&bytes), BOUND);
        let rest = &bytes[BOUND..];
        assert_eq!(pending.accept(rest), 0);
        assert_eq!(pending.collect(4).len(), 4);
        assert_eq!(pending.accept(rest), 4);
        let rest = &rest[4..];
        assert_eq!(pending.collect(usize::MAX), vec![b'x'; BOUND]);
        assert_eq!(pending.accept(rest), rest.len());
        assert_eq!(pending.collect(usize::MAX), rest);
    }

    #[test]
    fn a_line_is_accepted_whole_or_not_at_all() {
        let pending = Pending::default();
        assert_eq!(pending.accept(&vec![b'x'; BOUND - 3]), BOUND - 3);
        assert_eq!(pending.accept(b"line\n"), 0);
        assert_eq!(pending.collect(2).len(), 2);
        assert_eq!(pending.accept(b"line\n"), 5);
    }
}
