//! Live streams of Server-Sent Events, as a browser reads them.

use std::io::BufRead;

use serde_json::Value;

/// A live stream.
pub struct Events(Box<dyn BufRead + Send>);

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What it is called.
    pub name: String,
    /// Its id, where it has one.
    pub id: Option<String>,
    /// What it says.
    pub data: String,
}

impl Event {
    /// Returns what it says as a document.
    ///
    /// # Panics
    ///
    /// When it is none.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Events {
    /// Returns the stream that a body is.
    pub(crate) fn new(body: Box<dyn BufRead + Send>) -> Self {
        Self(body)
    }

    /// Returns what is left of it.
    ///
    /// # Panics
    ///
    /// When it breaks off.
    #[track_caller]
    pub fn rest(self) -> Vec<Event> {
        self.collect()
    }

    /// Returns the next line; `None` at the end.
    fn line(&mut self) -> Option<String> {
        let mut line = Vec::new();
        let read = self.0.read_until(b'\n', &mut line);
        if read.unwrap_or_else(|error| panic!("the stream breaks off: {error}")) == 0 {
            return None;
        }
        let line = String::from_utf8(line).expect("a stream is text");
        let line = line.strip_suffix('\n').expect("a stream ends with a line");
        // To a browser this ends a line as well.
        assert!(!line.contains('\r'), "{line:?}");
        Some(line.to_owned())
    }
}

impl Iterator for Events {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        let mut event = Event { name: "message".to_owned(), id: None, data: String::new() };
        let mut has_data = false;
        loop {
            let line = self.line()?;
            let (field, value) = line.split_once(':').unwrap_or((&line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                // What says nothing is no event.
                "" if line.is_empty() && (!has_data || event.data.is_empty()) => {
                    event.name = "message".to_owned();
                    has_data = false;
                }
                "" if line.is_empty() => return Some(event),
                "event" => event.name = value.to_owned(),
                "id" => event.id = Some(value.to_owned()),
                "data" => {
                    if has_data {
                        event.data.push('\n');
                    }
                    has_data = true;
                    event.data.push_str(value);
                }
                _ => {}
            }
        }
    }
}
