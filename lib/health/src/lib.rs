//! Health of a process by the forward progress of its loops.
//!
//! A process that answers a probe is not healthy by that. It is if every critical loop of it is inside its failure budget
//! and got something done inside its freshness window. This crate runs the loops, keeps that account, and answers an
//! orchestrator's probes from it, for any process and without an Onward server:
//!
//! ```no_run
//! use std::time::Duration;
//! use onward_health::{Budget, Loop, Outcome, Supervisor, Turn};
//!
//! async fn send_invoices(turn: Turn) -> Result<Outcome, std::io::Error> {
//!     // … each invoice that was sent is a forward step, so a long turn stays fresh.
//!     turn.progress(1);
//!     Ok(Outcome::Progress(1))
//! }
//!
//! # async fn service() -> Result<(), onward_health::RunError> {
//! let service = Supervisor::new("billing");
//! service.add(
//!     Loop::new("invoices", send_invoices)
//!         .every(Duration::from_secs(5))
//!         .critical()
//!         .freshness(Duration::from_secs(60))
//!         .budget(Budget::Consecutive(3)),
//! );
//! service.run().await
//! # }
//! ```
//!
//! How a verdict comes about, in the order of the modules:
//!
//! 1. [`turn`]: one iteration says how it ended by an [`Outcome`], and [`Turn`] is what it can say before that.
//! 2. [`repeat`]: a [`Loop`] repeats turns, waits between them, and is started again after a crash. [`policy`] says what
//!    its settings come to, and which contradict each other.
//! 3. [`board`]: what is known of every loop, of the [`input`]s beside them and of [`heartbeat`]s; a [`ProcessReport`] is all of
//!    that at one instant, with the verdict. Every rule behind it is `onward_core::health`'s.
//! 4. [`supervisor`]: runs the loops, and ends them within one deadline for all. Beside them runs the eye, a thread of its
//!    own that measures the [`executor`], cancels what hangs, and answers probes.
//!    Loops that others run on threads of their own are only [`watch`]ed.
//! 5. [`schedule`]: jobs that run by the clock, by cron and zone or by an interval.

pub mod board;
mod clock;
pub mod executor;
mod eye;
pub mod heartbeat;
pub mod input;
#[cfg(test)]
mod logged;
pub mod policy;
pub mod repeat;
pub mod schedule;
pub mod supervisor;
pub mod turn;
pub mod watch;

pub use board::{HealthHandle, LoopReport, ProcessReport};
pub use executor::Executor;
pub use heartbeat::{Beating, Heartbeats, LastBeat};
pub use input::{Age, Count, Dependency, ReadinessInput};
pub use onward_core::backoff::Backoff;
pub use onward_core::health::{FailureBudget as Budget, LoopReason, LoopState, RestartRule};
pub use policy::SettingsError;
pub use repeat::{Loop, Waker};
pub use supervisor::{RunError, Stopper, SupervisedItem, Supervisor};
pub use turn::{OpenTurn, Outcome, Reporter, Turn};
pub use watch::{LoopWatch, OpenEye, Pulse};
