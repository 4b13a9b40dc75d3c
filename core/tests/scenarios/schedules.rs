//! Schedules: every due instant has one record, whatever stops, overlaps or is stepped.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::due::DueWitness;
use crate::rig::{EPOCH_MS, Rig, job, ms, name, patient, secs};
use onward_core::effect::{Answer, Effect, Effects, ManagerNotice};
use onward_core::event::Event;
use onward_core::ids::{Claim, JobId, RequestId, SessionId};
use onward_core::input::{Call, DueInstants, Input, ScheduleDraft};
use onward_core::job::{Draft, Retry};
use onward_core::manager::Why;
use onward_core::payload::{Digest, Payload};
use onward_core::refusal::{Refusal, RefusalKind};
use onward_core::schedule::{MissedPolicy, Overlap, Timing};
use onward_core::state::{Schedule, ScheduleTrouble};
use onward_core::time::Wall;

pub const MINUTE: u64 = 60;

/// Due every minute. The rig's clock begins at one.
pub fn every_minute() -> ScheduleDraft {
    ScheduleDraft {
        schedule: name("tidy"),
        timing: Timing::Every(secs(MINUTE)),
        job: patient("k"),
        overlap: Overlap::Skip,
        missed: MissedPolicy::Once,
        jitter: Duration::ZERO,
        critical: false,
        paused: None,
    }
}

pub fn set(rig: &mut Rig, draft: ScheduleDraft) {
    let answer = rig.call(Call::SetSchedule(Box::new(draft)));
    assert!(matches!(answer, Ok(Answer::ScheduleSet { .. })), "{answer:?}");
}

pub fn schedule(rig: &Rig) -> &Schedule {
    rig.manager.state().schedule(&name("tidy")).expect("it is there")
}

/// Each record as minute, number of instants, and reason.
pub fn records(rig: &Rig) -> Vec<(u64, u64, &'static str)> {
    let minute = |at: Wall| (at.as_ms() - EPOCH_MS) / 60_000;
    schedule(rig).records.list.iter().map(|record| (minute(record.due), record.count, record.reason.code())).collect()
}

pub fn check_log(rig: &Rig) {
    let mut witness = DueWitness::default();
    rig.log.iter().for_each(|stamped| witness.note(stamped));
}

/// Succeeds with everything that was handed out and whose lease has not ended since.
fn succeed_all(rig: &mut Rig, session: SessionId) -> Vec<JobId> {
    let claims: Vec<Claim> = rig.assigned(session).iter().map(|assigned| assigned.claim).collect();
    claims.into_iter().filter(|claim| rig.succeed(session, *claim).is_ok()).map(|claim| claim.job).collect()
}

#[test]
fn a_due_instant_starts_a_job_at_its_millisecond_with_its_record() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 4, &["k"]);
    rig.jump(ms(250));
    // What the handler learns of its run is not for whoever sets the schedule to say.
    let forged = vec![("onward-schedule".into(), "forged".into()), ("mine".into(), "kept".into())];
    set(&mut rig, ScheduleDraft { job: Draft { headers: forged, ..patient("k") }, ..every_minute() });
    rig.advance(ms(59_749));
    assert_eq!(records(&rig), []);
    rig.advance(ms(1));
    assert_eq!(records(&rig), [(1, 1, "on_time")]);
    let run = schedule(&rig).open[0];
    let view = rig.view(run);
    let headers: BTreeMap<String, String> =
        view.spec.headers().iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    assert_eq!((headers.len(), view.spec.headers().len()), (3, 3), "each name is there once: {headers:?}");
    assert_eq!((&*headers["onward-schedule"], &*headers["mine"]), ("tidy", "kept"));
    assert_eq!(headers["onward-due-ms"], (EPOCH_MS + 60_000).to_string());
    assert_eq!(succeed_all(&mut rig, session), [run]);
    assert_eq!((schedule(&rig).open.len(), schedule(&rig).last().unwrap().job), (0, Some(run)));
    assert_eq!(schedule(&rig).last().unwrap().outcome.map(|state| state.word()), Some("succeeded"));
    rig.advance(secs(5 * MINUTE));
    assert_eq!(records(&rig)[1..], [(2, 1, "on_time"), (3, 4, "still_running")]);
    assert_eq!((schedule(&rig).counts.fired, schedule(&rig).counts.skipped), (2, 4));
    rig.restart(secs(1));
    check_log(&rig);
}

