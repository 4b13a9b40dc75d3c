//! Which workers are offered to those who hand out work: by their verdict, and by the room that they have.
//!
//! The handler borrows dispatch, and reads the fleet and the polls.

use crate::dispatch::{Dispatch, Tier};
use crate::health::verdict::verdict;
use crate::health::{Action, Signals};

use super::Manager;
use super::fleet::{Fleet, Link, WorkerKey};
use super::polls::Polls;

pub(super) struct Offers<'a> {
    pub fleet: &'a Fleet,
    pub polls: &'a Polls,
    pub dispatch: &'a mut Dispatch,
}

impl Manager {
    pub(super) fn offers(&mut self) -> Offers<'_> {
        Offers { fleet: &self.fleet, polls: &self.polls, dispatch: &mut self.dispatch }
    }

    /// How many more attempts a worker may be handed now.
    pub(super) fn free_slots(&self, key: WorkerKey) -> u32 {
        free_slots(&self.fleet, &self.polls, key)
    }
}

impl Offers<'_> {
    /// Puts a worker where its verdict says, by the room that it has now: drained never, slow last.
    pub(super) fn update(&mut self, key: WorkerKey) {
        let worker = self.fleet.worker(key);
        let ready = free_slots(self.fleet, self.polls, key) > 0;
        let tier = match verdict(Signals { ready, ..worker.judged.signals }).action() {
            Action::Route => Some(Tier::Route),
            Action::Investigate => Some(Tier::Investigate),
            Action::Drain | Action::Evict => None,
        };
        match tier.zip(worker.group) {
            Some((tier, group)) => self.dispatch.offer(key, group, tier),
            None => self.dispatch.withdraw(key),
        }
    }
}

fn free_slots(fleet: &Fleet, polls: &Polls, key: WorkerKey) -> u32 {
    let worker = fleet.worker(key);
    if worker.evicted || worker.drained || !worker.accepting {
        return 0;
    }
    let free = match &worker.link {
        Link::Session { .. } => worker.slots.saturating_sub(worker.held()),
        Link::Http { poll: Some(poll), .. } => polls.at(*poll).room(),
        Link::Http { poll: None, .. } | Link::Expected => 0,
    };
    if worker.probation { free.min(1u32.saturating_sub(worker.held())) } else { free }
}
