//! The datacenters that a gate knows: those that it has heard, and those that an open job names.

use onward_core::fence::Term;
use onward_core::gate::effect::GateNotice;
use onward_core::gate::input::{Call, Input};
use onward_core::gate::message::{
    FinalStatus, Frame, FromDatacenter, Hello, JobOutline, JobReport, Outcome, WorkflowCounts,
};
use onward_core::health::DatacenterCounts;
use onward_core::ids::{JobId, StreamId};
use onward_core::input::Submission;
use onward_core::job::draft::{DraftProblem, Invalid};
use onward_core::job::{JobState, TimeoutPolicy};
use onward_core::limits::{Limit, LimitMet};
use onward_core::refusal::{Refusal, RefusalKind};
use onward_core::timeout::ExtensionTotals;

use super::world::{World, impatient, name, secs};

const MET: LimitMet = LimitMet { limit: Limit::Datacenters, max: 2 };

fn world() -> World {
    World::with(1, &["a"], |settings| settings.limits.datacenters = 2)
}

/// A manager of a datacenter says hello. Gives whether it is known now.
fn greet(world: &mut World, datacenter: &str, stream: u64) -> bool {
    let (stream, datacenter) = (StreamId(stream), name(datacenter));
    world.step_gate(Input::StreamOpened { stream, datacenter: datacenter.clone() });
    let hello = Hello { datacenter: datacenter.clone(), life: 1, epoch: None, counts: DatacenterCounts::default() };
    let frame = Frame { term: Term::new(1), number: 1, message: FromDatacenter::Hello(hello) };
    world.step_gate(Input::Datacenter { stream, frame });
    world.gate().state().datacenter(&datacenter).is_some()
}

#[test]
fn names_that_only_jobs_have_do_not_turn_a_datacenter_away() {
    let mut world = world();
    world.submit(impatient(&["misspelt"]));
    assert!(greet(&mut world, "b", 9_001));
    assert!(world.notices.iter().all(|notice| !matches!(notice, GateNotice::TooManyDatacenters { .. })));
    assert!(!greet(&mut world, "c", 9_002), "two are heard");
    assert!(
        world.notices.contains(&GateNotice::TooManyDatacenters { datacenter: name("c"), met: MET }),
        "and it is said"
    );
}

#[test]
fn a_name_that_only_jobs_have_goes_with_the_last_of_them() {
    let mut world = world();
    let jobs = [world.submit(impatient(&["misspelt"])), world.submit(impatient(&["misspelt", "a"]))];
    let other = || Call::Submit(vec![Submission { id: JobId::from_u128(9), draft: impatient(&["other"]) }]);
    let refused = Refusal::InBatch { index: 0, cause: Box::new(Refusal::Limited(MET)) };
    for job in jobs {
        assert_eq!(world.call(other()), Err(refused.clone()));
        world.call(Call::Cancel { job }).unwrap();
        world.advance(secs(2));
        assert_eq!(world.state(job), JobState::Cancelled, "where nobody was ever heard, nothing has to be confirmed");
    }
    assert!(world.call(other()).is_ok());
    let known: Vec<String> = world.gate().datacenters().map(|known| known.name.to_string()).collect();
    assert_eq!(known, ["a", "other"]);
}

#[test]
fn the_names_of_a_batch_are_counted_together() {
    let mut world = world();
    let submission = |id, text| Submission { id: JobId::from_u128(id), draft: impatient(&[text]) };
    let refused = Refusal::InBatch { index: 1, cause: Box::new(Refusal::Limited(MET)) };
    assert_eq!(world.call(Call::Submit(vec![submission(1, "x"), submission(2, "y")])), Err(refused));
    assert!(world.call(Call::Submit(vec![submission(1, "x"), submission(2, "x")])).is_ok());
}

#[test]
fn a_job_is_rebuilt_when_there_is_room_for_it() {
    let mut world = World::with(1, &["a"], |settings| settings.limits.jobs = 2);
    let jobs: Vec<JobId> = (0..2).map(|_| world.submit(impatient(&["a"]))).collect();
    world.advance(secs(2));
    world.lose_gate();
    world.links[0] = false;
    world.start_gate();
    let own = world.submit(impatient(&["a"]));
    world.mend(0);
    world.advance(secs(15));
    assert_eq!(world.gate().state().open_jobs(), 2, "the limit holds");
    assert!(world.gate().refusals().of(RefusalKind::Limited) > 0, "and it is counted");
    world.call(Call::Cancel { job: own }).unwrap();
    world.advance(secs(15));
    assert!(jobs.iter().all(|job| world.gate().job(*job).is_some()), "reports are repeated");
}

#[test]
fn a_job_that_names_a_datacenter_twice_is_refused() {
    let mut world = World::new(&["a", "b"]);
    let submission = Submission { id: JobId::from_u128(9), draft: impatient(&["a", "b", "a"]) };
    let invalid = Invalid { field: "datacenters", problem: DraftProblem::NamedTwice(name("a")) };
    let refused = Refusal::InBatch { index: 0, cause: Box::new(Refusal::Invalid(invalid)) };
    assert_eq!(world.call(Call::Submit(vec![submission])), Err(refused));
}

#[test]
fn a_job_whose_report_names_a_datacenter_twice_is_rebuilt_with_one_target_and_ends() {
    let mut world = World::new(&["a"]);
    let (job, stream) = (JobId::from_u128(42), 9_001);
    assert!(greet(&mut world, "b", stream));
    let report = JobReport {
        job,
        outline: JobOutline {
            kind: name("k"),
            queue: name("default"),
            targets: Box::new([name("b"), name("b")]),
            policy: TimeoutPolicy::Any,
            timeout: secs(60),
            max_extension: secs(60),
        },
        epoch: None,
        elapsed: Some(secs(1)),
        extended: ExtensionTotals::default(),
        since_progress: None,
        state: JobState::Running,
        timed_out: None,
        workflows: WorkflowCounts::default(),
        attempts: 1,
    };
    let mut say = |number, message| {
        let frame = Frame { term: Term::new(1), number, message };
        world.step_gate(Input::Datacenter { stream: StreamId(stream), frame });
    };
    say(2, FromDatacenter::Progress(vec![report.clone()]));
    let report = JobReport { state: JobState::Succeeded, ..report };
    let status = FinalStatus { report, outcome: Outcome::Succeeded, result: None, error: None };
    say(3, FromDatacenter::Final(Box::new(status)));
    assert_eq!(world.view(job).targets.len(), 1);
    assert_eq!(world.state(job), JobState::Succeeded);
}
