//! `backlot run`: one task in the foreground, from its start to its exit code.

use std::{
    cell::{Cell, OnceCell},
    convert::Infallible,
    ffi::{OsStr, OsString},
    future::pending,
    io, mem,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use backlot_registry::{
    Caller, Kill, Killed, Mode, Observer, Registry, Start, StartError, Step, Stream, TaskId,
};
use backlot_wasm::{
    Ask, CommandInput, Component, ComponentForm, ComponentProducer, KindError, LimitsAsk, Policy,
    manifest_beside,
};
use bytes::Bytes;
use tokio::{
    io::AsyncReadExt as _,
    signal::unix::{Signal, SignalKind, signal},
    time::{MissedTickBehavior, interval, sleep, timeout},
};

use crate::{
    cli::{Common, Run},
    commands::warn,
    console::{Console, is_closed},
    exit::Exit,
    host::Host,
    policy::sources,
    render::{self, Unshown},
    wire::{self, Event, StreamName, Task},
};

/// How many instances the host has room for: one runs.
pub(super) const INSTANCES: u32 = 16;
/// How much of a task's output is written at a time, in bytes.
const PIECE_BYTES: usize = 256 << 10;
/// How often progress is looked at, and so how often it can be printed.
const PROGRESS: Duration = Duration::from_secs(1);
/// How long the process stays once a signal has it leave. A reader that reads
/// gets what is left by then; one that does not must not hold up a person.
const LEAVE: Duration = Duration::from_millis(500);

pub(crate) async fn run(args: Run, common: &Common, console: &Console) -> anyhow::Result<Exit> {
    let json = args.json;
    let mut signals = Signals::listen()?;
    let prepared = tokio::select! {
        prepared = prepare(args, common, console) => prepared,
        name = signals.next() => Err(Refused {
            why: format!("stopped by {name} before it started"),
            exit: Exit::Killed,
        }),
    };
    let (host, id) = match prepared {
        Ok(prepared) => prepared,
        Err(refused) => {
            tokio::select! {
                () = refused.tell(json, console) => {}
                _ = signals.next() => {}
            }
            return Ok(refused.exit);
        }
    };
    let follow = Follow {
        registry: host.registry().clone(),
        console: console.clone(),
        id,
        json,
        quiet: common.quiet,
        unread: OnceCell::new(),
        unshown: Cell::default(),
    };
    let ended = follow.to_the_end(&mut signals).await;
    tokio::select! {
        () = host.shutdown() => {}
        _ = signals.next() => {}
    }
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

    /// Tells it, whether or not anybody reads: the exit code tells it too.
    async fn tell(&self, json: bool, console: &Console) {
        if json {
            let error = render::one_line(&self.why.replace('\n', "; "));
            let event = Event::Refused { error, exit: self.exit.code() };
            let _ = console.out.write(wire::line(&event)).await;
        }
        // A policy has all that is wrong with it told.
        for line in self.why.lines() {
            console.err.say(&render::complaint(line)).await;
        }
    }
}

/// Loads, grants and starts what the command line asks for.
async fn prepare(
    mut args: Run,
    common: &Common,
    console: &Console,
) -> Result<(Host, TaskId), Refused> {
    let config = common.config_with_policy(INSTANCES);
    let config = config.map_err(|error| Refused::usage(error.to_string()))?;
    let ask = ask(&mut args, &config.policy)?;
    let folder = config.plugins.clone();
    let host = Host::start(config).map_err(|error| Refused::by(&error))?;
    let (component, file) = load(&host, &folder, &args.target).await?;
    warn(console, &host, common).await;
    let about = component.description();
    let producer = decided(host.policy(), &component, &file, &ask)?;
    let text = match args.input {
        Some(source) => Some(input(source, producer.limits().input).await?),
        None => None,
    };
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
    let _surface = host.registry().attach_surface("backlot run");
    let start = Start { label, input, owner: None, step: Step::default() };
    match host.registry().start(Arc::new(producer), start).await {
        Ok(id) => Ok((host, id)),
        Err(error @ StartError::InvalidLabel { .. }) => Err(Refused::usage(error.to_string())),
        Err(error) => Err(Refused::by(&error)),
    }
}

/// Returns what the flags ask for.
fn ask(args: &mut Run, policy: &Policy) -> Result<Ask, Refused> {
    let env = mem::take(&mut args.env).into_iter().collect::<Result<Vec<_>, _>>();
    let env = env.map_err(|error| Refused::usage(error.to_string()))?;
    let mut dirs = mem::take(&mut args.dirs);
    for dir in dirs.iter_mut().filter(|_| policy.is_some()) {
        dir.host = std::path::absolute(&dir.host).map_err(|error| {
            Refused::usage(format!("the folder {}: {error}", dir.host.display()))
        })?;
    }
    Ok(Ask {
        dirs: said(dirs),
        env: said(env),
        tcp: said(mem::take(&mut args.net)),
        udp: said(mem::take(&mut args.udp)),
        http: said(mem::take(&mut args.http)),
        private: said(mem::take(&mut args.private)),
        limits: LimitsAsk {
            memory: args.memory,
            deadline: args.deadline,
            cpu: args.cpu,
            ..LimitsAsk::default()
        },
        grace: args.grace,
        ..Ask::default()
    })
}

/// Returns what a flag named, unless it was never there.
fn said<T>(values: Vec<T>) -> Option<Vec<T>> {
    (!values.is_empty()).then_some(values)
}

/// Decides what a task of the component gets, whose file that is.
fn decided(
    policy: &Policy,
    component: &Component,
    file: &Path,
    ask: &Ask,
) -> Result<ComponentProducer, Refused> {
    let about = component.description();
    // What a policy gives to a kind is for the file that a person knows by that name,
    // not for any that says so of itself.
    let is_named = about.form == ComponentForm::Command
        || file.file_stem().is_some_and(|stem| stem == about.kind.as_str());
    if policy.is_some() && !is_named {
        let other = KindError::OtherKind { path: file.to_owned(), found: about.kind.clone() };
        return Err(Refused::by(&other));
    }
    let rules = policy.rules(&about.kind);
    rules.admits(&about.digest).map_err(|error| Refused::by(&error))?;
    let manifest = manifest_beside(file)
        .map_err(|error| Refused { why: error.to_string(), exit: Exit::Refused })?;
    component
        .decided(&rules, manifest.as_ref(), ask, &sources(policy))
        .map_err(|error| Refused::by(&error))
}

/// Loads a component file, or a kind where the target does not look like one, and
/// returns it with the file.
async fn load(host: &Host, folder: &Path, target: &OsStr) -> Result<(Component, PathBuf), Refused> {
    let path = Path::new(target);
    let is_path =
        target.as_bytes().contains(&b'/') || path.extension().is_some_and(|end| end == "wasm");
    let (loaded, file) = match target.to_str() {
        Some(kind) if !is_path => (host.load_kind(kind).await, folder.join(format!("{kind}.wasm"))),
        _ => (host.load_file(path).await, path.to_owned()),
    };
    loaded.map(|component| (component, file)).map_err(|error| Refused::by(&error))
}

/// Reads the input, no further than a task may take.
async fn input(source: OsString, limit: usize) -> Result<String, Refused> {
    let read = |file: Box<dyn tokio::io::AsyncRead + Unpin + Send>| async move {
        let mut bytes = Vec::new();
        // One byte more than the limit tells that there is more.
        file.take(limit as u64 + 1).read_to_end(&mut bytes).await.map(|_| bytes)
    };
    let (from, bytes) = match source.as_bytes() {
        b"-" => (" from stdin".to_owned(), read(Box::new(tokio::io::stdin())).await),
        [b'@', path @ ..] => {
            let path = Path::new(OsStr::from_bytes(path));
            let bytes = match tokio::fs::File::open(path).await {
                Ok(file) => read(Box::new(file)).await,
                Err(error) => Err(error),
            };
            (format!(" from {}", path.display()), bytes)
        }
        text => (String::new(), Ok(text.to_owned())),
    };
    let bytes =
        bytes.map_err(|error| Refused::usage(format!("cannot read the input{from}: {error}")))?;
    if bytes.len() > limit {
        return Err(Refused::usage(format!("the input{from} has more than {limit} bytes")));
    }
    String::from_utf8(bytes)
        .map_err(|_| Refused::usage(format!("the input{from} is not UTF-8 text")))
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
    console: Console,
    id: TaskId,
    json: bool,
    quiet: bool,
    /// Why nothing is written to stdout any more.
    unread: OnceCell<io::Error>,
    /// What was dropped before it could be written.
    unshown: Cell<Unshown>,
}

impl Follow {
    /// Shows the task until it has ended and all is told, or a signal has the
    /// process leave.
    async fn to_the_end(&self, signals: &mut Signals) -> anyhow::Result<Exit> {
        tokio::select! {
            told = self.tell() => told,
            never = self.progress() => match never {},
            () = self.stop_on(signals) => Ok(self.leave().await),
        }
    }

    /// Tells everything, from the start to the end.
    async fn tell(&self) -> anyhow::Result<Exit> {
        let gone = || format!("{} was dropped while it was followed", self.id);
        let me = Caller::Operator;
        let output = self.registry.observe(&self.id, &me, Stream::Output, 0).with_context(gone)?;
        let log = self.registry.observe(&self.id, &me, Stream::Log, 0).with_context(gone)?;
        let task = self.registry.get(&self.id, &me).with_context(gone)?;
        self.event(|| Event::Started {
            id: task.id.to_string(),
            kind: task.kind.to_string(),
            label: task.label.clone(),
        })
        .await;
        tokio::join!(self.print(output, Stream::Output), self.print(log, Stream::Log));
        let task = self.registry.wait(&self.id, &me, Duration::ZERO).await.with_context(gone)?;
        if self.unread.get().is_some_and(is_closed) {
            // What a reader no longer wants is done, as far as it is concerned.
            return Ok(Exit::Completed);
        }
        self.event(|| Event::Ended { task: Task::of(&task) }).await;
        if !self.quiet {
            self.console.err.say(&render::ending(&task, self.unshown.get())).await;
        }
        match self.unread.get() {
            Some(error) if !is_closed(error) => bail!("cannot write to stdout: {error}"),
            _ => Ok(Exit::of(task.status)),
        }
    }

    /// Leaves without what nobody has read by now.
    async fn leave(&self) -> Exit {
        match self.registry.wait(&self.id, &Caller::Operator, Duration::ZERO).await {
            Ok(task) if task.status.is_terminal() => {
                if !self.quiet {
                    self.console.err.note(&render::ending(&task, self.unshown.get()));
                }
                Exit::of(task.status)
            }
            // It ends with the process.
            _ => Exit::Killed,
        }
    }

    /// Prints the stream until the task has ended.
    async fn print(&self, mut observer: Observer, stream: Stream) {
        let mut texts = match stream {
            Stream::Output => vec![Text::of(StreamName::Stdout), Text::of(StreamName::Stderr)],
            Stream::Log => vec![Text::of(StreamName::Log)],
        };
        while let Some(piece) = observer.next(PIECE_BYTES).await {
            if self.unread.get().is_some() {
                // The rest is read without being shown, so that the end is heard.
                continue;
            }
            let name = match stream {
                Stream::Output => StreamName::of(piece.channel),
                Stream::Log => StreamName::Log,
            };
            if piece.dropped > 0 {
                // What comes next completes no character.
                self.finish(&mut texts).await;
                self.tell_dropped(name, piece.dropped).await;
            }
            if !self.json {
                self.write(name, piece.bytes).await;
            } else if let Some(text) = texts.iter_mut().find(|text| text.name == name)
                && let Some((offset, text)) = text.decoder.push(piece.offset, &piece.bytes)
            {
                self.event(|| Event::Output { stream: name, offset, text }).await;
            }
        }
        self.finish(&mut texts).await;
    }

    /// Prints the characters that will not be completed.
    async fn finish(&self, texts: &mut [Text]) {
        for text in texts {
            if let Some((offset, rest)) = text.decoder.finish() {
                self.event(|| Event::Output { stream: text.name, offset, text: rest }).await;
            }
        }
    }

    /// Tells how much was dropped at this point, and counts it.
    async fn tell_dropped(&self, stream: StreamName, bytes: u64) {
        let Unshown { output, log } = self.unshown.get();
        let (of, unshown) = match stream {
            StreamName::Log => ("the log", Unshown { output, log: log + bytes }),
            _ => ("output", Unshown { output: output + bytes, log }),
        };
        self.unshown.set(unshown);
        match self.json {
            true => self.event(|| Event::Dropped { stream, bytes }).await,
            false => {
                // Not waited for: stdout goes on where nobody reads stderr.
                self.console.err.note(&format!("backlot: {bytes} bytes of {of} were dropped here"));
            }
        }
    }

    /// Prints what the task reports of its progress.
    async fn progress(&self) -> Infallible {
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
                let line = format!("{}: {}", self.id, render::one_line(detail));
                self.console.err.say(&line).await;
            }
            shown = task.detail;
        }
    }

    /// Stops the task by signals: the first asks, the second forces. Resolves when
    /// the process is to leave: when the task was forced, or had ended before it
    /// was asked and all that is left is to be written.
    async fn stop_on(&self, signals: &mut Signals) {
        let name = signals.next().await;
        let had_ended = async {
            match self.stop(Mode::Ask, name).await {
                Some(Killed::AlreadyTerminal) => {}
                Some(Killed::Requested) | None => pending().await,
            }
        };
        tokio::select! {
            () = had_ended => {}
            // A second signal does not wait for the answer to the first, and the
            // process does not wait for a task that blocks its thread.
            name = signals.next() => { let _ = timeout(LEAVE, self.stop(Mode::Force, name)).await; }
        }
        sleep(LEAVE).await;
    }

    /// Stops the task and returns what came of it, unless it refused.
    async fn stop(&self, mode: Mode, reason: &str) -> Option<Killed> {
        let kill = Kill { mode, reason: Some(reason.to_owned()) };
        match self.registry.kill(&self.id, &Caller::Operator, kill).await {
            Ok(killed) => Some(killed),
            Err(error) => {
                let error = render::error(&error);
                self.console.err.note(&format!("{error}; press Ctrl-C again to force"));
                None
            }
        }
    }

    /// Writes bytes to the stream that they belong to.
    async fn write(&self, stream: StreamName, bytes: Bytes) {
        match stream {
            StreamName::Stdout => self.out(bytes).await,
            // What is for people decides nothing.
            StreamName::Stderr | StreamName::Log => _ = self.console.err.write(bytes).await,
        }
    }

    /// Prints an event where events were asked for.
    async fn event(&self, event: impl FnOnce() -> Event) {
        if self.json {
            self.out(wire::line(&event())).await;
        }
    }

    /// Writes to stdout. Once that fails, the task is asked to stop.
    async fn out(&self, bytes: impl Into<Bytes>) {
        if self.unread.get().is_some() {
            return;
        }
        if let Err(error) = self.console.out.write(bytes).await {
            // Output and log can find out at once, and the first reason stands.
            let _ = self.unread.set(error);
            self.stop(Mode::Ask, "nobody reads its output any more").await;
        }
    }
}

