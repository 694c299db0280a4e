//! Recorded output as it is shown: text where it is text, and bytes in base64 where it
//! is not.

use std::str;

use backlot_jobs::output::{Piece as RecordedPiece, Stream};
use data_encoding::BASE64;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use utoipa::ToSchema;

use super::schema::OutputContent;

/// What was read of a job's output, and where to go on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OutputReply {
    /// The pieces, in order.
    pub pieces: Vec<OutputPiece>,
    /// What to read `after` next.
    pub next: u64,
    /// Whether the job has ended and there is nothing behind `next`.
    pub ended: bool,
}

/// Bytes of one stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OutputPiece {
    /// How many bytes of its part were before it.
    pub offset: u64,
    /// Where it was written to.
    pub stream: StreamName,
    /// The number of the run that wrote it.
    pub run: u32,
    /// When.
    pub time_ms: u64,
    /// How many bytes are gone that would have been before it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped: u64,
    /// What was written.
    #[serde(flatten)]
    #[schema(value_type = OutputContent)]
    pub content: Content,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// Text, where it is UTF-8.
    Text(String),
    /// Bytes where it is not, in base64.
    #[serde(with = "base64")]
    Base64(Vec<u8>),
}

impl Content {
    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Base64(bytes) => bytes,
        }
    }
}

/// Where a piece of output was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StreamName {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// The producer's log.
    Log,
    /// What the host notes.
    Note,
}

impl From<Stream> for StreamName {
    fn from(stream: Stream) -> Self {
        match stream {
            Stream::Stdout => Self::Stdout,
            Stream::Stderr => Self::Stderr,
            Stream::Log => Self::Log,
            Stream::Note => Self::Note,
        }
    }
}

/// Returns the pieces as they are shown. Characters that were cut between two pieces of
/// a stream are put together in the first of them.
pub(crate) fn joined(mut pieces: Vec<RecordedPiece>) -> Vec<OutputPiece> {
    for place in 0..pieces.len() {
        while let Some(giver) = giver(&pieces, place) {
            let byte = pieces[giver].bytes.remove(0);
            pieces[giver].offset += 1;
            pieces[place].bytes.push(byte);
        }
    }
    let told = pieces.into_iter().filter(|piece| piece.dropped > 0 || !piece.bytes.is_empty());
    told.flat_map(rendered).collect()
}

/// Returns the piece that has the next byte of the character that one ends in, if that
/// is cut, and the byte can be one of it.
fn giver(pieces: &[RecordedPiece], place: usize) -> Option<usize> {
    let piece = &pieces[place];
    let cut = unfinished(&piece.bytes);
    if cut == 0 {
        return None;
    }
    let later = pieces.get(place + 1..)?.iter();
    // What is gone between them may have been the rest of the character.
    let mut near = later.take_while(|later| later.dropped == 0 && later.run == piece.run);
    let next = near.position(|it| it.stream == piece.stream && !it.bytes.is_empty())?;
    let next = place + 1 + next;
    let mut character = piece.bytes[piece.bytes.len() - cut..].to_vec();
    character.push(pieces[next].bytes[0]);
    let can_be = match str::from_utf8(&character) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none(),
    };
    can_be.then_some(next)
}

/// Returns how many bytes at the end begin a character that is not whole, of text.
pub(crate) fn unfinished(bytes: &[u8]) -> usize {
    match str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => bytes.len() - error.valid_up_to(),
        _ => 0,
    }
}

