//! The vertical slice: submit, lease, beat, succeed.

use crate::rig::*;
use onward_core::job::JobState;
use onward_core::message::Beat;

#[test]
fn a_job_goes_from_submission_to_success() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["resize"]);
    let id = rig.submit(job("resize"));
    let assignment = rig.assigned(session).remove(0);
    assert_eq!(assignment.claim.fence, fence(1, 1));
    assert_eq!(assignment.attempt, 1);
    assert_eq!(rig.state_of(id), JobState::Running);

    rig.advance(secs(50));
    let beat = rig.beat(session, Beat::progress(assignment.claim, 3)).unwrap();
    assert_eq!(beat.lease_remaining, secs(300));
    assert!(!beat.cancel);
    rig.succeed(session, assignment.claim).unwrap();
    assert_eq!(rig.state_of(id), JobState::Succeeded);
    assert_eq!(rig.to_archive, [id]);

    rig.step(onward_core::input::Input::Archived { jobs: vec![id] });
    assert_eq!(rig.manager.job(id), None);
    assert_eq!(rig.manager.state().job_count(), 0);
    rig.restart(secs(1));
}

#[test]
fn work_that_was_there_first_waits_for_a_worker() {
    let mut rig = Rig::new();
    let first = rig.submit(job("k"));
    let second = rig.submit(job("k"));
    assert_eq!(rig.state_of(first), JobState::Ready);
    assert_eq!(rig.view(first).workflows[0].blocked, Some("no_capable_worker"));
    let session = rig.worker("w", 1, 1, &["k"]);
    let claim = rig.claim(session);
    assert_eq!(claim.job, first);
    rig.succeed(session, claim).unwrap();
    assert_eq!(rig.claim(session).job, second, "the freed slot is filled in the same step");
}
