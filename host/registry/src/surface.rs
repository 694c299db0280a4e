//! The fence: no task starts that nobody could see or stop.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use crate::{Registry, registry::Inner};

/// Keeps a control surface attached: something through which tasks can be seen
/// and stopped. Dropping it detaches the surface; live tasks go on.
#[must_use = "the surface is detached when this is dropped"]
pub struct SurfaceGuard {
    name: Arc<str>,
    registry: Weak<Inner>,
}

impl Registry {
    /// Attaches a control surface. Tasks can be started while at least one is attached.
    pub fn attach_surface(&self, name: impl Into<Arc<str>>) -> SurfaceGuard {
        let name = name.into();
        tracing::debug!(surface = &*name, "attached a control surface");
        self.inner.with_table(|table| table.surfaces += 1);
        SurfaceGuard { name, registry: Arc::downgrade(&self.inner) }
    }
}

impl SurfaceGuard {
    /// Returns the name of the surface.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for SurfaceGuard {
    fn drop(&mut self) {
        if let Some(inner) = self.registry.upgrade() {
            inner.with_table(|table| table.surfaces -= 1);
            tracing::debug!(surface = &*self.name, "detached a control surface");
        }
    }
}

impl fmt::Debug for SurfaceGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SurfaceGuard").field(&self.name).finish()
    }
}
