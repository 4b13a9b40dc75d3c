//! Outages of the broker and of who receives from it, cuts in the middle of a call, and settings that are refused.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::consumer::{AckPolicy, pull};
use onward_lease::mailbox::{Changed, End, Mailbox, MailboxError, Message, Receipt, Received, Reply, StaleAck, Want};
use onward_nats::{Nats, NatsBuilder};
use onward_testkit::Nats as Server;

const LONG: Duration = Duration::from_secs(900);
const SHORT: Duration = Duration::from_millis(500);
const SIGABRT: i32 = 6;

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

/// A holder works while NATS is away, and acknowledges when it is back.
#[tokio::test]
async fn an_outage_in_mid_work_loses_nothing() {
    for fenced in [false, true] {
        let server = Server::start().unwrap();
        let client = async_nats::connect(server.url()).await.unwrap();
        let builder = Nats::builder(client.clone(), "orders").lease(LONG);
        let builder = if fenced { builder.fenced("fences") } else { builder };
        let orders = builder.connect().await.unwrap();
        orders
            .send(vec![Message::new("held"), Message::new("waits")])
            .await
            .into_iter()
            .for_each(|sent| drop(sent.unwrap()));
        let held = take(&orders).await;

        server.server().kill();
        while client.connection_state() == State::Connected {
            tokio::task::yield_now().await;
        }
        let extended = orders.extend(vec![(held.receipt.clone(), LONG)]).await.remove(0).unwrap_err();
        assert!(extended.is_passing() && extended.changed() == Changed::No, "{extended}");
        let sent = orders.send(vec![Message::new("unheard")]).await.remove(0).unwrap_err();
        assert!(sent.is_passing() && sent.changed() == Changed::No, "{sent}");
        server.server().start_again().unwrap();

        while let Err(error) = settle(&orders, &held.receipt, End::ACK).await {
            assert!(error.is_passing(), "{error}");
            tokio::task::yield_now().await;
        }
        assert_eq!(take(&orders).await.message.body, "waits");
        let depth = orders.depth().await.unwrap();
        assert_eq!((depth.waiting, depth.dead), (0, 0), "fenced: {fenced}");
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
    assert_eq!(error.changed(), Changed::Yes);

    let again = take(&orders).await;
    assert_eq!((again.delivery, &again.message), (2, &first.message), "the message is not lost");
    settle(&orders, &again.receipt, end).await.unwrap();
    assert_eq!(take(&replies).await.message.body, "answer");
    assert_eq!(replies.depth().await.unwrap().waiting, 0, "the server drops the second reply by its name");
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
    assert_eq!(
        letters.iter().map(|one| one.why.as_str()).collect::<Vec<_>>(),
        ["no"],
        "one letter, though copied twice"
    );
}

const CHILD: &str = "ONWARD_NATS_CHILD";

/// The process is this program again: it receives and aborts.
#[tokio::test]
async fn a_message_that_aborts_its_process_reaches_the_dead_letters() {
    let server = Server::start().unwrap();
    let orders = builder(&server.url(), "orders").await.lease(SHORT).connect().await.unwrap();
    orders.send(vec![Message::new("poison")]).await.remove(0).unwrap();
    for _ in 0..2 {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "receives_and_aborts", "--nocapture"]).env(CHILD, server.url());
        assert_eq!(child.output().unwrap().status.signal(), Some(SIGABRT));
    }
    let want = Want { max: 1, lease: LONG, wait: Duration::from_secs(1) };
    while orders.depth().await.unwrap().dead == 0 {
        assert_eq!(orders.receive(want).await, Ok(Vec::new()), "it is handed out no more");
    }
    let letter = orders.dead_letters(1).await.unwrap().remove(0);
    assert_eq!((letter.message.body.as_ref(), letter.deliveries), (&b"poison"[..], 2));
}

/// Does nothing, unless it is run by the test above.
#[tokio::test]
async fn receives_and_aborts() {
    if let Ok(url) = std::env::var(CHILD) {
        take(&builder(&url, "orders").await.connect().await.unwrap()).await;
        std::process::abort();
    }
}

/// What the server gives up is seen by nobody, so it must not be first.
#[tokio::test]
async fn a_delivery_limit_at_or_below_ours_is_refused() {
    let server = Server::start().unwrap();
    let client = async_nats::connect(server.url()).await.unwrap();
    let context = async_nats::jetstream::new(client.clone());
    for (name, max_deliver, is_refused) in [("a", 4, true), ("b", 5, true), ("c", 6, false), ("d", -1, false)] {
        let stream = async_nats::jetstream::stream::Config {
            name: name.into(),
            subjects: vec![name.into()],
            retention: async_nats::jetstream::stream::RetentionPolicy::WorkQueue,
            ..Default::default()
        };
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
