//! What the registry promises, one file per chapter of its specification.
//!
//! Time is paused: what takes long here takes no time, and nothing sleeps.

mod support;

mod access;
mod clock;
mod dropped_futures;
mod ends;
mod foreground;
mod kill;
mod lifetimes;
mod model;
mod notices;
mod observe;
mod race;
mod read;
mod retention;
mod spool;
mod start;
mod stop;
mod wait;
