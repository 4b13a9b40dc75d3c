use super::*;
use proptest::prelude::*;

const EXTENSION: Duration = Duration::from_secs(300);
const RENEW: Renew = Renew { extension: EXTENSION };

const fn at(secs: u64) -> Mono {
    Mono::from_ms(secs * 1_000)
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn attach_with(rule: LeaseRule) -> Extender {
    Extender::attach(rule.validate().expect("a valid rule"), at(0), at(0) + rule.initial)
}

/// An extender at second 0 with the default rule: expires at 300, renews at most every 60.
fn attach() -> Extender {
    attach_with(LeaseRule::default())
}

fn lost(why: LossReason) -> Option<ExtenderAction> {
    Some(ExtenderAction::Lost { why, policy: LostPolicy::Cancel })
}

#[test]
fn the_first_beat_renews_at_once_and_those_inside_the_interval_lead_to_one_at_its_end() {
    let mut lease = attach();
    assert_eq!(lease.beat(at(5)), Some(RENEW));
    lease.renewed(at(6), EXTENSION);
    assert_eq!(lease.next_wakeup(), Some(at(305)), "no beat, nothing to do but expire");
    for second in 7..65 {
        assert_eq!(lease.beat(at(second)), None);
        assert_eq!(lease.wake(at(second)), None);
        assert_eq!(lease.next_wakeup(), Some(at(65)));
    }
    assert_eq!(lease.wake(at(65)), Some(ExtenderAction::Renew(RENEW)));
    lease.renewed(at(66), EXTENSION);
    assert_eq!((lease.wake(at(200)), lease.next_wakeup()), (None, Some(at(365))), "those beats were used up");
    assert_eq!(lease.beat(at(200)), Some(RENEW), "the interval is long over");
}

#[test]
fn a_lease_that_is_known_to_be_young_is_renewed_when_it_is_an_interval_old() {
    let rule = LeaseRule::default().validate().expect("a valid rule");
    // (attached at, begun at) -> first renewal, with a beat at attach
    for (attached, begun, renewed) in [(0, 0, 60), (10, 0, 60), (59, 0, 60), (60, 0, 60), (200, 0, 200)] {
        let mut lease = Extender::attach(rule, at(attached), at(300)).begun_at(at(begun));
        let first = lease.beat(at(attached)).map(|_| at(attached));
        let first = first.or_else(|| lease.next_wakeup().filter(|due| lease.wake(*due).is_some()));
        assert_eq!(first, Some(at(renewed)), "attached at {attached}");
    }
}

#[test]
fn a_hold_that_is_spent_ends_the_lease_whatever_was_granted() {
    let rule = LeaseRule::default().validate().expect("a valid rule");
    let mut lease = Extender::attach(rule, at(0), at(300)).with_hold(at(700), at(760));
    assert_eq!(lease.beat(at(250)), Some(RENEW));
    lease.renewed(at(251), secs(300));
    assert_eq!(lease.beat(at(500)), Some(Renew { extension: secs(260) }), "no more than there is");
    lease.renewed(at(501), secs(9_000));
    assert_eq!(lease.next_wakeup(), Some(at(700)));
    assert_eq!(lease.state(at(690)), LeaseState::Held { remaining: secs(10) });
    assert_eq!(lease.wake(at(700)), lost(LossReason::HoldSpent));
    assert_eq!(lease.state(at(700)), LeaseState::Lost { why: LossReason::HoldSpent });
}

#[test]
fn a_renewal_that_was_refused_for_good_is_not_tried_again() {
    let mut lease = attach();
    assert_eq!(lease.beat(at(1)), Some(RENEW));
    lease.failed(at(2), RenewFailure::Refused, 0);
    for second in [3, 61, 200, 299] {
        assert_eq!((lease.beat(at(second)), lease.wake(at(second))), (None, None));
    }
    assert_eq!(lease.next_wakeup(), Some(at(300)), "what was granted lasts");
    assert_eq!(lease.wake(at(300)), lost(LossReason::Expired));
}

#[test]
fn a_quiet_section_renews_without_beats_until_its_end_and_no_longer() {
    let mut lease = attach();
    let mut renewals = Vec::new();
    assert_eq!(lease.begin_quiet(at(10), at(200)), Some(RENEW));
    lease.renewed(at(10), EXTENSION);
    let mut now = at(10);
    while let Some(due) = lease.next_wakeup().filter(|due| *due < at(400)) {
        now = due.max(now);
        if lease.wake(now) == Some(ExtenderAction::Renew(RENEW)) {
            renewals.push(now);
            assert!(renewals.len() < 99, "renewed without end at {now:?}");
            lease.renewed(now, EXTENSION);
        }
    }
    assert_eq!(renewals, [at(70), at(130), at(190)], "one at 250 would not be paid for");
    assert_eq!(lease.next_wakeup(), Some(at(490)));
    let mut ended = attach();
    assert_eq!(ended.begin_quiet(at(10), at(200)), Some(RENEW));
    ended.end_quiet();
    ended.renewed(at(11), EXTENSION);
    assert_eq!(ended.next_wakeup(), Some(at(310)), "a section that ended early renews no more");
}

#[test]
fn a_beat_at_the_end_of_the_interval_does_not_wait_for_a_late_wakeup() {
    let mut lease = attach();
    assert_eq!(lease.beat(at(0)), Some(RENEW));
    lease.renewed(at(1), EXTENSION);
    assert_eq!(lease.beat(at(30)), None);
    assert_eq!(lease.beat(at(60)), Some(RENEW));
    assert_eq!(lease.wake(at(60)), None);
}

#[test]
fn without_a_beat_nothing_is_renewed_and_the_loss_is_said_once() {
    let mut lease = attach();
    assert_eq!(lease.wake(at(299)), None);
    assert_eq!(lease.state(at(299)), LeaseState::Held { remaining: secs(1) });
    assert_eq!(lease.next_wakeup(), Some(at(300)));
    assert_eq!(lease.state(at(300)), LeaseState::Lost { why: LossReason::Expired });
    assert_eq!(lease.wake(at(300)), lost(LossReason::Expired));
    assert_eq!((lease.wake(at(301)), lease.next_wakeup()), (None, None));
}

#[test]
fn one_renewal_is_in_flight_at_most_and_a_beat_meanwhile_is_not_forgotten() {
    let mut lease = attach();
    assert_eq!(lease.beat(at(0)), Some(RENEW));
    for second in [1, 59, 60, 100, 200] {
        assert_eq!((lease.beat(at(second)), lease.wake(at(second))), (None, None));
    }
    assert_eq!(lease.next_wakeup(), Some(at(300)), "an answer is awaited, not a timer");
    lease.renewed(at(201), EXTENSION);
    assert_eq!(lease.next_wakeup(), Some(at(60)), "the interval is over: at once");
    assert_eq!(lease.wake(at(201)), Some(ExtenderAction::Renew(RENEW)));
}

#[test]
fn an_answer_counts_from_the_question_and_never_shrinks_the_lease() {
    // (granted, answered at) -> remaining at second 50
    for (granted, answered, remaining) in [(300, 11, 260), (300, 49, 260), (600, 11, 560), (30, 11, 250), (0, 11, 250)]
    {
        let mut lease = attach();
        assert_eq!(lease.beat(at(10)), Some(RENEW));
        lease.renewed(at(answered), secs(granted));
        assert_eq!(lease.state(at(50)), LeaseState::Held { remaining: secs(remaining) }, "granted {granted}");
    }
}

#[test]
fn an_answer_to_no_question_changes_nothing() {
    let mut lease = attach();
    lease.renewed(at(10), secs(9_999));
    lease.failed(at(10), RenewFailure::ReceiptExpired, 0);
    lease.failed(at(10), RenewFailure::Transient, 0);
    assert_eq!(lease.state(at(100)), LeaseState::Held { remaining: secs(200) });
    assert_eq!(lease.next_wakeup(), Some(at(300)));
}

#[test]
fn a_transient_failure_is_retried_with_backoff_and_faster_as_expiry_nears() {
    // (failed at, failures before, draw) -> retried after ms
    for (failed, before, draw, retry_ms) in [
        (10, 0, u64::MAX, 1_000),
        (10, 1, u64::MAX, 2_000),
        (10, 5, u64::MAX, 32_000),
        (10, 6, u64::MAX, 60_000),
        (10, 6, u64::MAX / 2, 30_000),
        (10, 6, 0, 100),
        (200, 6, u64::MAX, 25_000),
        (280, 6, u64::MAX, 5_000),
        (296, 6, u64::MAX, 1_000),
        (299, 6, u64::MAX, 250),
        (299, 6, 0, 100),
    ] {
        let mut lease = attach();
        assert_eq!(lease.beat(at(1)), Some(RENEW));
        let mut now = at(1);
        for _ in 0..before {
            lease.failed(now, RenewFailure::Transient, 0);
            now = lease.next_wakeup().expect("a retry");
            assert_eq!(lease.wake(now), Some(ExtenderAction::Renew(RENEW)));
        }
        lease.failed(at(failed), RenewFailure::Transient, draw);
        let wait = lease.next_wakeup().expect("a retry").since(at(failed));
        assert_eq!(wait, Duration::from_millis(retry_ms), "at {failed} after {before} more failures, draw {draw:#x}");
    }
}

#[test]
fn a_retry_that_would_come_too_late_does_not_hide_the_expiry() {
    let mut lease = attach();
    assert_eq!(lease.beat(at(290)), Some(RENEW));
    lease.failed(Mono::from_ms(299_950), RenewFailure::Transient, u64::MAX);
    assert_eq!(lease.next_wakeup(), Some(at(300)));
    assert_eq!(lease.wake(at(300)), lost(LossReason::Expired));
    assert_eq!((lease.wake(at(301)), lease.next_wakeup()), (None, None), "nor is it tried after that");
}

#[test]
fn a_beat_does_not_hasten_a_retry_and_success_starts_the_backoff_afresh() {
    let mut lease = attach();
    assert_eq!(lease.beat(at(0)), Some(RENEW));
    lease.failed(at(0), RenewFailure::Transient, u64::MAX);
    assert_eq!(lease.beat(at(0)), None);
    assert_eq!(lease.next_wakeup(), Some(at(1)));
    assert_eq!(lease.wake(at(1)), Some(ExtenderAction::Renew(RENEW)));
    lease.renewed(at(1), EXTENSION);
    assert_eq!(lease.beat(at(61)), Some(RENEW));
    lease.failed(at(61), RenewFailure::Transient, u64::MAX);
    assert_eq!(lease.next_wakeup(), Some(at(62)));
}

#[test]
fn an_outage_shorter_than_the_lease_is_survived() {
    let mut lease = attach();
    assert_eq!(lease.beat(at(0)), Some(RENEW));
    let (mut asked, mut tries) = (at(0), 0);
    while asked < at(250) {
        tries += 1;
        lease.failed(asked, RenewFailure::Transient, u64::MAX / 3 * 2);
        asked = lease.next_wakeup().expect("a retry");
        assert_eq!(lease.wake(asked), Some(ExtenderAction::Renew(RENEW)), "at {asked:?}");
    }
    lease.renewed(asked, EXTENSION);
    assert_eq!(lease.state(asked), LeaseState::Held { remaining: EXTENSION });
    assert!((8..30).contains(&tries), "{tries} tries in 250 s");
}

#[test]
fn an_expired_receipt_loses_the_lease_and_the_policy_comes_with_the_loss() {
    for policy in [LostPolicy::Cancel, LostPolicy::Continue] {
        let mut lease = attach().with_policy(policy);
        assert_eq!(lease.beat(at(10)), Some(RENEW));
        lease.failed(at(11), RenewFailure::ReceiptExpired, 0);
        assert_eq!(lease.state(at(11)), LeaseState::Lost { why: LossReason::ReceiptExpired });
        assert_eq!(lease.next_wakeup(), Some(at(11)));
        let said = ExtenderAction::Lost { why: LossReason::ReceiptExpired, policy };
        assert_eq!((lease.wake(at(11)), lease.wake(at(500))), (Some(said), None));
    }
    assert_eq!(LostPolicy::default(), LostPolicy::Cancel);
}

#[test]
fn a_beat_that_cannot_wait_renews_inside_the_interval_and_uses_up_those_that_wait() {
    let mut lease = attach();
    assert_eq!(lease.beat(at(0)), Some(RENEW));
    assert_eq!(lease.hasten(at(1)), None, "one in flight at most");
    lease.renewed(at(2), EXTENSION);
    assert_eq!(lease.next_wakeup(), Some(at(60)), "it was a beat all the same");
    assert_eq!(lease.hasten(at(10)), Some(RENEW));
    lease.renewed(at(11), EXTENSION);
    assert_eq!(lease.state(at(11)), LeaseState::Held { remaining: secs(299) }, "counted from when it was asked");
    assert_eq!((lease.wake(at(100)), lease.next_wakeup()), (None, Some(at(310))), "none is left to renew for");
    assert_eq!(lease.hasten(at(150)), Some(RENEW), "without any beat before it");
    lease.renewed(at(151), EXTENSION);
    assert_eq!((lease.beat(at(152)), lease.next_wakeup()), (None, Some(at(210))), "it begins an interval");
}

#[test]
fn a_beat_that_cannot_wait_does_not_wait_for_a_retry_either() {
    let mut lease = attach();
    assert_eq!(lease.beat(at(0)), Some(RENEW));
    lease.failed(at(1), RenewFailure::Transient, u64::MAX);
    assert_eq!(lease.hasten(at(1)), Some(RENEW));
    assert_eq!((lease.hasten(at(1)), lease.wake(at(2))), (None, None));
    lease.failed(at(2), RenewFailure::Transient, u64::MAX);
    assert_eq!(lease.next_wakeup(), Some(at(4)), "a failure like any other");
}

#[test]
fn haste_gives_nothing_to_whom_a_beat_gives_nothing() {
    let mut lost = attach();
    assert_eq!((lost.hasten(at(300)), lost.state(at(300))), (None, LeaseState::Lost { why: LossReason::Expired }));
    let mut done = attach();
    done.detach();
    assert_eq!(done.hasten(at(1)), None);
    let mut off = attach_with(LeaseRule { enabled: false, ..LeaseRule::default() });
    assert_eq!((off.hasten(at(1)), off.next_wakeup()), (None, Some(at(300))));
}

#[test]
fn nothing_revives_a_lost_lease() {
    let mut lease = attach();
    assert_eq!(lease.beat(at(299)), Some(RENEW));
    assert_eq!(lease.beat(at(300)), None, "expiry was noticed by a beat");
    lease.renewed(at(301), EXTENSION);
    assert_eq!(lease.state(at(301)), LeaseState::Lost { why: LossReason::Expired });
    assert_eq!(lease.next_wakeup(), Some(at(300)), "and is still to be said");
    assert_eq!(lease.wake(at(301)), lost(LossReason::Expired));
    assert_eq!((lease.beat(at(302)), lease.wake(at(400)), lease.next_wakeup()), (None, None, None));
    lease.failed(at(303), RenewFailure::Transient, 0);
    assert_eq!((lease.next_wakeup(), lease.may_start(at(0))), (None, false));
}

#[test]
fn switched_off_it_never_renews_but_still_expires() {
    let mut lease = attach_with(LeaseRule { enabled: false, ..LeaseRule::default() });
    for second in 0..300 {
        assert_eq!((lease.beat(at(second)), lease.wake(at(second))), (None, None));
        assert_eq!(lease.next_wakeup(), Some(at(300)));
    }
    assert_eq!(lease.wake(at(300)), lost(LossReason::Expired));
}

#[test]
fn what_was_prefetched_does_not_start_after_its_lease() {
    let lease = attach();
    for (second, may) in [(0, true), (299, true), (300, false), (9_999, false)] {
        assert_eq!(lease.may_start(at(second)), may, "at {second}");
    }
}

#[test]
fn once_detached_it_asks_and_says_nothing_but_still_knows_whether_the_lease_holds() {
    let mut lease = attach();
    assert_eq!(lease.beat(at(0)), Some(RENEW));
    assert_eq!(lease.beat(at(1)), None);
    lease.detach();
    lease.renewed(at(2), EXTENSION);
    assert_eq!((lease.beat(at(100)), lease.wake(at(100)), lease.next_wakeup()), (None, None, None));
    assert_eq!(lease.state(at(299)), LeaseState::Held { remaining: secs(1) });
    assert_eq!(lease.state(at(300)), LeaseState::Lost { why: LossReason::Expired });
    assert_eq!(lease.wake(at(300)), None);

    let mut lease = attach();
    assert_eq!(lease.beat(at(0)), Some(RENEW));
    lease.detach();
    lease.failed(at(1), RenewFailure::Transient, 0);
    assert_eq!(lease.next_wakeup(), None, "no retry for nobody");
}

/// Beats every second for four hours against a backend that answers a second later with what `grant` says.
fn work_for_four_hours(grant: Duration) -> u32 {
    let mut lease = attach();
    let (mut in_flight, mut renewals) = (false, 0);
    for second in 0..4 * 3_600 {
        let now = at(second);
        if core::mem::take(&mut in_flight) {
            lease.renewed(now, grant);
        }
        in_flight |= lease.beat(now).is_some();
        in_flight |= matches!(lease.wake(now), Some(ExtenderAction::Renew(_)));
        renewals += u32::from(in_flight);
        assert!(lease.may_start(now), "lost at {second} while working");
    }
    renewals
}

#[test]
fn work_that_beats_keeps_its_lease_with_one_renewal_per_interval() {
    assert_eq!(work_for_four_hours(EXTENSION), 4 * 60);
    // A third of each grant, though the interval is longer.
    assert_eq!(work_for_four_hours(secs(30)), 4 * 360);
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Advance {
        ms: u64,
    },
    /// Sleeps exactly as long as `next_wakeup` says.
    Sleep,
    Beat,
    Wake,
    Renewed {
        granted_ms: u64,
    },
    Failed {
        failure: RenewFailure,
        draw: u64,
    },
}

fn calls() -> impl Strategy<Value = Call> {
    prop_oneof![
        4 => (0..40_000_u64).prop_map(|ms| Call::Advance { ms }),
        3 => Just(Call::Sleep),
        6 => Just(Call::Beat),
        2 => Just(Call::Wake),
        6 => prop_oneof![Just(300_000_u64), 0..700_000_u64].prop_map(|granted_ms| Call::Renewed { granted_ms }),
        3 => any::<u64>().prop_map(|draw| Call::Failed { failure: RenewFailure::Transient, draw }),
        1 => Just(Call::Failed { failure: RenewFailure::ReceiptExpired, draw: 0 }),
    ]
}

/// Rules that must hold whatever happens, kept apart from how the machine keeps them.
struct Watch {
    in_flight: bool,
    beat_since_renewal: bool,
    retry_owed: bool,
    expires: Mono,
    lost: bool,
    said: bool,
}

impl Watch {
    fn asked(&mut self) -> Result<(), TestCaseError> {
        prop_assert!(!self.in_flight, "two renewals in flight");
        prop_assert!(self.beat_since_renewal || self.retry_owed, "renewed without a beat");
        prop_assert!(!self.lost, "renewed a lost lease");
        (self.in_flight, self.beat_since_renewal, self.retry_owed) = (true, false, false);
        Ok(())
    }

    fn woke(&mut self, action: Option<ExtenderAction>) -> Result<(), TestCaseError> {
        match action {
            Some(ExtenderAction::Renew(_)) => self.asked()?,
            Some(ExtenderAction::Lost { .. }) => prop_assert!(!core::mem::replace(&mut self.said, true), "said twice"),
            None => {}
        }
        Ok(())
    }

    fn look(&mut self, lease: &Extender, now: Mono) -> Result<(), TestCaseError> {
        match lease.state(now) {
            LeaseState::Held { remaining } => {
                prop_assert!(!self.lost, "revived");
                prop_assert!(now + remaining >= self.expires, "expiry moved back");
                self.expires = now + remaining;
                prop_assert!(lease.next_wakeup().is_some_and(|wake| wake <= self.expires), "expiry would be overslept");
            }
            LeaseState::Lost { .. } => self.lost = true,
        }
        prop_assert_eq!(lease.may_start(now), !self.lost);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn expiry_never_moves_back_and_every_renewal_is_paid_for_by_a_beat(calls in prop::collection::vec(calls(), 0..120)) {
        let mut lease = attach();
        let mut now = at(0);
        let mut watch = Watch {
            in_flight: false, beat_since_renewal: false, retry_owed: false, expires: at(300), lost: false, said: false,
        };
        for call in calls {
            match call {
                Call::Advance { ms } => now = now + Duration::from_millis(ms),
                Call::Sleep => {
                    now = lease.next_wakeup().map_or(now, |wake| wake.max(now));
                    watch.woke(lease.wake(now))?;
                    if watch.lost || now >= watch.expires {
                        prop_assert!(watch.said, "a loss went unsaid");
                    }
                }
                Call::Beat => {
                    watch.beat_since_renewal = true;
                    if lease.beat(now).is_some() {
                        watch.asked()?;
                    }
                }
                Call::Wake => watch.woke(lease.wake(now))?,
                Call::Renewed { granted_ms } => {
                    lease.renewed(now, Duration::from_millis(granted_ms));
                    watch.in_flight = false;
                }
                Call::Failed { failure, draw } => {
                    lease.failed(now, failure, draw);
                    watch.retry_owed |= watch.in_flight && failure == RenewFailure::Transient;
                    watch.in_flight = false;
                }
            }
            watch.look(&lease, now)?;
        }
    }
}
