//! Onward for Rust programs.
//!
//! - [`Worker`] runs handlers for jobs of a node, and [`Context`] is what a handler speaks through. What goes through one
//!   of its [wrappers](wrap) beats by itself.
//! - [`Client`] submits jobs, waits for them, follows them, cancels them. [`json`] reads what it is told.
//! - [`mailbox`] has queues with leases, also on brokers that are not ours: features `redis`, `nats` and `sqs`.
//! - `outbox` (a feature) publishes what a transaction of yours left in a table, to a node or to a broker.
//! - [`testing`] runs a handler in a test, without a node and in time that the test decides.
//! - `agent` (a feature) runs language models with tools for minutes to hours, under the lease of a job.
//!
//! A worker holds an attempt under a *lease*, which is renewed by *beats*, and its manager judges it by *forward steps*:
//! see [`Context`]. How the worker decides is in [`machine`]; the rest carries that out.

pub mod address;
#[cfg(feature = "agent")]
pub mod agent;
pub mod client;
mod clock;
pub mod context;
pub mod json;
mod link;
pub mod machine;
pub mod mailbox;
#[cfg(feature = "outbox")]
pub mod outbox;
pub mod testing;
pub mod worker;

pub use address::NodeAddress;
pub use client::{CallError, Client, Job, JobInfo, JobState};
pub use context::{Context, Reason};
pub use machine::Granted;
pub use onward_lease::wrap;
pub use onward_lease::{CancelWhy, Failure, Heartbeat};
#[cfg(feature = "nats")]
pub use onward_nats as nats;
pub use onward_proto::manager::Refused;
pub use worker::{Notice, Worker, WorkerError};

/// The README's example is compiled as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// So is the one about agents.
#[cfg(all(doctest, feature = "agent"))]
#[doc = include_str!("../../../docs/agents.md")]
struct Agents;
