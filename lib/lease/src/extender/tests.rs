//! The lease extender in injected time. The default rule: a lease of 300 s, renewed at most every 60.

use super::*;
use crate::heartbeat::CancelWhy;
use crate::mailbox::{End, Mailbox, MailboxError, Memory, Want};
use crate::spy::Spy;
use std::sync::atomic::Ordering;
use tokio::time::{Instant, sleep, sleep_until};

const LEASE: Duration = Duration::from_secs(300);

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn extender() -> LeaseExtender {
    LeaseExtender::new(LeaseRule::default()).unwrap()
}

/// Beats at these seconds from now on, and gives the task time to act on the last one.
async fn beat_at(heartbeat: &Heartbeat, seconds: impl IntoIterator<Item = u64>) {
    let began = Instant::now();
    for second in seconds {
        sleep_until(began + secs(second)).await;
        heartbeat.beat();
    }
    sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn the_first_beat_of_a_lease_of_unknown_age_extends_at_once() {
    let (spy, extender) = (Arc::new(Spy::new()), extender());
    let delivery = spy.deliver_of_age(LEASE, None).await;
    let _lease = extender.attach(&delivery, &delivery).unwrap();
    beat_at(&delivery, [5, 6, 7]).await;
    assert_eq!(spy.extends_at(), [5]);
    sleep(secs(200)).await;
    assert_eq!(spy.extends_at(), [5, 65], "beats inside the interval lead to one renewal at its end");
}

#[tokio::test(start_paused = true)]
async fn the_first_beat_of_a_young_lease_extends_when_it_is_an_interval_old() {
    let (spy, extender) = (Arc::new(Spy::new()), extender());
    let delivery = spy.deliver(LEASE).await;
    let _lease = extender.attach(&delivery, &delivery).unwrap();
    beat_at(&delivery, [0, 59]).await;
    assert_eq!(spy.extended(), 0);
    sleep(secs(10)).await;
    assert_eq!(spy.extends_at(), [60], "a beat at 59 s renews at 60 s");
}

#[tokio::test(start_paused = true)]
async fn eight_threads_that_beat_give_one_renewal() {
    let (spy, extender) = (Arc::new(Spy::new()), extender());
    let delivery = spy.deliver_of_age(LEASE, None).await;
    let _lease = extender.attach(&delivery, &delivery).unwrap();
    sleep(secs(1)).await;
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..10_000).for_each(|_| delivery.beat()));
        }
    });
    sleep(secs(30)).await;
    assert_eq!(spy.extends_at(), [1]);
}

/// In real time, since the threads are real: the extender looks while they beat. It goes on renewing, and no more often
/// than its rule says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_threads_that_beat_while_the_extender_looks_are_heard_all_the_time() {
    const RENEWALS: u64 = 300;
    let interval = Duration::from_millis(2);
    let rule = LeaseRule { initial: secs(600), extension: secs(600), interval, enabled: true };
    let (spy, extender) = (Arc::new(Spy::new()), LeaseExtender::new(rule).unwrap());
    let delivery = spy.deliver_of_age(rule.initial, None).await;
    let _lease = extender.attach(&delivery, &delivery).unwrap();
    let (began, is_over) = (Instant::now(), AtomicBool::new(false));
    let is_renewed = std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    delivery.beat();
                }
            });
        }
        // A minute without a renewal is silence, on however slow a machine.
        let mut seen = (0, Instant::now());
        while seen.0 < RENEWALS && seen.1.elapsed() < secs(60) {
            std::thread::yield_now();
            if delivery.extensions() > seen.0 {
                seen = (delivery.extensions(), Instant::now());
            }
        }
        is_over.store(true, Ordering::Relaxed);
        seen.0 >= RENEWALS
    });
    assert!(is_renewed, "they beat, and after {} renewals nobody heard them", delivery.extensions());
    let most = began.elapsed().as_millis() / interval.as_millis() + 1;
    assert!(spy.extended() as u128 <= most, "{} renewals, where {most} are due", spy.extended());
}

