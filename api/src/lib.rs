//! The JSON of the node's HTTP interface as types, for both directions: the node answers with them and reads requests
//! into them, and so do the Rust client and the command line, the other way round. Each shape is described here once.
//!
//! Requests: [`submit`] is a submission, [`command`] all else that is asked of a job or of many, [`schedule`] and
//! [`dead_letter`] have their own. Answers: [`job`] is a job as it is shown, [`ledger`] and [`explanation`] say why it is
//! where it is; [`queue`], [`node`], [`schedule`], [`dead_letter`], [`leader`] and [`backup`] are for operators, [`status`] is the
//! node itself, [`lease`] is the work of those without a session. [`problem`] is every answer that is no success,
//! [`cluster`] what headers say of who leads.
//!
//! What they are made of: [`word`] is a word out of a list that may grow, [`raw`] is JSON of other people, [`instant`]
//! is RFC 3339, [`few`] is a list with a bound, [`span`] is durations as people write and read them.
//!
//! The first comment of a type is its description in the OpenAPI document; a remark for readers of the code alone is a plain
//! comment.
//!
//! # What may change
//!
//! A node refuses a field that it does not know, so that a mistake in writing is noticed. A client ignores it, because a
//! newer node may say more: no type of an answer refuses unknown fields, and where a node answers with one of several
//! words, a word that is new is kept as it came. A field that was once in an answer stays there.

pub mod backup;
pub mod cluster;
pub mod command;
pub mod dead_letter;
pub mod explanation;
pub mod few;
pub mod instant;
pub mod job;
pub mod leader;
pub mod lease;
pub mod ledger;
pub mod node;
pub mod problem;
pub mod queue;
pub mod raw;
pub mod schedule;
pub mod span;
pub mod status;
pub mod submit;
pub mod word;
