//! What is said when a guest is denied something: in its task's log, for whoever
//! started it, and to the audit.

use std::sync::Arc;

use crate::{
    audit,
    link::Link,
    policy::{Hints, Sort},
    text,
};

/// Where the denials of one guest are told. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Denials {
    hints: Option<Arc<Hints>>,
    link: Option<Arc<Link>>,
}

impl Denials {
    /// Returns the way to tell denials to a task, if there is one.
    pub(crate) fn new(hints: Option<Arc<Hints>>, link: Option<Arc<Link>>) -> Self {
        Self { hints, link }
    }

    /// Tells of a denial, and what can be done about it: in the task's log and to
    /// the audit. Of one task the first are told, and the others counted.
    pub(crate) fn tell(&self, sort: Sort, what: &str) {
        let Some(link) = self.audit(sort, what) else { return };
        let what = text::line(what);
        link.note(&format!("denied: {what}; {}", self.hint(sort)));
    }

    /// Tells of a denial to the audit alone, as the guest's own words about it are
    /// better. Returns the link if it is one of those that are told.
    pub(crate) fn audit(&self, sort: Sort, what: &str) -> Option<&Link> {
        let link = self.link.as_deref()?;
        if !link.is_denial_told() {
            return None;
        }
        // Most of it is a guest's, and a secret can be in that.
        let what = link.masked(text::line(what));
        audit::denial(link.host.task(), &what, sort.key(), &self.hint(sort));
        Some(link)
    }

    fn hint(&self, sort: Sort) -> String {
        match &self.hints {
            Some(hints) => hints.of(sort),
            None => Hints::default().of(sort),
        }
    }
}
