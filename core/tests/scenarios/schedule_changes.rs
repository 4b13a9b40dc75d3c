//! Changes of schedules: what has come by the old plan is decided by it, and nothing else of the past by the new one.

use std::time::Duration;

use crate::rig::{EPOCH_MS, Rig, job, ms, name, secs};
use crate::schedules::{MINUTE, check_log, every_minute, records, schedule, set};
use onward_core::effect::Answer;
use onward_core::ids::RequestId;
use onward_core::input::{Call, Input, ScheduleDraft};
use onward_core::limits::{Limit, LimitMet};
use onward_core::manager::{SeatState, Why};
use onward_core::refusal::Refusal;
use onward_core::schedule::{MissedPolicy, Overlap, Timing, jitter};
use onward_core::time::Wall;

const DONE: Option<Result<Answer, Refusal>> = Some(Ok(Answer::Done));
const CHANGED: Option<Result<Answer, Refusal>> = Some(Ok(Answer::ScheduleSet { is_new: false }));

fn hourly() -> ScheduleDraft {
    ScheduleDraft { timing: Timing::Every(secs(3_600)), ..every_minute() }
}

fn change(rig: &mut Rig, draft: ScheduleDraft) -> RequestId {
    rig.call_open(Call::SetSchedule(Box::new(draft)))
}

/// The machine hears what it asked for, and asks again as often as it wants.
fn tell_found(rig: &mut Rig) {
    rig.finds_due = true;
    std::mem::take(&mut rig.found).into_iter().for_each(|found| rig.step(found));
}

/// A schedule whose machine was down, and whose successor has not been told yet which instants have come.
fn after_downtime(draft: ScheduleDraft, downtime: Duration) -> Rig {
    let mut rig = Rig::new();
    set(&mut rig, draft);
    rig.finds_due = false;
    rig.restart(downtime);
    rig
}

#[test]
fn what_has_come_by_the_old_plan_is_decided_by_it_and_nothing_else_of_the_past_by_the_new_one() {
    // The change is what the machine hears first after the instant: a moment later, or after it was frozen.
    for awake in [secs(MINUTE) - ms(100), Duration::ZERO] {
        let mut rig = Rig::new();
        set(&mut rig, every_minute());
        rig.advance(awake);
        rig.jump(secs(MINUTE) + ms(100) - awake);
        set(&mut rig, ScheduleDraft { timing: Timing::Every(secs(3_600)), ..every_minute() });
        assert_eq!(records(&rig), [(1, 1, "on_time")], "{awake:?}");
        rig.advance(secs(30 * MINUTE));
        // Every minute before this one was due by no plan.
        set(&mut rig, ScheduleDraft { overlap: Overlap::Allow, ..every_minute() });
        rig.advance(secs(MINUTE));
        assert_eq!(records(&rig), [(1, 1, "on_time"), (32, 1, "on_time")], "{awake:?}");
    }
}

#[test]
fn a_change_after_a_downtime_waits_until_what_came_in_it_is_decided() {
    let mut rig = after_downtime(every_minute(), secs(3 * MINUTE));
    let request = change(&mut rig, hourly());
    rig.advance(secs(1));
    assert_eq!((rig.reply(request), records(&rig)), (None, vec![]), "nobody knows yet what has come");
    assert_eq!(schedule(&rig).plan.timing, every_minute().timing);
    tell_found(&mut rig);
    assert_eq!(rig.reply(request), CHANGED);
    assert_eq!(records(&rig), [(1, 2, "superseded"), (3, 1, "on_time")]);
    assert_eq!(schedule(&rig).plan.timing, hourly().timing);
    check_log(&rig);
}

#[test]
fn what_came_in_a_downtime_is_not_paused_by_a_later_pause_nor_started_by_a_later_resume() {
    let mut rig = after_downtime(every_minute(), secs(3 * MINUTE));
    let pause = rig.call_open(Call::PauseSchedule(name("tidy")));
    assert!(!schedule(&rig).paused);
    tell_found(&mut rig);
    assert_eq!((rig.reply(pause), schedule(&rig).paused), (DONE, true));
    assert_eq!(records(&rig), [(1, 2, "superseded"), (3, 1, "on_time")]);

    let mut rig = after_downtime(ScheduleDraft { paused: Some(true), ..every_minute() }, secs(3 * MINUTE));
    let resume = rig.call_open(Call::ResumeSchedule(name("tidy")));
    assert!(schedule(&rig).paused);
    tell_found(&mut rig);
    assert_eq!((rig.reply(resume), schedule(&rig).paused), (DONE, false));
    assert_eq!(records(&rig), [(1, 3, "paused")]);
}

#[test]
fn a_change_waits_for_many_runs_that_are_started_bit_by_bit() {
    let draft = ScheduleDraft { missed: MissedPolicy::All, overlap: Overlap::Allow, ..every_minute() };
    let mut rig = after_downtime(draft, secs(40 * MINUTE));
    let request = change(&mut rig, hourly());
    rig.log_answers = false;
    tell_found(&mut rig);
    assert_eq!(rig.reply(request), None, "40 runs are more than one step starts");
    rig.log_answers = true;
    rig.advance(ms(10));
    assert_eq!(rig.reply(request), CHANGED);
    assert_eq!(schedule(&rig).counts.fired, 40);
    check_log(&rig);
}

