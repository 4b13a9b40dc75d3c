//! Loops under a supervisor, in time that the test decides.

mod waits;
mod words;

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onward_health::{
    Backoff, Budget, Dependency, HealthHandle, Loop, LoopReason, LoopReport, LoopState, Outcome, RestartRule, RunError,
    Supervisor, Turn,
};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, advance, sleep};

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// An error of the user's own, of which nothing is asked but a text.
struct RefusedInput;

impl fmt::Display for RefusedInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("connection refused")
    }
}

fn service() -> Supervisor {
    Supervisor::new("test").without_signals()
}

fn run(service: Supervisor) -> (HealthHandle, JoinHandle<Result<(), RunError>>) {
    (service.health(), tokio::spawn(service.run()))
}

fn one(health: &HealthHandle) -> LoopReport {
    health.report().loops.remove(0)
}

/// Lets simulated time pass in small steps until it is so, for an hour at most.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..36_000 {
        if is_so() {
            return;
        }
        sleep(Duration::from_millis(100)).await;
    }
    panic!("it never came to this: {what}");
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_catches_everything_and_sleeps_turns_readiness_red_and_recovers() {
    let works = Arc::new(AtomicU32::new(1));
    let service = service();
    let seen = Arc::clone(&works);
    let turn = move |_turn: Turn| {
        let works = seen.load(Ordering::Relaxed) == 1;
        async move { if works { Ok(Outcome::Progress(1)) } else { Err(RefusedInput) } }
    };
    service.add(Loop::new("publish", turn).every(s(1)).critical());
    let stop = service.stopper();
    let (health, running) = run(service);
    assert!(!health.report().ready, "nothing has been started");
    until("ready", || health.report().ready).await;
    works.store(0, Ordering::Relaxed);
    until("red", || !health.report().ready).await;
    let report = health.report();
    let failing = &report.loops[0];
    assert_eq!((failing.state, failing.reason, failing.failures), (LoopState::Failing, LoopReason::BudgetSpent, 3));
    let why = report.why_not_ready().unwrap();
    assert!(why.contains("loop `publish` is failing") && why.ends_with("(budget_spent): connection refused"), "{why}");
    assert!(report.live, "a restart would not help: {:?}", report.why_not_live());
    sleep(s(300)).await;
    assert!(health.report().live && !health.report().ready);
    works.store(1, Ordering::Relaxed);
    until("ready again", || health.report().ready).await;
    assert_eq!(one(&health).error, None, "it is over");
    stop.stop();
    running.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_turn_of_five_minutes_that_steps_is_healthy_throughout() {
    let service = service();
    let turn = |turn: Turn| async move {
        for _ in 0..10 {
            sleep(s(30)).await;
            turn.progress(1);
        }
        Ok::<_, RefusedInput>(Outcome::Progress(10))
    };
    service.add(Loop::new("reindex", turn).every(s(1)).critical().freshness(s(60)));
    let stop = service.stopper();
    let (health, running) = run(service);
    until("the first step", || health.report().ready).await;
    let began = Instant::now();
    while began.elapsed() < s(400) {
        sleep(s(1)).await;
        let report = health.report();
        assert!(report.ready && report.live, "{:?}: {:?}", began.elapsed(), report.why_not_ready());
    }
    stop.stop();
    running.await.unwrap().unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_only_beats_is_alive_and_not_ready() {
    let service = service();
    let turn = |turn: Turn| async move {
        loop {
            sleep(s(30)).await;
            turn.beat();
        }
        #[allow(unreachable_code)]
        Ok::<_, RefusedInput>(Outcome::Idle)
    };
    service.add(Loop::new("busy", turn).every(s(1)).critical());
    let (health, running) = run(service);
    sleep(s(600)).await;
    let report = health.report();
    assert_eq!((report.live, report.ready), (true, false));
    assert_eq!(one(&health).reason, LoopReason::NeverSucceeded);
    assert!(one(&health).last_beat().unwrap().file().ends_with("supervisor/main.rs"));
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_crash_is_seen_at_once_and_too_many_of_them_are_the_end() {
    let service = service();
    let turns = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&turns);
    let turn = move |_| {
        let number = seen.fetch_add(1, Ordering::Relaxed);
        async move {
            assert!(number == 0, "out of luck in turn {number}");
            Ok::<_, RefusedInput>(Outcome::Progress(1))
        }
    };
    let rule = RestartRule { backoff: Backoff { base: s(2), max: s(20) }, most: 2, within: s(600) };
    service.add(Loop::new("crash", turn).every(s(1)).critical().restart(rule));
    let stop = service.stopper();
    let (health, running) = run(service);
    until("ready", || health.report().ready).await;
    // In small steps: the wait before a restart is drawn by chance, and may be short.
    while turns.load(Ordering::Relaxed) < 2 {
        sleep(Duration::from_millis(1)).await;
    }
    let crashed = one(&health);
    assert_eq!((crashed.state, crashed.reason), (LoopState::Restarting, LoopReason::Crashed), "{crashed:?}");
    assert!(crashed.error.as_ref().unwrap().starts_with("it panicked: out of luck in turn "), "{crashed:?}");
    assert!(health.report().live && !health.report().ready);
    until("the end", || one(&health).state == LoopState::Dead).await;
    assert_eq!(turns.load(Ordering::Relaxed), 4, "a good turn, a crash, and one more for each restart");
    assert!(!health.report().live);
    assert!(health.report().metrics().contains("onward_loop_restarts_total{service=\"test\",loop=\"crash\"} 2\n"));
    assert!(!running.is_finished(), "the service goes on, and says that it is not alive");
    stop.stop();
    running.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_hangs_is_cancelled_and_the_loop_goes_on() {
    let service = service();
    let turns = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&turns);
    let turn = move |_| {
        let number = seen.fetch_add(1, Ordering::Relaxed);
        async move {
            if number == 1 {
                std::future::pending::<()>().await;
            }
            Ok::<_, RefusedInput>(Outcome::Progress(1))
        }
    };
    service.add(Loop::new("hang", turn).every(s(1)).critical().longest_turn(s(20)));
    let (health, running) = run(service);
    until("the turn that hangs", || turns.load(Ordering::Relaxed) == 2).await;
    sleep(s(20)).await;
    // The eye is a real thread, and time stands still here unless we wait: so wait for it without time.
    let began = std::time::Instant::now();
    while turns.load(Ordering::Relaxed) == 2 {
        assert!(began.elapsed() < s(60), "nobody cancelled it");
        let seen = one(&health);
        assert!(matches!(seen.state, LoopState::Stalled | LoopState::Healthy), "{seen:?}");
        // No faster than the eye's own time, or freshness runs out before it gets to see the turn.
        advance(Duration::from_millis(1)).await;
        std::thread::park_timeout(Duration::from_millis(1));
    }
    until("fresh again", || health.report().ready).await;
    assert_eq!(one(&health).failures, 0);
    assert!(
        health.report().metrics().contains("loop=\"hang\",outcome=\"failed\"} 1\n"),
        "what was cancelled has failed"
    );
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_dependency_that_is_down_leaves_liveness_alone() {
    let service = service();
    let db = Dependency::new("postgres");
    service.add(db.clone());
    service.add(Loop::new("poll", |_| async { Ok::<_, RefusedInput>(Outcome::Idle) }).every(s(1)).critical());
    let (health, running) = run(service);
    until("ready", || health.report().ready).await;
    db.down("connection refused");
    sleep(s(1200)).await;
    let report = health.report();
    assert_eq!((report.live, report.ready), (true, false));
    assert_eq!(report.why_not_ready().unwrap(), "postgres: it is down: connection refused");
    db.up();
    assert!(health.report().ready);
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn waits_end_early_when_the_loop_is_woken() {
    let service = service();
    let turns = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&turns);
    let turn = move |turn: Turn| {
        seen.fetch_add(1, Ordering::Relaxed);
        turn.next_in(s(40));
        async { Ok::<_, RefusedInput>(Outcome::Idle) }
    };
    let poll = Loop::new("poll", turn).every(s(1)).critical();
    let waker = poll.waker();
    service.add(poll);
    let (_health, running) = run(service);
    sleep(s(30)).await;
    assert_eq!(turns.load(Ordering::Relaxed), 1, "the turn chose 40 s over the loop's own 1 s");
    waker.wake();
    sleep(s(1)).await;
    assert_eq!(turns.load(Ordering::Relaxed), 2);
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn finished_is_healthy_and_the_service_ends_when_all_are() {
    let service = service();
    let gate = Arc::new(Notify::new());
    let opened = Arc::clone(&gate);
    service.add(Loop::new("migrate", |_| async { Ok::<_, RefusedInput>(Outcome::Finished) }).critical());
    let wait = move |_| {
        let gate = Arc::clone(&opened);
        async move {
            gate.notified().await;
            Ok::<_, RefusedInput>(Outcome::Finished)
        }
    };
    service.add(Loop::new("import", wait));
    let (health, running) = run(service);
    sleep(s(1000)).await;
    let report = health.report();
    assert_eq!(report.loops[0].state, LoopState::Finished);
    assert!(report.ready, "{:?}", report.why_not_ready());
    gate.notify_one();
    running.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stop_before_the_start_is_not_lost() {
    let service = service();
    let turns = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&turns);
    let turn = move |_| {
        seen.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, RefusedInput>(Outcome::Idle) }
    };
    let service = service.probes("127.0.0.1:0");
    service.add(Loop::new("poll", turn).critical());
    service.stopper().stop();
    let health = service.health();
    service.run().await.unwrap();
    assert_eq!(turns.load(Ordering::Relaxed), 0);
    assert_eq!(health.probes_address(), None, "nothing was started");
}

#[tokio::test(start_paused = true)]
async fn one_deadline_for_all() {
    let service = service().shutdown_within(s(10));
    let slow = |seconds| {
        move |turn: Turn| async move {
            turn.stopping().await;
            sleep(s(seconds)).await;
            Ok::<_, RefusedInput>(Outcome::Progress(1))
        }
    };
    for (name, seconds) in [("quick", 3), ("slow", 9), ("endless", 11), ("lost", 4000)] {
        service.add(Loop::new(name, slow(seconds)).critical());
    }
    let stop = service.stopper();
    let (health, running) = run(service);
    sleep(s(5)).await;
    stop.stop();
    sleep(s(1)).await;
    let report = health.report();
    assert!(report.live && !report.ready && report.loops.iter().all(|one| one.state == LoopState::Stopping));
    let told = Instant::now();
    let error = running.await.unwrap().unwrap_err();
    assert_eq!(told.elapsed(), s(9));
    let RunError::ShutdownDeadline { mut loops, within } = error else { panic!("{error}") };
    loops.sort();
    assert_eq!((loops, within), (vec!["loop `endless`".to_owned(), "loop `lost`".to_owned()], s(10)));
}

/// It cannot be ended from outside, and nobody may wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_blocks_its_thread_does_not_keep_the_service_from_ending() {
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let (begun, begins) = tokio::sync::oneshot::channel();
    let (blocked, mut begun) = (Arc::new(Mutex::new(blocked)), Some(begun));
    let turn = move |_turn: Turn| {
        let (blocked, begun) = (Arc::clone(&blocked), begun.take());
        async move {
            begun.map(|begun| begun.send(()));
            let _ = blocked.lock().unwrap().recv();
            Ok::<_, RefusedInput>(Outcome::Idle)
        }
    };
    let service = service().shutdown_within(Duration::from_millis(10));
    service.add(Loop::new("stuck", turn).critical());
    let stop = service.stopper();
    let (_, running) = run(service);
    begins.await.unwrap();
    stop.stop();
    let ended = tokio::time::timeout(s(60), running).await;
    drop(release);
    let error = ended.expect("it waits for the turn").unwrap().unwrap_err();
    assert!(matches!(&error, RunError::ShutdownDeadline { loops, .. } if loops == &["loop `stuck`"]), "{error}");
}

/// A service that only answers for others.
#[tokio::test(start_paused = true)]
async fn a_service_without_loops_runs_until_it_is_told_to_stop() {
    let service = service();
    service.add(Dependency::new("postgres"));
    let stop = service.stopper();
    let (health, running) = run(service);
    sleep(s(60)).await;
    assert!(!running.is_finished() && health.report().ready);
    stop.stop();
    running.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_runs_by_itself_reports_several_turns_at_a_time() {
    let service = service();
    let handled = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&handled);
    let messages = Loop::running("messages", move |reporter| {
        let handled = Arc::clone(&seen);
        async move {
            // Two handlers at a time; every fifth message fails, and the seventh brings the loop down.
            while !reporter.is_stopping() {
                let number = handled.fetch_add(2, Ordering::Relaxed);
                sleep(s(1)).await;
                reporter.progress(1);
                for number in [number, number + 1] {
                    match number {
                        6 => return Err(RefusedInput),
                        _ if number % 5 == 0 => reporter.record_failure("refused", RefusedInput),
                        _ => reporter.record(Outcome::Progress(1)),
                    }
                }
            }
            Ok(())
        }
    });
    service.add(messages.critical().budget(Budget::Consecutive(2)));
    let stop = service.stopper();
    let (health, running) = run(service);
    until("ready", || health.report().ready).await;
    until("the crash", || one(&health).state == LoopState::Restarting).await;
    until("ready again", || health.report().ready).await;
    assert!(handled.load(Ordering::Relaxed) > 8);
    stop.stop();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn what_cannot_be_kept_is_refused_before_anything_starts() {
    let idle = |_| async { Ok::<_, RefusedInput>(Outcome::Idle) };
    let backoff = service();
    backoff.add(Loop::new("outbox", idle).critical().freshness(s(60)).backoff(s(1), s(120)));
    let nothing_critical = service();
    nothing_critical.add(Loop::new("outbox", idle));
    let twice = service();
    twice.add(Loop::new("outbox", idle).critical());
    twice.add(Dependency::new("outbox"));
    let lag = service().executor_lag(Duration::from_millis(100));
    lag.add(Loop::new("outbox", idle).critical());
    let started = Arc::new(Mutex::new(false));
    for (service, expected) in [
        (lag, "an executor's lag of 100ms cannot be seen"),
        (backoff, "the backoff after failures (up to 120s) is not shorter than freshness (60s)"),
        (nothing_critical, "nothing in it is critical"),
        (twice, "the name `outbox` is empty or given twice"),
        (self::service(), "nothing in it is critical"),
    ] {
        let (seen, watched) = (Arc::clone(&started), Loop::new("watched", idle));
        service.add(watched.every(s(1)));
        service.add(Loop::new("starts", move |_| {
            *seen.lock().unwrap() = true;
            async { Ok::<_, RefusedInput>(Outcome::Idle) }
        }));
        let error = service.run().await.unwrap_err().to_string();
        assert!(error.contains(expected), "{expected:?} is not in\n{error}");
    }
    assert!(!*started.lock().unwrap());
}