#[test]
fn overlaps_are_queued_in_order_or_allowed() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 9, &["k"]);
    set(&mut rig, ScheduleDraft { overlap: Overlap::Queue, ..every_minute() });
    rig.advance(secs(3 * MINUTE));
    assert_eq!((records(&rig), schedule(&rig).waiting.len()), (vec![(1, 1, "on_time")], 2));
    rig.restart(secs(5));
    let session2 = rig.hello("w", "1", 2, 9, &["k"], vec![]);
    assert_ne!(session, session2);
    rig.advance(secs(1));
    // The run of before was lost with its worker's memory, and is handed out anew.
    for minute in 1..=3 {
        assert_eq!(schedule(&rig).open.len(), 1, "one at a time");
        assert_eq!(succeed_all(&mut rig, session2).len(), 1, "{minute}");
    }
    assert_eq!(records(&rig), [(1, 1, "on_time"), (2, 1, "queued"), (3, 1, "queued")]);
    assert_eq!((schedule(&rig).open.len(), schedule(&rig).waiting.len()), (0, 0));
    set(&mut rig, ScheduleDraft { overlap: Overlap::Allow, ..every_minute() });
    rig.advance(secs(3 * MINUTE));
    assert_eq!(schedule(&rig).open.len(), 3);
    check_log(&rig);
}

#[test]
fn instants_that_share_a_record_are_in_a_row() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 9, &["k"]);
    set(&mut rig, ScheduleDraft { overlap: Overlap::Queue, ..every_minute() });
    // The newest of each stop waits for its turn, behind those that it supersedes.
    rig.advance(secs(MINUTE));
    for _ in 0..2 {
        rig.restart(secs(3 * MINUTE));
    }
    rig.advance(secs(1));
    assert_eq!(records(&rig), [(1, 1, "on_time"), (2, 2, "superseded"), (5, 2, "superseded")], "4 and 7 wait");
    let session2 = rig.hello("w", "1", 2, 9, &["k"], vec![]);
    assert_ne!(session, session2);
    rig.advance(secs(1));
    for _ in 0..3 {
        succeed_all(&mut rig, session2);
    }
    assert_eq!(records(&rig)[3..], [(4, 1, "queued"), (7, 1, "queued")]);
    check_log(&rig);
}

#[test]
fn after_three_hours_without_a_leader_the_policy_decides() {
    for (missed, expected) in [
        (MissedPolicy::Skip, vec![(1, 179, "superseded"), (180, 1, "on_time")]),
        (MissedPolicy::Once, vec![(1, 179, "superseded"), (180, 1, "on_time")]),
        (MissedPolicy::All, vec![(1, 1, "caught_up"), (2, 179, "still_running")]),
    ] {
        let mut rig = Rig::new();
        set(&mut rig, ScheduleDraft { missed, ..every_minute() });
        rig.restart(secs(180 * MINUTE));
        rig.advance(secs(2));
        assert_eq!(records(&rig), expected, "{missed:?}");
        check_log(&rig);
    }
    for (missed, expected) in [
        (MissedPolicy::Skip, (60, 1, "late")),
        (MissedPolicy::Once, (60, 1, "caught_up")),
        (MissedPolicy::All, (60, 1, "caught_up")),
    ] {
        let mut rig = Rig::new();
        set(&mut rig, ScheduleDraft { missed, timing: Timing::Every(secs(3_600)), ..every_minute() });
        rig.restart(secs(62 * MINUTE));
        rig.advance(secs(2));
        assert_eq!(records(&rig), [expected], "{missed:?}");
    }
}

