//! Dead letters, and jobs that are run once more as new ones.

use onward_core::limits::{Limit, LimitMet};
use onward_core::state::JobImage;

use super::*;

fn dead_letter(rig: &mut Rig, session: SessionId) -> JobId {
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.fail_for_good(session, claim).unwrap();
    id
}

#[test]
fn a_dead_letter_is_replayed_as_a_new_job_once_per_request() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let dead = dead_letter(&mut rig, session);
    let replay = |rig: &mut Rig, request: &str| {
        let new_id = rig.new_id();
        rig.call(Call::ReplayDeadLetter { job: dead, new_id, request: name(request), from: ReplayFrom::Failed })
    };
    let Ok(Answer::Retried { job: again }) = replay(&mut rig, "r1") else { panic!("replayed") };
    assert_eq!(rig.view(again).retry_of, Some(dead));
    assert_eq!(rig.claim(session).job, again);
    assert_eq!((rig.manager.view().dead_letters, rig.view(dead).dead_letter), (0, false));
    assert_eq!(rig.to_archive, [dead]);
    assert_eq!(replay(&mut rig, "r1"), Ok(Answer::Retried { job: again }));
    assert_eq!(replay(&mut rig, "r2"), Err(Refusal::NotADeadLetter));
    assert_eq!(rig.manager.view().jobs, 2);
}

#[test]
fn a_dead_letter_can_be_dropped() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let dead = dead_letter(&mut rig, session);
    rig.step(Input::Archived { jobs: vec![dead] });
    assert!(rig.manager.job(dead).is_some(), "it is not archived before");
    assert_eq!(rig.call(Call::DropDeadLetter { job: dead }), Ok(Answer::Done));
    assert_eq!(rig.to_archive, [dead]);
    assert_eq!(rig.call(Call::DropDeadLetter { job: dead }), Err(Refusal::NotADeadLetter));
    rig.step(Input::Archived { jobs: vec![dead] });
    assert_eq!(rig.call(Call::DropDeadLetter { job: dead }), Err(Refusal::UnknownJob));
}

#[test]
fn an_attempt_that_ends_with_its_job_is_not_the_one_too_many() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 2, &["k"]);
    let draft = Draft { on_stuck: OnStuck::TimeOut, retry: retries(2, 0, 0), ..dag(&[("hangs", &[]), ("fails", &[])]) };
    let id = rig.submit(draft);
    let claims = given(&mut rig, session);
    rig.advance(secs(60));
    rig.fail(session, claims[1]).unwrap();
    rig.advance(secs(1));
    assert_eq!(rig.claim(session).workflow, 1, "its last attempt runs");
    rig.advance(secs(60));
    assert_eq!((states(&rig, id), rig.state_of(id)), (vec!["timed_out"; 2], JobState::TimedOut));
    assert!(!rig.view(id).dead_letter, "neither was stuck, or failed, as often as it may be");
}

#[test]
fn the_oldest_dead_letters_make_room_and_that_is_said() {
    let mut rig = Rig::with(|settings| settings.limits.dead_letters = 2);
    let session = rig.worker("w", 1, 1, &["k"]);
    let dead: Vec<JobId> = (0..4).map(|_| dead_letter(&mut rig, session)).collect();
    let kept: Vec<bool> = dead.iter().map(|id| rig.view(*id).dead_letter).collect();
    assert_eq!(kept, [false, false, true, true]);
    let overflows: Vec<&ManagerNotice> =
        rig.notices.iter().filter(|notice| matches!(notice, ManagerNotice::DeadLetterOverflow { .. })).collect();
    assert_eq!(
        overflows,
        [&ManagerNotice::DeadLetterOverflow { job: dead[0] }, &ManagerNotice::DeadLetterOverflow { job: dead[1] }]
    );
    assert_eq!(rig.to_archive, dead[..2]);
}

#[test]
fn a_job_that_ended_is_retried_as_a_new_one_once_per_request() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { idempotency_key: Some("key".into()), delay: Some(secs(5)), ..job("k") });
    let retry = |rig: &mut Rig, request: &str| {
        let new_id = rig.new_id();
        rig.call(Call::Retry { job: id, new_id, request: name(request) })
    };
    assert_eq!(retry(&mut rig, "r"), Err(Refusal::NotTerminal(JobState::Delayed)));
    rig.advance(secs(5));
    let claim = rig.claim(session);
    assert_eq!(retry(&mut rig, "r"), Err(Refusal::NotTerminal(JobState::Running)));
    rig.succeed(session, claim).unwrap();
    let Ok(Answer::Retried { job: again }) = retry(&mut rig, "r") else { panic!("retried") };
    assert_eq!(rig.view(again).retry_of, Some(id));
    assert_eq!(rig.claim(session).job, again, "without waiting for its delay again");
    assert_eq!(retry(&mut rig, "r"), Ok(Answer::Retried { job: again }));
    rig.restart(secs(1));
    assert_eq!(retry(&mut rig, "r"), Ok(Answer::Retried { job: again }));
    let Ok(Answer::Retried { job: third }) = retry(&mut rig, "r2") else { panic!("retried") };
    assert!(third != again && third != id);
    let (job, new_id) = (rig.new_id(), rig.new_id());
    assert_eq!(rig.call(Call::Retry { job, new_id, request: name("r") }), Err(Refusal::UnknownJob));
}

