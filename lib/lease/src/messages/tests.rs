//! The message loop in injected time, on the mailbox in memory.

mod in_place;
mod liveness;
mod reaching;
mod settling;

use core::future::Future;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use onward_health::Supervisor;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use super::MessageLoop;
use super::probation::TRIES_TO_ONE;
use crate::delivery::Delivery;
use crate::failure::Failure;
use crate::mailbox::{Depth, End, Mailbox, Memory, Message, Want};
use crate::spy::Spy;
use crate::wrap::tests::watched;

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The number of times that each message was done.
#[derive(Clone, Default)]
struct DoneCount(Arc<Mutex<BTreeMap<Bytes, u32>>>);

impl DoneCount {
    fn note(&self, delivery: &Delivery) -> Result<Bytes, Failure> {
        *self.0.lock().unwrap().entry(delivery.body().clone()).or_default() += 1;
        Ok(Bytes::new())
    }

    fn each_once(&self, count: usize) -> bool {
        let done = self.0.lock().unwrap();
        done.len() == count && done.values().all(|times| *times == 1)
    }
}

/// Waits until nothing waits or is held, which no test needs two hours for.
async fn empty(mailbox: impl Mailbox) {
    let began = Instant::now();
    while !matches!(mailbox.depth().await.unwrap(), Depth { waiting: 0, held: 0, .. }) {
        assert!(began.elapsed() < secs(7_200), "not empty after two hours: {:?}", mailbox.depth().await);
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_of_eight_hangs_and_only_its_message_is_redelivered_and_finishes_elsewhere() {
    let spy = Spy::new();
    spy.fill(8).await;
    let (done, runs) = (DoneCount::default(), Arc::new(AtomicU32::new(0)));
    let work = |hangs: bool| {
        let (done, runs) = (done.clone(), runs.clone());
        MessageLoop::on(spy.clone()).concurrency(8).lease(secs(60)).handle_bytes(move |delivery| {
            let (done, runs) = (done.clone(), runs.clone());
            async move {
                runs.fetch_add(1, Ordering::SeqCst);
                for step in 0..20 {
                    sleep(secs(10)).await;
                    if hangs && delivery.body() == "3" && step == 2 {
                        core::future::pending::<()>().await;
                    }
                    delivery.progress(step + 1, 20);
                }
                done.note(&delivery)
            }
        })
    };
    let first = work(true);
    let counts = first.counts();
    let hanging = tokio::spawn(first.run_until(empty(spy.clone())));
    sleep(secs(5)).await;
    let elsewhere = tokio::spawn(work(false).run_until(empty(spy.clone())));
    hanging.await.unwrap().unwrap();
    elsewhere.await.unwrap().unwrap();
    assert!(done.each_once(8));
    assert_eq!(runs.load(Ordering::SeqCst), 9, "eight and one again");
    assert_eq!((counts.get().acknowledged, counts.get().lost), (7, 1));
    assert_eq!(spy.depth().await.unwrap().dead, 0);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_beats_without_progress_ends_at_stuck_after() {
    let spy = Spy::new();
    spy.fill(1).await;
    let (began, done) = (Instant::now(), DoneCount::default());
    let handled = done.clone();
    let one = MessageLoop::on(spy.clone()).stuck_after(secs(600)).handle_bytes(move |delivery| {
        let done = handled.clone();
        async move {
            delivery.progress(1, 2);
            while delivery.delivery() == 1 {
                sleep(secs(1)).await;
                delivery.beat();
            }
            done.note(&delivery)
        }
    });
    let counts = one.counts();
    one.run_until(empty(spy.clone())).await.unwrap();
    assert!(done.each_once(1));
    assert!((secs(600)..secs(640)).contains(&began.elapsed()), "{:?}", began.elapsed());
    assert_eq!((counts.get().retried, counts.get().lost), (1, 0), "its lease was kept, and its message tried again");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_beats_for_ever_ends_at_max_hold() {
    let spy = Spy::new();
    spy.fill(1).await;
    let (began, done, beaten) = (Instant::now(), DoneCount::default(), Arc::new(Mutex::new(Duration::ZERO)));
    let (handled, noted) = (done.clone(), beaten.clone());
    let one =
        MessageLoop::on(spy.clone()).max_hold(secs(600)).cancel_grace(Duration::ZERO).handle_bytes(move |delivery| {
            let (done, beaten) = (handled.clone(), noted.clone());
            async move {
                for step in (0..).take_while(|_| delivery.delivery() == 1) {
                    sleep(secs(1)).await;
                    delivery.progress(step + 1, u64::MAX);
                    *beaten.lock().unwrap() = began.elapsed();
                }
                done.note(&delivery)
            }
        });
    let counts = one.counts();
    one.run_until(empty(spy.clone())).await.unwrap();
    assert!(done.each_once(1));
    let beaten = *beaten.lock().unwrap();
    assert!((secs(598)..=secs(601)).contains(&beaten), "it beat until {beaten:?}");
    assert_eq!((counts.get().lost, counts.get().acknowledged), (1, 1), "its hold was spent, and it was done again");
}

/// Runs in real time, since the processes are real.
#[tokio::test]
async fn a_lost_lease_cancels_the_handler_and_all_that_it_started() {
    let spy = Spy::new();
    spy.fill(1).await;
    let (command, gone) = watched("exec 3<&0; (setsid sleep 1000 &); sleep 1000 & echo ready; wait");
    let command = Arc::new(Mutex::new(Some(command)));
    let one = MessageLoop::on(spy.clone()).lease(Duration::from_millis(900)).handle_bytes(move |delivery| {
        let command = command.lock().unwrap().take();
        async move {
            if let Some(command) = command {
                delivery.command(command).await?;
            }
            Ok(Bytes::new())
        }
    });
    let counts = one.counts();
    let (ended, ()) = tokio::join!(one.run_until(empty(spy.clone())), gone);
    ended.unwrap();
    assert_eq!((counts.get().lost, counts.get().acknowledged), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn the_late_ack_of_a_lost_lease_is_refused_as_memory_declares_and_counted() {
    let spy = Spy::new();
    spy.fill(1).await;
    let one = MessageLoop::on(spy.clone()).lease(secs(60)).continue_when_lost().handle_bytes(|_| async {
        sleep(secs(100)).await;
        Ok(Bytes::new())
    });
    let counts = one.counts();
    let (release, stop) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(one.run_until(async { drop(stop.await) }));
    sleep(secs(65)).await;
    let want = Want { max: 1, lease: secs(600), wait: Duration::ZERO };
    let other = spy.inner.receive(want).await.unwrap().remove(0);
    sleep(secs(50)).await;
    assert_eq!((counts.get().refused, counts.get().acknowledged), (1, 0));
    assert_eq!(spy.inner.settle(vec![(other.receipt, End::ACK)]).await, [Ok(())], "the new holder keeps it");
    drop(release);
    running.await.unwrap().unwrap();
}

/// Holds whatever the mailbox counts, and whether the queue is long or a single message.
#[tokio::test(start_paused = true)]
async fn an_outage_of_ten_minutes_puts_no_message_into_the_dead_letters() {
    end_an_outage(secs(300), || async {
        sleep(Duration::from_millis(50)).await;
        Err(Failure::retry("the database is away"))
    })
    .await;
}

/// The same where nothing comes back from what is away.
#[tokio::test(start_paused = true)]
async fn an_outage_of_ten_minutes_in_which_handlers_hang_puts_no_message_into_the_dead_letters() {
    for lease in [secs(30), secs(60), secs(300)] {
        end_an_outage(lease, core::future::pending).await;
    }
}

/// Ten minutes in which every handler ends so.
async fn end_an_outage<Run>(lease: Duration, away: impl Fn() -> Run + Clone + Send + Sync + 'static)
where
    Run: Future<Output = Result<Bytes, Failure>> + Send,
{
    for (spy, messages) in [
        (Spy::new(), 1),
        (Spy::new(), 30),
        (Spy::new().counting_deliveries(), 1),
        (Spy::new().counting_deliveries(), 30),
    ] {
        spy.fill(messages).await;
        let (began, done) = (Instant::now(), DoneCount::default());
        let handled = done.clone();
        let away = away.clone();
        let one = MessageLoop::on(spy.clone()).concurrency(8).lease(lease).handle_bytes(move |delivery| {
            let (done, away) = (handled.clone(), away.clone());
            async move {
                if began.elapsed() < secs(600) {
                    return away().await;
                }
                done.note(&delivery)
            }
        });
        one.run_until(empty(spy.clone())).await.unwrap();
        let dead = spy.dead_letters(9).await.unwrap();
        assert!(dead.is_empty(), "{messages} messages, {lease:?}: {dead:?}");
        assert!(done.each_once(messages));
        let soon = secs(900) + lease;
        assert!(began.elapsed() < soon, "{messages} messages, {lease:?}: it goes on at {:?}", began.elapsed());
    }
}

/// Alone in its queue, so that it is always its turn and nothing ever succeeds.
#[tokio::test(start_paused = true)]
async fn a_lone_message_that_always_fails_reaches_the_dead_letters() {
    for spy in [Spy::new(), Spy::new().counting_deliveries()] {
        for how in ["an error", "a panic", "silence"] {
            spy.fill(1).await;
            let one = MessageLoop::on(spy.clone()).lease(secs(30)).handle_bytes(move |_| async move {
                match how {
                    "an error" => Err(Failure::retry("no")),
                    "a panic" => panic!("on purpose"),
                    _ => core::future::pending().await,
                }
            });
            let counts = one.counts();
            one.run_until(empty(spy.clone())).await.unwrap();
            assert_eq!(counts.get().acknowledged, 0);
        }
        assert_eq!(spy.depth().await.unwrap().dead, 3);
    }
}

/// Asks for more time than the loop would wait.
#[tokio::test(start_paused = true)]
async fn on_probation_a_try_comes_no_sooner_than_its_handler_asked() {
    // where a try was released it waits as long as it likes, in place for two minutes at most
    for (spy, least, most) in [(Spy::new(), 1_000, 1_130), (Spy::new().counting_deliveries(), 120, 130)] {
        spy.fill(1).await;
        let (began, tries) = (Instant::now(), Arc::new(AtomicU32::new(0)));
        let one = MessageLoop::on(spy.clone()).failure_budget(1).handle_bytes(move |_| {
            let is_first = tries.fetch_add(1, Ordering::SeqCst) == 0;
            async move { if is_first { Err(Failure::retry_after(secs(1_000), "away")) } else { Ok(Bytes::new()) } }
        });
        one.run_until(empty(spy.clone())).await.unwrap();
        assert!((secs(least)..secs(most)).contains(&began.elapsed()), "{:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn on_probation_it_takes_one_message_at_a_time_until_one_succeeds() {
    let spy = Spy::new();
    spy.fill(20).await;
    let (healthy, running, most) =
        (Arc::new(AtomicBool::new(false)), Arc::new(Semaphore::new(99)), Arc::new(AtomicU32::new(0)));
    let (is_healthy, slots, seen) = (healthy.clone(), running.clone(), most.clone());
    let one = MessageLoop::on(spy.clone()).concurrency(8).handle_bytes(move |_| {
        let (is_healthy, slots, seen) = (is_healthy.clone(), slots.clone(), seen.clone());
        async move {
            let _slot = slots.acquire().await.unwrap();
            seen.fetch_max(99 - slots.available_permits() as u32, Ordering::SeqCst);
            sleep(secs(1)).await;
            if is_healthy.load(Ordering::SeqCst) { Ok(Bytes::new()) } else { Err(Failure::retry("away")) }
        }
    });
    let task = tokio::spawn(one.run_until(empty(spy.clone())));
    sleep(secs(20)).await;
    assert_eq!(most.swap(0, Ordering::SeqCst), 8);
    sleep(secs(200)).await;
    assert_eq!(most.swap(0, Ordering::SeqCst), 1);
    healthy.store(true, Ordering::SeqCst);
    task.await.unwrap().unwrap();
    assert_eq!(most.load(Ordering::SeqCst), 8, "one success ends it");
}

#[tokio::test(start_paused = true)]
async fn shutdown_with_eight_in_flight_loses_and_doubles_nothing() {
    let spy = Spy::new();
    spy.fill(20).await;
    let done = DoneCount::default();
    let work = |slow: bool| {
        let done = done.clone();
        MessageLoop::on(spy.clone()).concurrency(8).lease(secs(9)).drain_grace(secs(30)).handle_bytes(move |delivery| {
            let done = done.clone();
            async move {
                let number: u64 = std::str::from_utf8(delivery.body()).unwrap().parse().unwrap();
                // Half of those in flight need longer than the drain lasts.
                let steps = if slow && number.is_multiple_of(2) { 100 } else { 20 };
                for step in 0..steps {
                    sleep(secs(1)).await;
                    delivery.check()?;
                    delivery.progress(step + 1, steps);
                }
                done.note(&delivery)
            }
        })
    };
    let first = work(true);
    let counts = first.counts();
    first.run_until(sleep(secs(5))).await.unwrap();
    let counts = counts.get();
    assert_eq!((counts.acknowledged, counts.released, counts.lost, counts.refused), (4, 4, 0, 0));
    assert_eq!(spy.depth().await.unwrap(), Depth { waiting: 16, held: 0, dead: 0 }, "given back at once");
    let elsewhere = work(false);
    let counts = elsewhere.counts();
    elsewhere.run_until(empty(spy.clone())).await.unwrap();
    assert!(done.each_once(20));
    assert_eq!(counts.get().acknowledged, 16);
}

#[tokio::test(start_paused = true)]
async fn a_cut_between_reply_and_ack_sends_the_reply_again_and_loses_nothing() {
    let spy = Spy::new();
    spy.send(vec![Message::new("6").reply_to("answers")]).await.remove(0).unwrap();
    spy.cut_next_ack();
    let one = MessageLoop::on(spy.clone()).handle(|_: Delivery, number: u32| async move { Ok(number * 7) });
    let counts = one.counts();
    one.run_until(empty(spy.clone())).await.unwrap();
    let want = Want { max: 9, lease: secs(60), wait: Duration::ZERO };
    let replies = spy.inner.sibling("answers").receive(want).await.unwrap();
    let bodies: Vec<_> = replies.iter().map(|reply| &reply.message.body).collect();
    assert!(bodies.len() == 2 && bodies.iter().all(|body| **body == "42"), "{bodies:?}");
    assert_eq!(counts.get().acknowledged, 1);
    assert_eq!(replies[0].message.headers["in-reply-to"], "1");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_fit_and_a_failure_for_good_go_to_the_dead_letters() {
    let spy = Spy::new();
    spy.send(["x", "1", "0"].map(Message::new).into()).await;
    let one = MessageLoop::on(spy.clone()).handle(|_: Delivery, number: u32| async move {
        if number == 0 { Err(Failure::permanent("no such order")) } else { Ok(()) }
    });
    one.run_until(empty(spy.clone())).await.unwrap();
    let dead = spy.dead_letters(9).await.unwrap();
    assert!(dead[0].why.starts_with("the body does not fit this handler: expected value"), "{}", dead[0].why);
    assert_eq!((dead.len(), &*dead[1].why, dead[1].deliveries), (2, "no such order", 1));
}

#[tokio::test(start_paused = true)]
async fn a_thousand_short_messages_cost_no_extension_and_none_waits_in_a_buffer() {
    let spy = Spy::new();
    spy.fill(1_000).await;
    let (done, running) = (DoneCount::default(), Arc::new(AtomicU32::new(0)));
    let (handled, watching) = (done.clone(), spy.clone());
    let one = MessageLoop::on(spy.clone()).concurrency(8).handle_bytes(move |delivery| {
        let (done, running, spy) = (handled.clone(), running.clone(), watching.clone());
        async move {
            running.fetch_add(1, Ordering::SeqCst);
            delivery.beat();
            sleep(Duration::from_millis(50)).await;
            let held = spy.depth().await.unwrap().held;
            assert!(held <= 8, "{held} are held for 8 slots");
            delivery.beat();
            done.note(&delivery)
        }
    });
    one.run_until(empty(spy.clone())).await.unwrap();
    assert!(done.each_once(1_000));
    assert_eq!(spy.extended(), 0);
    assert!(spy.wants().iter().all(|max| (1..=8).contains(max)));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_beats_keeps_its_message_for_longer_than_a_lease() {
    let spy = Spy::new();
    spy.fill(1).await;
    let one = MessageLoop::on(spy.clone()).lease(secs(60)).handle_bytes(|delivery| async move {
        for _ in 0..60 {
            sleep(secs(10)).await;
            delivery.beat();
        }
        assert!(delivery.extensions() > 9, "{} extensions in 10 minutes", delivery.extensions());
        Ok(Bytes::new())
    });
    let counts = one.counts();
    one.run_until(empty(spy.clone())).await.unwrap();
    assert_eq!((counts.get().acknowledged, counts.get().lost), (1, 0));
    assert!(spy.extended() <= 60, "{} extensions", spy.extended());
}

/// Also where a lease is shorter than the loop would wait.
#[tokio::test(start_paused = true)]
async fn a_message_that_comes_late_in_a_wait_is_as_young_as_any() {
    let spy = Spy::new();
    let one = MessageLoop::on(spy.clone()).lease(secs(10)).wait(secs(20)).handle_bytes(|delivery| async move {
        delivery.beat();
        sleep(Duration::from_millis(900)).await;
        Ok(Bytes::new())
    });
    let (counts, sent) = (one.counts(), spy.clone());
    let over = async move {
        for pause in [0, 5, 9, 14, 19] {
            sleep(secs(pause)).await;
            sent.fill(1).await;
            empty(sent.clone()).await;
        }
    };
    one.run_until(over).await.unwrap();
    assert_eq!((counts.get().acknowledged, counts.get().lost, spy.extended()), (5, 0, 0));
}

/// A process that dies settles nothing: so does a loop that is dropped.
#[tokio::test(start_paused = true)]
async fn a_message_that_kills_its_process_each_time_reaches_the_dead_letters_at_its_limit() {
    let spy = Spy::new();
    spy.fill(1).await;
    let deaths = Arc::new(AtomicU32::new(0));
    for _ in 0..6 {
        let (died, dead) = (Arc::new(tokio::sync::Notify::new()), deaths.clone());
        let dying = died.clone();
        let one = MessageLoop::on(spy.clone()).lease(secs(60)).handle_bytes(move |_| {
            dead.fetch_add(1, Ordering::SeqCst);
            dying.notify_one();
            core::future::pending()
        });
        tokio::select! {
            ended = one.run_until(empty(spy.clone())) => ended.unwrap(),
            () = died.notified() => {}
        }
    }
    assert_eq!((deaths.load(Ordering::SeqCst), spy.depth().await.unwrap().dead), (5, 1));
}

#[tokio::test(start_paused = true)]
async fn a_try_waits_as_its_failure_asks_and_a_release_does_not_count() {
    let spy = Spy::on(Memory::builder().max_deliveries(4).build());
    spy.fill(1).await;
    let runs = Arc::new(AtomicU32::new(0));
    let counted = runs.clone();
    let one = MessageLoop::on(spy.clone()).failure_budget(99).handle_bytes(move |delivery| {
        let run = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            match run {
                0..4 => Err(Failure::release(Some(secs(1)))),
                4 => Err(Failure::retry_after(secs(500), "busy")),
                5 => panic!("on purpose"),
                _ => {
                    assert_eq!(delivery.delivery(), 3);
                    Ok(Bytes::new())
                }
            }
        }
    });
    let (began, counts) = (Instant::now(), one.counts());
    one.run_until(empty(spy.clone())).await.unwrap();
    assert!(began.elapsed() > secs(504), "{:?}", began.elapsed());
    let counts = counts.get();
    assert_eq!((counts.released, counts.retried, counts.acknowledged), (4, 2, 1));
}

/// Any wait up to the longest is drawn, and the longest doubles: of three hundred draws one is in its upper half.
#[tokio::test(start_paused = true)]
async fn retryable_failures_wait_longer_each_time() {
    let spy = Spy::on(Memory::builder().max_deliveries(6).build());
    spy.fill(300).await;
    let failed_at = Arc::new(Mutex::new(BTreeMap::<Bytes, Instant>::new()));
    let waits = Arc::new(Mutex::new(BTreeMap::<u32, Duration>::new()));
    let (failing, longest) = (failed_at.clone(), waits.clone());
    let one = MessageLoop::on(spy.clone()).concurrency(300).failure_budget(u32::MAX).retry(secs(10), secs(40));
    let one = one.handle_bytes(move |delivery| {
        let now = Instant::now();
        if let Some(failed) = failing.lock().unwrap().insert(delivery.body().clone(), now) {
            let mut longest = longest.lock().unwrap();
            let wait = longest.entry(delivery.delivery() - 1).or_default();
            *wait = (*wait).max(now - failed);
        }
        async { Err(Failure::retry("no")) }
    });
    one.run_until(empty(spy.clone())).await.unwrap();
    let waits = waits.lock().unwrap();
    let within = |(failures, most): (u32, u64)| (secs(most / 2)..=secs(most)).contains(&waits[&failures]);
    assert!([(1, 10), (2, 20), (3, 40), (4, 40), (5, 40)].into_iter().all(within), "{waits:?}");
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused_at_the_start() {
    let handled = |one: MessageLoop| one.handle_bytes(|_| async { Ok(Bytes::new()) });
    let on = || MessageLoop::on(Memory::new());
    let never = core::future::pending;
    for (one, text) in [
        (on(), "no handler"),
        (handled(on().concurrency(0)), "no slots"),
        (handled(on().lease(secs(60)).interval(secs(60))), "lease.interval is 60s; allowed: at most 20s"),
    ] {
        let error = one.run_until(never()).await.unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
}

/// Waits until it is so, by the clock of the machine, on however slow a machine.
async fn soon(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < secs(60), "it is never so");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn it_is_a_loop_of_a_supervisor_with_its_readiness() {
    let mailbox = Memory::new();
    let service = Supervisor::new("shop").without_signals();
    let one = MessageLoop::on(mailbox.clone()).named("orders").critical().failure_budget(1);
    service.add(one.handle(|_: Delivery, good: bool| async move {
        if good { Ok(()) } else { Err(Failure::retry("the bank is away")) }
    }));
    let (health, stopper) = (service.health(), service.stopper());
    let running = tokio::spawn(service.run());
    let until = async |ready: bool| {
        soon(|| health.report().why_not_ready().is_none() == ready).await;
    };
    mailbox.send(vec![Message::new("true")]).await;
    until(true).await;
    mailbox.send(vec![Message::new("false")]).await;
    until(false).await;
    let why = health.report().why_not_ready().unwrap();
    assert!(why.contains("orders"), "{why}");
    stopper.stop();
    running.await.unwrap().unwrap();
    assert_eq!(mailbox.depth().await.unwrap(), Depth { waiting: 1, held: 0, dead: 0 });
}

/// Runs in real time, since the eye is a thread. The handler blocks its thread, so that no cancel reaches it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_whose_thread_hangs_is_seen_by_the_eye_when_its_lease_is_over() {
    let mailbox = Memory::new();
    mailbox.send(vec![Message::new("1")]).await;
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = Arc::new(Mutex::new(blocked));
    let service = Supervisor::new("shop").without_signals();
    let one = MessageLoop::on(mailbox.clone()).named("orders").critical();
    let one = one.lease(Duration::from_millis(300)).cancel_grace(Duration::ZERO);
    service.add(one.handle_bytes(move |delivery| {
        let blocked = blocked.clone();
        async move {
            delivery.beat();
            // Ends when the test lets it, and at once from then on.
            let _ = blocked.lock().unwrap().recv();
            Ok(Bytes::new())
        }
    }));
    let (health, stopper) = (service.health(), service.stopper());
    let running = tokio::spawn(service.run());
    let until = async |live: bool| {
        soon(|| health.report().why_not_live().is_none() == live).await;
    };
    until(false).await;
    let why = health.report().why_not_live().unwrap();
    assert!(why.contains("orders handlers"), "{why}");
    drop(release);
    until(true).await;
    stopper.stop();
    running.await.unwrap().unwrap();
}
