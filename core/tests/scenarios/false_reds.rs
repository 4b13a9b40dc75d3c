//! What is healthy stays green, however long it takes: the verdict is looked at after every single wake-up.

use std::time::Duration;

use crate::rig::*;
use onward_core::event::Event;
use onward_core::health::{ProgressReason, ProgressSignal, Verdict, VerdictReason};
use onward_core::job::{Draft, JobState, Retry};
use onward_core::message::Beat;
use onward_core::time::Wall;

const HOUR: Duration = Duration::from_secs(3_600);

fn is_green(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Healthy | Verdict::Busy)
}

/// Asserts that nobody was blamed: no attempt was ended, by anyone, and nobody was evicted, put on probation or held.
fn assert_nothing_ended(rig: &Rig) {
    let blamed = rig.logged(|event| {
        matches!(event, Event::AttemptEnded { .. } | Event::JobTimedOut { .. } | Event::ProbationBegan { .. })
    });
    assert_eq!((blamed, rig.eviction_count()), (0, 0));
    assert!(!rig.manager.holding_eviction());
}

/// Time passes, and at every wake-up the worker `w` is green and nothing has ended.
fn stays_green(rig: &mut Rig, span: Duration) {
    let mut looked = 0_u64;
    rig.watch(span, |rig| {
        let judged = rig.worker_view("w").judgement;
        assert!(is_green(judged.verdict), "{judged:?} at {:?}", rig.now.mono);
        assert!(is_green(rig.manager.own_judgement().verdict), "{:?}", rig.manager.own_judgement());
        looked += 1;
    });
    assert!(looked > span.as_secs(), "the seat alone wakes the machine every second");
    assert_nothing_ended(rig);
}

#[test]
fn a_four_hour_job_that_reports_every_50_s() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 2, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    for mark in 1..=288 {
        stays_green(&mut rig, secs(50));
        rig.progress(session, claim, mark);
        let judged = rig.worker_view("w").judgement;
        assert_eq!((judged.verdict, judged.signals.progress), (Verdict::Healthy, ProgressSignal::Normal));
    }
    rig.succeed(session, claim).unwrap();
    assert_eq!(rig.state_of(id), JobState::Succeeded);
    assert_eq!(rig.view(id).workflows[0].ended.len(), 1);
}

#[test]
fn a_four_hour_job_that_can_only_beat() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(job("k"));
    let claim = rig.claim(session);
    for _ in 0..240 {
        stays_green(&mut rig, ms(59_999));
        rig.beat(session, Beat::plain(claim)).unwrap();
    }
    rig.succeed(session, claim).unwrap();
}

#[test]
fn a_full_worker_with_a_backlog_is_busy_and_nothing_else() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 2, &["k"]);
    for _ in 0..20 {
        rig.submit(job("k"));
    }
    let claims: Vec<_> = rig.assigned(session).into_iter().map(|assignment| assignment.claim).collect();
    assert_eq!(claims.len(), 2);
    for mark in 1..=60 {
        stays_green(&mut rig, secs(50));
        assert_eq!(rig.verdict("w"), Verdict::Busy);
        for claim in &claims {
            rig.progress(session, *claim, mark);
        }
    }
}

#[test]
fn a_worker_that_is_idle_for_hours() {
    let mut rig = Rig::new();
    rig.worker("w", 1, 1, &["k"]);
    stays_green(&mut rig, 6 * HOUR);
    assert_eq!(rig.worker_view("w").judgement.reason, VerdictReason::Progress(ProgressReason::NothingToCount));
}

#[test]
fn one_failing_job_on_an_idle_worker_is_not_its_fault() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 2, &["k"]);
    let retry = Retry { max_attempts: 5, base: secs(2), max: secs(2) };
    let id = rig.submit(Draft { retry: Some(retry), ..job("k") });
    for attempt in 1..=5 {
        let mut waited = 0;
        while rig.state_of(id) == JobState::Delayed {
            assert!(waited < 2_000, "the backoff is 2 s at most");
            rig.advance(ms(1));
            waited += 1;
            assert_eq!(rig.verdict("w"), Verdict::Healthy);
        }
        let assigned = rig.assigned(session).remove(0);
        assert_eq!(assigned.attempt, attempt);
        rig.fail(session, assigned.claim).unwrap();
        assert_eq!(rig.verdict("w"), Verdict::Healthy);
    }
    assert_eq!((rig.state_of(id), rig.view(id).dead_letter), (JobState::Failed, true));
    assert_eq!(rig.worker_view("w").judgement.reason, VerdictReason::Progress(ProgressReason::TooFewFailures));
    rig.watch(secs(300), |rig| assert_eq!(rig.verdict("w"), Verdict::Healthy));
    assert_eq!(rig.eviction_count(), 0);
}

