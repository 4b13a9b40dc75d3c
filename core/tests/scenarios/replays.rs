//! Dead letters that are replayed from the failed workflow on: what has succeeded does not run again.

use crate::rig::*;
use onward_core::effect::Answer;
use onward_core::ids::{Claim, JobId, SessionId};
use onward_core::input::{Call, Input, ReplayFrom};
use onward_core::job::{Draft, JobState, LimitDraft, WorkflowDraft};
use onward_core::message::{Assignment, EndReport};
use onward_core::payload::{Digest, Payload};
use onward_core::refusal::Refusal;

fn large() -> Payload {
    Payload::stored(Digest::of(b"a large result"), 14)
}

/// `cut` fails; `sum` has succeeded beside it, and `join` waits for both.
fn graph() -> Draft {
    let workflow = |(name, after): (&str, &[&str])| WorkflowDraft {
        name: Some(name.into()),
        kind: "k".into(),
        payload: bytes("{}").into(),
        content_type: None,
        after: after.iter().map(|name| (*name).into()).collect(),
    };
    let all: [(&str, &[&str]); 4] =
        [("fetch", &[]), ("cut", &["fetch"]), ("sum", &["fetch"]), ("join", &["cut", "sum"])];
    Draft {
        workflows: all.into_iter().map(workflow).collect(),
        limits: vec![LimitDraft::new("disk", 2)],
        ..Draft::default()
    }
}

fn succeed_with(rig: &mut Rig, session: SessionId, claim: Claim, result: Payload) {
    rig.settle(session, claim, EndReport::Succeed { result }).unwrap();
}

fn dead_letter(rig: &mut Rig, session: SessionId) -> JobId {
    let id = rig.submit(graph());
    let fetch = rig.claim(session);
    succeed_with(rig, session, fetch, large());
    let [cut, sum]: [Assignment; 2] = rig.assigned(session).try_into().unwrap();
    succeed_with(rig, session, sum.claim, bytes("the sum").into());
    rig.fail_for_good(session, cut.claim).unwrap();
    assert_eq!(states(rig, id), ["succeeded", "failed", "succeeded", "cancelled"]);
    id
}

fn states(rig: &Rig, id: JobId) -> Vec<&'static str> {
    rig.view(id).workflows.iter().map(|workflow| workflow.state.word()).collect()
}

fn replay(rig: &mut Rig, job: JobId, request: &str, from: ReplayFrom) -> Result<JobId, Refusal> {
    let new_id = rig.new_id();
    match rig.call(Call::ReplayDeadLetter { job, new_id, request: name(request), from })? {
        Answer::Retried { job } => Ok(job),
        other => panic!("a replay is not answered with {other:?}"),
    }
}

/// Only `cut` runs, with the result of `fetch`; then `join`, with that of `sum`.
fn finish(rig: &mut Rig, session: SessionId, id: JobId) {
    let [cut]: [Assignment; 1] = rig.assigned(session).try_into().unwrap();
    assert_eq!((cut.claim.job, cut.claim.workflow), (id, 1));
    assert_eq!(cut.inputs, [(name("fetch"), large())]);
    succeed_with(rig, session, cut.claim, bytes("the cut").into());
    let [join]: [Assignment; 1] = rig.assigned(session).try_into().unwrap();
    assert_eq!(join.inputs, [(name("cut"), bytes("the cut").into()), (name("sum"), bytes("the sum").into())]);
    rig.succeed(session, join.claim).unwrap();
    assert_eq!(rig.state_of(id), JobState::Succeeded);
}

#[test]
fn what_has_succeeded_does_not_run_again_and_its_result_is_handed_on() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 9, &["k"]);
    let dead = dead_letter(&mut rig, session);
    let again = replay(&mut rig, dead, "r", ReplayFrom::Failed).unwrap();
    assert_eq!(states(&rig, again), ["succeeded", "running", "succeeded", "waiting"]);
    let view = rig.view(again);
    assert_eq!((view.retry_of, view.dead_letter), (Some(dead), false));
    let taken: Vec<bool> = view.workflows.iter().map(|workflow| workflow.taken_over).collect();
    assert_eq!(taken, [true, false, true, false]);
    assert!(rig.view(dead).workflows.iter().all(|workflow| !workflow.taken_over));
    assert_eq!(replay(&mut rig, dead, "r", ReplayFrom::Failed), Ok(again), "the same request again");
    assert_eq!(replay(&mut rig, dead, "other", ReplayFrom::Failed), Err(Refusal::NotADeadLetter));
    finish(&mut rig, session, again);
}

