//! Chunks of recorded output as they go over streams, shared by all that follow it.
//!
//! Whoever is where another follower was a moment ago gets what that one got, so that a
//! thousand who follow one output cost little more than one. What was read is bounded in
//! bytes, and so are the reads at a time.

use std::{
    collections::VecDeque,
    hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher},
    io,
    sync::{Mutex, MutexGuard, PoisonError},
};

use backlot_jobs::{
    JobId,
    output::{Part, Recording},
};
use bytes::Bytes;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{output::portion, readers::Place, stream};
use crate::wire::{DroppedView, OutputPiece};

/// How much output is read at a time, in bytes. A follower that does not take it has so
/// much in memory, and what its connection holds.
const READ: usize = 32 << 10;
/// How much a chunk has as events, in bytes, before the next one begins: many small pieces
/// are longer as events than they are.
const CHUNK: usize = 64 << 10;
/// How much is kept for whoever comes next, in bytes.
const KEPT: usize = 4 << 20;
/// How many read at a time. Those of one output wait for each other, and find what the one
/// before them has read.
const TURNS: usize = 8;

/// What was read last, by place.
#[derive(Debug)]
pub(super) struct Chunks {
    turns: [Semaphore; TURNS],
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// The oldest first.
    chunks: VecDeque<(Place, Chunk)>,
    bytes: usize,
}

/// Output as events, and where to go on behind it. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) events: Bytes,
    pub(super) next: u64,
}

impl Default for Chunks {
    fn default() -> Self {
        let turns = std::array::from_fn(|_| Semaphore::new(1));
        Self { turns, kept: Mutex::default() }
    }
}

impl Chunks {
    /// Returns the chunk that begins there, if it was read a moment ago.
    pub(super) fn get(&self, place: Place) -> Option<Chunk> {
        let kept = self.kept();
        let newest = kept.chunks.iter().rev();
        newest.into_iter().find(|(at, _)| *at == place).map(|(_, chunk)| chunk.clone())
    }

    /// Waits for the turn to read a part of a job's output.
    pub(super) async fn turn(&self, job: JobId, part: Part) -> Option<SemaphorePermit<'_>> {
        let hash = BuildHasherDefault::<DefaultHasher>::new().hash_one((job, part));
        let turn = usize::try_from(hash % TURNS as u64).unwrap_or_default();
        // They are never closed.
        self.turns[turn].acquire().await.ok()
    }

    /// Keeps chunks that follow each other from a place on.
    pub(super) fn keep(&self, (job, part, mut after): Place, chunks: &[Chunk]) {
        let mut kept = self.kept();
        for chunk in chunks {
            kept.bytes += chunk.events.len();
            kept.chunks.push_back(((job, part, after), chunk.clone()));
            after = chunk.next;
        }
        while kept.bytes > KEPT {
            let Some((_, oldest)) = kept.chunks.pop_front() else { break };
            kept.bytes -= oldest.events.len();
        }
    }

    /// Forgets all.
    pub(super) fn clear(&self) {
        *self.kept() = Kept::default();
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads what there is of a part behind an offset, as chunks; none where there is nothing
/// yet, and for what is over, nothing more.
pub(super) fn read(
    reader: &mut Recording,
    part: Part,
    after: u64,
    is_over: bool,
) -> io::Result<Vec<Chunk>> {
    let mut reply = portion(reader, part, after, READ, false)?;
    if is_over && reply.pieces.is_empty() {
        // What was held back as the beginning of something is all that there is.
        reply = portion(reader, part, after, READ, true)?;
    }
    Ok(chunks(reply.pieces, after, reply.next))
}

/// Returns pieces as events, in chunks.
fn chunks(pieces: Vec<OutputPiece>, after: u64, next: u64) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    let mut events = Vec::new();
    let mut reached = after;
    let mut pieces = pieces.into_iter().peekable();
    while let Some(mut piece) = pieces.next() {
        let dropped = std::mem::take(&mut piece.dropped);
        let length = piece.content.bytes().len() as u64;
        if dropped > 0 {
            let hole = DroppedView { offset: reached, dropped };
            reached += dropped;
            // A piece may have taken the end of a character from one behind it, and
            // nothing is between the two then.
            stream::event(&mut events, "dropped", Some(&reached), &hole);
        }
        reached += length;
        let follows = pieces.peek().map_or(next, |it| it.offset - it.dropped);
        // Where something behind it was sent already, who comes back must not begin here.
        let is_whole = follows == reached;
        if length > 0 {
            let id: Option<&dyn std::fmt::Display> = if is_whole { Some(&reached) } else { None };
            stream::event(&mut events, "output", id, &piece);
        }
        if is_whole && events.len() >= CHUNK {
            chunks.push(Chunk { events: std::mem::take(&mut events).into(), next: reached });
        }
    }
    if !events.is_empty() {
        chunks.push(Chunk { events: events.into(), next });
    }
    chunks
}

