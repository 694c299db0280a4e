//! Lines of a stream, which may be read ahead while nobody takes them.

use std::{future::pending, io};

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The longest line that is looked at whole, in bytes: more than a server takes as one. What
/// is longer is handed on in pieces.
const LINE_BYTES: usize = 32 << 20;
/// How much is read ahead while nobody takes lines.
const AHEAD_BYTES: usize = 1 << 20;
/// How much is read at a time.
const PIECE_BYTES: usize = 64 << 10;

/// Lines of a stream.
pub(super) struct Input<R> {
    read: R,
    buffer: Vec<u8>,
    /// How much of the buffer has no line break in it.
    looked: usize,
    is_over: bool,
    /// Whether the beginning of this line was handed on already.
    is_passing: bool,
}

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// A line, with its line break.
    Whole(Vec<u8>),
    /// A piece of one that is too long, or its end.
    Piece(Vec<u8>),
}

impl<R: AsyncRead + Unpin> Input<R> {
    pub(super) fn new(read: R) -> Self {
        Self { read, buffer: Vec::new(), looked: 0, is_over: false, is_passing: false }
    }

    /// Returns the next line; `None` once there are no more. What was read is kept where
    /// nobody waits for it any more.
    pub(super) async fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            let end = self.buffer[self.looked..].iter().position(|byte| *byte == b'\n');
            if let Some(end) = end {
                let line = self.take(self.looked + end + 1);
                return Ok(Some(match std::mem::take(&mut self.is_passing) {
                    true => Line::Piece(line),
                    false => Line::Whole(line),
                }));
            }
            self.looked = self.buffer.len();
            if self.is_over {
                // What has no line break is no message.
                return Ok(None);
            }
            if self.buffer.len() >= LINE_BYTES {
                self.is_passing = true;
                return Ok(Some(Line::Piece(self.take(self.buffer.len()))));
            }
            self.fill().await?;
        }
    }

    /// Reads ahead, and resolves once there is nothing more to read.
    pub(super) async fn ended(&mut self) {
        while !self.is_over {
            // One that cannot be read has ended as well.
            if self.buffer.len() >= AHEAD_BYTES {
                pending::<()>().await;
            }
            if self.fill().await.is_err() {
                return;
            }
        }
    }

    fn take(&mut self, bytes: usize) -> Vec<u8> {
        let rest = self.buffer.split_off(bytes);
        self.looked = 0;
        std::mem::replace(&mut self.buffer, rest)
    }

    async fn fill(&mut self) -> io::Result<()> {
        self.buffer.reserve(PIECE_BYTES);
        if self.read.read_buf(&mut self.buffer).await? == 0 {
            self.is_over = true;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn lines_come_whole_however_they_are_written() {
        let (mut write, read) = duplex(64);
        let mut input = Input::new(read);
        write.write_all(b"a\nb").await.unwrap();
        assert_eq!(input.next().await.unwrap(), Some(Line::Whole(b"a\n".into())));
        // Nobody waits for it any more, and it is not lost.
        tokio::select! {
            biased;
            line = input.next() => panic!("{line:?}"),
            () = std::future::ready(()) => {}
        }
        write.write_all(b"c\n\nrest").await.unwrap();
        drop(write);
        assert_eq!(input.next().await.unwrap(), Some(Line::Whole(b"bc\n".into())));
        input.ended().await;
        assert_eq!(input.next().await.unwrap(), Some(Line::Whole(b"\n".into())));
        assert_eq!(input.next().await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_comes_in_pieces() {
        let text = [vec![b'x'; LINE_BYTES + 10], b"\nnext\n".to_vec()].concat();
        let mut input = Input::new(&text[..]);
        let mut passed = 0;
        loop {
            match input.next().await.unwrap() {
                Some(Line::Piece(piece)) => passed += piece.len(),
                other => {
                    assert_eq!(other, Some(Line::Whole(b"next\n".into())));
                    break;
                }
            }
        }
        assert_eq!(passed, LINE_BYTES + 11);
    }
}
