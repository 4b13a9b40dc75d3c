//! The gRPC protocol of Onward.
//!
//! The protocol is taught in `proto/onward/v1/*.proto`; [`v1`] is the code made from it. Everything else here stands
//! between those messages and core's types, which no other crate has to know about each other:
//!
//! - [`worker`]: a worker's frame ↔ [`onward_core::message::FromWorker`]
//! - [`manager`]: [`onward_core::message::ToWorker`] → a manager's frames → what a worker [`manager::ManagerMessage`]
//! - [`draft`]: a submission ↔ [`onward_core::job::Draft`]
//! - [`gate`]: what a datacenter and a gate say ↔ [`onward_core::gate::message`]
//! - [`common`]: claims, spans, names and payloads, each with one function each way
//!
//! What comes from outside is checked before core sees it, and is either taken whole or [`MalformedMessage`] with the name of
//! the field. What is a matter of rules (limits, stale fences, ranges of a job's settings) is left to core.

pub mod common;
pub mod draft;
pub mod gate;
pub mod malformed;
pub mod manager;
pub mod worker;

pub use malformed::{FieldProblem, MalformedMessage};

/// Generated from `proto/onward/v1/*.proto`.
#[allow(missing_debug_implementations, clippy::all)]
pub mod v1 {
    tonic::include_proto!("onward.v1");
}

/// The largest frame, or submission, that a node takes.
pub const MAX_FRAME_BYTES: usize = 4 << 20;
/// The largest frame of a gate: an order to run a job carries all its payloads, and a batch of jobs may be one job.
pub const MAX_ORDER_BYTES: usize = 32 << 20;
/// Entries of all parts of one frame together; also the jobs of one submission.
pub const MAX_FRAME_ENTRIES: usize = 10_000;
/// Bytes that the inputs of an attempt may have together in a frame, for a worker that can fetch them instead.
pub const MAX_INLINE_INPUTS: usize = 2 << 20;
/// The largest assignment that a worker gets which fetches nothing; it must decode such a frame.
pub const MAX_ASSIGNMENT_BYTES: usize = 256 << 20;
/// Bytes of its output that one attempt may send at a time, and that are kept of it.
pub const MAX_OUTPUT_BYTES: usize = 64 << 10;
