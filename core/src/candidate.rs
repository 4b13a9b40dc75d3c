//! The candidate: when a follower tries for the seat.
//!
//! Nothing here decides who leads. The log does, by comparing terms: of several who try at once one wins, and the others
//! go on following. The candidate only says when a try makes sense, so that a leader that has gone is replaced soon and
//! managers do not take the seat from each other for ever.
//!
//! | what is seen | when to try |
//! |---|---|
//! | nobody ever sat, or the holder is an earlier life of this very process's folder | at once |
//! | the seat was handed over to me | at once |
//! | the link to the holder broke, and it refuses connections | `rank_step` for each candidate before me |
//! | the seat and the newest batch have not moved for `seat_ttl`, by the own clock | the same, after `seat_ttl` |
//! | the holder writes, and neither this manager nor any other reaches it | the same, after twice `seat_ttl` |
//! | the seat was handed over to another | only if it does not move for `seat_ttl` |
//! | an import into the log is under way | never |
//! | any of these but a hand-over to me, by a gate that may not stand while another lives that may | if the seat does not move for `yield_for` |
//!
//! A manager that is not caught up, not healthy, or more than `max_clock_skew` off the log's clock does not try at all:
//! log time would jump. A gate stands only if it is live, ready, and idle or normal
//! ([`may_stand_for_election`](crate::health::verdict::may_stand_for_election)); where none is, each of those that live may
//! try, for none is better than another: one that follows forwards nothing, so it is idle and not ready. Whether managers
//! are ready depends on who leads, so they always stand. A manager whose own term ended early backs off while others are there who may lead: what ended
//! its term may be its own network.

use core::fmt;
use core::time::Duration;

use crate::fence::Term;
use crate::time::Mono;

/// The numbers of a candidate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CandidateRule {
    pub seat_ttl: Duration,
    /// The time that a candidate waits longer than the one before it.
    pub rank_step: Duration,
    pub max_clock_skew: Duration,
    /// The time for which a gate that may not stand leaves a still seat to those that may. If none of them has taken it
    /// then, none of them can.
    pub yield_for: Duration,
    /// The wait after a term that ended early; it doubles with each in a row.
    pub backoff: Duration,
    pub max_backoff: Duration,
    /// A term that lasted for so long did not end early.
    pub steady_after: Duration,
}

impl CandidateRule {
    pub const fn with_ttl(seat_ttl: Duration) -> Self {
        Self {
            seat_ttl,
            rank_step: Duration::from_millis(100),
            max_clock_skew: Duration::from_secs(10),
            yield_for: seat_ttl.saturating_mul(3),
            backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(30),
            steady_after: Duration::from_secs(60),
        }
    }
}

/// The name of the seat's holder: one life of one process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HolderId(pub u128);

/// The seat as it was seen at one look. Its holder changes it with everything that it writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SeatSight {
    pub term: Term,
    /// None if nobody ever sat.
    pub holder: Option<HolderId>,
    pub beat: i64,
    /// The beginning of the newest batch.
    pub newest: Option<i64>,
    /// The manager that the holder has handed the seat over to.
    pub handover: Option<HolderId>,
    /// Another engine's data are being imported into this log.
    pub is_importing: bool,
}

/// The state of this manager when it looks at the seat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CandidateStanding {
    /// Everything in the log has been applied.
    pub is_caught_up: bool,
    /// The manager accepts calls, and its loops move.
    pub is_healthy: bool,
    /// This node would do as a leader what leaders are there for: its verdict lets it stand for election.
    pub may_stand: bool,
    /// The difference between this manager's wall clock and the log's, in either direction.
    pub clock_skew: Duration,
    /// The number of candidates before this one.
    pub rank: u32,
    /// Whether others are there that could lead, and may stand.
    pub has_peers: bool,
    /// The holder's address refuses connections, which were open before.
    pub is_leader_refusing: bool,
    /// Neither this manager nor any other besides the holder gets an answer from it, and there are at least two of them. Of
    /// two managers that do not reach each other nobody can say which one is cut off.
    pub is_leader_unreached: bool,
}

