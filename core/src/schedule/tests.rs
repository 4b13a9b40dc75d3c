use super::*;
use crate::ids::JobId;
use crate::job::JobState;

const MINUTE: u64 = 60_000;

/// The instants of a schedule that is due every minute, from the first on.
fn minutes(count: u64) -> Vec<Wall> {
    (1..=count).map(|n| Wall::from_ms(n * MINUTE)).collect()
}

fn usual(due: &[Wall], now: u64) -> ScheduleSituation<'_> {
    ScheduleSituation {
        now: Wall::from_ms(now),
        due,
        is_all: true,
        paused: false,
        overlap: Overlap::Skip,
        missed: MissedPolicy::Once,
        jitter: Duration::ZERO,
        open: 0,
        waiting: 0,
        room: usize::MAX,
    }
}

fn fire(minute: u64, reason: RecordReason) -> InstantDecision {
    InstantDecision::Fire { due: Wall::from_ms(minute * MINUTE), reason }
}

fn pass(first: u64, last: u64, reason: RecordReason) -> InstantDecision {
    let instant = |minute| Wall::from_ms(minute * MINUTE);
    InstantDecision::Pass(PassedInstants {
        reason,
        first: instant(first),
        last: instant(last),
        count: last - first + 1,
    })
}

#[test]
fn one_instant_that_comes_in_time_meets_what_still_runs() {
    let due = minutes(1);
    let waits = InstantDecision::Wait { due: due[0] };
    for (overlap, open, waiting, decided) in [
        (Overlap::Skip, 0, 0, fire(1, RecordReason::OnTime)),
        (Overlap::Skip, 1, 0, pass(1, 1, RecordReason::StillRunning)),
        (Overlap::Queue, 0, 0, fire(1, RecordReason::OnTime)),
        (Overlap::Queue, 1, 0, waits),
        (Overlap::Queue, 0, 1, waits),
        (Overlap::Queue, 1, MAX_WAITING - 1, waits),
        (Overlap::Queue, 1, MAX_WAITING, pass(1, 1, RecordReason::QueueFull)),
        (Overlap::Allow, 0, 0, fire(1, RecordReason::OnTime)),
        (Overlap::Allow, MAX_OPEN - 1, 0, fire(1, RecordReason::OnTime)),
        (Overlap::Allow, MAX_OPEN, 0, pass(1, 1, RecordReason::TooManyOpen)),
    ] {
        for missed in MissedPolicy::ALL {
            let at = ScheduleSituation { overlap, missed, open, waiting, ..usual(&due, MINUTE + 5) };
            assert_eq!(decide(&at), [decided], "{overlap:?} {missed:?}, {open} open, {waiting} waiting");
        }
    }
}

#[test]
fn after_three_hours_the_policy_about_what_was_missed_decides() {
    let hours_3 = minutes(180);
    let back_at = 180 * MINUTE + 30_000;
    let daily = [Wall::from_ms(MINUTE)];
    let all: Vec<InstantDecision> =
        (1..=180).map(|n| fire(n, if n < 180 { RecordReason::CaughtUp } else { RecordReason::OnTime })).collect();
    let superseded = pass(1, 179, RecordReason::Superseded);
    for (due, missed, decided) in [
        (&hours_3[..], MissedPolicy::Skip, vec![superseded, fire(180, RecordReason::OnTime)]),
        (&hours_3[..], MissedPolicy::Once, vec![superseded, fire(180, RecordReason::OnTime)]),
        (&daily[..], MissedPolicy::Skip, vec![pass(1, 1, RecordReason::Late)]),
        (&daily[..], MissedPolicy::Once, vec![fire(1, RecordReason::CaughtUp)]),
        (&daily[..], MissedPolicy::All, vec![fire(1, RecordReason::CaughtUp)]),
    ] {
        assert_eq!(decide(&ScheduleSituation { missed, ..usual(due, back_at) }), decided, "{missed:?}");
    }
    // The limits of `all` are those of overlaps.
    let allowed =
        decide(&ScheduleSituation { missed: MissedPolicy::All, overlap: Overlap::Allow, ..usual(&hours_3, back_at) });
    assert_eq!(allowed[..MAX_OPEN], all[..MAX_OPEN]);
    assert_eq!(allowed[MAX_OPEN..], [pass(MAX_OPEN as u64 + 1, 180, RecordReason::TooManyOpen)]);
    let queued =
        decide(&ScheduleSituation { missed: MissedPolicy::All, overlap: Overlap::Queue, ..usual(&hours_3, back_at) });
    assert_eq!(queued[0], all[0]);
    assert!(queued[1..=MAX_WAITING].iter().all(|decision| matches!(decision, InstantDecision::Wait { .. })));
    assert_eq!(queued[MAX_WAITING + 1..], [pass(MAX_WAITING as u64 + 2, 180, RecordReason::QueueFull)]);
    let skipped = decide(&ScheduleSituation { missed: MissedPolicy::All, ..usual(&hours_3, back_at) });
    assert_eq!(skipped, [all[0], pass(2, 180, RecordReason::StillRunning)]);
}

