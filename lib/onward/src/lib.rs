//! Onward for Rust programs: one name for what people embed. Each part is a feature; `client` and `worker` are on unless
//! they are turned off.
//!
//! With a node:
//!
//! - [`Worker`] runs handlers for jobs of a node, and [`Context`] is what a handler speaks through. What goes through one
//!   of its [wrappers](wrap) beats by itself. (feature `worker`)
//! - [`testing`] runs a handler in a test, without a node and in time that the test decides. (feature `worker`)
//! - [`Client`] submits jobs, waits for them, follows them, cancels them. [`json`] reads what it is told. (feature `client`)
//! - `agent` runs language models with tools for minutes to hours, under the lease of a job or of a
//!   message. (feature `agent`)
//!
//! Without one:
//!
//! - [`MessageLoop`] takes messages from a [`mailbox`] under leases that follow the work, and [`LeaseExtender`] is that
//!   part alone. Mailboxes on brokers that are not ours: features `redis`, `nats` and `sqs`.
//! - `health` supervises loops and answers probes by their progress, and runs jobs by the clock. (feature `health`;
//!   `schedule-postgres` and `schedule-sqlite` for records that several processes share)
//! - `outbox` publishes what a transaction of yours left in a table, to a node or to a broker. (feature `outbox`)
//!
//! A worker holds an attempt under a *lease*, which is renewed by *beats*, and its manager judges it by *forward steps*:
//! see [`Context`]. How the worker decides is in [`machine`]; the rest carries that out.

#[cfg(any(feature = "client", feature = "worker"))]
pub mod address;
#[cfg(feature = "agent")]
pub mod agent;
#[cfg(feature = "worker")]
mod checkpoint;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "worker")]
mod clock;
#[cfg(feature = "worker")]
pub mod context;
#[cfg(feature = "client")]
pub mod json;
#[cfg(feature = "worker")]
mod link;
#[cfg(feature = "worker")]
pub mod machine;
pub mod mailbox;
#[cfg(feature = "outbox")]
pub mod outbox;
#[cfg(feature = "worker")]
pub mod testing;
#[cfg(feature = "worker")]
pub mod worker;

#[cfg(any(feature = "client", feature = "worker"))]
pub use address::{NodeAddress, NodeAddresses};
#[cfg(feature = "client")]
pub use client::{CallError, Client, Job, JobInfo, JobState, NodeAnswer};
#[cfg(feature = "worker")]
pub use context::{Context, Reason};
#[cfg(feature = "worker")]
pub use machine::ExtensionGrant;
#[cfg(feature = "client")]
pub use onward_api as api;
#[cfg(feature = "health")]
pub use onward_health as health;
pub use onward_lease::{
    CancelWhy, Delivery, Failure, Heartbeat, Lease, LeaseExtender, LeaseRule, MessageLoop, MessageLoopError,
};
pub use onward_lease::{extender, heartbeat, messages, wrap};
#[cfg(feature = "nats")]
pub use onward_nats as nats;
#[cfg(feature = "worker")]
pub use onward_proto::manager::RemoteRefusal;
#[cfg(feature = "worker")]
pub use worker::{Notice, Worker, WorkerError};

/// The README's example is compiled as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The examples of the page about mailboxes run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/mailboxes.md")]
struct Mailboxes;

/// The examples of the page about agents run as tests, too.
#[cfg(all(doctest, feature = "agent", feature = "worker"))]
#[doc = include_str!("../../../docs/agents.md")]
struct Agents;
