//! `backlot run`: one task in the foreground, from its start to its exit code.

use std::{cell::Cell, io, path::Path, pin::pin, sync::Arc, time::Duration};

use anyhow::Context as _;
use backlot_registry::{
    Caller, Form, Kill, Mode, Observer, Producer, Registry, Start, StartError, Step, StopBounds,
    Stream, TaskId,
};
use backlot_wasm::{CommandInput, Component, ComponentForm, Grant, Limits};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    signal::unix::{Signal, SignalKind, signal},
    time::{MissedTickBehavior, interval},
};

use crate::{
    cli::{Common, Run},
    config::Config,
    exit::Exit,
    host::Host,
    render::{self, Written},
    wire::{Event, StreamName, Task},
};

/// How much of a task's output is written at a time, in bytes.
const PIECE_BYTES: usize = 256 << 10;
/// How often progress is looked at, and so how often it can be printed.
const PROGRESS: Duration = Duration::from_secs(1);

pub(crate) async fn run(args: Run, common: &Common) -> anyhow::Result<Exit> {
    let json = args.json;
    let mut signals = Signals::listen()?;
    let prepared = tokio::select! {
        prepared = prepare(args, common) => prepared,
        name = signals.next() => Err(Refused {
            why: format!("stopped by {name} before it started"),
            exit: Exit::Killed,
        }),
    };
    let (host, started) = match prepared {
        Ok(prepared) => prepared,
        Err(refused) => return refused.tell(json),
    };
    let follow = Follow {
        registry: host.registry().clone(),
        id: started.id,
        json,
        quiet: common.quiet,
        unread: Cell::new(false),
    };
    let ended = follow.to_the_end(started.form, &mut signals).await;
    host.shutdown().await;
    ended
}

/// Why nothing was started.
struct Refused {
    why: String,
    exit: Exit,
}

impl Refused {
    fn usage(why: impl Into<String>) -> Self {
        Self { why: why.into(), exit: Exit::Usage }
    }

    fn by(error: &(impl std::error::Error + ?Sized)) -> Self {
        Self { why: render::chain(error), exit: Exit::Refused }
    }

    fn tell(self, json: bool) -> anyhow::Result<Exit> {
        if json {
            let event = Event::Refused { error: self.why.clone(), exit: self.exit.code() };
            // A reader that is gone gets its answer from the exit code.
            let _ = render::json(&event)?;
        }
        render::note(&format!("backlot: {}", render::one_line(&self.why)));
        Ok(self.exit)
    }
}

/// A task that was started.
struct Started {
    id: TaskId,
    form: Form,
}

/// Loads, grants and starts what the command line asks for.
async fn prepare(args: Run, common: &Common) -> Result<(Host, Started), Refused> {
    let limits = Limits {
        memory: args.memory.unwrap_or(Limits::default().memory),
        deadline: args.deadline,
        cpu: args.cpu,
        ..Limits::default()
    };
    let grant = Grant { dirs: args.dirs, env: args.env, net: args.net };
    let grant = grant.open().map_err(|error| Refused::by(&error))?;
    let text = match args.input.as_deref() {
        Some(source) => Some(input(source, limits.input).await?),
        None => None,
    };
    let mut config = Config { instances: 16, ..Config::default() };
    if let Some(plugins) = &common.plugins {
        config.plugins.clone_from(plugins);
    }
    let bounds = config.registry.bounds;
    let host = Host::start(config).map_err(|error| Refused::by(&error))?;
    let component = load(&host, &args.target).await?;
    let about = component.description();
    let is_program = about.form == ComponentForm::Command;
    if !is_program && !args.args.is_empty() {
        return Err(Refused::usage(format!(
            "`{}` is a producer and takes no arguments after --; its input goes into --input",
            about.kind
        )));
    }
    let label = args.label.unwrap_or_else(|| label(&about.kind, &args.args, text.as_deref()));
    let input = match is_program {
        true => CommandInput { args: args.args, stdin: text.unwrap_or_default() }.to_text(),
        false => text.unwrap_or_default(),
    };
    let mut producer = component.producer(grant, limits);
    if let Some(grace) = args.grace {
        producer = producer.with_bounds(StopBounds { grace, ..bounds });
    }
    let form = producer.form();
    let _surface = host.registry().attach_surface("backlot run");
    let start = Start { label, input, owner: None, step: Step::default() };
    match host.registry().start(Arc::new(producer), start).await {
        Ok(id) => Ok((host, Started { id, form })),
        Err(error @ StartError::InvalidLabel { .. }) => Err(Refused::usage(error.to_string())),
        Err(error) => Err(Refused::by(&error)),
    }
}

