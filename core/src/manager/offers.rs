//! Which workers are offered to those who hand out work: by their verdict, and by the room that they have.
//!
//! The handler borrows dispatch, and reads the fleet and the polls.

use crate::dispatch::{Dispatch, Tier};
use crate::health::verdict::verdict;
use crate::health::{Action, Signals};

use super::Manager;
use super::fleet::{Fleet, WorkerKey, WorkerTransport};
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

    /// The number of further attempts that a worker may be handed now.
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
        WorkerTransport::Session { .. } => worker.slots.saturating_sub(worker.held()),
        WorkerTransport::Http { poll: Some(poll), .. } => polls.at(*poll).room(),
        WorkerTransport::Http { poll: None, .. } | WorkerTransport::Expected => 0,
    };
    if worker.probation { free.min(1u32.saturating_sub(worker.held())) } else { free }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::{ProgressSignal, SessionLiveness};
    use crate::ids::{ClientId, Incarnation, Name, SessionId, WorkerId};
    use crate::message::Subscription;
    use crate::settings::Rules;
    use crate::time::Awake;

    use super::super::fleet::FleetWorker;

    /// The tier of a worker that has one free slot, a good verdict and this one change.
    fn tier_of(change: impl FnOnce(&mut FleetWorker)) -> Option<Tier> {
        let rules = Rules::default();
        let (mut fleet, polls) = (Fleet::new(1), Polls::new(1));
        let mut dispatch = Dispatch::new(rules.aging, 1);
        let name = |text| Name::new(text).expect("valid");
        let subscription = Subscription { queues: vec![name("q")], kinds: vec![name("k")] };
        let group =
            dispatch.join(&subscription, ClientId::default(), &rules.limits, |_| false).expect("one is allowed");
        let liveness = SessionLiveness::connected(Awake::ZERO, Awake::ZERO);
        let link = WorkerTransport::Session { session: SessionId(1), liveness };
        let (id, incarnation) = (WorkerId::new("w").expect("valid"), Incarnation::new("1").expect("valid"));
        let key = fleet.insert(FleetWorker::new(id, incarnation, link, Awake::ZERO));
        let worker = fleet.worker_mut(key);
        worker.group = Some(group);
        worker.slots = 1;
        change(worker);
        Offers { fleet: &fleet, polls: &polls, dispatch: &mut dispatch }.update(key);
        [Tier::Route, Tier::Investigate].into_iter().find(|tier| dispatch.has_worker(group, *tier))
    }

    #[test]
    fn a_worker_is_offered_as_its_verdict_says() {
        for (live, progress, tier) in [
            (true, ProgressSignal::Idle, Some(Tier::Route)),
            (true, ProgressSignal::Normal, Some(Tier::Route)),
            (true, ProgressSignal::Slow, Some(Tier::Investigate)),
            (true, ProgressSignal::Degraded, Some(Tier::Investigate)),
            (true, ProgressSignal::Stuck, None),
            (false, ProgressSignal::Normal, None),
        ] {
            let found = tier_of(|worker| worker.judged.signals = Signals { live, ready: true, progress });
            assert_eq!(found, tier, "live: {live}, {progress:?}");
        }
    }

    #[test]
    fn a_worker_without_room_or_that_may_get_nothing_is_not_offered() {
        assert_eq!(tier_of(|_| {}), Some(Tier::Route));
        assert_eq!(tier_of(|worker| worker.slots = 0), None);
        assert_eq!(tier_of(|worker| worker.accepting = false), None);
        assert_eq!(tier_of(|worker| worker.drained = true), None);
        assert_eq!(tier_of(|worker| worker.evicted = true), None);
        assert_eq!(tier_of(|worker| worker.link = WorkerTransport::Expected), None);
        assert_eq!(tier_of(|worker| worker.group = None), None, "it was not heard of yet");
    }
}
