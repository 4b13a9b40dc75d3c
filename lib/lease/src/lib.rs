//! Leases that are renewed by beats, that is by work, and never by a timer.
//!
//! - [`Heartbeat`] is what a handler beats on. What goes through one of its [wrappers](wrap) beats by itself.
//! - [`mailbox`]: a queue whose messages are handed out under leases, as a trait; [`mailbox::Memory`] is one in this
//!   process. What a mailbox can and cannot do it says in its [`mailbox::Promises`], and the suite in `conformance`
//!   (a feature) shows that it says the truth.
//! - [`watch()`] runs a handler to its end, whatever that is, and [`Failure`] is how a handler says that it did not
//!   succeed.

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod failure;
pub mod heartbeat;
pub mod mailbox;
mod watch;
pub mod wrap;

pub use failure::{Failure, FailureKind};
pub use heartbeat::{CancelWhy, Heartbeat};
pub use watch::{HandlerEnd, watch};
