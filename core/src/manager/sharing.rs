//! Names of workers that many jobs have in common. The log and snapshots write them out each time; while those are
//! read, equal ones become one again, so that a job takes no more memory after a restart than before.

use crate::ids::{Incarnation, WorkerId};
use crate::intern::Interner;
use crate::state::JobImage;

#[derive(Debug)]
pub(super) struct NameSharing {
    pub(super) workers: Interner<WorkerId>,
    pub(super) incarnations: Interner<Incarnation>,
}

impl Default for NameSharing {
    fn default() -> Self {
        Self { workers: Interner::new(0), incarnations: Interner::new(0) }
    }
}

impl NameSharing {
    pub(super) fn image(&mut self, image: &mut JobImage) {
        for workflow in &mut image.workflows {
            if let Some(past) = &mut workflow.past {
                past.attempts.iter_mut().for_each(|ended| self.workers.intern(&mut ended.worker));
            }
            if let Some(attempt) = &mut workflow.attempt {
                self.workers.intern(&mut attempt.worker);
                self.incarnations.intern(&mut attempt.incarnation);
            }
        }
    }
}
