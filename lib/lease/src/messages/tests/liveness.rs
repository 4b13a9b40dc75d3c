//! What a supervisor sees of a loop whose handlers take long, and whose dependency or mailbox is away.

use onward_health::{HealthHandle, Stopper};
use tokio::task::JoinHandle;

use super::*;
use crate::mailbox::MailboxError;

struct ServedMessage {
    health: HealthHandle,
    stopper: Stopper,
    running: JoinHandle<()>,
}

fn serve(one: MessageLoop) -> ServedMessage {
    // The machine's time says nothing here: ours is injected.
    let service = Supervisor::new("shop").without_signals().executor_lag(secs(86_400)).shutdown_within(secs(86_400));
    service.add(one.named("orders").critical());
    let (health, stopper) = (service.health(), service.stopper());
    ServedMessage { health, stopper, running: tokio::spawn(async move { service.run().await.unwrap() }) }
}

impl ServedMessage {
    /// Asks the probes every second for so long.
    async fn probe(&self, span: Duration, looks_well: impl Fn(&onward_health::ProcessReport) -> Result<(), String>) {
        let began = Instant::now();
        while began.elapsed() < span {
            sleep(secs(1)).await;
            let why = looks_well(&self.health.report());
            assert_eq!(why, Ok(()), "after {:?}", began.elapsed());
        }
    }

    async fn stop(self) {
        self.stopper.stop();
        self.running.await.unwrap();
    }
}

fn live(report: &onward_health::ProcessReport) -> Result<(), String> {
    report.why_not_live().map_or(Ok(()), Err)
}

fn live_and_ready(report: &onward_health::ProcessReport) -> Result<(), String> {
    report.why_not_ready().map_or(Ok(()), Err)
}

/// All slots are taken by work that is as it should be: by beats that are rarer than a minute, and by none at all.
#[tokio::test(start_paused = true)]
async fn handlers_that_are_slow_or_quiet_turn_nothing_red() {
    for (lease, quiet) in [(secs(60), true), (secs(300), true), (secs(300), false)] {
        let spy = Spy::new();
        spy.fill(3).await;
        let one = MessageLoop::on(spy.clone()).lease(lease).handle_bytes(move |delivery| async move {
            for step in 0..10 {
                if quiet {
                    delivery.quietly(secs(300), sleep(secs(290))).await;
                    // It beats at last, but not at once.
                    sleep(secs(30)).await;
                    delivery.check()?;
                    return Ok(Bytes::new());
                }
                sleep(secs(70)).await;
                if step % 2 == 0 { delivery.beat() } else { delivery.progress(step, 10) }
            }
            Ok(Bytes::new())
        });
        let counts = one.counts();
        let served = serve(one);
        served.probe(secs(1), |_| Ok(())).await;
        served.probe(secs(1_400), live_and_ready).await;
        assert!(counts.get().acknowledged > 0 && counts.get().lost == 0, "{:?}", counts.get());
        served.stop().await;
    }
}

/// Not ready, because work fails; live, because a restart would not help. The mailbox counts every hand-out, so that
/// messages are tried in place.
#[tokio::test(start_paused = true)]
async fn an_outage_of_ten_minutes_leaves_the_loop_live() {
    for (spy, lease) in [(Spy::new().counting_deliveries(), secs(300)), (Spy::new().counting_deliveries(), secs(30))] {
        spy.fill(2).await;
        let began = Instant::now();
        let one = MessageLoop::on(spy.clone()).lease(lease).failure_budget(1).handle_bytes(move |_| async move {
            sleep(secs(1)).await;
            if began.elapsed() < secs(600) { Err(Failure::retry("the bank is away")) } else { Ok(Bytes::new()) }
        });
        let served = serve(one);
        served.probe(secs(10), live).await;
        let away = |report: &onward_health::ProcessReport| {
            live(report)?;
            if report.ready { Err("it is ready".into()) } else { Ok(()) }
        };
        served.probe(secs(580), away).await;
        served.probe(secs(300), live).await;
        assert!(served.health.report().ready, "{:?}", served.health.report());
        served.stop().await;
    }
}

