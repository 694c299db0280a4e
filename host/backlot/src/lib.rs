//! Backlot: a host for background work whose workers are WebAssembly components.
//!
//! A [`Host`] is what an embedding program starts and what the command line runs on:
//! a [`registry`] of live tasks, an engine for components ([`wasm`]), and threads of
//! their own for guests. The commands are thin: they parse, call the host and render.
//!
//! # A host in ten lines
//!
//! ```no_run
//! use std::{sync::Arc, time::Duration};
//!
//! use backlot::{
//!     Config, Host,
//!     registry::{Caller, Start, Step},
//!     wasm::Ask,
//! };
//!
//! # async fn embed() -> Result<(), Box<dyn std::error::Error>> {
//! let host = Host::start(Config::default())?;
//! let _surface = host.registry().attach_surface("mine");
//! let ticker = host.producer("ticker", Ask::default()).await?;
//! let input = r#"{"count":3,"every_ms":100}"#.into();
//! let start = Start { label: "three lines".into(), input, owner: None, step: Step::default() };
//! let id = host.registry().start(Arc::new(ticker), start).await?;
//! let ended = host.registry().wait(&id, &Caller::Operator, Duration::from_secs(60)).await?;
//! println!("{}: {}", ended.id, ended.status);
//! host.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Components that nobody vouches for
//!
//! A component of a few kilobytes can keep a compiler busy for minutes. A program
//! that calls [`wasm::compile_if_asked`] before anything else in its `main` has
//! components compiled, and costly schemas checked, by processes of its own, under
//! limits; without it that is done in this process, and nothing bounds what it takes.
//!
//! What a task may reach is its [`wasm::Grant`], which is empty by default, and what it
//! may use are its [`wasm::Limits`]. A [`wasm::Policy`] says what starts of a kind get of
//! both; without one they get what they ask for ([`wasm::Ask`]). How many tasks fit is
//! computed when the host starts ([`wasm::Capacity`]); a [`wasm::Profile`] chooses between
//! fast starts and dense crowds.
//!
//! # Kinds that are replaced
//!
//! A host whose [`Config`] says [`Reload::Watch`] keeps its [catalogue](Host::catalog) what
//! its plugin folder is. A task that runs keeps the version that it was started with; the
//! producer that the catalogue gives for a kind starts tasks of the one that is current by
//! then. [`Host::plugins`] loads, unloads, drains and goes back.
//!
//! # Jobs
//!
//! A [`Holding`] is this process as the host of a data folder: what it runs has a record
//! ([`backlot_jobs::Job`]), is tried again, goes on in steps, and is found again after a
//! crash; other processes ask it at a socket in the folder. [`Jobs`] is the same without
//! the socket.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use backlot::{
//!     Holding, HoldingConfig,
//!     backlot_jobs::{Hand, Spawn},
//!     registry::{Caller, Kind},
//! };
//!
//! # async fn embed() -> Result<(), Box<dyn std::error::Error>> {
//! let holding = Holding::start(HoldingConfig::new("/var/lib/mine", "mine")).await?;
//! let manager = holding.jobs().manager();
//! manager.open_session("chat".into()).await?;
//! let input = r#"{"count":3,"every_ms":100}"#;
//! let job = manager.spawn(Spawn::new(Kind::new("ticker")?, "chat".into(), input)).await?;
//! let wait = Duration::from_secs(60);
//! let job = manager.status(job.id, &Caller::Operator, wait, Hand::Person).await?;
//! println!("{}: {:?}", job.status(), job.summary());
//! holding.end().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Work in Rust
//!
//! Work that needs no sandbox stands behind the same trait, [`registry::Producer`], and
//! is listed, read, stopped and waited for in the same way:
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//!
//! use backlot::{
//!     Config, Host,
//!     registry::{
//!         Agreed, BoxFuture, Caller, Control, Form, Kind, OnDrop, Outcome, Producer, Refusal,
//!         Request, Run, Start, Status, Step, StopRefusal, TaskHost,
//!     },
//! };
//!
//! struct Shout(Kind);
//!
//! impl Producer for Shout {
//!     fn kind(&self) -> &Kind {
//!         &self.0
//!     }
//!
//!     fn form(&self) -> Form {
//!         Form::Stream
//!     }
//!
//!     fn run(&self, request: Request, host: TaskHost) -> BoxFuture<'_, Result<Run, Refusal>> {
//!         Box::pin(async move {
//!             Ok(Run {
//!                 control: Arc::new(AtOnce),
//!                 done: Box::pin(async move {
//!                     host.output().write(request.input.to_uppercase().as_bytes());
//!                     Outcome::completed()
//!                 }),
//!                 on_drop: OnDrop::ReleasesAll,
//!             })
//!         })
//!     }
//! }
//!
//! /// A stop drops the work.
//! struct AtOnce;
//!
//! impl Control for AtOnce {
//!     fn cancel(&self, _: Option<String>) -> BoxFuture<'static, Result<Agreed, StopRefusal>> {
//!         Box::pin(async { Ok(Agreed::DropNow) })
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let config = Config { instances: Some(4), cache: None, ..Config::default() };
//! let host = Host::start(config)?;
//! let _surface = host.registry().attach_surface("mine");
//! let shout = Arc::new(Shout(Kind::new("shout")?));
//! let start =
//!     Start { label: "hello".into(), input: "hello".into(), owner: None, step: Step::default() };
//! let id = host.registry().start(shout, start).await?;
//! let ended = host.registry().wait(&id, &Caller::Operator, Duration::from_secs(60)).await?;
//! assert_eq!(ended.status, Status::Completed);
//! assert_eq!(host.registry().read(&id, &Caller::Operator, 100).await?.text, "HELLO");
//! # host.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! The example `embed` counts down and is stopped on the way.

mod cli;
mod commands;
mod config;
mod console;
mod exit;
mod holding;
mod host;
mod jobs;
mod numbers;
mod policy;
mod render;
mod service;
mod settings;
mod shelf;
mod spill;
mod telemetry;
mod threads;
mod webhooks;
mod wire;

pub use self::{
    cli::main,
    config::{Config, ConfigError, Reload},
    exit::Exit,
    holding::{Holding, HoldingConfig, HoldingError},
    host::{Health, Host, HostError},
    jobs::{Jobs, JobsConfig, JobsError},
    policy::{PolicyFileError, read_policy, sources},
    service::Inherited,
    settings::{DEFAULT_ADDRESS, Serve, Settings, Telemetry, Tls},
    telemetry::{TelemetryError, TelemetryOptions},
    webhooks::{Allowed, WebhookOptions, WebhookSecret},
};
pub use backlot_jobs;
pub use backlot_registry as registry;
pub use backlot_wasm as wasm;
pub use backlot_wasm::KindError;
