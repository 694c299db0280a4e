//! `backlot run`: a job in the foreground, in this process or in the host's that holds
//! the data folder.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use backlot_jobs::{Job, JobId, Phase, Status};
use backlot_registry::{Caller, TaskId};
use backlot_surface::{
    Client,
    wire::{Expects, Grant, JobView, RetryView, SpawnRequest},
};
use backlot_wasm::Limits;

use super::{
    Told,
    follow::{Follow as FollowThere, news},
    reach,
};
use crate::{
    cli::{AsJob, Common, Run, With},
    commands::{
        follow::{Follow, Followed, Signals},
        print,
        run::{decided, load},
        start::{Refused, Wanted},
        warn,
    },
    console::Console,
    exit::Exit,
    holding::Holding,
    wire,
};

/// A job that runs.
enum Prepared {
    /// In this process.
    Here(Box<Holding>, JobId),
    /// In the host's that holds the data folder.
    There(Client, Box<JobView>),
}

pub(crate) async fn run(args: Run, common: &Common, console: &Console) -> anyhow::Result<Exit> {
    let (json, detach) = (args.with.json, args.as_job.detach);
    let mut signals = Signals::listen()?;
    let prepared = tokio::select! {
        prepared = prepare(args, common, console) => prepared,
        name = signals.next() => Err(Refused {
            why: format!("stopped by {name} before it started"),
            exit: Exit::Killed,
        }),
    };
    match prepared {
        Err(refused) => {
            tokio::select! {
                () = refused.tell(json, console) => {}
                _ = signals.next() => {}
            }
            Ok(refused.exit)
        }
        Ok(Prepared::There(_, job)) if detach => {
            let text = if json { wire::line(&*job) } else { format!("{}\n", job.id) };
            print(console, text).await?;
            Ok(Exit::Completed)
        }
        Ok(Prepared::There(client, job)) => {
            let id = job.id.to_string();
            let follow = FollowThere { client: &client, console, id, json, quiet: common.quiet };
            match follow.to_the_end(&mut signals).await {
                Ok(exit) => Ok(exit),
                Err(told) => Ok(told.tell(json, console).await),
            }
        }
        Ok(Prepared::Here(holding, id)) => {
            let here = Here { holding: &holding, console, id, json, quiet: common.quiet };
            let ended = here.to_the_end(&mut signals).await;
            leave(*holding, console, common.quiet, &mut signals).await;
            ended
        }
    }
}

/// Spawns what the command line asks for.
async fn prepare(mut args: Run, common: &Common, console: &Console) -> Result<Prepared, Refused> {
    let policy = common.policy().map_err(|error| Refused::usage(error.to_string()))?;
    let grant = grant_of(&args.with);
    let mut wanted = Wanted::of(&mut args.with, &policy)?;
    let grant = grant?;
    let acting = reach::act(common, "backlot run").await.map_err(refused)?;
    let mut request = request_of(&args.target, &args.as_job, grant)?;
    let Some(holding) = acting.holding else {
        wanted.read(&mut args.with, Limits::default().input).await?;
        wanted.put_into(&mut request);
        let plugins = common.config(0).plugins;
        request.expects = Some(Expects {
            plugins: Some(absolute(&plugins)?),
            policy: common.policy_file().map(|file| absolute(&file)).transpose()?,
        });
        let job = acting.client.spawn(&request).await.map_err(|error| refused(error.into()))?;
        return Ok(Prepared::There(acting.client, Box::new(job)));
    };
    match spawn_here(&holding, args, &mut wanted, request, common, console).await {
        Ok(job) => Ok(Prepared::Here(Box::new(holding), job.id)),
        Err(refused) => {
            holding.end().await;
            Err(refused)
        }
    }
}

async fn spawn_here(
    holding: &Holding,
    mut args: Run,
    wanted: &mut Wanted,
    mut request: SpawnRequest,
    common: &Common,
    console: &Console,
) -> Result<Job, Refused> {
    if args.as_job.detach {
        return Err(Refused {
            why: "no host holds the data folder, so nobody would run it once this process has \
                  ended: leave out --detach, or have a host run"
                .to_owned(),
            exit: Exit::Refused,
        });
    }
    let host = holding.host();
    let plugins = common.config(0).plugins;
    // What would be refused when the run is launched is refused now, in the words of who
    // asks.
    let (component, file) = load(host, &plugins, &args.target).await?;
    warn(console, host, common).await;
    let producer = decided(host.policy(), &component, &file, &wanted.ask)?;
    wanted.read(&mut args.with, producer.limits().input).await?;
    wanted.check_args(component.description())?;
    wanted.put_into(&mut request);
    let spawned = holding.jobs().spawn(request).await;
    spawned.map_err(|failure| refused(failure.into()))
}

fn refused(told: Told) -> Refused {
    Refused { why: told.line(), exit: told.exit() }
}

fn request_of(target: &OsStr, as_job: &AsJob, grant: Grant) -> Result<SpawnRequest, Refused> {
    let path = Path::new(target);
    let is_path =
        target.as_bytes().contains(&b'/') || path.extension().is_some_and(|end| end == "wasm");
    let (kind, file) = match target.to_str() {
        Some(kind) if !is_path => (Some(kind.to_owned()), None),
        _ => (None, Some(absolute(path)?)),
    };
    let millis = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let retry = (!as_job.retry_on.is_empty()).then(|| {
        let mut policy = backlot_jobs::RetryPolicy {
            on: as_job.retry_on.clone(),
            ..backlot_jobs::RetryPolicy::default()
        };
        if let Some(backoff) = as_job.backoff {
            policy.first_ms = millis(backoff);
        }
        RetryView::of(&policy)
    });
    Ok(SpawnRequest {
        kind,
        file,
        session: as_job.session.clone(),
        key: as_job.key.clone(),
        attempts: as_job.attempts,
        retry,
        pin: as_job.pin,
        after_ms: as_job.after.map(millis),
        at_ms: as_job.at,
        cron: as_job.cron.clone(),
        queue: as_job.queue,
        grant,
        ..SpawnRequest::default()
    })
}

