//! Jobs from submission to their end: dependencies, retries, dead letters, keys, order, cancel and timeout.

use std::time::Duration;

use crate::rig::*;
use onward_core::effect::{Accepted, Answer, Notice};
use onward_core::event::Event;
use onward_core::fence::GateEpoch;
use onward_core::health::Verdict;
use onward_core::ids::{Claim, JobId, SessionId};
use onward_core::input::{Call, Filter, Input, ReplayFrom, Submission};
use onward_core::job::{Draft, JobState, LimitDraft, OnStuck, Retry, WorkflowDraft, WorkflowState};
use onward_core::message::{Beat, CancelWhy, FromWorker, Report, ToWorker};
use onward_core::refusal::{Refusal, RefusalKind};
use onward_core::state::LedgerFact;
use onward_core::time::Wall;
use onward_core::timeout::TimeoutReason;

/// Workflows of kind `k`, each with its name and those that it waits for.
fn dag(workflows: &[(&str, &[&str])]) -> Draft {
    let workflow = |(name, after): &(&str, &[&str])| WorkflowDraft {
        name: Some((*name).into()),
        kind: "k".into(),
        payload: bytes("{}").into(),
        content_type: None,
        after: after.iter().map(|name| (*name).into()).collect(),
    };
    Draft { workflows: workflows.iter().map(workflow).collect(), ..Draft::default() }
}

fn states(rig: &Rig, id: JobId) -> Vec<&'static str> {
    rig.view(id).workflows.iter().map(|workflow| workflow.state.word()).collect()
}

fn given(rig: &mut Rig, session: SessionId) -> Vec<Claim> {
    rig.assigned(session).iter().map(|assignment| assignment.claim).collect()
}

fn retries(max_attempts: u32, base_s: u64, max_s: u64) -> Option<Retry> {
    Some(Retry { max_attempts, base: secs(base_s), max: secs(max_s) })
}

// ---- dependencies

#[test]
fn a_workflow_waits_for_those_before_it_and_gets_their_results() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 9, &["k"]);
    let id = rig.submit(dag(&[("merge", &["left", "right"]), ("left", &[]), ("right", &[])]));
    assert_eq!(states(&rig, id), ["waiting", "running", "running"]);
    let parts = given(&mut rig, session);
    for (claim, result) in parts.iter().zip(["1", "2"]) {
        assert_eq!(states(&rig, id)[0], "waiting");
        rig.settle(session, *claim, Report::Succeed { result: bytes(result).into() }).unwrap();
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

// ---- retries and dead letters

#[test]
fn a_failed_attempt_is_retried_within_the_bounds_of_its_backoff() {
    let mut seen = std::collections::BTreeSet::new();
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    for _ in 0..20 {
        let id = rig.submit(Draft { retry: retries(6, 10, 40), ..job("k") });
        for ceiling_s in [10, 20, 40, 40, 40] {
            let claim = rig.claim(session);
            rig.fail(session, claim).unwrap();
            let due = rig.view(id).workflows[0].due_at.expect("it waits");
            let wait = due.since(rig.now.wall);
            assert!(wait <= secs(ceiling_s), "{wait:?} of {ceiling_s}");
            seen.insert(wait);
            if !wait.is_zero() {
                rig.advance(wait - ms(1));
                assert_eq!(rig.state_of(id), JobState::Delayed);
            }
            rig.advance(ms(1));
        }
        let claim = rig.claim(session);
        rig.succeed(session, claim).unwrap();
    }
    assert!(seen.len() > 60, "the whole range is used: {} waits", seen.len());
    assert!(seen.last() > Some(&secs(30)));
}

#[test]
fn the_handler_may_say_when_to_try_again() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    let later = Report::Fail { error: "busy".into(), retryable: true, delay: Some(secs(77)) };
    rig.settle(session, claim, later).unwrap();
    rig.advance(secs(77) - ms(1));
    assert_eq!(rig.state_of(id), JobState::Delayed);
    rig.advance(ms(1));
    assert_eq!(rig.assigned(session)[0].attempt, 2);
}

#[test]
fn a_delay_out_of_range_is_refused_and_the_attempt_goes_on() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    let never = Some(secs(367 * 24 * 3600));
    for report in [Report::Fail { error: "x".into(), retryable: true, delay: never }, Report::Release { delay: never }]
    {
        match rig.settle(session, claim, report) {
            Err(Refusal::Invalid(invalid)) => assert_eq!(invalid.field, "delay_s"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(rig.state_of(id), JobState::Running);
}

#[test]
fn a_released_attempt_does_not_count_and_keeps_its_turn() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let (first, _second) = (rig.submit(Draft { retry: retries(1, 1, 1), ..job("k") }), rig.submit(job("k")));
    for _ in 0..10 {
        let claim = rig.claim(session);
        assert_eq!(claim.job, first);
        rig.settle(session, claim, Report::Release { delay: None }).unwrap();
    }
    let again = rig.assigned(session).remove(0);
    assert_eq!((again.claim.job, again.attempt), (first, 1));
    rig.settle(session, again.claim, Report::Release { delay: Some(secs(5)) }).unwrap();
    assert_eq!(rig.state_of(first), JobState::Delayed);
}

#[test]
fn a_permanent_failure_and_spent_attempts_are_dead_letters() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let permanent = rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.fail_for_good(session, claim).unwrap();
    let spent = rig.submit(Draft { retry: retries(2, 1, 1), ..job("k") });
    for _ in 0..2 {
        let claim = rig.claim(session);
        rig.fail(session, claim).unwrap();
        rig.advance(secs(1));
    }
    for id in [permanent, spent] {
        let view = rig.view(id);
        assert_eq!((view.state, view.dead_letter), (JobState::Failed, true));
    }
    assert_eq!(rig.manager.view().dead_letters, 2);
    assert_eq!(rig.to_archive, [], "a dead letter stays until it is replayed or dropped");
    rig.restart(secs(1));
    assert_eq!(rig.manager.view().dead_letters, 2);
}

