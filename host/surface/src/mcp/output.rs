//! What a job has put out, as a model is told it.

use std::io;

use backlot_jobs::{
    DataFolder, Job, JobId,
    output::{Part, Recording},
};
use backlot_registry::{Catalog, Form};
use tokio::task::spawn_blocking;

use crate::{
    error::{Failure, Reason},
    wire::{Content, joined, unfinished},
};

/// How much of a result or an output one answer has, in bytes: as much as a model can take
/// in at a time.
pub(super) const TEXT_BYTES: usize = 48 << 10;
/// How much new output one look has, in bytes.
pub(super) const NEW_BYTES: usize = 32 << 10;

/// A part of what was put out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Portion {
    pub(super) text: String,
    /// Where it goes on.
    pub(super) next: u64,
    /// Whether there is more behind it now.
    pub(super) is_cut: bool,
}

/// Tells whether jobs of that kind put out piece by piece. Where the kind is gone that
/// cannot be told, and their results are all there is.
pub(super) fn is_stream(catalog: &dyn Catalog, job: &Job) -> bool {
    let view = catalog.kind(&job.spec.kind);
    view.and_then(|view| view.current)
        .is_some_and(|current| current.descriptor.form == Form::Stream)
}

/// Returns what was recorded of a job's output from an offset on.
pub(super) async fn recorded(
    folder: &DataFolder,
    job: JobId,
    part: Part,
    after: u64,
    most: usize,
    is_over: bool,
) -> Result<Portion, Failure> {
    let folder = folder.job(job);
    let read =
        spawn_blocking(move || read(&mut Recording::new(folder), part, after, most, is_over));
    let read = read.await.unwrap_or_else(|error| Err(io::Error::other(error)));
    read.map_err(|error| Failure::new(Reason::Io, format!("the output cannot be read: {error}")))
}

fn read(
    recording: &mut Recording,
    part: Part,
    after: u64,
    most: usize,
    is_over: bool,
) -> io::Result<Portion> {
    let mut read = recording.read(part, after, most)?;
    let has_more = !recording.read(part, read.next, 1)?.pieces.is_empty();
    if let Some(last) = read.pieces.last_mut() {
        // The rest of a character that was cut comes with the next look.
        let cut = unfinished(&last.bytes);
        if cut < last.bytes.len() && (has_more || !is_over) {
            last.bytes.truncate(last.bytes.len() - cut);
            read.next -= cut as u64;
        }
    }
    let mut text = String::new();
    for piece in joined(read.pieces) {
        if piece.dropped > 0 {
            text.push_str(&format!("\n[{} bytes are gone]\n", piece.dropped));
        }
        match piece.content {
            Content::Text(told) => text.push_str(&told),
            Content::Base64(bytes) => {
                text.push_str(&format!("\n[{} bytes that are no text]\n", bytes.len()));
            }
        }
    }
    Ok(Portion { text, next: read.next, is_cut: has_more })
}

/// Returns a part of a text, from a byte on, cut on a character.
pub(super) fn part_of(text: &str, after: u64, most: usize) -> Portion {
    let from = usize::try_from(after).unwrap_or(usize::MAX).min(text.len());
    let from = text.floor_char_boundary(from);
    let to = text.floor_char_boundary(from.saturating_add(most));
    Portion { text: text[from..to].to_owned(), next: to as u64, is_cut: to < text.len() }
}

#[cfg(test)]
mod tests {
    use backlot_jobs::output::{Limits, Recorder, Stream};

    use super::*;

    #[test]
    fn a_part_of_a_text_is_whole_characters() {
        let portion = |text: &str, next, is_cut| Portion { text: text.into(), next, is_cut };
        assert_eq!(part_of("aéb", 0, 2), portion("a", 1, true));
        assert_eq!(part_of("aéb", 1, 3), portion("éb", 4, false));
        assert_eq!(part_of("aéb", 2, 9), portion("éb", 4, false));
        assert_eq!(part_of("aéb", 99, 9), portion("", 4, false));
    }

    #[test]
    fn what_was_recorded_is_read_on_from_where_it_was_cut() {
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("j");
        let mut recorder = Recorder::new(&folder, Limits::default());
        recorder.append(1, Stream::Stdout, 1, "aé".as_bytes());
        recorder.append(1, Stream::Stderr, 1, b"\xff\xfe");
        recorder.append(1, Stream::Stdout, 1, b"end\xc3");
        let read = |after, most, is_over| {
            let portion =
                read(&mut Recording::new(&folder), Part::Output, after, most, is_over).unwrap();
            (portion.text, portion.next, portion.is_cut)
        };
        assert_eq!(read(0, 2, false), ("a".into(), 1, true));
        assert_eq!(read(1, 4, false), ("é\n[2 bytes that are no text]\n".into(), 5, true));
        assert_eq!(read(5, 99, false), ("end".into(), 8, false));
        assert_eq!(read(5, 99, true), ("end\n[1 bytes that are no text]\n".into(), 9, false));
        assert_eq!(read(9, 99, true), (String::new(), 9, false));
    }
}
