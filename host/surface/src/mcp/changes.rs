//! Telling clients what has changed without being asked.
//!
//! Up to revision 2025-11-25 a client is told of changed tools as soon as it is initialized,
//! and, where it has set a level for logs, that a task has ended. That it was told so settles
//! nothing: nobody knows whether a model has read it. From 2026-07-28 on a client is told of
//! changed tools for as long as it listens.

use std::sync::Arc;

use backlot_jobs::message;
use backlot_registry::{Changes, SessionId};
use rmcp::{
    RoleServer,
    model::Tool,
    service::{Peer, SubscriptionSink},
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{
    kinds,
    logging::{self, Level},
    tools,
};
use crate::{api::Api, feed::Event};

/// A client that is told of changes.
pub(super) struct Client {
    pub(super) peer: Peer<RoleServer>,
    /// Notified once it is ready to be told.
    pub(super) initialized: Arc<Notify>,
    /// Set when its server is gone, or the host ends.
    pub(super) end: CancellationToken,
    pub(super) closing: CancellationToken,
}

impl Client {
    /// Runs what tells it, until there is nobody to tell.
    async fn while_there(&self, telling: impl Future<Output = ()>) {
        tokio::select! {
            () = telling => {}
            () = self.end.cancelled() => {}
            () = self.closing.cancelled() => {}
        }
    }
}

/// Tells a client of every change of its tools from now on.
pub(super) fn tell(client: Client, api: &Api, may_change: bool) {
    // From before the client's first look, so that nothing falls between.
    let mut watch = Watch::new(api, may_change);
    tokio::spawn(async move {
        let telling = async {
            client.initialized.notified().await;
            while watch.next().await {
                if client.peer.notify_tool_list_changed().await.is_err() {
                    break;
                }
            }
        };
        client.while_there(telling).await;
    });
}

/// Tells whoever listens of every change of the tools from now on.
pub(super) async fn follow(sink: &SubscriptionSink, api: &Api, may_change: bool) {
    let mut watch = Watch::new(api, may_change);
    while watch.next().await {
        if sink.notify_tool_list_changed().await.is_err() {
            break;
        }
    }
}

/// The tools as a client has seen them last.
struct Watch {
    api: Api,
    may_change: bool,
    changes: Changes,
    last: Vec<Tool>,
}

impl Watch {
    fn new(api: &Api, may_change: bool) -> Self {
        let changes = api.catalog.changes();
        let last = tools::offered(&*api.catalog, &api.mcp, may_change);
        Self { api: api.clone(), may_change, changes, last }
    }

    /// Waits until the tools are others; returns whether they are, and not the host gone.
    async fn next(&mut self) -> bool {
        // One by one, the kinds of a host that was just started would be as many changes.
        kinds::known(&self.api).await;
        while self.changes.next().await.is_some() {
            let now = tools::offered(&*self.api.catalog, &self.api.mcp, self.may_change);
            if now != self.last {
                self.last = now;
                return true;
            }
        }
        false
    }
}

/// Tells a client of the jobs of a session that have ended, from now on, as long as it wants
/// to hear.
pub(super) fn tell_endings(client: Client, api: &Api, session: SessionId, level: Level) {
    let mut listener = api.feed.listen();
    tokio::spawn(async move {
        let telling = async {
            while let Some(event) = listener.next().await {
                let Event::Changed(job) = event else { continue };
                let is_owed = job.debt.is_some() && job.status().is_terminal();
                if is_owed && job.spec.parent == session && level.wants_information() {
                    let text = message(std::slice::from_ref(&*job));
                    logging::tell(&client.peer, "tasks", text).await;
                }
            }
        };
        client.while_there(telling).await;
    });
}
