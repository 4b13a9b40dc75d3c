//! What waits for what inside a job, and what the whole of it ends as.

use super::*;

#[test]
fn a_workflow_waits_for_those_before_it_and_gets_their_results() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 9, &["k"]);
    let id = rig.submit(dag(&[("merge", &["left", "right"]), ("left", &[]), ("right", &[])]));
    assert_eq!(states(&rig, id), ["waiting", "running", "running"]);
    let parts = given(&mut rig, session);
    for (claim, result) in parts.iter().zip(["1", "2"]) {
        assert_eq!(states(&rig, id)[0], "waiting");
        rig.settle(session, *claim, EndReport::Succeed { result: bytes(result).into() }).unwrap();
    }
    let merge = rig.assigned(session).remove(0);
    assert_eq!(merge.claim.workflow, 0);
    assert_eq!(merge.inputs, [(name("left"), bytes("1").into()), (name("right"), bytes("2").into())]);
    assert_eq!(rig.state_of(id), JobState::Running);
    rig.succeed(session, merge.claim).unwrap();
    assert_eq!(rig.state_of(id), JobState::Succeeded);
}

#[test]
fn a_failure_for_good_cancels_all_that_depends_on_it_and_nothing_else() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 9, &["k"]);
    let draft = dag(&[
        ("root", &[]),
        ("child", &["root"]),
        ("grandchild", &["child"]),
        ("other", &[]),
        ("after-other", &["other"]),
        ("both", &["child", "other"]),
    ]);
    let id = rig.submit(draft);
    let claims = given(&mut rig, session);
    rig.fail_for_good(session, claims[0]).unwrap();
    assert_eq!(states(&rig, id), ["failed", "cancelled", "cancelled", "running", "waiting", "cancelled"]);
    assert_eq!(rig.state_of(id), JobState::Running);
    rig.succeed(session, claims[1]).unwrap();
    let last = rig.claim(session);
    assert_eq!(last.workflow, 4, "the independent branch goes on");
    rig.succeed(session, last).unwrap();
    assert_eq!(rig.state_of(id), JobState::Failed, "the worst outcome wins");
    assert!(rig.view(id).dead_letter);
}

#[test]
fn a_retry_does_not_cancel_what_waits_for_it() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 9, &["k"]);
    let id = rig.submit(dag(&[("root", &[]), ("child", &["root"])]));
    let claim = rig.claim(session);
    rig.fail(session, claim).unwrap();
    assert_eq!(states(&rig, id)[1], "waiting");
    rig.advance(secs(1));
    let claim = rig.claim(session);
    rig.succeed(session, claim).unwrap();
    assert_eq!(states(&rig, id), ["succeeded", "running"]);
}

#[test]
fn the_worst_outcome_of_a_job_wins() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 9, &["k"]);
    let run = |rig: &mut Rig, ends: [&str; 2]| {
        let id = rig.submit(Draft { timeout: Some(secs(30)), ..dag(&[("a", &[]), ("b", &[])]) });
        let claims = given(rig, session);
        for (claim, end) in claims.iter().zip(ends) {
            match end {
                "succeeded" => rig.succeed(session, *claim).unwrap(),
                "failed" => rig.fail_for_good(session, *claim).unwrap(),
                "cancelled" => {}
                _ => rig.advance(secs(30)),
            }
        }
        if ends.contains(&"cancelled") {
            rig.cancel(id);
            rig.tell(session, FromWorker::Ended(vec![claims[1]]));
        }
        assert_eq!(states(rig, id), ends);
        rig.state_of(id).word()
    };
    for (ends, outcome) in [
        (["succeeded", "succeeded"], "succeeded"),
        (["succeeded", "failed"], "failed"),
        (["succeeded", "cancelled"], "cancelled"),
        (["failed", "cancelled"], "failed"),
        (["succeeded", "timed_out"], "timed_out"),
        (["failed", "timed_out"], "timed_out"),
    ] {
        assert_eq!(run(&mut rig, ends), outcome, "{ends:?}");
    }
}
