//! One server: what one principal's client asks, and what it is answered.

use std::{panic::AssertUnwindSafe, sync::Arc};

use backlot_jobs::{Job, output::Part};
use backlot_registry::Kind;
use futures::FutureExt as _;
#[expect(deprecated, reason = "clients up to 2025-11-25 set a level")]
use rmcp::model::SetLevelRequestParams;
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CancelTaskParams, GetTaskParams, GetTaskResult,
        Implementation, InitializeRequestParams, InitializeResult, ListToolsResult,
        PaginatedRequestParams, ServerCapabilities, ServerConfig, SubscriptionFilter, Tool,
        UpdateTaskParams,
    },
    service::{NotificationContext, RequestContext, SubscriptionContext},
};
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    answer::{self, Answer},
    asking, changes,
    foreground::Call,
    kinds,
    logging::Level,
    output::{self, Portion, TEXT_BYTES},
    tasks,
    told::{Receipt, Told},
    tools::{self, Offer, Verb},
    verbs,
    who::Asker,
};
use crate::{
    access::Principal,
    api::Api,
    error::{Failure, Reason},
    http::to_the_end,
    wire::SpawnRequest,
};

/// What a client is told when it connects, for its model.
const INSTRUCTIONS: &str = "\
Backlot runs work in the background, in a sandbox. spawn_task starts it, task_status looks at it, \
task_retry goes on with what has failed, task_stop stops it. You are told when a task ends: a \
message that begins with [task-notification] comes with the answer of a later call. Do not ask \
again and again, and do not redo the work of a task.";

/// What the servers for all clients of a host share. Cheap to clone.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) api: Api,
    pub(super) told: Told,
    /// Set when the host ends: what waits answers with what there is.
    pub(super) closing: CancellationToken,
}

impl Shared {
    pub(super) fn new(api: Api) -> Self {
        let told = Told::new(api.manager.clone(), api.claims.clone());
        Self { api, told, closing: CancellationToken::new() }
    }

    /// Waits until the host knows which kinds there are, while it has just been started.
    pub(super) async fn kinds_are_known(&self) {
        tokio::select! {
            () = kinds::known(&self.api) => {}
            () = self.closing.cancelled() => {}
        }
    }
}

/// A server for one client. Cheap to clone.
#[derive(Clone)]
pub(super) struct Server(Arc<Inner>);

struct Inner {
    shared: Shared,
    principal: Principal,
    /// Set when the client is gone.
    gone: CancellationToken,
    /// The level from which on a client wants to hear of what happens.
    level: Level,
    /// Notified once a client says that it is ready to be told of changes.
    initialized: Arc<Notify>,
    /// Ends what tells this client of changes.
    end: CancellationToken,
    _ends: DropGuard,
}

impl Server {
    pub(super) fn new(shared: Shared, principal: Principal, gone: CancellationToken) -> Self {
        let end = CancellationToken::new();
        let _ends = end.clone().drop_guard();
        let (level, initialized) = (Level::default(), Arc::default());
        Self(Arc::new(Inner { shared, principal, gone, level, initialized, end, _ends }))
    }

    pub(super) fn api(&self) -> &Api {
        &self.0.shared.api
    }

    pub(super) fn told(&self) -> &Told {
        &self.0.shared.told
    }

    /// Waits until what waits is to answer with what there is.
    pub(super) async fn leaving(&self) {
        tokio::select! {
            () = self.0.shared.closing.cancelled() => {}
            () = self.0.gone.cancelled() => {}
        }
    }

    /// Waits for that on behalf of this client.
    pub(super) async fn kinds_are_known(&self) {
        tokio::select! {
            () = self.0.shared.kinds_are_known() => {}
            () = self.0.gone.cancelled() => {}
        }
    }

    /// Waits for that unless a kind of that name can be started already.
    pub(super) async fn knows(&self, kind: &str) {
        let Ok(kind) = kind.parse::<Kind>() else { return };
        let view = self.api().catalog.kind(&kind);
        if view.as_ref().and_then(Offer::of).is_none() {
            self.kinds_are_known().await;
        }
    }

