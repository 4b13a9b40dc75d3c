//! Heartbeats that are watched: somebody outside of a loop's turns is at work, and says so by beating.
//!
//! A message that is being handled beats on a heartbeat of its own. One that has been silent for too long is a stall, as
//! much as a turn that hangs: it is logged with where it beat last, then cancelled, and liveness fails for as long as it
//! stays silent. This crate knows no heartbeat; whoever has some implements [`Beating`].

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use crate::supervisor::{SupervisedItem, Supervisor};

/// A set of heartbeats, of which the most silent one matters.
///
/// It is asked from the eye's own thread several times a second. So it must answer at once: an atomic load or a short
/// lock, never a wait.
pub trait Beating: Send + Sync + 'static {
    /// The heartbeat that has been silent for longest among those at work; `None` if none is. One that is in a declared
    /// quiet section is not silent.
    fn most_silent(&self) -> Option<LastBeat>;

    /// All that have been silent for so long. Unless it is written, only the most silent one is ever found, and cancelled.
    fn silent(&self, after: Duration) -> Vec<LastBeat> {
        self.most_silent().into_iter().filter(|one| one.ago >= after).collect()
    }

    /// Asks the one that is called so to stop, if that is possible. It was silent for longer than it may.
    fn cancel(&self, who: &str) {
        let _ = who;
    }
}

/// The last beat of one heartbeat.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LastBeat {
    /// Owner of the heartbeat, for people: a job, a message, a connection.
    pub who: String,
    /// Time since the last beat; since the heartbeat began, if it never beat.
    pub ago: Duration,
    /// The place in the code that beat.
    pub place: Option<&'static Location<'static>>,
}

/// Heartbeats with how long they may be silent, to be given to [`Supervisor::add`].
#[derive(Clone)]
pub struct Heartbeats {
    pub(crate) name: Arc<str>,
    pub(crate) critical: bool,
    pub(crate) silent_after: Duration,
    pub(crate) beating: Arc<dyn Beating>,
}

impl Heartbeats {
    pub fn new(name: &str, silent_after: Duration, beating: impl Beating) -> Self {
        Self { name: name.into(), critical: false, silent_after, beating: Arc::new(beating) }
    }

    /// Silence fails the probes. Without this it is shown, logged and cancelled, and fails none.
    pub fn critical(mut self) -> Self {
        self.critical = true;
        self
    }
}

impl std::fmt::Debug for Heartbeats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Heartbeats").field("name", &self.name).field("silent_after", &self.silent_after).finish()
    }
}

impl SupervisedItem for Heartbeats {
    fn add_to(self, service: &Supervisor) {
        service.add_heartbeats(self);
    }
}