#[tokio::test(start_paused = true)]
async fn fifty_beats_during_an_outage_give_backoff_and_not_fifty_calls() {
    let (spy, extender) = (Arc::new(Spy::new()), extender());
    spy.fail_extensions(Some(Spy::unavailable()));
    let delivery = spy.deliver_of_age(LEASE, None).await;
    let lease = extender.attach(&delivery, &delivery).unwrap();
    beat_at(&delivery, 0..50).await;
    let calls = spy.extends_at().len();
    assert!((4..=20).contains(&calls), "{calls} calls in 50 s");
    spy.fail_extensions(None);
    sleep(secs(61)).await;
    assert!(matches!(lease.state(), LeaseState::Held { remaining } if remaining > secs(230)), "{:?}", lease.state());
    assert!(!delivery.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn without_a_beat_the_lease_runs_out_and_the_handler_is_cancelled() {
    let (spy, extender) = (Arc::new(Spy::new()), extender());
    let delivery = spy.deliver(LEASE).await;
    let lease = extender.attach(&delivery, &delivery).unwrap();
    let began = Instant::now();
    assert_eq!(delivery.cancelled().await, CancelWhy::LeaseExpired);
    assert_eq!((began.elapsed(), spy.extended()), (LEASE, 0));
    assert_eq!(lease.state(), LeaseState::Lost { why: LossReason::Expired });
    let again = spy.inner.receive(Want { max: 1, lease: LEASE, wait: Duration::ZERO }).await.unwrap();
    assert_eq!(again[0].delivery, 2, "and the message is handed out again");
}

#[tokio::test(start_paused = true)]
async fn a_handler_whose_lease_is_lost_may_be_left_to_finish() {
    let (spy, extender) = (Arc::new(Spy::new()), extender().continue_when_lost());
    let delivery = spy.deliver(LEASE).await;
    let lease = extender.attach(&delivery, &delivery).unwrap();
    sleep(secs(400)).await;
    assert!(matches!(lease.state(), LeaseState::Lost { .. }) && !delivery.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_receipt_that_the_mailbox_no_longer_honours_is_a_lost_lease() {
    let (spy, extender) = (Arc::new(Spy::new()), extender());
    let delivery = spy.deliver_of_age(LEASE, None).await;
    let lease = extender.attach(&delivery, &delivery).unwrap();
    spy.fail_extensions(Some(MailboxError::Stale));
    delivery.beat();
    assert_eq!(delivery.cancelled().await, CancelWhy::LeaseExpired);
    assert_eq!(lease.state(), LeaseState::Lost { why: LossReason::ReceiptExpired });
}

#[tokio::test(start_paused = true)]
async fn a_refusal_for_good_is_not_tried_again_and_the_lease_lasts_for_what_it_was() {
    let (spy, extender) = (Arc::new(Spy::new()), extender());
    spy.fail_extensions(Some(MailboxError::Refused { why: "no".into(), remedy: "allow it".into() }));
    let delivery = spy.deliver_of_age(LEASE, None).await;
    let _lease = extender.attach(&delivery, &delivery).unwrap();
    beat_at(&delivery, (0..290).step_by(10)).await;
    assert_eq!((spy.extends_at(), delivery.is_cancelled()), (vec![0], false));
    assert_eq!(delivery.cancelled().await, CancelWhy::LeaseExpired);
}

/// Events of one level that were logged on this thread.
#[derive(Clone)]
struct Events(tracing::Level, Arc<Mutex<Vec<String>>>);

impl Events {
    fn of(level: tracing::Level) -> Self {
        Self(level, Arc::default())
    }

    fn said(&self) -> Vec<String> {
        self.1.lock().unwrap().clone()
    }
}

impl tracing::Subscriber for Events {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == self.0
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut said = String::new();
        event.record(&mut |field: &tracing::field::Field, value: &dyn fmt::Debug| {
            said += &format!("{field}={value:?} ")
        });
        self.1.lock().unwrap().push(said);
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn a_refusal_for_good_is_said_once_with_its_remedy() {
    let errors = Events::of(tracing::Level::ERROR);
    let _listening = tracing::subscriber::set_default(errors.clone());
    let (spy, extender) = (Arc::new(Spy::new()), extender());
    spy.fail_extensions(Some(MailboxError::Refused { why: "no permission".into(), remedy: "allow it".into() }));
    for _ in 0..2 {
        let delivery = spy.deliver_of_age(LEASE, None).await;
        let _lease = extender.attach(&delivery, &delivery).unwrap();
        beat_at(&delivery, [0, 100]).await;
    }
    let said = errors.said();
    assert_eq!((spy.extended(), said.len()), (2, 1), "{said:?}");
    assert!(said[0].contains("no permission") && said[0].contains("allow it"), "{said:?}");
}

/// For whoever asks why a message is held for so long.
#[tokio::test(start_paused = true)]
async fn every_extension_is_logged_with_its_message_and_its_length() {
    let events = Events::of(tracing::Level::DEBUG);
    let _listening = tracing::subscriber::set_default(events.clone());
    let (spy, extender) = (Arc::new(Spy::new()), extender());
    let delivery = spy.deliver_of_age(LEASE, None).await;
    let _lease = extender.attach(&delivery, &delivery).unwrap();
    beat_at(&delivery, [0, 100]).await;
    let said: Vec<_> = events.said().into_iter().filter(|said| said.contains("lease extended")).collect();
    assert_eq!(said.len(), 2, "{said:?}");
    let message = format!("message={}", delivery.id());
    assert!(said.iter().all(|said| said.contains(&message) && said.contains("granted=300s")), "{said:?}");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_in_flight_when_the_message_settles_is_ignored() {
    let (spy, extender) = (Arc::new(Spy::new()), extender());
    let delivery = spy.deliver_of_age(LEASE, None).await;
    let lease = extender.attach(&delivery, &delivery).unwrap();
    spy.slow_extensions(secs(20));
    beat_at(&delivery, [1]).await;
    assert_eq!(spy.extends_at(), [1]);
    drop(lease);
    let settled = spy.settle(vec![(delivery.receipt().clone(), End::ACK)]).await;
    assert_eq!((settled, extender.len()), (vec![Ok(())], 0));
    sleep(secs(400)).await;
    assert_eq!((spy.extends_at(), delivery.is_cancelled()), (vec![1], false), "its answer, `stale`, is nobody's");
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_spent_cancels_before_redelivery() {
    let spy = Arc::new(Spy::on(Memory::builder().longest_hold(secs(600)).build()));
    let extender = extender();
    let delivery = spy.deliver(LEASE).await;
    let lease = extender.attach(&delivery, &delivery).unwrap();
    let (began, beats) = (Instant::now(), delivery.clone());
    let beating = tokio::spawn(async move { beat_at(&beats, (0..900).step_by(10)).await });
    assert_eq!(delivery.cancelled().await, CancelWhy::LeaseExpired);
    assert_eq!(began.elapsed(), secs(540), "a tenth, here a minute, before the mailbox gives it away");
    assert_eq!(lease.state(), LeaseState::Lost { why: LossReason::HoldSpent });
    assert_eq!(spy.inner.depth().await.unwrap().held, 1);
    beating.abort();
}

#[tokio::test(start_paused = true)]
async fn a_handler_has_its_grace_before_a_hold_ends() {
    // longest hold of the mailbox, grace -> when the handler is cancelled
    for (longest, grace, cancelled_at) in [(6_000, 10, 5_940), (6_000, 300, 5_700), (6_000, 900, 5_400)] {
        let spy = Arc::new(Spy::on(Memory::builder().longest_hold(secs(longest)).build()));
        let extender = extender().cancel_grace(secs(grace));
        let delivery = spy.deliver(LEASE).await;
        let _lease = extender.attach(&delivery, &delivery).unwrap();
        let (began, beats) = (Instant::now(), delivery.clone());
        let beating = tokio::spawn(async move { beat_at(&beats, (0..7_000).step_by(10)).await });
        delivery.cancelled().await;
        assert_eq!(began.elapsed(), secs(cancelled_at), "{longest}, {grace}");
        beating.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_ends_when_its_user_says_so_if_the_mailbox_does_not_end_it_before() {
    // longest hold of the mailbox, and of its user -> when the handler is cancelled
    for (longest, max_hold, cancelled_at) in [(None, 600, 600), (Some(6_000), 600, 600), (Some(600), 6_000, 540)] {
        let mailbox = longest.map_or_else(Memory::new, |longest| Memory::builder().longest_hold(secs(longest)).build());
        let (spy, extender) = (Arc::new(Spy::on(mailbox)), extender().max_hold(secs(max_hold)));
        let delivery = spy.deliver(LEASE).await;
        let lease = extender.attach(&delivery, &delivery).unwrap();
        let (began, beats) = (Instant::now(), delivery.clone());
        let beating = tokio::spawn(async move { beat_at(&beats, (0..7_000).step_by(10)).await });
        assert_eq!(delivery.cancelled().await, CancelWhy::LeaseExpired);
        assert_eq!(began.elapsed(), secs(cancelled_at), "{longest:?}, {max_hold}");
        assert_eq!(lease.state(), LeaseState::Lost { why: LossReason::HoldSpent });
        beating.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn leases_detach_in_any_order() {
    let (spy, extender) = (Arc::new(Spy::new()), extender());
    let mut all = Vec::new();
    for _ in 0..3 {
        let delivery = spy.deliver_of_age(LEASE, None).await;
        let lease = extender.attach(&delivery, &delivery).unwrap();
        all.push((delivery, lease));
    }
    drop(all.remove(0).1);
    all.iter().for_each(|(delivery, _)| delivery.beat());
    sleep(secs(1)).await;
    assert_eq!((spy.extends_at(), spy.extended()), (vec![0], 2), "renewals due together are one batch");
    drop(all.pop());
    sleep(secs(100)).await;
    all[0].0.beat();
    sleep(secs(1)).await;
    assert_eq!((spy.extends_at(), extender.len()), (vec![0, 101], 1));
}

/// Two messages of one handler, whose beats keep both.
#[tokio::test(start_paused = true)]
async fn leases_on_one_heartbeat_detach_in_any_order() {
    for kept in [0, 1] {
        let (spy, extender, heartbeat) = (Arc::new(Spy::new()), extender(), Heartbeat::new());
        let deliveries = [spy.deliver_of_age(LEASE, None).await, spy.deliver_of_age(LEASE, None).await];
        let attach = |delivery: &Delivery| extender.attach(delivery, &heartbeat).unwrap();
        let mut leases: Vec<_> = deliveries.iter().map(attach).collect();
        beat_at(&heartbeat, [1]).await;
        assert_eq!(deliveries.each_ref().map(Delivery::extensions), [1, 1]);
        drop(leases.remove(1 - kept));
        beat_at(&heartbeat, [100]).await;
        assert_eq!((deliveries[kept].extensions(), deliveries[1 - kept].extensions(), extender.len()), (2, 1, 1));
        assert!(matches!(leases[0].state(), LeaseState::Held { remaining } if remaining > secs(290)));
    }
}

/// They are due within a moment, and not at the same one.
#[tokio::test(start_paused = true)]
async fn renewals_that_are_due_one_after_the_other_are_gathered_into_one_batch() {
    let (spy, extender) = (Arc::new(Spy::new()), extender());
    let mut all = Vec::new();
    for _ in 0..10 {
        let delivery = spy.deliver_of_age(LEASE, None).await;
        let lease = extender.attach(&delivery, &delivery).unwrap();
        all.push((delivery, lease));
    }
    sleep(secs(1)).await;
    for (delivery, _) in &all {
        delivery.beat();
        sleep(Duration::from_millis(10)).await;
    }
    sleep(secs(1)).await;
    assert_eq!(spy.extend_batches(), [1, 9], "the first is renewed at once, and the others together");
}

#[tokio::test(start_paused = true)]
async fn the_same_receipt_twice_is_refused() {
    let (spy, extender) = (Arc::new(Spy::new()), extender());
    let delivery = spy.deliver(LEASE).await;
    let lease = extender.attach(&delivery, &delivery).unwrap();
    let again = extender.attach(&delivery, &Heartbeat::new());
    assert_eq!(again.unwrap_err(), AlreadyAttached { message: delivery.id().clone() });
    drop(lease);
    assert!(extender.attach(&delivery, &delivery).is_ok(), "once it is let go it may be attached again");
}

#[test]
fn an_interval_that_does_not_fit_the_lease_is_refused_at_build() {
    let rule = |interval| LeaseRule { interval, ..LeaseRule::default() };
    assert!(LeaseExtender::new(rule(secs(100))).is_ok());
    for interval in [secs(101), LEASE, secs(400)] {
        let error = LeaseExtender::new(rule(interval)).unwrap_err();
        assert!(error.to_string().contains("at most 100s"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_extender_that_is_off_extends_nothing() {
    let spy = Arc::new(Spy::new());
    let extender = LeaseExtender::new(LeaseRule { enabled: false, ..LeaseRule::default() }).unwrap();
    let delivery = spy.deliver_of_age(LEASE, None).await;
    let _lease = extender.attach(&delivery, &delivery).unwrap();
    beat_at(&delivery, (0..290).step_by(10)).await;
    assert_eq!(spy.extended(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_observer_from_before_goes_on_seeing_beats() {
    let (spy, extender) = (Arc::new(Spy::new()), extender());
    let delivery = spy.deliver_of_age(LEASE, None).await;
    let seen = Arc::new(Mutex::new(0));
    let _observer = delivery.observe({
        let seen = seen.clone();
        move |_| *seen.lock().unwrap() += 1
    });
    let lease = extender.attach(&delivery, &delivery).unwrap();
    beat_at(&delivery, [0]).await;
    drop(lease);
    beat_at(&delivery, [0]).await;
    assert_eq!((*seen.lock().unwrap(), spy.extended()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_quiet_section_keeps_the_lease_for_at_most_its_time_and_its_budget() {
    let (spy, extender) = (Arc::new(Spy::new()), extender());
    let delivery = spy.deliver(LEASE).await;
    let _lease = extender.attach(&delivery, &delivery).unwrap();
    let began = Instant::now();
    let _quiet = delivery.quiet(secs(9_999));
    delivery.cancelled().await;
    // Renewed from 60 s on until the budget of 600 s is spent; the last renewal lasts for 300 s.
    assert_eq!(began.elapsed(), secs(540 + 300));
}

/// Afterwards only beats renew the lease, however long the section might have been.
#[tokio::test(start_paused = true)]
async fn a_quiet_section_that_ends_early_keeps_the_lease_no_longer() {
    let (spy, extender) = (Arc::new(Spy::new()), extender());
    let delivery = spy.deliver(LEASE).await;
    let _lease = extender.attach(&delivery, &delivery).unwrap();
    let began = Instant::now();
    delivery.quietly(secs(500), sleep(secs(100))).await;
    delivery.cancelled().await;
    // Its end is a beat, which renews once more.
    assert_eq!((spy.extends_at(), began.elapsed()), (vec![60, 120], secs(120 + 300)));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_never_answered_is_over_after_an_interval_and_asked_for_again() {
    let (spy, extender) = (Arc::new(Spy::new()), extender());
    let delivery = spy.deliver_of_age(LEASE, None).await;
    let lease = extender.attach(&delivery, &delivery).unwrap();
    spy.slow_extensions(secs(100_000));
    beat_at(&delivery, [0]).await;
    spy.slow_extensions(Duration::ZERO);
    beat_at(&delivery, (10..600).step_by(10)).await;
    assert!(matches!(lease.state(), LeaseState::Held { .. }) && !delivery.is_cancelled());
    let extends_at = spy.extends_at();
    assert!((60..=75).contains(&extends_at[1]), "{extends_at:?}");
}

#[tokio::test(start_paused = true)]
async fn beats_without_progress_end_at_stuck_after() {
    let (spy, extender) = (Arc::new(Spy::new()), extender().stuck_after(secs(600), false));
    let delivery = spy.deliver(LEASE).await;
    let lease = extender.attach(&delivery, &delivery).unwrap();
    let (began, beats) = (Instant::now(), delivery.clone());
    let beating = tokio::spawn(async move {
        for second in 0..2_000 {
            if second <= 100 {
                beats.progress(second, 1_000);
            }
            beats.beat();
            sleep(secs(1)).await;
        }
    });
    assert_eq!(delivery.cancelled().await, CancelWhy::Stuck);
    // Beats are gathered for a sixtieth of it.
    assert!((secs(700)..=secs(711)).contains(&began.elapsed()), "{:?}", began.elapsed());
    assert!(matches!(lease.state(), LeaseState::Held { .. }), "its beats kept the lease");
    beating.abort();
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_leases_renew_in_few_calls_and_none_is_lost() {
    const COUNT: u64 = 10_000;
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let (spy, extender, threads_before) = (Arc::new(Spy::new()), extender(), threads());
    let mut held = Vec::new();
    for number in 0..COUNT {
        let delivery = spy.deliver(LEASE).await;
        let lease = extender.attach(&delivery, &delivery).unwrap();
        held.push((delivery, lease));
        if number % 100 == 99 {
            // They are not due together: attached over a minute.
            sleep(Duration::from_millis(600)).await;
        }
    }
    let began = Instant::now();
    for second in 1..=600 {
        sleep_until(began + secs(second)).await;
        held.iter().for_each(|(delivery, _)| delivery.beat());
    }
    // Other tests of this program have some.
    let threads = threads().saturating_sub(threads_before);
    assert!(threads < 1_000, "{threads} threads more than before, for {COUNT} leases");
    let mut calls = std::collections::BTreeMap::<u64, u32>::new();
    spy.extends_at().into_iter().for_each(|second| *calls.entry(second / 60).or_default() += 1);
    assert!(calls.len() >= 10 && calls.values().all(|calls| *calls <= 1_000), "calls in each interval: {calls:?}");
    assert!(spy.extended() as u64 >= 9 * COUNT, "{} renewals", spy.extended());
    assert!(
        held.iter()
            .all(|(delivery, lease)| { !delivery.is_cancelled() && matches!(lease.state(), LeaseState::Held { .. }) })
    );
    assert_eq!(spy.inner.depth().await.unwrap().held, COUNT);
}
