//! What the node's HTTP interface and those who call it share, so that it is described once.
//!
//! [`explanation`] is the answer of `GET /v1/jobs/{id}/explain`; [`span`] is durations as people write and read them.

pub mod explanation;
pub mod span;