#[test]
fn a_long_stop_is_taken_in_lots_and_leaves_one_record() {
    let mut rig = Rig::new();
    set(&mut rig, ScheduleDraft { timing: Timing::Every(secs(1)), ..every_minute() });
    let before = rig.log.len();
    rig.restart(secs(7 * 24 * 3_600));
    rig.advance(ms(900));
    let passed = rig.log[before..].iter().filter(|stamped| matches!(stamped.event, Event::InstantsPassed { .. }));
    assert_eq!(passed.count(), 604_800_usize.div_ceil(4_095), "an event for each lot");
    assert_eq!(records(&rig), [(0, 604_799, "superseded"), (10_080, 1, "on_time")]);
    check_log(&rig);
}

#[test]
fn a_clock_that_is_stepped_makes_nothing_due_twice_and_leaves_out_nothing() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 9, &["k"]);
    set(&mut rig, every_minute());
    rig.advance(secs(10 * MINUTE));
    succeed_all(&mut rig, session);
    rig.set_wall(Wall::from_ms(EPOCH_MS + 300_000));
    rig.advance(secs(4 * MINUTE));
    let known = schedule(&rig).counts;
    assert_eq!(known.fired + known.skipped, 10, "the clock has not come to minute 11");
    rig.advance(secs(2 * MINUTE));
    assert_eq!(records(&rig).last(), Some(&(11, 1, "on_time")));
    rig.set_wall(Wall::from_ms(EPOCH_MS + 3_600_000));
    rig.advance(secs(1));
    // The run of minute 11 is open.
    assert_eq!(records(&rig)[records(&rig).len() - 2..], [(12, 48, "superseded"), (60, 1, "still_running")]);
    check_log(&rig);
}

#[test]
fn while_paused_instants_are_skipped_and_somebody_may_still_run_it() {
    let mut rig = Rig::new();
    set(&mut rig, every_minute());
    assert_eq!(rig.call(Call::PauseSchedule(name("tidy"))), Ok(Answer::Done));
    rig.advance(secs(3 * MINUTE));
    assert_eq!(records(&rig), [(1, 3, "paused")]);
    set(&mut rig, ScheduleDraft { critical: true, ..every_minute() });
    assert!(schedule(&rig).paused, "another plan does not resume it");
    let run = |rig: &mut Rig, request: Option<&str>| {
        let request = request.map(name);
        match rig.call(Call::RunSchedule { schedule: name("tidy"), request }) {
            Ok(Answer::Submitted(accepted)) => (accepted[0].id, accepted[0].duplicate),
            other => panic!("{other:?}"),
        }
    };
    let (first, _) = run(&mut rig, Some("r1"));
    assert_eq!(run(&mut rig, Some("r1")), (first, true));
    assert_ne!(run(&mut rig, None).0, first);
    assert_eq!(rig.call(Call::ResumeSchedule(name("tidy"))), Ok(Answer::Done));
    rig.advance(secs(MINUTE));
    let reasons: Vec<_> = records(&rig).iter().map(|record| record.2).collect();
    assert_eq!(reasons, ["paused", "run_now", "run_now", "still_running"]);
    rig.restart(secs(1));
    assert_eq!(run(&mut rig, Some("r1")), (first, true), "remembered by the log");
    check_log(&rig);
    set(&mut rig, ScheduleDraft { schedule: name("other"), ..every_minute() });
    let of_other = rig.call(Call::RunSchedule { schedule: name("other"), request: Some(name("r1")) });
    let is_new = |answer| matches!(answer, Ok(Answer::Submitted(runs)) if runs[0].id != first && !runs[0].duplicate);
    assert!(is_new(of_other), "the same request of another schedule is another one");
}