/// Loads a component file, or a kind where the target does not look like one.
async fn load(host: &Host, target: &str) -> Result<Component, Refused> {
    let path = Path::new(target);
    let is_path = target.contains('/') || path.extension().is_some_and(|end| end == "wasm");
    let loaded = match is_path {
        true => host.load_file(path).await,
        false => host.load_kind(target).await,
    };
    loaded.map_err(|error| Refused::by(&error))
}

/// Reads the input, no further than a task may take.
async fn input(source: &str, limit: usize) -> Result<String, Refused> {
    let read = |file: Box<dyn tokio::io::AsyncRead + Unpin + Send>| async move {
        let mut bytes = Vec::new();
        // One byte more than the limit tells that there is more.
        file.take(limit as u64 + 1).read_to_end(&mut bytes).await.map(|_| bytes)
    };
    let (name, bytes) = match source.strip_prefix('@') {
        None if source == "-" => ("stdin", read(Box::new(tokio::io::stdin())).await),
        None => return Ok(source.to_owned()),
        Some(path) => (
            path,
            match tokio::fs::File::open(path).await {
                Ok(file) => read(Box::new(file)).await,
                Err(error) => Err(error),
            },
        ),
    };
    let bytes = bytes
        .map_err(|error| Refused::usage(format!("cannot read the input from {name}: {error}")))?;
    if bytes.len() > limit {
        return Err(Refused::usage(format!("the input from {name} has more than {limit} bytes")));
    }
    String::from_utf8(bytes)
        .map_err(|_| Refused::usage(format!("the input from {name} is not UTF-8 text")))
}

/// Returns the label of a task that was given none: what a person typed.
fn label(kind: &backlot_registry::Kind, args: &[String], input: Option<&str>) -> String {
    let mut label = kind.to_string();
    for part in args.iter().map(String::as_str).chain(input) {
        label.push(' ');
        label.push_str(part);
    }
    render::one_line(&label)
}

/// A task that is followed to its end.
struct Follow {
    registry: Registry,
    id: TaskId,
    json: bool,
    quiet: bool,
    /// Nobody reads stdout any more.
    unread: Cell<bool>,
}

impl Follow {
    async fn to_the_end(&self, form: Form, signals: &mut Signals) -> anyhow::Result<Exit> {
        let gone = || format!("{} was dropped while it was followed", self.id);
        let me = Caller::Operator;
        let output = self.registry.observe(&self.id, &me, Stream::Output, 0).with_context(gone)?;
        let log = self.registry.observe(&self.id, &me, Stream::Log, 0).with_context(gone)?;
        let task = self.registry.get(&self.id, &me).with_context(gone)?;
        self.announce(|| Event::Started {
            id: task.id.to_string(),
            kind: task.kind.to_string(),
            label: task.label.clone(),
        })
        .await?;
        {
            let mut printed = pin!(async {
                tokio::try_join!(self.print(output), self.print_log(log)).map(|_| ())
            });
            let mut stops = pin!(self.stop_on(signals));
            let mut progress = pin!(self.progress());
            loop {
                tokio::select! {
                    done = &mut printed => break done?,
                    () = &mut stops => {}
                    () = &mut progress => {}
                }
            }
        }
        let task = self.registry.wait(&self.id, &me, Duration::ZERO).await.with_context(gone)?;
        if form == Form::Final {
            self.print_final().await?;
        }
        if self.unread.get() {
            // What a reader no longer wants is done, as far as it is concerned.
            return Ok(Exit::Completed);
        }
        self.announce(|| Event::Ended { task: Task::of(&task) }).await?;
        if !self.quiet {
            render::note(&render::ending(&task));
        }
        Ok(Exit::of(task.status))
    }

