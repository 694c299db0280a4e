//! The terms of a start: what was decided for it, made ready.

use std::{path::Path, sync::Arc};

use backlot_registry::{Refusal, StopBounds};

use crate::{
    grant::OpenGrant,
    limits::Limits,
    policy::{Ask, Decision, Denial, Manifest, Rules, Sources, decide},
};

/// What tasks are started with. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) grant: OpenGrant,
    pub(crate) limits: Limits,
    /// Where the work folder is that the limits may give; only jobs have a place for one.
    pub(crate) work_folder: Option<Arc<Path>>,
    /// The bounds of the stop ladder, where they are not the registry's own.
    pub(crate) bounds: Option<StopBounds>,
    /// How many tasks of the kind may be live at once, where that is not the registry's
    /// own cap.
    pub(crate) cap: Option<usize>,
    /// The grant and the limits in words, a line each.
    pub(crate) lines: Option<Arc<[String]>>,
}

impl Terms {
    /// Returns the terms of a start by somebody who decides on them.
    pub(crate) fn given(grant: OpenGrant, limits: Limits) -> Self {
        Self { grant, limits, work_folder: None, bounds: None, cap: None, lines: None }
    }

    /// Decides on the terms of a start, and opens what it is granted.
    ///
    /// # Errors
    ///
    /// A refusal that says which line would allow what is asked for.
    pub(crate) fn decided(
        rules: &Rules,
        manifest: Option<&Manifest>,
        ask: &Ask,
        sources: &Sources,
    ) -> Result<Self, Refusal> {
        Self::open(rules, decision(rules, manifest, ask, sources)?)
    }

    /// Opens what was decided on.
    ///
    /// # Errors
    ///
    /// When a folder that is granted cannot be opened.
    pub(crate) fn open(rules: &Rules, decision: Decision) -> Result<Self, Refusal> {
        let grant =
            decision.grant.open().map_err(|error| Refusal::NotGranted(error.to_string()))?;
        Ok(Self {
            grant: grant.with_hints(decision.hints),
            limits: decision.limits,
            work_folder: None,
            bounds: decision.bounds,
            cap: rules.tasks(),
            lines: Some(decision.lines),
        })
    }
}

/// Decides on the terms of a start.
///
/// # Errors
///
/// A refusal that says which line would allow what is asked for.
pub(crate) fn decision(
    rules: &Rules,
    manifest: Option<&Manifest>,
    ask: &Ask,
    sources: &Sources,
) -> Result<Decision, Refusal> {
    decide(rules, manifest, ask, sources).map_err(|denial| refusal(&denial))
}

/// Returns the refusal of a start that was denied.
pub(crate) fn refusal(denial: &Denial) -> Refusal {
    Refusal::NotGranted(words(denial))
}

/// Returns what a denial says, less that it is one.
fn words(denial: &Denial) -> String {
    match denial {
        Denial::Policy { asked, why, fix } | Denial::Manifest { asked, why, fix } => {
            format!("{asked}: {why}; {fix}")
        }
        other => other.to_string(),
    }
}
