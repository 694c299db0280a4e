//! Live streams: how many there are, and how events are written into them.
//!
//! A stream is of Server-Sent Events. What an event says is JSON, which has no line ends
//! in it, so nothing that anybody writes can pass for another event.

use std::{convert::Infallible, fmt, sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{HeaderMap, HeaderName, HeaderValue, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures::Stream;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Surface;
use crate::error::{Failure, Reason};

/// How many streams there are at a time, however many connections are let in: each has a
/// chunk of what it sends in memory.
const STREAMS: usize = 1_024;
/// How long a stream with nothing to say is silent: less than what stands between takes a
/// connection for dead after.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(15);
/// What is said then. It is no event.
pub(super) const BEAT: &[u8] = b":\n\n";
/// When a client that finds no place is to try again, in seconds.
const AGAIN: HeaderValue = HeaderValue::from_static("5");
/// The header with the id of the last event that a client got before it came back.
pub(super) const LAST_HEADER: HeaderName = HeaderName::from_static("last-event-id");

/// Returns the places for streams.
pub(super) fn places() -> Semaphore {
    Semaphore::new(STREAMS)
}

/// A place among the streams.
pub(super) struct Place {
    surface: Surface,
    _permit: OwnedSemaphorePermit,
}

impl Place {
    /// Takes a place, if there is one.
    pub(super) fn take(surface: &Surface) -> Option<Self> {
        let permit = Arc::clone(&surface.streams).try_acquire_owned().ok()?;
        Some(Self { surface: surface.clone(), _permit: permit })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What nobody is left to share is let go of.
        if self.surface.streams.available_permits() + 1 == STREAMS {
            self.surface.chunks.clear();
        }
    }
}

/// Returns the id of the last event that a client got, from its header or what stands
/// behind the question mark.
pub(super) fn last_id<'a>(headers: &'a HeaderMap, asked: Option<&'a str>) -> Option<&'a str> {
    match headers.get(LAST_HEADER) {
        // One that cannot be read is of no stream.
        Some(value) => Some(value.to_str().unwrap_or_default()),
        None => asked,
    }
}

/// Answers that there is no place.
pub(super) fn full() -> Response {
    let full = Failure::new(Reason::Busy, "too many follow live streams");
    ([(header::RETRY_AFTER, AGAIN)], full).into_response()
}

/// Answers with a stream.
pub(super) fn answer(events: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    let events = futures::StreamExt::map(events, Ok::<_, Infallible>);
    (headers, Body::from_stream(events)).into_response()
}

/// Writes an event.
pub(super) fn event(
    to: &mut Vec<u8>,
    name: &str,
    id: Option<&dyn fmt::Display>,
    data: &impl Serialize,
) {
    // These shapes have nothing in them that cannot be written.
    let data = serde_json::to_string(data).unwrap_or_default();
    written(to, name, id, &data);
}

/// Writes an event whose data are JSON already.
pub(super) fn written(to: &mut Vec<u8>, name: &str, id: Option<&dyn fmt::Display>, data: &str) {
    if let Some(id) = id {
        to.extend_from_slice(format!("id: {id}\n").as_bytes());
    }
    for part in ["event: ", name, "\ndata: ", data, "\n\n"] {
        to.extend_from_slice(part.as_bytes());
    }
}

/// Returns one event.
pub(super) fn one(name: &str, id: Option<&dyn fmt::Display>, data: &impl Serialize) -> Bytes {
    let mut bytes = Vec::new();
    event(&mut bytes, name, id, data);
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ends_in_what_is_said_end_no_event() {
        let said = "a\nb\rc\r\n\ndata: x\nevent: y\n:z\u{2028}\0";
        let bytes = one("output", Some(&7), &said);
        let text = str::from_utf8(&bytes).unwrap();
        let (head, data) = text.strip_suffix("\n\n").unwrap().split_once("\ndata: ").unwrap();
        assert_eq!(head, "id: 7\nevent: output");
        assert!(!data.contains(['\n', '\r']));
        assert_eq!(serde_json::from_str::<String>(data).unwrap(), said);
        assert_eq!(one("closing", None, &()), "event: closing\ndata: null\n\n");
    }
}
