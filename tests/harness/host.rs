//! The host in process.

use std::{sync::Arc, time::Duration};

use backlot::{
    Config, Host,
    registry::{
        AgentId, Caller, Channel, Kill, KillError, Killed, Mode, Owner, Producer, Read, Registry,
        SessionId, Snapshot, Start, StartError, Step, StopBounds, Stream, SurfaceGuard, TaskId,
    },
    wasm::{CommandInput, Compiler, Component, Grant, Limits},
};

use crate::files;

/// A host with a surface, ready to start tasks.
pub struct TestHost {
    /// The host.
    pub host: Host,
    _surface: SurfaceGuard,
}

/// A task of a test host.
#[derive(Clone)]
pub struct Task {
    registry: Registry,
    /// Its id.
    pub id: TaskId,
}

/// What a start of a test binds.
#[derive(Clone, Default)]
pub struct With {
    /// What it may reach.
    pub grant: Grant,
    /// What it may use.
    pub limits: Limits,
    /// The bounds of its stop ladder.
    pub bounds: Option<StopBounds>,
    /// Whom it belongs to.
    pub owner: Option<Owner>,
}

impl TestHost {
    /// Starts a host with the defaults.
    pub fn start() -> Self {
        Self::with(Config::default())
    }

    /// Starts a host. Compiled code is kept beside what is tested, unless the
    /// configuration says where.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    pub fn with(config: Config) -> Self {
        let config = Config {
            instances: config.instances.or(Some(1_500)),
            compiler: Compiler::Program(files::backlot()),
            cache: match config.cache == Config::default().cache {
                true => Some(files::cache()),
                false => config.cache,
            },
            ..config
        };
        let host = Host::start(config).expect("a host starts");
        let surface = host.registry().attach_surface("test");
        Self { host, _surface: surface }
    }

    /// Returns the registry.
    pub fn registry(&self) -> &Registry {
        self.host.registry()
    }

    /// Registers an owner with an agent and a session of this name.
    pub fn owner(&self, name: &str) -> Owner {
        self.registry().register_owner(AgentId::new(name), SessionId::new(name))
    }

    /// Loads a first-party kind.
    ///
    /// # Panics
    ///
    /// When it cannot be loaded.
    pub async fn kind(&self, name: &str) -> Component {
        self.host.load_file(&files::kind(name)).await.expect("the kind loads")
    }

    /// Loads a program of the tests.
    ///
    /// # Panics
    ///
    /// When it cannot be loaded.
    pub async fn program(&self, name: &str) -> Component {
        self.host.load_file(&files::program(name)).await.expect("the program loads")
    }

    /// Starts a task of the component with nothing granted.
    ///
    /// # Panics
    ///
    /// When it is refused.
    pub async fn task(&self, component: &Component, input: &str) -> Task {
        self.try_task(component, input, With::default()).await.expect("the task starts")
    }

    /// Starts a task of the component.
    ///
    /// # Errors
    ///
    /// As the registry's `start`.
    pub async fn try_task(
        &self,
        component: &Component,
        input: &str,
        with: With,
    ) -> Result<Task, StartError> {
        let grant = with.grant.open().expect("the grant opens");
        let mut producer = component.producer(grant, with.limits);
        if let Some(bounds) = with.bounds {
            producer = producer.with_bounds(bounds);
        }
        let start = Start {
            label: "test".to_owned(),
            input: input.to_owned(),
            owner: with.owner,
            step: Step::default(),
        };
        let id = self.registry().start(Arc::new(producer), start).await?;
        Ok(Task { registry: self.registry().clone(), id })
    }

    /// Returns a task by its id.
    pub fn task_by(&self, id: TaskId) -> Task {
        Task { registry: self.registry().clone(), id }
    }

    /// Starts a task of a producer.
    ///
    /// # Panics
    ///
    /// When it is refused.
    pub async fn task_of(&self, producer: Arc<dyn Producer>, start: Start) -> Task {
        let id = self.registry().start(producer, start).await.expect("the task starts");
        Task { registry: self.registry().clone(), id }
    }

    /// Starts the probe program with these arguments.
    ///
    /// # Panics
    ///
    /// When it is refused.
    pub async fn probe(&self, args: &[&str]) -> Task {
        let probe = self.program("probe").await;
        self.task(&probe, &arguments(args)).await
    }
}

