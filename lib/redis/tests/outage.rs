//! Outages of the broker and of who receives from it, and servers that are refused.

use std::time::Duration;

use onward_lease::conformance;
use onward_lease::mailbox::{Depth, End, Mailbox, MailboxError, Message, Receipt, Received, Reply, Want};
use onward_redis::Redis;
use onward_testkit::RedisServer as Server;

const LONG: Duration = Duration::from_secs(900);

async fn connect(url: &str, name: &str) -> Redis {
    let client = redis::Client::open(url).unwrap();
    Redis::builder(client, name).max_deliveries(2).connect().await.unwrap()
}

/// The next message. A connection that broke is noticed by the first call after that.
async fn take(mailbox: &Redis, lease: Duration) -> Received {
    let want = Want { max: 1, lease, wait: Duration::from_secs(60) };
    loop {
        match mailbox.receive(want).await {
            Ok(mut received) => return received.remove(0),
            Err(error) => assert!(error.is_passing(), "{error}"),
        }
    }
}

async fn settle(mailbox: &Redis, receipt: &Receipt, end: End) -> Result<(), MailboxError> {
    mailbox.settle(vec![(receipt.clone(), end)]).await.remove(0)
}

#[tokio::test]
async fn an_outage_in_mid_work_loses_nothing() {
    let server = Server::start().unwrap();
    let orders = connect(&server.url(), "orders").await;
    let (begin, end) = (async || server.server().kill(), async || server.server().start_again().unwrap());
    conformance::check_outage(&orders, begin, end).await;
    assert_eq!(orders.depth().await, Ok(Depth::default()));
}

/// Reply and acknowledgement are one step, so an answer that was lost is asked for again, and there is one reply.
#[tokio::test]
async fn an_answer_that_is_given_again_after_an_outage_is_one_reply() {
    let server = Server::start().unwrap();
    let (orders, replies) = (connect(&server.url(), "orders").await, connect(&server.url(), "replies").await);
    orders.send(vec![Message::new("question").reply_to(replies.address())]).await.remove(0).unwrap();
    let held = take(&orders, LONG).await;
    let end = End::Ack { reply: Some(Reply { to: replies.address().into(), message: Message::new("answer") }) };
    settle(&orders, &held.receipt, end.clone()).await.unwrap();
    server.server().kill();
    assert!(settle(&orders, &held.receipt, end.clone()).await.unwrap_err().is_passing());
    server.server().start_again().unwrap();
    while let Err(error) = settle(&orders, &held.receipt, end.clone()).await {
        assert!(error.is_passing(), "{error}");
    }
    assert_eq!(take(&replies, LONG).await.message.body, "answer");
    assert_eq!(orders.depth().await, Ok(Depth::default()));
    assert_eq!(replies.depth().await, Ok(Depth { waiting: 0, held: 1, dead: 0 }), "one reply, though said again");
}

const CHILD: &str = "ONWARD_REDIS_CHILD";

#[tokio::test]
async fn a_message_that_aborts_its_process_reaches_the_dead_letters() {
    let server = Server::start().unwrap();
    let orders = connect(&server.url(), "orders").await;
    conformance::check_abort(&orders, 2, || conformance::run_test("receives_and_aborts", CHILD, &server.url())).await;
}

/// Does nothing, unless it is run by the test above.
#[tokio::test]
async fn receives_and_aborts() {
    if let Ok(url) = std::env::var(CHILD) {
        conformance::abort_by_message(connect(&url, "orders").await, Duration::from_millis(300)).await;
    }
}

#[tokio::test]
async fn a_server_that_would_throw_messages_away_is_refused() {
    let server = Server::start_with(&[("maxmemory", "100mb"), ("maxmemory-policy", "allkeys-lru")]).unwrap();
    let client = redis::Client::open(server.url()).unwrap();
    let refused = Redis::connect(client, "orders").await.unwrap_err().to_string();
    assert!(refused.contains("throws away keys") && refused.contains("noeviction"), "{refused}");
}

#[tokio::test]
async fn a_cluster_is_refused() {
    let server = Server::start_with(&[("cluster-enabled", "yes")]).unwrap();
    let client = redis::Client::open(server.url()).unwrap();
    let refused = Redis::connect(client, "orders").await.unwrap_err().to_string();
    assert!(refused.contains("is a cluster") && refused.contains("not a cluster"), "{refused}");
}

/// In every state that a message can be in: what has a time to live ends without a word.
#[tokio::test]
async fn nothing_that_is_kept_has_a_time_to_live() {
    let server = Server::start().unwrap();
    let orders = connect(&server.url(), "orders").await;
    for body in ["acknowledged", "dead", "delayed", "held"] {
        orders.send(vec![Message::new(body).group(body)]).await.remove(0).unwrap();
        let held = take(&orders, LONG).await;
        let end = match body {
            "acknowledged" => End::ACK,
            "dead" => End::Dead { why: "no".into() },
            "delayed" => End::Retry { after: LONG },
            _ => continue,
        };
        settle(&orders, &held.receipt, end).await.unwrap();
    }
    orders.send(vec![Message::new("waiting")]).await.remove(0).unwrap();
    let mut connection = redis::Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut connection).await.unwrap();
    assert!(keys.len() >= 4, "{keys:?}");
    for key in keys {
        let left: i64 = redis::cmd("PTTL").arg(&key).query_async(&mut connection).await.unwrap();
        assert_eq!(left, -1, "{key} ends by itself");
    }
}

