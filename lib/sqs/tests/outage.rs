//! Outages of the broker and of who receives from it, a cut in the middle of a call, and queues that are refused.

mod stand_in;

use std::time::Duration;

use aws_sdk_sqs::types::QueueAttributeName;
use onward_lease::conformance;
use onward_lease::mailbox::{
    ChangeCertainty, End, Mailbox, MailboxError, Message, Receipt, Received, Reply, StaleAck, Want,
};
use onward_sqs::Sqs;
use onward_testkit::SqsServer as Server;
use stand_in::{StandIn, cut_at, hasty_client};

const LONG: Duration = Duration::from_secs(900);
const SHORT: Duration = Duration::from_secs(1);

async fn take(mailbox: &Sqs, lease: Duration) -> Received {
    let want = Want { max: 1, lease, wait: Duration::from_secs(60) };
    mailbox.receive(want).await.unwrap().remove(0)
}

async fn settle(mailbox: &Sqs, receipt: &Receipt, end: End) -> Result<(), MailboxError> {
    mailbox.settle(vec![(receipt.clone(), end)]).await.remove(0)
}

/// A holder works while SQS does not answer, and acknowledges when it does again.
#[tokio::test]
async fn an_outage_in_mid_work_loses_nothing() {
    let stand_in = StandIn::new(Server::moto().unwrap());
    let url = stand_in.queue(false).await;
    let orders = Sqs::connect(hasty_client(&stand_in.server.url()), url).await.unwrap();
    orders.send(vec![Message::new("held")]).await.remove(0).unwrap();
    let held = take(&orders, LONG).await;

    stand_in.server.server().freeze();
    let extended = orders.extend(vec![(held.receipt.clone(), 2 * LONG)]).await.remove(0).unwrap_err();
    assert!(extended.is_passing() && extended.changed() == ChangeCertainty::Unknown, "{extended}");
    let acked = settle(&orders, &held.receipt, End::ACK).await.unwrap_err();
    assert!(acked.is_passing() && acked.changed() == ChangeCertainty::Unknown, "{acked}");
    stand_in.server.server().thaw();

    while let Err(error) = settle(&orders, &held.receipt, End::ACK).await {
        assert!(error.is_passing(), "{error}");
    }
    let depth = orders.depth().await.unwrap();
    assert_eq!((depth.waiting, depth.held, depth.dead), (0, 0, 0));

    stand_in.server.server().kill();
    let sent = orders.send(vec![Message::new("unheard")]).await.remove(0).unwrap_err();
    assert!(sent.is_passing(), "{sent}");
}

#[tokio::test]
async fn a_cut_between_reply_and_ack_leaves_both() {
    let stand_in = StandIn::new(Server::ministack().unwrap());
    let (url, replies) = (stand_in.queue(false).await, stand_in.queue(false).await);
    let cut = cut_at("DeleteMessage", 0, &stand_in.server.url()).await;
    let orders = Sqs::connect(hasty_client(&cut), &url).await.unwrap();
    let replies = Sqs::connect(stand_in.client.clone(), replies).await.unwrap();
    orders.send(vec![Message::new("question").reply_to(replies.address())]).await.remove(0).unwrap();
    let first = take(&orders, SHORT).await;
    let end = End::Ack { reply: Some(Reply { to: replies.address().into(), message: Message::new("answer") }) };
    let error = settle(&orders, &first.receipt, end).await.unwrap_err();
    assert!(matches!(error, MailboxError::Cut { done: "the reply was sent", .. }), "{error}");
    assert_eq!(error.changed(), ChangeCertainty::Yes);

    assert_eq!(take(&replies, LONG).await.message.body, "answer");
    let uncut = Sqs::connect(stand_in.client.clone(), url).await.unwrap();
    let again = take(&uncut, LONG).await;
    assert_eq!((again.delivery, &again.message), (2, &first.message), "the message is not lost");
    assert_eq!(settle(&orders, &first.receipt, End::ACK).await, Err(MailboxError::Stale), "its lease is over here");
    settle(&uncut, &again.receipt, End::ACK).await.unwrap();
}

/// The receiver knows that its lease is over, and does not send a late ack. SQS itself may take one, as is declared.
#[tokio::test]
async fn a_late_ack_that_reaches_sqs_ends_the_message_under_its_holder() {
    let stand_in = StandIn::new(Server::moto().unwrap());
    let url = stand_in.queue(false).await;
    let connect = async || Sqs::connect(stand_in.client.clone(), &url).await.unwrap();
    let (orders, holder, elsewhere) = (connect().await, connect().await, connect().await);
    assert_eq!(orders.promises().stale_ack, StaleAck::MayBeTaken);
    orders.send(vec![Message::new("a")]).await.remove(0).unwrap();
    let first = take(&orders, SHORT).await;
    let second = take(&holder, LONG).await;
    assert_eq!((second.delivery, &second.message), (2, &first.message));
    assert_eq!(settle(&orders, &first.receipt, End::ACK).await, Err(MailboxError::Stale));
    assert_eq!(holder.depth().await.unwrap().held, 1);
    assert_eq!(settle(&elsewhere, &first.receipt, End::ACK).await, Ok(()));
    let depth = holder.depth().await.unwrap();
    assert_eq!((depth.waiting, depth.held, depth.dead), (0, 0, 0), "it is gone");
}