#[test]
fn a_request_that_is_repeated_from_elsewhere_is_another_request() {
    use ReplayFrom::{Failed, Start};
    for (from, other) in [(Failed, Start), (Start, Failed)] {
        let mut rig = Rig::new();
        let session = rig.worker("w", 1, 9, &["k"]);
        let dead = dead_letter(&mut rig, session);
        let again = replay(&mut rig, dead, "r", from).unwrap();
        let dump = rig.manager.state().dump();
        assert_eq!(replay(&mut rig, dead, "r", other), Err(Refusal::Conflict), "{from:?}, then {other:?}");
        assert_eq!(rig.manager.state().dump(), dump);
        let image = rig.manager.image(dead).unwrap();
        assert_eq!(image.replayed_as(&name("r"), other), Some(Err(Refusal::Conflict)), "nor from the archive");
        assert_eq!(image.replayed_as(&name("r"), from), Some(Ok(again)));
        assert_eq!(image.replayed_as(&name("s"), from), None);
        assert_eq!(replay(&mut rig, dead, "r", from), Ok(again));
    }
}

#[test]
fn a_replay_from_the_start_runs_every_workflow() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 9, &["k"]);
    let dead = dead_letter(&mut rig, session);
    let again = replay(&mut rig, dead, "r", ReplayFrom::Start).unwrap();
    assert_eq!(states(&rig, again), ["running", "waiting", "waiting", "waiting"]);
    assert!(rig.view(again).workflows.iter().all(|workflow| !workflow.taken_over));
}

#[test]
fn a_job_with_one_workflow_is_replayed_whole() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let dead = rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.fail_for_good(session, claim).unwrap();
    let again = replay(&mut rig, dead, "r", ReplayFrom::Failed).unwrap();
    assert_eq!(rig.claim(session).job, again);
}

/// The content belongs to both jobs, and goes with the last of them.
#[test]
fn what_was_taken_over_stays_when_the_original_is_archived_and_after_restarts() {
    for from_snapshot in [false, true] {
        let mut rig = Rig::new();
        let session = rig.worker("w", 1, 9, &["k"]);
        let dead = dead_letter(&mut rig, session);
        let again = replay(&mut rig, dead, "r", ReplayFrom::Failed).unwrap();
        assert_eq!(rig.to_archive, [dead]);
        rig.step(Input::Archived { jobs: vec![dead] });
        assert!(rig.manager.job(dead).is_none());
        if from_snapshot {
            rig.manager.begin_snapshot();
            let records = rig.manager.snapshot_next(1_000).records;
            rig.restart_from(&records, secs(1));
        } else {
            rig.restart(secs(1));
        }
        assert_eq!(rig.unreferenced, [], "the new job refers to it");
        let session = rig.hello("w", "2", 2, 9, &["k"], vec![]);
        finish(&mut rig, session, again);
        let image = rig.manager.image(again).unwrap();
        let kept = image.workflows[0].past.as_ref().unwrap().attempts[0].result();
        assert_eq!(kept, Some(&large()), "the archive gets it with the new job");
        rig.step(Input::Archived { jobs: vec![again] });
        assert_eq!(rig.unreferenced, [Digest::of(b"a large result")]);
    }
}

#[test]
fn a_replay_that_fails_again_is_replayed_from_where_it_failed() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 9, &["k"]);
    let first = dead_letter(&mut rig, session);
    let second = replay(&mut rig, first, "r", ReplayFrom::Failed).unwrap();
    let cut = rig.claim(session);
    rig.fail_for_good(session, cut).unwrap();
    assert!(rig.view(second).dead_letter);
    rig.step(Input::Archived { jobs: vec![first] });
    let third = replay(&mut rig, second, "r", ReplayFrom::Failed).unwrap();
    rig.step(Input::Archived { jobs: vec![second] });
    assert_eq!(rig.view(third).retry_of, Some(second));
    finish(&mut rig, session, third);
}

#[test]
fn a_replay_that_is_refused_changes_nothing() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 9, &["k"]);
    let unique = Draft { unique_key: Some("u".into()), ..graph() };
    let dead = rig.submit(unique.clone());
    let fetch = rig.claim(session);
    rig.fail_for_good(session, fetch).unwrap();
    let holder = rig.submit(Draft { delay: Some(secs(9)), ..unique });
    let (dump, log) = (rig.manager.state().dump(), rig.log.len());
    assert_eq!(replay(&mut rig, dead, "r", ReplayFrom::Failed), Err(Refusal::UniqueKeyTaken(holder)));
    assert_eq!((rig.manager.state().dump(), rig.log.len()), (dump, log));
}

/// No worker was handed a workflow that was taken over, whatever fence it has from the original.
#[test]
fn nobody_speaks_for_a_workflow_that_was_taken_over() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 9, &["k"]);
    let dead = dead_letter(&mut rig, session);
    let fence = rig.view(dead).workflows[0].ended[0].fence;
    let again = replay(&mut rig, dead, "r", ReplayFrom::Failed).unwrap();
    let claim = Claim { job: again, workflow: 0, fence };
    assert_eq!(rig.succeed(session, claim), Err(Refusal::UnknownAttempt));
}
