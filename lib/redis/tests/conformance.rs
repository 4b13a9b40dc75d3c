//! The suite and the model that every mailbox is held to, on a real server.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use onward_lease::conformance::{self, Setup, Subject};
use onward_redis::Redis;
use onward_testkit::RedisServer as Server;

const DOCUMENT: &str = include_str!("../../../docs/mailboxes.md");

struct OnRedis {
    server: Server,
    opened: AtomicU32,
}

impl OnRedis {
    fn start() -> Self {
        Self { server: Server::start().unwrap(), opened: AtomicU32::new(0) }
    }

    async fn connect(&self, max_deliveries: u32) -> Redis {
        let name = format!("box-{}", self.opened.fetch_add(1, Ordering::Relaxed));
        self.connect_to(&name, max_deliveries).await
    }

    async fn connect_to(&self, name: &str, max_deliveries: u32) -> Redis {
        let client = redis::Client::open(self.server.url()).unwrap();
        Redis::builder(client, name).max_deliveries(max_deliveries).connect().await.unwrap()
    }
}

impl Subject for OnRedis {
    type Mailbox = Redis;

    fn name(&self) -> &'static str {
        "Redis"
    }

    fn short_lease(&self) -> Duration {
        Duration::from_millis(200)
    }

    async fn open(&self, setup: Setup) -> Redis {
        self.connect(setup.max_deliveries).await
    }

    async fn open_elsewhere(&self, mailbox: &Redis) -> Redis {
        self.connect_to(mailbox.address(), 5).await
    }

    async fn open_replies(&self, _: &Redis) -> (String, Redis) {
        let replies = self.connect(5).await;
        (replies.address().to_owned(), replies)
    }
}

#[tokio::test]
async fn redis_does_what_it_declares() {
    let report = conformance::check(&OnRedis::start()).await;
    report.print();
    conformance::check_documented(DOCUMENT, &report);
}

#[tokio::test]
async fn redis_is_as_the_model() {
    conformance::check_against_model(&OnRedis::start(), 15, 60).await;
}
