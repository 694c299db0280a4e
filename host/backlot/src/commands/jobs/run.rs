//! `backlot run`: a job in the foreground, in this process or in the host's that holds
//! the data folder.

use std::{
    env,
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use backlot_jobs::{Job, JobId, Phase, Status};
use backlot_registry::{Caller, TaskId};
use backlot_surface::{
    ClientError, Reason,
    wire::{Expects, Grant, JobView, RetryView, SpawnRequest, TraceParent},
};
use backlot_wasm::Limits;
use tokio::time::{Instant, sleep};

use super::{
    Told,
    follow::{Follow as FollowThere, news},
    reach::{self, Looking, Reach},
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

/// How long it is waited until a host that is about to end has ended, and how often it is
/// looked.
const LEAVING: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(50);

/// The variable with the trace that a command is a part of.
const TRACEPARENT: &str = "TRACEPARENT";

/// A job that runs.
enum Prepared {
    /// In this process.
    Here(Box<Holding>, Box<Job>),
    /// In the host's that holds the data folder.
    There(Looking, Box<JobView>),
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
        Ok(Prepared::There(looking, job)) => {
            let follow = FollowThere::new(looking, common, console, job.id.to_string(), json);
            match follow.to_the_end(&mut signals).await {
                Ok(exit) => Ok(exit),
                Err(told) => Ok(told.tell(json, console).await),
            }
        }
        Ok(Prepared::Here(holding, job)) => {
            signals.heed(&holding);
            let here = Here { holding: &holding, console, id: job.id, json, quiet: common.quiet };
            let ended = match job.status().is_terminal() {
                // Its key had it already, and it ended in another process perhaps.
                true => here.as_recorded(common, &mut signals).await,
                false => Box::pin(here.to_the_end(&job, &mut signals)).await,
            };
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
    let mut request = request_of(&args.target, &args.as_job, grant)?;
    request.traceparent = env::var(TRACEPARENT).ok().and_then(|text| traceparent(&text));
    let deadline = Instant::now() + LEAVING;
    let holding = loop {
        let acting =
            reach::act(common, "backlot run", reach::Stays::WhileJobsRun).await.map_err(refused)?;
        if let Some(holding) = acting.holding {
            break holding;
        }
        wanted.read(&mut args.with, Limits::default().input).await?;
        wanted.put_into(&mut request);
        request.expects = Some(Expects {
            plugins: common.named_plugins().map(|folder| absolute(&folder)).transpose()?,
            // One that says nothing of tasks judges nothing, as the host has it too.
            policy: common
                .policy_file()
                .filter(|_| policy.is_some())
                .map(|file| absolute(&file))
                .transpose()?,
        });
        // A host that breaks off may have begun it, so that it is asked for under a key.
        if request.key.is_none() {
            let key = JobId::random().map_err(|error| Refused::by(&error))?;
            request.key = Some(format!("run {key}"));
        }
        match acting.client.spawn(&request).await {
            Ok(job) => {
                let looking = (Reach::Host(acting.client), Some(acting.folder));
                return Ok(Prepared::There(looking, Box::new(job)));
            }
            Err(error) if is_leaving(&error) && Instant::now() < deadline => sleep(AGAIN).await,
            Err(error) => return Err(refused(error.into())),
        }
    };
    match spawn_here(&holding, args, &mut wanted, request, common, console).await {
        Ok(job) => Ok(Prepared::Here(Box::new(holding), Box::new(job))),
        Err(refused) => {
            holding.end().await;
            Err(refused)
        }
    }
}

/// Tells whether a host has not answered because it was about to end.
fn is_leaving(error: &ClientError) -> bool {
    match error {
        ClientError::NoHost { .. } | ClientError::Broken { .. } => true,
        ClientError::Failure(reply) => reply.code == Reason::Closed.code(),
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
                  ended: leave out --detach, or start a host with `backlot serve`"
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

/// Returns the trace that the command is a part of, where it is one: whoever has a shell
/// run it need not know of that, so it is no reason to refuse it.
fn traceparent(text: &str) -> Option<String> {
    let parent: TraceParent = text.trim().parse().ok()?;
    Some(parent.to_string())
}

fn request_of(target: &OsStr, as_job: &AsJob, grant: Grant) -> Result<SpawnRequest, Refused> {
    let path = Path::new(target);
    let is_path =
        target.as_bytes().contains(&b'/') || path.extension().is_some_and(|end| end == "wasm");
    let (kind, file) = match target.to_str() {
        Some(kind) if !is_path => (Some(kind.to_owned()), None),
        _ => (None, Some(absolute(path)?)),
    };
    if as_job.attempts == Some(1) && !as_job.retry_on.is_empty() {
        return Err(Refused::usage(
            "--attempts 1 leaves none for --retry-on: the first one counts",
        ));
    }
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
        webhook: as_job.webhook.clone(),
        grant,
        ..SpawnRequest::default()
    })
}

/// Returns what the flags ask for, as it is written down.
fn grant_of(with: &With) -> Result<Grant, Refused> {
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

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
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
    /// Shows the runs of the job, one after the other, from where it was spawned until it
    /// has ended or a signal has the process leave.
    async fn to_the_end(&self, spawned: &Job, signals: &mut Signals) -> anyhow::Result<Exit> {
        let manager = self.holding.jobs().manager();
        let watch = manager.watch(self.id);
        let mut told = None;
        // A run that was over by then was another process's perhaps, whose tasks are not
        // this one's.
        let is_over = spawned.run().is_none();
        let mut shown = spawned.last_run().filter(|_| is_over).map(|run| run.id);
        let mut exit = None;
        loop {
            // Made before the look, so that no change falls between.
            let changed = watch.notified();
            let job = manager.get(self.id, &Caller::Operator).await?;
            if let Some(run) = job.last_run().filter(|run| shown != Some(run.id))
                && let Some(task) = run.task.as_ref().and_then(|task| task.parse::<TaskId>().ok())
            {
                shown = Some(run.id);
                let registry = self.holding.host().registry();
                let follow = Follow::new(registry, self.console, task, self.json, self.quiet)
                    .of_job(Followed { manager: manager.clone(), id: self.id });
                let ended = Box::pin(follow.to_the_end(signals)).await?;
                if follow.was_left() {
                    return Ok(ended);
                }
                if follow.is_unread() {
                    // What a reader no longer wants is done, as far as it is concerned.
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

    /// Shows what was recorded of the job.
    async fn as_recorded(&self, common: &Common, signals: &mut Signals) -> anyhow::Result<Exit> {
        let shown = async {
            let looking = reach::look(common).await?;
            let id = self.id.to_string();
            let follow = FollowThere::new(looking, common, self.console, id, self.json);
            follow.to_the_end(signals).await
        };
        match shown.await {
            Ok(exit) => Ok(exit),
            Err(told) => Ok(told.tell(self.json, self.console).await),
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
        if last == Some(exit) {
            return exit;
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
/// unless Ctrl-C ends them. Who ends the process with SIGTERM wants it to end.
pub(super) async fn leave(holding: Holding, console: &Console, quiet: bool, signals: &mut Signals) {
    if !signals.is_to_end() {
        tokio::select! {
            () = others(&holding, console, quiet) => {}
            _ = signals.next() => {}
        }
    }
    if signals.is_to_end_at_once() {
        return;
    }
    tokio::select! {
        _ = holding.end() => {}
        _ = signals.next() => {}
    }
}

/// Waits until no job runs, and none can be begun.
async fn others(holding: &Holding, console: &Console, quiet: bool) {
    let jobs = holding.jobs();
    let mut is_told = quiet;
    loop {
        // Made before the look, so that no change falls between.
        let changed = jobs.changed();
        let Ok(census) = jobs.census().await else { return };
        if census.working == 0 {
            break;
        }
        if !is_told {
            let line = match census.working {
                1 => "1 other job runs here and is waited for; Ctrl-C ends it".to_owned(),
                count => {
                    format!("{count} other jobs run here and are waited for; Ctrl-C ends them")
                }
            };
            console.err.say(&line).await;
            is_told = true;
        }
        changed.await;
    }
    // One may have been begun in this moment. Whoever asks for another finds another host.
    jobs.refuse();
    loop {
        let changed = jobs.changed();
        match jobs.census().await {
            Ok(census) if census.working > 0 => changed.await,
            _ => return,
        }
    }
}
