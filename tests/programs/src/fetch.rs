//! Fetches URLs over WASI 0.2 HTTP and prints the status and the body of each, or
//! the error. `--hoard` makes requests without end and sends none.

use std::io::{Read as _, Write as _};

use wasip2::http::{
    outgoing_handler,
    types::{ErrorCode, Fields, IncomingResponse, OutgoingRequest, Scheme},
};

fn main() -> std::io::Result<()> {
    let out = &mut std::io::stdout();
    for url in std::env::args().skip(1) {
        if url == "--hoard" {
            hoard();
        }
        match fetch(&url) {
            Ok((status, body)) => {
                writeln!(out, "{status} {url}: {}", String::from_utf8_lossy(&body))?;
            }
            Err(error) => writeln!(out, "refused {url}: {error:?}")?,
        }
    }
    Ok(())
}

fn hoard() {
    let mut requests = Vec::new();
    loop {
        let request = OutgoingRequest::new(Fields::new());
        if let Ok(body) = request.body()
            && let Ok(stream) = body.write()
        {
            let _ = stream.write(&[0; 1 << 10]);
        }
        requests.push(request);
    }
}

fn fetch(url: &str) -> Result<(u16, Vec<u8>), ErrorCode> {
    let (scheme, rest) = match url.split_once("://") {
        Some(("https", rest)) => (Scheme::Https, rest),
        Some((_, rest)) => (Scheme::Http, rest),
        None => (Scheme::Http, url),
    };
    let (authority, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, "/"),
    };
    let invalid = |()| ErrorCode::HttpRequestUriInvalid;
    let request = OutgoingRequest::new(Fields::new());
    request.set_scheme(Some(&scheme)).map_err(invalid)?;
    request.set_authority(Some(authority)).map_err(invalid)?;
    request.set_path_with_query(Some(path)).map_err(invalid)?;
    let reply = outgoing_handler::handle(request, None)?;
    loop {
        match reply.get() {
            Some(Ok(answer)) => return answer.and_then(read),
            Some(Err(())) => return Err(ErrorCode::InternalError(None)),
            None => reply.subscribe().block(),
        }
    }
}

fn read(response: IncomingResponse) -> Result<(u16, Vec<u8>), ErrorCode> {
    let internal = |()| ErrorCode::InternalError(None);
    let body = response.consume().map_err(internal)?;
    let mut stream = body.stream().map_err(internal)?;
    let mut bytes = Vec::new();
    stream
        .read_to_end(&mut bytes)
        .map_err(|error| ErrorCode::InternalError(Some(error.to_string())))?;
    Ok((response.status(), bytes))
}
