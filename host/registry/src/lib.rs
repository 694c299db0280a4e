//! The live tasks of a host: their ids, access, lifecycle and output.
//!
//! The registry knows no wasm, no disk and no network. Producers do the work
//! behind [`Producer`]; time, spill files and the runtime come in through
//! [`Environment`]. Everything else hangs off one handle, [`Registry`].

#![forbid(unsafe_code)]
#![warn(missing_docs)]

// What a task is called and who may see it.
mod id;
mod snapshot;

// What a producer is asked for, what kinds there are, and how panics are kept away.
mod catalog;
mod contain;
mod producer;

// The life of a task.
mod state;
mod task;

// What comes from outside.
mod config;

// The registry and what it does.
mod access;
mod driver;
mod foreground;
mod listeners;
mod owner;
mod registry;
mod retention;
mod shelf;
mod start;
mod stop;
mod surface;
mod table;
mod wait;

// What tasks say.
mod observe;
mod output;
mod read;
mod spill;
mod text;

pub use access::{Caller, Page, Unknown};
pub use catalog::{
    Announcer, Catalog, Change, Changes, GenerationView, KindDescriptor, KindState, KindView,
};
pub use config::{
    Caps, Clock, Config, Environment, Retention, SpillFile, SpillStore, SpoolLimits, StopBounds,
    SystemClock,
};
pub use foreground::Foreground;
pub use id::{AgentId, InvalidKind, InvalidTaskId, Kind, SessionId, TaskId};
pub use listeners::{BoxError, ListenerGuard, Notice};
pub use observe::{Observer, Piece, Stream};
pub use output::Channel;
pub use owner::Owner;
pub use producer::{
    Agreed, BoxFuture, Cause, Control, Ending, Form, Generation, OnDrop, Outcome, Producer,
    Refusal, Request, Run, Step, StopRefusal, Usage,
};
pub use read::Read;
pub use registry::{Health, Registry, WeakRegistry};
pub use snapshot::Snapshot;
pub use start::{Cap, Start, StartError};
pub use state::{Event, IllegalEvent, Rung, State, Status, Stop, StopCause, next};
pub use stop::{Kill, KillError, Killed, Mode};
pub use surface::SurfaceGuard;
pub use task::{Sink, TaskHost};
pub use wait::WaitError;
