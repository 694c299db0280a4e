//! `backlot files`: what a job has left in its work folder.

use std::{fs::File, io::Read as _};

use backlot_jobs::files;
use backlot_surface::{
    Client, Reason,
    wire::{FileName, FileView, FilesQuery, FilesReply},
};
use bytes::Bytes;

use super::{Told, reach, reach::Reach};
use crate::{
    cli::{Common, Files},
    commands::print,
    console::Console,
    exit::Exit,
    render, wire,
};

/// How many are listed.
const MOST: usize = 10_000;
/// How much of a file is printed at a time, in bytes.
const PIECE_BYTES: usize = 256 << 10;

pub(crate) async fn files(args: Files, common: &Common, console: &Console) -> anyhow::Result<Exit> {
    let done = async {
        let (reach, folder) = reach::look(common).await?;
        let job = reach.job(&args.job).await?;
        let id = job.id.to_string();
        // What is there is read where it is, whoever holds the folder.
        let work = folder.map(|folder| folder.work(&id));
        let Some(work) = work else {
            return Err(Told::new(Reason::UnknownFile, "the job has left no files"));
        };
        match (&args.path, &reach) {
            (Some(path), Reach::Host(client)) => {
                let name = FileName::Path(path.to_string_lossy().into_owned());
                download(client, &id, &name, console).await.map(|()| None)
            }
            (Some(path), _) => {
                let path = path.clone();
                let opened = tokio::task::spawn_blocking(move || files::open(&work, &path)).await;
                let opened = opened.map_err(|error| Told::by(&error))?;
                let file =
                    opened.map_err(|error| Told::new(Reason::UnknownFile, error.to_string()))?;
                copy(file, console).await.map(|()| None)
            }
            (None, Reach::Host(client)) => {
                let query = FilesQuery { limit: Some(MOST) };
                Ok(Some(client.files(&id, &query).await?))
            }
            (None, _) => {
                let listed = tokio::task::spawn_blocking(move || files::list(&work, MOST)).await;
                let listed = listed.map_err(|error| Told::by(&error))?;
                Ok(Some(FilesReply::of(&listed.map_err(|error| Told::by(&error))?)))
            }
        }
    };
    match done.await {
        Err(told) => Ok(told.tell(args.json, console).await),
        Ok(None) => Ok(Exit::Completed),
        Ok(Some(reply)) if args.json => {
            print(console, wire::line(&reply)).await?;
            Ok(Exit::Completed)
        }
        Ok(Some(reply)) => {
            for file in &reply.files {
                if !print(console, line(file)).await? {
                    break;
                }
            }
            if reply.has_more {
                console.err.say(&render::complaint("there are more files than are listed")).await;
            }
            Ok(Exit::Completed)
        }
    }
}

fn line(file: &FileView) -> String {
    let path = file.name.to_path();
    format!("{:>12}  {}\n", file.bytes, render::one_line(&path.display().to_string()))
}

async fn download(
    client: &Client,
    id: &str,
    name: &FileName,
    console: &Console,
) -> Result<(), Told> {
    let mut file = client.file(id, name).await?;
    while let Some(bytes) = file.next().await? {
        console.out.write(bytes).await.map_err(|error| Told::by(&error))?;
    }
    Ok(())
}

async fn copy(mut file: File, console: &Console) -> Result<(), Told> {
    loop {
        let read = tokio::task::spawn_blocking(move || {
            let mut bytes = vec![0; PIECE_BYTES];
            let count = file.read(&mut bytes);
            count.map(|count| {
                bytes.truncate(count);
                (file, bytes)
            })
        });
        let read = read.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        let (rest, bytes) = read.map_err(|error| Told::by(&error))?;
        if bytes.is_empty() {
            return Ok(());
        }
        console.out.write(Bytes::from(bytes)).await.map_err(|error| Told::by(&error))?;
        file = rest;
    }
}