#[test]
fn lateness_counts_from_the_end_of_the_jitter() {
    let due = minutes(1);
    let jitter = Duration::from_secs(600);
    for (jitter, ms_after, decided) in [
        (Duration::ZERO, 60_000, fire(1, RecordReason::OnTime)),
        (Duration::ZERO, 60_001, pass(1, 1, RecordReason::Late)),
        (jitter, 660_000, fire(1, RecordReason::OnTime)),
        (jitter, 660_001, pass(1, 1, RecordReason::Late)),
    ] {
        let at = ScheduleSituation { missed: MissedPolicy::Skip, jitter, ..usual(&due, MINUTE + ms_after) };
        assert_eq!(decide(&at), [decided], "{ms_after}");
    }
}

#[test]
fn the_newest_of_a_lot_is_not_judged_before_what_follows_is_known() {
    let due = minutes(3);
    for missed in [MissedPolicy::Skip, MissedPolicy::Once] {
        let at = ScheduleSituation { is_all: false, missed, ..usual(&due, 90 * MINUTE) };
        assert_eq!(decide(&at), [pass(1, 2, RecordReason::Superseded)], "{missed:?}");
    }
    let at = ScheduleSituation {
        is_all: false,
        missed: MissedPolicy::All,
        overlap: Overlap::Allow,
        ..usual(&due, 90 * MINUTE)
    };
    assert_eq!(decide(&at).len(), 3, "each starts, whatever follows");
}

#[test]
fn without_room_the_rest_is_left_for_the_next_time() {
    let due = minutes(5);
    let at =
        ScheduleSituation { missed: MissedPolicy::All, overlap: Overlap::Allow, room: 2, ..usual(&due, 5 * MINUTE) };
    assert_eq!(decide(&at), [fire(1, RecordReason::CaughtUp), fire(2, RecordReason::CaughtUp)]);
    assert_eq!(decide(&ScheduleSituation { room: 0, ..at }), []);
    assert_eq!(
        decide(&ScheduleSituation { room: 0, ..usual(&due, 5 * MINUTE) }),
        [pass(1, 4, RecordReason::Superseded)]
    );
}

#[test]
fn while_paused_nothing_starts_and_everything_has_its_record() {
    let due = minutes(9);
    for missed in MissedPolicy::ALL {
        let at = ScheduleSituation { paused: true, missed, is_all: false, ..usual(&due, 60 * MINUTE) };
        assert_eq!(decide(&at), [pass(1, 9, RecordReason::Paused)]);
    }
}

