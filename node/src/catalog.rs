//! Jobs in memory by the order of their ids, for lists. Not persisted: it follows from the state.

use std::collections::BTreeSet;

use onward_core::event::Event;
use onward_core::ids::JobId;
use onward_core::state::State;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Catalog {
    ids: BTreeSet<JobId>,
}

impl Catalog {
    pub fn of(state: &State) -> Self {
        Self { ids: state.jobs().map(|(_, job)| job.id).collect() }
    }

    pub fn follow(&mut self, event: &Event) {
        match event {
            Event::JobSubmitted(submitted) => {
                self.ids.insert(submitted.id);
            }
            Event::JobsArchived { jobs } => {
                for job in jobs {
                    self.ids.remove(job);
                }
            }
            _ => {}
        }
    }

    pub fn newest(&self) -> Option<JobId> {
        self.ids.last().copied()
    }

    /// The newest first, beginning before `before`.
    pub fn newest_before(&self, before: Option<JobId>) -> impl Iterator<Item = JobId> + '_ {
        let end = before.unwrap_or(JobId::from_u128(u128::MAX));
        self.ids.range(..end).rev().copied()
    }
}