#[test]
fn a_run_that_is_not_accepted_is_what_became_of_its_instant() {
    let mut rig = Rig::new();
    let held = Draft { unique_key: Some("only".into()), ..job("k") };
    rig.submit(held.clone());
    set(&mut rig, ScheduleDraft { job: held, ..every_minute() });
    rig.advance(secs(2 * MINUTE));
    assert_eq!(records(&rig), [(1, 2, "unique_key_taken")]);
    assert_eq!(rig.refused(RefusalKind::UniqueKeyTaken), 2);
    check_log(&rig);
    let mut rig = Rig::with(|settings| settings.limits.jobs = 1);
    rig.submit(job("k"));
    set(&mut rig, every_minute());
    rig.advance(secs(MINUTE));
    assert_eq!(records(&rig), [(1, 1, "limited")]);
}

#[test]
fn what_cannot_be_a_schedule_is_refused() {
    let mut rig = Rig::with(|settings| settings.limits.schedules = 1);
    let refused = |rig: &mut Rig, draft| match rig.call(Call::SetSchedule(Box::new(draft))) {
        Err(refusal) => refusal.to_string(),
        other => panic!("{other:?}"),
    };
    let keyed = Draft { idempotency_key: Some("k".into()), ..job("k") };
    let timed = Draft { run_at: Some(Wall::from_ms(1)), ..job("k") };
    for (draft, says) in [
        (ScheduleDraft { job: keyed, ..every_minute() }, "`idempotency_key` cannot be given"),
        (ScheduleDraft { job: timed, ..every_minute() }, "`run_at` cannot be given"),
        (ScheduleDraft { jitter: secs(86_401), ..every_minute() }, "`jitter_s` is 86401s"),
        (ScheduleDraft { job: Draft { priority: 101, ..job("k") }, ..every_minute() }, "`priority` is 101"),
    ] {
        let text = refused(&mut rig, draft);
        assert!(text.contains(says), "{text}");
    }
    set(&mut rig, every_minute());
    let text = refused(&mut rig, ScheduleDraft { schedule: name("other"), ..every_minute() });
    assert!(text.contains("at most 1 schedules"), "{text}");
    let before = rig.log.len();
    set(&mut rig, every_minute());
    assert_eq!(rig.log.len(), before, "the same again changes nothing");
    for call in [
        Call::PauseSchedule(name("none")),
        Call::ResumeSchedule(name("none")),
        Call::RemoveSchedule(name("none")),
        Call::RunSchedule { schedule: name("none"), request: None },
    ] {
        assert_eq!(rig.call(call), Err(Refusal::UnknownSchedule));
    }
}

#[test]
fn an_instant_that_waits_does_not_start_while_paused() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 9, &["k"]);
    set(&mut rig, ScheduleDraft { overlap: Overlap::Queue, ..every_minute() });
    rig.advance(secs(2 * MINUTE) + ms(500));
    assert_eq!((schedule(&rig).open.len(), schedule(&rig).waiting.len()), (1, 1));
    assert_eq!(rig.call(Call::PauseSchedule(name("tidy"))), Ok(Answer::Done));
    assert_eq!(succeed_all(&mut rig, session).len(), 1);
    rig.advance(secs(1));
    assert_eq!((schedule(&rig).open.len(), schedule(&rig).waiting.len()), (0, 1), "it is paused");
    assert_eq!(rig.call(Call::ResumeSchedule(name("tidy"))), Ok(Answer::Done));
    rig.advance(secs(1));
    assert_eq!(records(&rig), [(1, 1, "on_time"), (2, 1, "queued")]);
}

/// Sets a schedule and gives what is asked for behind it, which nobody answers.
fn asked_for(rig: &mut Rig) -> DueInstants {
    let mut effects = Effects::default();
    let call = Call::SetSchedule(Box::new(every_minute()));
    rig.manager.step(rig.now, Input::Call { request: RequestId(u64::MAX), call }, &mut effects);
    let asked = effects.list.iter().find_map(|waiting| crate::due::find_due(&waiting.effect));
    rig.log.append(&mut effects.events);
    match asked {
        Some(Input::Due(found)) => found,
        other => panic!("{other:?}"),
    }
}

