//! What is written down about a job's time, in its datacenter and at the gate, and what each says about it.

use onward_core::effect::{ManagerNotice, TimeoutAuthority};
use onward_core::gate::input::Call;
use onward_core::gate::message::{StaleToken, ToDatacenter};
use onward_core::ids::JobId;
use onward_core::job::{Draft, TimeoutPolicy};
use onward_core::state::LedgerFact;
use onward_core::timeout::TimeoutReason::{Overall, Stuck};

use super::world::{Habit, World, impatient, name, secs, with_policy};

/// The job's ledger in the first datacenter.
fn there(world: &World, job: JobId) -> Vec<LedgerFact> {
    let view = world.datacenters[0].view(job).expect("it is there");
    view.ledger.into_iter().map(|entry| entry.what).collect()
}

fn said(world: &World) -> &[ManagerNotice] {
    &world.datacenters[0].said
}

#[test]
fn of_a_job_that_would_have_ended_in_a_datacenter_each_step_until_the_gate_ends_it() {
    let mut world = World::new(&["a", "b"]);
    let job = world.submit(with_policy(TimeoutPolicy::All, impatient(&["a", "b"])));
    world.advance(secs(2));
    world.datacenters[0].habit = Habit::Hang;
    world.advance(secs(130));
    assert_eq!(there(&world, job), [LedgerFact::LocallyTimedOut { reason: Stuck }, LedgerFact::GateAnswered]);
    assert!(said(&world).contains(&ManagerNotice::LocallyTimedOut { job, reason: Stuck }));
    world.datacenters[0].habit = Habit::Move;
    world.advance(secs(10));
    assert_eq!(there(&world, job).last(), Some(&LedgerFact::LocalTimeoutOver));
    for datacenter in &mut world.datacenters {
        datacenter.habit = Habit::Hang;
    }
    world.advance(secs(140));
    let epoch = world.epoch(1);
    assert_eq!(there(&world, job).last(), Some(&LedgerFact::TimedOut { reason: Stuck, epoch: Some(epoch) }));
    let notice = ManagerNotice::JobTimedOut { job, reason: Stuck, by: TimeoutAuthority::Gate(epoch) };
    assert_eq!(said(&world).last(), Some(&notice));
}

#[test]
fn that_no_gate_has_answered_is_told_apart() {
    let mut world = World::new(&["a"]);
    let job = world.submit(Draft { timeout: Some(secs(60)), ..impatient(&["a"]) });
    world.advance(secs(2));
    world.kill_gate();
    world.until(secs(600), "it ends by itself", |world| !world.datacenters[0].runs(job));
    let timed_out = LedgerFact::TimedOut { reason: Overall, epoch: None };
    assert_eq!(there(&world, job), [LedgerFact::LocallyTimedOut { reason: Overall }, timed_out]);
    let notice = ManagerNotice::JobTimedOut { job, reason: Overall, by: TimeoutAuthority::Fallback };
    assert_eq!(said(&world).last(), Some(&notice));
}

#[test]
fn time_that_a_gate_has_given_is_in_both_ledgers() {
    let mut world = World::new(&["a"]);
    let job = world.submit(Draft { timeout: Some(secs(60)), ..impatient(&["a"]) });
    world.call(Call::Extend { job, by: secs(100), reason: "slow".into(), request: name("r") }).unwrap();
    world.advance(secs(70));
    let [LedgerFact::LocallyTimedOut { reason: Overall }, LedgerFact::TimeGiven { until }] = there(&world, job)[..]
    else {
        panic!("{:?}", there(&world, job));
    };
    let deadline = world.gate().state().job(job).unwrap().deadline();
    assert!(until.since(deadline).max(deadline.since(until)) < secs(1), "{until:?} {deadline:?}");
    let now = world.now;
    world.datacenters[0].request_extension(0.5, now);
    world.carry(0);
    world.advance(secs(12));
    // Also as another gate reads it, from a snapshot and from the log.
    world.snapshot_gate();
    world.call(Call::Cancel { job }).unwrap();
    world.kill_gate();
    world.start_gate();
    let ledger = world.gate().state().job(job).unwrap().ledger.as_ref().expect("it was extended");
    let facts: Vec<&LedgerFact> = ledger.entries.iter().map(|entry| &entry.what).collect();
    let [by_hand, LedgerFact::ExtensionsReported { grants, .. }, LedgerFact::CancelAsked { epoch: None }] = facts[..]
    else {
        panic!("{facts:?}")
    };
    assert_eq!(*by_hand, LedgerFact::ExtendedByHand { by: secs(100), reason: "slow".into(), request: name("r") });
    assert!(!grants.is_zero());
}

#[test]
fn a_decision_that_is_refused_is_said() {
    let mut world = World::new(&["a"]);
    let job = world.submit(impatient(&["a"]));
    world.advance(secs(2));
    let (stream, now, epoch) = (world.stream(0), world.now, world.epoch(0));
    world.datacenters[0].hear_gate(stream, ToDatacenter::Cancel { job, epoch }, now);
    assert_eq!(said(&world), [ManagerNotice::GateCorrected { job, stale: StaleToken::Epoch }]);
    assert!(world.datacenters[0].runs(job));
}
