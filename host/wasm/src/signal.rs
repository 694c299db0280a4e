//! What a task has been told about stopping.
//!
//! A guest hears of a stop in two ways: the `cancel` export is called when it
//! can be entered, and `stop-requested` says yes when it cannot. One value
//! holds how far that has come, so that the two never disagree.

/// How far a stop has come.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) enum Signal {
    /// No stop was asked for, or the last one was refused.
    #[default]
    Quiet,
    /// A stop was asked for, and the guest has not been entered yet.
    Waiting { reason: Option<String> },
    /// The `cancel` export is being called.
    Asking { reason: Option<String> },
    /// The guest has agreed, or has read that it should stop.
    Told { reason: Option<String> },
}

impl Signal {
    /// Records that somebody asked for a stop.
    pub(crate) fn ask(&mut self, reason: Option<String>) {
        if *self == Self::Quiet {
            *self = Self::Waiting { reason };
        }
    }

    /// Records that the `cancel` export is about to be called, and returns the reason.
    pub(crate) fn enter(&mut self) -> Option<String> {
        if let Self::Waiting { reason } = self {
            *self = Self::Asking { reason: reason.take() };
        }
        match self {
            Self::Quiet => None,
            Self::Waiting { reason } | Self::Asking { reason } | Self::Told { reason } => {
                reason.clone()
            }
        }
    }

    /// Records that the guest has agreed to stop.
    pub(crate) fn agree(&mut self) {
        if let Self::Waiting { reason } | Self::Asking { reason } = self {
            *self = Self::Told { reason: reason.take() };
        }
    }

    /// Records that the guest has refused to stop. A guest that has read of the
    /// stop before keeps to what it read.
    pub(crate) fn refuse(&mut self) {
        if let Self::Asking { .. } = self {
            *self = Self::Quiet;
        }
    }

    /// Answers `stop-requested`. The guest has been told once this says yes.
    pub(crate) fn look(&mut self) -> Option<Option<String>> {
        match self {
            Self::Quiet | Self::Asking { .. } => None,
            Self::Waiting { reason } => {
                let reason = reason.take();
                *self = Self::Told { reason: reason.clone() };
                Some(reason)
            }
            Self::Told { reason } => Some(reason.clone()),
        }
    }

    /// Returns the reason once the guest has been told.
    pub(crate) fn told(&self) -> Option<Option<String>> {
        match self {
            Self::Told { reason } => Some(reason.clone()),
            Self::Quiet | Self::Waiting { .. } | Self::Asking { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Signal {
        let mut signal = Signal::default();
        signal.ask(Some("why".into()));
        signal
    }

    #[test]
    fn a_guest_that_agrees_is_told() {
        let mut signal = asked();
        assert_eq!(signal.enter(), Some("why".into()));
        assert_eq!(signal.look(), None, "nothing is said while it decides");
        signal.agree();
        assert_eq!(signal.told(), Some(Some("why".into())));
        assert_eq!(signal.look(), Some(Some("why".into())));
    }

    #[test]
    fn a_guest_that_refuses_sees_nothing_of_it() {
        let mut signal = asked();
        signal.enter();
        signal.refuse();
        assert_eq!(signal, Signal::Quiet);
        assert_eq!(signal.look(), None);
    }

    #[test]
    fn a_guest_that_cannot_be_entered_is_told_by_looking() {
        let mut signal = asked();
        assert_eq!(signal.look(), Some(Some("why".into())));
        assert_eq!(signal.enter(), Some("why".into()));
        signal.refuse();
        assert_eq!(signal.told(), Some(Some("why".into())), "what was read cannot be unread");
    }

    #[test]
    fn the_first_reason_stands() {
        let mut signal = asked();
        signal.ask(Some("other".into()));
        assert_eq!(signal.enter(), Some("why".into()));
    }
}
