//! Outages of the broker and of who receives from it, cuts in the middle of a call, and settings that are refused.

use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy};
use futures_util::TryStreamExt;
use onward_lease::conformance;
use onward_lease::mailbox::{
    ChangeCertainty, End, Mailbox, MailboxError, Message, Receipt, Received, Reply, StaleAck, Want,
};
use onward_nats::{Nats, NatsBuilder};
use onward_testkit::NatsServer as Server;

const LONG: Duration = Duration::from_secs(900);
const SHORT: Duration = Duration::from_millis(500);

async fn builder(url: &str, name: &str) -> NatsBuilder {
    let client = async_nats::connect(url).await.unwrap();
    Nats::builder(client, name).max_deliveries(2)
}

async fn take(mailbox: &Nats) -> Received {
    let want = Want { max: 1, lease: LONG, wait: Duration::from_secs(60) };
    mailbox.receive(want).await.unwrap().remove(0)
}

async fn settle(mailbox: &Nats, receipt: &Receipt, end: End) -> Result<(), MailboxError> {
    mailbox.settle(vec![(receipt.clone(), end)]).await.remove(0)
}

/// A receipt whose acknowledgement reaches nobody, as if the connection were cut just before it.
fn cut(receipt: &Receipt) -> Receipt {
    let (numbers, _) = receipt.token().rsplit_once(' ').unwrap();
    Receipt::new(receipt.message().clone(), format!("{numbers} $JS.ACK.nobody"))
}

#[tokio::test]
async fn an_outage_in_mid_work_loses_nothing() {
    for fenced in [false, true] {
        let server = Server::start().unwrap();
        let client = async_nats::connect(server.url()).await.unwrap();
        let builder = Nats::builder(client.clone(), "orders").lease(LONG);
        let builder = if fenced { builder.fenced("fences") } else { builder };
        let begin = async || {
            server.server().kill();
            while client.connection_state() == State::Connected {
                tokio::task::yield_now().await;
            }
        };
        let end = async || server.server().start_again().unwrap();
        conformance::check_outage(&builder.connect().await.unwrap(), begin, end).await;
    }
}

#[tokio::test]
async fn a_cut_between_reply_and_ack_leaves_both_and_one_reply() {
    let server = Server::start().unwrap();
    let orders = builder(&server.url(), "orders").await.lease(SHORT).connect().await.unwrap();
    let replies = builder(&server.url(), "replies").await.lease(LONG).connect().await.unwrap();
    orders.send(vec![Message::new("question").reply_to(replies.address())]).await.remove(0).unwrap();
    let first = take(&orders).await;
    let end = End::Ack { reply: Some(Reply { to: replies.address().into(), message: Message::new("answer") }) };
    let error = settle(&orders, &cut(&first.receipt), end.clone()).await.unwrap_err();
    assert!(matches!(error, MailboxError::Cut { done: "the reply was sent", .. }), "{error}");
    assert_eq!(error.changed(), ChangeCertainty::Yes);

    let again = take(&orders).await;
    assert_eq!((again.delivery, &again.message), (2, &first.message), "the message is not lost");
    settle(&orders, &again.receipt, end).await.unwrap();
    assert_eq!(take(&replies).await.message.body, "answer");
    assert_eq!(replies.depth().await.unwrap().waiting, 0, "the server drops the second reply by its name");
}

/// Without fences the server takes an acknowledgement of any hand-out, as is declared.
#[tokio::test]
async fn a_late_ack_without_fences_ends_the_message_under_its_holder() {
    let server = Server::start().unwrap();
    let connect = async || builder(&server.url(), "orders").await.max_deliveries(99).lease(SHORT).connect().await;
    let (orders, elsewhere) = (connect().await.unwrap(), connect().await.unwrap());
    assert_eq!(orders.promises().stale_ack, StaleAck::MayBeTaken);
    orders.send(vec![Message::new("a")]).await.remove(0).unwrap();
    let first = take(&orders).await;
    let second = take(&elsewhere).await;
    assert_eq!((second.delivery, &second.message), (2, &first.message));
    assert_eq!(settle(&orders, &first.receipt, End::ACK).await, Ok(()));
    // Longer than the second lease: what is not gone comes again.
    let want = Want { max: 1, lease: SHORT, wait: 4 * SHORT };
    assert_eq!(elsewhere.receive(want).await, Ok(Vec::new()), "it is gone");
    let depth = elsewhere.depth().await.unwrap();
    assert_eq!((depth.waiting, depth.held, depth.dead), (0, 0, 0));
}

