//! Makes a SHA-256 manifest of a tree, in the format of `sha256sum`.
//!
//! Links are not followed, and what is no regular file is named in a comment at
//! the end, which `sha256sum --check` passes over. A file that cannot be read
//! fails the task: a manifest is worth having when it is whole.

mod manifest;

use backlot_sdk::{Completed, Descriptor, Error, Final, Producer, Refusal, Request, Task};
use manifest::Manifest;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use walkdir::WalkDir;

/// How often progress is shown.
const REPORT_EVERY: Duration = Duration::from_millis(250);

/// How much is read between two looks at whether to go on.
const PIECE: usize = 64 << 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Checksum {
    path: PathBuf,
}

impl Producer for Checksum {
    type Input = Self;
    type Form = Final;
    const DESCRIPTOR: Descriptor = Descriptor::new(
        "checksum",
        "Makes a SHA-256 manifest of a folder, in the format of sha256sum",
    )
    .input_schema(include_str!("input.schema.json"));

    fn start(input: Self, _: &Request) -> Result<Self, Refusal> {
        match fs::metadata(&input.path) {
            Ok(kind) if kind.is_dir() || kind.is_file() => Ok(input),
            Ok(_) => Err(Refusal::InvalidInput(format!(
                "`path` `{}` is neither a folder nor a file",
                input.path.display()
            ))),
            Err(error) => Err(Refusal::Unavailable(format!(
                "`path` `{}` cannot be read: {error}",
                input.path.display()
            ))),
        }
    }

    async fn run(&self, task: &Task<Final>) -> Result<Completed, Error> {
        let mut manifest = Manifest::default();
        let mut files = self.list(task, &mut manifest).await?;
        files.sort();
        let mut buffer = vec![0; PIECE];
        let mut reported = Instant::now();
        for (hashed, path) in files.iter().enumerate() {
            if reported.elapsed() >= REPORT_EVERY {
                task.report(format!("{hashed} of {} files", files.len()));
                reported = Instant::now();
            }
            manifest.add(&hash(task, path, &mut buffer).await?, path);
        }
        Ok(Completed::with_detail(manifest.summary()).and_output(manifest.into_text()))
    }
}

impl Checksum {
    /// Returns the regular files, and has the manifest name what else there is.
    async fn list(
        &self,
        task: &Task<Final>,
        manifest: &mut Manifest,
    ) -> Result<Vec<String>, Error> {
        let mut files = Vec::new();
        for entry in WalkDir::new(&self.path) {
            task.checkpoint().await?;
            let entry = entry?;
            // WASI knows paths as UTF-8 only, so nothing is lost here.
            let path = entry.path().to_string_lossy().into_owned();
            let kind = entry.file_type();
            if kind.is_dir() {
                continue;
            }
            // Before anything is hashed, so that a tree that is too large does
            // not cost the time that hashing it takes.
            manifest.make_room(&path).map_err(Error::failed)?;
            if kind.is_file() {
                files.push(path);
            } else if kind.is_symlink() {
                manifest.skip("a symbolic link", &path);
            } else {
                manifest.skip("not a regular file", &path);
            }
        }
        Ok(files)
    }
}

async fn hash(task: &Task<Final>, path: &str, buffer: &mut [u8]) -> Result<String, Error> {
    let failed = |error| Error::failed(format!("{path} cannot be read: {error}"));
    let mut file = File::open(Path::new(path)).map_err(failed)?;
    let mut hash = Sha256::new();
    loop {
        match file.read(buffer).map_err(failed)? {
            0 => return Ok(format!("{:x}", hash.finalize())),
            count => hash.update(&buffer[..count]),
        }
        task.checkpoint().await?;
    }
}

backlot_sdk::export!(final: Checksum);
