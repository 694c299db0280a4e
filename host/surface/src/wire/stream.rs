//! What goes over live streams beside jobs and their output.

use backlot_jobs::JobId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{JobView, schema::Id};

/// Some of the jobs that have not ended, as they are when who listens begins to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotView {
    /// The jobs, the newest first.
    pub jobs: Vec<JobView>,
    /// Whether more of them follow, before anything that has happened since.
    pub more: bool,
}

/// A job is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemovedView {
    /// Its id.
    #[schema(value_type = Id)]
    pub id: JobId,
}

/// A part of what was recorded is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DroppedView {
    /// How many bytes of its part were before it.
    pub offset: u64,
    /// How many bytes it had.
    pub dropped: u64,
}

/// Something for which its name says all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NothingView {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::tests::check;

    #[test]
    fn what_goes_over_streams() {
        check(
            &SnapshotView { jobs: Vec::new(), more: true },
            "{\n  \"jobs\": [],\n  \"more\": true\n}",
        );
        check(
            &RemovedView { id: JobId::from_bits(7) },
            "{\n  \"id\": \"00000000000000000000000000000007\"\n}",
        );
        check(&DroppedView { offset: 3, dropped: 5 }, "{\n  \"offset\": 3,\n  \"dropped\": 5\n}");
        check(&NothingView {}, "{}");
    }
}
