//! Messages at the end of a step, because of what happened in it.

use crate::ids::{JobId, Name};
use crate::payload::Digest;

#[derive(Debug, Default)]
pub(crate) struct FollowUps {
    /// Ended, and to be copied to the archive.
    pub to_archive: Vec<JobId>,
    /// Ended in the dead letters.
    pub newly_dead: Vec<JobId>,
    /// Ended, and a gate has to hear of it.
    pub ended_for_gates: Vec<JobId>,
    /// Critical schedules that have failed once too often.
    pub newly_failing: Vec<Name>,
    /// Stored content that no job refers to any more.
    pub unreferenced: Vec<Digest>,
}
