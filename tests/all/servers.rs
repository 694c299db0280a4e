//! Small servers for guests to reach, on a port of their own.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::mpsc,
    thread,
    time::Duration,
};

/// How long a request may take to come.
const PATIENCE: Duration = Duration::from_secs(10);

/// An HTTP server. Its thread ends with the test.
pub(crate) struct Server {
    /// Its port on 127.0.0.1.
    pub(crate) port: u16,
    requests: mpsc::Receiver<String>,
}

impl Server {
    /// Starts a server that answers `hello` to everything.
    pub(crate) fn hello() -> Self {
        Self::start(|_| vec![response("", "hello")])
    }

    /// Starts a server that answers each request in these pieces.
    pub(crate) fn start(answer: impl Fn(&str) -> Vec<String> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (tell, requests) = mpsc::channel();
        thread::spawn(move || {
            for peer in listener.incoming() {
                let Ok(mut peer) = peer else { return };
                let request = request(&mut peer);
                let pieces = answer(&request);
                // Told first: whoever has the answer may look at once.
                if tell.send(request).is_err() {
                    return;
                }
                for piece in pieces {
                    // A peer that has heard enough is no reason to stop.
                    let _ = peer.write_all(piece.as_bytes()).and_then(|()| peer.flush());
                }
            }
        });
        Self { port, requests }
    }

    /// Returns the next request, in lower case up to its values.
    pub(crate) fn request(&self) -> String {
        self.requests.recv_timeout(PATIENCE).unwrap()
    }

    /// Returns the number of requests that came since.
    pub(crate) fn count(&self) -> usize {
        self.requests.try_iter().count()
    }
}

/// Returns an answer with these header lines, each with its end, and that body.
pub(crate) fn response(headers: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Reads a request to its end.
fn request(peer: &mut TcpStream) -> String {
    let mut request = Vec::new();
    let mut piece = [0; 64 << 10];
    loop {
        let read = peer.read(&mut piece).unwrap_or(0);
        request.extend_from_slice(&piece[..read]);
        let text = String::from_utf8_lossy(&request);
        let is_whole = match text.split_once("\r\n\r\n") {
            Some((head, body)) if head.to_lowercase().contains("transfer-encoding: chunked") => {
                body.ends_with("0\r\n\r\n")
            }
            Some(_) => true,
            None => false,
        };
        if read == 0 || is_whole {
            return text.into_owned();
        }
    }
}

/// Returns the value of a header of a request.
pub(crate) fn header<'a>(request: &'a str, name: &str) -> Option<&'a str> {
    request.lines().find_map(|line| {
        let (found, value) = line.split_once(": ")?;
        found.eq_ignore_ascii_case(name).then_some(value)
    })
}

/// Starts a server that reads one connection to its end, and returns its port and
/// how many bytes came.
pub(crate) fn sink() -> (u16, mpsc::Receiver<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (tell, counts) = mpsc::channel();
    thread::spawn(move || {
        for peer in listener.incoming() {
            let mut all = Vec::new();
            // A connection that is reset has brought what it has.
            let _ = peer.unwrap().read_to_end(&mut all);
            if tell.send(all.len()).is_err() {
                return;
            }
        }
    });
    (port, counts)
}

/// Starts a server that sends every datagram back, and returns its port.
pub(crate) fn echo() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut data = [0; 2 << 10];
        while let Ok((count, peer)) = socket.recv_from(&mut data) {
            if socket.send_to(&data[..count], peer).is_err() {
                return;
            }
        }
    });
    port
}
