//! The suite and the model that every mailbox is held to, on a real server, with fences and without.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use onward_lease::conformance::{self, Setup, Subject};
use onward_nats::Nats;
use onward_testkit::NatsServer as Server;

const DOCUMENT: &str = include_str!("../../../docs/mailboxes.md");

const CALM: Setup = Setup { max_deliveries: 5, lease: Duration::from_secs(900) };

struct OnNats {
    server: Server,
    fenced: bool,
    opened: AtomicU32,
}

impl OnNats {
    fn start(fenced: bool) -> Self {
        Self { server: Server::start().unwrap(), fenced, opened: AtomicU32::new(0) }
    }

    async fn connect(&self, name: &str, setup: Setup) -> Nats {
        let client = async_nats::connect(self.server.url()).await.unwrap();
        let builder = Nats::builder(client, name).lease(setup.lease).max_deliveries(setup.max_deliveries);
        let builder = if self.fenced { builder.fenced("fences") } else { builder };
        builder.connect().await.unwrap()
    }
}

impl Subject for OnNats {
    type Mailbox = Nats;

    fn name(&self) -> &'static str {
        if self.fenced { "NATS fenced" } else { "NATS" }
    }

    fn short_lease(&self) -> Duration {
        Duration::from_millis(400)
    }

    async fn open(&self, setup: Setup) -> Nats {
        let name = format!("box-{}", self.opened.fetch_add(1, Ordering::Relaxed));
        self.connect(&name, setup).await
    }

    async fn open_elsewhere(&self, mailbox: &Nats) -> Nats {
        self.connect(mailbox.address(), CALM).await
    }

    async fn open_replies(&self, _: &Nats) -> (String, Nats) {
        let replies = self.open(CALM).await;
        (replies.address().to_owned(), replies)
    }
}

async fn does_what_it_declares(fenced: bool) {
    let report = conformance::check(&OnNats::start(fenced)).await;
    report.print();
    conformance::check_documented(DOCUMENT, &report);
}

#[tokio::test]
async fn nats_does_what_it_declares() {
    does_what_it_declares(false).await;
}

#[tokio::test]
async fn nats_with_fences_does_what_it_declares() {
    does_what_it_declares(true).await;
}

#[tokio::test]
async fn nats_is_as_the_model() {
    conformance::check_against_model(&OnNats::start(false), 15, 50).await;
}

#[tokio::test]
async fn nats_with_fences_is_as_the_model() {
    conformance::check_against_model(&OnNats::start(true), 15, 50).await;
}
