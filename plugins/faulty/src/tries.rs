//! Attempts to reach what may be out of reach, and what came of them.

use crate::mode::{Op, Try};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};

/// Tries one thing with the file system.
pub(crate) fn try_file(Try { op, path, to }: &Try) -> String {
    let name = format!("{op:?}").to_lowercase();
    let came = match op {
        Op::Stat => fs::symlink_metadata(path)
            .map(|about| format!("{:?} {} bytes", about.file_type(), about.len())),
        Op::List => list(path),
        Op::Read => read(path).map(|bytes| String::from_utf8_lossy(&bytes).trim_end().to_owned()),
        Op::Write => fs::write(path, "written by faulty\n").map(nothing),
        Op::Append => append(path, "appended by faulty\n").map(nothing),
        Op::Mkdir => fs::create_dir(path).map(nothing),
        Op::Remove => fs::remove_file(path).map(nothing),
        Op::Rename => fs::rename(path, to).map(nothing),
        Op::Link => fs::hard_link(path, to).map(nothing),
        Op::Symlink => symlink(path, to).map(nothing),
    };
    line(&format!("{name} {path}"), came)
}

/// Tries to connect to `address`.
pub(crate) fn try_connect(address: &str) -> String {
    line(&format!("connect {address}"), TcpStream::connect(address).map(|_| "connected".to_owned()))
}

/// Tries to listen on `address`.
pub(crate) fn try_listen(address: &str) -> String {
    line(&format!("listen {address}"), TcpListener::bind(address).map(|_| "listening".to_owned()))
}

/// Tries to look up `address`.
pub(crate) fn try_resolve(address: &str) -> String {
    line(
        &format!("resolve {address}"),
        address.to_socket_addrs().map(|found| {
            let found: Vec<String> = found.map(|address| address.to_string()).collect();
            found.join(" ")
        }),
    )
}

/// Adds `text` to the end of a file, which is made if there is none.
pub(crate) fn append(path: &str, text: &str) -> io::Result<()> {
    OpenOptions::new().create(true).append(true).open(path)?.write_all(text.as_bytes())
}

/// Reads a file to its end.
pub(crate) fn read(path: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn list(path: &str) -> io::Result<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names.join(" "))
}

#[cfg(target_family = "wasm")]
fn symlink(path: &str, to: &str) -> io::Result<()> {
    use std::ffi::{CString, c_char, c_int};

    // Stable std has no symbolic links on WASI; the C library below it has.
    unsafe extern "C" {
        fn symlink(path: *const c_char, to: *const c_char) -> c_int;
    }
    let (path, to) = (CString::new(path)?, CString::new(to)?);
    // SAFETY: both are C strings that live through the call.
    match unsafe { symlink(path.as_ptr(), to.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(not(target_family = "wasm"))]
fn symlink(_: &str, _: &str) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

fn nothing(_: impl Sized) -> String {
    "done".to_owned()
}

fn line(what: &str, came: io::Result<String>) -> String {
    match came {
        Ok(text) => format!("{what}: ok: {text}\n"),
        Err(error) => format!("{what}: error: {error}\n"),
    }
}
