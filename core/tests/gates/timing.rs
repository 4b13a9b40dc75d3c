//! When things are said and decided: at once, or not before their time.

use std::collections::BTreeSet;

use onward_core::gate::input::Call;
use onward_core::gate::message::{FromDatacenter, Placement, ToDatacenter};
use onward_core::health::{ProgressSignal, Verdict};
use onward_core::ids::{JobId, StreamId};
use onward_core::job::{Draft, OnStuck};
use onward_core::message::EndReport;
use onward_core::time::Wall;

use super::world::{Habit, World, impatient, secs};

#[test]
fn a_gate_that_takes_over_ends_no_job_before_anybody_had_time_to_be_heard() {
    let mut world = World::new(&["a"]);
    let job = world.submit(Draft { timeout: Some(secs(60)), ..impatient(&["a"]) });
    world.advance(secs(50));
    world.kill_gate();
    world.advance(secs(20));
    world.links[0] = false;
    world.start_gate();
    let from = world.now.mono;
    world.until(secs(20), "its time is over", |world| world.declared(job).is_some());
    let took = world.now.mono.since(from);
    assert!((secs(15)..secs(16)).contains(&took), "the downtime counts, and the grace is kept: {took:?}");
}

#[test]
fn that_a_job_has_timed_out_is_said_at_once_and_with_every_report() {
    let mut world = World::with(1, &["a"], |settings| {
        settings.gate.progress_every = secs(50);
        settings.gate.silent_after = secs(400);
        settings.gate.fallback_after = secs(400);
    });
    world.advance(secs(7));
    let job = world.submit(impatient(&["a"]));
    world.datacenters[0].habit = Habit::Hang;
    world.until(secs(200), "it is declared", |world| world.declared(job).is_some());
    let late = world.declared(job).unwrap().since(world.datacenters[0].timed_out_locally(job));
    assert!(late < secs(1), "not with the next report: {late:?}");
    // Another, whose first word is lost.
    let job = world.submit(impatient(&["a"]));
    world.advance(secs(100));
    world.weather.drops = 100;
    world.until(secs(40), "it is stuck", |world| world.datacenters[0].timed_out_locally(job) > Wall::ZERO);
    world.advance(secs(1));
    world.weather.drops = 0;
    assert_eq!(world.declared(job), None);
    world.until(secs(60), "it is declared by a report", |world| world.declared(job).is_some());
}

/// What a gate sends down to a datacenter, by kind.
fn orders(world: &World, is_it: fn(&ToDatacenter) -> bool) -> usize {
    world.sent.iter().filter(|(_, message)| is_it(message)).count()
}

#[test]
fn an_order_is_repeated_until_its_datacenter_has_said_how_the_job_ended() {
    let mut world = World::new(&["a"]);
    let job = world.submit(impatient(&["a"]));
    world.advance(secs(2));
    world.datacenters[0].is_stubborn = true;
    world.call(Call::Cancel { job }).unwrap();
    world.advance(secs(35));
    let cancels = |world: &World| orders(world, |message| matches!(message, ToDatacenter::Cancel { .. }));
    assert!((4..=5).contains(&cancels(&world)), "at once, and every ten seconds: {}", cancels(&world));
    let now = world.now;
    let report = EndReport::Fail { error: "no".into(), retryable: false, delay: None };
    world.datacenters[0].settle_all(&report, now);
    world.carry(0);
    world.advance(secs(1));
    let before = cancels(&world);
    world.advance(secs(60));
    assert_eq!(cancels(&world), before, "and then no more");
}

#[test]
fn a_gate_that_waits_for_a_handler_to_stop_has_nothing_to_forward() {
    let mut world = World::new(&["a"]);
    let job = world.submit(impatient(&["a"]));
    world.advance(secs(2));
    world.datacenters[0].is_stubborn = true;
    world.call(Call::Cancel { job }).unwrap();
    for _ in 0..3 {
        world.advance(secs(60));
        assert_eq!(world.gate().own_health().demand, 0, "a cancel is no submission");
        let own = world.gate().own_judgement();
        assert_eq!((own.verdict, own.signals.progress), (Verdict::Healthy, ProgressSignal::Idle));
    }
    let owed: usize = world.gate().datacenters().map(|known| known.owed).sum();
    assert_eq!(owed, 1, "it is shown as owed all the same");
    // A submission that nobody answers is one.
    world.weather.drops = 100;
    world.submit(impatient(&["a"]));
    world.advance(secs(2));
    assert_eq!(world.gate().own_health().demand, 1);
}

