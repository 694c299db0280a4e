//! Fetches URLs over WASI 0.2 HTTP and prints the status and the body of each, or
//! the error.
//!
//! ```text
//! --hoard             makes requests without end and sends none
//! --with NAME=VALUE   sends that header from here on; `$VARIABLE` in it is filled in
//! --post BYTES        posts so many bytes from here on
//! --follow            follows one redirect of each answer from here on
//! --reversed          prints bodies and `x-echo` headers backwards from here on
//! ```

use std::{env, io::Read as _};

use wasip2::http::{
    outgoing_handler,
    types::{ErrorCode, Fields, IncomingResponse, Method, OutgoingBody, OutgoingRequest, Scheme},
};

#[derive(Default)]
struct Manner {
    headers: Vec<(String, String)>,
    post: Option<usize>,
    follow: bool,
    reversed: bool,
}

struct Answer {
    status: u16,
    location: Option<String>,
    echo: Option<String>,
    body: String,
}

fn main() -> std::io::Result<()> {
    let out = &mut std::io::stdout();
    let mut manner = Manner::default();
    let mut args = env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--hoard" => hoard(),
            "--with" => {
                let header = args.next().unwrap_or_default();
                let (name, value) = header.split_once('=').unwrap_or((&header, ""));
                let filled = env::vars().fold(value.to_owned(), |value, (name, filling)| {
                    value.replace(&format!("${name}"), &filling)
                });
                manner.headers.push((name.to_owned(), filled));
            }
            "--post" => manner.post = args.next().and_then(|bytes| bytes.parse().ok()),
            "--follow" => manner.follow = true,
            "--reversed" => manner.reversed = true,
            url => tell(out, url, &manner)?,
        }
    }
    Ok(())
}

fn tell(out: &mut impl std::io::Write, url: &str, manner: &Manner) -> std::io::Result<()> {
    let answer = match fetch(url, manner) {
        Ok(answer) => answer,
        Err(error) => return writeln!(out, "refused {url}: {error:?}"),
    };
    let shown = |text: &str| match manner.reversed {
        true => text.chars().rev().collect(),
        false => text.to_owned(),
    };
    writeln!(out, "{} {url}: {}", answer.status, shown(&answer.body))?;
    if let Some(echo) = answer.echo {
        writeln!(out, "x-echo: {}", shown(&echo))?;
    }
    if let Some(location) = answer.location.filter(|_| manner.follow) {
        tell(out, &location, &Manner::default())?;
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

fn fetch(url: &str, manner: &Manner) -> Result<Answer, ErrorCode> {
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
    let fields = Fields::new();
    for (name, value) in &manner.headers {
        fields.append(name, value.as_bytes()).map_err(|_| ErrorCode::HttpProtocolError)?;
    }
    let request = OutgoingRequest::new(fields);
    request.set_scheme(Some(&scheme)).map_err(invalid)?;
    request.set_authority(Some(authority)).map_err(invalid)?;
    request.set_path_with_query(Some(path)).map_err(invalid)?;
    let body = request.body().map_err(invalid)?;
    if manner.post.is_some() {
        request.set_method(&Method::Post).map_err(invalid)?;
    }
    let reply = outgoing_handler::handle(request, None)?;
    // What is wrong with the body shows in the answer.
    let _ = post(body, manner.post.unwrap_or(0));
    loop {
        match reply.get() {
            Some(Ok(answer)) => return answer.and_then(read),
            Some(Err(())) => return Err(ErrorCode::InternalError(None)),
            None => reply.subscribe().block(),
        }
    }
}

fn post(body: OutgoingBody, bytes: usize) -> Result<(), ErrorCode> {
    let internal = |()| ErrorCode::InternalError(None);
    let stream = body.write().map_err(internal)?;
    let block = [b'x'; 1 << 10];
    let mut left = bytes;
    while left > 0 {
        let now = left.min(block.len());
        stream.blocking_write_and_flush(&block[..now]).map_err(|_| internal(()))?;
        left -= now;
    }
    drop(stream);
    OutgoingBody::finish(body, None)
}

fn read(response: IncomingResponse) -> Result<Answer, ErrorCode> {
    let internal = |()| ErrorCode::InternalError(None);
    let headers = response.headers();
    let header = |name: &str| {
        headers.get(name).first().map(|value| String::from_utf8_lossy(value).into_owned())
    };
    let (location, echo) = (header("location"), header("x-echo"));
    let status = response.status();
    drop(headers);
    let body = response.consume().map_err(internal)?;
    let mut stream = body.stream().map_err(internal)?;
    let mut bytes = Vec::new();
    stream
        .read_to_end(&mut bytes)
        .map_err(|error| ErrorCode::InternalError(Some(error.to_string())))?;
    Ok(Answer { status, location, echo, body: String::from_utf8_lossy(&bytes).into_owned() })
}
