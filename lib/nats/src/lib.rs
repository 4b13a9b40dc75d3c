//! A [mailbox](onward_lease::mailbox) on NATS JetStream.
//!
//! A mailbox is a stream with the retention `workqueue` and one durable consumer. The length of a lease is that
//! consumer's AckWait: it is granted, not asked for, and an extension begins it anew.
//!
//! A NATS server does not compare which hand-out an acknowledgement is for. The one of a holder whose lease is over is
//! taken, and ends the message while its next holder works. Where that must not be, say [`NatsBuilder::fenced`]: then
//! receive and settle compare and set a key for each message that is held.
//!
//! ```no_run
//! use onward_nats::Nats;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = async_nats::connect("127.0.0.1").await?;
//! let orders = Nats::builder(client, "orders").fenced("fences").connect().await?;
//! # Ok(()) }
//! ```

mod connect;
mod errors;
mod fence;
mod letters;
mod mailbox;
#[cfg(feature = "publisher")]
mod publisher;

use core::time::Duration;
use std::fmt;
use std::sync::Arc;

use async_nats::Client;
use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::stream::Stream;
use onward_lease::mailbox::MailboxError;

pub use connect::NatsBuilder;
#[cfg(feature = "publisher")]
pub use publisher::{NatsPublisher, publisher, publisher_at};

use fence::Fences;

/// A mailbox on NATS JetStream. Clones are the same mailbox.
#[derive(Clone)]
pub struct Nats {
    parts: Arc<Parts>,
}

struct Parts {
    client: Client,
    context: Context,
    name: String,
    subject: String,
    stream: Stream,
    consumer: PullConsumer,
    dead: Stream,
    dead_subject: String,
    fences: Option<Fences>,
    lease: Duration,
    max_deliveries: u32,
    max_bytes: usize,
}

impl Nats {
    /// Connects to the mailbox of this name, and makes it if it is not there.
    pub async fn connect(client: Client, name: impl Into<String>) -> Result<Self, MailboxError> {
        Self::builder(client, name).connect().await
    }

    pub fn builder(client: Client, name: impl Into<String>) -> NatsBuilder {
        NatsBuilder::new(client, name.into())
    }

    /// The address that messages name as their `reply_to` to be answered here.
    pub fn address(&self) -> &str {
        &self.parts.subject
    }
}

impl fmt::Debug for Nats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nats").field("name", &self.parts.name).finish_non_exhaustive()
    }
}
