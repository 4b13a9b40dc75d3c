//! Policies of a global timeout, on whole machines; the table of the rule itself is beside it.

use onward_core::fence::Term;
use onward_core::gate::TargetState;
use onward_core::gate::effect::{Effect, Effects, GateNotice};
use onward_core::gate::event::{Event, TargetCause};
use onward_core::gate::input::{Call, Input};
use onward_core::gate::message::{Frame, FromDatacenter, Hello, ToDatacenter};
use onward_core::health::DatacenterCounts;
use onward_core::ids::{JobId, RequestId, StreamId};
use onward_core::input::Submission;
use onward_core::job::{Draft, JobState, TimeoutPolicy};
use onward_core::limits::{Limit, LimitMet};
use onward_core::message::EndReport;
use onward_core::refusal::Refusal;
use onward_core::time::Wall;
use onward_core::timeout::TimeoutReason;

use super::world::{Habit, World, impatient, name, secs, with_policy};

/// Whether the job ends within three minutes when so many of three datacenters hang.
fn ends(policy: TimeoutPolicy, targets: &[&str], hanging: usize) -> bool {
    let mut world = World::new(&["a", "b", "c"]);
    let job = world.submit(with_policy(policy, impatient(targets)));
    world.advance(secs(2));
    for datacenter in 0..hanging {
        world.datacenters[datacenter].habit = Habit::Hang;
    }
    world.advance(secs(170));
    let declared = world.declared(job).is_some();
    assert_eq!(declared, world.has_ended_everywhere(job), "all or none");
    assert_eq!(world.state(job), if declared { JobState::TimedOut } else { JobState::Running });
    let notice = GateNotice::TimeoutDeclared { job, reason: TimeoutReason::Stuck };
    assert_eq!(world.notices.iter().filter(|one| **one == notice).count(), usize::from(declared), "once");
    declared
}

#[test]
fn stuck_reports_meet_the_policy_or_do_not() {
    use TimeoutPolicy::{All, Any, Majority};
    let three = &["a", "b", "c"][..];
    for (policy, targets, hanging, expected) in [
        (Any, three, 0, false),
        (Any, three, 1, true),
        (Majority, three, 1, false),
        (Majority, three, 2, true),
        (All, three, 2, false),
        (All, three, 3, true),
        (All, &three[..1], 1, true),
        (Majority, &three[..1], 1, true),
        (All, &three[..2], 2, true),
        (Majority, &three[..2], 2, true),
        (Any, &three[..2], 2, true),
    ] {
        assert_eq!(ends(policy, targets, hanging), expected, "{policy:?}: {hanging} of {}", targets.len());
    }
}

#[test]
fn that_all_are_late_by_their_own_clocks_ends_the_job_once_no_time_remains_anywhere() {
    let mut world = World::new(&["a", "b"]);
    let job = world.submit(Draft { timeout: Some(secs(60)), ..impatient(&["a", "b"]) });
    world.call(Call::Extend { job, by: secs(100), reason: "slow".into(), request: name("r") }).unwrap();
    let from = world.now.mono;
    world.advance(secs(58));
    // What each is told of the time that remains is lost.
    world.weather.drops = 100;
    world.advance(secs(3));
    assert!(world.datacenters.iter().all(|datacenter| datacenter.timed_out_locally(job) > Wall::ZERO), "both are late");
    world.weather.drops = 0;
    world.until(secs(120), "the overall time", |world| world.declared(job).is_some());
    let took = world.now.mono.since(from);
    assert!((secs(160)..secs(161)).contains(&took), "and not before: {took:?}");
    world.advance(secs(2));
    assert!(world.has_ended_everywhere(job));
    assert!(world.notices.contains(&GateNotice::TimeoutDeclared { job, reason: TimeoutReason::Overall }));
}

