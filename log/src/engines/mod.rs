//! The engines: where rows, blobs and snapshots are kept. Each knows bytes, and keeps the promises of
//! [`Log`](crate::Log), which `conformance` asks of all of them in the same words.
//!
//! A further engine is a folder beside these. What may be written next it asks of `head`, and how a row lies in its
//! bytes of `row`, unless its store has columns for that.

pub mod embedded;
pub mod memory;
