//! A transactional outbox on PostgreSQL and SQLite: what a transaction leaves here is published if, and only if, it commits.
//!
//! A program that changes its database and then tells a broker about it will one day do the one without the other. With an
//! outbox it writes the message into a table, in the same transaction ([`enqueue()`], or plain SQL from any language), and a
//! *poller* publishes what is there, at least once and each key in order:
//!
//! ```no_run
//! # use onward_outbox::{Outbox, PublishError, Publisher, Row, Supervise};
//! # struct Broker;
//! # impl Publisher for Broker {
//! #     async fn publish(&self, rows: &[Row]) -> Vec<Result<(), PublishError>> { rows.iter().map(|_| Ok(())).collect() }
//! # }
//! # async fn service(url: &str) -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use onward_health::Supervisor;
//!
//! let service = Supervisor::new("billing");
//! service.outbox(Outbox::postgres(url).await?.publish_to(Broker).max_attempts(8).oldest(Duration::from_secs(300)));
//! service.run().await?;
//! # Ok(()) }
//! ```
//!
//! ```text
//!   insert ──▶ waiting ──claim──▶ claimed ──published──▶ deleted (or moved, where rows are kept)
//!                 ▲  ▲               │ │
//!                 │  └──given back───┘ └──refused──▶ refused ──too often──▶ parked ──drop──▶ deleted
//!                 │                                     │                      │
//!                 └──────────── retry ──────────────────┘◀─────── replay ──────┘
//! ```
//!
//! Who is trusted with what, and for how long:
//!
//! - A row is marked by itself, and never passed by a cursor: one that commits late, under a low id, is found.
//! - A **claim** is a lease on rows under a token of its own. Its holder alone publishes them, until it settles them or the
//!   lease ends. A key has one claim at a time, whoever polls, and a claim takes the due rows of a key from the first on.
//! - **Attempts** count when a row is claimed. If the *publisher* was unavailable they are given back, and the poller backs
//!   off as a whole: an outage parks no row. Refusals of a row count, and so do holders that died with it.
//! - A **parked** row waits for a person, and holds its key unless the outbox is told to [`skip`](OnPoison::Skip) it.
//! - Health is by what was published (`onward_core::health::outbox` has the rule). Parked rows past a limit, and the age of
//!   the oldest row, count beside it.
//!
//! The modules, in the order a row passes through them: [`row`], [`enqueue`](mod@enqueue), [`store`], [`poller`],
//! [`publisher`]. [`store`] has the table for writers in other languages.

pub mod enqueue;
mod error;
mod outbox;
pub mod poller;
pub mod publisher;
pub mod row;
pub mod store;
mod supervised;

pub use enqueue::enqueue;
#[cfg(feature = "sqlite")]
pub use enqueue::sqlite;
pub use error::{EnqueueError, OutboxError};
pub use outbox::{MAX_LISTED, Outbox};
pub use poller::{OnPoison, Poller};
pub use publisher::{PublishError, Publisher};
pub use row::{Row, RowError};
pub use store::{RowFilter, RowInfo, RowState, UnpublishedRows};
pub use supervised::Supervise;
pub use uuid::Uuid;
