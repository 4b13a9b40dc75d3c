//! A job as a record of its own: an archived job is shown as a live one is, and its late workers get the same answers.

use crate::rig::{Rig, bytes, failure, job, ms, name, secs, success};
use onward_core::effect::Answer;
use onward_core::fence::AttemptFence;
use onward_core::ids::{Claim, JobId, SessionId};
use onward_core::input::{Call, ReplayFrom};
use onward_core::job::{Draft, Retry, WorkflowDraft};
use onward_core::manager::JobView;
use onward_core::message::{Beat, EndReport};
use onward_core::refusal::Refusal;

fn dag() -> Draft {
    let step = |name: &str, after: &[&str]| WorkflowDraft {
        name: Some(name.into()),
        kind: "k".into(),
        after: after.iter().map(|before| (*before).into()).collect(),
        ..WorkflowDraft::default()
    };
    Draft {
        workflows: vec![step("x", &[]), step("y", &["x"])],
        retry: Some(Retry { max_attempts: 3, base: ms(1), max: ms(1) }),
        idempotency_key: Some("order".into()),
        ..Draft::default()
    }
}

/// A job of which one workflow succeeded at the second attempt, and the other ran out of its lease and then succeeded.
fn eventful() -> (Rig, SessionId, Vec<Claim>) {
    let mut rig = Rig::new();
    rig.submit(dag());
    let session = rig.worker("w", 1, 1, &["k"]);
    let first = rig.claim(session);
    rig.beat(session, Beat { checkpoint: Some(bytes("here")), ..Beat::progress(first, 1) }).unwrap();
    rig.fail(session, first).unwrap();
    rig.advance(ms(5));
    let second = rig.claim(session);
    rig.succeed(session, second).unwrap();
    let third = rig.claim(session);
    rig.advance(secs(200));
    rig.advance(ms(5));
    let fourth = rig.claim(session);
    rig.succeed(session, fourth).unwrap();
    (rig, session, vec![first, second, third, fourth])
}

#[test]
fn an_image_is_shown_as_the_live_job_is() {
    let (mut rig, _, claims) = eventful();
    let image = rig.manager.image(claims[0].job).unwrap();
    assert!(image.has_ended() && image.fingerprint.is_some());
    assert_eq!(JobView::of_image(&image), rig.view(claims[0].job));
    let waiting = rig.submit(Draft { delay: Some(secs(60)), ..job("other") });
    let image = rig.manager.image(waiting).unwrap();
    assert_eq!(JobView::of_image(&image), rig.view(waiting));
    assert_eq!(rig.manager.image(JobId::from_u128(1)), None);
}

#[test]
fn a_dead_letter_and_a_retried_job_keep_what_is_known_of_them() {
    let mut rig = Rig::new();
    let job = rig.submit(job("k"));
    let session = rig.worker("w", 1, 1, &["k"]);
    let claim = rig.claim(session);
    rig.fail_for_good(session, claim).unwrap();
    assert!(rig.manager.image(job).unwrap().died().is_some());
    let new_id = rig.new_id();
    let replay = Call::ReplayDeadLetter { job, new_id, request: name("again"), from: ReplayFrom::Failed };
    assert_eq!(rig.call(replay), Ok(Answer::Retried { job: new_id }));
    let image = rig.manager.image(job).unwrap();
    assert_eq!(image.died(), None);
    assert_eq!(image.more.unwrap().retried_as, [(name("again"), new_id)]);
    assert_eq!(rig.manager.image(new_id).unwrap().more.unwrap().retry_of, Some(job));
}

#[test]
fn late_outcomes_are_answered_as_the_machine_answers_them() {
    let (mut rig, _, claims) = eventful();
    let image = rig.manager.image(claims[0].job).unwrap();
    let newer = |claim: Claim| Claim { fence: AttemptFence::from_raw(claim.fence.get() + 1), ..claim };
    let older = |claim: Claim| Claim { fence: AttemptFence::from_raw(claim.fence.get() - 1), ..claim };
    let other = EndReport::Succeed { result: bytes("other").into() };
    let table = [
        (claims[0], failure(), Ok(()), "said before and accepted"),
        (claims[0], success(), Err(Refusal::AlreadyEnded), "another outcome than it gave"),
        (claims[1], success(), Ok(()), "the success, said again"),
        (claims[1], other, Err(Refusal::AlreadyEnded), "another result"),
        (claims[2], success(), Err(Refusal::StaleAttempt), "its lease had run out, and another took over"),
        (claims[3], success(), Ok(()), "the last success, said again"),
        (claims[3], EndReport::Release { delay: None }, Err(Refusal::AlreadyEnded), "too late to give back"),
        (newer(claims[1]), success(), Err(Refusal::UnknownAttempt), "never handed out"),
        (older(claims[0]), success(), Err(Refusal::StaleAttempt), "before the first of this term"),
        (Claim { workflow: 7, ..claims[0] }, success(), Err(Refusal::UnknownWorkflow), "no such workflow"),
    ];
    for (claim, report, answer, why) in table {
        assert_eq!(image.answer(&claim, Some(&report.clone().into_ending())), answer, "{why}");
        assert_eq!(rig.http_settle(claim, report), answer, "the machine: {why}");
    }
}
