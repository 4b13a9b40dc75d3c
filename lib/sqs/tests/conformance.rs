//! The suite and the model that every mailbox is held to, on two stand-ins that differ in what they take for stale.

mod stand_in;

use std::time::Duration;

use onward_lease::conformance::{self, Setup, Subject};
use onward_sqs::Sqs;
use onward_testkit::SqsServer as Server;
use stand_in::StandIn;

const DOCUMENT: &str = include_str!("../../../docs/mailboxes.md");

struct OnSqs<'a> {
    stand_in: &'a StandIn,
    is_fifo: bool,
}

impl Subject for OnSqs<'_> {
    type Mailbox = Sqs;

    fn name(&self) -> &'static str {
        if self.is_fifo { "SQS FIFO" } else { "SQS" }
    }

    fn short_lease(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn open(&self, setup: Setup) -> Sqs {
        let url = self.stand_in.queue(self.is_fifo).await;
        let client = self.stand_in.client.clone();
        Sqs::builder(client, url).max_deliveries(setup.max_deliveries).connect().await.unwrap()
    }

    async fn open_elsewhere(&self, mailbox: &Sqs) -> Sqs {
        Sqs::connect(self.stand_in.client.clone(), mailbox.address()).await.unwrap()
    }

    async fn open_replies(&self, _: &Sqs) -> (String, Sqs) {
        let replies = self.open(Setup { max_deliveries: 5, lease: Duration::from_secs(900) }).await;
        (replies.address().to_owned(), replies)
    }
}

/// Standard and FIFO side by side: they wait for leases most of the time.
fn kinds(stand_in: &StandIn) -> [OnSqs<'_>; 2] {
    [false, true].map(|is_fifo| OnSqs { stand_in, is_fifo })
}

async fn does_what_it_declares(server: Server) {
    let stand_in = StandIn::new(server);
    let [standard, fifo] = kinds(&stand_in);
    let reports: [_; 2] = tokio::join!(conformance::check(&standard), conformance::check(&fifo)).into();
    for report in reports {
        report.print();
        conformance::check_documented(DOCUMENT, &report);
    }
}

async fn is_as_the_model(server: Server) {
    let stand_in = StandIn::new(server);
    let [standard, fifo] = kinds(&stand_in);
    tokio::join!(conformance::check_against_model(&standard, 2, 40), conformance::check_against_model(&fifo, 2, 40));
}

#[tokio::test]
async fn sqs_does_what_it_declares_on_moto() {
    does_what_it_declares(Server::moto().unwrap()).await;
}

#[tokio::test]
async fn sqs_does_what_it_declares_on_ministack() {
    does_what_it_declares(Server::ministack().unwrap()).await;
}

#[tokio::test]
async fn sqs_is_as_the_model_on_moto() {
    is_as_the_model(Server::moto().unwrap()).await;
}

#[tokio::test]
async fn sqs_is_as_the_model_on_ministack() {
    is_as_the_model(Server::ministack().unwrap()).await;
}
