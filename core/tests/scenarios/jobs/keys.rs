//! Unique keys, idempotency keys, and batches that are accepted as a whole or not at all.

use super::*;

/// The refusal of a batch for one of its submissions.
fn at<T>(index: usize, cause: Refusal) -> Result<T, Refusal> {
    Err(Refusal::InBatch { index, cause: Box::new(cause) })
}

#[test]
fn a_unique_key_is_held_by_one_open_job() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let unique = || Draft { unique_key: Some("import".into()), ..job("k") };
    let first = rig.submit(unique());
    let before = rig.manager.state().dump();
    assert_eq!(rig.try_submit(unique()), Err(Refusal::UniqueKeyTaken(first)));
    assert_eq!(rig.submit_all(vec![job("k"), unique()]), at(1, Refusal::UniqueKeyTaken(first)));
    assert_eq!(rig.manager.state().dump(), before);
    let claim = rig.claim(session);
    rig.succeed(session, claim).unwrap();
    assert_eq!(rig.submit_all(vec![unique(), unique()]), at(1, Refusal::UniqueKeyTwice), "also inside one batch");
    let second = rig.submit(unique());
    let new_id = rig.new_id();
    let retry = Call::Retry { job: first, new_id, request: name("r") };
    assert_eq!(rig.call(retry), Err(Refusal::UniqueKeyTaken(second)));
    rig.restart(secs(1));
    assert_eq!(rig.try_submit(unique()), Err(Refusal::UniqueKeyTaken(second)));
    rig.advance(secs(15));
    rig.cancel(second);
    rig.advance(secs(303));
    rig.submit(unique());
}

#[test]
fn an_idempotency_key_answers_the_same_job_again() {
    let mut rig = Rig::new();
    rig.worker("w", 1, 1, &["k"]);
    let keyed =
        |payload: &str| Draft { idempotency_key: Some("order-7".into()), ..Draft::of_kind("k", bytes(payload)) };
    let first = rig.submit_all(vec![keyed("1")]).unwrap()[0];
    assert!(!first.duplicate);
    let same = [AcceptedJob { id: first.id, duplicate: true }];
    let before = rig.manager.state().dump();
    assert_eq!(rig.submit_all(vec![keyed("1")]).unwrap(), same);
    assert_eq!(rig.try_submit(keyed("2")), Err(Refusal::Conflict));
    assert_eq!(rig.submit_all(vec![job("k"), keyed("2")]), at(1, Refusal::Conflict));
    assert_eq!(rig.manager.state().dump(), before);
    rig.restart(secs(1));
    assert_eq!(rig.submit_all(vec![keyed("1")]).unwrap(), same, "across a takeover");
    let session = rig.hello("w", "2", 2, 1, &["k"], vec![]);
    let claim = rig.claim(session);
    rig.succeed(session, claim).unwrap();
    rig.step(Input::Archived { jobs: vec![first.id] });
    assert_eq!(rig.submit_all(vec![keyed("1")]).unwrap(), same, "also when the job is in the archive");
    rig.advance(secs(24 * 3600) - ms(1));
    assert_eq!(rig.submit_all(vec![keyed("1")]).unwrap(), same, "24 h past its end");
    rig.advance(ms(1));
    let fresh = rig.submit_all(vec![keyed("2")]).unwrap()[0];
    assert!(!fresh.duplicate, "then the key is free");
    assert_eq!(rig.manager.state().idempotency_keys(), 1);
}

#[test]
fn inside_one_batch_a_repeated_key_is_a_duplicate_or_a_conflict() {
    let mut rig = Rig::new();
    let keyed = |payload: &str| Draft { idempotency_key: Some("a".into()), ..Draft::of_kind("k", bytes(payload)) };
    let accepted = rig.submit_all(vec![keyed("1"), job("k"), keyed("1")]).unwrap();
    assert_eq!(accepted.iter().map(|one| one.duplicate).collect::<Vec<_>>(), [false, false, true]);
    assert_eq!(accepted[0].id, accepted[2].id);
    assert_eq!(rig.manager.view().jobs, 2);
    let other = |payload: &str| Draft { idempotency_key: Some("b".into()), ..Draft::of_kind("k", bytes(payload)) };
    assert_eq!(rig.submit_all(vec![other("1"), other("2")]), at(1, Refusal::Conflict));
    assert_eq!(rig.manager.view().jobs, 2);
}

#[test]
fn a_repeat_is_answered_also_when_there_is_no_room_for_another_job() {
    let mut rig = Rig::with(|settings| {
        settings.limits.jobs = 1;
        settings.limits.shelves = 1;
        settings.limits.idempotency_keys = 1;
    });
    let keyed = || Draft { idempotency_key: Some("a".into()), ..job("k") };
    let first = rig.submit_all(vec![keyed()]).unwrap()[0].id;
    assert_eq!(rig.submit_all(vec![keyed()]).unwrap(), [AcceptedJob { id: first, duplicate: true }]);
    assert_eq!(rig.try_submit(job("k")).unwrap_err().kind(), RefusalKind::Limited);
}

#[test]
fn a_batch_is_all_or_nothing() {
    let mut rig = Rig::new();
    let before = rig.manager.state().dump();
    let bad = Draft { priority: 101, ..job("k") };
    let refused = rig.submit_all(vec![job("k"), bad, job("k")]).unwrap_err();
    assert_eq!(refused.kind(), RefusalKind::Invalid);
    assert!(matches!(refused, Refusal::InBatch { index: 1, .. }), "{refused}");
    let id = rig.new_id();
    let twice = vec![Submission { id, draft: job("k") }, Submission { id, draft: job("k") }];
    assert_eq!(rig.call(Call::Submit(twice)), at(1, Refusal::Conflict));
    assert_eq!(rig.manager.state().dump(), before);
    assert_eq!(rig.submit_all(vec![job("k"); 1000]).unwrap().len(), 1000);
    assert_eq!(rig.manager.view().jobs, 1000);
}

#[test]
fn keys_that_expire_together_are_forgotten_by_one_event() {
    let mut rig = Rig::new();
    for key in ["a", "b", "c"] {
        let id = rig.submit(Draft { idempotency_key: Some(key.into()), ..job("k") });
        rig.cancel(id);
    }
    let before = rig.log.len();
    rig.advance(secs(24 * 3600));
    let expired = |stamped: &onward_core::event::StampedEvent| match &stamped.event {
        onward_core::event::Event::KeysExpired { keys } => keys.len(),
        other => panic!("nothing else happens: {other:?}"),
    };
    assert_eq!(rig.log[before..].iter().map(expired).collect::<Vec<_>>(), [3]);
    assert_eq!(rig.manager.state().idempotency_keys(), 0);
    rig.restart(secs(1));
}