#[test]
fn every_way_of_losing_an_attempt_is_counted_up_to_the_limit() {
    let mut rig = Rig::new();
    rig.bystanders(4);
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { retry: retries(4, 0, 0), stuck_after: Some(secs(400)), ..job("k") });
    rig.claim(session);
    let session = rig.hello("w", "2", 2, 1, &["k"], vec![]);
    let claim = rig.claim(session);
    rig.beat(session, Beat::plain(claim)).unwrap();
    rig.close(session);
    rig.advance(secs(10));
    let session = rig.worker("v", 3, 1, &["k"]);
    let claim = rig.claim(session);
    for _ in 0..3 {
        rig.advance(secs(100));
        rig.beat(session, Beat::plain(claim)).unwrap();
    }
    rig.fail(session, claim).unwrap();
    rig.advance(ms(1));
    let claim = rig.claim(session);
    rig.fail(session, claim).unwrap();
    assert_eq!(rig.endings(id), ["crashed", "evicted", "failed", "failed"]);
    assert!(rig.view(id).dead_letter);
}

#[test]
fn a_stuck_attempt_is_retried_and_spent_attempts_time_the_job_out() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { retry: retries(2, 1, 1), ..job("k") });
    let first = rig.claim(session);
    rig.advance(secs(120));
    assert_eq!((rig.endings(id), rig.cancelled(session)), (vec!["stuck"], vec![first]));
    rig.advance(secs(1));
    rig.claim(session);
    rig.advance(secs(120));
    let view = rig.view(id);
    assert_eq!((view.state, view.timed_out), (JobState::TimedOut, Some(TimeoutReason::Stuck)));
    assert!(view.dead_letter, "its attempts are spent");
    rig.restart(secs(1));
    let session = rig.worker("v", 2, 1, &["k"]);
    let replay = Call::ReplayDeadLetter { job: id, new_id: rig.new_id(), request: name("r"), from: ReplayFrom::Failed };
    assert!(matches!(rig.call(replay), Ok(Answer::Retried { .. })));
    assert_eq!(rig.assigned(session).len(), 1);
    assert!(!rig.view(id).dead_letter);
}

#[test]
fn what_failed_for_good_is_a_dead_letter_also_if_the_rest_is_cancelled() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 2, &["k"]);
    let workflow = |name: &str| WorkflowDraft { name: Some(name.into()), ..job("k").workflows.remove(0) };
    let id = rig.submit(Draft { workflows: vec![workflow("a"), workflow("b")], ..job("k") });
    let claims: Vec<_> = rig.assigned(session).iter().map(|assignment| assignment.claim).collect();
    rig.fail_for_good(session, claims[0]).unwrap();
    rig.cancel(id);
    rig.tell(session, FromWorker::Ended(vec![claims[1]]));
    assert_eq!((rig.state_of(id), rig.view(id).dead_letter), (JobState::Failed, true));
}

#[test]
fn a_job_that_is_to_end_when_it_is_stuck_leaves_no_dead_letter() {
    let mut rig = Rig::new();
    rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { on_stuck: OnStuck::TimeOut, ..job("k") });
    rig.advance(secs(120));
    assert_eq!((rig.state_of(id), rig.view(id).dead_letter), (JobState::TimedOut, false));
    assert_eq!(rig.to_archive, [id]);
}

#[test]
fn a_log_that_archived_such_a_job_at_once_is_still_read() {
    let mut rig = Rig::new();
    rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { retry: retries(1, 1, 1), ..job("k") });
    rig.advance(secs(120));
    assert!(rig.view(id).dead_letter);
    // As it was written before such jobs were dead letters.
    let archived = Event::JobsArchived { jobs: vec![id] };
    rig.log.push(onward_core::event::Stamped { at: rig.log.last().unwrap().at, event: archived });
    let mut next = onward_core::manager::Manager::new(rig.manager.rules().clone(), 1, rig.now);
    rig.log.iter().for_each(|stamped| next.apply(stamped));
    assert_eq!((next.view().jobs, next.view().dead_letters), (0, 0));
}

