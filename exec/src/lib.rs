//! Runs one command as an attempt, tells what it does, and ends its whole process tree in every case.
//!
//! ```text
//!   worker's process                      guard                       the command
//!   ┌───────────────────┐  socket  ┌──────────────────┐  starts  ┌──────────────────────┐
//!   │ spawn → Running   │◀────────▶│ subreaper of the │─────────▶│ and all that it ever │
//!   │  next() → Event   │          │ tree below it    │  ends    │ starts               │
//!   │  stop(), kill()   │          └──────────────────┘          └─┬──────────────────┬─┘
//!   │                   │◀─────────────── stdout, stderr ──────────┘                  │
//!   │                   │◀─────────────── reports: ONWARD_SOCKET ─────────────────────┘
//!   └───────────────────┘
//! ```
//!
//! # Who ends what
//!
//! A process tree has no name that one could kill. A process may leave its group and its session, and when its parent
//! ends it belongs to nobody: unless somebody above it is a *subreaper*, and inherits it. Each attempt has one, the
//! [`guard`]. It outlives the command, and the worker too, so the tree is ended whatever happens:
//!
//! | what happens | who notices | what follows |
//! |---|---|---|
//! | the command ends | the guard | what it left behind is ended |
//! | [`Running::stop`], or it is dropped | the guard, by a word | SIGTERM to all, the grace, SIGKILL until nothing is left |
//! | the worker's process is killed | the guard, by the end of the connection | the same |
//! | the guard is killed | the worker, by the end of the connection | the command dies with it; the rest is known by its environment and killed |
//! | both are killed at once | the kernel | the command dies; what it had started stays, until a successor finds it |
//! | an attempt follows one of a killed worker | the worker that has it, by the environment of processes ([`AttemptIdentity`]) | it waits for the end of the earlier tree |
//!
//! What the guard does not reach is what is not below it: a container that the command asked a daemon to start, a
//! process of another user.
//!
//! # What counts as a sign of life
//!
//! Output, reports and activity; each is an [`AttemptEvent`], and whoever runs the attempt decides what it means. Reports come
//! as lines on stdout ([`directive`]) or through a socket ([`report`]). Activity is CPU time or I/O of the tree that
//! rises between two looks of the guard: a computation without a word is at work, a `sleep` and a deadlock are not.
//!
//! Nothing here grows without a limit. A slow reader of events slows the command down, and [`TailBuffer`] keeps the end.

mod activity;
pub mod attempt;
pub mod directive;
pub mod guard;
mod leaf;
mod listen;
mod orphans;
pub mod payload;
mod predecessors;
pub mod report;
mod start;
mod supervise;
pub mod tail;
pub mod tree;
mod tree_kill;
mod wire;

pub use attempt::{AttemptEvent, Exit, GuardProgram, Options, OutputStream, Running, SpawnError, Stdin, spawn};
pub use payload::{BadPayload, CommandPayload};
pub use predecessors::AttemptIdentity;
pub use report::{CommandReport, ReportError};
pub use tail::TailBuffer;