#[test]
fn calls_about_one_schedule_keep_their_order_and_others_do_not_wait() {
    let mut rig = after_downtime(every_minute(), secs(3 * MINUTE));
    let remove = |rig: &mut Rig| rig.call_open(Call::RemoveSchedule(name("tidy")));
    let requests = [change(&mut rig, hourly()), remove(&mut rig), change(&mut rig, every_minute())];
    rig.finds_due = true;
    set(&mut rig, ScheduleDraft { schedule: name("other"), ..every_minute() });
    assert!(requests.iter().all(|request| !rig.replies.contains_key(request)));
    tell_found(&mut rig);
    let answers = requests.map(|request| rig.reply(request));
    assert_eq!(answers, [CHANGED, DONE, Some(Ok(Answer::ScheduleSet { is_new: true }))]);
    assert_eq!((schedule(&rig).plan.timing.clone(), records(&rig)), (every_minute().timing, vec![]));
    check_log(&rig);
}

#[test]
fn bad_input_and_a_change_to_the_same_wait_for_nothing() {
    let mut rig = after_downtime(every_minute(), secs(3 * MINUTE));
    assert_eq!(rig.call(Call::SetSchedule(Box::new(every_minute()))), CHANGED.unwrap());
    assert_eq!(rig.call(Call::ResumeSchedule(name("tidy"))), DONE.unwrap());
    let wrong = ScheduleDraft { job: onward_core::job::Draft { priority: 101, ..job("k") }, ..hourly() };
    assert!(matches!(rig.call(Call::SetSchedule(Box::new(wrong))), Err(Refusal::Invalid(_))));
    assert_eq!(records(&rig), []);
    assert!(!rig.manager.needs_contents());
}

#[test]
fn a_change_that_waits_when_the_seat_is_not_confirmed_is_kept_and_refused_after_its_time() {
    let mut rig = after_downtime(every_minute(), secs(3 * MINUTE));
    let request = change(&mut rig, hourly());
    assert!(rig.manager.needs_contents() && rig.manager.kept_inputs() == 0);
    rig.log_answers = false;
    rig.advance(secs(2));
    let kept = change(&mut rig, every_minute());
    rig.advance(secs(10));
    assert_eq!(rig.manager.seat_state(), SeatState::Unconfirmed);
    assert_eq!((rig.reply(request), rig.reply(kept)), (Some(Err(Refusal::NoLeader)), Some(Err(Refusal::NoLeader))));
    assert!(!rig.manager.needs_contents());

    let mut rig = after_downtime(every_minute(), secs(3 * MINUTE));
    let request = change(&mut rig, hourly());
    rig.step(Input::SeatLost);
    assert_eq!(rig.reply(request), Some(Err(Refusal::NoLeader)));
}

/// Both begin at the same instant, so that only the revision tells their instants apart.
#[test]
fn what_was_asked_for_a_schedule_that_was_removed_is_not_taken_for_the_next_of_its_name() {
    let mut rig = Rig::new();
    rig.finds_due = false;
    set(&mut rig, every_minute());
    assert_eq!(rig.call(Call::RemoveSchedule(name("tidy"))), DONE.unwrap());
    set(&mut rig, hourly());
    assert_eq!(rig.found.len(), 2);
    tell_found(&mut rig);
    rig.advance(secs(60 * MINUTE));
    assert_eq!(records(&rig), [(60, 1, "on_time")]);
    check_log(&rig);
}

/// A change that waits for the seat is refused after its own time, whichever schedule it is about.
#[test]
fn changes_of_several_schedules_that_wait_for_the_seat_are_refused_the_oldest_first() {
    let mut rig = Rig::new();
    let named = |schedule: &str, timing: u64| {
        let timing = Timing::Every(secs(timing));
        ScheduleDraft { schedule: name(schedule), timing, ..every_minute() }
    };
    ["a", "b"].into_iter().for_each(|schedule| set(&mut rig, named(schedule, MINUTE)));
    rig.finds_due = false;
    rig.restart(secs(3 * MINUTE));
    let older = change(&mut rig, named("b", 3_600));
    rig.advance(ms(2_500));
    rig.log_answers = false;
    rig.advance(secs(1));
    let newer = change(&mut rig, named("a", 3_600));
    let mut refused_at = [None; 2];
    for tick in 0..100 {
        rig.advance(ms(100));
        for (at, request) in refused_at.iter_mut().zip([older, newer]) {
            *at = at.or(rig.replies.contains_key(&request).then_some(tick));
        }
    }
    assert!(refused_at[0].is_some() && refused_at[0] < refused_at[1], "{refused_at:?}");
    assert_eq!((rig.reply(older), rig.reply(newer)), (Some(Err(Refusal::NoLeader)), Some(Err(Refusal::NoLeader))));
}