#[test]
fn a_stuck_attempt_that_ends_its_job_stops_its_other_workflows_too() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 9, &["k"]);
    let id =
        rig.submit(Draft { on_stuck: OnStuck::TimeOut, ..dag(&[("hangs", &[]), ("works", &[]), ("w", &["works"])]) });
    let claims = given(&mut rig, session);
    rig.advance(secs(60));
    rig.progress(session, claims[1], 1);
    rig.advance(secs(60));
    assert_eq!(states(&rig, id), ["timed_out"; 3]);
    let mut cancels: Vec<_> = rig
        .messages(session)
        .into_iter()
        .filter_map(|message| match message {
            ToWorker::Cancel { claim, why } => Some((claim, why)),
            _ => None,
        })
        .collect();
    cancels.sort_by_key(|(claim, _)| *claim);
    assert_eq!(cancels, [(claims[0], CancelWhy::Stuck), (claims[1], CancelWhy::TimedOut)]);
    assert_eq!(rig.succeed(session, claims[1]), Err(Refusal::AlreadyEnded));
}

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
fn the_oldest_dead_letters_make_room_and_that_is_said() {
    let mut rig = Rig::with(|settings| settings.limits.dead_letters = 2);
    let session = rig.worker("w", 1, 1, &["k"]);
    let dead: Vec<JobId> = (0..4).map(|_| dead_letter(&mut rig, session)).collect();
    let kept: Vec<bool> = dead.iter().map(|id| rig.view(*id).dead_letter).collect();
    assert_eq!(kept, [false, false, true, true]);
    let overflows: Vec<&Notice> =
        rig.notices.iter().filter(|notice| matches!(notice, Notice::DeadLetterOverflow { .. })).collect();
    assert_eq!(overflows, [&Notice::DeadLetterOverflow { job: dead[0] }, &Notice::DeadLetterOverflow { job: dead[1] }]);
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

// ---- keys

#[test]
fn a_unique_key_is_held_by_one_open_job() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let unique = || Draft { unique_key: Some("import".into()), ..job("k") };
    let first = rig.submit(unique());
    let before = rig.manager.state().dump();
    assert_eq!(rig.try_submit(unique()), Err(Refusal::UniqueKeyTaken(first)));
    assert_eq!(rig.submit_all(vec![job("k"), unique()]), Err(Refusal::UniqueKeyTaken(first)));
    assert_eq!(rig.manager.state().dump(), before);
    let claim = rig.claim(session);
    rig.succeed(session, claim).unwrap();
    assert_eq!(rig.submit_all(vec![unique(), unique()]), Err(Refusal::Conflict), "also inside one batch");
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
    let same = [Accepted { id: first.id, duplicate: true }];
    let before = rig.manager.state().dump();
    assert_eq!(rig.submit_all(vec![keyed("1")]).unwrap(), same);
    assert_eq!(rig.try_submit(keyed("2")), Err(Refusal::Conflict));
    assert_eq!(rig.submit_all(vec![job("k"), keyed("2")]), Err(Refusal::Conflict));
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
    assert_eq!(rig.submit_all(vec![other("1"), other("2")]), Err(Refusal::Conflict));
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
    assert_eq!(rig.submit_all(vec![keyed()]).unwrap(), [Accepted { id: first, duplicate: true }]);
    assert_eq!(rig.try_submit(job("k")).unwrap_err().kind(), RefusalKind::Limited);
}

#[test]
fn a_batch_is_all_or_nothing() {
    let mut rig = Rig::new();
    let before = rig.manager.state().dump();
    let bad = Draft { priority: 101, ..job("k") };
    assert_eq!(rig.submit_all(vec![job("k"), bad, job("k")]).unwrap_err().kind(), RefusalKind::Invalid);
    let id = rig.new_id();
    let twice = vec![Submission { id, draft: job("k") }, Submission { id, draft: job("k") }];
    assert_eq!(rig.call(Call::Submit(twice)), Err(Refusal::Conflict));
    assert_eq!(rig.manager.state().dump(), before);
    assert_eq!(rig.submit_all(vec![job("k"); 1000]).unwrap().len(), 1000);
    assert_eq!(rig.manager.view().jobs, 1000);
}

// ---- order

#[test]
fn a_delayed_job_starts_when_its_delay_is_over_and_its_timeout_runs_from_then() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { delay: Some(secs(100)), timeout: Some(secs(50)), ..patient("k") });
    assert_eq!((rig.state_of(id), rig.view(id).started_at, rig.view(id).deadline), (JobState::Delayed, None, None));
    rig.advance(secs(100) - ms(1));
    assert_eq!(rig.state_of(id), JobState::Delayed);
    rig.advance(ms(1));
    let view = rig.view(id);
    assert_eq!((view.state, view.started_at), (JobState::Running, Some(view.created_at + secs(100))));
    assert_eq!(rig.assigned(session)[0].deadline_remaining, secs(50));
    rig.advance(secs(50));
    assert_eq!(rig.state_of(id), JobState::TimedOut);
}

