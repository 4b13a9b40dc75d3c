//! How long a loop waits after what, and what ends its waits.

use std::collections::HashSet;

use super::*;

/// The instants at which turns began, by loop.
#[derive(Clone, Default)]
struct StartCount(Arc<Mutex<Vec<(usize, Instant)>>>);

impl StartCount {
    fn note(&self, which: usize) {
        self.0.lock().unwrap().push((which, Instant::now()));
    }

    /// The waits of one loop.
    fn waits(&self, which: usize) -> Vec<Duration> {
        let begun = self.0.lock().unwrap();
        let own: Vec<Instant> = begun.iter().filter(|(of, _)| *of == which).map(|(_, at)| *at).collect();
        own.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }
}

/// Loops of which some wait by chance for a short time are told from those that always do.
const LOOPS: usize = 16;

/// Each of the waits lies where it may, they grow, and no two loops wait alike.
fn assert_full_jitter(begun: &StartCount, least: Duration, max: Duration) {
    let all: Vec<Vec<Duration>> = (0..LOOPS).map(|which| begun.waits(which)).collect();
    for waits in &all {
        for (place, wait) in waits.iter().enumerate() {
            let most = s(1 << place.min(10)).min(max);
            assert!(*wait >= least && *wait <= most + Duration::from_millis(1), "wait {place} is {wait:?}");
        }
    }
    for place in 1..4 {
        // A wait that was drawn too short is the least one, and several may have that.
        let drawn: HashSet<Duration> = all.iter().map(|waits| waits[place]).collect();
        assert!(drawn.len() > LOOPS / 4, "loops that failed together come back together: {drawn:?}");
    }
    assert!(all.iter().any(|waits| waits[3] > s(2)), "they do not grow: {all:?}");
}

#[tokio::test(start_paused = true)]
async fn waits_after_failures_double_with_full_jitter_and_never_spin() {
    let (service, begun) = (service(), StartCount::default());
    for which in 0..LOOPS {
        let begun = begun.clone();
        let turn = move |_| {
            begun.note(which);
            async { Err::<Outcome, _>(RefusedInput) }
        };
        let name = format!("loop {which}");
        service.add(Loop::new(&name, turn).every(s(1)).critical().backoff(s(1), s(8)));
    }
    let (_, running) = run(service);
    sleep(s(120)).await;
    assert_full_jitter(&begun, Duration::from_millis(500), s(8));
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn waits_before_restarts_double_with_full_jitter() {
    let (service, begun) = (service(), StartCount::default());
    for which in 0..LOOPS {
        let begun = begun.clone();
        // It panics before there is anything to wait for.
        let turn = move |_| -> std::future::Ready<Result<Outcome, RefusedInput>> {
            begun.note(which);
            panic!("out of luck")
        };
        let rule = RestartRule { backoff: Backoff { base: s(1), max: s(8) }, most: 6, within: s(600) };
        service.add(Loop::new(&format!("loop {which}"), turn).every(s(1)).critical().restart(rule));
    }
    let (health, running) = run(service);
    let dead = || health.report().loops.iter().filter(|one| one.state == LoopState::Dead).count();
    until("the end of all", || dead() == LOOPS).await;
    assert_full_jitter(&begun, Duration::ZERO, s(8));
    assert!((0..LOOPS).all(|which| begun.waits(which).len() == 6));
    let error = health.report().loops[0].error.clone();
    assert_eq!(error.as_deref(), Some("it panicked: out of luck"));
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_the_wait_between_turns_and_the_one_before_a_restart() {
    let service = service().shutdown_within(s(1));
    service.add(Loop::new("poll", |_| async { Ok::<_, RefusedInput>(Outcome::Idle) }).every(s(50)).critical());
    for which in 0..LOOPS {
        let turn = |_| -> std::future::Ready<Result<Outcome, RefusedInput>> { panic!("out of luck") };
        let rule = RestartRule { backoff: Backoff { base: s(50), max: s(50) }, most: 9, within: s(600) };
        service.add(Loop::new(&format!("loop {which}"), turn).critical().restart(rule));
    }
    let stop = service.stopper();
    let (_, running) = run(service);
    sleep(Duration::from_millis(10)).await;
    stop.stop();
    running.await.unwrap().expect("nobody is waited for");
}

/// A wait that the turn chose may be longer than freshness; then the loop is not fresh, and it does not hang.
#[tokio::test(start_paused = true)]
async fn a_chosen_wait_is_no_stall_however_long_it_is() {
    let service = service();
    let turn = |turn: Turn| {
        turn.next_in(s(200));
        async { Ok::<_, RefusedInput>(Outcome::Idle) }
    };
    service.add(Loop::new("poll", turn).every(s(1)).critical());
    let (health, running) = run(service);
    sleep(s(150)).await;
    let report = health.report();
    assert_eq!((report.live, report.ready, one(&health).reason), (true, false, LoopReason::NotFresh));
    running.abort();
}
