//! What a takeover means for the clocks of a job, and for what has ended.

use super::*;

#[test]
fn started_at_is_stamped_once_and_downtime_counts_against_the_timeout() {
    let mut rig = Rig::new();
    let id = rig.submit(Draft { timeout: Some(secs(100)), ..job("k") });
    let started = rig.view(id).started_at.unwrap();
    rig.advance(secs(10));
    rig.restart(secs(30));
    let session = rig.worker("w", 1, 1, &["k"]);
    assert_eq!(rig.claim(session).job, id);
    assert_eq!(rig.view(id).started_at, Some(started));
    rig.advance(ms(59_999));
    assert_eq!(rig.state_of(id), JobState::Running);
    rig.advance(ms(1));
    let view = rig.view(id);
    assert_eq!((view.state, view.timed_out), (JobState::TimedOut, Some(TimeoutReason::Overall)));
    assert_eq!(view.ended_at, Some(started + secs(100)));
    assert_eq!(view.started_at, Some(started));
}

#[test]
fn neither_a_delay_nor_a_retry_stamps_started_at_again() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { delay: Some(secs(5)), timeout: Some(secs(60)), ..job("k") });
    rig.advance(secs(5));
    let started = rig.view(id).created_at + secs(5);
    assert_eq!(rig.view(id).started_at, Some(started));
    let claim = rig.claim(session);
    let later = EndReport::Fail { error: "later".into(), retryable: true, delay: Some(secs(20)) };
    rig.settle(session, claim, later).unwrap();
    rig.advance(secs(20));
    assert_eq!(rig.claim(session).fence, fence(1, 2));
    assert_eq!(rig.view(id).started_at, Some(started));
    rig.advance(secs(40));
    assert_eq!(rig.view(id).ended_at, Some(started + secs(60)));
}

#[test]
fn an_overall_timeout_that_passed_meanwhile_fires_15_s_after_the_takeover_and_no_earlier() {
    let mut rig = Rig::new();
    let over = rig.submit(Draft { timeout: Some(secs(60)), ..job("k") });
    let nearly = rig.submit(Draft { timeout: Some(secs(3_610)), ..job("k") });
    rig.restart(secs(3_600));
    rig.advance(ms(14_999));
    assert_eq!((rig.state_of(over), rig.state_of(nearly)), (JobState::Ready, JobState::Ready));
    rig.advance(ms(1));
    assert_eq!((rig.state_of(over), rig.state_of(nearly)), (JobState::TimedOut, JobState::TimedOut));
}

#[test]
fn a_result_inside_that_grace_beats_the_timeout() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { timeout: Some(secs(60)), ..job("k") });
    let claim = rig.claim(session);
    rig.restart(secs(600));
    rig.advance(secs(10));
    let session = rig.hello("w", "1", 2, 1, &["k"], vec![claim]);
    rig.succeed(session, claim).unwrap();
    assert_eq!(rig.state_of(id), JobState::Succeeded);
    rig.advance(secs(30));
    assert_eq!(rig.state_of(id), JobState::Succeeded);
}

#[test]
fn a_job_that_ended_and_was_not_archived_is_archived_by_the_next_leader() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 2, &["k"]);
    let (done, dead) = (rig.submit(job("k")), rig.submit(job("k")));
    let claims = held_out(&mut rig, session);
    rig.succeed(session, claims[0]).unwrap();
    rig.fail_for_good(session, claims[1]).unwrap();
    rig.to_archive.clear();
    rig.restart(secs(1));
    assert_eq!(rig.to_archive, [done], "and the dead letter waits for somebody");
    rig.step(Input::Archived { jobs: vec![done, dead] });
    assert!(rig.manager.job(done).is_none() && rig.manager.job(dead).is_some());
}

#[test]
fn what_is_not_over_is_not_archived_whoever_says_so() {
    let mut rig = Rig::new();
    let id = rig.submit(job("k"));
    let events = rig.log.len();
    rig.step(Input::Archived { jobs: vec![id] });
    assert_eq!((rig.state_of(id), rig.log.len()), (JobState::Ready, events));
    rig.restart(secs(1));
}

#[test]
fn fences_rise_across_terms() {
    let mut rig = Rig::new();
    let mut session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let mut before = rig.claim(session);
    assert_eq!(before.fence, fence(1, 1));
    for term in 2..6 {
        rig.restart(secs(1));
        session = rig.worker("w", u64::from(term), 1, &["k"]);
        let next = rig.claim(session);
        assert_eq!(next.fence, fence(u64::from(term), term), "what never arrived is handed out again");
        assert!(next.fence > before.fence);
        assert_eq!(rig.succeed(session, before), Err(Refusal::StaleAttempt));
        before = next;
    }
    rig.succeed(session, before).unwrap();
    assert_eq!(rig.endings(id), ["never_arrived", "never_arrived", "never_arrived", "never_arrived", "succeeded"]);
}

#[test]
fn a_delay_ends_on_time_whoever_leads() {
    let mut rig = Rig::new();
    let id = rig.submit(Draft { delay: Some(secs(100)), ..job("k") });
    let over = rig.submit(Draft { delay: Some(secs(40)), ..job("k") });
    let submitted = rig.view(id).created_at;
    rig.advance(secs(10));
    rig.restart(secs(50));
    assert_eq!(rig.state_of(over), JobState::Ready, "what became due meanwhile is due");
    rig.advance(ms(39_999));
    assert_eq!(rig.state_of(id), JobState::Delayed);
    rig.advance(ms(1));
    assert_eq!(rig.view(id).started_at, Some(submitted + secs(100)));
}