/// The advice to a candidate after one look at the seat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    Try(TryReason),
    Wait(WaitReason),
}

/// The reason why a try makes sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TryReason {
    NeverTaken,
    OwnEarlierLife,
    HandedOver,
    LeaderGone,
    LeaderUnreached,
    SeatStill,
}

/// The reason why a candidate does not try.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitReason {
    Importing,
    NotCaughtUp,
    NotHealthy,
    ClockOff {
        by: Duration,
    },
    BackingOff,
    /// This gate may not stand, and another that may is there.
    Yields,
    /// The seat moves, or has not been still for long enough.
    LeaderMoves,
    HandedToAnother,
}

impl TryReason {
    pub const fn code(self) -> &'static str {
        match self {
            Self::NeverTaken => "never_taken",
            Self::OwnEarlierLife => "own_earlier_life",
            Self::HandedOver => "handed_over",
            Self::LeaderGone => "leader_gone",
            Self::LeaderUnreached => "leader_unreached",
            Self::SeatStill => "seat_still",
        }
    }
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Importing => f.write_str("data are being imported into this log"),
            Self::NotCaughtUp => f.write_str("it has not read the log to its end"),
            Self::NotHealthy => f.write_str("it drains, or its loops do not move"),
            Self::ClockOff { by } => write!(f, "its clock is {by:?} off the database's; set the clock"),
            Self::BackingOff => f.write_str("its last term ended early, and it leaves the seat to others for a while"),
            Self::Yields => f.write_str(
                "it reaches no datacenter or has more to do than it can, and another that may lead is there",
            ),
            Self::LeaderMoves => f.write_str("another manager leads"),
            Self::HandedToAnother => f.write_str("the seat was handed over to another manager"),
        }
    }
}

/// The machine that says when to try.
#[derive(Debug)]
pub struct Candidate {
    rule: CandidateRule,
    me: HolderId,
    /// The life of this node before this one, whose process is known to be gone.
    earlier: Option<HolderId>,
    /// The seat as it was last, and since when it has been so.
    seen: Option<(SeatSight, Mono)>,
    /// The holder that refuses connections, and since when.
    refusing: Option<(HolderId, Mono)>,
    /// The holder that nobody else reaches, and since when.
    unreached: Option<(HolderId, Mono)>,
    led_since: Option<Mono>,
    short_terms: u32,
    not_before: Mono,
}

impl Candidate {
    pub const fn new(rule: CandidateRule, me: HolderId, earlier: Option<HolderId>) -> Self {
        Self {
            rule,
            me,
            earlier,
            seen: None,
            refusing: None,
            unreached: None,
            led_since: None,
            short_terms: 0,
            not_before: Mono::ZERO,
        }
    }

    /// The advice after a look at the seat. Asked again at every look.
    pub fn advise(&mut self, now: Mono, seat: &SeatSight, standing: &CandidateStanding) -> Advice {
        let still_since = match self.seen {
            Some((seen, since)) if seen == *seat => since,
            _ => {
                self.seen = Some((*seat, now));
                now
            }
        };
        self.refusing = since_when(self.refusing, seat.holder.filter(|_| standing.is_leader_refusing), now);
        self.unreached = since_when(self.unreached, seat.holder.filter(|_| standing.is_leader_unreached), now);
        if let Some(wait) = self.obstacle(now, seat, standing) {
            return Advice::Wait(wait);
        }
        match self.by_seat(now, still_since, seat, standing.rank) {
            Advice::Try(why)
                if why != TryReason::HandedOver
                    && !standing.may_stand
                    && standing.has_peers
                    && now.since(still_since) < self.rule.yield_for =>
            {
                Advice::Wait(WaitReason::Yields)
            }
            advice => advice,
        }
    }