#[test]
fn a_job_of_the_archive_is_retried_from_its_image_once_per_request() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { unique_key: Some("u".into()), delay: Some(secs(5)), ..job("k") });
    rig.advance(secs(5));
    let claim = rig.claim(session);
    rig.succeed(session, claim).unwrap();
    let new_id = rig.new_id();
    let Ok(Answer::Retried { job: before }) = rig.call(Call::Retry { job: id, new_id, request: name("before") }) else {
        panic!("retried")
    };
    let claim = rig.claim(session);
    rig.succeed(session, claim).unwrap();
    let image = Box::new(rig.manager.image(id).unwrap());
    rig.step(Input::Archived { jobs: vec![id] });
    assert!(rig.manager.image(id).is_none());
    let retry = |rig: &mut Rig, request: &str| {
        let new_id = rig.new_id();
        rig.call(Call::RetryArchived { image: image.clone(), new_id, request: name(request) })
    };
    assert_eq!(retry(&mut rig, "before"), Ok(Answer::Retried { job: before }), "asked for while it was in memory");
    let Ok(Answer::Retried { job: again }) = retry(&mut rig, "r") else { panic!("retried") };
    assert_eq!(rig.view(again).retry_of, Some(id));
    assert_eq!(rig.claim(session).job, again, "without waiting for its delay again");
    assert_eq!(retry(&mut rig, "r"), Ok(Answer::Retried { job: again }));
    assert_eq!(retry(&mut rig, "other"), Err(Refusal::UniqueKeyTaken(again)));
    rig.restart(secs(1));
    assert_eq!(retry(&mut rig, "r"), Ok(Answer::Retried { job: again }));
}

#[test]
fn a_retry_is_remembered_though_the_copy_for_the_archive_was_taken_before_it() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.succeed(session, claim).unwrap();
    let image = Box::new(rig.manager.image(id).unwrap());
    let new_id = rig.new_id();
    let first = rig.call(Call::Retry { job: id, new_id, request: name("r") });
    let Ok(Answer::Retried { job: again }) = first else { panic!("retried") };
    rig.step(Input::Archived { jobs: vec![id] });
    rig.restart(secs(1));
    let new_id = rig.new_id();
    let repeated = rig.call(Call::RetryArchived { image, new_id, request: name("r") });
    assert_eq!(repeated, Ok(Answer::Retried { job: again }));
}

fn retried(rig: &mut Rig, call: impl FnOnce(JobId) -> Call) -> Result<JobId, Refusal> {
    let new_id = rig.new_id();
    match rig.call(call(new_id))? {
        Answer::Retried { job } => Ok(job),
        other => panic!("a retry is not answered with {other:?}"),
    }
}

#[test]
fn the_same_request_about_two_jobs_of_the_archive_is_two_requests() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let images = [(); 2].map(|()| {
        let id = rig.submit(job("k"));
        let claim = rig.claim(session);
        rig.succeed(session, claim).unwrap();
        let image = Box::new(rig.manager.image(id).unwrap());
        rig.step(Input::Archived { jobs: vec![id] });
        (id, image)
    });
    let again = images.map(|(id, image)| {
        let new = retried(&mut rig, |new_id| Call::RetryArchived { image, new_id, request: name("r") }).unwrap();
        assert_eq!(rig.view(new).retry_of, Some(id));
        new
    });
    assert_ne!(again[0], again[1]);
}

#[test]
fn a_dead_letter_remembers_by_itself_as_what_it_was_retried() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let dead = dead_letter(&mut rig, session);
    let before = Box::new(rig.manager.image(dead).unwrap());
    let again = retried(&mut rig, |new_id| Call::Retry { job: dead, new_id, request: name("r") }).unwrap();
    let archived =
        |image: &JobImage, new_id| Call::RetryArchived { image: Box::new(image.clone()), new_id, request: name("r") };
    let repeated = retried(&mut rig, |new_id| archived(&before, new_id));
    assert_eq!(repeated, Ok(again), "it is in memory, and knows more than a copy of it");
    let image = rig.manager.image(dead).unwrap();
    assert_eq!(rig.call(Call::DropDeadLetter { job: dead }), Ok(Answer::Done));
    rig.step(Input::Archived { jobs: vec![dead] });
    assert_eq!(retried(&mut rig, |new_id| archived(&image, new_id)), Ok(again));
}

#[test]
fn a_retry_takes_room_among_the_keys_unless_its_job_stays_to_remember_it() {
    let mut rig = Rig::with(|settings| settings.limits.idempotency_keys = 1);
    let session = rig.worker("w", 1, 1, &["k"]);
    let done = rig.submit(Draft { idempotency_key: Some("a".into()), ..job("k") });
    let claim = rig.claim(session);
    rig.succeed(session, claim).unwrap();
    let dead = dead_letter(&mut rig, session);
    let met = Refusal::Limited(LimitMet { limit: Limit::IdempotencyKeys, max: 1 });
    let retry = |rig: &mut Rig, job| retried(rig, |new_id| Call::Retry { job, new_id, request: name("r") });
    assert_eq!(retry(&mut rig, done), Err(met));
    assert!(retry(&mut rig, dead).is_ok());
}