/// Spread over 50 s, and seen when an instant has come and not started.
fn while_an_instant_is_delayed() -> Rig {
    let draft = ScheduleDraft { jitter: secs(50), ..every_minute() };
    let due = Wall::from_ms(EPOCH_MS + 60_000);
    assert!(jitter("tidy", due, draft.jitter) > secs(2), "the test needs a delay");
    let mut rig = Rig::new();
    set(&mut rig, draft);
    rig.advance(secs(MINUTE + 1));
    assert_eq!(records(&rig), []);
    rig
}

#[test]
fn an_instant_that_jitter_delays_is_not_lost_by_a_change() {
    // No plan knows it afterwards: it starts now.
    let mut rig = while_an_instant_is_delayed();
    set(&mut rig, hourly());
    assert_eq!(records(&rig), [(1, 1, "on_time")]);
    check_log(&rig);
    // It stays as it is, and starts when it would have.
    let mut rig = while_an_instant_is_delayed();
    set(&mut rig, ScheduleDraft { jitter: secs(50), critical: true, ..every_minute() });
    assert_eq!(records(&rig), []);
    rig.advance(secs(50));
    assert_eq!(records(&rig), [(1, 1, "on_time")]);
    check_log(&rig);
    // A successor, which knows only what the log says of it, starts it as well.
    let mut rig = while_an_instant_is_delayed();
    set(&mut rig, ScheduleDraft { jitter: secs(50), critical: true, ..every_minute() });
    rig.restart(ms(100));
    rig.advance(secs(50));
    assert_eq!(records(&rig), [(1, 1, "on_time")]);
    check_log(&rig);
}

#[test]
fn a_change_of_the_timing_waits_for_many_instants_that_jitter_delays() {
    // More than one step decides, whatever its policy, and nobody looks at them again before their own time.
    for (every, span, missed) in
        [(1, 1_200, MissedPolicy::Once), (1, 1_200, MissedPolicy::All), (60, 1_200, MissedPolicy::All)]
    {
        let mut rig = Rig::new();
        let timing = Timing::Every(secs(every));
        let (jitter, overlap) = (secs(86_400), Overlap::Allow);
        set(&mut rig, ScheduleDraft { timing, jitter, overlap, missed, ..every_minute() });
        rig.advance(secs(span) + ms(500));
        let decided_before = schedule(&rig).counts;
        let request = change(&mut rig, hourly());
        rig.advance(ms(400));
        assert_eq!(rig.reply(request), CHANGED, "every {every} s, {missed:?}");
        let counts = schedule(&rig).counts;
        assert_eq!(counts.fired + counts.skipped + counts.missed, span / every, "{decided_before:?} before");
        check_log(&rig);
    }
}

#[test]
fn a_run_that_somebody_asks_for_takes_the_place_of_no_instant() {
    let mut rig = while_an_instant_is_delayed();
    assert!(matches!(rig.call(Call::RunSchedule { schedule: name("tidy"), request: None }), Ok(Answer::Submitted(_))));
    rig.restart(ms(100));
    rig.advance(secs(50));
    assert_eq!(records(&rig), [(1, 1, "run_now"), (1, 1, "still_running")]);
    check_log(&rig);
}

#[test]
fn a_run_that_is_asked_for_under_a_request_needs_room_for_its_key() {
    let mut rig = Rig::with(|settings| settings.limits.idempotency_keys = 1);
    set(&mut rig, every_minute());
    let run = |request: Option<&str>| Call::RunSchedule { schedule: name("tidy"), request: request.map(name) };
    rig.call(run(Some("first"))).expect("accepted");
    let met = LimitMet { limit: Limit::IdempotencyKeys, max: 1 };
    assert_eq!(rig.call(run(Some("second"))), Err(Refusal::Limited(met)));
    let again = rig.call(run(Some("first")));
    assert!(matches!(again, Ok(Answer::Submitted(runs)) if runs[0].duplicate), "what was asked for is remembered");
    rig.call(run(None)).expect("it has no key");
}

#[test]
fn what_is_left_until_more_is_known_is_not_looked_at_again_and_again() {
    let mut rig = Rig::new();
    set(&mut rig, every_minute());
    rig.finds_due = false;
    rig.set_wall(Wall::from_ms(EPOCH_MS + 250));
    // Longer than what is known ahead: the newest that has come is not known.
    rig.jump(secs(30 * MINUTE));
    rig.step(Input::Wake);
    assert_eq!((rig.found.len(), records(&rig)), (1, vec![(1, 15, "superseded")]));
    rig.watch(secs(5), |rig| {
        let why = rig.manager.next_wakeup().map(|(_, why)| why);
        assert_ne!(why, Some(Why::Schedule), "there is nothing to do before that is known");
    });
    tell_found(&mut rig);
    assert_eq!(records(&rig), [(1, 29, "superseded"), (30, 1, "on_time")]);
}