    /// Prints a stream kind's output until the task has ended.
    async fn print(&self, mut output: Observer) -> anyhow::Result<()> {
        let mut texts = [Decoder::default(), Decoder::default()];
        while let Some(piece) = output.next(PIECE_BYTES).await {
            if self.unread.get() {
                // The rest is read without being shown, so that the end is heard.
                continue;
            }
            let name = StreamName::of(piece.channel);
            let written = match self.json {
                true => {
                    let text = &mut texts[usize::from(name == StreamName::Stderr)];
                    self.output_events(name, text, piece.offset, piece.dropped, &piece.bytes)
                        .await?
                }
                false => {
                    if piece.dropped > 0 {
                        render::note(&format!(
                            "backlot: {} bytes of output were dropped here",
                            piece.dropped
                        ));
                    }
                    write(name, &piece.bytes).await?
                }
            };
            if written.is_closed() {
                self.unread.set(true);
                self.stop(Mode::Ask, "nobody reads its output any more").await;
            }
        }
        if self.json && !self.unread.get() {
            for (text, name) in texts.iter_mut().zip([StreamName::Stdout, StreamName::Stderr]) {
                if let Some((offset, text)) = text.finish() {
                    self.announce(|| Event::Output { stream: name, offset, text }).await?;
                }
            }
        }
        Ok(())
    }

    /// Prints what the guest logs until the task has ended.
    async fn print_log(&self, mut log: Observer) -> anyhow::Result<()> {
        let mut text = Decoder::default();
        while let Some(piece) = log.next(PIECE_BYTES).await {
            if self.json {
                // Whether anybody still reads is found out by the output.
                let _ = self
                    .output_events(
                        StreamName::Log,
                        &mut text,
                        piece.offset,
                        piece.dropped,
                        &piece.bytes,
                    )
                    .await?;
            } else {
                let _ = write(StreamName::Log, &piece.bytes).await?;
            }
        }
        Ok(())
    }

    /// Prints the output of a kind that hands it over at its end.
    async fn print_final(&self) -> anyhow::Result<()> {
        let read = self.registry.read(&self.id, &Caller::Operator, usize::MAX).await?;
        let written = match self.json {
            true => {
                self.event(|| Event::Output {
                    stream: StreamName::Stdout,
                    offset: 0,
                    text: read.text,
                })
                .await?
            }
            false => write(StreamName::Stdout, read.text.as_bytes()).await?,
        };
        if written.is_closed() {
            tracing::debug!("nobody read the final output");
        }
        Ok(())
    }

    /// Prints what the task reports of its progress, until it is dropped.
    async fn progress(&self) {
        let mut ticks = interval(PROGRESS);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut shown = None;
        loop {
            ticks.tick().await;
            let Ok(task) = self.registry.get(&self.id, &Caller::Operator) else { continue };
            if task.status.is_terminal() || self.quiet || task.detail == shown {
                continue;
            }
            if let Some(detail) = &task.detail {
                render::note(&format!("{}: {}", self.id, render::one_line(detail)));
            }
            shown = task.detail;
        }
    }

    /// Stops the task: the first signal asks, every further one forces.
    async fn stop_on(&self, signals: &mut Signals) {
        let name = signals.next().await;
        let asked = pin!(self.stop(Mode::Ask, name));
        // A second signal does not wait for the answer to the first.
        let mut asked = asked;
        let mut answered = false;
        loop {
            tokio::select! {
                () = &mut asked, if !answered => answered = true,
                name = signals.next() => self.stop(Mode::Force, name).await,
            }
        }
    }

    async fn stop(&self, mode: Mode, reason: &str) {
        let kill = Kill { mode, reason: Some(reason.to_owned()) };
        if let Err(error) = self.registry.kill(&self.id, &Caller::Operator, kill).await {
            render::note(&format!(
                "backlot: {}; press Ctrl-C again to force",
                render::chain(&error)
            ));
        }
    }

