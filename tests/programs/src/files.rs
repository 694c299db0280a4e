//! What a program does to files, a step at a time, by calls of WASI 0.2 and of Rust's own
//! library.
//!
//! ```text
//! write:PATH:N        makes a file of so many bytes
//! append:PATH:N       appends to it
//! at:PATH:AT:N        writes at an offset, by `write`
//! stream:PATH:AT:N    the same by `write-via-stream`, a write after the other
//! zeroes:PATH:N       the same with zeroes, at the beginning
//! splice:FROM:TO      the same with what is in another file
//! size:PATH:N         makes it that long
//! truncate:PATH       opens it with nothing in it
//! exclusive:PATH      makes a file that is not there yet
//! hold:PATH           opens it, and keeps it open
//! drop                closes what is open
//! held:N              appends to what is open
//! read:PATH           tells how long it is
//! mkdir, rmdir, remove:PATH
//! many:PATH:N         makes so many empty files, until one is refused
//! rename, link, symlink:FROM:TO
//! ```

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    path::Path,
};

use wasip2::{
    filesystem::{
        preopens::get_directories,
        types::{Descriptor, DescriptorFlags, ErrorCode, OpenFlags, PathFlags},
    },
    io::streams::StreamError,
};

/// Does them one after the other, and returns what came of each.
pub(crate) fn all(steps: &[&str]) -> Vec<String> {
    let mut held = Vec::new();
    steps
        .iter()
        .map(|step| match one(step, &mut held) {
            Ok(said) => format!("{step}: {said}"),
            Err(error) => format!("{step}: {error}"),
        })
        .collect()
}

fn one(step: &str, held: &mut Vec<File>) -> Result<String, String> {
    let parts: Vec<&str> = step.split(':').collect();
    let number = |text: &str| text.parse::<u64>().map_err(|error| error.to_string());
    let bytes = |text: &str| Ok::<_, String>(vec![b'x'; number(text)? as usize]);
    let told = |came: io::Result<()>| came.map_err(|error| error.to_string());
    match parts.as_slice() {
        ["write", path, n] => told(fs::write(path, bytes(n)?)),
        ["append", path, n] => {
            let file = OpenOptions::new().append(true).open(path);
            told(file.and_then(|mut file| file.write_all(&bytes(n).unwrap_or_default())))
        }
        ["at", path, at, n] => {
            let (file, bytes, at) = (open(path)?, bytes(n)?, number(at)?);
            file.write(&bytes, at).map(drop).map_err(|error| error.name().to_owned())
        }
        ["stream", path, at, n] => {
            let stream = open(path)?.write_via_stream(number(at)?).map_err(named)?;
            let bytes = bytes(n)?;
            let mut left = bytes.as_slice();
            let mut write = || {
                while !left.is_empty() {
                    stream.subscribe().block();
                    let (now, rest) = left.split_at(left.len().min(stream.check_write()? as usize));
                    stream.write(now)?;
                    left = rest;
                }
                stream.blocking_flush()
            };
            write().map_err(streamed)
        }
        ["zeroes", path, n] => {
            let stream = open(path)?.write_via_stream(0).map_err(named)?;
            stream.blocking_write_zeroes_and_flush(number(n)?).map_err(streamed)
        }
        ["splice", from, to] => {
            let from = open(from)?.read_via_stream(0).map_err(named)?;
            let to = open(to)?.append_via_stream().map_err(named)?;
            let splice = || to.blocking_splice(&from, 4096).and_then(|_| to.blocking_flush());
            splice().map_err(streamed)
        }
        ["size", path, n] => {
            let n = number(n)?;
            told(OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(n)))
        }
        ["truncate", path] => {
            told(OpenOptions::new().write(true).truncate(true).open(path).map(drop))
        }
        ["exclusive", path] => told(File::create_new(path).map(drop)),
        ["hold", path] => {
            let file = OpenOptions::new().append(true).create(true).open(path);
            told(file.map(|file| held.push(file)))
        }
        ["held", n] => {
            let bytes = bytes(n)?;
            told(held.iter_mut().try_for_each(|file| file.write_all(&bytes)))
        }
        ["drop"] => {
            held.clear();
            Ok(())
        }
        ["read", path] => {
            let mut read = Vec::new();
            let file = File::open(path).and_then(|mut file| file.read_to_end(&mut read));
            return file.map(|n| format!("{n} bytes")).map_err(|error| error.to_string());
        }
        ["mkdir", path] => told(fs::create_dir(path)),
        ["rmdir", path] => told(fs::remove_dir(path)),
        ["remove", path] => told(fs::remove_file(path)),
        ["many", path, n] => {
            for nth in 0..number(n)? {
                if let Err(error) = File::create(format!("{path}{nth}")) {
                    return Err(format!("{nth} and {error}"));
                }
            }
            Ok(())
        }
        ["rename", from, to] => told(fs::rename(from, to)),
        ["link", from, to] => told(fs::hard_link(from, to)),
        ["symlink", from, to] => told(crate::symlink(from, Path::new(to))),
        _ => Err("no such step".to_owned()),
    }
    .map(|()| "ok".to_owned())
}

/// Opens a file by the calls themselves.
fn open(path: &str) -> Result<Descriptor, String> {
    let mut folders = get_directories().into_iter();
    let found = folders.find_map(|(folder, at)| Some((folder, path.strip_prefix(&at)?)));
    let (folder, rest) = found.ok_or("no such folder")?;
    let flags = DescriptorFlags::READ | DescriptorFlags::WRITE;
    let rest = rest.trim_start_matches('/');
    folder.open_at(PathFlags::empty(), rest, OpenFlags::CREATE, flags).map_err(named)
}

fn named(error: ErrorCode) -> String {
    error.name().to_owned()
}

fn streamed(error: StreamError) -> String {
    match error {
        StreamError::Closed => "closed".to_owned(),
        StreamError::LastOperationFailed(error) => {
            match wasip2::filesystem::types::filesystem_error_code(&error) {
                Some(code) => code.name().to_owned(),
                None => error.to_debug_string(),
            }
        }
    }
}