/// Whether the machine asks for instants when it hears this.
fn asks_again(rig: &mut Rig, found: DueInstants) -> bool {
    let mut effects = Effects::default();
    rig.manager.step(rig.now, Input::Due(found), &mut effects);
    effects.list.iter().any(|waiting| matches!(waiting.effect, Effect::FindDue { .. }))
}

#[test]
fn an_answer_to_another_question_is_passed_over_and_one_without_instants_is_the_end() {
    let mut rig = Rig::new();
    let found = asked_for(&mut rig);
    // As one that a machine asked for that is no more: all but one instant is missing in it.
    let last = *found.instants.last().unwrap();
    let late = DueInstants { after: last, instants: vec![last + secs(MINUTE)], ..found.clone() };
    assert!(!asks_again(&mut rig, late));
    assert!(!asks_again(&mut rig, found));
    rig.advance(secs(MINUTE));
    assert_eq!(records(&rig), [(1, 1, "on_time")]);

    let mut rig = Rig::new();
    let found = asked_for(&mut rig);
    let none = DueInstants { instants: Vec::new(), is_end: false, ..found };
    assert!(!asks_again(&mut rig, none), "whoever finds none would be asked for ever");
}

#[test]
fn a_schedule_that_is_removed_leaves_its_runs_alone() {
    let mut rig = Rig::new();
    // The seat is asked for every second: an instant must not come at the same time.
    rig.set_wall(Wall::from_ms(EPOCH_MS + 250));
    let session = rig.worker("w", 1, 9, &["k"]);
    set(&mut rig, ScheduleDraft { overlap: Overlap::Queue, ..every_minute() });
    rig.advance(secs(3 * MINUTE));
    assert_eq!(rig.call(Call::RemoveSchedule(name("tidy"))), Ok(Answer::Done));
    rig.watch(secs(3 * MINUTE), |rig| {
        let why = rig.manager.next_wakeup().map(|(_, why)| why);
        assert_ne!(why, Some(Why::Schedule), "nothing is left of it to look at");
    });
    assert_eq!(succeed_all(&mut rig, session).len(), 1);
    set(&mut rig, every_minute());
    rig.advance(secs(MINUTE));
    assert_eq!(records(&rig), [(7, 1, "on_time")], "a new one knows nothing of the old");
    rig.restart(secs(1));
}

#[test]
fn the_content_of_a_template_stays_while_the_schedule_does() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 9, &["k"]);
    let digest = Digest::of(b"big");
    let big = Draft::of_kind("k", Payload::stored(digest, 9_000));
    set(&mut rig, ScheduleDraft { job: big, ..every_minute() });
    rig.advance(secs(MINUTE));
    assert_eq!(rig.manager.state().stored_refs(&digest), 2);
    succeed_all(&mut rig, session);
    let jobs = std::mem::take(&mut rig.to_archive);
    rig.step(Input::Archived { jobs });
    assert_eq!((rig.manager.state().stored_refs(&digest), rig.unreferenced.len()), (1, 0));
    rig.restart(secs(1));
    assert_eq!(rig.manager.state().stored_refs(&digest), 1);
    set(&mut rig, every_minute());
    assert_eq!((rig.manager.state().stored_refs(&digest), &rig.unreferenced[..]), (0, &[digest][..]));
}

#[test]
fn a_critical_schedule_that_fails_again_and_again_is_reported_once() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 9, &["k"]);
    let fragile = Draft { retry: Some(Retry { max_attempts: 1, base: ms(1), max: ms(1) }), ..job("k") };
    set(&mut rig, ScheduleDraft { job: fragile, critical: true, ..every_minute() });
    for failures in 1..=4 {
        rig.advance(secs(MINUTE));
        let claim = rig.claim(session);
        rig.fail(session, claim).unwrap();
        assert_eq!((schedule(&rig).failures, schedule(&rig).fails_again_and_again()), (failures, failures >= 3));
    }
    let said = |notice: ManagerNotice| match notice {
        ManagerNotice::ScheduleFailing { failures, .. } => Some(failures),
        _ => None,
    };
    assert_eq!(rig.noticed().into_iter().filter_map(said).collect::<Vec<_>>(), [3], "once, when it began");
    rig.restart(ms(10));
    assert_eq!(schedule(&rig).failures, 4);
    let session = rig.hello("w", "2", 2, 9, &["k"], vec![]);
    rig.advance(secs(MINUTE));
    let claim = rig.claim(session);
    rig.succeed(session, claim).unwrap();
    assert_eq!((schedule(&rig).failures, schedule(&rig).failing_since), (0, None));
}