#[test]
fn run_at_follows_the_wall_clock_also_over_a_restart() {
    let mut rig = Rig::new();
    let at = rig.now.wall + secs(1000);
    let id = rig.submit(Draft { run_at: Some(at), ..job("k") });
    let past = rig.submit(Draft { run_at: Some(rig.now.wall), ..job("k") });
    rig.advance(ms(1));
    assert_eq!(rig.state_of(past), JobState::Ready);
    rig.restart(secs(100));
    // The wall clock is set forward by ten minutes: the job is due that much earlier.
    rig.now.wall = rig.now.wall + secs(600);
    rig.advance(at.since(rig.now.wall) - ms(1));
    assert_eq!(rig.state_of(id), JobState::Delayed);
    rig.advance(ms(1));
    assert_eq!(rig.state_of(id), JobState::Ready);
}

#[test]
fn a_delay_does_not_follow_the_wall_clock() {
    let mut rig = Rig::new();
    let id = rig.submit(Draft { delay: Some(secs(100)), ..job("k") });
    rig.now.wall = rig.now.wall + secs(600);
    rig.advance(secs(100) - ms(1));
    assert_eq!(rig.state_of(id), JobState::Delayed);
    rig.advance(ms(1));
    assert_eq!(rig.state_of(id), JobState::Ready);
}

#[test]
fn higher_priority_goes_first_and_equals_in_the_order_of_submission() {
    let mut rig = Rig::new();
    let mut expected: Vec<(i32, JobId)> = Vec::new();
    for priority in [0, 5, -100, 100, 5, 0] {
        expected.push((priority, rig.submit(Draft { priority, ..job("k") })));
    }
    expected.sort_by_key(|(priority, _)| -priority);
    let session = rig.worker("w", 1, 1, &["k"]);
    for (_, id) in expected {
        let claim = rig.claim(session);
        assert_eq!(claim.job, id);
        rig.succeed(session, claim).unwrap();
    }
}

#[test]
fn waiting_raises_priority_a_level_per_half_minute_up_to_fifty() {
    // waited, own priority, other's priority -> which goes first
    for (waited_s, own, other, first) in [
        (29, 0, 1, "other"),
        (30, 0, 1, "own"),
        (149, 0, 5, "other"),
        (150, 0, 5, "own"),
        (1500, 0, 50, "own"),
        (100_000, -1, 50, "other"),
    ] {
        let mut rig = Rig::with(|settings| settings.job.timeout = secs(1_000_000));
        let old = rig.submit(Draft { priority: own, ..job("k") });
        rig.advance(secs(waited_s));
        rig.submit(Draft { priority: other, ..job("k") });
        let session = rig.worker("w", 1, 1, &["k"]);
        let found = if rig.claim(session).job == old { "own" } else { "other" };
        assert_eq!(found, first, "{own} after {waited_s} s against {other}");
    }
}

#[test]
fn running_is_not_waiting_and_raises_no_priority() {
    let mut rig = Rig::new();
    let low = rig.submit(job("k"));
    rig.advance(secs(60));
    let session = rig.worker("w", 1, 1, &["k"]);
    let claim = rig.claim(session);
    for _ in 0..60 {
        rig.advance(secs(30));
        rig.beat(session, Beat::plain(claim)).unwrap();
    }
    rig.tell(session, FromWorker::Capacity { slots: 1, accepting: false });
    rig.release(session, claim).unwrap();
    let (urgent, same) = (rig.submit(Draft { priority: 3, ..job("k") }), rig.submit(Draft { priority: 2, ..job("k") }));
    rig.restart(Duration::ZERO);
    let session = rig.worker("w", 2, 3, &["k"]);
    let order: Vec<JobId> = given(&mut rig, session).iter().map(|claim| claim.job).collect();
    assert_eq!(order, [urgent, low, same], "it had waited for a minute: two levels");
}

#[test]
fn a_limit_bounds_what_runs_under_its_key_across_jobs() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 100, &["k", "l"]);
    let limited = |kind: &str, max| Draft { limits: vec![LimitDraft::new("tenant-1", max)], ..job(kind) };
    let ids: Vec<JobId> = (0..6).map(|n| rig.submit(limited(if n % 2 == 0 { "k" } else { "l" }, 2))).collect();
    let free = rig.submit(job("k"));
    let mut running = given(&mut rig, session);
    assert_eq!(running.iter().map(|claim| claim.job).collect::<Vec<_>>(), [ids[0], ids[1], free]);
    assert_eq!(rig.view(ids[2]).workflows[0].blocked, Some("limit"));
    running.truncate(2);
    let mut done = 0;
    while !running.is_empty() {
        let claim = running.remove(0);
        rig.succeed(session, claim).unwrap();
        done += 1;
        running.extend(given(&mut rig, session));
        assert_eq!(running.len(), 2.min(6 - done), "after {done}");
    }
    assert!(ids.iter().all(|id| rig.state_of(*id) == JobState::Succeeded));
}

#[test]
fn a_limit_of_one_gives_order_also_over_retries_and_restarts() {
    let mut rig = Rig::new();
    let ordered = || Draft { limits: vec![LimitDraft::new("account-1", 1)], retry: retries(5, 0, 0), ..job("k") };
    let ids: Vec<JobId> = (0..4).map(|_| rig.submit(ordered())).collect();
    let session = rig.worker("w", 1, 9, &["k"]);
    let claim = rig.claim(session);
    rig.settle(session, claim, Report::Release { delay: None }).unwrap();
    let claim = rig.claim(session);
    assert_eq!(claim.job, ids[0]);
    rig.restart(secs(1));
    let session = rig.hello("w", "2", 2, 9, &["k"], vec![]);
    for id in ids {
        let claim = rig.claim(session);
        assert_eq!(claim.job, id);
        rig.succeed(session, claim).unwrap();
    }
}

