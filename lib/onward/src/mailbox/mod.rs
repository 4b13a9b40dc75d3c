//! Queues with leases. What each of them promises is in `docs/mailboxes.md`.

#[cfg(feature = "client")]
mod node_queue;

#[cfg(feature = "client")]
pub use node_queue::{NodeQueue, NodeQueueBuilder};
pub use onward_lease::mailbox::*;
#[cfg(feature = "nats")]
pub use onward_nats::{Nats, NatsBuilder};
#[cfg(feature = "redis")]
pub use onward_redis::{Redis, RedisBuilder};
#[cfg(feature = "sqs")]
pub use onward_sqs::{Sqs, SqsBuilder};
