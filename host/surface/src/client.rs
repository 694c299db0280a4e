//! The other end: what a program asks of a host.

mod connection;

use std::{
    io,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use backlot_jobs::DeliveryId;
use bytes::Bytes;
use http::{Method, Response, StatusCode, header::CONTENT_LENGTH};
use http_body_util::{BodyExt as _, Limited};
use hyper::{body::Incoming, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::timeout;

use self::connection::{Asking, Connections, Sender};
use crate::{
    api::KindChange,
    error::{Failure, Reason},
    http::{BODY_BYTES, PROTOCOL},
    wire::{
        AnswerRequest, BackupRequest, DeleteQuery, DeliveryReply, EntriesQuery, EntriesReply,
        EntryReply, EntryRequest, ErrorReply, FileName, FilesQuery, FilesReply, HandQuery,
        HandView, HealthReply, JobView, KindView, KindsReply, ListQuery, LiveReply, LookQuery,
        OutputQuery, OutputReply, Page, PruneReply, PruneRequest, ReadyReply, RollbackRequest,
        SessionView, SettleReply, SettleRequest, ShutdownReply, ShutdownRequest, SpawnRequest,
        StopReply, StopRequest, TaskStopReply, TaskStopRequest, TaskView, TasksQuery, TasksReply,
    },
};

/// The most that is read of an answer, in bytes: a job with an input of the most that is
/// taken, and what JSON makes of it.
const ANSWER_BYTES: usize = 128 << 20;
/// How much longer than it was asked to wait a host may take for an answer.
const SLACK: Duration = Duration::from_secs(10);

/// Messages of the Model Context Protocol, a line each, in both directions.
pub type McpStream = TokioIo<Upgraded>;

/// A program's end of a host's socket. It may be used by several at once.
#[derive(Debug)]
pub struct Client {
    connections: Connections,
    session: Option<String>,
}

/// Why a host gave no answer, or not the one that was asked for.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens there.
    #[error("no host runs here: nobody listens at {}", path.display())]
    NoHost {
        /// The socket.
        path: PathBuf,
    },
    /// The host says why not.
    #[error("{}", .0.detail)]
    Failure(Box<ErrorReply>),
    /// The host cannot be reached or understood.
    #[error("the host {doing}: {source}")]
    Broken {
        /// What it did.
        doing: &'static str,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl ClientError {
    /// Returns the exit code of a command that fails with it.
    pub fn exit(&self) -> u8 {
        const FAILED: u8 = 1;
        const REFUSED: u8 = 3;
        match self {
            Self::NoHost { .. } => REFUSED,
            Self::Failure(reply) => reply.exit(),
            Self::Broken { .. } => FAILED,
        }
    }

    fn broken<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        doing: &'static str,
    ) -> impl Fn(E) -> Self {
        move |source| Self::Broken { doing, source: source.into() }
    }
}

impl From<Failure> for ClientError {
    fn from(failure: Failure) -> Self {
        Self::Failure(Box::new(failure.reply()))
    }
}

impl Client {
    /// Connects to a host's socket, by a path that is short enough to be an address:
    /// [`DataFolder::socket_address`](backlot_jobs::DataFolder::socket_address), of a
    /// folder that is kept as long as this.
    ///
    /// # Errors
    ///
    /// [`ClientError::NoHost`] when nobody listens, and others when it cannot be told.
    pub async fn connect(socket: &Path) -> Result<Self, ClientError> {
        let connections = Connections::open(socket).await?;
        Ok(Self { connections, session: None })
    }

    /// Returns it narrowed to a session: it sees that one's jobs, and no others.
    #[must_use]
    pub fn for_session(self, session: impl Into<String>) -> Self {
        Self { session: Some(session.into()), ..self }
    }

    /// Returns how the host is doing.
    ///
    /// # Errors
    ///
    /// [`ClientError`], as all of these.
    pub async fn health(&self) -> Result<HealthReply, ClientError> {
        self.look("/v1/health".into(), &(), Duration::ZERO).await
    }

    /// Returns once the host answers at all.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn live(&self) -> Result<LiveReply, ClientError> {
        self.look("/v1/live".into(), &(), Duration::ZERO).await
    }

    /// Returns once the host takes work.
    ///
    /// # Errors
    ///
    /// [`ClientError`]; also when it answers that it does not.
    pub async fn ready(&self) -> Result<ReadyReply, ClientError> {
        self.look("/v1/ready".into(), &(), Duration::ZERO).await
    }

    /// Has the host end, without waiting for that.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn shutdown(&self, request: &ShutdownRequest) -> Result<ShutdownReply, ClientError> {
        let asking = Asking::new(Method::POST, "/v1/shutdown".into()).with(json(request)?);
        self.read(asking, Some(Duration::ZERO)).await
    }

    /// Returns a stream of messages of the Model Context Protocol, a line each, with the
    /// host at the other end. The client has to be [narrowed](Self::for_session) to the
    /// session of the agent.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn mcp(&self) -> Result<McpStream, ClientError> {
        let asking = Asking::new(Method::GET, "/v1/mcp".into()).changing_to(PROTOCOL);
        let asking = asking.by(self.session.clone());
        let answer = timeout(SLACK, self.connections.ask(&asking)).await;
        let (answer, _sender) = answer.map_err(ClientError::broken("does not answer"))??;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(refusal(answer).await);
        }
        let stream = hyper::upgrade::on(answer).await;
        Ok(TokioIo::new(stream.map_err(ClientError::broken("broke off"))?))
    }

    /// Returns a part of the tasks that live, or have ended a while ago.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn tasks(&self, query: &TasksQuery) -> Result<TasksReply, ClientError> {
        self.look("/v1/tasks".into(), query, Duration::ZERO).await
    }

    /// Returns a task.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn task(&self, task: &str) -> Result<TaskView, ClientError> {
        self.look(of("tasks", task, ""), &(), Duration::ZERO).await
    }

    /// Stops a task.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn stop_task(
        &self,
        task: &str,
        request: &TaskStopRequest,
    ) -> Result<TaskStopReply, ClientError> {
        self.change(Method::POST, of("tasks", task, "/stop"), &(), Some(request)).await
    }

    /// Returns the kinds of the host.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn kinds(&self) -> Result<KindsReply, ClientError> {
        self.look("/v1/kinds".into(), &(), Duration::ZERO).await
    }

    /// Returns a kind.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn kind(&self, kind: &str) -> Result<KindView, ClientError> {
        self.look(of("kinds", kind, ""), &(), Duration::ZERO).await
    }

    /// Changes a kind, and returns it as it is then. One that is drained may still have
    /// tasks that go on.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn change_kind(
        &self,
        kind: &str,
        change: KindChange,
    ) -> Result<KindView, ClientError> {
        let (what, request) = match change {
            KindChange::Load => ("/load", None),
            KindChange::Drain => ("/drain", None),
            KindChange::Unload => ("/unload", None),
            KindChange::Rollback(to) => ("/rollback", Some(RollbackRequest { to })),
        };
        self.change(Method::POST, of("kinds", kind, what), &(), request.as_ref()).await
    }

    /// Has the host look at its plugin folder, and returns the kinds that there are then.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn reload(&self) -> Result<KindsReply, ClientError> {
        self.change(Method::POST, "/v1/reload".into(), &(), None::<&()>).await
    }

    /// Spawns a job.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn spawn(&self, request: &SpawnRequest) -> Result<JobView, ClientError> {
        self.change(Method::POST, "/v1/jobs".into(), &(), Some(request)).await
    }

    /// Returns a part of the jobs, the newest first.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn jobs(&self, query: &ListQuery) -> Result<Page, ClientError> {
        self.look("/v1/jobs".into(), query, Duration::ZERO).await
    }

    /// Returns a job, by its id or the first digits of it.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn job(&self, job: &str, query: &LookQuery) -> Result<JobView, ClientError> {
        self.look(of_job(job, ""), query, wait(query.wait_ms)).await
    }

    /// Returns what there is of a job's output behind an offset, or waits for it.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn output(&self, job: &str, query: &OutputQuery) -> Result<OutputReply, ClientError> {
        self.look(of_job(job, "/output"), query, wait(query.wait_ms)).await
    }

    /// Stops a job.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn stop(&self, job: &str, request: &StopRequest) -> Result<StopReply, ClientError> {
        self.change(Method::POST, of_job(job, "/stop"), &(), Some(request)).await
    }

    /// Tries a failed job again.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn retry(&self, job: &str, hand: HandView) -> Result<JobView, ClientError> {
        let query = HandQuery { hand: Some(hand) };
        self.change(Method::POST, of_job(job, "/retry"), &query, None::<&()>).await
    }

    /// Answers what a job asks.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn answer(
        &self,
        job: &str,
        request: &AnswerRequest,
        hand: HandView,
    ) -> Result<JobView, ClientError> {
        let query = HandQuery { hand: Some(hand) };
        self.change(Method::POST, of_job(job, "/answer"), &query, Some(request)).await
    }

    /// Deletes a job that has ended, with all that is kept of it.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn remove(&self, job: &str) -> Result<PruneReply, ClientError> {
        self.change(Method::DELETE, of_job(job, ""), &(), None::<&()>).await
    }

    /// Deletes jobs that ended some time ago.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn prune(&self, request: &PruneRequest) -> Result<PruneReply, ClientError> {
        self.change(Method::POST, "/v1/prune".into(), &(), Some(request)).await
    }

    /// Returns the files that a job has left.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn files(&self, job: &str, query: &FilesQuery) -> Result<FilesReply, ClientError> {
        self.look(of_job(job, "/files"), query, Duration::ZERO).await
    }

    /// Returns a file that a job has left, to be read.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn file(&self, job: &str, name: &FileName) -> Result<Download, ClientError> {
        let path = name.to_path();
        let path = percent_encode(path.as_os_str().as_bytes(), PATH);
        let asking = Asking::new(Method::GET, of_job(job, &format!("/files/{path}")));
        let (answer, sender) = self.ask(asking, Some(Duration::ZERO)).await?;
        let length = answer.headers().get(CONTENT_LENGTH);
        let length = length.and_then(|it| it.to_str().ok()?.parse().ok());
        Ok(Download {
            length: length.unwrap_or_default(),
            body: answer.into_body(),
            _sender: sender,
        })
    }

    /// Has the host write a copy of all that is recorded.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn backup(&self, request: &BackupRequest) -> Result<(), ClientError> {
        let asking = Asking::new(Method::POST, "/v1/backup".into()).with(json(request)?);
        self.ask(asking, None).await.map(|_| ())
    }

    /// Opens a session, unless it is open.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn open_session(&self, session: &str) -> Result<SessionView, ClientError> {
        self.change(Method::PUT, of_session(session, ""), &(), None::<&()>).await
    }

    /// Deletes a session with all that belongs to it; its jobs are stopped first.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn delete_session(
        &self,
        session: &str,
        query: &DeleteQuery,
    ) -> Result<PruneReply, ClientError> {
        self.change(Method::DELETE, of_session(session, ""), query, None::<&()>).await
    }

    /// Returns entries of a session.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn entries(
        &self,
        session: &str,
        query: &EntriesQuery,
    ) -> Result<EntriesReply, ClientError> {
        self.look(of_session(session, "/entries"), query, Duration::ZERO).await
    }

    /// Writes an entry into a session.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn append(
        &self,
        session: &str,
        request: &EntryRequest,
    ) -> Result<EntryReply, ClientError> {
        self.change(Method::POST, of_session(session, "/entries"), &(), Some(request)).await
    }

    /// Returns what is owed to a session.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn owed(&self, session: &str) -> Result<DeliveryReply, ClientError> {
        self.look(of_session(session, "/owed"), &(), Duration::ZERO).await
    }

    /// Settles what a session was told.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn settle(
        &self,
        session: &str,
        ids: Vec<DeliveryId>,
    ) -> Result<SettleReply, ClientError> {
        let request = SettleRequest { ids };
        self.change(Method::POST, of_session(session, "/settle"), &(), Some(&request)).await
    }

    async fn look<T: DeserializeOwned>(
        &self,
        path: String,
        query: &impl Serialize,
        wait: Duration,
    ) -> Result<T, ClientError> {
        let asking = Asking::new(Method::GET, with_query(path, query)?);
        self.read(asking, Some(wait)).await
    }

    /// Asks for something that takes as long as it takes.
    async fn change<T: DeserializeOwned>(
        &self,
        method: Method,
        path: String,
        query: &impl Serialize,
        body: Option<&impl Serialize>,
    ) -> Result<T, ClientError> {
        let mut asking = Asking::new(method, with_query(path, query)?);
        if let Some(body) = body {
            asking = asking.with(json(body)?);
        }
        self.read(asking, None).await
    }

    async fn read<T: DeserializeOwned>(
        &self,
        asking: Asking,
        wait: Option<Duration>,
    ) -> Result<T, ClientError> {
        let (answer, sender) = self.ask(asking, wait).await?;
        let read = read(answer).await?;
        self.connections.keep(sender);
        Ok(read)
    }

    async fn ask(
        &self,
        asking: Asking,
        wait: Option<Duration>,
    ) -> Result<(Response<Incoming>, Sender), ClientError> {
        let asking = asking.by(self.session.clone());
        let asked = self.connections.ask(&asking);
        let (answer, sender) = match wait {
            None => asked.await?,
            Some(wait) => {
                let answer = timeout(wait.saturating_add(SLACK), asked).await;
                answer.map_err(ClientError::broken("does not answer"))??
            }
        };
        if answer.status().is_success() {
            return Ok((answer, sender));
        }
        let refusal = refusal(answer).await;
        self.connections.keep(sender);
        Err(refusal)
    }
}