#[test]
fn a_silent_young_job_on_a_worker_that_was_idle_for_hours() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    stays_green(&mut rig, 3 * HOUR);
    let id = rig.submit(job("k"));
    stays_green(&mut rig, ms(59_999));
    let judged = rig.worker_view("w").judgement;
    assert_eq!(judged.signals.progress, ProgressSignal::Idle, "too young to say anything");
    rig.watch(ms(60_000), |rig| {
        assert!(matches!(rig.verdict("w"), Verdict::Busy | Verdict::Degraded), "never stuck before its time");
    });
    assert_nothing_ended(&rig);
    rig.advance(ms(1));
    assert_eq!(rig.endings(id), ["stuck"], "and caught when it is silent for 120 s");
    assert_eq!(rig.assigned(session)[0].claim.fence, fence(1, 1));
}

#[test]
fn a_silent_handler_in_a_quiet_section_of_nine_minutes() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    stays_green(&mut rig, secs(30));
    let answer = rig.beat(session, Beat { quiet: Some(secs(540)), ..Beat::plain(claim) }).unwrap();
    assert_eq!(answer.quiet, Some(secs(540)));
    stays_green(&mut rig, secs(540));
    assert_eq!(rig.logged(|event| matches!(event, Event::QuietEnded { .. })), 1, "its time was over by itself");
    stays_green(&mut rig, ms(59_999));
    rig.beat(session, Beat::plain(claim)).unwrap();
    rig.succeed(session, claim).unwrap();
    assert_eq!(rig.endings(id), ["succeeded"]);
}

#[test]
fn a_worker_is_not_blamed_for_the_time_of_a_quiet_section_after_it() {
    for require_progress in [false, true] {
        let mut rig = Rig::new();
        rig.worker("bystander-1", 101, 1, &["other"]);
        rig.worker("bystander-2", 102, 1, &["other"]);
        let session = rig.worker("w", 1, 1, &["k"]);
        let id = rig.submit(Draft { require_progress, ..job("k") });
        let claim = rig.claim(session);
        rig.beat(session, Beat { quiet: Some(secs(540)), ..Beat::plain(claim) }).unwrap();
        stays_green(&mut rig, ms(540_000 + 59_999));
        // From here on it is as any silent handler whose last word came when the section ended.
        rig.watch(secs(60), |rig| {
            assert!(matches!(rig.verdict("w"), Verdict::Busy | Verdict::Degraded), "{:?}", rig.worker_view("w"));
        });
        assert_nothing_ended(&rig);
        rig.advance(ms(1));
        assert_eq!(rig.endings(id), ["stuck"]);
        assert_eq!(rig.eviction_count(), 0);
    }
}

#[test]
fn a_silent_handler_under_live_grants() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    // (asked at, granted) in ms: each is live until the health deadline that it set.
    let grants = [(50_000, 30_000), (105_000, 15_000), (140_000, 7_500), (177_000, 3_750), (203_000, 1_875)];
    let mut at = 0;
    for (asked_at, granted) in grants {
        stays_green(&mut rig, ms(asked_at - at));
        at = asked_at;
        let answer = rig.ask_extension(session, vec![claim], at as f64 / 1e6);
        assert_eq!(answer.result, Ok(ms(granted)));
    }
    // The last probe was answered at 200 s, so the last grant is live until 200 + 30 + 1.875 s.
    stays_green(&mut rig, ms(231_874 - at));
    rig.advance(ms(1));
    assert_eq!(rig.endings(id), ["stuck"], "no longer than that");
}

#[test]
fn a_job_that_is_queued_for_an_hour() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["other"]);
    let id = rig.submit(job("k"));
    stays_green(&mut rig, HOUR);
    assert_eq!(rig.state_of(id), JobState::Ready);
    assert_eq!(rig.assigned(session), []);
}

#[test]
fn a_job_that_is_delayed_for_an_hour() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let by_delay = rig.submit(Draft { delay: Some(HOUR), ..job("k") });
    let by_wall = rig.submit(Draft { run_at: Some(Wall::from_ms(EPOCH_MS) + HOUR), ..job("k") });
    stays_green(&mut rig, HOUR - ms(1));
    for id in [by_delay, by_wall] {
        assert_eq!((rig.state_of(id), rig.view(id).started_at), (JobState::Delayed, None));
    }
    rig.advance(ms(1));
    assert_eq!(rig.assigned(session).len(), 1);
}

#[test]
fn a_job_in_an_hour_of_backoff() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    let asked = onward_core::message::EndReport::Fail { error: "busy".into(), retryable: true, delay: Some(HOUR) };
    rig.settle(session, claim, asked).unwrap();
    rig.watch(HOUR - ms(1), |rig| {
        assert_eq!(rig.verdict("w"), Verdict::Healthy);
        assert_eq!(rig.state_of(id), JobState::Delayed);
    });
    assert_eq!((rig.endings(id), rig.eviction_count()), (vec!["failed"], 0));
    rig.advance(ms(1));
    assert_eq!(rig.claim(session).fence, fence(1, 2));
}