/// Returns a piece as it is shown: as two where only its end is no text.
fn rendered(piece: RecordedPiece) -> Vec<OutputPiece> {
    let cut = piece.bytes.len() - unfinished(&piece.bytes);
    let (text, rest) = match cut {
        0 => (&piece.bytes[..], &[][..]),
        cut => piece.bytes.split_at(cut),
    };
    let show = |offset, dropped, bytes: &[u8]| OutputPiece {
        offset,
        stream: piece.stream.into(),
        run: piece.run,
        time_ms: piece.time_ms,
        dropped,
        content: match str::from_utf8(bytes) {
            Ok(text) => Content::Text(text.to_owned()),
            Err(_) => Content::Base64(bytes.to_vec()),
        },
    };
    let mut shown = vec![show(piece.offset, piece.dropped, text)];
    if !rest.is_empty() {
        shown.push(show(piece.offset + text.len() as u64, 0, rest));
    }
    shown
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

mod base64 {
    use super::*;

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&BASE64.encode_display(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        BASE64.decode(text.as_bytes()).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::tests::check;

    /// Returns pieces of the streams `o` and `e`, of run 1 from offset 0 on.
    fn pieces(parts: &[(char, &[u8])]) -> Vec<RecordedPiece> {
        let mut offset = 0;
        let piece = |(stream, bytes): &(char, &[u8])| {
            let stream = if *stream == 'e' { Stream::Stderr } else { Stream::Stdout };
            let at = offset;
            offset += bytes.len() as u64;
            let bytes = bytes.to_vec();
            RecordedPiece { offset: at, dropped: 0, run: 1, stream, time_ms: 0, bytes }
        };
        parts.iter().map(piece).collect()
    }

    /// Returns pieces as `offset stream content`, where `!` begins what is not text.
    fn told(pieces: Vec<RecordedPiece>) -> Vec<String> {
        let tell = |piece: OutputPiece| {
            let stream = if piece.stream == StreamName::Stderr { 'e' } else { 'o' };
            let content = match piece.content {
                Content::Text(text) => text,
                Content::Base64(bytes) => format!("!{bytes:x?}"),
            };
            format!("{} {stream} {content}", piece.offset)
        };
        joined(pieces).into_iter().map(tell).collect()
    }

    #[test]
    fn output_is_text_where_it_can_be() {
        let piece = |content, dropped| OutputPiece {
            offset: 4,
            stream: StreamName::Stdout,
            run: 1,
            time_ms: 9,
            dropped,
            content,
        };
        let reply = OutputReply {
            pieces: vec![
                piece(Content::Text("é\n".into()), 0),
                piece(Content::Base64(vec![0xff, 0]), 3),
            ],
            next: 9,
            ended: true,
        };
        check(
            &reply,
            r#"
{
  "pieces": [
    {
      "offset": 4,
      "stream": "stdout",
      "run": 1,
      "time_ms": 9,
      "text": "é\n"
    },
    {
      "offset": 4,
      "stream": "stdout",
      "run": 1,
      "time_ms": 9,
      "dropped": 3,
      "base64": "/wA="
    }
  ],
  "next": 9,
  "ended": true
}"#,
        );
        let words = [StreamName::Stdout, StreamName::Stderr, StreamName::Log, StreamName::Note];
        let written = serde_json::to_string(&words).unwrap();
        assert_eq!(written, r#"["stdout","stderr","log","note"]"#);
        assert_eq!(Content::Base64(vec![1]).bytes(), [1]);
    }

    #[test]
    fn a_character_that_was_cut_is_put_together() {
        let grin = "😀".as_bytes();
        assert_eq!(told(pieces(&[('o', b"a\xc3"), ('o', b"\xa9b")])), ["0 o aé", "3 o b"]);
        // Over several pieces, and past what another stream says meanwhile.
        let split =
            [('o', &grin[..1]), ('e', b"err"), ('o', &grin[1..2]), ('o', &grin[2..]), ('o', b"!")];
        assert_eq!(told(pieces(&split)), ["0 o 😀", "1 e err", "7 o !"]);
        assert_eq!(
            told(pieces(&[('o', b"\xc3"), ('e', b"\xc3"), ('o', b"\xa9"), ('e', b"\xa4")])),
            ["0 o é", "1 e ä"]
        );
    }

    #[test]
    fn what_is_no_text_stays_as_it_is() {
        // The rest never came, or is another's, or something else.
        assert_eq!(told(pieces(&[('o', b"a\xc3")])), ["0 o a", "1 o ![c3]"]);
        assert_eq!(told(pieces(&[('o', b"\xc3"), ('o', b"b")])), ["0 o ![c3]", "1 o b"]);
        assert_eq!(told(pieces(&[('o', b"\xc3"), ('e', b"\xa9")])), ["0 o ![c3]", "1 e ![a9]"]);
        assert_eq!(told(pieces(&[('o', b"a\xffb\xc3")])), ["0 o ![61, ff, 62, c3]"]);
        // Nor is it put together over a gap, or over two runs.
        let mut gap = pieces(&[('o', b"\xc3"), ('o', b"\xa9")]);
        gap[1].dropped = 1;
        assert_eq!(told(gap), ["0 o ![c3]", "1 o ![a9]"]);
        let mut runs = pieces(&[('o', b"\xc3"), ('o', b"\xa9")]);
        runs[1].run = 2;
        assert_eq!(told(runs), ["0 o ![c3]", "1 o ![a9]"]);
    }

    #[test]
    fn what_was_dropped_is_told_also_where_nothing_is_left() {
        let mut lost = pieces(&[('o', b"a"), ('o', b"")]);
        lost[1].dropped = 7;
        let told = joined(lost);
        assert_eq!(told[1].dropped, 7);
        assert_eq!(told[1].content, Content::Text(String::new()));
        // Once, and not with what is behind.
        let mut lost = pieces(&[('o', b"a\xc3")]);
        lost[0].dropped = 7;
        let dropped: Vec<u64> = joined(lost).iter().map(|piece| piece.dropped).collect();
        assert_eq!(dropped, [7, 0]);
    }

    #[test]
    fn the_end_of_a_character_may_be_missing() {
        assert_eq!(unfinished(b"a"), 0);
        assert_eq!(unfinished(b"a\xc3"), 1);
        assert_eq!(unfinished(&"😀".as_bytes()[..3]), 3);
        assert_eq!(unfinished(b"\xff\xc3"), 0);
        assert_eq!(unfinished(b""), 0);
    }
}
