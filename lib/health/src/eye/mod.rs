//! The eye: a thread of its own that sees what a process cannot see from inside its executor.
//!
//! Several times a second it looks: at how long a task waits for the executor, at loops that hang, at heartbeats that are
//! silent. A stall is logged with where the last beat was, and what hangs is cancelled.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use onward_core::health::{LoopReason, LoopState};
use tokio::runtime::Handle;

use crate::board::{Board, LoopReport, Report};
use crate::executor::Executor;

/// How often the eye looks.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What the eye is to do beside looking.
#[derive(Clone, Debug)]
pub(crate) struct EyeSettings {
    /// A task that could run and waits for longer has a starved executor.
    pub(crate) executor_lag: Duration,
}

impl Default for EyeSettings {
    fn default() -> Self {
        Self { executor_lag: Duration::from_secs(10) }
    }
}

/// The thread, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Eye {
    /// Dropped to end the thread.
    open: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Eye {
    /// Looks at the board, and at the executor that this is called on.
    pub(crate) fn open(board: Arc<Board>, settings: EyeSettings) -> io::Result<Self> {
        let handle = Handle::current();
        let (open, closed) = mpsc::channel();
        let looking = move || {
            // Within it, time is the runtime's: a test may have stopped it.
            let _guard = handle.enter();
            let mut sight = Sight { executor: Executor::new(handle.clone()), board, settings, stalls: HashMap::new() };
            loop {
                sight.look();
                if closed.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Disconnected) {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("onward-eye".into()).spawn(looking)?;
        Ok(Self { open: Some(open), thread: Some(thread) })
    }
}

impl Drop for Eye {
    fn drop(&mut self) {
        self.open.take();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the eye's thread panicked");
        }
    }
}

struct Sight {
    board: Arc<Board>,
    executor: Executor,
    settings: EyeSettings,
    /// Loops that are stalled, and the turn that was cancelled because of it.
    stalls: HashMap<String, u64>,
}

impl Sight {
    fn look(&mut self) {
        let absent = self.board.clock.look();
        if !absent.is_zero() {
            tracing::warn!(?absent, "this process could not run; nothing is late by that");
        }
        self.board.set_executor(self.executor.lag(), self.settings.executor_lag);
        let report = self.board.report();
        self.cancel_stalled(&report);
    }

    /// Each turn that hangs is logged and cancelled once.
    fn cancel_stalled(&mut self, report: &Report) {
        let stalled: Vec<_> = report.loops.iter().filter(|one| one.state == LoopState::Stalled).collect();
        self.stalls.retain(|name, _| stalled.iter().any(|one| one.name == *name));
        for one in stalled {
            if self.stalls.insert(one.name.clone(), one.turn) == Some(one.turn) {
                continue;
            }
            log_stall(one);
            if one.reason == LoopReason::IterationTooLong {
                self.board.cancel(&one.name);
            }
        }
    }
}

fn log_stall(one: &LoopReport) {
    let (loop_name, critical, reason) = (one.name.as_str(), one.critical, one.reason.code());
    let last_beat = one.last_beat().map_or_else(|| "nowhere in this turn".to_owned(), ToString::to_string);
    tracing::error!(loop_name, critical, reason, last_beat, "a loop is stalled; its turn is cancelled");
}
