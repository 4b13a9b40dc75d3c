//! Leases that are renewed by beats, that is by work, and never by a timer.
//!
//! - [`mailbox`]: a queue whose messages are handed out under leases, as a trait; [`mailbox::Memory`] is one in this
//!   process. What a mailbox can and cannot do it says in its [`mailbox::Promises`], and the suite in `conformance`
//!   (a feature) shows that it says the truth.

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod mailbox;
