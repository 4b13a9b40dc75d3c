//! Large content lies in the store: the machine counts who refers to it, and says when nobody does any more.

use crate::rig::{Rig, name, secs};
use onward_core::effect::Answer;
use onward_core::ids::Claim;
use onward_core::input::{Call, Input};
use onward_core::job::{Draft, WorkflowDraft};
use onward_core::message::EndReport;
use onward_core::payload::{Digest, Payload};
use onward_core::refusal::Refusal;

fn stored(text: &str, len: u32) -> Payload {
    Payload::stored(Digest::of(text.as_bytes()), len)
}

fn refs(rig: &Rig, text: &str) -> u32 {
    rig.manager.state().stored_refs(&Digest::of(text.as_bytes()))
}

fn archive(rig: &mut Rig) {
    let jobs = std::mem::take(&mut rig.to_archive);
    rig.step(Input::Archived { jobs });
}

fn succeed(rig: &mut Rig, session: onward_core::ids::SessionId, claim: Claim, result: Payload) {
    rig.settle(session, claim, EndReport::Succeed { result }).unwrap();
}

#[test]
fn jobs_with_the_same_content_share_it_and_the_last_one_lets_it_go() {
    let mut rig = Rig::new();
    for _ in 0..3 {
        rig.submit(Draft::of_kind("k", stored("big", 1 << 20)));
    }
    assert_eq!(refs(&rig, "big"), 3);
    let session = rig.worker("w", 1, 3, &["k"]);
    let claims: Vec<Claim> = rig.assigned(session).iter().map(|assigned| assigned.claim).collect();
    for (n, claim) in claims.into_iter().enumerate() {
        succeed(&mut rig, session, claim, stored(["r1", "big", "r2"][n], 5_000));
    }
    assert_eq!((refs(&rig, "big"), refs(&rig, "r1"), refs(&rig, "r2")), (4, 1, 1));
    assert_eq!(rig.manager.state().stored().count(), 3);
    let first = rig.to_archive.remove(0);
    rig.step(Input::Archived { jobs: vec![first] });
    assert_eq!((refs(&rig, "big"), refs(&rig, "r1")), (3, 0));
    assert_eq!(rig.unreferenced, [Digest::of(b"r1")]);
    archive(&mut rig);
    assert_eq!(rig.manager.state().stored().count(), 0);
    rig.unreferenced.sort();
    let mut all = [b"r1".as_slice(), b"big", b"r2"].map(Digest::of);
    all.sort();
    assert_eq!(rig.unreferenced, all, "each once");
    rig.restart(secs(1));
    assert_eq!(rig.manager.state().stored().count(), 0);
}

#[test]
fn a_retried_job_refers_to_the_same_content() {
    let mut rig = Rig::new();
    let job = rig.submit(Draft::of_kind("k", stored("big", 9_000)));
    rig.cancel(job);
    let new_id = rig.new_id();
    let again = Call::Retry { job, new_id, request: name("again") };
    assert_eq!(rig.call(again), Ok(Answer::Retried { job: new_id }));
    assert_eq!(refs(&rig, "big"), 2);
    archive(&mut rig);
    assert_eq!((refs(&rig, "big"), rig.unreferenced.len()), (1, 0));
    rig.cancel(new_id);
    archive(&mut rig);
    assert_eq!((refs(&rig, "big"), rig.unreferenced.len()), (0, 1));
}

#[test]
fn results_reach_dependents_as_they_were_reported() {
    let mut rig = Rig::new();
    let step = |name: &str, after: &[&str]| WorkflowDraft {
        name: Some(name.into()),
        kind: "k".into(),
        after: after.iter().map(|before| (*before).into()).collect(),
        ..WorkflowDraft::default()
    };
    rig.submit(Draft { workflows: vec![step("x", &[]), step("y", &["x"])], ..Draft::default() });
    let session = rig.worker("w", 1, 1, &["k"]);
    let claim = rig.claim(session);
    succeed(&mut rig, session, claim, stored("out", 70_000));
    let next = rig.assigned(session).remove(0);
    assert!(next.inputs[0].1.as_stored().is_some_and(|stored| stored.len == 70_000));
}

#[test]
fn limits_are_on_the_content_wherever_it_lies() {
    let mut rig = Rig::with(|settings| {
        settings.limits.payload_bytes = 10_000;
        settings.limits.result_bytes = 10_000;
    });
    assert!(matches!(rig.try_submit(Draft::of_kind("k", stored("big", 10_001))), Err(Refusal::Invalid(_))));
    rig.submit(Draft::of_kind("k", stored("big", 10_000)));
    let session = rig.worker("w", 1, 1, &["k"]);
    let claim = rig.claim(session);
    let too_much = EndReport::Succeed { result: stored("out", 10_001) };
    assert!(matches!(rig.settle(session, claim, too_much), Err(Refusal::Limited(_))));
    succeed(&mut rig, session, claim, stored("out", 10_000));
    let inline_again = EndReport::Succeed { result: Payload::stored(Digest::of(b"out"), 10_000) };
    assert_eq!(rig.settle(session, claim, inline_again), Ok(()), "the same outcome again");
}