#[tokio::test]
async fn a_full_mailbox_refuses_and_keeps_what_it_has() {
    let server = Server::start().unwrap();
    let client = redis::Client::open(server.url()).unwrap();
    let orders = Redis::builder(client, "orders").max_messages(2).connect().await.unwrap();
    let sent = orders.send(vec![Message::new("1"), Message::new("2"), Message::new("3")]).await;
    assert!(sent[..2].iter().all(Result::is_ok));
    assert_eq!(sent[2], Err(MailboxError::Full { max: 2 }));
    assert_eq!(orders.depth().await.unwrap().waiting, 2);
}

/// The message was not received since, and its holder has lost it all the same.
#[tokio::test]
async fn a_lease_that_is_over_is_not_extended_and_its_message_waits() {
    let server = Server::start().unwrap();
    let orders = connect(&server.url(), "orders").await;
    orders.send(vec![Message::new("late")]).await.remove(0).unwrap();
    let held = take(&orders, Duration::from_millis(1)).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(orders.extend(vec![(held.receipt.clone(), LONG)]).await, [Err(MailboxError::Stale)]);
    assert_eq!(orders.depth().await, Ok(Depth { waiting: 1, held: 0, dead: 0 }));
    // Its fence is still the newest: its holder may say when it is to be tried again.
    settle(&orders, &held.receipt, End::Retry { after: LONG }).await.unwrap();
    assert_eq!(orders.receive(Want { max: 1, lease: LONG, wait: Duration::ZERO }).await, Ok(Vec::new()));
    assert_eq!(orders.depth().await, Ok(Depth { waiting: 1, held: 0, dead: 0 }));
}

#[tokio::test]
async fn a_reply_to_a_full_mailbox_is_refused_and_its_message_stays_held() {
    let server = Server::start().unwrap();
    let open = async |name: &str| {
        let client = redis::Client::open(server.url()).unwrap();
        Redis::builder(client, name).max_messages(1).connect().await.unwrap()
    };
    let (orders, replies) = (open("orders").await, open("replies").await);
    for mailbox in [&orders, &replies] {
        mailbox.send(vec![Message::new("1")]).await.remove(0).unwrap();
    }
    let held = take(&orders, LONG).await;
    let end = End::Ack { reply: Some(Reply { to: replies.address().into(), message: Message::new("answer") }) };
    assert_eq!(settle(&orders, &held.receipt, end.clone()).await, Err(MailboxError::Full { max: 1 }));
    assert_eq!(orders.depth().await, Ok(Depth { waiting: 0, held: 1, dead: 0 }));
    settle(&replies, &take(&replies, LONG).await.receipt, End::ACK).await.unwrap();
    settle(&orders, &held.receipt, end).await.unwrap();
    assert_eq!(take(&replies, LONG).await.message.body, "answer");
}

/// A receiver by itself would look once a second.
#[tokio::test]
async fn whoever_waits_is_told_of_what_is_sent() {
    let server = Server::start().unwrap();
    let (orders, elsewhere) = (connect(&server.url(), "orders").await, connect(&server.url(), "orders").await);
    let began = std::time::Instant::now();
    for _ in 0..20 {
        let sending = async {
            // Until it waits.
            tokio::time::sleep(Duration::from_millis(20)).await;
            elsewhere.send(vec![Message::new("1")]).await
        };
        tokio::join!(take(&orders, LONG), sending);
    }
    assert!(began.elapsed() < Duration::from_secs(10), "20 rounds took {:?}", began.elapsed());
}

#[tokio::test]
async fn what_is_remembered_has_a_bound_and_dead_letters_their_order() {
    let server = Server::start().unwrap();
    let orders = connect(&server.url(), "orders").await;
    for _ in 0..42 {
        orders.send(vec![Message::new("1"); 100]).await;
        let held = orders.receive(Want { max: 100, lease: LONG, wait: Duration::ZERO }).await.unwrap();
        let ends = held.iter().map(|one| (one.receipt.clone(), End::ACK)).collect();
        assert_eq!(orders.settle(ends).await, vec![Ok(()); 100]);
    }
    let mut connection = redis::Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let ended: u64 = redis::cmd("ZCARD").arg("onward:mailbox:orders:ended").query_async(&mut connection).await.unwrap();
    assert_eq!(ended, 4_096, "of 4,200");
    for body in ["first", "second"] {
        orders.send(vec![Message::new(body)]).await.remove(0).unwrap();
        settle(&orders, &take(&orders, LONG).await.receipt, End::Dead { why: "no".into() }).await.unwrap();
    }
    let oldest = orders.dead_letters(1).await.unwrap();
    assert_eq!(oldest.iter().map(|one| one.message.body.as_ref()).collect::<Vec<_>>(), [b"first"]);
}