#[test]
fn what_is_cancelling_still_holds_its_key() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 9, &["k"]);
    let limited = || Draft { limits: vec![LimitDraft::new("a", 1)], ..job("k") };
    let (first, second) = (rig.submit(limited()), rig.submit(limited()));
    let claim = rig.claim(session);
    rig.cancel(first);
    assert_eq!(rig.state_of(second), JobState::Ready);
    rig.tell(session, FromWorker::Ended(vec![claim]));
    assert_eq!(rig.claim(session).job, second);
}

#[test]
fn a_paused_queue_hands_nothing_out_until_it_is_resumed() {
    let mut rig = Rig::new();
    rig.call(Call::PauseQueue(name("default"))).unwrap();
    rig.call(Call::PauseQueue(name("default"))).unwrap();
    let session = rig.worker("w", 1, 9, &["k"]);
    let id = rig.submit(job("k"));
    assert_eq!(rig.view(id).workflows[0].blocked, Some("queue_paused"));
    assert!(rig.assigned(session).is_empty());
    rig.restart(secs(1));
    let session = rig.worker("w", 2, 9, &["k"]);
    assert!(rig.assigned(session).is_empty(), "also after a restart");
    rig.call(Call::ResumeQueue(name("default"))).unwrap();
    let claim = rig.claim(session);
    rig.call(Call::PauseQueue(name("default"))).unwrap();
    rig.succeed(session, claim).unwrap();
    assert_eq!(rig.state_of(id), JobState::Succeeded, "what runs goes on");
}

// ---- cancel

#[test]
fn cancel_ends_a_job_from_every_state() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 9, &["k"]);
    let delayed = rig.submit(Draft { delay: Some(secs(10)), ..job("k") });
    let ready = rig.submit(job("nobody"));
    let waiting = rig.submit(dag(&[("a", &[]), ("b", &["a"])]));
    let claim = rig.claim(session);
    for id in [delayed, ready] {
        rig.cancel(id);
        assert_eq!(rig.state_of(id), JobState::Cancelled);
        rig.cancel(id);
    }
    rig.cancel(waiting);
    assert_eq!(states(&rig, waiting), ["cancelling", "cancelled"]);
    assert_eq!(rig.state_of(waiting), JobState::Cancelling);
    assert_eq!(rig.messages(session).pop(), Some(ToWorker::Cancel { claim, why: CancelWhy::Asked }));
    let before = rig.manager.state().dump();
    rig.cancel(waiting);
    assert_eq!(rig.manager.state().dump(), before, "a repeat changes nothing");
    assert!(rig.cancelled(session).is_empty());
    let beat = rig.beat(session, Beat::progress(claim, 1)).unwrap();
    assert!(beat.cancel, "a beat is told, too");
    rig.tell(session, FromWorker::Ended(vec![claim]));
    assert_eq!(states(&rig, waiting), ["cancelled", "cancelled"]);
    rig.advance(secs(20));
    assert_eq!(rig.state_of(delayed), JobState::Cancelled, "its timer is gone");
    let unknown = rig.new_id();
    assert_eq!(rig.call(Call::Cancel { job: unknown, epoch: None }), Err(Refusal::UnknownJob));
}

#[test]
fn while_cancelling_only_a_success_is_more_than_cancelled() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 9, &["k"]);
    type End = fn(&mut Rig, SessionId, Claim);
    let rows: [(&str, End); 6] = [
        ("succeeded", |rig, session, claim| rig.succeed(session, claim).unwrap()),
        ("cancelled", |rig, session, claim| {
            rig.fail(session, claim).unwrap();
            rig.fail(session, claim).expect("repeated");
            let ended = rig.view(claim.job).workflows[0].ended[0].ending.clone();
            assert!(matches!(ended, onward_core::job::Ending::Failed { error, .. } if &*error == "no"), "it is kept");
        }),
        ("cancelled", |rig, session, claim| rig.fail_for_good(session, claim).unwrap()),
        ("cancelled", |rig, session, claim| {
            rig.settle(session, claim, Report::Release { delay: Some(secs(5)) }).unwrap();
        }),
        ("cancelled", |rig, session, claim| {
            rig.advance(secs(150));
            // Neither a beat nor being stuck changes when its lease is over.
            assert_eq!(rig.beat(session, Beat::plain(claim)).unwrap().lease_remaining, secs(150));
            rig.advance(secs(150) - ms(1));
            assert_eq!(rig.state_of(claim.job), JobState::Cancelling);
            rig.advance(ms(1));
        }),
        ("cancelled", |rig, _, _| {
            rig.hello("w", "2", 2, 9, &["k"], vec![]);
        }),
    ];
    for (outcome, end) in rows {
        let id = rig.submit(job("k"));
        let claim = rig.claim(session);
        rig.cancel(id);
        end(&mut rig, session, claim);
        let view = rig.view(id);
        assert_eq!((view.state.word(), view.dead_letter), (outcome, false));
        assert!(rig.to_archive.contains(&id));
    }
}

