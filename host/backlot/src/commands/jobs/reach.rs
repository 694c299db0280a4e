//! Who is asked about jobs: the host that holds the data folder, or the folder itself.

use std::{cell::RefCell, path::PathBuf, rc::Rc, time::Duration};

use backlot_jobs::{
    DataFolder, FolderError, Job, JobId, LookError, Query, SqliteOptions, SqliteStore, Status,
    Store as _, StoreError,
};
use backlot_surface::{
    Client, ClientError, Failure, Reason,
    wire::{JobView, ListQuery, LookQuery, Page},
};
use tokio::time::{Instant, sleep};

use super::Told;
use crate::{
    cli::Common,
    holding::{Holding, HoldingConfig, HoldingError},
    jobs::JobsConfig,
    render,
    settings::Settings,
};

/// How long a host is waited for that holds the folder and does not answer yet, because
/// it is starting.
const STARTING: Duration = Duration::from_secs(10);
/// How often it is looked for meanwhile.
pub(in crate::commands) const AGAIN: Duration = Duration::from_millis(50);

/// What can be looked at.
pub(super) enum Reach {
    /// The host that holds the folder.
    Host(Client),
    /// The folder, which no host holds.
    Folder(Box<SqliteStore>),
    /// Nothing: no host has ever run there.
    Nothing,
}

/// What can be looked at, and the folder if there is one.
pub(super) type Looking = (Reach, Option<DataFolder>);

/// Somebody who looks on while a host may end: then whoever comes after it is asked, or
/// else the folder.
pub(super) struct Onlooker<'a> {
    common: &'a Common,
    looking: RefCell<Rc<Looking>>,
}

impl<'a> Onlooker<'a> {
    pub(super) fn new(common: &'a Common, looking: Looking) -> Self {
        Self { common, looking: RefCell::new(Rc::new(looking)) }
    }

    /// Returns who is asked.
    pub(super) fn looking(&self) -> Rc<Looking> {
        self.looking.borrow().clone()
    }

    /// Asks, and once more who is there then if the host has not answered.
    pub(super) async fn ask<T>(
        &self,
        ask: impl AsyncFn(&Looking) -> Result<T, Told>,
    ) -> Result<T, Told> {
        let mut deadline = None;
        loop {
            let asked = self.looking();
            match ask(&asked).await {
                Err(told) if told.is_of_a_host_that_is_gone() => {
                    let now = Instant::now();
                    if now > *deadline.get_or_insert(now + STARTING) {
                        return Err(told);
                    }
                    sleep(AGAIN).await;
                    *self.looking.borrow_mut() = Rc::new(look(self.common).await?);
                }
                answer => return answer,
            }
        }
    }
}

/// What changes can be asked of.
pub(in crate::commands) struct Acting {
    pub(in crate::commands) client: Client,
    /// The client's address may lead through it.
    pub(in crate::commands) folder: DataFolder,
    /// This process, where no other holds the folder.
    pub(in crate::commands) holding: Option<Holding>,
}

/// Returns where the data folder is to be.
pub(in crate::commands) fn path(common: &Common) -> Result<PathBuf, Told> {
    common.data().ok_or_else(no_home)
}

/// Returns the data folder, which is made if need be.
pub(in crate::commands) fn folder(common: &Common) -> Result<DataFolder, Told> {
    let path = path(common)?;
    DataFolder::open(&path).map_err(|error| unusable(&error))
}

/// Returns the data folder, if there is one.
pub(in crate::commands) fn existing(common: &Common) -> Result<Option<DataFolder>, Told> {
    let path = common.data().ok_or_else(no_home)?;
    match DataFolder::find(&path) {
        Ok(folder) => Ok(Some(folder)),
        Err(FolderError::Missing { .. }) => Ok(None),
        Err(error) => Err(unusable(&error)),
    }
}

/// Returns the data folder, which has to be there.
pub(in crate::commands) fn found(common: &Common) -> Result<DataFolder, Told> {
    let path = path(common)?;
    DataFolder::find(&path).map_err(|error| unusable(&error))
}

pub(in crate::commands) fn unusable(error: &FolderError) -> Told {
    Told::new(Reason::Refused, render::chain(error))
}

fn no_home() -> Told {
    Told::new(
        Reason::Invalid,
        "there is no home to have a data folder in: name one with --data or BACKLOT_DATA",
    )
}

