//! How far matching has come in this step, and whether it goes on in the next.
//!
//! Groups that may have something to hand out are dirty. Each is served by workers that are well; those that have slow
//! ones are put aside, because slow workers are asked last: only for what nobody else had room for.

use crate::state::WorkflowKey;

use super::{Dispatch, GroupKey};

/// The number of hand-outs ahead for which entries are brought into the caches.
const AHEAD: usize = 4;

#[derive(Debug, Default)]
pub(super) struct Matching {
    /// Groups whose slow workers are asked at the end of this step.
    slow_groups: Vec<GroupKey>,
    /// A step's share of matching was used up: there is more to do at once.
    goes_on: bool,
    /// Will soon be handed out, and are being brought into the caches; the newest first. Some may have gone since.
    coming: [Option<WorkflowKey>; AHEAD],
}

impl Dispatch {
    /// Begins the matching of a step, and says whether that of the step before was not over.
    pub fn begin_matching(&mut self) -> bool {
        core::mem::take(&mut self.matching.goes_on)
    }

    /// Ends the matching of a step: what is left goes on in the next.
    pub fn end_matching(&mut self) {
        self.matching.goes_on = self.has_dirty();
    }

    /// Whether the last step has left something.
    pub fn goes_on(&self) -> bool {
        self.matching.goes_on
    }

    /// The slow workers of this group are asked when all groups were served.
    pub fn put_aside(&mut self, group: GroupKey) {
        self.matching.slow_groups.push(group);
    }

    pub fn pop_aside(&mut self) -> Option<GroupKey> {
        self.matching.slow_groups.pop()
    }

    /// Notes that this workflow was picked: brings the one that is a few turns behind it into the caches, as far as it
    /// lies here. Gives those that will be picked soon, the last first.
    pub fn prefetch_behind(&mut self, group: GroupKey, picked: WorkflowKey) -> [Option<WorkflowKey>; AHEAD] {
        let coming = self.behind(group, picked, AHEAD);
        self.matching.coming.rotate_right(1);
        self.matching.coming[0] = coming;
        if let Some(coming) = coming {
            self.prefetch(coming);
        }
        self.matching.coming
    }
}
