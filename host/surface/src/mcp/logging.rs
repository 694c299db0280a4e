//! Messages of the protocol's log, for clients that have asked for them.
//!
//! Revision 2026-07-28 has the log still and discourages it; all that has to do with it is
//! here.

#![expect(deprecated, reason = "clients that ask for the log are told")]

use std::sync::{Arc, Mutex, PoisonError};

use rmcp::{
    RoleServer,
    model::{LoggingLevel, LoggingMessageNotificationParam, SetLevelRequestParams},
    service::{Peer, RequestContext},
};
use serde_json::Value;

use super::asking::has_no_sessions;

/// The level from which on a client wants to be told. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Level(Arc<Mutex<Option<LoggingLevel>>>);

impl Level {
    pub(super) fn set(&self, request: &SetLevelRequestParams) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(request.level);
    }

    /// Tells whether the client wants to hear of what is not out of the ordinary.
    pub(super) fn wants_information(&self) -> bool {
        has_information(*self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Tells the same of one request, which says so itself where there are no sessions.
    pub(super) fn wants_information_in(&self, context: &RequestContext<RoleServer>) -> bool {
        match has_no_sessions(context) {
            true => has_information(context.meta.log_level()),
            false => self.wants_information(),
        }
    }
}

fn has_information(level: Option<LoggingLevel>) -> bool {
    level.is_some_and(|level| matches!(level, LoggingLevel::Debug | LoggingLevel::Info))
}

/// Tells a client, if it is still there.
pub(super) async fn tell(peer: &Peer<RoleServer>, logger: &str, text: String) {
    let message = LoggingMessageNotificationParam::new(LoggingLevel::Info, Value::String(text));
    let _ = peer.notify_logging_message(message.with_logger(logger)).await;
}
