//! Names of workers that many jobs have in common. The log and snapshots write them out each time; while those are
//! read, equal ones become one again, so that a job takes no more memory after a restart than before.

use core::hash::Hash;

use foldhash::fast::FixedState;
use hashbrown::HashSet;

use crate::ids::{Incarnation, WorkerId};
use crate::state::JobImage;

#[derive(Debug, Default)]
pub(super) struct Sharing {
    workers: HashSet<WorkerId, FixedState>,
    incarnations: HashSet<Incarnation, FixedState>,
}

impl Sharing {
    pub(super) fn worker(&mut self, worker: &mut WorkerId) {
        share(&mut self.workers, worker);
    }

    pub(super) fn incarnation(&mut self, incarnation: &mut Incarnation) {
        share(&mut self.incarnations, incarnation);
    }

    pub(super) fn image(&mut self, image: &mut JobImage) {
        for workflow in &mut image.workflows {
            if let Some(past) = &mut workflow.past {
                past.attempts.iter_mut().for_each(|ended| share(&mut self.workers, &mut ended.worker));
            }
            if let Some(attempt) = &mut workflow.attempt {
                share(&mut self.workers, &mut attempt.worker);
                share(&mut self.incarnations, &mut attempt.incarnation);
            }
        }
    }
}

fn share<T: Clone + Eq + Hash>(known: &mut HashSet<T, FixedState>, name: &mut T) {
    match known.get(name) {
        Some(one) => name.clone_from(one),
        None => {
            known.insert(name.clone());
        }
    }
}