/// One stream of bytes on its way to text.
struct Text {
    name: StreamName,
    decoder: Decoder,
}

impl Text {
    fn of(name: StreamName) -> Self {
        Self { name, decoder: Decoder::default() }
    }
}

/// Turns pieces of bytes into text without splitting a character.
#[derive(Default)]
struct Decoder {
    held: Vec<u8>,
    offset: u64,
}

impl Decoder {
    /// Returns the text that is whole, with the offset of its first byte.
    fn push(&mut self, offset: u64, bytes: &[u8]) -> Option<(u64, String)> {
        if self.held.is_empty() {
            self.offset = offset;
        }
        self.held.extend_from_slice(bytes);
        let whole = self.held.len() - incomplete_tail(&self.held);
        let rest = self.held.split_off(whole);
        let start = self.offset;
        let text = String::from_utf8_lossy(&mem::replace(&mut self.held, rest)).into_owned();
        self.offset = offset + bytes.len() as u64 - self.held.len() as u64;
        (!text.is_empty()).then_some((start, text))
    }

    /// Returns what was held, although it is not whole.
    fn finish(&mut self) -> Option<(u64, String)> {
        let held = mem::take(&mut self.held);
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
            if let Some((at, part)) = decoder.push(offset as u64, &[byte]) {
                assert_eq!(at, joined.len() as u64);
                joined.push_str(&part);
            }
        }
        assert_eq!((joined.as_str(), decoder.finish()), (text, None));
    }

    #[test]
    fn an_incomplete_end_shows_once_as_a_replacement() {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.push(0, &[b'a', 0xF0, 0x9F]), Some((0, "a".into())));
        assert_eq!(decoder.finish(), Some((1, "\u{FFFD}".into())));
        assert_eq!(decoder.finish(), None);
    }

    #[test]
    fn what_is_not_text_is_replaced_and_not_held_back() {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.push(7, &[0xFF, b'x']), Some((7, "\u{FFFD}x".into())));
    }
}
