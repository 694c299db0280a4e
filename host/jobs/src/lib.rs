//! Durable work over live tasks.
//!
//! A [`Job`] is work with a record: it can be tried again, continued over several
//! runs, paused for a person, stopped at any moment, and found again after a crash.
//! Each of its runs is a live task somewhere; this crate starts and stops them through
//! traits, and knows no more of them.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

// What a job is, and the one function that changes it.
mod id;
mod job;
mod retry;
mod schedule;
mod session;

// Where jobs are kept.
mod serial;
mod store;

// Where else things are kept: the folder, recorded output, files.
pub mod files;
mod folder;
pub mod output;

// What comes from outside.
mod config;
mod world;

// The manager and what it does.
mod call;
mod continuation;
mod delivery;
mod drive;
mod look;
mod manager;
mod recovery;
mod resume;
mod spawn;
mod steady;
mod stop;
mod tree;
mod waiting;
mod watch;

// What is said of jobs.
mod notify;
mod text;

pub use config::Config;
pub use delivery::Delivery;
pub use folder::{DataFolder, FolderError, Held, HoldError, Holder, default_data_folder};
pub use id::{DeliveryId, InvalidId, JobId, NoRandom, Prefix, RunId, SHORT};
pub use job::{
    Call, Code, Ended, Ending, Event, Failure, Job, Lost, Next, NextStep, Phase, Question, Report,
    Run, Spec, Stage, Status, StopRequest, Wait, Webhook, next,
};
pub use look::{LookError, short_ids};
pub use manager::{Health, Manager, OpenError, Recovered};
pub use notify::{NOTIFICATION_PREFIX, message};
pub use resume::{Hand, ResumeError};
pub use retry::{InvalidPolicy, RetryPolicy};
pub use schedule::{InvalidSchedule, Schedule};
pub use session::{Body, Entry, JobCard, Projected, Session, project};
pub use spawn::{Spawn, SpawnError, StartAt};
pub use stop::{StopError, StopReply};
pub use store::{
    Census, Change, ChangeError, Changed, FaultyStore, Gone, Head, Limits, Load, MemoryStore, Of,
    Page, Query, Refused, Rows, Scope, Spawned, SqliteOptions, SqliteStats, SqliteStore, Store,
    StoreError, contract, family_of, restore,
};
pub use tree::TreeError;
pub use world::{
    Continue, Following, How, LaunchError, Launched, Launcher, Reports, Resolved, Resolver,
    RunEnding, RunOutcome, Stop, Stopped, World,
};
