//! Who is asked about jobs: the host that holds the data folder, or the folder itself.

use std::time::Duration;

use backlot_jobs::{
    DataFolder, FolderError, Job, JobId, LookError, Query, SqliteOptions, SqliteStore, Store as _,
    StoreError,
};
use backlot_surface::{
    Client, ClientError, Failure, Reason,
    wire::{JobView, ListQuery, LookQuery, Page},
};
use tokio::time::{Instant, sleep};

use super::Told;
use crate::{
    cli::Common,
    commands::run::INSTANCES,
    holding::{Holding, HoldingError},
    jobs::JobsConfig,
};

/// How long a host is waited for that holds the folder and does not answer yet, because
/// it is starting.
const STARTING: Duration = Duration::from_secs(10);
/// How often it is looked for meanwhile.
const AGAIN: Duration = Duration::from_millis(50);

/// What can be looked at.
pub(super) enum Reach {
    /// The host that holds the folder.
    Host(Client),
    /// The folder, which no host holds.
    Folder(Box<SqliteStore>),
    /// Nothing: no host has ever run there.
    Nothing,
}

/// What changes can be asked of.
pub(super) struct Acting {
    pub(super) client: Client,
    /// What the socket is reached through.
    _folder: DataFolder,
    /// This process, where no other holds the folder.
    pub(super) holding: Option<Holding>,
}

/// Returns the data folder, which is made if need be.
pub(super) fn folder(common: &Common) -> Result<DataFolder, Told> {
    let path = common.data().ok_or_else(no_home)?;
    DataFolder::open(&path).map_err(|error| Told::by(&error))
}

fn no_home() -> Told {
    Told::new(
        Reason::Invalid,
        "there is no home to have a data folder in: name one with --data or BACKLOT_DATA",
    )
}

/// Returns what can be looked at. Nothing is made or changed.
pub(super) async fn look(common: &Common) -> Result<(Reach, Option<DataFolder>), Told> {
    let path = common.data().ok_or_else(no_home)?;
    let folder = match DataFolder::find(&path) {
        Ok(folder) => folder,
        Err(FolderError::Missing { .. }) => return Ok((Reach::Nothing, None)),
        Err(error) => return Err(Told::by(&error)),
    };
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
pub(super) async fn act(common: &Common, name: &str) -> Result<Acting, Told> {
    let folder = folder(common)?;
    let deadline = Instant::now() + STARTING;
    loop {
        match Client::connect(&folder.socket_address()).await {
            Ok(client) => return Ok(Acting { client, _folder: folder, holding: None }),
            Err(ClientError::NoHost { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        match hold(common, &folder, name).await {
            Ok(holding) => {
                let client = Client::connect(&folder.socket_address()).await?;
                return Ok(Acting { client, _folder: folder, holding: Some(holding) });
            }
            Err(Held::Told(told)) => return Err(told),
            // It was taken meanwhile, or is just being given free.
            Err(Held::ByOther(told)) if Instant::now() > deadline => return Err(told),
            Err(Held::ByOther(_)) => sleep(AGAIN).await,
        }
    }
}

/// Why this process does not hold the folder.
enum Held {
    ByOther(Told),
    Told(Told),
}

async fn hold(common: &Common, folder: &DataFolder, name: &str) -> Result<Holding, Held> {
    let config = common.config_with_policy(INSTANCES);
    let config =
        config.map_err(|error| Held::Told(Told::new(Reason::Invalid, error.to_string())))?;
    let jobs = JobsConfig::new(folder.path());
    match Holding::start(config, jobs, common.policy_file(), name).await {
        Ok(holding) => Ok(holding),
        Err(error) if error.is_held() => Err(Held::ByOther(refused(&error))),
        Err(error) => Err(Held::Told(refused(&error))),
    }
}

fn refused(error: &HoldingError) -> Told {
    let told = Told::by(error);
    // Nothing was started.
    Told { exit: crate::exit::Exit::Refused, ..told }
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
                let jobs = page.jobs.iter().map(|job| JobView::brief(job, None)).collect();
                Ok(Page { jobs, next: page.next })
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
                Ok(JobView::whole(&job, None, &runs))
            }
        }
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
