//! How messages begin and end where something comes between: a lost answer, a lease that is over, a stop.

use super::*;

/// Counts its runs, and is done at once.
fn counted(spy: &Spy) -> (MessageLoop, Arc<AtomicU32>) {
    let runs = Arc::new(AtomicU32::new(0));
    let counted = runs.clone();
    let one = MessageLoop::on(spy.clone()).handle_bytes(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok(Bytes::from_static(b"done")) }
    });
    (one, runs)
}

async fn replies(spy: &Spy) -> usize {
    let want = Want { max: 9, lease: secs(60), wait: Duration::ZERO };
    spy.inner.sibling("answers").receive(want).await.unwrap().len()
}

/// A settlement whose outcome is not known is said again: a lease lasts for longer than most outages.
#[tokio::test(start_paused = true)]
async fn a_settlement_whose_outcome_is_not_known_is_repeated_while_the_lease_lasts() {
    for (span, is_done) in [(secs(1), true), (secs(1), false), (secs(60), true), (secs(60), false)] {
        let spy = Spy::new();
        spy.send(vec![Message::new("1").reply_to("answers")]).await.remove(0).unwrap();
        spy.lose_answers(span, is_done);
        let (one, runs) = counted(&spy);
        let (counts, began) = (one.counts(), Instant::now());
        let heard = async {
            while counts.get().acknowledged == 0 {
                sleep(secs(1)).await;
                assert!(began.elapsed() < secs(250), "never heard, {span:?} {is_done}");
            }
        };
        one.run_until(heard).await.unwrap();
        assert!(began.elapsed() >= span, "{:?}", began.elapsed());
        assert_eq!((runs.load(Ordering::SeqCst), replies(&spy).await), (1, 1), "{span:?} {is_done}");
        assert_eq!(counts.get().refused, 0);
        assert!(spy.settles() <= 12, "{} calls in {span:?}", spy.settles());
    }
}

/// A mailbox that is away does not keep a loop from stopping.
#[tokio::test(start_paused = true)]
async fn a_settlement_that_nobody_hears_ends_with_the_drain() {
    let spy = Spy::new();
    spy.fill(1).await;
    spy.lose_answers(secs(9_999), false);
    let (one, runs) = counted(&spy);
    let (counts, began) = (one.counts(), Instant::now());
    one.drain_grace(secs(18)).run_until(sleep(secs(30))).await.unwrap();
    assert_eq!((began.elapsed(), runs.load(Ordering::SeqCst)), (secs(30 + 18), 1));
    assert_eq!(counts.get(), crate::messages::MessageCounts::default());
}

/// A message that the mailbox will never take is not worked on again and again until its deliveries are spent.
#[tokio::test(start_paused = true)]
async fn a_reply_that_is_refused_for_good_brings_its_message_to_the_dead_letters() {
    let spy = Spy::new();
    let max = spy.inner.promises().max_bytes;
    spy.send(vec![Message::new("1").reply_to("answers")]).await.remove(0).unwrap();
    let runs = Arc::new(AtomicU32::new(0));
    let counted = runs.clone();
    let one = MessageLoop::on(spy.clone()).handle_bytes(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move { Ok(Bytes::from(vec![0; max + 1])) }
    });
    let counts = one.counts();
    one.run_until(empty(spy.clone())).await.unwrap();
    let dead = spy.dead_letters(9).await.unwrap();
    assert_eq!((dead.len(), runs.load(Ordering::SeqCst), counts.get().dead), (1, 1, 1));
    assert!(dead[0].why.starts_with("the reply could not be sent: a body of"), "{}", dead[0].why);
}

/// Nothing prefetched runs after its own lease has expired.
#[tokio::test(start_paused = true)]
async fn a_message_whose_lease_is_over_when_it_would_begin_does_not_begin() {
    let spy = Spy::new();
    spy.fill(1).await;
    spy.slow_arrivals(secs(61));
    let (one, runs) = counted(&spy);
    let counts = one.counts();
    let (late, began) = (spy.clone(), runs.clone());
    let over = async move {
        sleep(secs(62)).await;
        assert_eq!((counts.get().lost, began.load(Ordering::SeqCst)), (1, 0), "its lease of 60 s was over");
        late.slow_arrivals(Duration::ZERO);
        empty(late).await;
    };
    one.lease(secs(60)).run_until(over).await.unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), 1, "the next hand-out is in time");
}

#[tokio::test(start_paused = true)]
async fn what_arrives_while_the_loop_stops_is_given_back_at_once() {
    let spy = Spy::new();
    let (one, runs) = counted(&spy);
    let counts = one.counts();
    let sent = spy.clone();
    let sending = tokio::spawn(async move {
        sleep(Duration::from_millis(3_500)).await;
        sent.fill(1).await;
    });
    // A call that began at 0 s waits for messages until 20 s.
    one.run_until(sleep(secs(3))).await.unwrap();
    sending.await.unwrap();
    assert_eq!(spy.depth().await.unwrap(), Depth { waiting: 1, held: 0, dead: 0 });
    assert_eq!((counts.get().released, runs.load(Ordering::SeqCst)), (1, 0));
}
