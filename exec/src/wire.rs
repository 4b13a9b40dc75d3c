//! Messages between the worker's process and the guard: one JSON value per line, over the guard's socket.
//!
//! ```text
//!   worker                          guard
//!     │  Spec ────────────────────▶  │  starts the command
//!     │  ◀──────── Started | Failed  │
//!     │  ◀──────────────── Activity  │  whenever the tree did something since the last look
//!     │  Order::Stop | Kill ──────▶  │  (or the end of the connection: the worker is gone)
//!     │  ◀────────────────── Exited  │  the command itself has ended; the rest of its tree may not have
//!     │  ◀──────── end of connection │  nothing of the tree is left
//! ```

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub argv: Vec<String>,
    /// Variables on top of the environment that the guard inherited from the worker.
    pub env: BTreeMap<String, String>,
    pub env_remove: Vec<String>,
    pub cwd: Option<PathBuf>,
    /// Stay in the terminal's foreground group: the command reads from it, and gets its Ctrl-C.
    pub foreground: bool,
    pub grace_ms: u64,
    /// The interval at which activity is looked for; never, if there is none.
    pub sample_every_ms: Option<u64>,
    /// Words that make the guard's program a guard, or a leaf.
    pub guard_args: Vec<String>,
    /// The attempt's folder, removed at the end, also if the worker is not there to do it.
    pub folder: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum GuardOrder {
    /// SIGTERM to the whole tree, the grace, SIGKILL.
    Stop,
    /// SIGKILL at once.
    Kill,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum GuardMessage {
    Started { pid: i32 },
    Failed { kind: FailedKind, text: String },
    Activity(bool),
    Exited(ExitStatus),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FailedKind {
    NotFound,
    NotExecutable,
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ExitStatus {
    Code(i32),
    Signal(i32),
}

pub(crate) fn encode_line<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}