    /// The advice to a candidate that nothing keeps from leading.
    fn by_seat(&self, now: Mono, still_since: Mono, seat: &SeatSight, rank: u32) -> Advice {
        let turn = self.rule.rank_step * rank;
        let is_still = now.since(still_since) >= self.rule.seat_ttl + turn;
        match (seat.holder, seat.handover) {
            (None, _) => Advice::Try(TryReason::NeverTaken),
            (_, Some(heir)) if heir == self.me => Advice::Try(TryReason::HandedOver),
            (_, Some(_)) if is_still => Advice::Try(TryReason::SeatStill),
            (_, Some(_)) => Advice::Wait(WaitReason::HandedToAnother),
            (Some(holder), None) if holder == self.me || self.earlier == Some(holder) => {
                Advice::Try(TryReason::OwnEarlierLife)
            }
            (Some(_), None) if is_still => Advice::Try(TryReason::SeatStill),
            (Some(_), None) if self.refusing.is_some_and(|(_, since)| now.since(since) >= turn) => {
                Advice::Try(TryReason::LeaderGone)
            }
            (Some(_), None)
                if self.unreached.is_some_and(|(_, since)| now.since(since) >= 2 * self.rule.seat_ttl + turn) =>
            {
                Advice::Try(TryReason::LeaderUnreached)
            }
            (Some(_), None) => Advice::Wait(WaitReason::LeaderMoves),
        }
    }

    /// Notes that this manager leads from now on.
    pub fn leads(&mut self, now: Mono) {
        self.led_since = Some(now);
        (self.refusing, self.unreached) = (None, None);
    }

    /// Notes that this manager's term has ended, and not by handing the seat over.
    pub fn term_ended(&mut self, now: Mono) {
        let Some(since) = self.led_since.take() else { return };
        self.short_terms = if now.since(since) >= self.rule.steady_after { 0 } else { self.short_terms + 1 };
        let doubled = self.rule.backoff.saturating_mul(1 << self.short_terms.saturating_sub(1).min(16));
        self.not_before = now + doubled.min(self.rule.max_backoff);
    }

    /// Notes that this manager has handed the seat over.
    pub fn handed_over(&mut self) {
        self.led_since = None;
        self.short_terms = 0;
    }

    fn obstacle(&self, now: Mono, seat: &SeatSight, standing: &CandidateStanding) -> Option<WaitReason> {
        if seat.is_importing {
            Some(WaitReason::Importing)
        } else if !standing.is_caught_up {
            Some(WaitReason::NotCaughtUp)
        } else if !standing.is_healthy {
            Some(WaitReason::NotHealthy)
        } else if standing.clock_skew > self.rule.max_clock_skew {
            Some(WaitReason::ClockOff { by: standing.clock_skew })
        } else if standing.has_peers && now < self.not_before {
            Some(WaitReason::BackingOff)
        } else {
            None
        }
    }
}