#[test]
fn one_that_moves_again_is_stuck_no_longer() {
    let mut world = World::new(&["a", "b"]);
    let job = world.submit(with_policy(TimeoutPolicy::All, impatient(&["a", "b"])));
    world.advance(secs(2));
    world.datacenters[0].habit = Habit::Hang;
    world.advance(secs(140));
    assert_eq!(world.view(job).targets[0].reason.as_deref(), Some("stuck"));
    assert!(world.view(job).targets[0].since_progress >= Some(secs(120)), "which its reports prove");
    assert!(world.view(job).targets[1].since_progress < Some(secs(10)));
    world.datacenters[0].habit = Habit::Move;
    world.datacenters[1].habit = Habit::Hang;
    world.advance(secs(150));
    assert_eq!(world.view(job).targets[0].reason, None);
    assert_eq!(world.view(job).targets[1].reason.as_deref(), Some("stuck"));
    assert_eq!(world.declared(job), None, "they were not stuck at the same time");
    world.datacenters[1].habit = Habit::Move;
    world.advance(secs(400));
    assert_eq!(world.state(job), JobState::Running, "and the fallback does not end it either");
}

#[test]
fn a_gate_that_answers_keeps_the_fallback_away_also_over_a_takeover() {
    let mut world = World::new(&["a", "b"]);
    let job = world.submit(with_policy(TimeoutPolicy::All, impatient(&["a", "b"])));
    world.advance(secs(2));
    world.datacenters[0].habit = Habit::Hang;
    world.advance(secs(700));
    assert!(world.datacenters[0].runs(job), "the gate has been answering all the time");
    world.disconnect(0);
    world.datacenters[0].crash();
    let now = world.now;
    world.datacenters[0].take_over(now);
    world.advance(secs(60));
    assert!(world.datacenters[0].runs(job), "and the new leader knows it");
    world.kill_gate();
    world.until(secs(310), "nobody answers any more", |world| !world.datacenters[0].runs(job));
    assert!(world.datacenters[1].runs(job), "the other moves");
}

#[test]
fn a_takeover_does_not_shorten_the_silence_that_the_fallback_waits_for() {
    let mut world = World::new(&["a", "b"]);
    let job = world.submit(with_policy(TimeoutPolicy::All, impatient(&["a", "b"])));
    world.advance(secs(2));
    world.datacenters[0].habit = Habit::Hang;
    world.until(secs(140), "it is stuck", |world| world.datacenters[0].timed_out_locally(job) > Wall::ZERO);
    // Answered all the time, and the newest of the answers are not logged.
    world.advance(secs(70));
    world.kill_gate();
    world.datacenters[0].crash();
    let now = world.now;
    world.datacenters[0].take_over(now);
    world.until(secs(310), "nobody answers any more", |world| !world.datacenters[0].runs(job));
    let silence = world.now.wall.since(world.datacenters[0].last_word(job));
    assert!((secs(300)..secs(315)).contains(&silence), "since the last answer, logged or not: {silence:?}");
}

#[test]
fn nor_does_it_lengthen_that_of_a_gate_that_never_answered() {
    let mut world = World::new(&["a"]);
    let job = world.submit(Draft { timeout: Some(secs(100)), ..impatient(&["a"]) });
    world.advance(secs(2));
    world.kill_gate();
    world.advance(secs(168));
    let timed_out = world.datacenters[0].timed_out_locally(job);
    assert_ne!(timed_out, Wall::ZERO, "it is late");
    world.datacenters[0].crash();
    let now = world.now;
    world.datacenters[0].take_over(now);
    world.until(secs(310), "no gate says anything", |world| !world.datacenters[0].runs(job));
    let silence = world.now.wall.since(timed_out);
    assert!((secs(300)..secs(302)).contains(&silence), "by the logged stamp: {silence:?}");
}

#[test]
fn nor_does_it_lengthen_that_of_a_gate_that_has_just_answered() {
    let mut world = World::new(&["a", "b"]);
    let job = world.submit(with_policy(TimeoutPolicy::All, impatient(&["a", "b"])));
    world.advance(secs(2));
    world.datacenters[0].habit = Habit::Hang;
    world.until(secs(140), "it is stuck", |world| world.datacenters[0].timed_out_locally(job) > Wall::ZERO);
    // The first answer is logged at once, and no other one can have come before the takeover.
    world.advance(secs(2));
    world.kill_gate();
    world.datacenters[0].crash();
    let now = world.now;
    world.datacenters[0].take_over(now);
    world.until(secs(310), "nobody answers any more", |world| !world.datacenters[0].runs(job));
    let silence = world.now.wall.since(world.datacenters[0].last_word(job));
    assert!((secs(300)..secs(304)).contains(&silence), "since the last answer: {silence:?}");
}

