//! A job that would have ended in its datacenter, and does not any more: whatever else would end it is watched again.

use std::time::Duration;

use onward_core::event::Event as ManagerEvent;
use onward_core::gate::input::Call;
use onward_core::ids::{Claim, JobId};
use onward_core::job::{Draft, TimeoutPolicy, WorkflowDraft};
use onward_core::message::EndReport;
use onward_core::time::Wall;

use super::world::{Habit, World, impatient, name, secs, with_policy};

/// The attempt that the newest local timeout of the first datacenter was about.
fn newest_stuck(world: &World) -> Claim {
    let events = world.datacenters[0].log.iter().rev();
    let mut stuck = events.filter_map(|stamped| match &stamped.event {
        ManagerEvent::LocallyTimedOut { stuck, .. } => *stuck,
        _ => None,
    });
    stuck.next().expect("an attempt was stuck")
}

/// Two workflows of one job, side by side, that hang in the first of two datacenters.
fn two_hang(world: &mut World) -> JobId {
    let workflow = |text: &str| WorkflowDraft {
        name: Some(text.into()),
        kind: "k".into(),
        payload: (*b"{}").into(),
        content_type: None,
        after: Vec::new(),
    };
    let draft = Draft { workflows: vec![workflow("one"), workflow("two")], ..impatient(&["a", "b"]) };
    let job = world.submit(with_policy(TimeoutPolicy::All, draft));
    world.datacenters[0].habit = Habit::Hang;
    world.until(secs(140), "one is stuck", |world| world.view(job).targets[0].reason.as_deref() == Some("stuck"));
    world.advance(secs(2));
    job
}

#[test]
fn an_attempt_that_is_stuck_beside_another_is_reported_when_that_one_moves_again() {
    let mut world = World::new(&["a", "b"]);
    let job = two_hang(&mut world);
    let (first, now) = (newest_stuck(&world), world.now);
    world.datacenters[0].move_one(first, now);
    world.carry(0);
    world.advance(secs(15));
    assert_eq!(world.view(job).targets[0].reason.as_deref(), Some("stuck"), "the other still is");
    let second = newest_stuck(&world);
    assert_ne!(first, second);
    let now = world.now;
    world.datacenters[0].move_one(second, now);
    world.carry(0);
    world.advance(secs(15));
    assert_eq!(world.view(job).targets[0].reason, None, "and now none is");
}

#[test]
fn an_attempt_that_is_stuck_beside_another_does_not_wait_for_its_next_beat_to_be_reported() {
    let mut world = World::new(&["a", "b"]);
    two_hang(&mut world);
    let (first, now) = (newest_stuck(&world), world.now);
    world.datacenters[0].habit = Habit::Sleep;
    world.datacenters[0].move_one(first, now);
    world.advance(secs(1));
    assert_ne!(newest_stuck(&world), first);
}

#[test]
fn an_attempt_that_is_stuck_beside_another_is_reported_when_that_one_has_ended() {
    let mut world = World::new(&["a", "b"]);
    let job = two_hang(&mut world);
    let (first, now) = (newest_stuck(&world), world.now);
    let others: Vec<Claim> = world.datacenters[0].holding.iter().copied().filter(|claim| *claim != first).collect();
    world.datacenters[0].holding = vec![first];
    world.datacenters[0].settle_all(&EndReport::Succeed { result: (*b"1").into() }, now);
    world.datacenters[0].holding = others.clone();
    world.carry(0);
    world.advance(secs(15));
    assert_eq!(world.view(job).targets[0].reason.as_deref(), Some("stuck"));
    assert_eq!(newest_stuck(&world), others[0]);
}

#[test]
fn an_attempt_that_got_stuck_while_the_job_was_late_is_reported_once_the_job_has_time_again() {
    let mut world = World::new(&["a"]);
    let job = world.submit(Draft { timeout: Some(secs(100)), ..impatient(&["a"]) });
    world.datacenters[0].habit = Habit::Hang;
    world.advance(secs(50));
    world.call(Call::Extend { job, by: secs(3_000), reason: "slow".into(), request: name("r") }).unwrap();
    world.cut(0);
    world.advance(secs(110));
    assert!(world.datacenters[0].runs(job), "late and stuck, and the fallback is far");
    world.mend(0);
    world.until(secs(30), "it is stuck, and that is declared", |world| world.declared(job).is_some());
}

#[test]
fn a_job_that_is_late_when_its_stuck_attempt_ends_does_not_outlive_the_fallback() {
    let mut world = World::new(&["a"]);
    let job = world.submit(Draft { timeout: Some(secs(200)), ..impatient(&["a"]) });
    world.advance(secs(2));
    world.kill_gate();
    world.datacenters[0].habit = Habit::Hang;
    // Stuck at about 120 s; the overall time is over at 200 s.
    world.advance(secs(248));
    let now = world.now;
    let report = EndReport::Fail { error: "no".into(), retryable: true, delay: Some(secs(3_600)) };
    world.datacenters[0].settle_all(&report, now);
    assert!(world.datacenters[0].runs(job), "it is tried again in an hour");
    world.until(secs(310), "no gate says anything", |world| !world.datacenters[0].runs(job));
}