#[test]
fn of_more_final_statuses_than_a_round_takes_each_has_its_turn() {
    let mut world = World::new(&["a"]);
    world.kill_gate();
    let (stream, epoch) = (StreamId(9_999), world.epoch(1));
    let now = world.now;
    let datacenter = &mut world.datacenters[0];
    datacenter.open_gate(stream, now);
    datacenter.hear_gate(stream, ToDatacenter::Welcome { epoch }, now);
    let jobs: BTreeSet<JobId> = (1..=600).map(JobId::from_u128).collect();
    for job in jobs.iter().copied() {
        let placement = Placement { job, epoch, again: false, waited: secs(0), draft: impatient(&["a"]) };
        datacenter.hear_gate(stream, ToDatacenter::Submit(Box::new(placement)), now);
        datacenter.hear_gate(stream, ToDatacenter::Cancel { job, epoch }, now);
    }
    let mut said = Vec::new();
    for _ in 0..3 {
        world.jump(secs(10));
        let now = world.now;
        world.datacenters[0].to_gate.clear();
        while world.datacenters[0].next_wakeup().is_some_and(|at| at <= now.mono) {
            world.datacenters[0].wake(now);
        }
        said.extend(world.datacenters[0].to_gate.iter().filter_map(|(_, frame)| match &frame.message {
            FromDatacenter::Final(status) => Some(status.report.job),
            _ => None,
        }));
    }
    assert!(said.len() < 3 * jobs.len(), "a round does not take them all");
    let heard: BTreeSet<JobId> = said.into_iter().collect();
    assert_eq!(heard.len(), jobs.len(), "the gate answers none of them, and hears of each");
}

#[test]
fn a_final_status_is_repeated_until_a_gate_has_heard_it() {
    let mut world = World::new(&["a"]);
    let job = world.submit(impatient(&["a"]));
    world.advance(secs(2));
    world.weather.drops = 100;
    world.datacenters[0].habit = Habit::Finish;
    world.advance(secs(6));
    world.weather.drops = 0;
    world.until(secs(11), "it is heard with a round", |world| world.gate().job(job).unwrap().job.has_ended());
    world.advance(secs(15));
    let finals = |world: &World| {
        let frames = world.datacenters[0].to_gate.iter();
        frames.filter(|(_, frame)| matches!(frame.message, FromDatacenter::Final(_))).count()
    };
    // Nobody carries what it says from here on.
    world.links[0] = false;
    world.jump(secs(11));
    let now = world.now;
    world.datacenters[0].wake(now);
    assert_eq!(finals(&world), 0, "and then no more");
}

#[test]
fn an_attempt_that_is_stuck_is_handed_out_again_without_asking_a_gate_while_attempts_are_left() {
    let mut world = World::new(&["a"]);
    let job = world.submit(Draft { on_stuck: OnStuck::Retry, ..impatient(&["a"]) });
    world.datacenters[0].habit = Habit::Hang;
    world.advance(secs(200));
    assert_eq!(world.datacenters[0].cancelled.len(), 1, "its handler was told to stop");
    assert_eq!(world.datacenters[0].holding.len(), 1, "and another has it");
    assert_eq!(world.datacenters[0].timed_out_locally(job), Wall::ZERO);
    assert_eq!(world.declared(job), None);
}

/// Frames with reports that the datacenter has sent on this stream, and whether they are a new leader's first.
fn rounds(world: &World, from: usize) -> Vec<(bool, Vec<JobId>)> {
    let reports = |message: &FromDatacenter| match message {
        FromDatacenter::Progress(reports) => Some((false, reports.iter().map(|report| report.job).collect())),
        FromDatacenter::LeaderTransfer(reports) => Some((true, reports.iter().map(|report| report.job).collect())),
        _ => None,
    };
    world.heard[from..].iter().filter_map(|(_, message)| reports(message)).collect()
}

#[test]
fn every_job_is_reported_in_each_round_in_frames_of_256_and_first_as_a_transfer() {
    let mut world = World::new(&["a"]);
    world.advance(secs(4));
    let jobs: Vec<JobId> = (0..600).map(|_| world.submit(impatient(&["a"]))).collect();
    let wanted: BTreeSet<JobId> = jobs.iter().copied().collect();
    world.advance(secs(8));
    let round_of = |world: &mut World| {
        let from = world.heard.len();
        world.advance(secs(10));
        rounds(world, from)
    };
    let check = |round: &[(bool, Vec<JobId>)], is_transfer: bool| {
        let sizes: Vec<usize> = round.iter().map(|(_, jobs)| jobs.len()).collect();
        assert_eq!(sizes, [256, 256, 88]);
        assert!(round.iter().all(|(of_transfer, _)| *of_transfer == is_transfer), "transfer: {is_transfer}");
        let reported: BTreeSet<JobId> = round.iter().flat_map(|(_, jobs)| jobs.iter().copied()).collect();
        assert_eq!(reported, wanted, "every one, once");
    };
    for _ in 0..3 {
        check(&round_of(&mut world), false);
    }
    world.disconnect(0);
    world.datacenters[0].crash();
    let now = world.now;
    world.datacenters[0].take_over(now);
    let from = world.heard.len();
    world.advance(secs(15));
    // The gate that lets the leader in gets a round of its own, and then the common ones.
    let all = rounds(&world, from);
    check(&all[..3], true);
    check(&all[3..6], false);
}
