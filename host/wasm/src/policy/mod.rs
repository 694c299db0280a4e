//! What a task may reach, as values. Pure: nothing here opens a folder or a
//! connection.

mod grant;
mod net;

pub use self::{
    grant::{
        Access, Clocks, DirGrant, Egress, EnvGrant, Grant, GrantError, Lookup, Random, SecretGrant,
    },
    net::{Origin, Peer, PeerError, PeerHost, Ports, Range, Scheme},
};