#[test]
fn an_ended_job_is_kept_at_least_as_long_as_its_key_is_remembered() {
    const HOUR: u64 = 3_600;
    let mut world = World::new(&["a"]);
    world.datacenters[0].habit = Habit::Finish;
    let brief =
        |key: Option<&str>| Draft { retain: Some(secs(60)), idempotency_key: key.map(Into::into), ..impatient(&["a"]) };
    let [keyed, plain] = [Some("key"), None].map(|key| world.submit(brief(key)));
    world.advance(secs(HOUR));
    assert!(world.gate().job(plain).is_none(), "it was to be kept for a minute");
    assert_eq!(world.submit(brief(Some("key"))), keyed, "the same submission again");
    world.advance(secs(24 * HOUR));
    assert!(world.gate().job(keyed).is_none());
}

#[test]
fn a_gate_knows_so_many_datacenters_and_keeps_so_many_ended_jobs() {
    let mut world = World::with(1, &["a"], |settings| {
        settings.limits.datacenters = 2;
        settings.limits.finished_jobs = 3;
    });
    let submission = |names: &[&str]| Submission { id: JobId::from_u128(9), draft: impatient(names) };
    let met = Refusal::Limited(LimitMet { limit: Limit::Datacenters, max: 2 });
    let refused = Refusal::InBatch { index: 0, cause: Box::new(met) };
    assert_eq!(world.call(Call::Submit(vec![submission(&["a", "b", "c"])])), Err(refused));
    assert!(world.call(Call::Submit(vec![submission(&["a", "b"])])).is_ok());
    world.datacenters[0].habit = Habit::Finish;
    let jobs: Vec<JobId> = (0..5)
        .map(|_| {
            let job = world.submit(impatient(&["a"]));
            world.advance(secs(10));
            job
        })
        .collect();
    let kept: Vec<bool> = jobs.iter().map(|job| world.gate().job(*job).is_some()).collect();
    assert_eq!(kept, [false, false, true, true, true], "the oldest go first");
    assert!(world.gate().job(JobId::from_u128(9)).is_some(), "and none that is open");
}

#[test]
fn after_a_gap_what_is_queued_is_taken_before_a_report_ends_the_job() {
    let mut world = World::new(&["a"]);
    let job = world.submit(Draft { timeout: Some(secs(60)), ..impatient(&["a"]) });
    world.advance(secs(50));
    let (now, stream) = (world.now, world.stream(0));
    world.datacenters[0].hear_gate(stream, ToDatacenter::Ask { jobs: vec![job] }, now);
    let report = world.datacenters[0].to_gate.pop().expect("an answer").1;
    // The gate is frozen, and wakes when the time of the job is over.
    world.jump(secs(20));
    let (now, mut fx) = (world.now, Effects::default());
    let gate = world.gate.as_mut().unwrap();
    gate.step(now, Input::Datacenter { stream, frame: report }, &mut fx);
    let asked = fx.list.drain(..).find_map(|waiting| match waiting.effect {
        Effect::ConfirmSeat { question } => Some(question),
        _ => None,
    });
    let question = asked.expect("it confirms its seat first");
    gate.step(now, Input::SeatConfirmed { term: Term::new(1), question }, &mut fx);
    let extend = Call::Extend { job, by: secs(100), reason: "slow".into(), request: name("r") };
    gate.step(now, Input::Call { request: RequestId(77_777), call: extend }, &mut fx);
    gate.step(now, Input::Drained, &mut fx);
    assert!(fx.events.iter().any(|stamped| matches!(stamped.event, Event::JobExtended { .. })), "{:?}", fx.events);
    assert!(fx.events.iter().all(|stamped| !matches!(stamped.event, Event::EndDecided { .. })), "{:?}", fx.events);
}

