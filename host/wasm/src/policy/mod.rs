//! What a task may reach, as values, and who decides it. Pure: nothing here opens
//! a file, a folder or a connection.
//!
//! What a task gets is what its plugin asks for ([`Manifest`]), as far as the
//! operator lets it ([`Policy`]) and the start wants it ([`Ask`]); [`decide`] is the
//! one function that says so.

mod contradictions;
mod decide;
pub mod document;
mod explain;
mod file;
mod grant;
mod hints;
mod limit;
mod manifest;
mod net;
mod rules;
mod section;

pub(crate) use self::net::host;
pub use self::{
    decide::{Ask, Decision, Denial, Sources, decide},
    document::{PolicyError, Problem},
    explain::{Reach, explain},
    file::{Policy, SecretSource},
    grant::{
        Access, Clocks, DirGrant, Egress, EnvGrant, Grant, GrantError, Lookup, Random, SecretGrant,
    },
    hints::{Hints, Sort},
    limit::LimitsAsk,
    manifest::Manifest,
    net::{Origin, Peer, PeerError, PeerHost, Ports, Range, Scheme, special},
    rules::Rules,
};
