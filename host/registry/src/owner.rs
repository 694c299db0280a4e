//! The live agents that tasks belong to.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use tokio::sync::Notify;

use crate::{AgentId, Registry, SessionId, StopCause, registry::Inner};

/// A handle to one live instance of an agent. Tasks are started under it, and
/// end with it.
#[derive(Clone)]
pub struct Owner {
    registration: Arc<Registration>,
}

pub(crate) struct Registration {
    /// Tells this instance from others under the same agent id.
    number: u64,
    agent: AgentId,
    session: SessionId,
    registry: Weak<Inner>,
    /// Wakes the starts that are on their way when the owner is disposed.
    closed: Notify,
}

impl Registry {
    /// Registers a live instance of an agent. Handles to an instance that was
    /// registered under the same id before can start nothing more.
    pub fn register_owner(&self, agent: AgentId, session: SessionId) -> Owner {
        self.inner.with_table(|table| {
            table.register(agent.clone(), |number| Owner {
                registration: Arc::new(Registration {
                    number,
                    agent,
                    session,
                    registry: Arc::downgrade(&self.inner),
                    closed: Notify::new(),
                }),
            })
        })
    }
}

impl Owner {
    /// Returns the agent id that the instance was registered under.
    pub fn agent(&self) -> &AgentId {
        &self.registration.agent
    }

    /// Returns the session that access to the owner's tasks compares.
    pub fn session(&self) -> &SessionId {
        &self.registration.session
    }

    /// Says whether both handles name the same live instance.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.registration, &other.registration)
    }

    /// Ends the instance: refuses new starts under it, stops its tasks by the
    /// ladder, awaits their ends and drops their records.
    ///
    /// Takes no longer than the bounds of the ladder together. Calling it again
    /// is harmless; a call that was dropped halfway is finished by the next.
    pub async fn dispose(&self) {
        let Some(inner) = self.registration.registry.upgrade() else { return };
        let tasks = inner.with_table(|table| table.close_owner(self));
        self.close_starts();
        inner.tear_down(&tasks, StopCause::Owner).await;
        inner.until_table(|table| table.starting(self) == 0).await;
        // Freed outside the lock.
        drop(inner.with_table(|table| table.remove_owner(self)));
        drop(tasks);
    }

    pub(crate) fn number(&self) -> u64 {
        self.registration.number
    }

    pub(crate) fn downgrade(&self) -> Weak<Registration> {
        Arc::downgrade(&self.registration)
    }

    pub(crate) fn upgrade(registration: &Weak<Registration>) -> Option<Self> {
        Some(Self { registration: registration.upgrade()? })
    }

    /// Wakes the starts under the owner that are on their way.
    pub(crate) fn close_starts(&self) {
        self.registration.closed.notify_waiters();
    }

    /// Wakes whoever watches the starts under the owner.
    pub(crate) fn closed(&self) -> &Notify {
        &self.registration.closed
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner")
            .field("agent", self.agent())
            .field("session", self.session())
            .field("number", &self.number())
            .finish()
    }
}
