//! A gate whose log was restored from a backup, and has lost where jobs were placed.

use onward_core::event::Event as ManagerEvent;
use onward_core::fence::Term;
use onward_core::gate::TargetState;
use onward_core::gate::event::Event;
use onward_core::gate::input::Input;
use onward_core::gate::message::{Frame, FromDatacenter, Hello, JobOutline, JobReport, WorkflowCounts};
use onward_core::health::DatacenterCounts;
use onward_core::ids::StreamId;
use onward_core::job::{JobState, TimeoutPolicy};
use onward_core::timeout::ExtensionTotals;

use super::world::{Habit, World, impatient, name, secs};

#[test]
fn a_job_that_was_placed_again_ends_where_it_is_not_meant_to_be_any_more() {
    let mut world = World::new(&["a", "b"]);
    world.cut(0);
    world.cut(1);
    world.advance(secs(40));
    let job = world.submit(impatient(&[]));
    world.mend(0);
    world.advance(secs(2));
    assert!(world.datacenters[0].runs(job), "it was placed in a");
    world.kill_gate();
    let placed = |event: &Event| matches!(event, Event::JobPlaced { .. });
    let kept = world.gate_log.iter().position(|stamped| placed(&stamped.event)).expect("it waited first");
    world.gate_log.truncate(kept);
    world.links = vec![false, true];
    world.start_gate();
    world.advance(secs(2));
    assert!(world.datacenters[1].runs(job), "it was placed again");
    world.mend(0);
    world.advance(secs(2));
    assert!(!world.datacenters[0].runs(job), "what is a's is nobody's");
    let epochs: Vec<u64> = world.datacenters[0]
        .obeyed()
        .filter_map(|event| match event {
            ManagerEvent::CancelAsked { epoch, .. } => epoch.map(|epoch| epoch.n),
            _ => None,
        })
        .collect();
    assert_eq!(epochs, [2], "under the epoch of the gate that leads");
    assert_eq!(world.target(job, "b"), TargetState::Running);
    world.datacenters[1].habit = Habit::Finish;
    world.advance(secs(10));
    assert_eq!(world.state(job), JobState::Succeeded, "it is what b has made of it");
}

#[test]
fn a_job_that_waits_is_where_a_datacenter_has_it() {
    let mut world = World::new(&["a"]);
    world.cut(0);
    world.advance(secs(40));
    let job = world.submit(impatient(&[]));
    assert_eq!(world.state(job), JobState::Waiting);
    let stream = StreamId(9_999);
    // It has no room, and would not be chosen.
    let hello = Hello { datacenter: name("b"), life: 1, epoch: None, counts: DatacenterCounts::default() };
    let report = JobReport {
        job,
        outline: JobOutline {
            kind: name("k"),
            queue: name("default"),
            targets: Box::new([name("b")]),
            policy: TimeoutPolicy::Any,
            timeout: secs(60),
            max_extension: secs(60),
        },
        epoch: Some(world.epoch(1)),
        elapsed: Some(secs(1)),
        extended: ExtensionTotals::default(),
        since_progress: None,
        state: JobState::Running,
        timed_out: None,
        workflows: WorkflowCounts::default(),
        attempts: 1,
    };
    world.step_gate(Input::StreamOpened { stream, datacenter: name("b") });
    let frames = [FromDatacenter::Hello(hello), FromDatacenter::Progress(vec![report])];
    for (number, message) in (1..).zip(frames) {
        world.step_gate(Input::Datacenter { stream, frame: Frame { term: Term::new(1), number, message } });
    }
    let view = world.view(job);
    assert_eq!(view.targets.len(), 1);
    assert_eq!((view.targets[0].datacenter.as_str(), view.targets[0].state), ("b", TargetState::Running));
}