/// The settlement was decided by the fence, and the server did not hear of it: the next who receives carries it out.
#[tokio::test]
async fn a_cut_between_fence_and_ack_is_carried_out_by_the_next() {
    let server = Server::start().unwrap();
    let orders = builder(&server.url(), "orders").await.lease(SHORT).fenced("fences").connect().await.unwrap();
    assert_eq!(orders.promises().stale_ack, StaleAck::Refused);
    orders.send(vec![Message::new("acked")]).await.remove(0).unwrap();
    let held = take(&orders).await;
    let error = settle(&orders, &cut(&held.receipt), End::ACK).await.unwrap_err();
    assert!(error.is_passing(), "{error}");
    let want = Want { max: 1, lease: LONG, wait: Duration::from_millis(100) };
    while orders.depth().await.unwrap().held > 0 {
        assert_eq!(orders.receive(want).await, Ok(Vec::new()), "it was acknowledged");
    }
    assert_eq!(settle(&orders, &held.receipt, End::ACK).await, Err(MailboxError::Stale), "its key is gone");

    orders.send(vec![Message::new("dead")]).await.remove(0).unwrap();
    let held = take(&orders).await;
    let error = settle(&orders, &cut(&held.receipt), End::Dead { why: "no".into() }).await.unwrap_err();
    assert!(matches!(error, MailboxError::Cut { .. }), "{error}");
    while orders.depth().await.unwrap().held > 0 {
        assert_eq!(orders.receive(want).await, Ok(Vec::new()), "it is dead");
    }
    let letters = orders.dead_letters(10).await.unwrap();
    assert_eq!(letters.iter().map(|one| one.why.as_str()).collect::<Vec<_>>(), ["no"]);
}

/// The server drops a copy of the same name for two minutes, and a lease may be longer than that.
#[tokio::test]
async fn a_dead_letter_is_stored_once_however_long_the_cut_lasts() {
    let server = Server::start().unwrap();
    let client = async_nats::connect(server.url()).await.unwrap();
    let (name, subjects) = ("orders_dead".into(), vec!["onward.dead.orders".into()]);
    let forgetful = Config { name, subjects, duplicate_window: Duration::from_millis(100), ..Config::default() };
    async_nats::jetstream::new(client).create_stream(forgetful).await.unwrap();
    let orders = builder(&server.url(), "orders").await.lease(SHORT).fenced("fences").connect().await.unwrap();
    orders.send(vec![Message::new("dead")]).await.remove(0).unwrap();
    let held = take(&orders).await;
    settle(&orders, &cut(&held.receipt), End::Dead { why: "no".into() }).await.unwrap_err();
    let want = Want { max: 1, lease: LONG, wait: Duration::from_millis(100) };
    while orders.depth().await.unwrap().held > 0 {
        assert_eq!(orders.receive(want).await, Ok(Vec::new()), "it is dead");
    }
    assert_eq!(orders.dead_letters(10).await.unwrap().len(), 1);
}

/// An end without a known answer is said again, and is right.
#[tokio::test]
async fn an_end_that_was_decided_and_not_heard_may_be_said_again() {
    let server = Server::start().unwrap();
    let orders = builder(&server.url(), "orders").await.lease(LONG).fenced("fences").connect().await.unwrap();
    orders.send(vec![Message::new("acked")]).await.remove(0).unwrap();
    let held = take(&orders).await;
    let error = settle(&orders, &cut(&held.receipt), End::ACK).await.unwrap_err();
    assert!(error.is_passing(), "{error}");
    let other = settle(&orders, &held.receipt, End::Retry { after: Duration::ZERO }).await;
    assert_eq!(other, Err(MailboxError::Stale), "it has ended in another way");
    settle(&orders, &held.receipt, End::ACK).await.unwrap();
    assert_eq!(orders.depth().await.unwrap().held, 0);
}

#[tokio::test]
async fn a_bucket_whose_keys_expire_is_refused() {
    let server = Server::start().unwrap();
    let client = async_nats::connect(server.url()).await.unwrap();
    let bucket = async_nats::jetstream::kv::Config { bucket: "fences".into(), max_age: LONG, ..Default::default() };
    async_nats::jetstream::new(client).create_key_value(bucket).await.unwrap();
    let error = builder(&server.url(), "orders").await.fenced("fences").connect().await.unwrap_err();
    assert!(error.to_string().contains("use a bucket without a time to live"), "{error}");
}

const CHILD: &str = "ONWARD_NATS_CHILD";

#[tokio::test]
async fn a_message_that_aborts_its_process_reaches_the_dead_letters() {
    let server = Server::start().unwrap();
    let orders = builder(&server.url(), "orders").await.lease(SHORT).connect().await.unwrap();
    conformance::check_abort(&orders, 2, || conformance::run_test("receives_and_aborts", CHILD, &server.url())).await;
}

