//! The hold's counts: how many workers with a session there are, and how many of them fail.
//!
//! Those that were evicted lately, or missed until they were forgotten, and are not back count as failing, or a failure
//! that rolls through the fleet would never be the failure of most.

use core::time::Duration;

use crate::health::Hold;
use crate::health::hold::hold;
use crate::ids::WorkerId;
use crate::time::Awake;

use super::expiring::ExpiringWorkers;

/// Whether a worker counts towards the hold, and on which side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HoldStanding {
    No,
    Fine,
    Failing,
}

impl HoldStanding {
    /// Tracked, and failing of those.
    const fn counts(self) -> (usize, usize) {
        match self {
            Self::No => (0, 0),
            Self::Fine => (1, 0),
            Self::Failing => (1, 1),
        }
    }
}

#[derive(Debug, Default)]
pub(in crate::manager) struct HoldState {
    tracked: usize,
    failing: usize,
    /// Evicted lately, or missed until they were forgotten, and not back.
    lost: ExpiringWorkers<()>,
    /// An eviction was withheld, and the reason for that is still there.
    active: bool,
}

/// The numbers that count for the hold, as it began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::manager) struct HoldCounts {
    pub tracked: usize,
    pub failing: usize,
}

impl HoldCounts {
    fn is_hold(self) -> bool {
        hold(self.tracked, self.failing) == Hold::Held
    }
}

impl HoldState {
    /// A worker counts in another way than before.
    pub(super) fn recount(&mut self, before: HoldStanding, after: HoldStanding) {
        let ((was_tracked, was_failing), (tracked, failing)) = (before.counts(), after.counts());
        self.tracked = self.tracked + tracked - was_tracked;
        self.failing = self.failing + failing - was_failing;
    }

    fn counts(&self, now: Awake) -> HoldCounts {
        let lost = self.lost.lasting(now);
        HoldCounts { tracked: self.tracked + lost, failing: self.failing + lost }
    }

    /// Whether evictions are withheld at this moment.
    pub fn is_on(&self, now: Awake) -> bool {
        self.active && self.counts(now).is_hold()
    }

    /// Whether an eviction that is due now has to be withheld. The hold is on from then on; its counts are given if it
    /// was not.
    pub fn withhold(&mut self, now: Awake) -> (bool, Option<HoldCounts>) {
        let counts = self.counts(now);
        let withheld = counts.is_hold();
        let began = withheld && !self.active;
        self.active |= withheld;
        (withheld, began.then_some(counts))
    }

    /// Ends the hold if the reason for it is gone, and says whether it has ended now.
    pub fn end_if_clear(&mut self, now: Awake) -> bool {
        let ended = self.active && !self.is_on(now);
        self.active &= !ended;
        ended
    }

    /// A worker with a session was evicted, or is gone: it counts as failing until it is back, or for so long.
    pub fn lose(&mut self, id: WorkerId, now: Awake, within: Duration) {
        // Those that no longer count make room first, so that a fleet that comes and goes does not pile up here.
        while self.lost.pop_ended(now).is_some() {}
        self.lost.insert(id, now + within, ());
    }

    /// Counts a worker after a takeover that was lost before, until that instant.
    pub fn resume_lost(&mut self, id: WorkerId, until: Awake) {
        self.lost.insert(id, until, ());
    }

    /// The worker is back, or does not count any more.
    pub fn find_again(&mut self, id: &WorkerId) {
        self.lost.remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000;

    fn worker(number: u64) -> WorkerId {
        WorkerId::new(format!("w{number}")).expect("valid")
    }

    /// Five workers, of which so many fail.
    fn fleet_of_five(failing: usize) -> HoldState {
        let mut hold = HoldState::default();
        for at in 0..5 {
            let standing = if at < failing { HoldStanding::Failing } else { HoldStanding::Fine };
            hold.recount(HoldStanding::No, standing);
        }
        hold
    }

    #[test]
    fn those_that_no_longer_count_for_the_hold_do_not_stay_in_memory() {
        let mut hold = HoldState::default();
        for minute in 0..100 {
            hold.lose(worker(minute), Awake::from_ms(minute * MINUTE), Duration::from_secs(300));
        }
        assert_eq!(hold.lost.len(), 5, "one a minute, for five minutes");
    }

    #[test]
    fn a_hold_begins_with_an_eviction_that_is_due_and_ends_when_most_are_well() {
        let now = Awake::from_ms(1);
        let mut hold = fleet_of_five(4);
        assert!(!hold.is_on(now), "no eviction was due yet");
        assert_eq!(hold.withhold(now), (true, Some(HoldCounts { tracked: 5, failing: 4 })));
        assert_eq!(hold.withhold(now), (true, None), "it begins once");
        assert!(hold.is_on(now) && !hold.end_if_clear(now));
        (0..4).for_each(|_| hold.recount(HoldStanding::Failing, HoldStanding::Fine));
        assert!(!hold.is_on(now) && hold.end_if_clear(now));
        assert!(!hold.end_if_clear(now), "it ends once");
    }

    #[test]
    fn those_that_were_lost_count_as_failing_until_they_are_back() {
        let now = Awake::from_ms(1);
        let mut hold = fleet_of_five(0);
        (0..5).for_each(|at| hold.lose(worker(at), now, Duration::from_secs(300)));
        assert_eq!(hold.counts(now), HoldCounts { tracked: 10, failing: 5 });
        hold.find_again(&worker(0));
        hold.resume_lost(worker(7), Awake::from_ms(2));
        assert_eq!(hold.counts(now), HoldCounts { tracked: 10, failing: 5 });
        assert_eq!(hold.counts(Awake::from_ms(2)), HoldCounts { tracked: 9, failing: 4 });
    }
}
