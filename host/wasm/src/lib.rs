//! WebAssembly components as producers of background work.
//!
//! An [`Engine`] holds what all components share. A [`Component`] is compiled,
//! checked and described once; bound to a [`Grant`] and [`Limits`] it becomes a
//! producer that the registry starts tasks with. Each task has an instance in a
//! store of its own, so that the host can end it at any point by dropping it.
//!
//! This crate knows neither jobs nor surfaces.

#![deny(unsafe_code)]

mod account;
mod aside;
mod audit;
mod cache;
mod capacity;
mod catalog;
mod check;
mod clocks;
mod code;
mod command;
mod compile;
mod component;
mod contract;
mod denial;
mod dense;
mod descriptors;
mod driver;
mod engine;
mod folder;
mod grant;
mod imports;
mod instance;
mod kind;
mod limits;
mod link;
mod live;
mod memory;
mod meter;
mod network;
mod plan;
mod policy;
mod process;
mod profile;
mod random;
mod reload;
mod resolver;
mod schema;
mod secret;
mod signal;
mod steps;
mod store;
mod terms;
mod text;
mod threads;
mod trap;
mod watch;
mod work_folder;

pub use self::{
    cache::{Cache, CacheError, FileStamp, digest_of},
    capacity::{Bound, Capacity, Machine, address_space},
    catalog::{ComponentCatalog, DrainError, RollbackError, UnknownKind},
    check::{ComponentForm, NotRunnable},
    command::CommandInput,
    compile::CompileError,
    component::{Component, Description, LoadError},
    contract::CONTRACT_VERSION,
    engine::{Engine, EngineConfig, EngineError},
    folder::{
        BytesError, Checked, KindError, kind_files, kind_of, load_checked, load_file,
        load_kind_file, manifest_beside, path_of_kind, small_text,
    },
    grant::{OpenGrant, OpenGrantError},
    imports::http::tls_config,
    instance::ComponentProducer,
    kind::{KindProducer, Pinned, PinnedProducer},
    limits::Limits,
    live::wait_until_unused,
    policy::{
        Access, Ask, Clocks, Decision, Denial, DirGrant, Egress, EnvGrant, Grant, GrantError,
        Hints, LimitsAsk, Lookup, Manifest, Origin, Peer, PeerError, PeerHost, Policy, PolicyError,
        Ports, Problem, Random, Range, Reach, Rules, Scheme, SecretGrant, SecretSource, Sort,
        Sources, decide, document, explain, special,
    },
    process::{Compiler, compile_if_asked},
    profile::{InvalidProfile, Profile},
    reload::{Plugins, Reloaded, Stray},
    resolver::{Directory, Resolver},
    steps::{AnswerError, Next, StepsError},
    text::chain,
    watch::{Watch, Watching},
};
