//! A mailbox that cannot be reached, or refuses for good.

use super::*;
use crate::mailbox::MailboxError;
use crate::messages::MessageLoopError;

fn idle(spy: &Spy) -> MessageLoop {
    MessageLoop::on(spy.clone()).named("orders").handle_bytes(|_| async { Ok(Bytes::new()) })
}

#[tokio::test(start_paused = true)]
async fn a_mailbox_that_cannot_be_reached_is_asked_again_with_growing_pauses() {
    let spy = Spy::new();
    spy.fill(1).await;
    spy.fail_receives(Some(Spy::unavailable()));
    let one = idle(&spy);
    let counts = one.counts();
    let over = async {
        sleep(secs(60)).await;
        let calls = spy.wants().len();
        assert!((4..=30).contains(&calls), "{calls} calls in a minute");
        spy.fail_receives(None);
        empty(spy.clone()).await;
    };
    one.run_until(over).await.unwrap();
    assert_eq!(counts.get().acknowledged, 1);
}

#[tokio::test(start_paused = true)]
async fn a_mailbox_that_refuses_for_good_ends_the_loop_with_its_remedy() {
    let spy = Spy::new();
    spy.fill(1).await;
    let refusing = spy.clone();
    let one = MessageLoop::on(spy.clone()).concurrency(2).lease(secs(60)).handle_bytes(move |delivery| {
        let refused = MailboxError::Refused { why: "no permission".into(), remedy: "allow it".into() };
        refusing.fail_receives(Some(refused));
        async move {
            for _ in 0..10 {
                sleep(secs(1)).await;
                delivery.beat();
            }
            Ok(Bytes::new())
        }
    });
    let counts = one.counts();
    let ended = one.run_until(core::future::pending()).await.unwrap_err();
    assert_eq!(counts.get().acknowledged, 1, "what was received is finished");
    assert!(matches!(ended, MessageLoopError::Mailbox(_)), "{ended:?}");
    let text = "the mailbox refused: no permission; nothing was changed; allow it";
    assert!(ended.to_string().contains(text), "{ended}");
}

/// Runs in real time, since the supervisor's is. Nothing is sent: a mailbox that was asked and is empty is well.
#[tokio::test]
async fn the_loop_is_ready_while_its_mailbox_answers() {
    let spy = Spy::new();
    let service = Supervisor::new("shop").without_signals();
    service.add(idle(&spy).critical().failure_budget(1).wait(Duration::from_millis(20)));
    let (health, stopper) = (service.health(), service.stopper());
    let running = tokio::spawn(service.run());
    let until = async |ready: bool| {
        soon(|| health.report().why_not_ready().is_none() == ready).await;
    };
    until(true).await;
    spy.fail_receives(Some(Spy::unavailable()));
    until(false).await;
    let why = health.report().why_not_ready().unwrap();
    assert!(why.contains("orders"), "{why}");
    spy.fail_receives(None);
    until(true).await;
    stopper.stop();
    running.await.unwrap().unwrap();
}

/// Messages that cannot succeed are no outage: the loop takes as many at a time as ever, and is well.
#[tokio::test(start_paused = true)]
async fn failures_for_good_spend_no_budget() {
    let spy = Spy::new();
    spy.fill(40).await;
    let most = Arc::new(AtomicU32::new(0));
    let (running, seen) = (Arc::new(Semaphore::new(99)), most.clone());
    let one = MessageLoop::on(spy.clone()).concurrency(8).failure_budget(1).handle_bytes(move |_| {
        let (running, seen) = (running.clone(), seen.clone());
        async move {
            let _slot = running.acquire().await.unwrap();
            sleep(secs(1)).await;
            seen.fetch_max(99 - running.available_permits() as u32, Ordering::SeqCst);
            Err(Failure::permanent("no such order"))
        }
    });
    let (counts, began) = (one.counts(), Instant::now());
    one.run_until(empty(spy.clone())).await.unwrap();
    assert_eq!((counts.get().dead, most.load(Ordering::SeqCst)), (40, 8));
    assert!(began.elapsed() < secs(7), "five rounds of a second: {:?}", began.elapsed());
}