pub fn trouble(rig: &Rig) -> Option<&'static str> {
    let now = rig.manager.log_time_at(rig.now.mono);
    schedule(rig).trouble(now).map(|(why, since)| {
        assert!(since <= now);
        why.code()
    })
}

/// Nothing fails: the first run waits for a worker, and the instants after it are skipped.
#[test]
fn a_critical_schedule_that_nobody_runs_is_in_trouble_until_a_run_succeeds() {
    let mut rig = Rig::new();
    let short = Draft { timeout: Some(secs(86_400)), ..patient("k") };
    set(&mut rig, ScheduleDraft { job: short, critical: true, ..every_minute() });
    rig.advance(secs(30 * MINUTE));
    assert_eq!(trouble(&rig), None, "a run may take an hour");
    rig.advance(secs(32 * MINUTE));
    assert_eq!((trouble(&rig), schedule(&rig).failures), (Some("never_succeeded"), 0));
    assert_eq!(rig.call(Call::PauseSchedule(name("tidy"))), Ok(Answer::Done));
    assert_eq!(trouble(&rig), None, "it is not to run");
    assert_eq!(rig.call(Call::ResumeSchedule(name("tidy"))), Ok(Answer::Done));
    let session = rig.worker("w", 1, 9, &["k"]);
    succeed_all(&mut rig, session);
    assert_eq!(trouble(&rig), None);
    // The next run is taken and does not end, though its worker is there.
    rig.advance(secs(61 * MINUTE));
    assert_eq!(trouble(&rig), None, "one success, and an hour for the run after it");
    rig.advance(secs(2 * MINUTE));
    assert_eq!(trouble(&rig), Some("not_fresh"));
    rig.restart(ms(10));
    assert_eq!(trouble(&rig), Some("not_fresh"), "a restart makes no success of it");
    let mut idle = Rig::new();
    set(&mut idle, every_minute());
    idle.advance(secs(600 * MINUTE));
    assert_eq!(trouble(&idle), None, "it is not critical");
}

/// The troubles of schedules that were said since this was asked last, and their ends.
pub fn said(rig: &mut Rig) -> Vec<&'static str> {
    let code = |notice: ManagerNotice| match notice {
        ManagerNotice::ScheduleFailing { why, .. } => Some(why.code()),
        ManagerNotice::ScheduleRecovered { .. } => Some("recovered"),
        _ => None,
    };
    rig.noticed().into_iter().filter_map(code).collect()
}

/// It is due once a day, and nobody asks how it is in between.
#[test]
fn trouble_is_said_when_it_begins_and_when_it_is_over() {
    let mut rig = Rig::new();
    let short = Draft { timeout: Some(secs(600)), ..patient("k") };
    let daily = Timing::Every(secs(86_400));
    set(&mut rig, ScheduleDraft { timing: daily, job: short, critical: true, ..every_minute() });
    while schedule(&rig).records.list.is_empty() {
        rig.advance(secs(MINUTE));
    }
    rig.advance(secs(9 * MINUTE));
    assert_eq!(said(&mut rig), [""; 0]);
    rig.advance(secs(3 * MINUTE));
    assert_eq!(said(&mut rig), ["never_succeeded"]);
    rig.advance(secs(600 * MINUTE));
    assert_eq!(said(&mut rig), [""; 0], "once");
    let session = rig.worker("w", 1, 9, &["k"]);
    while schedule(&rig).open.is_empty() {
        rig.advance(secs(MINUTE));
    }
    succeed_all(&mut rig, session);
    rig.advance(secs(MINUTE));
    assert_eq!(said(&mut rig), ["recovered"]);
}

