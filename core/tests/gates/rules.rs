//! Policies of a global timeout, on whole machines; the table of the rule itself is beside it.

use onward_core::gate::effect::Notice;
use onward_core::job::{JobState, TimeoutPolicy};
use onward_core::timeout::TimeoutReason;

use onward_core::gate::input::Call;
use onward_core::ids::JobId;
use onward_core::input::Submission;
use onward_core::limits::{Limit, LimitMet};
use onward_core::refusal::Refusal;

use super::world::{Habit, World, impatient, secs, with_policy};

/// How many of three datacenters hang, and whether the job ends by it within three minutes.
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
    let notice = Notice::TimeoutDeclared { job, reason: TimeoutReason::Stuck };
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
fn one_that_moves_again_is_stuck_no_longer() {
    let mut world = World::new(&["a", "b"]);
    let job = world.submit(with_policy(TimeoutPolicy::All, impatient(&["a", "b"])));
    world.advance(secs(2));
    world.datacenters[0].habit = Habit::Hang;
    world.advance(secs(140));
    assert_eq!(world.view(job).targets[0].reason.as_deref(), Some("stuck"));
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
