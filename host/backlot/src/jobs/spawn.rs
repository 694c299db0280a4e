//! From what is asked for to a job: which component, which input, and under which name.

use std::{path::Path, sync::atomic::Ordering};

use backlot_jobs::{Job, JobId, LaunchError, Refused, Spawn, SpawnError};
use backlot_registry::{Kind, SessionId, StartError};
use backlot_surface::{
    Failure, Reason,
    wire::{SpawnRequest, Target},
};
use backlot_wasm::{
    CommandInput, ComponentForm, Description, KindError, Pinned, chain, load_checked,
};

use super::{Jobs, Recorded as _, versions::is_there};
use crate::{render, webhooks};

/// The session that jobs work for which nobody named one for: that of whoever runs the
/// host.
pub(crate) const LOCAL: &str = "local";

impl Jobs {
    /// Spawns what a request asks for, and returns it once its first run is under way, or
    /// it waits.
    ///
    /// # Errors
    ///
    /// [`Failure`], with nothing left.
    pub async fn spawn(&self, request: SpawnRequest) -> Result<Job, Failure> {
        request.check()?;
        if let Some(found) =
            request.label.iter().flat_map(|it| it.chars()).find(|it| it.is_control())
        {
            let why = StartError::InvalidLabel { found }.to_string();
            return Err(Failure::new(Reason::Invalid, why));
        }
        if let Some(why) = request.webhook.as_deref().and_then(webhooks::never) {
            return Err(Failure::new(Reason::Invalid, format!("`webhook`: {why}")));
        }
        // What cannot be read is refused now, and not when the job is started.
        request.grant.ask().map_err(|why| Failure::new(Reason::Invalid, why))?;
        let (kind, about, pinned) = match request.target()? {
            Target::Kind(kind) => {
                let pinned = self.versions.newest(&kind).await.map_err(not_there)?;
                let about = pinned.component().description().clone();
                let digest = request.pin.then(|| about.digest.to_string());
                if digest.is_some() {
                    self.versions.keep(&pinned).await.map_err(not_there)?;
                }
                (kind, about, digest)
            }
            Target::File(file) => {
                let pinned = self.file(&file).await?;
                let about = pinned.component().description().clone();
                // What has its name by then may be something else.
                (about.kind.clone(), about.clone(), Some(about.digest.to_string()))
            }
        };
        let input = input_of(&about, &request)?;
        let session: SessionId = request.session.as_deref().unwrap_or(LOCAL).into();
        let label = request.label.clone();
        let label =
            label.unwrap_or_else(|| label_of(&kind, &request.args, request.input.as_deref()));
        let spawn = Spawn {
            label: Some(label),
            grant: request.grant.to_record(),
            key: request.key.clone(),
            max_attempts: request.attempts,
            retry: request.retry_policy(),
            pinned,
            start: request.start()?,
            queue: request.queue,
            announced: request.is_announced(),
            webhook: request.webhook.clone(),
            trace: request.traceparent.clone(),
            ..Spawn::new(kind, session.clone(), input)
        };
        // What is refused opens no session, and most are open: to look first would cost each
        // spawn a read.
        let spawned = match JobId::of_session(&session) {
            None => self.manager.spawn(spawn.clone()).await,
            Some(_) => Err(SpawnError::Refused(Refused::NoSession(session.as_str().to_owned()))),
        };
        let spawned = match spawned {
            Err(SpawnError::Refused(Refused::NoSession(_))) => {
                self.manager.open_session(session).await?;
                self.manager.spawn(spawn).await
            }
            spawned => spawned,
        };
        spawned.map_err(|error| match error {
            // It came just before the host refused, and its run just after.
            SpawnError::Launch(LaunchError::Unavailable(_)) if self.is_leaving() => {
                SpawnError::Closed.into()
            }
            error => error.into(),
        })
    }

    fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Acquire)
    }

    /// Loads a component from a file of its own, and keeps it.
    async fn file(&self, file: &Path) -> Result<Pinned, Failure> {
        let unknown = |error: &KindError| Failure::new(Reason::UnknownKind, chain(error));
        let engine = self.versions.engine();
        let checked = load_checked(engine, file, None).await.map_err(|error| unknown(&error))?;
        let about = checked.component.description();
        // What a policy gives to a kind is for the file that a person knows by that name,
        // not for any that says so of itself.
        let is_named = about.form == ComponentForm::Command
            || file.file_stem().is_some_and(|stem| stem == about.kind.as_str());
        if self.versions.plugins().catalog().policy().is_some() && !is_named {
            let (path, found) = (file.to_owned(), about.kind.clone());
            return Err(unknown(&KindError::OtherKind { path, found }));
        }
        let at = self.versions.file(&about.digest);
        if !is_there(&at) {
            let kept = self.versions.put(at, checked.bytes.clone(), checked.manifest.clone());
            kept.await.map_err(not_there)?;
        }
        let manifest = checked.manifest.as_deref();
        let source = file.with_extension("toml").display().to_string();
        let manifest = manifest.map(|text| backlot_wasm::Manifest::parse(text, &source));
        let manifest = manifest.transpose();
        let manifest =
            manifest.map_err(|error| Failure::new(Reason::Refused, error.to_string()))?;
        Ok(Pinned::new(checked.component, manifest))
    }
}

/// Returns the input of the first run.
fn input_of(about: &Description, request: &SpawnRequest) -> Result<String, Failure> {
    let stdin = request.input.clone().unwrap_or_default();
    if about.form == ComponentForm::Command {
        return Ok(CommandInput { args: request.args.clone(), stdin }.to_text());
    }
    if request.args.is_empty() {
        return Ok(stdin);
    }
    Err(Failure::new(
        Reason::Invalid,
        format!("`{}` is a producer and takes no arguments, but an input", about.kind),
    ))
}

/// Returns the label of a job that was given none: what a person would have typed.
fn label_of(kind: &Kind, args: &[String], input: Option<&str>) -> String {
    let mut label = kind.to_string();
    for part in args.iter().map(String::as_str).chain(input) {
        label.push(' ');
        label.push_str(part);
    }
    render::one_line(&label)
}

fn not_there(error: LaunchError) -> Failure {
    match error {
        LaunchError::Refused(why) => Failure::new(Reason::UnknownKind, why),
        LaunchError::Unavailable(why) => Failure::new(Reason::Unavailable, why),
    }
}
