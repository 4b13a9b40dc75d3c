//! Agents: everything of `onward_agent`, with a [`Context`] too as what an agent runs in; a [`crate::Delivery`] is by itself.
//!
//! The session of a job's workflow is named after both, so that every attempt at it finds the same. Its name is also in
//! the checkpoint, unless the handler keeps something of its own there.

use core::time::Duration;

pub use onward_agent::*;

use crate::context::Context;

/// In front of the name of a session, in a checkpoint.
const POINTER: &str = "onward-agent-session:";

impl Attempt for Context {
    fn heartbeat(&self) -> &Heartbeat {
        Self::heartbeat(self)
    }

    fn progress(&self, done: u64, note: &str) {
        self.progress_note(done, None, note);
    }

    fn deadline(&self) -> Option<Duration> {
        Some(Self::deadline(self))
    }

    fn fence(&self) -> u64 {
        Self::fence(self)
    }

    fn session(&self) -> String {
        let pointer = self.checkpoint().and_then(|bytes| core::str::from_utf8(bytes).ok()?.strip_prefix(POINTER));
        pointer.map_or_else(|| format!("{}-{}", self.job_id(), self.claim().workflow), str::to_owned)
    }

    fn remember(&self, session: &str) {
        if self.checkpoint().is_none() {
            self.set_checkpoint(format!("{POINTER}{session}"));
        }
    }

    fn extensions(&self) -> u64 {
        Self::extensions(self)
    }
}