    async fn output_events(
        &self,
        stream: StreamName,
        text: &mut Decoder,
        offset: u64,
        dropped: u64,
        bytes: &[u8],
    ) -> anyhow::Result<Written> {
        if dropped > 0
            && self.event(|| Event::Dropped { stream, bytes: dropped }).await?.is_closed()
        {
            return Ok(Written::Closed);
        }
        match text.push(offset, dropped > 0, bytes) {
            Some((offset, text)) => self.event(|| Event::Output { stream, offset, text }).await,
            None => Ok(Written::Whole),
        }
    }

    /// Prints an event whether or not anybody still reads.
    async fn announce(&self, event: impl FnOnce() -> Event) -> anyhow::Result<()> {
        self.event(event).await.map(|_| ())
    }

    /// Prints an event where events were asked for.
    async fn event(&self, event: impl FnOnce() -> Event) -> anyhow::Result<Written> {
        if !self.json {
            return Ok(Written::Whole);
        }
        let line = serde_json::to_string(&event())? + "\n";
        Ok(write(StreamName::Stdout, line.as_bytes()).await?)
    }
}

/// Writes to the stream that the piece belongs to, and flushes.
async fn write(stream: StreamName, bytes: &[u8]) -> io::Result<Written> {
    let result = match stream {
        StreamName::Stdout => {
            let mut stdout = tokio::io::stdout();
            match stdout.write_all(bytes).await {
                Ok(()) => stdout.flush().await,
                Err(error) => Err(error),
            }
        }
        StreamName::Stderr | StreamName::Log => {
            let mut stderr = tokio::io::stderr();
            match stderr.write_all(bytes).await {
                Ok(()) => stderr.flush().await,
                Err(error) => Err(error),
            }
        }
    };
    Written::of(result)
}

/// Turns pieces of bytes into text without splitting a character.
#[derive(Default)]
struct Decoder {
    held: Vec<u8>,
    offset: u64,
}

impl Decoder {
    /// Returns the text that is whole, with the offset of its first byte.
    fn push(&mut self, offset: u64, gap: bool, bytes: &[u8]) -> Option<(u64, String)> {
        if gap {
            // What was held will never be completed.
            self.held.clear();
        }
        if self.held.is_empty() {
            self.offset = offset;
        }
        self.held.extend_from_slice(bytes);
        let whole = self.held.len() - incomplete_tail(&self.held);
        let rest = self.held.split_off(whole);
        let start = self.offset;
        let text = String::from_utf8_lossy(&std::mem::replace(&mut self.held, rest)).into_owned();
        self.offset = offset + bytes.len() as u64 - self.held.len() as u64;
        (!text.is_empty()).then_some((start, text))
    }

    /// Returns what was held, although it is not whole.
    fn finish(&mut self) -> Option<(u64, String)> {
        let held = std::mem::take(&mut self.held);
        (!held.is_empty()).then(|| (self.offset, String::from_utf8_lossy(&held).into_owned()))
    }
}

/// Returns how many bytes at the end are the beginning of a character.
fn incomplete_tail(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let byte = bytes[bytes.len() - back];
        let width = match byte {
            0x80..=0xBF => continue,
            0xC2..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF4 => 4,
            _ => return 0,
        };
        return if width > back { back } else { 0 };
    }
    0
}

/// The signals that stop a task.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?,
            terminate: signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_never_splits_a_character() {
        let text = "€✓🦀";
        let mut decoder = Decoder::default();
        let mut joined = String::new();
        for (offset, byte) in text.bytes().enumerate() {
            if let Some((at, part)) = decoder.push(offset as u64, false, &[byte]) {
                assert_eq!(at, joined.len() as u64);
                joined.push_str(&part);
            }
        }
        assert_eq!((joined.as_str(), decoder.finish()), (text, None));
    }

    #[test]
    fn an_incomplete_end_shows_once_as_a_replacement() {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.push(0, false, &[b'a', 0xF0, 0x9F]), Some((0, "a".into())));
        assert_eq!(decoder.finish(), Some((1, "\u{FFFD}".into())));
        assert_eq!(decoder.finish(), None);
    }

    #[test]
    fn what_is_not_text_is_replaced_and_not_held_back() {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.push(7, false, &[0xFF, b'x']), Some((7, "\u{FFFD}x".into())));
    }
}
