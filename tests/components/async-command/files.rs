//! What a program does to files, a step at a time, by calls of WASI 0.3.
//!
//! ```text
//! write:PATH:AT:N     writes so many bytes at an offset, and makes the file
//! append:PATH:N       appends to it
//! both:PATH:N         appends so many bytes twice at once, by two streams
//! size:PATH:N         makes it that long
//! truncate:PATH       opens it with nothing in it
//! exclusive:PATH      makes a file that is not there yet
//! hold:PATH           opens it, and keeps it open
//! held:N              appends to what is open
//! drop                closes what is open
//! read:PATH           tells how long it is
//! mkdir, rmdir, remove:PATH
//! rename, link, symlink:FROM:TO
//! ```

use wasip3::filesystem::{
    preopens::get_directories,
    types::{Descriptor, DescriptorFlags, ErrorCode, OpenFlags, PathFlags},
};

/// Does them one after the other, and returns what came of each.
pub(crate) async fn all(steps: &[&str]) -> Vec<String> {
    let mut held = Vec::new();
    let mut said = Vec::new();
    for step in steps {
        said.push(match one(step, &mut held).await {
            Ok(done) => format!("{step}: {done}\n"),
            Err(error) => format!("{step}: {error:?}\n"),
        });
    }
    said
}

async fn one(step: &str, held: &mut Vec<Descriptor>) -> Result<String, ErrorCode> {
    let parts: Vec<&str> = step.split(':').collect();
    let number = |text: &str| text.parse::<u64>().map_err(|_| ErrorCode::Invalid);
    match parts.as_slice() {
        ["write", path, at, n] => {
            let file = open(path, OpenFlags::CREATE).await?;
            write(&file, Some(number(at)?), number(n)?).await?;
        }
        ["append", path, n] => {
            let file = open(path, OpenFlags::CREATE).await?;
            write(&file, None, number(n)?).await?;
        }
        ["both", path, n] => {
            let file = open(path, OpenFlags::CREATE).await?;
            let n = number(n)?;
            let (one, other) =
                futures::future::join(write(&file, None, n), write(&file, None, n)).await;
            one.and(other)?;
        }
        ["size", path, n] => {
            open(path, OpenFlags::empty()).await?.set_size(number(n)?).await?;
        }
        ["truncate", path] => drop(open(path, OpenFlags::TRUNCATE).await?),
        ["exclusive", path] => drop(open(path, OpenFlags::CREATE | OpenFlags::EXCLUSIVE).await?),
        ["hold", path] => held.push(open(path, OpenFlags::CREATE).await?),
        ["held", n] => {
            for file in &*held {
                write(file, None, number(n)?).await?;
            }
        }
        ["drop"] => held.clear(),
        ["read", path] => {
            let size = open(path, OpenFlags::empty()).await?.stat().await?.size;
            return Ok(format!("{size} bytes"));
        }
        ["mkdir", path] => {
            let (folder, rest) = folder(path)?;
            folder.create_directory_at(rest).await?;
        }
        ["rmdir", path] => {
            let (folder, rest) = folder(path)?;
            folder.remove_directory_at(rest).await?;
        }
        ["remove", path] => {
            let (folder, rest) = folder(path)?;
            folder.unlink_file_at(rest).await?;
        }
        ["rename", from, to] => {
            let ((from, old), (to, new)) = (folder(from)?, folder(to)?);
            from.rename_at(old, &to, new).await?;
        }
        ["link", from, to] => {
            let ((from, old), (to, new)) = (folder(from)?, folder(to)?);
            from.link_at(PathFlags::empty(), old, &to, new).await?;
        }
        ["symlink", target, path] => {
            let (folder, rest) = folder(path)?;
            folder.symlink_at((*target).to_owned(), rest).await?;
        }
        _ => return Err(ErrorCode::Invalid),
    }
    Ok("ok".to_owned())
}

/// Returns the granted folder that a path is in, and the rest of the path.
fn folder(path: &str) -> Result<(Descriptor, String), ErrorCode> {
    let mut folders = get_directories().into_iter();
    let found = folders.find_map(|(folder, at)| Some((folder, path.strip_prefix(&at)?)));
    let (folder, rest) = found.ok_or(ErrorCode::NoEntry)?;
    Ok((folder, rest.trim_start_matches('/').to_owned()))
}

async fn open(path: &str, how: OpenFlags) -> Result<Descriptor, ErrorCode> {
    let (folder, rest) = folder(path)?;
    let flags = DescriptorFlags::READ | DescriptorFlags::WRITE;
    folder.open_at(PathFlags::SYMLINK_FOLLOW, rest, how, flags).await
}

/// Writes so many bytes at an offset, or at the end.
async fn write(file: &Descriptor, at: Option<u64>, size: u64) -> Result<(), ErrorCode> {
    let size = usize::try_from(size).map_err(|_| ErrorCode::Overflow)?;
    let (mut writer, data) = wasip3::wit_stream::new();
    let ended = match at {
        Some(at) => file.write_via_stream(data, at),
        None => file.append_via_stream(data),
    };
    let write = async {
        let _rest = writer.write_all(vec![b'x'; size]).await;
        drop(writer);
    };
    futures::future::join(async { ended.await }, write).await.0
}
