//! Backlot: a host for background work whose workers are WebAssembly components.
//!
//! The [`Host`] is what an embedding program starts and what the command line
//! runs on: a registry of live tasks, an engine for components, and a runtime
//! of their own for guests. The commands are thin: they parse, call the host and
//! render.

mod cli;
mod commands;
mod config;
mod console;
mod exit;
mod host;
mod render;
mod spill;
mod wire;

pub use self::{
    cli::main,
    config::{Config, ConfigError},
    exit::Exit,
    host::{Host, HostError, KindError},
};
pub use backlot_registry as registry;
pub use backlot_wasm as wasm;
