//! Attempts that failed, were released or were lost, and when their workflow runs again.

use super::*;

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
    let later = EndReport::Fail { error: "busy".into(), retryable: true, delay: Some(secs(77)) };
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
    for report in
        [EndReport::Fail { error: "x".into(), retryable: true, delay: never }, EndReport::Release { delay: never }]
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
        rig.settle(session, claim, EndReport::Release { delay: None }).unwrap();
    }
    let again = rig.assigned(session).remove(0);
    assert_eq!((again.claim.job, again.attempt), (first, 1));
    rig.settle(session, again.claim, EndReport::Release { delay: Some(secs(5)) }).unwrap();
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
    rig.log.push(onward_core::event::StampedEvent { at: rig.log.last().unwrap().at, event: archived });
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
