//! Epochs rise with every gate that takes the seat, whatever a datacenter has seen, and fence what is decided.

use onward_core::event::Event as ManagerEvent;
use onward_core::fence::Term;
use onward_core::gate::input::{Call, Input};
use onward_core::gate::message::{
    Correction, Frame, FromDatacenter, Hello, JobOutline, JobReport, Placement, StaleToken, SubmitRefusal,
    ToDatacenter, WorkflowCounts,
};
use onward_core::health::DatacenterCounts;
use onward_core::ids::{JobId, StreamId};
use onward_core::job::{Draft, JobState, TimeoutPolicy};
use onward_core::refusal::RefusalKind;
use onward_core::timeout::{ExtensionTotals, TimeoutReason};

use super::world::{World, impatient, name, secs, with_policy};

fn restart(world: &mut World) -> u64 {
    world.kill_gate();
    world.start_gate();
    world.advance(secs(2));
    world.gate().view().epoch.n
}

#[test]
fn each_gate_has_a_higher_epoch_than_the_one_before_also_after_a_rise() {
    let mut world = World::new(&["a"]);
    world.gate_term = 9;
    let first = restart(&mut world);
    assert_eq!(first, 10);
    world.submit(impatient(&["a"]));
    world.advance(secs(2));
    world.lose_gate();
    world.start_gate();
    world.advance(secs(2));
    let raised = world.gate().view().epoch.n;
    assert!(raised >= first, "{raised}");
    let mut before = raised;
    for _ in 0..3 {
        let next = restart(&mut world);
        assert!(next > before, "{next} after {before}");
        before = next;
    }
    world.snapshot_gate();
    assert!(restart(&mut world) > before, "from a snapshot too");
}

#[test]
fn the_highest_epoch_of_all_is_survived() {
    let mut world = World::new(&["a"]);
    let (stream, epoch) = (StreamId(9_999), Some(world.epoch(u64::MAX)));
    let frame = |number, message| Frame { term: Term::new(1), number, message };
    let hello = Hello { datacenter: name("b"), life: 1, epoch, counts: DatacenterCounts::default() };
    let report = JobReport {
        job: JobId::from_u128(42),
        outline: JobOutline {
            kind: name("k"),
            queue: name("default"),
            targets: Box::new([name("b")]),
            policy: TimeoutPolicy::Any,
            timeout: secs(60),
            max_extension: secs(60),
        },
        epoch,
        elapsed: Some(secs(1)),
        extended: ExtensionTotals::default(),
        since_progress: None,
        state: JobState::Running,
        timed_out: None,
        workflows: WorkflowCounts::default(),
        attempts: 1,
    };
    world.step_gate(Input::StreamOpened { stream, datacenter: name("b") });
    for number in 1..3 {
        let hello = FromDatacenter::Hello(hello.clone());
        world.step_gate(Input::Datacenter { stream, frame: frame(number, hello) });
    }
    world.step_gate(Input::Datacenter { stream, frame: frame(3, FromDatacenter::Progress(vec![report])) });
    assert_eq!(world.state(JobId::from_u128(42)), JobState::Running);
    assert_eq!(world.gate().view().epoch.n, u64::MAX);
    assert_eq!(restart(&mut world), u64::MAX);
}

#[test]
fn a_withdraw_under_a_stale_epoch_is_refused() {
    let mut world = World::new(&["a"]);
    assert_eq!(restart(&mut world), 2);
    let (job, stream, now) = (JobId::from_u128(42), world.stream(0), world.now);
    let withdrawn = |world: &World| {
        let mut events = world.datacenters[0].log.iter();
        events.any(|stamped| matches!(stamped.event, ManagerEvent::JobWithdrawn { .. }))
    };
    let epoch = world.epoch(1);
    world.datacenters[0].hear_gate(stream, ToDatacenter::Withdraw { job, epoch }, now);
    assert!(!withdrawn(&world));
    assert_eq!(world.datacenters[0].manager.refusals().of(RefusalKind::StaleEpoch), 1);
    let epoch = world.epoch(2);
    world.datacenters[0].hear_gate(stream, ToDatacenter::Withdraw { job, epoch }, now);
    assert!(withdrawn(&world));
}

#[test]
fn a_submit_under_a_stale_epoch_is_refused_for_now() {
    let mut world = World::new(&["a"]);
    assert_eq!(restart(&mut world), 2);
    let (job, stream, now) = (JobId::from_u128(42), world.stream(0), world.now);
    for (again, n) in [(false, 1), (true, 1), (true, 2)] {
        let draft = impatient(&["a"]);
        let placement = Placement { job, epoch: world.epoch(n), again, waited: secs(0), draft };
        world.datacenters[0].hear_gate(stream, ToDatacenter::Submit(Box::new(placement)), now);
        assert_eq!(world.datacenters[0].runs(job), n == 2, "{again} {n}");
        let answer = world.datacenters[0].to_gate.iter().find_map(|(_, frame)| match &frame.message {
            FromDatacenter::Submitted { job: of, answer } if *of == job => Some(answer.clone()),
            _ => None,
        });
        match answer.expect("it is answered") {
            Ok(()) => assert_eq!(n, 2),
            Err(SubmitRefusal::Refused { kind, .. }) => assert_eq!((kind, n), (RefusalKind::StaleEpoch, 1)),
            Err(refusal) => panic!("{refusal:?}"),
        }
        world.datacenters[0].to_gate.clear();
    }
    assert_eq!(world.datacenters[0].manager.refusals().of(RefusalKind::StaleEpoch), 2);
}

