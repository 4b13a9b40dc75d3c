//! A [mailbox](onward_lease::mailbox) on Amazon SQS, standard or FIFO.
//!
//! The client is yours, with its credentials and its HTTP client. Give it a read timeout above 20 s, which is how long
//! an empty queue is waited for.
//!
//! - A lease is a visibility timeout. An extension never shortens it, and no message is held for longer than 12 h less
//!   5 minutes: SQS ends every hold at 12 h.
//! - SQS may take the acknowledgement of a holder whose lease is over, and this is declared so. One whose lease is over
//!   by the clock of this process is not even sent.
//! - A message that was handed out too often goes to the queue of the dead letters with the reason. A queue whose own
//!   redrive policy would be first is refused at [`Sqs::connect`].
//! - Groups are those of a FIFO queue, which is asked for one message at a time: it would hand out several of a group at
//!   once. A standard queue refuses messages with a group.
//!
//! ```no_run
//! use onward_sqs::Sqs;
//!
//! # async fn example(aws: aws_sdk_sqs::Client) -> Result<(), Box<dyn std::error::Error>> {
//! let orders = Sqs::connect(aws, std::env::var("QUEUE_URL")?).await?;
//! # Ok(()) }
//! ```

mod batch;
mod connect;
mod errors;
mod holds;
mod mailbox;
mod pack;

use std::fmt;
use std::sync::Arc;

use aws_sdk_sqs::Client;
use onward_lease::mailbox::MailboxError;

pub use connect::SqsBuilder;

use holds::Holds;

/// A mailbox on Amazon SQS. Clones are the same mailbox.
#[derive(Clone)]
pub struct Sqs {
    parts: Arc<Parts>,
}

struct Parts {
    client: Client,
    url: String,
    dead: String,
    is_fifo: bool,
    max_deliveries: u32,
    max_bytes: usize,
    /// The largest size of all messages of one call together.
    max_batch_bytes: usize,
    holds: Holds,
}

impl Sqs {
    /// Connects to the queue with this address.
    pub async fn connect(client: Client, url: impl Into<String>) -> Result<Self, MailboxError> {
        Self::builder(client, url).connect().await
    }

    pub fn builder(client: Client, url: impl Into<String>) -> SqsBuilder {
        SqsBuilder::new(client, url.into())
    }

    /// The address that messages name as their `reply_to` to be answered here: the address of the queue.
    pub fn address(&self) -> &str {
        &self.parts.url
    }
}

impl fmt::Debug for Sqs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqs").field("url", &self.parts.url).finish_non_exhaustive()
    }
}
