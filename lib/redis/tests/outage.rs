//! Outages of the broker and of who receives from it, and servers that are refused.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

use onward_lease::mailbox::{Changed, Depth, End, Mailbox, MailboxError, Message, Receipt, Received, Reply, Want};
use onward_redis::Redis;
use onward_testkit::Redis as Server;

const LONG: Duration = Duration::from_secs(900);
const SIGABRT: i32 = 6;

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

/// A holder works while Redis is away, and answers when it is back: nothing is lost, and nothing is done twice.
#[tokio::test]
async fn an_outage_in_mid_work_loses_nothing() {
    let server = Server::start().unwrap();
    let (orders, replies) = (connect(&server.url(), "orders").await, connect(&server.url(), "replies").await);
    let question = Message::new("question").reply_to(replies.address());
    orders.send(vec![question, Message::new("waits")]).await.into_iter().for_each(|sent| drop(sent.unwrap()));
    let held = take(&orders, LONG).await;

    server.server().kill();
    let extended = orders.extend(vec![(held.receipt.clone(), LONG)]).await.remove(0).unwrap_err();
    assert!(extended.is_passing() && extended.changed() != Changed::Yes, "{extended}");
    let sent = orders.send(vec![Message::new("unheard")]).await.remove(0).unwrap_err();
    assert!(sent.is_passing() && sent.changed() != Changed::Yes, "{sent}");
    server.server().start_again().unwrap();

    let reply = Reply { to: replies.address().into(), message: Message::new("answer") };
    let end = End::Ack { reply: Some(reply) };
    while let Err(error) = settle(&orders, &held.receipt, end.clone()).await {
        assert!(error.is_passing(), "{error}");
    }
    assert_eq!(take(&replies, LONG).await.message.body, "answer");
    assert_eq!(take(&orders, LONG).await.message.body, "waits");
    assert_eq!(orders.depth().await, Ok(Depth { waiting: 0, held: 1, dead: 0 }));
    assert_eq!(replies.depth().await, Ok(Depth { waiting: 0, held: 1, dead: 0 }), "one reply, though said again");
}

const CHILD: &str = "ONWARD_REDIS_CHILD";

/// The process is this program again: it receives and aborts.
#[tokio::test]
async fn a_message_that_aborts_its_process_reaches_the_dead_letters() {
    let server = Server::start().unwrap();
    let orders = connect(&server.url(), "orders").await;
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
        take(&connect(&url, "orders").await, Duration::from_millis(200)).await;
        std::process::abort();
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
async fn a_full_mailbox_refuses_and_keeps_what_it_has() {
    let server = Server::start().unwrap();
    let client = redis::Client::open(server.url()).unwrap();
    let orders = Redis::builder(client, "orders").max_messages(2).connect().await.unwrap();
    let sent = orders.send(vec![Message::new("1"), Message::new("2"), Message::new("3")]).await;
    assert!(sent[..2].iter().all(Result::is_ok));
    assert_eq!(sent[2], Err(MailboxError::Full { max: 2 }));
    assert_eq!(orders.depth().await.unwrap().waiting, 2);
}