#[test]
fn a_cancel_by_an_older_gate_is_refused() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    rig.claim(session);
    let cancel = |rig: &mut Rig, n, gate| rig.call(Call::Cancel { job: id, epoch: Some(GateEpoch { n, gate }) });
    assert_eq!(cancel(&mut rig, 5, 2), Ok(Answer::Done));
    for (n, gate) in [(4, 9), (5, 1)] {
        assert_eq!(cancel(&mut rig, n, gate), Err(Refusal::StaleEpoch));
    }
    assert_eq!(cancel(&mut rig, 5, 2), Ok(Answer::Done));
    assert_eq!(cancel(&mut rig, 6, 1), Ok(Answer::Done));
    assert_eq!(cancel(&mut rig, 5, 2), Err(Refusal::StaleEpoch));
    assert_eq!(rig.call(Call::Cancel { job: id, epoch: None }), Ok(Answer::Done), "a client's carries none");
    assert_eq!(rig.refused(RefusalKind::StaleEpoch), 3);
    let asked = rig.view(id).ledger.into_iter().filter(|entry| matches!(entry.what, LedgerFact::CancelAsked { .. }));
    assert_eq!(asked.count(), 2);
}

#[test]
fn a_filter_cancels_what_it_matches() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["runs"]);
    let tagged = rig.submit(Draft { tags: vec!["red".into()], ..job("a") });
    let queued = rig.submit(Draft { queue: Some("slow".into()), ..job("a") });
    let delayed = rig.submit(Draft { delay: Some(secs(5)), ..job("b") });
    let running = rig.submit(job("runs"));
    let plain = rig.submit(job("b"));
    rig.claim(session);
    let cancel = |rig: &mut Rig, filter: Filter| rig.cancel_where(filter);
    let none = Filter::default;
    assert_eq!(cancel(&mut rig, Filter { tag: Some(name("blue")), ..none() }), 0);
    assert_eq!(cancel(&mut rig, Filter { tag: Some(name("red")), kind: Some(name("b")), ..none() }), 0);
    assert_eq!(cancel(&mut rig, Filter { tag: Some(name("red")), ..none() }), 1);
    assert_eq!(cancel(&mut rig, Filter { queue: Some(name("slow")), ..none() }), 1);
    assert_eq!(cancel(&mut rig, Filter { state: Some(WorkflowState::Delayed), ..none() }), 1);
    for (id, state) in [
        (tagged, JobState::Cancelled),
        (queued, JobState::Cancelled),
        (delayed, JobState::Cancelled),
        (running, JobState::Running),
        (plain, JobState::Ready),
    ] {
        assert_eq!(rig.state_of(id), state);
    }
    assert_eq!(cancel(&mut rig, none()), 2, "no condition matches all that is open");
    assert_eq!(cancel(&mut rig, none()), 0, "and what was asked is not counted again");
    assert_eq!(rig.state_of(running), JobState::Cancelling);
}

#[test]
fn a_filter_knows_since_when_a_job_is_there_and_whether_it_stands_still() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 3, &["k"]);
    let [still, moving, silent] = [(); 3].map(|()| rig.submit(patient("k")));
    let given = rig.assigned(session);
    let of = |job: JobId| given.iter().find(|one| one.claim.job == job).expect("each was handed out").claim;
    rig.advance(secs(60));
    rig.progress(session, of(moving), 1);
    rig.beat(session, Beat { quiet: Some(secs(60)), ..Beat::plain(of(silent)) }).unwrap();
    let [waiting, other] = [(); 2].map(|()| rig.submit(job("nobody")));
    let since = rig.view(other).created_at;
    rig.advance(secs(10));
    let not_moving = |span| Filter { not_moving: Some(span), ..Filter::default() };
    assert_eq!(rig.cancel_where(not_moving(secs(71))), 0);
    assert_eq!(rig.cancel_where(not_moving(secs(70))), 1, "neither what waits nor what is silent as announced");
    assert_eq!(rig.state_of(still), JobState::Cancelling);
    assert_eq!(rig.cancel_where(not_moving(secs(10))), 1);
    assert_eq!(rig.state_of(moving), JobState::Cancelling);
    let after = |ms: u64| Filter { since: Some(Wall::from_ms(since.as_ms() + ms)), ..Filter::default() };
    assert_eq!(rig.cancel_where(after(1)), 0, "nothing was submitted later");
    assert_eq!(rig.cancel_where(after(0)), 2);
    assert_eq!((rig.state_of(waiting), rig.state_of(silent)), (JobState::Cancelled, JobState::Running));
}