/// Does nothing, unless it is run by the test above.
#[tokio::test]
async fn receives_and_aborts() {
    if let Ok(url) = std::env::var(CHILD) {
        conformance::abort_by_message(builder(&url, "orders").await.connect().await.unwrap(), SHORT).await;
    }
}

/// A message that the server gives up is seen by nobody, so the server must not be first.
#[tokio::test]
async fn a_delivery_limit_at_or_below_ours_is_refused() {
    let server = Server::start().unwrap();
    let client = async_nats::connect(server.url()).await.unwrap();
    let context = async_nats::jetstream::new(client.clone());
    for (name, max_deliver, is_refused) in [("a", 4, true), ("b", 5, true), ("c", 6, false), ("d", -1, false)] {
        let (subjects, retention) = (vec![name.into()], RetentionPolicy::WorkQueue);
        let stream = Config { name: name.into(), subjects, retention, ..Config::default() };
        let stream = context.create_stream(stream).await.unwrap();
        let durable_name = Some("onward".into());
        let ack_policy = AckPolicy::Explicit;
        let consumer = pull::Config { durable_name, ack_policy, max_deliver, ..Default::default() };
        stream.create_consumer(consumer).await.unwrap();
        let connected = Nats::builder(client.clone(), name).max_deliveries(5).connect().await;
        assert_eq!(connected.is_err(), is_refused, "{max_deliver}: {connected:?}");
        if let Err(error) = connected {
            assert!(error.to_string().contains(&format!("after {max_deliver} deliveries")), "{error}");
        }
    }
}

/// A consumer that hands out otherwise than a mailbox does.
#[tokio::test]
async fn a_consumer_that_does_not_fit_is_refused() {
    let server = Server::start().unwrap();
    let client = async_nats::connect(server.url()).await.unwrap();
    let context = async_nats::jetstream::new(client.clone());
    let ours =
        pull::Config { durable_name: Some("onward".into()), ack_policy: AckPolicy::Explicit, ..Default::default() };
    let cases = [
        (pull::Config { backoff: vec![SHORT, LONG], max_deliver: 9, ..ours.clone() }, "remove its backoff"),
        (pull::Config { inactive_threshold: LONG, ..ours.clone() }, "set its inactive_threshold to 0"),
        (pull::Config { filter_subject: "c2".into(), ..ours.clone() }, "remove its filter"),
    ];
    for (number, (consumer, remedy)) in cases.into_iter().enumerate() {
        let name = format!("c{number}");
        let (subjects, retention) = (vec![name.clone()], RetentionPolicy::WorkQueue);
        let stream = Config { name: name.clone(), subjects, retention, ..Config::default() };
        let stream = context.create_stream(stream).await.unwrap();
        for ack_policy in [AckPolicy::None, AckPolicy::All] {
            let silent = pull::Config { ack_policy, ..ours.clone() };
            assert!(stream.create_consumer(silent).await.is_err(), "a work queue takes none that does not ack each");
        }
        stream.create_consumer(consumer).await.unwrap();
        let error = Nats::connect(client.clone(), name).await.unwrap_err().to_string();
        assert!(error.contains(remedy), "{number}: {error}");
    }
}

/// A process that crashes between the acknowledgement and the removal of the key leaves the key behind.
#[tokio::test]
async fn keys_of_messages_that_are_gone_are_swept_by_the_next_who_connects() {
    let server = Server::start().unwrap();
    let connect = async || builder(&server.url(), "orders").await.lease(LONG).fenced("fences").connect().await.unwrap();
    let orders = connect().await;
    let sent = orders.send(["first", "held", "last"].map(Message::new).into()).await;
    let ids: Vec<String> = sent.into_iter().map(|id| id.unwrap().to_string()).collect();
    let held = [take(&orders).await, take(&orders).await, take(&orders).await];
    let client = async_nats::connect(server.url()).await.unwrap();
    let bucket = async_nats::jetstream::new(client).get_key_value("fences").await.unwrap();
    let keys = async || {
        let mut keys: Vec<String> = bucket.keys().await.unwrap().try_collect().await.unwrap();
        keys.sort();
        keys
    };
    for one in [&held[0], &held[2]] {
        let key = format!("orders.{}", one.id);
        let entry = bucket.get(&key).await.unwrap().unwrap();
        settle(&orders, &one.receipt, End::ACK).await.unwrap();
        assert_eq!(bucket.get(&key).await.unwrap(), None, "it is removed when all goes well");
        bucket.put(&key, entry).await.unwrap();
    }
    // Of another mailbox in the same bucket.
    bucket.put("orders-2.1", "{}".into()).await.unwrap();
    assert_eq!(keys().await.len(), 4);
    let again = connect().await;
    assert_eq!(keys().await, ["orders-2.1".to_owned(), format!("orders.{}", ids[1])]);
    settle(&again, &held[1].receipt, End::ACK).await.expect("the fence of what is held is as it was");
}