#[test]
fn a_manager_shows_the_deadline_that_it_keeps() {
    let mut world = World::new(&["a"]);
    world.cut(0);
    let job = world.submit(Draft { timeout: Some(secs(100)), ..impatient(&["a"]) });
    world.advance(secs(60));
    world.mend(0);
    world.advance(secs(2));
    let apart = |world: &World| {
        let shown = world.datacenters[0].manager.job(job).unwrap().deadline.unwrap();
        let kept = world.gate().state().job(job).unwrap().deadline();
        shown.since(kept).max(kept.since(shown))
    };
    assert!(apart(&world) < secs(1), "what it waited for the datacenter counts: {:?}", apart(&world));
    world.call(Call::Extend { job, by: secs(50), reason: "slow".into(), request: name("r") }).unwrap();
    world.advance(secs(60));
    assert!(world.datacenters[0].runs(job), "it was given time");
    assert!(apart(&world) < secs(1), "and so does that: {:?}", apart(&world));
}

/// A job whose attempt in the first of two datacenters was reported as stuck, and which goes on for that.
fn one_hangs(world: &mut World) -> JobId {
    let job = world.submit(with_policy(TimeoutPolicy::All, impatient(&["a", "b"])));
    world.datacenters[0].habit = Habit::Hang;
    world.until(secs(140), "it is stuck", |world| world.view(job).targets[0].reason.as_deref() == Some("stuck"));
    job
}

/// What covers the attempt lifts the report for as long as it lasts.
fn is_lifted_for(world: &mut World, job: JobId, span: Duration) {
    world.carry(0);
    world.advance(secs(1));
    world.until(secs(12), "it is stuck no longer", |world| world.view(job).targets[0].reason.is_none());
    world.advance(secs(15));
    assert_eq!(world.view(job).targets[0].reason, None, "it is covered");
    // Its handler beats again, which is no step.
    world.datacenters[0].habit = Habit::Hang;
    world.until(span, "it is stuck again", |world| world.view(job).targets[0].reason.as_deref() == Some("stuck"));
    let from = world.datacenters[0].timed_out_locally(job);
    world.kill_gate();
    world.until(secs(310), "the fallback", |world| !world.datacenters[0].runs(job));
    assert!(world.now.wall.since(from) >= secs(300), "counted from when it was stuck again");
}

#[test]
fn a_live_grant_lifts_a_report_of_being_stuck() {
    let mut world = World::new(&["a", "b"]);
    let job = one_hangs(&mut world);
    let now = world.now;
    world.datacenters[0].request_extension(0.5, now);
    is_lifted_for(&mut world, job, secs(60));
}

#[test]
fn a_quiet_section_lifts_a_report_of_being_stuck() {
    let mut world = World::new(&["a", "b"]);
    let job = one_hangs(&mut world);
    let (claim, now) = (newest_stuck(&world), world.now);
    world.datacenters[0].habit = Habit::Sleep;
    world.datacenters[0].begin_quiet(claim, secs(40), now);
    is_lifted_for(&mut world, job, secs(60));
}

/// A job that is late where no gate is heard, since about ten seconds.
fn late_alone(world: &mut World) -> JobId {
    let job = world.submit(Draft { timeout: Some(secs(100)), ..impatient(&["a"]) });
    world.advance(secs(2));
    world.kill_gate();
    world.advance(secs(108));
    assert_ne!(world.datacenters[0].timed_out_locally(job), Wall::ZERO, "it is late");
    job
}

#[test]
fn a_late_job_that_is_given_time_by_hand_is_late_no_longer() {
    let mut world = World::new(&["a"]);
    let job = late_alone(&mut world);
    let now = world.now;
    world.datacenters[0].extend(job, secs(600), now);
    world.advance(secs(500));
    assert!(world.datacenters[0].runs(job), "no gate says anything, and none has to");
    let from = world.now.mono;
    world.until(secs(500), "its time and the fallback", |world| !world.datacenters[0].runs(job));
    let took = world.now.mono.since(from);
    assert!((secs(380)..secs(400)).contains(&took), "100 + 600 + 300 s from its start, 610 s of them gone: {took:?}");
}

#[test]
fn a_late_job_whose_worker_earns_time_is_late_no_longer() {
    let mut world = World::new(&["a"]);
    let job = late_alone(&mut world);
    let now = world.now;
    world.datacenters[0].request_extension(0.5, now);
    world.advance(secs(305));
    assert!(world.datacenters[0].runs(job), "the fallback counts from the end of what was earned");
    world.until(secs(30), "that and the fallback", |world| !world.datacenters[0].runs(job));
}
