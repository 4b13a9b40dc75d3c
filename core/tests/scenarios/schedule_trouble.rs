//! Trouble of critical schedules: from when it is counted, and that it is said once.

use std::time::Duration;

use crate::rig::{Rig, name, patient, secs};
use crate::schedules::{MINUTE, every_minute, said, schedule, set, trouble};
use onward_core::input::{Call, ScheduleDraft};
use onward_core::job::{Draft, Retry};
use onward_core::schedule::{Overlap, Timing};
use onward_core::state::ScheduleTrouble;
use onward_core::time::Wall;

const DAY: u64 = 86_400;

/// It is due once a day, nobody runs it, and a run may take ten minutes.
fn daily() -> ScheduleDraft {
    let short = Draft { timeout: Some(secs(600)), ..patient("k") };
    ScheduleDraft { timing: Timing::Every(secs(DAY)), job: short, critical: true, ..every_minute() }
}

fn with_first_run_of_daily() -> Rig {
    let mut rig = Rig::new();
    set(&mut rig, daily());
    while schedule(&rig).records.list.is_empty() {
        rig.advance(secs(MINUTE));
    }
    rig
}

#[test]
fn trouble_goes_on_over_a_change_of_the_timing_and_is_not_said_again() {
    let mut rig = with_first_run_of_daily();
    rig.advance(secs(12 * MINUTE));
    assert_eq!(said(&mut rig), ["never_succeeded"]);
    set(&mut rig, ScheduleDraft { timing: Timing::Every(secs(7 * DAY)), ..daily() });
    rig.advance(secs(MINUTE));
    assert_eq!((trouble(&rig), said(&mut rig)), (Some("never_succeeded"), vec![]));
    set(&mut rig, ScheduleDraft { critical: false, ..daily() });
    rig.advance(secs(MINUTE));
    assert_eq!(said(&mut rig), ["recovered"], "nor is forgotten that it was said");
}

#[test]
fn trouble_begins_by_log_time_wherever_the_wall_clock_is_by_then() {
    for step in [|wall: Wall, by: Duration| wall + by, |wall, by| wall - by] {
        let mut rig = with_first_run_of_daily();
        rig.set_wall(step(rig.now.wall, secs(7_200)));
        // It is looked at, and has to know when to look again.
        set(&mut rig, ScheduleDraft { overlap: Overlap::Allow, ..daily() });
        rig.advance(secs(9 * MINUTE));
        assert_eq!(said(&mut rig), [""; 0], "{:?}", rig.now.wall);
        rig.advance(secs(3 * MINUTE));
        assert_eq!(said(&mut rig), ["never_succeeded"], "{:?}", rig.now.wall);
    }
}

#[test]
fn a_run_that_began_late_has_its_time_from_then() {
    let mut rig = Rig::new();
    set(&mut rig, daily());
    rig.restart(secs(DAY));
    let began = schedule(&rig).records.list.front().expect("it came while nobody was there");
    assert!(began.at.since(began.due) > secs(3_600));
    rig.advance(secs(10 * MINUTE));
    assert_eq!(trouble(&rig), None);
    rig.advance(secs(2 * MINUTE));
    assert_eq!(trouble(&rig), Some("never_succeeded"));
}

#[test]
fn a_run_that_somebody_asks_for_says_nothing_of_the_period() {
    let mut rig = Rig::new();
    let timing = Timing::Cron { expression: "any".into(), zone: "UTC".into() };
    let long = Draft { timeout: Some(secs(7 * DAY)), ..patient("k") };
    set(&mut rig, ScheduleDraft { timing, job: long, overlap: Overlap::Allow, ..daily() });
    rig.advance(secs(5 * MINUTE));
    rig.call(Call::RunSchedule { schedule: name("tidy"), request: None }).expect("accepted");
    rig.advance(secs(6 * MINUTE));
    let known = schedule(&rig);
    let reasons: Vec<_> = known.records.list.iter().map(|record| record.reason.code()).collect();
    assert_eq!(reasons, ["run_now", "on_time"]);
    let stale_at = known.records.list[1].at + secs(DAY + MINUTE);
    assert_eq!(known.trouble(Wall::from_ms(stale_at.as_ms() - 1)), None, "of one instant no period is known");
    assert_eq!(known.trouble(stale_at), Some((ScheduleTrouble::NeverSucceeded, stale_at)));
}

#[test]
fn runs_fail_since_the_first_of_those_in_a_row() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 9, &["k"]);
    let fragile = Draft { retry: Some(Retry { max_attempts: 1, base: secs(1), max: secs(1) }), ..patient("k") };
    set(&mut rig, ScheduleDraft { job: fragile, critical: true, ..every_minute() });
    let mut failed_at = Vec::new();
    for _ in 0..4 {
        rig.advance(secs(MINUTE));
        let claim = rig.claim(session);
        rig.fail(session, claim).unwrap();
        failed_at.push(rig.manager.log_time_at(rig.now.mono));
    }
    assert_eq!(schedule(&rig).trouble(failed_at[3]), Some((ScheduleTrouble::RunsFail, failed_at[0])));
    rig.restart(secs(1));
    assert_eq!(schedule(&rig).failing_since, Some(failed_at[0]));
}