#[test]
fn a_filter_cancels_those_of_the_named_jobs_that_it_matches_and_no_call_names_too_many() {
    let mut rig = Rig::with(|settings| settings.limits.frame_items = 3);
    let jobs: Vec<JobId> = ["a", "b", "a", "a"].map(|kind| rig.submit(job(kind))).to_vec();
    let filter = Filter { kind: Some(name("a")), ..Filter::default() };
    let call = |jobs: &[JobId]| Call::CancelWhere { filter: filter.clone(), jobs: jobs.to_vec() };
    let refused = rig.call(call(&jobs)).unwrap_err();
    assert!(
        matches!(refused, Refusal::Limited(met) if met.limit == onward_core::limits::Limit::FrameItems),
        "{refused:?}"
    );
    assert_eq!(rig.call(call(&jobs[..3])), Ok(Answer::Cancelled { jobs: 2 }));
    assert_eq!(rig.call(call(&jobs[..3])), Ok(Answer::Cancelled { jobs: 0 }), "safe to repeat");
    assert_eq!(rig.call(call(&[JobId::from_u128(1), jobs[3]])), Ok(Answer::Cancelled { jobs: 1 }), "one may have gone");
    assert_eq!(rig.state_of(jobs[1]), JobState::Ready);
}

// ---- timeout

#[test]
fn a_job_times_out_after_a_day_or_after_its_own_time_wherever_it_is() {
    let mut rig = Rig::new();
    let usual = rig.submit(job("nobody"));
    let session = rig.worker("w", 1, 9, &["k"]);
    rig.submit(Draft { timeout: Some(secs(600)), ..job("nobody") });
    let own = |draft: Draft| Draft { timeout: Some(secs(100)), ..draft };
    let running = rig.submit(own(dag(&[("a", &[]), ("b", &["a"])])));
    let claim = rig.claim(session);
    let queued = rig.submit(own(job("nobody")));
    let retried = rig.submit(own(job("k")));
    let failing = rig.claim(session);
    let later = Report::Fail { error: "x".into(), retryable: true, delay: Some(secs(1000)) };
    rig.settle(session, failing, later).unwrap();
    assert_eq!(rig.state_of(retried), JobState::Delayed);
    rig.advance(secs(100) - ms(1));
    for id in [running, queued, retried] {
        assert!(!rig.state_of(id).is_terminal());
    }
    rig.advance(ms(1));
    for id in [running, queued, retried] {
        let view = rig.view(id);
        assert_eq!((view.state, view.timed_out), (JobState::TimedOut, Some(TimeoutReason::Overall)));
        assert!(view.workflows.iter().all(|workflow| workflow.state == WorkflowState::TimedOut));
    }
    assert_eq!(rig.messages(session).pop(), Some(ToWorker::Cancel { claim, why: CancelWhy::TimedOut }));
    assert_eq!(rig.succeed(session, claim), Err(Refusal::AlreadyEnded), "first writer wins");
    assert_eq!(rig.worker_view("w").held, 0);
    rig.advance(secs(24 * 3600 - 100) - ms(1));
    assert_eq!(rig.state_of(usual), JobState::Ready);
    rig.advance(ms(1));
    assert_eq!(rig.state_of(usual), JobState::TimedOut);
}

#[test]
fn an_extension_in_the_last_second_before_the_deadline_counts() {
    let mut rig = Rig::new();
    let id = rig.submit(Draft { timeout: Some(secs(60)), ..job("nobody") });
    rig.advance(ms(59_500));
    rig.call(Call::Extend { job: id, by: secs(30), reason: "x".into(), request: name("r") }).unwrap();
    rig.advance(ms(30_499));
    assert_eq!(rig.state_of(id), JobState::Ready);
    rig.advance(ms(1));
    assert_eq!(rig.state_of(id), JobState::TimedOut);
}

fn extend(rig: &mut Rig, job: JobId, by_s: u64, request: &str) -> Result<Answer, Refusal> {
    rig.call(Call::Extend { job, by: secs(by_s), reason: "nightly load".into(), request: name(request) })
}

#[test]
fn an_operator_extends_past_the_bound_on_grants() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { timeout: Some(secs(60)), max_extension: Some(secs(20)), ..patient("k") });
    let claim = rig.claim(session);
    rig.ask_extension(session, vec![claim], 0.1).result.unwrap();
    assert_eq!(extend(&mut rig, id, 600, "r1"), Ok(Answer::Extended { total: secs(630) }));
    let view = rig.view(id);
    assert_eq!(view.deadline, Some(view.created_at + secs(60 + 20 + 600)), "of the grant 20 s count, of the rest all");
    rig.restart(secs(1));
    assert_eq!(rig.view(id).deadline, view.deadline);
}

#[test]
fn an_extension_by_hand_is_answered_the_same_again_however_long_the_ledger_is() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { timeout: Some(secs(7_200)), ..patient("k") });
    let claim = rig.claim(session);
    assert_eq!(extend(&mut rig, id, 60, "r1"), Ok(Answer::Extended { total: secs(60) }));
    for n in 0..300 {
        extend(&mut rig, id, 1, &format!("more {n}")).unwrap();
    }
    rig.ask_extension(session, vec![claim], 0.1).result.unwrap();
    assert!(rig.view(id).ledger_dropped > 0);
    assert_eq!(extend(&mut rig, id, 60, "r1"), Ok(Answer::Extended { total: secs(60) }));
    assert_eq!(extend(&mut rig, id, 61, "r1"), Err(Refusal::Conflict));
    rig.restart(secs(1));
    assert_eq!(extend(&mut rig, id, 60, "r1"), Ok(Answer::Extended { total: secs(60) }));
    assert_eq!(rig.view(id).extensions, secs(390));
}

