//! What is to be done about a plugin folder, decided from what is there and what is known.
//!
//! Pure: what was seen comes in, a plan goes out.

use std::collections::BTreeMap;

use backlot_registry::Kind;

use crate::cache::FileStamp;

/// A component file of a plugin folder, with the manifest beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The kind that it is named after.
    pub(crate) kind: Kind,
    pub(crate) stamp: Stamp,
}

/// What a component file and its manifest were at one time. What cannot be looked at
/// has none: a link to nothing, say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) component: Option<FileStamp>,
    pub(crate) manifest: Option<FileStamp>,
}

impl Stamp {
    /// What a file is that is not there, and one that nothing is known of.
    pub(crate) const NOTHING: Self = Self { component: None, manifest: None };
}

/// What is known of the file of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// It was seen to change, and has yet to be found unchanged.
    Changing(Stamp),
    /// It was tried as it is, with or without success.
    Tried(Stamp),
    /// It is not to be taken, whatever becomes of it: the kind was unloaded.
    Held,
    /// It is gone.
    Gone,
}

/// How a folder is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// By itself: what changes is left until it has settled.
    Watching,
    /// Because somebody asks: what is there is taken as it is.
    Asked,
}

/// What is to be done, a step for each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan(pub(crate) BTreeMap<Kind, Step>);

/// What is to be done about one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It is new.
    Add(Stamp),
    /// It was there before, and is not what it was.
    Replace(Stamp),
    /// Its file is gone.
    Remove,
    /// It is as it was.
    Keep,
    /// It is being changed; another look is to come soon.
    Settle(Stamp),
}

impl Plan {
    /// Decides what is to be done.
    pub(crate) fn of(seen: &[Seen], known: &BTreeMap<Kind, Known>, look: Look) -> Self {
        let mut steps = BTreeMap::new();
        for (kind, known) in known {
            let step = match known {
                Known::Held | Known::Gone => Step::Keep,
                Known::Changing(Stamp::NOTHING) => Step::Remove,
                // Many programs remove a file and then write it anew.
                Known::Changing(_) | Known::Tried(_) => match look {
                    Look::Asked => Step::Remove,
                    Look::Watching => Step::Settle(Stamp::NOTHING),
                },
            };
            steps.insert(kind.clone(), step);
        }
        for Seen { kind, stamp } in seen {
            steps.insert(kind.clone(), step(*stamp, known.get(kind), look));
        }
        Self(steps)
    }

    /// Tells whether another look is to come soon.
    pub(crate) fn is_settling(&self) -> bool {
        self.0.values().any(|step| matches!(step, Step::Settle(_)))
    }

    /// Tells whether there is nothing to do.
    pub(crate) fn is_done(&self) -> bool {
        self.0.values().all(|step| *step == Step::Keep)
    }
}

impl Step {
    /// Returns what is known of the file once the step is under way, if it is one.
    pub(crate) fn leaves(self) -> Option<Known> {
        match self {
            Self::Add(stamp) | Self::Replace(stamp) => Some(Known::Tried(stamp)),
            Self::Settle(stamp) => Some(Known::Changing(stamp)),
            Self::Remove => Some(Known::Gone),
            Self::Keep => None,
        }
    }
}

fn step(now: Stamp, known: Option<&Known>, look: Look) -> Step {
    let take = |step| match look {
        Look::Asked => step,
        Look::Watching => Step::Settle(now),
    };
    match known {
        None | Some(Known::Gone) => take(Step::Add(now)),
        Some(Known::Held) => Step::Keep,
        Some(Known::Changing(then)) if *then == now => Step::Replace(now),
        Some(Known::Tried(then)) if *then == now => Step::Keep,
        Some(Known::Changing(_) | Known::Tried(_)) => take(Step::Replace(now)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(of: u64) -> Stamp {
        Stamp { component: Some(FileStamp::numbered(of)), manifest: None }
    }

    fn kind(name: &str) -> Kind {
        Kind::new(name).unwrap()
    }

    fn plan(now: Option<u64>, known: Option<Known>, look: Look) -> Option<Step> {
        let seen: Vec<_> =
            now.map(|now| Seen { kind: kind("a"), stamp: stamp(now) }).into_iter().collect();
        let known = known.map(|known| (kind("a"), known)).into_iter().collect();
        Plan::of(&seen, &known, look).0.remove(&kind("a"))
    }

    #[test]
    fn every_case_has_its_step() {
        use Known::{Changing, Gone, Held, Tried};
        use Look::{Asked, Watching};
        for (now, known, look, step) in [
            // A file that is new settles first, unless somebody asks for it.
            (Some(1), None, Watching, Some(Step::Settle(stamp(1)))),
            (Some(1), None, Asked, Some(Step::Add(stamp(1)))),
            (Some(1), Some(Gone), Watching, Some(Step::Settle(stamp(1)))),
            (Some(1), Some(Gone), Asked, Some(Step::Add(stamp(1)))),
            // One that changes settles until two looks in a row find the same.
            (Some(2), Some(Tried(stamp(1))), Watching, Some(Step::Settle(stamp(2)))),
            (Some(3), Some(Changing(stamp(2))), Watching, Some(Step::Settle(stamp(3)))),
            (Some(3), Some(Changing(stamp(3))), Watching, Some(Step::Replace(stamp(3)))),
            (Some(3), Some(Changing(stamp(2))), Asked, Some(Step::Replace(stamp(3)))),
            // What was tried is not tried again as it is, good or not.
            (Some(1), Some(Tried(stamp(1))), Watching, Some(Step::Keep)),
            (Some(1), Some(Tried(stamp(1))), Asked, Some(Step::Keep)),
            // What was unloaded stays so.
            (Some(2), Some(Held), Watching, Some(Step::Keep)),
            (Some(2), Some(Held), Asked, Some(Step::Keep)),
            (None, Some(Held), Watching, Some(Step::Keep)),
            // What is gone is removed once, and not before two looks in a row miss it.
            (None, Some(Tried(stamp(1))), Watching, Some(Step::Settle(Stamp::NOTHING))),
            (None, Some(Changing(stamp(1))), Watching, Some(Step::Settle(Stamp::NOTHING))),
            (None, Some(Changing(Stamp::NOTHING)), Watching, Some(Step::Remove)),
            (Some(1), Some(Changing(Stamp::NOTHING)), Watching, Some(Step::Settle(stamp(1)))),
            (None, Some(Tried(stamp(1))), Asked, Some(Step::Remove)),
            (None, Some(Gone), Watching, Some(Step::Keep)),
            (None, None, Watching, None),
        ] {
            assert_eq!(plan(now, known, look), step, "{now:?} {known:?} {look:?}");
        }
    }

    #[test]
    fn a_change_of_the_manifest_is_a_change() {
        let with = Stamp { manifest: Some(FileStamp::numbered(9)), ..stamp(1) };
        let seen = [Seen { kind: kind("a"), stamp: with }];
        let known = BTreeMap::from([(kind("a"), Known::Tried(stamp(1)))]);
        let plan = Plan::of(&seen, &known, Look::Watching);
        assert_eq!(plan.0.get(&kind("a")), Some(&Step::Settle(with)));
        assert!(plan.is_settling());
    }
}
