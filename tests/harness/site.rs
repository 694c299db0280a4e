//! A host as programs over TCP ask it: by hand, so that a test says every byte.

use std::{
    io::{self, BufRead, BufReader, Read, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use serde_json::Value;

use crate::Events;

/// How long a host may say nothing that is to say something. It is far longer than what it
/// takes, and shorter than what a test that hangs is given.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where a host is asked, and with which token.
#[derive(Clone, Debug)]
pub struct Site {
    address: SocketAddr,
    token: String,
}

impl Site {
    /// Returns the site at an address, asked with a token.
    pub fn new(address: SocketAddr, token: impl Into<String>) -> Self {
        Self { address, token: token.into() }
    }

    /// Returns the same for who has another token.
    #[must_use]
    pub fn with_token(&self, token: impl Into<String>) -> Self {
        Self { address: self.address, token: token.into() }
    }

    /// Returns the address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the token.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Connects, and says nothing yet.
    ///
    /// # Panics
    ///
    /// When nobody listens.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("the host listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time can be set");
        stream
    }

    /// Begins a request, such as `GET /v1/jobs`, on a connection of its own. It has the
    /// headers that a good client sends.
    pub fn request(&self, line: &str) -> Request<'_> {
        let headers = vec![
            ("host".to_owned(), self.address.to_string()),
            ("authorization".to_owned(), format!("Bearer {}", self.token)),
            ("connection".to_owned(), "close".to_owned()),
        ];
        Request { site: self, line: line.to_owned(), headers, body: Vec::new() }
    }

    /// Asks for what is there, and returns it.
    ///
    /// # Panics
    ///
    /// When it is not answered with it.
    #[track_caller]
    pub fn get(&self, path: &str) -> Value {
        let response = self.request(&format!("GET {path}")).send();
        assert_eq!(response.status, 200, "{path}: {}", response.head);
        response.json()
    }

    /// Sends a document, and returns what that is answered with.
    ///
    /// # Panics
    ///
    /// When it is refused.
    #[track_caller]
    pub fn post(&self, path: &str, document: &Value) -> Value {
        let response = self.request(&format!("POST {path}")).json(document).send();
        let (status, answer) = (response.status, response.json());
        assert!((200..300).contains(&status), "{path}: {status} {answer}");
        answer
    }

    /// Spawns a job, and returns its id.
    ///
    /// # Panics
    ///
    /// When it is refused.
    #[track_caller]
    pub fn spawn(&self, kind: &str, input: &Value) -> String {
        let spawned =
            self.post("/v1/jobs", &serde_json::json!({"kind": kind, "input": input.to_string()}));
        spawned["id"].as_str().expect("a job has an id").to_owned()
    }

    /// Waits for a job's end, and returns the job.
    ///
    /// # Panics
    ///
    /// When it does not end.
    #[track_caller]
    pub fn end(&self, job: &str) -> Value {
        let job = self.get(&format!("/v1/jobs/{job}?wait_ms=50000"));
        assert_eq!(job["live"], false, "{job}");
        job
    }

    /// Follows a live stream, from behind the event with that id where one is given.
    ///
    /// # Panics
    ///
    /// When there is none.
    #[track_caller]
    pub fn events(&self, path: &str, last: Option<&str>) -> Events {
        let request = self.request(&format!("GET {path}"));
        let request = match last {
            Some(last) => request.header("last-event-id", last),
            None => request,
        };
        request.send().events()
    }
}