#[test]
fn a_gate_that_is_told_of_a_newer_one_ends_no_job_by_it() {
    let mut world = World::new(&["a"]);
    world.weather.drops = 100;
    let job = world.submit(impatient(&["a"]));
    let stream = world.stream(0);
    for (number, kind, ends) in [(10_000, RefusalKind::StaleEpoch, false), (10_001, RefusalKind::Invalid, true)] {
        let answer = Err(SubmitRefusal::Refused { kind, text: "no".into() });
        let message = FromDatacenter::Submitted { job, answer };
        world.step_gate(Input::Datacenter { stream, frame: Frame { term: Term::new(1), number, message } });
        assert_eq!(world.state(job) == JobState::Failed, ends, "{kind:?}");
    }
}

#[test]
fn time_that_is_given_under_a_stale_epoch_is_refused_and_corrected() {
    let mut world = World::new(&["a"]);
    assert_eq!(restart(&mut world), 2);
    let job = world.submit(Draft { timeout: Some(secs(60)), ..impatient(&["a"]) });
    world.call(Call::Extend { job, by: secs(500), reason: "slow".into(), request: name("r") }).unwrap();
    // What the gate says of it when the time is over at the datacenter is lost.
    world.advance(secs(50));
    world.weather.drops = 100;
    world.advance(secs(15));
    let (stream, now) = (world.stream(0), world.now);
    let given = |world: &World| {
        let mut events = world.datacenters[0].log.iter();
        events.any(|stamped| matches!(stamped.event, ManagerEvent::TimeGiven { .. }))
    };
    let epoch = world.epoch(1);
    world.datacenters[0].hear_gate(stream, ToDatacenter::Remaining { job, epoch, remaining: secs(900) }, now);
    assert!(!given(&world));
    assert_eq!(world.datacenters[0].manager.refusals().of(RefusalKind::StaleEpoch), 1);
    let answer = world.datacenters[0].to_gate.last().map(|(_, frame)| &frame.message);
    assert!(matches!(answer, Some(FromDatacenter::Correction(correction)) if correction.stale == StaleToken::Epoch));
    let epoch = world.epoch(2);
    world.datacenters[0].hear_gate(stream, ToDatacenter::Remaining { job, epoch, remaining: secs(400) }, now);
    assert!(given(&world));
}

#[test]
fn what_a_correction_says_is_taken_in_and_the_order_is_sent_again_at_once() {
    let mut world = World::new(&["a"]);
    let job = world.submit(impatient(&["a"]));
    world.advance(secs(2));
    let (stream, now) = (world.stream(0), world.now);
    world.datacenters[0].hear_gate(stream, ToDatacenter::Ask { jobs: vec![job] }, now);
    let answer = world.datacenters[0].to_gate.pop().expect("it is there").1.message;
    let FromDatacenter::Progress(reports) = answer else { panic!("{answer:?}") };
    world.weather.drops = 100;
    world.call(Call::Cancel { job }).unwrap();
    for (number, stale, seen) in [(10_000, StaleToken::Term, 1), (10_001, StaleToken::Epoch, 50)] {
        let report = JobReport { epoch: Some(world.epoch(seen)), ..reports[0].clone() };
        let message = FromDatacenter::Correction(Box::new(Correction { stale, report }));
        world.step_gate(Input::Datacenter { stream, frame: Frame { term: Term::new(1), number, message } });
    }
    let cancels = world.sent.iter().filter_map(|(_, message)| match message {
        ToDatacenter::Cancel { epoch, .. } => Some(epoch.n),
        _ => None,
    });
    assert_eq!(cancels.collect::<Vec<_>>(), [1, 1, 51], "above what was seen");
}

#[test]
fn a_report_that_was_overtaken_by_a_newer_one_decides_nothing() {
    let mut world = World::new(&["a"]);
    let job = world.submit(impatient(&["a"]));
    world.advance(secs(2));
    let (stream, now) = (world.stream(0), world.now);
    world.datacenters[0].hear_gate(stream, ToDatacenter::Ask { jobs: vec![job] }, now);
    let answer = world.datacenters[0].to_gate.pop().expect("it is there").1.message;
    let FromDatacenter::Progress(reports) = answer else { panic!("{answer:?}") };
    let stuck = JobReport { timed_out: Some(TimeoutReason::Stuck), ..reports[0].clone() };
    for (number, is_declared) in [(0, false), (10_000, true)] {
        let message = FromDatacenter::TimedOut(Box::new(stuck.clone()));
        world.step_gate(Input::Datacenter { stream, frame: Frame { term: Term::new(1), number, message } });
        assert_eq!(world.declared(job).is_some(), is_declared);
    }
}

#[test]
fn a_job_that_is_rebuilt_has_all_that_decides_about_it() {
    let mut world = World::new(&["a", "b"]);
    let draft = Draft { timeout: Some(secs(500)), max_extension: Some(secs(77)), ..impatient(&["a", "b"]) };
    let job = world.submit(with_policy(TimeoutPolicy::Majority, draft));
    world.advance(secs(30));
    let now = world.now;
    world.datacenters[1].request_extension(0.5, now);
    world.carry(1);
    world.advance(secs(12));
    let before = world.gate().state().job(job).unwrap().clone();
    world.lose_gate();
    world.start_gate();
    world.advance(secs(12));
    let after = world.gate().state().job(job).unwrap();
    assert_eq!((&after.outline, after.extended), (&before.outline, before.extended));
    assert_eq!(after.targets.len(), 2);
    assert_eq!(after.n, 2, "above what its datacenters had seen");
    let apart = after.started_at.since(before.started_at).max(before.started_at.since(after.started_at));
    assert!(apart < secs(1), "{apart:?}");
}