/// Since when this has been so of a holder, if it is so of one now.
fn since_when(known: Option<(HolderId, Mono)>, holder: Option<HolderId>, now: Mono) -> Option<(HolderId, Mono)> {
    let holder = holder?;
    Some(known.filter(|(known, _)| *known == holder).unwrap_or((holder, now)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: HolderId = HolderId(1);
    const EARLIER: HolderId = HolderId(2);
    const OTHER: HolderId = HolderId(9);
    const THIRD: HolderId = HolderId(10);

    fn at(ms: u64) -> Mono {
        Mono::from_ms(1_000_000 + ms)
    }

    fn candidate() -> Candidate {
        Candidate::new(CandidateRule::with_ttl(Duration::from_secs(3)), ME, Some(EARLIER))
    }

    fn held_by(holder: HolderId, beat: i64) -> SeatSight {
        SeatSight { term: Term::new(5), holder: Some(holder), beat, ..SeatSight::default() }
    }

    fn well(rank: u32) -> CandidateStanding {
        CandidateStanding {
            is_caught_up: true,
            is_healthy: true,
            may_stand: true,
            clock_skew: Duration::ZERO,
            rank,
            has_peers: true,
            is_leader_refusing: false,
            is_leader_unreached: false,
        }
    }

    const MOVES: Advice = Advice::Wait(WaitReason::LeaderMoves);
    const STILL: Advice = Advice::Try(TryReason::SeatStill);

    #[test]
    fn a_seat_without_a_living_holder_is_tried_for_at_once() {
        assert_eq!(candidate().advise(at(0), &SeatSight::default(), &well(3)), Advice::Try(TryReason::NeverTaken));
        for holder in [ME, EARLIER] {
            let advice = candidate().advise(at(0), &held_by(holder, 1), &well(3));
            assert_eq!(advice, Advice::Try(TryReason::OwnEarlierLife));
        }
    }

    #[test]
    fn a_seat_that_moves_is_left_alone_and_a_still_one_is_taken_in_turn() {
        let mut candidate = candidate();
        for (ms, beat, rank, expected) in [
            (0, 1, 0, MOVES),
            (2_999, 1, 0, MOVES),
            (3_000, 2, 0, MOVES),
            (5_999, 2, 0, MOVES),
            (6_000, 2, 2, MOVES),
            (6_199, 2, 2, MOVES),
            (6_200, 2, 2, STILL),
            (6_200, 2, 0, STILL),
        ] {
            assert_eq!(candidate.advise(at(ms), &held_by(OTHER, beat), &well(rank)), expected, "{ms}");
        }
    }

    #[test]
    fn a_gate_that_may_not_stand_yields_to_one_that_may_and_tries_if_none_does() {
        let standing =
            |may_stand, has_peers| CandidateStanding { may_stand, has_peers, is_leader_refusing: true, ..well(0) };
        let gone = Advice::Try(TryReason::LeaderGone);
        let never = Advice::Try(TryReason::NeverTaken);
        let yields = Advice::Wait(WaitReason::Yields);
        let held = held_by(OTHER, 1);
        for (seat, may_stand, has_peers, expected) in [
            (held, true, true, gone),
            (held, true, false, gone),
            (held, false, false, gone),
            (held, false, true, yields),
            (SeatSight::default(), false, true, yields),
            (SeatSight::default(), false, false, never),
            (held_by(EARLIER, 1), false, true, yields),
            (SeatSight { handover: Some(ME), ..held }, false, true, Advice::Try(TryReason::HandedOver)),
            (SeatSight { handover: Some(THIRD), ..held }, false, true, Advice::Wait(WaitReason::HandedToAnother)),
        ] {
            let advice = candidate().advise(at(0), &seat, &standing(may_stand, has_peers));
            assert_eq!(advice, expected, "{seat:?} {may_stand} {has_peers}");
        }
        // Whoever may stand would have taken it long ago.
        let mut candidate = candidate();
        for (ms, beat, expected) in [(0, 1, yields), (8_999, 1, yields), (9_000, 2, yields), (18_000, 2, STILL)] {
            assert_eq!(candidate.advise(at(ms), &held_by(OTHER, beat), &standing(false, true)), expected, "{ms}");
        }
        assert_eq!(candidate.advise(at(18_001), &held_by(THIRD, 1), &standing(false, true)), yields);
        let moves = CandidateStanding { is_leader_refusing: false, ..standing(false, true) };
        assert_eq!(candidate.advise(at(18_002), &held_by(THIRD, 2), &moves), MOVES, "that one leads is the reason");
    }

    #[test]
    fn a_new_batch_is_a_sign_of_life_as_a_beat_is() {
        let mut candidate = candidate();
        let wrote = |first| SeatSight { newest: Some(first), ..held_by(OTHER, 1) };
        assert_eq!(candidate.advise(at(0), &wrote(7), &well(0)), MOVES);
        assert_eq!(candidate.advise(at(3_000), &wrote(8), &well(0)), MOVES);
        assert_eq!(candidate.advise(at(6_000), &wrote(8), &well(0)), STILL);
    }

    #[test]
    fn a_leader_that_refuses_connections_is_replaced_in_turn() {
        let gone = |rank| CandidateStanding { is_leader_refusing: true, ..well(rank) };
        let taken = Advice::Try(TryReason::LeaderGone);
        assert_eq!(candidate().advise(at(0), &held_by(OTHER, 1), &gone(0)), taken);
        let mut second = candidate();
        assert_eq!(second.advise(at(0), &held_by(OTHER, 1), &gone(1)), MOVES);
        assert_eq!(second.advise(at(99), &held_by(OTHER, 1), &gone(1)), MOVES);
        assert_eq!(second.advise(at(100), &held_by(OTHER, 1), &gone(1)), taken);
    }

    #[test]
    fn a_leader_that_writes_and_is_reached_by_nobody_is_replaced_in_turn_after_twice_the_ttl() {
        let taken = Advice::Try(TryReason::LeaderUnreached);
        let unreached = |rank| CandidateStanding { is_leader_unreached: true, ..well(rank) };
        let mut candidate = candidate();
        for (ms, holder, standing, expected) in [
            (0, OTHER, unreached(1), MOVES),
            (5_000, OTHER, unreached(1), MOVES),
            // One answer is enough to begin anew, and so is another leader.
            (5_500, OTHER, well(1), MOVES),
            (6_100, OTHER, unreached(1), MOVES),
            (12_100, THIRD, unreached(1), MOVES),
            (18_199, THIRD, unreached(1), MOVES),
            (18_200, THIRD, unreached(1), taken),
            (18_200, THIRD, unreached(0), taken),
        ] {
            // It writes all the time.
            let advice = candidate.advise(at(ms), &held_by(holder, i64::try_from(ms).unwrap()), &standing);
            assert_eq!(advice, expected, "{ms}");
        }
    }

    #[test]
    fn refusals_are_counted_for_each_holder_anew() {
        let gone = CandidateStanding { is_leader_refusing: true, ..well(1) };
        let mut second = candidate();
        assert_eq!(second.advise(at(0), &held_by(OTHER, 1), &gone), MOVES);
        // The first in rank was faster, and leads.
        assert_eq!(second.advise(at(100), &held_by(THIRD, 2), &gone), MOVES);
        // A link that was open in between begins anew too.
        assert_eq!(second.advise(at(150), &held_by(THIRD, 2), &well(1)), MOVES);
        assert_eq!(second.advise(at(210), &held_by(THIRD, 2), &gone), MOVES);
        assert_eq!(second.advise(at(310), &held_by(THIRD, 2), &gone), Advice::Try(TryReason::LeaderGone));
    }

    #[test]
    fn a_seat_that_was_handed_over_is_taken_by_its_heir() {
        let handed_to = |heir| SeatSight { handover: Some(heir), ..held_by(OTHER, 1) };
        assert_eq!(candidate().advise(at(0), &handed_to(ME), &well(5)), Advice::Try(TryReason::HandedOver));
        let mut other = candidate();
        let gone = CandidateStanding { is_leader_refusing: true, ..well(0) };
        assert_eq!(other.advise(at(0), &handed_to(THIRD), &gone), Advice::Wait(WaitReason::HandedToAnother));
        assert_eq!(other.advise(at(3_000), &handed_to(THIRD), &gone), STILL, "the heir has not come");
        // Whoever handed it over does not take it back.
        let own = SeatSight { handover: Some(THIRD), ..held_by(ME, 1) };
        assert_eq!(candidate().advise(at(0), &own, &well(0)), Advice::Wait(WaitReason::HandedToAnother));
    }

    #[test]
    fn who_may_not_lead_does_not_try() {
        let off = Duration::from_millis(10_001);
        for (standing, expected) in [
            (CandidateStanding { is_caught_up: false, ..well(0) }, WaitReason::NotCaughtUp),
            (CandidateStanding { is_healthy: false, ..well(0) }, WaitReason::NotHealthy),
            (CandidateStanding { clock_skew: off, ..well(0) }, WaitReason::ClockOff { by: off }),
        ] {
            assert_eq!(candidate().advise(at(0), &SeatSight::default(), &standing), Advice::Wait(expected));
        }
        let just = CandidateStanding { clock_skew: Duration::from_secs(10), ..well(0) };
        assert_eq!(candidate().advise(at(0), &SeatSight::default(), &just), Advice::Try(TryReason::NeverTaken));
        let importing = SeatSight { is_importing: true, ..SeatSight::default() };
        assert_eq!(candidate().advise(at(0), &importing, &well(0)), Advice::Wait(WaitReason::Importing));
    }

    #[test]
    fn who_lost_a_term_early_leaves_the_seat_to_others_for_longer_each_time() {
        let (mut candidate, own) = (candidate(), held_by(ME, 1));
        let again = Advice::Try(TryReason::OwnEarlierLife);
        let waits = Advice::Wait(WaitReason::BackingOff);
        let mut now = 0;
        for backoff in [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000] {
            candidate.leads(at(now));
            candidate.term_ended(at(now + 10));
            now += 10 + backoff;
            assert_eq!(candidate.advise(at(now - 1), &own, &well(0)), waits, "{backoff}");
            let alone = CandidateStanding { has_peers: false, ..well(0) };
            assert_eq!(candidate.advise(at(now - 1), &own, &alone), again, "nobody else would lead");
            assert_eq!(candidate.advise(at(now), &own, &well(0)), again);
        }
        candidate.leads(at(now));
        candidate.term_ended(at(now + 60_000));
        assert_eq!(candidate.advise(at(now + 60_999), &own, &well(0)), waits, "a steady term begins the count anew");
        assert_eq!(candidate.advise(at(now + 61_000), &own, &well(0)), again);
    }

    #[test]
    fn a_term_that_was_handed_over_costs_nothing() {
        let mut candidate = candidate();
        candidate.leads(at(0));
        candidate.handed_over();
        candidate.term_ended(at(10));
        let back = SeatSight { handover: Some(ME), ..held_by(THIRD, 3) };
        assert_eq!(candidate.advise(at(11), &back, &well(0)), Advice::Try(TryReason::HandedOver));
    }

    #[test]
    fn a_term_that_was_handed_over_ends_a_row_of_short_ones() {
        let mut candidate = candidate();
        for now in [0, 10] {
            candidate.leads(at(now));
            candidate.term_ended(at(now + 10));
        }
        candidate.leads(at(5_000));
        candidate.handed_over();
        candidate.leads(at(6_000));
        candidate.term_ended(at(6_010));
        let waits = Advice::Wait(WaitReason::BackingOff);
        assert_eq!(candidate.advise(at(7_009), &held_by(ME, 1), &well(0)), waits);
        let again = Advice::Try(TryReason::OwnEarlierLife);
        assert_eq!(candidate.advise(at(7_010), &held_by(ME, 1), &well(0)), again, "as after the first of them");
    }

    #[test]
    fn refusals_and_silence_from_before_a_term_of_its_own_do_not_count_after_it() {
        let refusing = CandidateStanding { is_leader_refusing: true, ..well(1) };
        let unreached = CandidateStanding { is_leader_unreached: true, ..well(1) };
        for (standing, wait_ms, why) in
            [(refusing, 100, TryReason::LeaderGone), (unreached, 6_100, TryReason::LeaderUnreached)]
        {
            let mut second = candidate();
            assert_eq!(second.advise(at(0), &held_by(OTHER, 0), &standing), MOVES);
            second.leads(at(50));
            second.handed_over();
            // It writes all the time, as it did before.
            for (ms, expected) in [(10_000, MOVES), (9_999 + wait_ms, MOVES), (10_000 + wait_ms, Advice::Try(why))] {
                let seat = held_by(OTHER, i64::try_from(ms).unwrap());
                assert_eq!(second.advise(at(ms), &seat, &standing), expected, "{ms}");
            }
        }
    }
}