/// Whatever the policies, the lots and the stops: one fate for each instant, in order.
#[test]
fn every_instant_has_one_fate_however_they_are_cut_into_lots() {
    let all = minutes(200);
    for overlap in Overlap::ALL {
        for missed in MissedPolicy::ALL {
            for lot in [2, 3, 7, 64, 200] {
                let mut rest = &all[..];
                let mut fates: Vec<(Wall, u64)> = Vec::new();
                let (mut open, mut waiting) = (0, 0);
                while !rest.is_empty() {
                    let due = &rest[..lot.min(rest.len())];
                    let is_all = due.len() == rest.len();
                    let at = ScheduleSituation {
                        overlap,
                        missed,
                        is_all,
                        open,
                        waiting,
                        room: 5,
                        ..usual(due, 200 * MINUTE)
                    };
                    let before = fates.iter().map(|(_, count)| count).sum::<u64>();
                    for decision in decide(&at) {
                        match decision {
                            InstantDecision::Fire { due, .. } => {
                                open += 1;
                                fates.push((due, 1));
                            }
                            InstantDecision::Wait { due } => {
                                waiting += 1;
                                fates.push((due, 1));
                            }
                            InstantDecision::Pass(passed) => fates.push((passed.first, passed.count)),
                        }
                    }
                    // Half of the runs end between two steps.
                    open /= 2;
                    waiting /= 2;
                    let decided = fates.iter().map(|(_, count)| count).sum::<u64>() - before;
                    assert!(decided > 0, "{overlap:?} {missed:?} in lots of {lot} stands still");
                    rest = &rest[decided as usize..];
                }
                let mut next = 1;
                for (first, count) in fates {
                    assert_eq!(first, Wall::from_ms(next * MINUTE), "{overlap:?} {missed:?} in lots of {lot}");
                    next += count;
                }
                assert_eq!(next, 201);
            }
        }
    }
}

#[test]
fn jitter_is_the_same_everywhere_and_fills_its_range() {
    let max = Duration::from_secs(10);
    let at = |name, n| jitter(name, Wall::from_ms(n), max).as_millis();
    // Stored nowhere, and yet the same on every node of every version.
    assert_eq!((at("report", 1_800_000_000_000), at("report", 1_800_000_060_000)), (2_387, 4_619));
    let drawn: Vec<u128> = (0..1_000).map(|n| at("report", n * 60_000)).collect();
    assert!(drawn.iter().all(|ms| *ms <= 10_000));
    for tenth in 0..10_u128 {
        let count = drawn.iter().filter(|ms| **ms / 1_000 == tenth).count();
        assert!((50..200).contains(&count), "{count} of 1000 in tenth {tenth}");
    }
    assert_ne!(at("a", 60_000), at("b", 60_000), "schedules that are due together spread");
    assert_eq!(jitter("report", Wall::from_ms(1), Duration::ZERO), Duration::ZERO);
}

#[test]
fn records_are_bounded_and_a_row_of_one_fate_is_one_of_them() {
    let mut records = Records::default();
    let instant = Wall::from_ms;
    for lot in 0..1_000 {
        let passed = PassedInstants {
            reason: RecordReason::Superseded,
            first: instant(lot * 10 + 1),
            last: instant(lot * 10 + 10),
            count: 10,
        };
        records.pass(instant(99_999), &passed, |_, _| false);
    }
    assert_eq!(records.list.len(), 1);
    assert_eq!(
        (records.list[0].due, records.list[0].last, records.list[0].count),
        (instant(1), instant(10_000), 10_000)
    );
    let job = JobId::from_u128;
    for n in 0..RECORDS_KEPT as u128 {
        records.push(Record::fired(instant(20_000 + n as u64), RecordReason::OnTime, instant(0), job(n)));
    }
    assert_eq!((records.list.len(), records.dropped), (RECORDS_KEPT, 10_000));
    records.end(job(7), JobState::Failed);
    records.end(job(9_999), JobState::Failed);
    let ended: Vec<_> = records.list.iter().filter_map(|record| Some((record.job?, record.outcome?))).collect();
    assert_eq!(ended, [(job(7), JobState::Failed)]);
}