/// Returns a program's input with these arguments.
pub fn arguments(args: &[&str]) -> String {
    let args = args.iter().map(ToString::to_string).collect();
    CommandInput { args, stdin: String::new() }.to_text()
}

impl Task {
    /// Returns the task as it is now.
    ///
    /// # Panics
    ///
    /// When it was dropped.
    pub fn now(&self) -> Snapshot {
        self.registry.get(&self.id, &Caller::Operator).expect("the task is known")
    }

    /// Waits for the end, at most half a minute.
    ///
    /// # Panics
    ///
    /// When the task has not ended by then.
    pub async fn end(&self) -> Snapshot {
        let ended = self.wait(Duration::from_secs(30)).await;
        assert!(ended.status.is_terminal(), "{} is still {}", self.id, ended.status);
        ended
    }

    /// Waits as the operator.
    ///
    /// # Panics
    ///
    /// When the task was dropped.
    pub async fn wait(&self, timeout: Duration) -> Snapshot {
        self.registry.wait(&self.id, &Caller::Operator, timeout).await.expect("the task is known")
    }

    /// Reads what came since the last read.
    ///
    /// # Panics
    ///
    /// When the task was dropped.
    pub async fn read(&self) -> Read {
        self.registry
            .read(&self.id, &Caller::Operator, usize::MAX)
            .await
            .expect("the task is known")
    }

    /// Waits for the end and returns everything that was not read before.
    pub async fn output(&self) -> String {
        self.end().await;
        self.read().await.text
    }

    /// Reads until the output contains `text`, and returns what was read.
    ///
    /// # Panics
    ///
    /// When the task ends without it.
    pub async fn until(&self, text: &str) -> String {
        let mut output = self
            .registry
            .observe(&self.id, &Caller::Operator, Stream::Output, 0)
            .expect("the task is known");
        let mut seen = String::new();
        while !seen.contains(text) {
            let piece = output.next(64 << 10).await.expect("the output ended without it");
            seen.push_str(&String::from_utf8_lossy(&piece.bytes));
        }
        seen
    }

    /// Returns everything that the guest has logged, once the task has ended.
    ///
    /// # Panics
    ///
    /// When the task was dropped.
    pub async fn log(&self) -> String {
        let mut log = self
            .registry
            .observe(&self.id, &Caller::Operator, Stream::Log, 0)
            .expect("the task is known");
        let mut seen = Vec::new();
        while let Some(piece) = log.next(64 << 10).await {
            seen.extend_from_slice(&piece.bytes);
        }
        String::from_utf8_lossy(&seen).into_owned()
    }

    /// Returns everything that one of the task's streams has held, in pieces of one
    /// channel each, once the task has ended.
    ///
    /// # Panics
    ///
    /// When the task was dropped.
    pub async fn pieces(&self, stream: Stream) -> Vec<(Channel, String)> {
        let mut pieces = self
            .registry
            .observe(&self.id, &Caller::Operator, stream, 0)
            .expect("the task is known");
        let mut seen = Vec::new();
        while let Some(piece) = pieces.next(64 << 10).await {
            seen.push((piece.channel, String::from_utf8_lossy(&piece.bytes).into_owned()));
        }
        seen
    }

    /// Asks the task to stop.
    ///
    /// # Errors
    ///
    /// As the registry's `kill`.
    pub async fn kill(&self, reason: &str) -> Result<Killed, KillError> {
        self.stop(Mode::Ask, reason).await
    }

    /// Ends the task at once.
    ///
    /// # Errors
    ///
    /// As the registry's `kill`.
    pub async fn force(&self, reason: &str) -> Result<Killed, KillError> {
        self.stop(Mode::Force, reason).await
    }

    async fn stop(&self, mode: Mode, reason: &str) -> Result<Killed, KillError> {
        let kill = Kill { mode, reason: Some(reason.to_owned()) };
        self.registry.kill(&self.id, &Caller::Operator, kill).await
    }
}