    /// Tells whether a client wants to hear what a job logs.
    pub(super) fn wants_log(&self, context: &RequestContext<RoleServer>) -> bool {
        self.0.level.wants_information_in(context)
    }

    /// Returns who calls.
    fn asker(&self, context: &RequestContext<RoleServer>) -> Result<Asker, ErrorData> {
        let asker = Asker::of(&self.0.principal, &context.meta);
        asker.map_err(|failure| ErrorData::invalid_params(failure.message, None))
    }

    /// Returns a call by somebody who may have the tools.
    async fn admitted(&self, context: &RequestContext<RoleServer>) -> Result<Call, ErrorData> {
        let asker = self.asker(context)?;
        if asker.is_a_job(self.api()).await? {
            let why = "this session is a task's own, and a task starts no tasks: do the work in \
                       the task itself";
            return Err(ErrorData::invalid_params(why, None));
        }
        Ok(Call::of(self, asker, context))
    }

    fn tools(&self) -> Vec<Tool> {
        let may_change = self.0.principal.may_change().is_ok();
        tools::offered(&*self.api().catalog, &self.api().mcp, may_change)
    }

    async fn call(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let call = self.admitted(&context).await?;
        let may_change = call.asker.principal.may_change().is_ok();
        let verb = Verb::of(&request.name);
        if !may_change && verb != Some(Verb::Status) {
            return Err(unknown_tool(&request.name));
        }
        let done = match verb {
            Some(Verb::Spawn) => verbs::spawn(self, &call, request).await,
            Some(Verb::Status) => verbs::status(self, &call, request).await,
            Some(Verb::Retry) => verbs::retry(self, &call, request).await,
            Some(Verb::Stop) => verbs::stop(self, &call, request).await,
            None => {
                let takes_tasks = asking::has_no_sessions(&context)
                    && context.client_capabilities().is_some_and(|it| it.supports_tasks());
                kinds::call(self, &call, request, takes_tasks).await
            }
        };
        match done {
            Ok(done) => self.finish(&call, done).await,
            Err(Unanswered::Failure(failure)) => {
                let answer = Answer::of_failure(&failure);
                self.finish(&call, Done::new(self, &call, answer)).await
            }
            Err(Unanswered::Error(error)) => Err(error),
        }
    }

    /// Returns what goes over the wire, with what the session is owed, and keeps the receipt
    /// until that was handed over.
    async fn finish(&self, call: &Call, done: Done) -> Result<CallToolResponse, ErrorData> {
        match done {
            Done::Answer(answer, mut receipt) => {
                let owed = self.told().owed(&mut receipt).await;
                call.handover.keep(receipt);
                Ok(answer.into_result(owed).into())
            }
            Done::Other(response) => Ok(response),
        }
    }

    /// Returns the result of a job that has ended, or its beginning.
    pub(super) async fn result(&self, job: &Job) -> Result<Portion, Failure> {
        let result = job.ended().and_then(|ended| ended.result.as_deref()).unwrap_or_default();
        let whole =
            |text: &str| Portion { text: text.to_owned(), next: text.len() as u64, is_cut: false };
        if result.len() <= TEXT_BYTES || answer::is_rich(result) {
            return Ok(whole(result));
        }
        if output::is_stream(&*self.api().catalog, job) {
            // Its output is where reading on goes on, so it begins there too.
            let part = Part::Output;
            let folder = &self.api().folder;
            let recorded = output::recorded(folder, job.id, part, 0, TEXT_BYTES, true).await?;
            if !recorded.text.is_empty() {
                return Ok(recorded);
            }
        }
        Ok(output::part_of(result, 0, TEXT_BYTES))
    }

    /// Spawns a job for whoever calls, who is told of its end.
    pub(super) async fn spawn(&self, call: &Call, request: SpawnRequest) -> Result<Job, Failure> {
        let session = call.asker.spawns_for()?;
        let request = SpawnRequest { session: Some(session), announce: Some(true), ..request };
        request.check()?;
        let host = self.api().host.clone();
        let has_policy = host.about().policy.is_some();
        call.asker.principal.may_spawn(&request, has_policy)?;
        to_the_end(async move { host.spawn(request).await }).await
    }

    pub(super) fn receipt(&self, call: &Call) -> Receipt {
        self.told().receipt(call.asker.owed())
    }
}

