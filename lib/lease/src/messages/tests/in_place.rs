//! Tries in place: what a loop on probation does where the mailbox counts every hand-out.

use super::*;

/// The time of the try before does not count against it.
#[tokio::test(start_paused = true)]
async fn a_try_in_place_has_a_stuck_clock_of_its_own() {
    let spy = Spy::new().counting_deliveries();
    spy.fill(1).await;
    let tries = Arc::new(AtomicU32::new(0));
    let counted = tries.clone();
    let one = MessageLoop::on(spy.clone()).failure_budget(1).stuck_after(secs(600)).handle_bytes(move |delivery| {
        let number = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            delivery.progress(5 - u64::from(number), 10);
            for _ in 0..40 {
                sleep(secs(10)).await;
                delivery.beat();
            }
            delivery.check()?;
            if number == 0 { Err(Failure::retry("the bank is away")) } else { Ok(Bytes::new()) }
        }
    });
    let (counts, began) = (one.counts(), Instant::now());
    one.run_until(empty(spy.clone())).await.unwrap();
    assert_eq!((counts.get().acknowledged, counts.get().retried, tries.load(Ordering::SeqCst)), (1, 0, 2));
    assert!((secs(800)..secs(810)).contains(&began.elapsed()), "{:?}", began.elapsed());
}

/// A report of the second try is progress, though the try before had reported more.
#[tokio::test(start_paused = true)]
async fn a_try_in_place_reports_its_progress_from_the_beginning() {
    let spy = Spy::new().counting_deliveries();
    spy.fill(1).await;
    let tries = Arc::new(AtomicU32::new(0));
    let counted = tries.clone();
    let one = MessageLoop::on(spy.clone()).failure_budget(1).stuck_after(secs(600)).handle_bytes(move |delivery| {
        let number = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            if number == 0 {
                delivery.progress(1_000, 1_000);
                sleep(secs(20)).await;
                return Err(Failure::retry("the bank is away"));
            }
            for step in 1..=80 {
                sleep(secs(10)).await;
                delivery.progress(step, 1_000);
            }
            delivery.check()?;
            Ok(Bytes::new())
        }
    });
    let counts = one.counts();
    one.run_until(empty(spy.clone())).await.unwrap();
    assert_eq!((counts.get().acknowledged, counts.get().retried, tries.load(Ordering::SeqCst)), (1, 0, 2));
}

/// It may be this message that cannot succeed.
#[tokio::test(start_paused = true)]
async fn a_message_that_fails_in_place_again_and_again_lets_another_one_have_its_turn() {
    let spy = Spy::new().counting_deliveries();
    spy.fill(2).await;
    let tried = Arc::new(Mutex::new(Vec::new()));
    let noted = tried.clone();
    let one = MessageLoop::on(spy.clone()).concurrency(1).failure_budget(1).handle_bytes(move |delivery| {
        let mut tried = noted.lock().unwrap();
        tried.push(delivery.body().clone());
        let is_first = delivery.body() == &tried[0];
        async move { if is_first { Err(Failure::retry("the bank is away")) } else { Ok(Bytes::new()) } }
    });
    let (counts, began) = (one.counts(), Instant::now());
    let other_is_done = async {
        while counts.get().acknowledged == 0 {
            sleep(secs(1)).await;
            assert!(began.elapsed() < secs(7_200), "it never has its turn");
        }
    };
    one.run_until(other_is_done).await.unwrap();
    let tried = tried.lock().unwrap();
    let before = tried.iter().take_while(|body| **body == tried[0]).count();
    assert_eq!(before, TRIES_TO_ONE as usize, "{tried:?}");
}

#[tokio::test(start_paused = true)]
async fn the_place_is_free_again_for_the_next_message() {
    let spy = Spy::new().counting_deliveries();
    spy.fill(3).await;
    let tries = Arc::new(AtomicU32::new(0));
    let one = MessageLoop::on(spy.clone()).concurrency(1).failure_budget(1).handle_bytes(move |_| {
        let number = tries.fetch_add(1, Ordering::SeqCst);
        async move { if number % 3 < 2 { Err(Failure::retry("the bank is away")) } else { Ok(Bytes::new()) } }
    });
    let counts = one.counts();
    one.run_until(empty(spy.clone())).await.unwrap();
    assert_eq!((counts.get().acknowledged, counts.get().retried), (3, 0));
}