/// A dead message that cannot be stored among the dead letters takes no other with it.
#[tokio::test]
async fn what_cannot_be_buried_leaves_others_as_they_are() {
    let stand_in = StandIn::new(Server::ministack().unwrap());
    let (url, graves) = (stand_in.create("orders", &[]).await, stand_in.create("orders-dead", &[]).await);
    let orders = Sqs::builder(stand_in.client.clone(), url).max_deliveries(1).connect().await.unwrap();
    orders.send(vec![Message::new("poison")]).await.remove(0).unwrap();
    let poison = take(&orders, LONG).await;
    settle(&orders, &poison.receipt, End::Retry { after: Duration::ZERO }).await.unwrap();
    orders.send(vec![Message::new("good")]).await.remove(0).unwrap();
    stand_in.client.delete_queue().queue_url(graves).send().await.unwrap();
    let want = Want { max: 2, lease: LONG, wait: Duration::ZERO };
    // In one call or in two.
    let mut came = orders.receive(want).await;
    if let Err(error) = &came {
        assert!(!error.is_passing() && error.changed() == ChangeCertainty::No, "{error}");
        came = orders.receive(want).await;
    }
    let came = came.unwrap();
    let told: Vec<_> = came.iter().map(|one| (one.message.body.as_ref(), one.delivery)).collect();
    assert_eq!(told, [(&b"good"[..], 1)]);
    settle(&orders, &came[0].receipt, End::ACK).await.unwrap();
}

const CHILD: &str = "ONWARD_SQS_CHILD";

#[tokio::test]
async fn a_message_that_aborts_its_process_reaches_the_dead_letters() {
    let stand_in = StandIn::new(Server::ministack().unwrap());
    let url = stand_in.queue(false).await;
    let orders = Sqs::builder(stand_in.client.clone(), &url).max_deliveries(2).connect().await.unwrap();
    let addresses = format!("{} {url}", stand_in.server.url());
    conformance::check_abort(&orders, 2, || conformance::run_test("receives_and_aborts", CHILD, &addresses)).await;
    let depth = orders.depth().await.unwrap();
    assert_eq!((depth.waiting, depth.held, depth.dead), (0, 0, 1), "it is a dead letter, and nothing else");
}

/// SQS takes no more bytes in one call than in one message.
#[tokio::test]
async fn a_batch_that_is_too_large_for_one_call_is_several() {
    let stand_in = StandIn::new(Server::moto().unwrap());
    let orders = Sqs::connect(stand_in.client.clone(), stand_in.queue(false).await).await.unwrap();
    let sent = orders.send(vec![Message::new(vec![b'x'; 150 << 10]); 10]).await;
    assert!(sent.iter().all(Result::is_ok), "{sent:?}");
}

/// A FIFO queue is asked once for each message.
#[tokio::test]
async fn what_came_before_a_cut_is_not_lost_with_it() {
    let stand_in = StandIn::new(Server::ministack().unwrap());
    let url = stand_in.queue(true).await;
    let cut = cut_at("ReceiveMessage", 1, &stand_in.server.url()).await;
    let orders = Sqs::connect(hasty_client(&cut), &url).await.unwrap();
    let sent = orders.send(["a", "b"].map(|group| Message::new("1").group(group)).into()).await;
    assert!(sent.iter().all(Result::is_ok), "{sent:?}");
    let want = Want { max: 2, lease: LONG, wait: Duration::ZERO };
    assert_eq!(orders.receive(want).await.unwrap().len(), 1);
    assert!(orders.receive(want).await.unwrap_err().is_passing());
}

/// Does nothing, unless it is run by the test above.
#[tokio::test]
async fn receives_and_aborts() {
    if let Ok(addresses) = std::env::var(CHILD) {
        let (server, queue) = addresses.split_once(' ').unwrap();
        let orders = Sqs::connect(stand_in::client(server), queue).await.unwrap();
        // A call waits for a second, which counts against the lease.
        conformance::abort_by_message(orders, 4 * SHORT).await;
    }
}

#[tokio::test]
async fn a_queue_that_would_give_up_before_us_or_has_nowhere_to_is_refused() {
    let stand_in = StandIn::new(Server::ministack().unwrap());
    stand_in.create("graves", &[]).await;
    let arn = "arn:aws:sqs:us-east-1:000000000000:graves";
    for (name, max, is_refused) in [("a", 4, true), ("b", 5, true), ("c", 6, false)] {
        let policy = format!("{{\"deadLetterTargetArn\":\"{arn}\",\"maxReceiveCount\":{max}}}");
        let url = stand_in.create(name, &[(QueueAttributeName::RedrivePolicy, &policy)]).await;
        let connected = Sqs::connect(stand_in.client.clone(), url).await;
        assert_eq!(connected.is_err(), is_refused, "{max}: {connected:?}");
        if let Err(error) = connected {
            assert!(error.to_string().contains(&format!("after {max} deliveries")), "{error}");
        }
    }
    let lonely = stand_in.create("lonely", &[]).await;
    let error = Sqs::connect(stand_in.client.clone(), lonely).await.unwrap_err().to_string();
    assert!(error.contains("aws sqs create-queue --queue-name lonely-dead"), "{error}");
}