#[test]
fn success_beats_a_timeout_that_comes_later() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { timeout: Some(secs(100)), ..job("k") });
    let claim = rig.claim(session);
    rig.advance(secs(100) - ms(1));
    rig.succeed(session, claim).unwrap();
    rig.advance(secs(10));
    assert_eq!((rig.state_of(id), rig.view(id).timed_out), (JobState::Succeeded, None));
}

#[test]
fn a_retry_does_not_move_the_deadline_nor_does_a_restart() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { timeout: Some(secs(100)), ..job("k") });
    let deadline = rig.view(id).deadline;
    rig.advance(secs(50));
    let claim = rig.claim(session);
    rig.fail(session, claim).unwrap();
    rig.advance(secs(5));
    assert_eq!(rig.view(id).deadline, deadline);
    rig.restart(secs(44));
    assert_eq!(rig.view(id).deadline, deadline);
    rig.advance(secs(15) - ms(1));
    assert_eq!(rig.state_of(id), JobState::Running, "nothing fires before the grace of a takeover is over");
    rig.advance(ms(1));
    assert_eq!(rig.state_of(id), JobState::TimedOut);
}

#[test]
fn timeouts_count_against_a_worker_and_cancels_do_not() {
    for (cancelled, verdict) in [(false, Verdict::Slow), (true, Verdict::Healthy)] {
        let mut rig = Rig::new();
        let session = rig.worker("w", 1, 9, &["k"]);
        let short = Draft { timeout: Some(secs(20)), ..job("k") };
        let accepted = rig.submit_all(vec![short; 6]).unwrap();
        assert_eq!(rig.assigned(session).len(), 6);
        if cancelled {
            accepted.iter().for_each(|one| rig.cancel(one.id));
        }
        rig.advance(secs(20));
        assert_eq!(rig.worker_view("w").held, 0);
        assert_eq!(rig.verdict("w"), verdict, "cancelled: {cancelled}");
    }
}

#[test]
fn a_claim_that_comes_late_is_in_the_ledger_once_per_kind() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { retry: retries(5, 0, 0), ..job("k") });
    let claim = rig.claim(session);
    rig.advance(secs(120));
    assert_eq!(rig.endings(id), ["stuck"]);
    for _ in 0..3 {
        assert_eq!(rig.beat(session, Beat::plain(claim)), Err(Refusal::StaleAttempt));
        assert_eq!(rig.succeed(session, claim), Err(Refusal::StaleAttempt));
    }
    let refused = rig.view(id).ledger.into_iter().filter(|entry| matches!(entry.what, LedgerFact::Refused { .. }));
    assert_eq!(refused.count(), 1);
    assert_eq!(rig.refused(RefusalKind::StaleAttempt), 6, "and every one is counted");
}

#[test]
fn an_outcome_may_be_repeated_and_not_changed() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { retry: retries(5, 60, 60), ..job("k") });
    let first = rig.claim(session);
    rig.fail(session, first).unwrap();
    assert_eq!(rig.fail(session, first), Ok(()));
    assert_eq!(rig.succeed(session, first), Err(Refusal::AlreadyEnded));
    rig.advance(secs(60));
    let second = rig.claim(session);
    assert_eq!(rig.fail(session, first), Ok(()), "also when a newer one runs");
    assert_eq!(rig.succeed(session, first), Err(Refusal::AlreadyEnded));
    let before = rig.view(id).workflows[0].counted;
    rig.succeed(session, second).unwrap();
    assert_eq!(rig.succeed(session, second), Ok(()));
    assert_eq!((before, rig.state_of(id)), (2, JobState::Succeeded));
}

#[test]
fn under_stress_submissions_are_shed_and_outcomes_are_not() {
    use onward_core::health::overload::OverloadLevel;
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.step(Input::Load(OverloadLevel::Stressed));
    assert_eq!(rig.try_submit(job("k")), Err(Refusal::Overloaded));
    rig.beat(session, Beat::plain(claim)).unwrap();
    rig.succeed(session, claim).unwrap();
    rig.step(Input::Load(OverloadLevel::Busy));
    rig.submit(job("k"));
}

#[test]
fn a_job_that_is_being_cancelled_when_its_time_is_over_was_cancelled() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { timeout: Some(secs(60)), ..job("k") });
    rig.claim(session);
    rig.cancel(id);
    assert_eq!(rig.state_of(id), JobState::Cancelling);
    rig.advance(secs(60));
    assert_eq!((rig.state_of(id), rig.view(id).timed_out), (JobState::Cancelled, None));
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
    let expired = |stamped: &onward_core::event::Stamped| match &stamped.event {
        onward_core::event::Event::KeysExpired { keys } => keys.len(),
        other => panic!("nothing else happens: {other:?}"),
    };
    assert_eq!(rig.log[before..].iter().map(expired).collect::<Vec<_>>(), [3]);
    assert_eq!(rig.manager.state().idempotency_keys(), 0);
    rig.restart(secs(1));
}