#[test]
fn a_job_that_sat_through_a_restart_of_three_minutes() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    stays_green(&mut rig, secs(50));
    rig.progress(session, claim, 1);
    rig.restart(secs(180));
    assert_nothing_ended(&rig);
    stays_green(&mut rig, secs(2));
    let session = rig.hello("w", "1", 2, 1, &["k"], vec![claim]);
    for mark in 2..=20 {
        stays_green(&mut rig, secs(50));
        rig.progress(session, claim, mark);
    }
    rig.succeed(session, claim).unwrap();
    assert_eq!((rig.state_of(id), rig.endings(id)), (JobState::Succeeded, vec!["succeeded"]));
    assert_eq!(rig.assigned(session), [], "it was handed out once");
}

#[test]
fn a_worker_that_is_slow_but_moving() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 2, &["k"]);
    rig.submit(Draft { require_progress: true, ..job("k") });
    let claim = rig.claim(session);
    // One unit in just under a minute, over and over.
    for mark in 1..=60 {
        stays_green(&mut rig, ms(59_999));
        rig.progress(session, claim, mark);
    }
}

#[test]
fn a_worker_half_of_whose_work_moves_is_slow_and_stays() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 3, &["k"]);
    for _ in 0..2 {
        rig.submit(Draft { stuck_after: Some(2 * HOUR), ..job("k") });
    }
    let claims: Vec<_> = rig.assigned(session).into_iter().map(|assignment| assignment.claim).collect();
    for mark in 1..=72 {
        rig.watch(secs(50), |rig| {
            let verdict = rig.verdict("w");
            assert!(matches!(verdict, Verdict::Healthy | Verdict::Slow), "{verdict:?}");
        });
        // The silent one only beats, after it had reported once: it is held by its lease, and does not move.
        rig.progress(session, claims[0], mark);
        rig.progress(session, claims[1], 1);
    }
    assert_eq!(rig.verdict("w"), Verdict::Slow);
    assert_nothing_ended(&rig);
    rig.submit(job("k"));
    assert_eq!(rig.assigned(session).len(), 1, "slow is routed to last, and still routed to");
}

#[test]
fn a_manager_with_nothing_to_do() {
    let mut rig = Rig::new();
    rig.watch(2 * HOUR, |rig| {
        let judged = rig.manager.own_judgement();
        assert_eq!(
            (judged.verdict, judged.signals.progress),
            (Verdict::Busy, ProgressSignal::Idle),
            "it has no worker"
        );
    });
    rig.worker("w", 1, 1, &["k"]);
    stays_green(&mut rig, 2 * HOUR);
    assert_eq!(rig.manager.own_judgement().verdict, Verdict::Healthy);
}

#[test]
fn a_manager_whose_workers_are_all_full() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    for _ in 0..50 {
        rig.submit(job("k"));
    }
    let claim = rig.claim(session);
    for mark in 1..=20 {
        stays_green(&mut rig, secs(50));
        rig.progress(session, claim, mark);
    }
    assert_eq!(rig.manager.own_judgement().signals.progress, ProgressSignal::Idle, "nothing could be handed out");
}

#[test]
fn an_http_worker_is_live_until_the_last_of_its_leases_ends() {
    let mut rig = Rig::new();
    for _ in 0..2 {
        rig.submit(job("k"));
    }
    let poll = |lease| onward_core::input::Poll { lease, ..Rig::poll_of("w", &["k"], 1, Duration::ZERO) };
    let long = rig.leases(poll(secs(300)))[0].claim;
    // What is heard of a shorter lease, and its end, take nothing from the longer one.
    let short = rig.leases(poll(secs(100)))[0].claim;
    rig.http_beat(Beat { quiet: Some(secs(500)), ..Beat::plain(long) }).unwrap();
    rig.http_beat(Beat::plain(short)).unwrap();
    rig.http_settle(short, success()).unwrap();
    rig.watch(ms(559_999), |rig| {
        let judged = rig.worker_view("w").judgement;
        assert!(is_green(judged.verdict), "{judged:?} at {:?}", rig.now.mono);
    });
    assert_eq!((rig.endings(long.job), rig.eviction_count()), (vec![], 0));
    rig.http_settle(long, success()).unwrap();
}

#[test]
fn an_http_worker_that_gave_everything_back_is_trusted_for_its_last_call_only() {
    let mut rig = Rig::new();
    rig.submit(job("k"));
    let poll = onward_core::input::Poll { lease: secs(900), ..Rig::poll_of("w", &["k"], 1, Duration::ZERO) };
    let claim = rig.leases(poll)[0].claim;
    rig.advance(secs(50));
    rig.http_settle(claim, success()).unwrap();
    rig.advance(ms(29_999));
    assert!(rig.worker_view("w").judgement.signals.live);
    rig.advance(ms(1));
    assert!(!rig.worker_view("w").judgement.signals.live);
}

#[test]
fn a_manager_judges_itself_over_the_window_that_was_set() {
    use onward_core::health::ProgressSignal;
    let mut rig = Rig::with(|settings| settings.progress.window = secs(12));
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.succeed(session, claim).unwrap();
    assert_eq!(rig.manager.own_judgement().signals.progress, ProgressSignal::Normal);
    rig.advance(secs(13));
    assert_eq!(
        rig.manager.own_judgement().signals.progress,
        ProgressSignal::Idle,
        "nothing was handed out in the window"
    );
}
