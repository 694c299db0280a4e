//! Backlot: a host for background work whose workers are WebAssembly components.
//!
//! The [`Host`] is what an embedding program starts and what the command line
//! runs on: a registry of live tasks, an engine for components, and a runtime
//! of their own for guests. The commands are thin: they parse, call the host and
//! render.
//!
//! ```no_run
//! use std::{sync::Arc, time::Duration};
//!
//! use backlot::{
//!     Config, Host,
//!     registry::{Caller, Start, Step},
//!     wasm::{Grant, Limits},
//! };
//!
//! # async fn embed() -> Result<(), Box<dyn std::error::Error>> {
//! let host = Host::start(Config::default())?;
//! let _surface = host.registry().attach_surface("mine");
//! let ticker = host.load_kind("ticker").await?;
//! let producer = ticker.producer(Grant::default().open()?, Limits::default());
//! let input = r#"{"count":3,"every_ms":100}"#.into();
//! let start = Start { label: "three lines".into(), input, owner: None, step: Step::default() };
//! let id = host.registry().start(Arc::new(producer), start).await?;
//! let ended = host.registry().wait(&id, &Caller::Operator, Duration::from_secs(60)).await?;
//! println!("{}: {}", ended.id, ended.status);
//! host.shutdown().await;
//! # Ok(())
//! # }
//! ```

mod cli;
mod commands;
mod config;
mod console;
mod exit;
mod host;
mod render;
mod spill;
mod threads;
mod wire;

pub use self::{
    cli::main,
    config::{Config, ConfigError},
    exit::Exit,
    host::{Health, Host, HostError, KindError},
};
pub use backlot_registry as registry;
pub use backlot_wasm as wasm;