/// Returns what an answer says that is no success.
async fn refusal(answer: Response<Incoming>) -> ClientError {
    let status = answer.status();
    match read::<ErrorReply>(answer).await {
        Ok(reply) => ClientError::Failure(Box::new(reply)),
        Err(_) => ClientError::broken("answers what cannot be read")(status.to_string()),
    }
}

async fn read<T: DeserializeOwned>(answer: Response<Incoming>) -> Result<T, ClientError> {
    let body = Limited::new(answer.into_body(), ANSWER_BYTES).collect().await;
    let body = body.map_err(ClientError::broken("broke off in its answer"))?.to_bytes();
    serde_json::from_slice(&body).map_err(ClientError::broken("answers what cannot be read"))
}

/// Writes what is sent. More than a host takes is not sent at all.
fn json(value: &impl Serialize) -> Result<Bytes, ClientError> {
    let json = serde_json::to_vec(value)
        .map_err(|error| Failure::invalid(format!("cannot be written as JSON: {error}")))?;
    if json.len() > BODY_BYTES {
        let message = format!("{} bytes are to be sent, and {BODY_BYTES} are the most", json.len());
        return Err(Failure::new(Reason::TooLarge, message).into());
    }
    Ok(json.into())
}

fn with_query(path: String, query: &impl Serialize) -> Result<String, ClientError> {
    let query = serde_urlencoded::to_string(query)
        .map_err(|error| Failure::invalid(format!("cannot be asked: {error}")))?;
    Ok(if query.is_empty() { path } else { format!("{path}?{query}") })
}