/// A handler that ends does not let the loop look as if it did not turn: its message is settled for as long as that takes.
#[tokio::test(start_paused = true)]
async fn a_mailbox_that_does_not_answer_settlements_leaves_the_loop_live() {
    let spy = Spy::new();
    spy.fill(1).await;
    spy.lose_answers(secs(280), false);
    let served = serve(MessageLoop::on(spy.clone()).handle_bytes(|_| async { Ok(Bytes::new()) }));
    served.probe(secs(400), live).await;
    served.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_hangs_in_its_mailbox_is_stalled() {
    let spy = Spy::new();
    let served = serve(MessageLoop::on(spy.clone()).handle_bytes(|_| async { Ok(Bytes::new()) }));
    served.probe(secs(60), live).await;
    spy.slow_arrivals(secs(86_400));
    sleep(secs(120)).await;
    let why = served.health.report().why_not_live().expect("nothing comes back from the mailbox");
    assert!(why.contains("orders") && why.contains("stalled"), "{why}");
    drop(served);
}

/// Its message is being handled when nothing more comes back for the slot that is free.
#[tokio::test(start_paused = true)]
async fn a_loop_that_hangs_in_its_mailbox_is_stalled_though_a_handler_steps() {
    let spy = Spy::new();
    spy.fill(1).await;
    let one = MessageLoop::on(spy.clone()).concurrency(2).handle_bytes(|delivery| async move {
        for step in 0.. {
            sleep(secs(10)).await;
            delivery.progress(step, None);
        }
        Ok(Bytes::new())
    });
    let served = serve(one);
    served.probe(secs(60), live).await;
    spy.slow_arrivals(secs(86_400));
    sleep(secs(120)).await;
    let why = served.health.report().why_not_live().expect("nothing comes back from the mailbox");
    assert!(why.contains("stalled"), "{why}");
    drop(served);
}

/// Work that the mailbox does not take is done again and again: nothing comes of it, however well handlers do.
#[tokio::test(start_paused = true)]
async fn a_mailbox_that_refuses_settlements_makes_the_loop_unready_and_is_asked_for_little() {
    let spy = Spy::new();
    spy.fill(30).await;
    spy.fail_settlements(Some(MailboxError::Refused { why: "no permission".into(), remedy: "allow it".into() }));
    let runs = Arc::new(AtomicU32::new(0));
    let counted = runs.clone();
    let served = serve(MessageLoop::on(spy.clone()).handle_bytes(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok(Bytes::new()) }
    }));
    sleep(secs(20)).await;
    served.probe(secs(580), live).await;
    let why = served.health.report().why_not_ready().expect("nothing is ever settled");
    assert!(why.contains("orders") && why.contains("no permission"), "{why}");
    let worked = runs.load(Ordering::SeqCst);
    assert!((4..20).contains(&worked), "{worked} handlers in ten minutes");
    spy.fail_settlements(None);
    served.probe(secs(130), live).await;
    served.probe(secs(1), live_and_ready).await;
    served.stop().await;
}

/// Its handlers take longer than their leases, and may. What they do is done again.
#[tokio::test(start_paused = true)]
async fn an_ack_that_comes_too_late_is_no_success() {
    let spy = Spy::new();
    spy.fill(1).await;
    let one = MessageLoop::on(spy.clone()).lease(secs(60)).continue_when_lost().concurrency(2).failure_budget(1);
    let served = serve(one.handle_bytes(|_| async {
        sleep(secs(100)).await;
        Ok(Bytes::new())
    }));
    served.probe(secs(1), |_| Ok(())).await;
    served.probe(secs(90), live_and_ready).await;
    sleep(secs(15)).await;
    let why = served.health.report().why_not_ready().expect("its ack was refused");
    assert!(why.contains("could not be settled: the receipt is stale"), "{why}");
    served.stop().await;
}