/// What a call comes to.
pub(super) enum Done {
    /// An answer, and what follows once it was handed over.
    Answer(Answer, Receipt),
    /// Something that tells no model anything.
    Other(CallToolResponse),
}

impl Done {
    /// Returns an answer that tells of no endings by itself.
    pub(super) fn new(server: &Server, call: &Call, answer: Answer) -> Self {
        Self::Answer(answer, server.receipt(call))
    }
}

/// Why a call has no answer.
pub(super) enum Unanswered {
    /// For whoever called to read, and to do something about.
    Failure(Failure),
    /// For its client.
    Error(ErrorData),
}

impl From<Failure> for Unanswered {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

pub(super) fn unknown_tool(name: &str) -> ErrorData {
    let name: String = name.chars().take(64).collect();
    let why = format!("there is no tool {name:?}: list the tools to see which there are");
    ErrorData::invalid_params(why, None)
}

/// Contains what breaks while a request is answered: whoever asked is told, and the others
/// go on.
async fn contained<T>(work: impl Future<Output = Result<T, ErrorData>>) -> Result<T, ErrorData> {
    AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|_| {
        tracing::error!("a request over MCP panicked");
        let failure = Failure::new(Reason::Internal, "the host failed over it: see its log");
        Err(ErrorData::internal_error(failure.message, None))
    })
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        #[expect(deprecated, reason = "clients up to 2025-11-25 set a level")]
        let capabilities = ServerCapabilities::builder()
            .enable_logging()
            .enable_tools()
            .enable_tool_list_changed()
            .enable_tasks()
            .build();
        let about = Implementation::new("backlot", env!("CARGO_PKG_VERSION"));
        ServerConfig::new(capabilities).with_server_info(about).with_instructions(INSTRUCTIONS)
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        context.peer.set_peer_info(request.clone());
        let answer = self.negotiate_initialize(&request)?;
        let client = || changes::Client {
            peer: context.peer.clone(),
            initialized: self.0.initialized.clone(),
            end: self.0.end.clone(),
            closing: self.0.shared.closing.clone(),
        };
        let may_change = self.0.principal.may_change().is_ok();
        changes::tell(client(), self.api(), may_change);
        let asker = self.asker(&context);
        if let Some(session) = asker.ok().as_ref().and_then(Asker::owed) {
            let level = self.0.level.clone();
            changes::tell_endings(client(), self.api(), session.clone(), level);
        }
        Ok(answer)
    }

    async fn on_initialized(&self, _: NotificationContext<RoleServer>) {
        // One is kept for who begins to wait later.
        self.0.initialized.notify_one();
    }

    #[expect(deprecated, reason = "clients up to 2025-11-25 set a level")]
    async fn set_level(
        &self,
        request: SetLevelRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.0.level.set(&request);
        Ok(())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        contained(async {
            let tools = match self.asker(&context)?.is_a_job(self.api()).await? {
                true => Vec::new(),
                false => {
                    self.kinds_are_known().await;
                    self.tools()
                }
            };
            Ok(ListToolsResult::with_all_items(tools))
        })
        .await
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        let may_change = self.0.principal.may_change().is_ok();
        tools::named(&*self.api().catalog, &self.api().mcp, may_change, name)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        // On the heap: it has all that a call may come to.
        contained(Box::pin(self.call(request, context))).await
    }

    fn accepted_subscription_filter(&self, _: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(SubscriptionFilter::builder().tools_list_changed().build())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let may_change = self.0.principal.may_change().is_ok();
        tokio::select! {
            () = context.cancelled() => {}
            () = self.leaving() => {}
            () = changes::follow(context.sink(), self.api(), may_change) => {}
        }
        Ok(())
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        contained(async {
            let call = self.admitted(&context).await?;
            tasks::get(self, &call, &request.task_id).await
        })
        .await
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        contained(async {
            let call = self.admitted(&context).await?;
            tasks::update(self, &call, &request.task_id, &request.input_responses).await
        })
        .await
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        contained(async {
            let call = self.admitted(&context).await?;
            tasks::cancel(self, &call, &request.task_id).await
        })
        .await
    }
}
