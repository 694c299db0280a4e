//! What programs and people see of a host's jobs.
//!
//! A surface translates: it parses what is asked, calls the manager, and renders what
//! came of it. What is asked and answered is JSON of the shapes in [`wire`], over HTTP
//! on a Unix socket, or over TCP from whoever has one of the [`Tokens`]; [`Client`] is the
//! other end.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

// What goes over the wire.
mod error;
pub mod wire;

// The host's end of it.
mod access;
mod api;
mod feed;
mod http;
pub mod mcp;
mod metrics;
mod process;
mod tokens;

// The other end.
mod client;

pub use access::{Principal, Role};
pub use api::{Api, HostGauges, HostSide, KindChange};
pub use client::{Client, ClientError, Download, McpStream};
pub use error::{Failure, Reason};
pub use feed::{Event, Feed, Listener};
pub use http::{
    BODY_BYTES, BindRefused, Bound, Door, Guard, ListenError, Rate, SESSION_HEADER, TlsError,
    Warning, description, listen_tcp, may_bind, router, serve, tls_config,
};
pub use metrics::Metrics;
pub use tokens::{NewToken, TokenError, TokenView, Tokens};