#[test]
fn a_schedule_whose_timing_cannot_be_searched_is_in_trouble() {
    let mut rig = Rig::new();
    let found = asked_for(&mut rig);
    let unknown = DueInstants { instants: Vec::new(), is_end: true, is_unsearchable: true, ..found };
    assert!(!asks_again(&mut rig, unknown));
    rig.advance(secs(MINUTE));
    let now = rig.manager.log_time_at(rig.now.mono);
    let trouble = |rig: &Rig| rig.manager.schedule_trouble(&name("tidy"), now).map(|(why, _)| why.code());
    assert_eq!(trouble(&rig), Some("timing_unknown"), "though it is not critical");
    assert_eq!(rig.call(Call::PauseSchedule(name("tidy"))), Ok(Answer::Done));
    assert_eq!(trouble(&rig), None, "it is not to run");
    assert_eq!(rig.call(Call::ResumeSchedule(name("tidy"))), Ok(Answer::Done));
    set(&mut rig, ScheduleDraft { timing: Timing::Every(secs(2 * MINUTE)), ..every_minute() });
    rig.advance(secs(MINUTE));
    assert_eq!(trouble(&rig), None, "the new timing is known");
}

/// The timeout of its job is what a run may take, where that is shorter.
#[test]
fn the_allowance_of_a_run_follows_its_timeout_and_its_period() {
    for (every, timeout, allowed) in [(MINUTE, 90 * 60, 60), (MINUTE, 600, 10), (180 * MINUTE, 86_400, 180)] {
        let mut rig = Rig::new();
        let short = Draft { timeout: Some(secs(timeout)), ..patient("k") };
        let draft = ScheduleDraft { timing: Timing::Every(secs(every)), job: short, critical: true, ..every_minute() };
        set(&mut rig, draft);
        let fired = |rig: &Rig| schedule(rig).records.list.front().map(|record| record.at);
        while fired(&rig).is_none() {
            rig.advance(secs(MINUTE));
        }
        let stale_at = fired(&rig).unwrap() + secs((allowed + 1) * MINUTE);
        let known = schedule(&rig);
        assert_eq!(known.trouble(stale_at), Some((ScheduleTrouble::NeverSucceeded, stale_at)), "every {every} s");
        assert_eq!(known.trouble(Wall::from_ms(stale_at.as_ms() - 1)), None, "every {every} s");
    }
}

#[test]
fn jitter_delays_the_start_and_not_the_instant() {
    let mut rig = Rig::new();
    set(&mut rig, ScheduleDraft { jitter: secs(30), overlap: Overlap::Allow, ..every_minute() });
    rig.advance(secs(20 * MINUTE + 30));
    assert_eq!(records(&rig).len(), 20);
    let late = |record: &onward_core::schedule::Record| record.at.since(record.due).as_millis() as u64;
    let mut delays: Vec<u64> = schedule(&rig).records.list.iter().map(late).collect();
    assert!(delays.iter().all(|delay| *delay <= 30_000));
    delays.dedup();
    assert!(delays.len() > 10, "{delays:?}");
    check_log(&rig);
}

/// A weekly job on a process that is restarted every day.
#[test]
fn a_weekly_job_runs_though_no_process_lives_for_a_week() {
    let mut rig = Rig::new();
    // Nobody works here, so that the first run is open for ever.
    let weekly = Timing::Every(secs(7 * 86_400));
    set(&mut rig, ScheduleDraft { timing: weekly, overlap: Overlap::Allow, ..every_minute() });
    for _ in 0..28 {
        rig.advance(secs(86_400 - 600));
        rig.restart(secs(600));
    }
    rig.advance(secs(1));
    let runs = schedule(&rig).counts;
    assert_eq!((runs.fired, runs.skipped), (4, 0));
    check_log(&rig);
}