/// Returns what the flags ask for, as it is written down.
fn grant_of(with: &With) -> Result<Grant, Refused> {
    let millis = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let mut dirs = Vec::with_capacity(with.dirs.len());
    for dir in &with.dirs {
        // Whoever runs it stands somewhere else.
        let host = std::path::absolute(&dir.host).map_err(|error| {
            Refused::usage(format!("the folder {}: {error}", dir.host.display()))
        })?;
        let host = host.to_str().ok_or_else(|| {
            Refused::usage(format!("the folder {} has a name that is no text", host.display()))
        })?;
        dirs.push(format!("{host}::{}:{}", dir.guest, dir.access));
    }
    let mut env = Vec::with_capacity(with.env.len());
    for variable in with.env.iter().flatten() {
        env.push(format!("{}={}", variable.name, variable.value));
    }
    fn texts<T: std::fmt::Display>(values: &[T]) -> Vec<String> {
        values.iter().map(ToString::to_string).collect()
    }
    Ok(Grant {
        dirs,
        env,
        net: texts(&with.net),
        udp: texts(&with.udp),
        http: texts(&with.http),
        private: texts(&with.private),
        memory: with.memory,
        cpu_ms: with.cpu.map(millis),
        deadline_ms: with.deadline.map(millis),
        grace_ms: with.grace.map(millis),
        work_folder: with.work_folder,
    })
}

fn absolute(path: &Path) -> Result<PathBuf, Refused> {
    std::path::absolute(path)
        .map_err(|error| Refused::usage(format!("the path {}: {error}", path.display())))
}

/// A job that is followed in the process that runs it.
struct Here<'a> {
    holding: &'a Holding,
    console: &'a Console,
    id: JobId,
    json: bool,
    quiet: bool,
}

impl Here<'_> {
    /// Shows the runs of the job, one after the other, until it has ended or a signal has
    /// the process leave.
    async fn to_the_end(&self, signals: &mut Signals) -> anyhow::Result<Exit> {
        let manager = self.holding.jobs().manager();
        let watch = manager.watch(self.id);
        let mut told = None;
        let mut shown: Option<TaskId> = None;
        let mut exit = None;
        loop {
            // Made before the look, so that no change falls between.
            let changed = watch.notified();
            let job = manager.get(self.id, &Caller::Operator).await?;
            let task = job.last_run().and_then(|run| run.task.as_ref()?.parse().ok());
            if let Some(task) = task.filter(|task| shown.as_ref() != Some(task)) {
                shown = Some(task.clone());
                let registry = self.holding.host().registry();
                let follow = Follow::new(registry, self.console, task, self.json, self.quiet)
                    .of_job(Followed { manager: manager.clone(), id: self.id });
                let ended = follow.to_the_end(signals).await?;
                if follow.was_left() {
                    return Ok(ended);
                }
                exit = Some(ended);
                continue;
            }
            if job.status().is_terminal() {
                return Ok(self.exit(&job, exit).await);
            }
            if !matches!(job.phase, Phase::Working { .. }) {
                self.say(&job, &mut told).await;
            }
            tokio::select! {
                () = changed => {}
                name = signals.next() => {
                    let why = Some(name.to_owned());
                    let how = backlot_jobs::How::Ask;
                    manager.stop(self.id, &Caller::Operator, how, "terminal", why).await?;
                }
            }
        }
    }

    /// Tells what the job waits for.
    async fn say(&self, job: &Job, told: &mut Option<String>) {
        let progress = self.holding.jobs().manager().progress(std::slice::from_ref(job)).await;
        let view = JobView::brief(job, progress.into_iter().next().flatten());
        let news = news(&view);
        if !self.quiet
            && let Some(line) = news.as_ref().filter(|line| told.as_ref() != Some(*line))
        {
            self.console.err.say(&crate::render::one_line(line)).await;
        }
        *told = news;
    }

    /// Returns how the command ends: as the last run that was shown, unless the job says
    /// something else.
    async fn exit(&self, job: &Job, last: Option<Exit>) -> Exit {
        let exit = match job.status() {
            Status::Completed => Exit::Completed,
            Status::Cancelled => Exit::Killed,
            _ => Exit::Failed,
        };
        // What a reader no longer wants is done, as far as it is concerned.
        if last == Some(exit) || last == Some(Exit::Completed) && exit == Exit::Killed {
            return last.unwrap_or(exit);
        }
        if !self.quiet {
            let summary = job.summary().unwrap_or_default();
            let line = format!("{} {}: {summary}", job.id.short(), job.status());
            self.console.err.say(&crate::render::one_line(&line)).await;
        }
        exit
    }
}

/// Ends a host that this process has been. Jobs of others that run in it are waited for,
/// unless a signal comes.
pub(super) async fn leave(holding: Holding, console: &Console, quiet: bool, signals: &mut Signals) {
    let mut is_told = false;
    while let Ok(census) = holding.jobs().census().await {
        if census.working == 0 {
            break;
        }
        if !is_told && !quiet {
            let line = format!(
                "{} other jobs run here and are waited for; Ctrl-C ends them",
                census.working
            );
            console.err.say(&line).await;
            is_told = true;
        }
        tokio::select! {
            () = holding.jobs().changed() => {}
            _ = signals.next() => break,
        }
    }
    tokio::select! {
        _ = holding.end() => {}
        _ = signals.next() => {}
    }
}