/// A request that was not sent yet.
#[derive(Debug)]
pub struct Request<'a> {
    site: &'a Site,
    line: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request<'_> {
    /// Sets a header, in place of what it had.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(known, _)| known != name);
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Takes a header away.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| known != name);
        self
    }

    /// Sets the body, which is of that type.
    #[must_use]
    pub fn body(mut self, media: &str, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        let length = self.body.len().to_string();
        self.header("content-type", media).header("content-length", &length)
    }

    /// Sets a document as the body.
    #[must_use]
    pub fn json(self, document: &Value) -> Self {
        self.body("application/json", document.to_string())
    }

    /// Sends it, and returns the response once its head has come.
    ///
    /// # Panics
    ///
    /// When none comes.
    #[track_caller]
    pub fn send(self) -> Response {
        let stream = self.leave();
        Response::read(stream).unwrap_or_else(|error| panic!("no answer: {error}"))
    }

    /// Sends it, and returns the connection without waiting for a response.
    ///
    /// # Panics
    ///
    /// When nobody listens.
    pub fn leave(self) -> TcpStream {
        let mut stream = self.site.connect();
        let mut text = format!("{} HTTP/1.1\r\n", self.line);
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("\r\n");
        // A host that has refused it by its head reads no more.
        let _ = stream.write_all(text.as_bytes()).and_then(|()| stream.write_all(&self.body));
        stream
    }
}

/// A response whose body may still be coming.
pub struct Response {
    /// Its status.
    pub status: u16,
    /// Its status line and headers.
    pub head: String,
    body: Box<dyn BufRead + Send>,
}

impl Response {
    /// Reads the head of a response.
    ///
    /// # Errors
    ///
    /// When none comes, or what comes is none.
    pub fn read(stream: TcpStream) -> io::Result<Self> {
        let mut stream = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head)? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, head));
            }
        }
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(head.clone()))?;
        let length = header(&head, "content-length").and_then(|it| it.parse().ok());
        let is_chunked = header(&head, "transfer-encoding").as_deref() == Some("chunked");
        let body: Box<dyn BufRead + Send> = match (is_chunked, length) {
            (true, _) => Box::new(BufReader::new(Chunks { of: stream, left: 0, is_over: false })),
            (false, Some(length)) => Box::new(stream.take(length)),
            (false, None) => Box::new(stream),
        };
        Ok(Self { status, head, body })
    }

    /// Returns the value of a header.
    pub fn header(&self, name: &str) -> Option<String> {
        header(&self.head, name)
    }

    /// Returns the whole body.
    ///
    /// # Panics
    ///
    /// When it does not come.
    #[track_caller]
    pub fn bytes(mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let read = self.body.read_to_end(&mut bytes);
        read.unwrap_or_else(|error| panic!("the body ends early: {error}: {}", self.head));
        bytes
    }

    /// Returns the document that is the body.
    ///
    /// # Panics
    ///
    /// When it is none.
    #[track_caller]
    pub fn json(self) -> Value {
        let head = self.head.clone();
        let bytes = self.bytes();
        serde_json::from_slice(&bytes)
            .unwrap_or_else(|error| panic!("{error}: {head}{}", String::from_utf8_lossy(&bytes)))
    }

    /// Returns the live stream that is the body.
    ///
    /// # Panics
    ///
    /// When it is none.
    #[track_caller]
    pub fn events(self) -> Events {
        assert_eq!(self.status, 200, "{}", self.head);
        let media = self.header("content-type");
        assert_eq!(media.as_deref(), Some("text/event-stream"), "{}", self.head);
        Events::new(self.body)
    }
}

fn header(head: &str, name: &str) -> Option<String> {
    head.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
    })
}

/// A body that comes in chunks.
struct Chunks {
    of: BufReader<TcpStream>,
    left: usize,
    is_over: bool,
}

impl Chunks {
    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.of.read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }
}

impl Read for Chunks {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && !self.is_over {
            let line = self.line()?;
            self.left = usize::from_str_radix(&line, 16).map_err(io::Error::other)?;
            self.is_over = self.left == 0;
        }
        if self.is_over {
            return Ok(0);
        }
        let most = self.left.min(buffer.len());
        let read = self.of.read(&mut buffer[..most])?;
        if read == 0 && most > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= read;
        if self.left == 0 {
            self.line()?;
        }
        Ok(read)
    }
}
