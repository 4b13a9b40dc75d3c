//! Agents: everything of `onward_agent`. What an agent runs in is a [`crate::Delivery`], or with the feature `worker` a
//! `Context`.
//!
//! The session of a job's workflow is named after both, so that every attempt at it finds the same. Its name is also in
//! the checkpoint, beside what the handler itself keeps there.

#[cfg(feature = "worker")]
use core::time::Duration;

pub use onward_agent::*;

#[cfg(feature = "worker")]
use crate::context::Context;

#[cfg(feature = "worker")]
impl AgentAttempt for Context {
    fn heartbeat(&self) -> &Heartbeat {
        Self::heartbeat(self)
    }

    fn progress(&self, done: u64, note: &str) {
        self.progress_note(done, None, note);
    }

    fn note(&self, note: &str) {
        Self::note(self, note);
    }

    fn deadline(&self) -> Option<Duration> {
        Some(Self::deadline(self))
    }

    /// By the node, which knows of extensions that the worker does not know of.
    fn is_ended_at_deadline(&self) -> bool {
        true
    }

    fn fence(&self) -> u64 {
        Self::fence(self)
    }

    fn session(&self) -> String {
        let pointer = self.agent_session().map(String::from);
        pointer.unwrap_or_else(|| format!("{}-{}", self.job_id(), self.claim().workflow))
    }

    fn remember(&self, session: &str) {
        self.set_agent_session(session);
    }

    fn extensions(&self) -> u64 {
        Self::extensions(self)
    }
}
