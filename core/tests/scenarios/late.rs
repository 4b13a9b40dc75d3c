//! What is asked about jobs that have left memory. The machine hands the question back, and the image of the job that
//! was archived answers it, as the machine would have done while it had the job.

use onward_core::effect::{Answer, Effect, Effects};
use onward_core::ids::{JobId, RequestId};
use onward_core::input::{Call, Input, ReplayFrom, Submission};
use onward_core::job::{Draft, Ending};
use onward_core::late::{LateAnswer, LateQuestion, LateReport};
use onward_core::message::{Beat, ExtensionRequest, Settlement};
use onward_core::refusal::Refusal;
use onward_core::state::JobImage;

use crate::rig::*;

/// The machine's own answer to a call that changes nothing.
fn raw(rig: &mut Rig, call: Call) -> Result<Answer, Refusal> {
    let (request, mut effects) = (RequestId(9_999), Effects::default());
    rig.manager.step(rig.now, Input::Call { request, call }, &mut effects);
    assert!(effects.events.is_empty(), "nothing changes: {:?}", effects.events);
    let reply = |waiting: onward_core::effect::PendingEffect| match waiting.effect {
        Effect::Reply { request: RequestId(9_999), answer } => Some(answer),
        _ => None,
    };
    effects.list.into_iter().find_map(reply).expect("it is answered at once")
}

fn late(rig: &mut Rig, call: Call) -> LateReport {
    match raw(rig, call) {
        Err(Refusal::NotInMemory { report }) => *report,
        other => panic!("the question does not come back: {other:?}"),
    }
}

fn archive(rig: &mut Rig, job: JobId) -> JobImage {
    let image = rig.manager.image(job).expect("it has just ended");
    rig.step(Input::Archived { jobs: vec![job] });
    assert!(rig.manager.job(job).is_none(), "it has left memory");
    image
}

#[test]
fn what_is_asked_about_an_archived_job_is_answered_by_its_image() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let job = rig.submit(job("k"));
    let claim = rig.claim(session);
    let extend = |request: &str| Call::Extend { job, by: secs(5), reason: "r".into(), request: name(request) };
    rig.call(extend("known")).expect("it runs");
    rig.succeed(session, claim).expect("it holds the attempt");
    let image = archive(&mut rig, job);
    let new_id = rig.new_id();

    let total = Answer::Extended { total: secs(5) };
    let replay = Call::ReplayDeadLetter { job, new_id, request: name("r"), from: ReplayFrom::Failed };
    for (call, expected) in [
        (Call::Cancel { job, epoch: None }, Ok(LateAnswer::Answer(Answer::Done))),
        (extend("known"), Ok(LateAnswer::Answer(total))),
        (extend("other"), Err(Refusal::AlreadyEnded)),
        (replay, Err(Refusal::NotADeadLetter)),
        (Call::DropDeadLetter { job }, Err(Refusal::NotADeadLetter)),
        (Call::FetchInput { claim, workflow: name("x") }, Err(Refusal::AlreadyEnded)),
        (
            Call::RequestExtension(ExtensionRequest {
                claims: vec![claim],
                reason: "backup".into(),
                progress: 1.0,
                estimated_remaining: None,
            }),
            Err(Refusal::AlreadyEnded),
        ),
    ] {
        let report = late(&mut rig, call.clone());
        assert_eq!(report.clone().answer(None), Err(Refusal::UnknownJob), "{call:?}, and it is nowhere");
        assert_eq!(report.answer(Some(image.clone())), expected, "{call:?}");
    }
}

#[test]
fn a_late_outcome_comes_back_with_the_question_and_its_repetition_is_accepted() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.succeed(session, claim).expect("it holds the attempt");
    let image = archive(&mut rig, id);
    for (report, expected) in [(success(), Ok(())), (failure(), Err(Refusal::AlreadyEnded))] {
        let outcome: Ending = report.clone().into_ending();
        let answer = raw(&mut rig, Call::Settle(vec![Settlement::new(claim, report)]));
        let Ok(Answer::Settled(answers)) = answer else { panic!("settlements are answered one by one: {answer:?}") };
        let Err(Refusal::NotInMemory { report }) = &answers[0].answer else { panic!("{answers:?}") };
        assert_eq!(report.question, LateQuestion::Claim { claim, outcome: Some(outcome) });
        assert_eq!(report.answer_claim(Some(&image)), expected);
        assert_eq!(report.answer_claim(None), Err(Refusal::UnknownJob));
    }
    let Ok(Answer::Beats(answers)) = raw(&mut rig, Call::Beat(vec![Beat::plain(claim)])) else { panic!("a beat") };
    let Err(Refusal::NotInMemory { report }) = &answers[0].answer else { panic!("{answers:?}") };
    assert_eq!(report.answer_claim(Some(&image)), Err(Refusal::AlreadyEnded));
}

#[test]
fn a_retry_of_an_archived_job_is_asked_again_with_its_image() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.succeed(session, claim).expect("it holds the attempt");
    let image = archive(&mut rig, id);
    let new_id = rig.new_id();
    let report = late(&mut rig, Call::Retry { job: id, new_id, request: name("r") });
    assert_eq!(report.clone().answer(None), Err(Refusal::UnknownJob));
    let Ok(LateAnswer::Ask(call)) = report.answer(Some(image)) else { panic!("only the machine makes jobs") };
    assert_eq!(rig.call(*call), Ok(Answer::Retried { job: new_id }));
}

#[test]
fn the_first_submission_at_fault_is_named_and_none_is_stored() {
    let mut rig = Rig::new();
    let taken = rig.submit(Draft { unique_key: Some("u".into()), ..job("k") });
    let submission = |rig: &mut Rig, draft: Draft| Submission { id: rig.new_id(), draft };
    let unique = Draft { unique_key: Some("u".into()), ..job("k") };
    let list = vec![submission(&mut rig, job("k")), submission(&mut rig, job("k")), submission(&mut rig, unique)];
    let cause = Refusal::UniqueKeyTaken(taken);
    let refused = Refusal::InBatch { index: 2, cause: Box::new(cause.clone()) };
    assert_eq!(rig.call(Call::Submit(list)), Err(refused.clone()));
    assert_eq!(rig.manager.view().jobs, 1);
    assert_eq!((refused.kind(), refused.clone().of_single()), (cause.kind(), cause));
    assert!(refused.to_string().starts_with("submission 2: "), "{refused}");
}
