//! From flags to a task that was started.

use std::{
    ffi::{OsStr, OsString},
    mem,
    os::unix::ffi::OsStrExt as _,
    path::Path,
    sync::Arc,
};

use backlot_registry::{Kind, Producer, Start, StartError, Step, TaskId};
use backlot_surface::wire::SpawnRequest;
use backlot_wasm::{Ask, CommandInput, ComponentForm, Description, LimitsAsk, Policy};
use tokio::io::AsyncReadExt as _;

use crate::{
    cli::With,
    console::Console,
    exit::Exit,
    host::Host,
    render,
    wire::{self, Event},
};

/// Why nothing was started.
pub(super) struct Refused {
    pub(super) why: String,
    pub(super) exit: Exit,
}

impl Refused {
    pub(super) fn usage(why: impl Into<String>) -> Self {
        Self { why: why.into(), exit: Exit::Usage }
    }

    pub(super) fn by(error: &(impl std::error::Error + ?Sized)) -> Self {
        Self { why: render::chain(error), exit: Exit::Refused }
    }

    /// Tells it, whether or not anybody reads: the exit code tells it too.
    pub(super) async fn tell(&self, json: bool, console: &Console) {
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

/// What a task is started with, as the flags say it.
pub(super) struct Wanted {
    pub(super) ask: Ask,
    input: Option<String>,
    label: Option<String>,
    args: Vec<String>,
}

impl Wanted {
    /// Reads it from the flags. The input is read later: how much of it is taken is a
    /// matter of the policy.
    pub(super) fn of(with: &mut With, policy: &Policy) -> Result<Self, Refused> {
        Ok(Self {
            ask: ask(with, policy)?,
            input: None,
            label: with.label.take(),
            args: mem::take(&mut with.args),
        })
    }

    /// Reads the input, no further than a task may take.
    pub(super) async fn read(&mut self, with: &mut With, limit: usize) -> Result<(), Refused> {
        if let Some(source) = with.input.take() {
            self.input = Some(input(source, limit).await?);
        }
        Ok(())
    }

    /// Refuses arguments for what takes none.
    pub(super) fn check_args(&self, about: &Description) -> Result<(), Refused> {
        if about.form == ComponentForm::Command || self.args.is_empty() {
            return Ok(());
        }
        Err(Refused::usage(format!(
            "`{}` is a producer and takes no arguments after --; its input goes into --input",
            about.kind
        )))
    }

    /// Puts what was read into what asks for a job.
    pub(super) fn put_into(&self, request: &mut SpawnRequest) {
        request.input.clone_from(&self.input);
        request.label.clone_from(&self.label);
        request.args.clone_from(&self.args);
    }

    /// Starts a task of the component that says that of itself.
    pub(super) async fn start(
        &self,
        host: &Host,
        about: &Description,
        producer: Arc<dyn Producer>,
    ) -> Result<TaskId, Refused> {
        self.check_args(about)?;
        let is_program = about.form == ComponentForm::Command;
        let text = self.input.as_deref();
        let label = self.label.clone();
        let label = label.unwrap_or_else(|| label_of(&about.kind, &self.args, text));
        let stdin = text.unwrap_or_default().to_owned();
        let input = match is_program {
            true => CommandInput { args: self.args.clone(), stdin }.to_text(),
            false => stdin,
        };
        let start = Start { label, input, owner: None, step: Step::default() };
        match host.registry().start(producer, start).await {
            Ok(id) => Ok(id),
            Err(error @ StartError::InvalidLabel { .. }) => Err(Refused::usage(error.to_string())),
            Err(error) => Err(Refused::by(&error)),
        }
    }
}

/// Returns what the flags ask for.
fn ask(with: &mut With, policy: &Policy) -> Result<Ask, Refused> {
    let env = mem::take(&mut with.env).into_iter().collect::<Result<Vec<_>, _>>();
    let env = env.map_err(|error| Refused::usage(error.to_string()))?;
    let mut dirs = mem::take(&mut with.dirs);
    for dir in dirs.iter_mut().filter(|_| policy.is_some()) {
        dir.host = std::path::absolute(&dir.host).map_err(|error| {
            Refused::usage(format!("the folder {}: {error}", dir.host.display()))
        })?;
    }
    Ok(Ask {
        dirs: said(dirs),
        env: said(env),
        tcp: said(mem::take(&mut with.net)),
        udp: said(mem::take(&mut with.udp)),
        http: said(mem::take(&mut with.http)),
        private: said(mem::take(&mut with.private)),
        limits: LimitsAsk {
            memory: with.memory,
            deadline: with.deadline,
            cpu: with.cpu,
            work_folder: with.work_folder,
            ..LimitsAsk::default()
        },
        grace: with.grace,
        ..Ask::default()
    })
}

/// Returns what a flag named, unless it was never there.
fn said<T>(values: Vec<T>) -> Option<Vec<T>> {
    (!values.is_empty()).then_some(values)
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
fn label_of(kind: &Kind, args: &[String], input: Option<&str>) -> String {
    let mut label = kind.to_string();
    for part in args.iter().map(String::as_str).chain(input) {
        label.push(' ');
        label.push_str(part);
    }
    render::one_line(&label)
}
