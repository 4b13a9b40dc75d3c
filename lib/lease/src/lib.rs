//! Leases that are renewed by beats, that is by work, and never by a timer.
//!
//! - [`Heartbeat`] is what a handler beats on. What goes through one of its [wrappers](wrap) beats by itself.
//! - [`MessageLoop`] receives messages, runs a handler for each and settles it. [`Delivery`] is what its handler gets, and
//!   [`LeaseExtender`] renews the leases, for it or for a loop of your own.
//! - [`mailbox`]: a queue whose messages are handed out under leases, as a trait; [`mailbox::Memory`] is one in this
//!   process. What a mailbox can and cannot do it says in its [`mailbox::Promises`], and the suite in `conformance`
//!   (a feature) shows that it says the truth.
//! - [`watch()`] runs a handler to its end, whatever that is, and [`Failure`] is how a handler says that it did not
//!   succeed.

mod clock;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod delivery;
pub mod extender;
mod failure;
pub mod heartbeat;
pub mod mailbox;
pub mod messages;
#[cfg(test)]
mod spy;
mod watch;
pub mod wrap;

pub use delivery::Delivery;
pub use extender::{Lease, LeaseExtender, LeaseRule};
pub use failure::{Failure, FailureKind};
pub use heartbeat::{CancelWhy, Heartbeat};
pub use messages::{MessageLoop, MessageLoopError};
pub use watch::{HandlerEnd, watch};