#[cfg(test)]
mod tests {
    use backlot_jobs::output::{Piece, Stream};

    use super::*;
    use crate::wire::joined;

    fn piece(offset: u64, stream: Stream, bytes: &[u8]) -> Piece {
        Piece { offset, dropped: 0, run: 1, stream, time_ms: 5, bytes: bytes.to_vec() }
    }

    fn told(pieces: Vec<Piece>, after: u64, next: u64) -> String {
        let chunks = chunks(joined(pieces), after, next);
        let texts = chunks.iter().map(|chunk| str::from_utf8(&chunk.events).unwrap());
        texts.collect::<String>().replace(r#","run":1,"time_ms":5"#, "")
    }

    #[test]
    fn output_as_events() {
        let mut pieces = vec![piece(3, Stream::Stdout, b"a\n"), piece(9, Stream::Stderr, b"\xff")];
        pieces[1].dropped = 4;
        let expected = r#"id: 5
event: output
data: {"offset":3,"stream":"stdout","text":"a\n"}

id: 9
event: dropped
data: {"offset":5,"dropped":4}

id: 10
event: output
data: {"offset":9,"stream":"stderr","base64":"/w=="}

"#;
        let told = told(pieces, 3, 10);
        assert_eq!(told, expected, "\n{told}");
    }

    #[test]
    fn a_hole_at_the_end_is_told() {
        let mut pieces = vec![piece(7, Stream::Stdout, b"")];
        pieces[0].dropped = 7;
        let told = told(pieces, 0, 7);
        assert_eq!(told, "id: 7\nevent: dropped\ndata: {\"offset\":0,\"dropped\":7}\n\n");
    }

    #[test]
    fn who_comes_back_begins_nowhere_that_something_behind_was_sent() {
        let pieces = vec![
            piece(0, Stream::Stdout, b"a\xc3"),
            piece(2, Stream::Stderr, b"b"),
            piece(3, Stream::Stdout, b"\xa9c"),
        ];
        let told = told(pieces, 0, 5);
        let ids: Vec<&str> = told.lines().filter_map(|line| line.strip_prefix("id: ")).collect();
        // The first has the first byte of the third.
        assert_eq!(ids, ["4", "5"], "\n{told}");
        assert!(told.contains(r#""text":"aé""#), "\n{told}");
    }

    #[test]
    fn many_small_pieces_are_several_chunks() {
        let stream = |offset| if offset % 2 == 0 { Stream::Stdout } else { Stream::Stderr };
        let pieces = (0..5_000).map(|offset| piece(offset, stream(offset), b"x")).collect();
        let chunks = chunks(joined(pieces), 0, 5_000);
        assert!(chunks.len() > 3, "{}", chunks.len());
        assert!(chunks.iter().all(|chunk| chunk.events.len() < CHUNK + 1024));
        let mut ends = chunks.iter().map(|chunk| chunk.next);
        assert!(ends.clone().is_sorted());
        assert_eq!(ends.next_back(), Some(5_000));
    }

    #[test]
    fn what_was_read_is_found_until_there_is_too_much() {
        let chunks = Chunks::default();
        let place = |after| (JobId::from_bits(1), Part::Output, after);
        let chunk = |next| Chunk { events: vec![0; 1 << 20].into(), next };
        chunks.keep(place(0), &[chunk(5), chunk(9)]);
        assert_eq!(chunks.get(place(0)), Some(chunk(5)));
        assert_eq!(chunks.get(place(5)), Some(chunk(9)));
        for other in
            [place(9), (JobId::from_bits(2), Part::Output, 0), (JobId::from_bits(1), Part::Log, 0)]
        {
            assert_eq!(chunks.get(other), None);
        }
        chunks.keep(place(9), &[chunk(10), chunk(11), chunk(12)]);
        assert_eq!(chunks.get(place(0)), None);
        assert_eq!(chunks.get(place(5)), Some(chunk(9)));
        chunks.clear();
        assert_eq!(chunks.get(place(11)), None);
    }
}