#[test]
fn a_job_that_a_datacenter_had_and_knows_nothing_of_is_lost_also_if_it_was_never_confirmed() {
    for is_cancelled in [false, true] {
        let mut world = World::new(&["a"]);
        world.datacenters[0].habit = Habit::Finish;
        world.weather.drops = 100;
        let job = world.submit(impatient(&["a"]));
        let submit = world.sent.iter().rev().find(|(_, message)| matches!(message, ToDatacenter::Submit(_)));
        let (submit, stream, now) = (submit.expect("it was sent").1.clone(), world.stream(0), world.now);
        world.datacenters[0].hear_gate(stream, submit, now);
        world.advance(secs(15));
        assert_eq!(world.datacenters[0].state(job), Some(JobState::Succeeded));
        // Nobody keeps what it came to: the archive is short, and the leader is another.
        world.datacenters[0].archive.clear();
        world.disconnect(0);
        world.datacenters[0].crash();
        let now = world.now;
        world.datacenters[0].take_over(now);
        if is_cancelled {
            world.call(Call::Cancel { job }).unwrap();
        }
        world.weather.drops = 0;
        world.advance(secs(30));
        assert_eq!(world.state(job), if is_cancelled { JobState::Cancelled } else { JobState::Failed });
        assert_eq!(world.view(job).targets[0].end.as_ref().unwrap().cause, TargetCause::Lost);
    }
}

#[test]
fn a_hello_is_kept_however_much_is_said_while_the_seat_is_not_confirmed() {
    let mut world = World::new(&["a"]);
    let (said, late) = (world.stream(0), StreamId(9_999));
    // The gate is frozen, and wakes to more than it keeps.
    world.jump(secs(20));
    let (now, mut fx) = (world.now, Effects::default());
    let gate = world.gate.as_mut().unwrap();
    for number in 0..10_001 {
        let frame = Frame { term: Term::new(1), number, message: FromDatacenter::Progress(Vec::new()) };
        gate.step(now, Input::Datacenter { stream: said, frame }, &mut fx);
    }
    assert_eq!(gate.kept_inputs(), 10_000, "frames that are repeated are dropped");
    let hello = Hello { datacenter: name("b"), life: 1, epoch: None, counts: DatacenterCounts::default() };
    let frame = Frame { term: Term::new(1), number: 1, message: FromDatacenter::Hello(hello) };
    gate.step(now, Input::StreamOpened { stream: late, datacenter: name("b") }, &mut fx);
    gate.step(now, Input::Datacenter { stream: late, frame }, &mut fx);
    let question = fx.list.drain(..).find_map(|waiting| match waiting.effect {
        Effect::ConfirmSeat { question } => Some(question),
        _ => None,
    });
    let question = question.expect("it confirms its seat");
    gate.step(now, Input::SeatConfirmed { term: Term::new(1), question }, &mut fx);
    gate.step(now, Input::Drained, &mut fx);
    while gate.kept_inputs() > 0 {
        gate.step(now, Input::Wake, &mut fx);
    }
    assert!(gate.datacenters().any(|known| known.name == name("b") && known.is_connected), "b says hello only once");
}

#[test]
fn a_target_that_was_told_to_stop_and_has_not_is_shown_as_cancelling() {
    let mut world = World::new(&["a"]);
    let job = world.submit(impatient(&["a"]));
    world.advance(secs(2));
    world.datacenters[0].is_stubborn = true;
    world.call(Call::Cancel { job }).unwrap();
    assert_eq!(world.view(job).targets[0].reason, None, "it was not told yet");
    world.advance(secs(1));
    let target = &world.view(job).targets[0];
    assert_eq!((target.state, target.reason.as_deref()), (TargetState::Running, Some("cancelling")));
    assert!(!target.confirmed, "the handler runs");
    let sent = |world: &World| {
        let cancels = world.sent.iter().filter(|(_, message)| matches!(message, ToDatacenter::Cancel { .. }));
        cancels.count()
    };
    assert_eq!(sent(&world), 1, "that it is stopping is no reason to tell it again at once");
    let now = world.now;
    world.datacenters[0].settle_all(&EndReport::Fail { error: "no".into(), retryable: true, delay: None }, now);
    world.carry(0);
    world.advance(secs(1));
    let target = &world.view(job).targets[0];
    assert_eq!((target.state, target.confirmed), (TargetState::Cancelled, true));
}
