//! Runs one command as an attempt, tells what it does, and ends its whole process tree in every case.

pub mod activity;
pub mod attempt;
pub mod directive;
pub mod duration;
mod ending;
pub mod guard;
mod leaf;
mod listen;
mod orphans;
pub mod payload;
pub mod report;
mod start;
mod supervise;
pub mod tail;
pub mod tree;
mod wire;

pub use attempt::{Event, Exit, GuardProgram, Options, Running, SpawnError, Stdin, Stream, spawn};
pub use payload::{BadPayload, Payload};
pub use report::{Report, ReportError};
pub use tail::Tail;
