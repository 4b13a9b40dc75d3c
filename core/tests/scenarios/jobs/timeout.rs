//! The time of a whole job, and more of it by hand.

use super::*;

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
    let later = EndReport::Fail { error: "x".into(), retryable: true, delay: Some(secs(1000)) };
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