/// Returns what can be looked at. Nothing is made or changed.
pub(super) async fn look(common: &Common) -> Result<Looking, Told> {
    let Some(folder) = existing(common)? else { return Ok((Reach::Nothing, None)) };
    match Client::connect(&folder.socket_address()).await {
        Ok(client) => return Ok((Reach::Host(client), Some(folder))),
        Err(ClientError::NoHost { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let database = folder.database();
    if !database.exists() {
        return Ok((Reach::Nothing, Some(folder)));
    }
    let open = move || SqliteStore::open_read_only(&database, SqliteOptions::default());
    let store = tokio::task::spawn_blocking(open).await;
    let store = store.unwrap_or(Err(StoreError::Closed)).map_err(Failure::from)?;
    Ok((Reach::Folder(Box::new(store)), Some(folder)))
}

/// Returns what changes can be asked of: the host that holds the folder, or this process,
/// which holds it from then on.
pub(super) async fn act(common: &Common, name: &str, stays: Stays) -> Result<Acting, Told> {
    act_with(common, name, stays, |config| config).await
}

/// Does as [`act`], in a process that sets itself up as it needs to be.
pub(in crate::commands) async fn act_with(
    common: &Common,
    name: &str,
    stays: Stays,
    set_up: impl Fn(HoldingConfig) -> HoldingConfig,
) -> Result<Acting, Told> {
    let folder = folder(common)?;
    let deadline = Instant::now() + STARTING;
    loop {
        match Client::connect(&folder.socket_address()).await {
            Ok(client) => return Ok(Acting { client, folder, holding: None }),
            Err(ClientError::NoHost { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        match hold(common, &folder, name, stays, &set_up).await {
            Ok(holding) => {
                let client = Client::connect(&folder.socket_address()).await?;
                return Ok(Acting { client, folder, holding: Some(holding) });
            }
            Err(Held::Told(told)) => return Err(told),
            // It was taken meanwhile, or is just being given free.
            Err(Held::ByOther(told)) if Instant::now() > deadline => return Err(told),
            Err(Held::ByOther(_)) => sleep(AGAIN).await,
        }
    }
}

/// How long this process holds the folder, where it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::commands) enum Stays {
    /// Until its own job has ended, and those of others.
    WhileJobsRun,
    /// For a moment: jobs that wait are left to the next.
    ForAMoment,
}

/// How many instances a host of jobs has room for: one for each job that may be live, and
/// some to describe what is loaded meanwhile.
pub(in crate::commands) const INSTANCES: u32 = 1_100;

/// Why this process does not hold the folder.
enum Held {
    ByOther(Told),
    Told(Told),
}

async fn hold(
    common: &Common,
    folder: &DataFolder,
    name: &str,
    stays: Stays,
    set_up: impl Fn(HoldingConfig) -> HoldingConfig,
) -> Result<Holding, Held> {
    let config = common.config_with_policy(INSTANCES);
    let config =
        config.map_err(|error| Held::Told(Told::new(Reason::Invalid, error.to_string())))?;
    let settings = common.settings();
    let settings =
        settings.map_err(|error| Held::Told(Told::new(Reason::Invalid, error.to_string())))?;
    let mut jobs = jobs_config(folder, &settings).map_err(Held::Told)?;
    jobs.manager.starts_waiting = stays == Stays::WhileJobsRun;
    let config = HoldingConfig {
        host: config,
        jobs,
        policy: common.policy_file(),
        ..HoldingConfig::new(folder.path(), name)
    };
    match Holding::start(set_up(config)).await {
        Ok(holding) => Ok(holding),
        Err(error) if error.is_held() => Err(Held::ByOther(refused(&error))),
        Err(error) => Err(Held::Told(refused(&error))),
    }
}

/// Returns how jobs are set up in a data folder.
pub(in crate::commands) fn jobs_config(
    folder: &DataFolder,
    settings: &Settings,
) -> Result<JobsConfig, Told> {
    let mut jobs = JobsConfig::new(folder.path());
    jobs.webhooks = settings.webhooks.clone();
    let telemetry = settings.telemetry.options();
    jobs.telemetry =
        telemetry.map_err(|error| Told::new(Reason::Invalid, render::chain(&error)))?;
    Ok(jobs)
}

/// Nothing was started.
pub(in crate::commands) fn refused(error: &HoldingError) -> Told {
    Told::new(Reason::Refused, render::chain(error))
}

impl Reach {
    /// Returns a part of the jobs.
    pub(super) async fn jobs(&self, query: &ListQuery) -> Result<Page, Told> {
        match self {
            Self::Host(client) => Ok(client.jobs(query).await?),
            Self::Nothing => Ok(Page { jobs: Vec::new(), next: None }),
            Self::Folder(store) => {
                let query = Query {
                    session: query.session.as_deref().map(Into::into),
                    status: query.status.clone(),
                    before: query.before,
                    limit: query.limit.unwrap_or(100),
                };
                let page = store.list(query).await.map_err(Failure::from)?;
                let jobs = page.jobs.iter().map(|job| JobView::brief(job, progress(job)));
                Ok(Page { jobs: jobs.collect(), next: page.next })
            }
        }
    }

    /// Returns all there is to a job, by its id or the first digits of it.
    pub(super) async fn job(&self, digits: &str) -> Result<JobView, Told> {
        match self {
            Self::Host(client) => Ok(client.job(digits, &LookQuery::default()).await?),
            Self::Nothing => Err(unknown(digits)),
            Self::Folder(store) => {
                let job = record(store, digits).await?;
                let mut runs = store.past_runs(job.id).await.map_err(Failure::from)?;
                runs.extend(job.last_run().cloned());
                Ok(JobView::whole(&job, progress(&job), &runs))
            }
        }
    }
}

/// Returns how far a job is that nobody runs: its host is gone, and the next one will say
/// that it was interrupted.
fn progress(job: &Job) -> Option<String> {
    match job.status() {
        Status::Working => Some("no host runs it any more".to_owned()),
        Status::Queued => Some("no host is there to start it".to_owned()),
        _ => None,
    }
}

async fn record(store: &SqliteStore, digits: &str) -> Result<Job, Told> {
    let prefix = digits.parse().map_err(|_| unknown(digits))?;
    let found: Vec<JobId> = store.find(prefix).await.map_err(Failure::from)?;
    let id = match found.as_slice() {
        [] => return Err(unknown(digits)),
        [id] => *id,
        _ => return Err(Failure::from(LookError::Ambiguous(digits.to_owned())).into()),
    };
    let job = store.job(id).await.map_err(Failure::from)?;
    job.ok_or_else(|| unknown(digits))
}

fn unknown(digits: &str) -> Told {
    let digits = digits.chars().take(64).collect();
    Failure::from(LookError::Unknown(digits)).into()
}
