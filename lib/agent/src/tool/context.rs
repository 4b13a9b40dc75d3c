//! What a tool knows about its call, and what it can say.

use core::any::{Any, TypeId};
use core::fmt;
use core::time::Duration;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onward_lease::Heartbeat;
use onward_lease::heartbeat::Quiet;
use tokio::time::Instant;

use super::ToolError;
use crate::attempt::{CallPulse, NOTE_BYTES};
use crate::budget::{Budget, Spent};
use crate::novelty::cut;

/// Values that tools share, by type.
pub(crate) type Resources = HashMap<TypeId, Arc<dyn Any + Send + Sync>>;

/// A call of a tool, as its function sees it. Cheap to clone.
///
/// The agent beats before and after each call. A call that takes longer than a lease beats on its way, because of work
/// that was done and never from a timer.
#[derive(Clone)]
pub struct ToolContext {
    pub(crate) shared: Arc<ToolState>,
}

pub(crate) struct ToolState {
    pub pulse: CallPulse,
    pub name: String,
    pub key: String,
    pub deadline: Option<Instant>,
    pub budget: Budget,
    pub spent: Spent,
    pub resources: Arc<Resources>,
    /// Highest progress that the tool has reported.
    pub done: AtomicU64,
    /// The note for people about the state of the run.
    pub note: String,
}

impl ToolContext {
    /// The heartbeat of this call, with wrappers that beat by themselves: `ctx.heartbeat().reader(file)`.
    pub fn heartbeat(&self) -> &Heartbeat {
        &self.shared.pulse.heartbeat
    }

    /// "I am at it."
    #[track_caller]
    pub fn beat(&self) {
        self.heartbeat().beat();
    }

    /// "I have done this much of that much." A higher number than before is a forward step of the agent, unless it is
    /// about a call that has given the same result twice already.
    #[track_caller]
    pub fn progress(&self, done: u64, total: impl Into<Option<u64>>) {
        if self.shared.done.fetch_max(done, Ordering::Relaxed) >= done {
            return self.beat();
        }
        let of = total.into().map_or_else(String::new, |total| format!(" of {total}"));
        let note = format!("{}: {done}{of}; {}", self.shared.name, self.shared.note);
        self.shared.pulse.step(cut(&note, NOTE_BYTES));
    }

    /// Declares silence for at most `max`, until the value is dropped: for one call that cannot report.
    pub fn quiet(&self, max: Duration) -> Quiet {
        self.heartbeat().quiet(max)
    }

    /// Waits until the call must stop. It is dropped soon after.
    pub async fn cancelled(&self) {
        self.heartbeat().cancelled().await;
    }

    pub fn is_cancelled(&self) -> bool {
        self.heartbeat().is_cancelled()
    }

    /// `Err` once it must stop; for loops that like `?`.
    pub fn check(&self) -> Result<(), ToolError> {
        if self.is_cancelled() { Err(ToolError::new("cancelled")) } else { Ok(()) }
    }

    /// The time left until this call is cut off, by its timeout or by the end of the run; [`Duration::MAX`] if neither
    /// will.
    pub fn deadline(&self) -> Duration {
        self.shared.deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()))
    }

    /// The budget of the run. `ctx.budget().tokens_left(&ctx.spent())` is what is left of it.
    pub fn budget(&self) -> &Budget {
        &self.shared.budget
    }

    /// The spending of the run when the call began.
    pub fn spent(&self) -> Spent {
        self.shared.spent
    }

    /// A value that was given to [`Agent::resource`](crate::Agent::resource).
    pub fn resource<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.shared.resources.get(&TypeId::of::<T>()).cloned()?.downcast().ok()
    }

    /// A name of this call that is the same at every try of it, also by later attempts of the same job. Give it to
    /// whatever you write to, so that it can tell a repetition by it.
    pub fn call_key(&self) -> &str {
        &self.shared.key
    }
}

impl fmt::Debug for ToolContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolContext")
            .field("name", &self.shared.name)
            .field("key", &self.shared.key)
            .finish_non_exhaustive()
    }
}
