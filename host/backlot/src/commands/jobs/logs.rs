//! `backlot logs`: what a job's runs have written.

use backlot_jobs::{
    DataFolder,
    output::{Part, Recording},
};
use backlot_surface::wire::{Content, OutputPiece, OutputQuery, OutputReply, PartName, StreamName};
use bytes::Bytes;
use serde::Serialize;

use super::{
    Told,
    reach::{self, Looking, Onlooker, Reach},
};
use crate::{
    cli::{Common, Logs},
    commands::follow::Signals,
    console::{Console, is_closed},
    exit::Exit,
    render, wire,
};

/// How much is read at a time, in bytes.
pub(super) const PIECE_BYTES: usize = 256 << 10;
/// How long a host is asked to wait for more.
pub(super) const WAIT_MS: u64 = 20_000;

pub(crate) async fn logs(args: Logs, common: &Common, console: &Console) -> anyhow::Result<Exit> {
    let mut signals = Signals::listen()?;
    let shown = tokio::select! {
        shown = show(&args, common, console) => shown,
        _ = signals.next() => return Ok(Exit::Completed),
    };
    match shown {
        Ok(()) => Ok(Exit::Completed),
        Err(told) => Ok(told.tell(args.json, console).await),
    }
}

async fn show(args: &Logs, common: &Common, console: &Console) -> Result<(), Told> {
    let onlooker = Onlooker::new(common, reach::look(common).await?);
    let job = onlooker.ask(async |(reach, _)| reach.job(&args.job).await).await?;
    let id = job.id.to_string();
    let printer = Printer { console, json: args.json };
    let read = |part| Reading { onlooker: &onlooker, id: &id, part, follow: args.follow };
    let printed = async {
        if args.log {
            return read(PartName::Log).print(&printer).await;
        }
        let (output, log) = (read(PartName::Output), read(PartName::Log));
        // Who reads one of them no more waits for nothing of the other.
        tokio::try_join!(output.print(&printer), log.print(&printer)).map(|_| ())
    };
    match printed.await {
        Err(Stop::Told(told)) => Err(told),
        // Nobody reads on.
        Ok(()) | Err(Stop::Closed) => Ok(()),
    }
}

/// Why nothing more is printed.
pub(super) enum Stop {
    Told(Told),
    Closed,
}

impl From<Told> for Stop {
    fn from(told: Told) -> Self {
        Self::Told(told)
    }
}

/// One part of a job's output, as it is read.
struct Reading<'a> {
    onlooker: &'a Onlooker<'a>,
    id: &'a str,
    part: PartName,
    follow: bool,
}

impl Reading<'_> {
    async fn print(&self, printer: &Printer<'_>) -> Result<(), Stop> {
        let mut after = 0;
        loop {
            let reply = self.next(after).await?;
            let is_over = match self.follow {
                true => reply.ended,
                false => reply.pieces.is_empty(),
            };
            after = reply.next;
            printer.pieces(reply.pieces).await?;
            if is_over {
                return Ok(());
            }
        }
    }

    async fn next(&self, after: u64) -> Result<OutputReply, Told> {
        let wait_ms = self.follow.then_some(WAIT_MS);
        let query = OutputQuery { part: self.part, after, max: Some(PIECE_BYTES), wait_ms };
        output(self.onlooker, self.id, &query).await
    }
}

/// Returns what there is of a job's output, from whoever has it.
pub(super) async fn output(
    onlooker: &Onlooker<'_>,
    id: &str,
    query: &OutputQuery,
) -> Result<OutputReply, Told> {
    let ask = async |(reach, folder): &Looking| match (reach, folder) {
        (Reach::Host(client), _) => Ok(client.output(id, query).await?),
        (Reach::Folder(_), Some(folder)) => recorded(folder, id, query.part, query.after).await,
        _ => Ok(OutputReply { next: query.after, ended: true, ..OutputReply::default() }),
    };
    onlooker.ask(ask).await
}

/// Reads what was recorded. Without a host nothing is added to it.
async fn recorded(
    folder: &DataFolder,
    id: &str,
    part: PartName,
    after: u64,
) -> Result<OutputReply, Told> {
    let job = folder.job(id);
    let read = move || Recording::new(job).read(Part::from(part), after, PIECE_BYTES);
    let read = tokio::task::spawn_blocking(read).await;
    let portion = read.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    let portion = portion.map_err(|error| Told::by(&error))?;
    let ended = portion.pieces.is_empty();
    let pieces = portion.pieces.into_iter().map(|piece| OutputPiece {
        offset: piece.offset,
        stream: piece.stream.into(),
        run: piece.run,
        time_ms: piece.time_ms,
        dropped: piece.dropped,
        content: match String::from_utf8(piece.bytes) {
            Ok(text) => Content::Text(text),
            Err(error) => Content::Base64(error.into_bytes()),
        },
    });
    Ok(OutputReply { pieces: pieces.collect(), next: portion.next, ended })
}

/// Prints pieces of output.
pub(super) struct Printer<'a> {
    pub(super) console: &'a Console,
    pub(super) json: bool,
}

/// A line of `backlot logs --json`.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Line<'a> {
    Output(&'a OutputPiece),
    Dropped { stream: StreamName, bytes: u64 },
}

impl Printer<'_> {
    pub(super) async fn pieces(&self, pieces: Vec<OutputPiece>) -> Result<(), Stop> {
        for piece in pieces {
            if piece.dropped > 0 {
                self.dropped(&piece).await?;
            }
            if piece.content.bytes().is_empty() {
                continue;
            }
            match (self.json, piece.stream) {
                (true, _) => self.out(wire::line(&Line::Output(&piece))).await?,
                (false, StreamName::Stdout) => {
                    self.out(Bytes::copy_from_slice(piece.content.bytes())).await?;
                }
                // What is for people decides nothing.
                (false, _) => {
                    let bytes = Bytes::copy_from_slice(piece.content.bytes());
                    let _ = self.console.err.write(bytes).await;
                }
            }
        }
        Ok(())
    }

    async fn dropped(&self, piece: &OutputPiece) -> Result<(), Stop> {
        let bytes = piece.dropped;
        if self.json {
            return self.out(wire::line(&Line::Dropped { stream: piece.stream, bytes })).await;
        }
        let of = match piece.stream {
            StreamName::Log | StreamName::Note => "the log",
            StreamName::Stdout | StreamName::Stderr => "output",
        };
        self.console
            .err
            .note(&render::complaint(&format!("{bytes} bytes of {of} were dropped here")));
        Ok(())
    }

    async fn out(&self, bytes: impl Into<Bytes>) -> Result<(), Stop> {
        match self.console.out.write(bytes).await {
            Ok(()) => Ok(()),
            Err(error) if is_closed(&error) => Err(Stop::Closed),
            Err(error) => Err(Stop::Told(Told::by(&error))),
        }
    }
}
