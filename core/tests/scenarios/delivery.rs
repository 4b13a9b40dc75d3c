//! What an attempt needs, on its way to the worker: fetched by its claim, or not to be had at all.

use crate::rig::*;
use onward_core::effect::Answer;
use onward_core::health::Verdict;
use onward_core::ids::{Claim, JobId};
use onward_core::input::{Call, Input};
use onward_core::job::{Draft, JobState, Retry, WorkflowDraft};
use onward_core::message::EndReport;
use onward_core::payload::{Digest, Payload};
use onward_core::refusal::{Refusal, RefusalKind};

fn large(text: &str) -> Payload {
    Payload::stored(Digest::of(text.as_bytes()), 900_000)
}

fn of_attempts(max_attempts: u32) -> Draft {
    Draft { retry: Some(Retry { max_attempts, base: secs(1), max: secs(1) }), ..job("k") }
}

fn undeliverable(rig: &mut Rig, claim: Claim) {
    rig.step(Input::Undeliverable { claim, why: "too large".into() });
}

fn fetch(rig: &mut Rig, claim: Claim, workflow: &str) -> Result<Payload, Refusal> {
    match rig.call(Call::FetchInput { claim, workflow: name(workflow) })? {
        Answer::Input(input) => Ok(input),
        other => panic!("{other:?}"),
    }
}

/// `join` waits for `left` and `right`; `other` for nobody.
fn join() -> Draft {
    let workflow = |name: &str, kind: &str, after: &[&str]| WorkflowDraft {
        name: Some(name.into()),
        kind: kind.into(),
        after: after.iter().map(|before| (*before).into()).collect(),
        ..WorkflowDraft::default()
    };
    let parts = [workflow("left", "part", &[]), workflow("right", "part", &[]), workflow("other", "elsewhere", &[])];
    let workflows = parts.into_iter().chain([workflow("join", "k", &["left", "right"])]).collect();
    Draft { workflows, ..Draft::default() }
}

fn succeed_parts(rig: &mut Rig) -> JobId {
    let job = rig.submit(join());
    let parts = rig.worker("parts", 9, 2, &["part"]);
    for assignment in rig.assigned(parts) {
        let result = large(assignment.workflow.name.as_str());
        rig.settle(parts, assignment.claim, EndReport::Succeed { result }).unwrap();
    }
    job
}

#[test]
fn what_cannot_be_delivered_counts_and_ends_in_the_dead_letters() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(of_attempts(3));
    for counted in 1..=3 {
        assert_eq!(rig.counted(id), counted);
        let claim = rig.claim(session);
        undeliverable(&mut rig, claim);
        rig.advance(secs(2));
    }
    assert_eq!((rig.state_of(id), rig.endings(id)), (JobState::Failed, vec!["failed", "failed", "failed"]));
    assert!(rig.manager.state().job(rig.manager.state().find(id).unwrap()).dead);
    assert!(rig.assigned(session).is_empty(), "it is not handed out for ever");
}

#[test]
fn it_says_nothing_about_the_worker() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    // As `fail_for_119_s`, after which a worker is stuck.
    for wait_s in [50, 50, 19] {
        for _ in 0..5 {
            rig.submit(of_attempts(1));
            let claim = rig.claim(session);
            undeliverable(&mut rig, claim);
        }
        rig.advance(secs(wait_s));
    }
    rig.advance(secs(1));
    assert_eq!(rig.verdict("w"), Verdict::Healthy);
}

#[test]
fn a_word_about_an_attempt_that_is_over_changes_nothing() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(of_attempts(2));
    let first = rig.claim(session);
    rig.release(session, first).unwrap();
    let second = rig.claim(session);
    undeliverable(&mut rig, first);
    assert_eq!((rig.state_of(id), rig.endings(id)), (JobState::Running, vec!["released"]));
    rig.succeed(session, second).unwrap();
    undeliverable(&mut rig, second);
    assert_eq!((rig.state_of(id), rig.endings(id)), (JobState::Succeeded, vec!["released", "succeeded"]));
}

#[test]
fn an_attempt_that_was_being_cancelled_ends_as_cancelled() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(of_attempts(2));
    let claim = rig.claim(session);
    rig.cancel(id);
    undeliverable(&mut rig, claim);
    assert_eq!(rig.state_of(id), JobState::Cancelled);
}

#[test]
fn an_input_is_given_to_the_holder_of_the_attempt_and_to_nobody_else() {
    let mut rig = Rig::new();
    let job = succeed_parts(&mut rig);
    let session = rig.worker("w", 1, 1, &["k"]);
    let claim = rig.claim(session);
    assert_eq!((claim.job, claim.workflow), (job, 3));
    assert_eq!(fetch(&mut rig, claim, "left"), Ok(large("left")));
    assert_eq!(fetch(&mut rig, claim, "right"), Ok(large("right")));
    for workflow in ["other", "join", "nobody"] {
        assert_eq!(fetch(&mut rig, claim, workflow), Err(Refusal::UnknownWorkflow), "{workflow} is no input of it");
    }
    for (claim, refusal) in [
        (Claim { job: rig.new_id(), ..claim }, Refusal::UnknownJob),
        (Claim { workflow: 4, ..claim }, Refusal::UnknownWorkflow),
        (Claim { fence: fence(1, 2), ..claim }, Refusal::UnknownAttempt),
    ] {
        assert_eq!(fetch(&mut rig, claim, "left"), Err(refusal));
    }
    rig.advance(secs(125));
    let next = rig.claim(session);
    assert_eq!(rig.manager.state().ended_attempt(&claim).map(|ended| ended.ending.code()), Some("stuck"));
    assert_eq!(fetch(&mut rig, claim, "left"), Err(Refusal::StaleAttempt), "a zombie");
    assert_eq!(rig.refused(RefusalKind::StaleAttempt), 1);
    assert_eq!(fetch(&mut rig, next, "left"), Ok(large("left")));
    rig.succeed(session, next).unwrap();
    assert_eq!(fetch(&mut rig, next, "left"), Err(Refusal::AlreadyEnded));
}

#[test]
fn a_worker_without_a_session_lives_by_fetching() {
    let mut rig = Rig::new();
    succeed_parts(&mut rig);
    let poll = Rig::poll_of("h", &["k"], 1, secs(0));
    let claim = rig.leases(poll)[0].claim;
    rig.advance(secs(25));
    assert_eq!(fetch(&mut rig, claim, "left"), Ok(large("left")));
    rig.advance(secs(29));
    assert!(rig.worker_view("h").judgement.signals.live, "its last call is 29 s ago");
}