/// A stream that drops messages without a word is refused at connect, with a remedy.
#[tokio::test]
async fn a_stream_that_would_lose_messages_is_refused() {
    let server = Server::start().unwrap();
    let client = async_nats::connect(server.url()).await.unwrap();
    let context = async_nats::jetstream::new(client.clone());
    let (hour, new) = (Duration::from_secs(3_600), DiscardPolicy::New);
    let work = Config { retention: RetentionPolicy::WorkQueue, ..Config::default() };
    let cases = [
        (Config { max_age: hour, ..work.clone() }, Some("set its max_age to 0")),
        (Config { max_messages: 9, ..work.clone() }, Some("set its discard policy to `new`")),
        (Config { max_bytes: 9_999, ..work.clone() }, Some("set its discard policy to `new`")),
        (Config { max_messages_per_subject: 9, ..work.clone() }, Some("remove max_msgs_per_subject")),
        (Config { max_messages_per_subject: 9, discard: new, ..work.clone() }, Some("remove max_msgs_per_subject")),
        (Config { retention: RetentionPolicy::Interest, ..work.clone() }, Some("the retention `workqueue`")),
        (Config { retention: RetentionPolicy::Limits, ..work.clone() }, Some("the retention `workqueue`")),
        (Config { max_messages: 9, max_bytes: 9_999, discard: new, ..work.clone() }, None),
        (work.clone(), None),
    ];
    for (number, (config, remedy)) in cases.into_iter().enumerate() {
        let name = format!("s{number}");
        let stream = Config { name: name.clone(), subjects: vec![name.clone()], ..config };
        context.create_stream(stream).await.unwrap();
        let connected = Nats::builder(client.clone(), name).connect().await;
        match (connected, remedy) {
            (Ok(_), None) => {}
            (Err(error), Some(remedy)) => {
                assert!(
                    error.to_string().contains(remedy) && error.changed() == ChangeCertainty::No,
                    "{number}: {error}"
                );
            }
            (connected, remedy) => panic!("{number}: {connected:?} and not {remedy:?}"),
        }
    }
    for (config, remedy) in [
        (Config { max_age: hour, ..Config::default() }, "set its max_age to 0"),
        (Config { retention: RetentionPolicy::Interest, ..Config::default() }, "the retention `limits`"),
    ] {
        let dead = Config { name: "letters_dead".into(), subjects: vec!["onward.dead.letters".into()], ..config };
        context.create_stream(dead).await.unwrap();
        let error = Nats::builder(client.clone(), "letters").connect().await.unwrap_err();
        assert!(error.to_string().contains(remedy), "{error}");
        context.delete_stream("letters_dead").await.unwrap();
    }
}

/// A stream that is full says so to who sends, and keeps what it has.
#[tokio::test]
async fn a_full_stream_refuses_and_loses_nothing() {
    let server = Server::start().unwrap();
    let client = async_nats::connect(server.url()).await.unwrap();
    let config = Config {
        name: "orders".into(),
        subjects: vec!["orders".into()],
        retention: RetentionPolicy::WorkQueue,
        max_messages: 2,
        discard: DiscardPolicy::New,
        max_message_size: 64 << 10,
        ..Config::default()
    };
    async_nats::jetstream::new(client.clone()).create_stream(config).await.unwrap();
    let orders = Nats::connect(client, "orders").await.unwrap();
    assert_eq!(orders.promises().max_bytes, 48 << 10, "what the stream takes, less room for headers");
    let sent = orders.send(["1", "2", "3"].map(Message::new).into()).await;
    let refused: Vec<_> = sent.iter().filter_map(|sent| sent.as_ref().err()).collect();
    assert!(refused.len() == 1 && refused[0].is_passing() && refused[0].changed() == ChangeCertainty::No, "{sent:?}");
    // Received, not counted: the server counts what waits for a consumer a moment after it stored it.
    let want = Want { max: 2, lease: LONG, wait: Duration::from_secs(60) };
    let mut kept = Vec::new();
    while kept.len() < 2 {
        kept.extend(orders.receive(want).await.unwrap().into_iter().map(|received| received.message.body));
    }
    assert_eq!(kept, ["1", "2"]);
}
