//! What models and their clients are promised, in messages as they go over the wire.

mod client;
mod http;
mod kinds;
mod stream;
mod tasks;
mod verbs;