/// What has to be encoded in a path, and of a name so that it is no path.
const NAME: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~');
const PATH: &AsciiSet = &NAME.remove(b'/').remove(b'.');

fn of_job(job: &str, rest: &str) -> String {
    of("jobs", job, rest)
}

fn of_session(session: &str, rest: &str) -> String {
    of("sessions", session, rest)
}

fn of(what: &str, name: &str, rest: &str) -> String {
    format!("/v1/{what}/{}{rest}", percent_encode(name.as_bytes(), NAME))
}

fn wait(wait_ms: Option<u64>) -> Duration {
    Duration::from_millis(wait_ms.unwrap_or_default())
}

/// A file of a job on its way.
#[derive(Debug)]
pub struct Download {
    length: u64,
    body: Incoming,
    /// What it comes over lasts as long as this.
    _sender: Sender,
}

impl Download {
    /// Returns how many bytes it has.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns the next bytes of it, or `None` once all are there.
    ///
    /// # Errors
    ///
    /// When it breaks off.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        loop {
            match self.body.frame().await {
                None => return Ok(None),
                Some(frame) => {
                    let frame = frame.map_err(ClientError::broken("broke off in a file"))?;
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }
}

/// Tells whether nobody listens at a socket, from what connecting to it says.
fn is_nobody(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}
