//! What a turn says, what of it counts, and how it is shown.

use super::*;

/// Turns that come to nothing, after one that succeeded.
fn skipping(name: &str, mut each: impl FnMut(Turn) + Send + 'static) -> Loop {
    let mut is_first = true;
    let turn = move |turn: Turn| {
        each(turn);
        let outcome = if std::mem::take(&mut is_first) { Outcome::Idle } else { Outcome::Skipped };
        async move { Ok::<_, RefusedInput>(outcome) }
    };
    Loop::new(name, turn).every(s(1)).critical()
}

#[tokio::test(start_paused = true)]
async fn a_step_by_nothing_is_none() {
    let service = service();
    service.add(skipping("poll", |turn| turn.progress(0)));
    let (health, running) = run(service);
    until("ready", || health.report().ready).await;
    sleep(s(61)).await;
    assert_eq!(one(&health).reason, LoopReason::NotFresh);
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn nothing_counts_that_is_said_of_a_turn_that_has_ended() {
    let service = service();
    let mut first = None;
    service.add(skipping("poll", move |turn| first.get_or_insert(turn).progress(1)));
    let (health, running) = run(service);
    until("ready", || health.report().ready).await;
    sleep(s(61)).await;
    assert_eq!(one(&health).reason, LoopReason::NotFresh);
    assert!(health.report().metrics().contains("onward_loop_units_total{service=\"test\",loop=\"poll\"} 1\n"));
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_is_dropped_has_failed() {
    let service = service();
    let drops = Loop::running("drops", |reporter| async move {
        reporter.record(Outcome::Idle);
        while !reporter.is_stopping() {
            drop(reporter.begin());
            reporter.wait(s(1)).await;
        }
        Ok::<_, RefusedInput>(())
    });
    service.add(drops.critical());
    let (health, running) = run(service);
    let reason = || health.report().loops.first().map(|one| one.reason);
    until("red", || reason() == Some(LoopReason::BudgetSpent)).await;
    assert_eq!(one(&health).error.as_deref(), Some("the turn was dropped before it ended"));
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn what_was_done_is_counted_once_and_every_change_of_state_too() {
    let service = service();
    let turn = |turn: Turn| async move {
        turn.progress(3);
        Ok::<_, RefusedInput>(Outcome::Progress(4))
    };
    service.add(Loop::new("poll", turn).every(s(30)).critical());
    let (health, running) = run(service);
    until("ready", || health.report().ready).await;
    let metrics = health.report().metrics();
    assert!(metrics.contains("onward_loop_units_total{service=\"test\",loop=\"poll\"} 4\n"), "{metrics}");
    assert!(metrics.contains("onward_loop_transitions_total{service=\"test\",loop=\"poll\"} 1\n"), "{metrics}");
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_text_that_is_too_long_is_shortened() {
    let service = service();
    let turn = |_| async { Err::<Outcome, _>("ä".repeat(10_000)) };
    service.add(Loop::new("talks", turn).every(s(1)).critical());
    let (health, running) = run(service);
    until("a failure", || health.report().loops.iter().any(|one| one.error.is_some())).await;
    assert_eq!(one(&health).error, Some("ä".repeat(300) + "…"));
    running.abort();
}
