//! WebAssembly components as producers of background work.
//!
//! An [`Engine`] holds what all components share. A [`Component`] is compiled,
//! checked and described once; bound to a [`Grant`] and [`Limits`] it becomes a
//! producer that the registry starts tasks with. Each task has an instance in a
//! store of its own, so that the host can end it at any point by dropping it.
//!
//! This crate knows neither jobs nor surfaces.

#![deny(unsafe_code)]

mod bindings;
mod cache;
mod capacity;
mod check;
mod code;
mod command;
mod compile;
mod component;
mod dense;
mod descriptors;
mod driver;
mod engine;
mod grant;
mod imports;
mod instance;
mod limits;
mod link;
mod memory;
mod policy;
mod process;
mod profile;
mod schema;
mod signal;
mod store;
mod text;
mod trap;

pub use self::{
    bindings::CONTRACT_VERSION,
    cache::{Cache, CacheError, FileStamp},
    capacity::{Bound, Capacity, Machine, address_space},
    check::{ComponentForm, NotRunnable},
    command::CommandInput,
    compile::CompileError,
    component::{Component, Description, LoadError},
    engine::{Engine, EngineConfig, EngineError},
    grant::{OpenGrant, OpenGrantError},
    instance::ComponentProducer,
    limits::Limits,
    policy::{
        Access, Clocks, DirGrant, Egress, EnvGrant, Grant, GrantError, Lookup, Origin, Peer,
        PeerError, PeerHost, Ports, Random, Range, Scheme, SecretGrant,
    },
    process::{Compiler, compile_if_asked},
    profile::{InvalidProfile, Profile},
};
