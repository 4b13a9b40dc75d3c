//! When a job starts and which goes first: delays, priorities, limits, paused queues.

use super::*;

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
    rig.settle(session, claim, EndReport::Release { delay: None }).unwrap();
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
