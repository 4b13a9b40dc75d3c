//! The attempt that an agent runs in.
//!
//! An agent beats because something happened: an answer began, a chunk came, a tool ended. What a beat means is decided
//! by whoever listens to the [`Heartbeat`]: an Onward worker renews the lease of a job by it, a message loop that of a
//! delivery.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onward_lease::heartbeat::{Beat, Observer};
use onward_lease::{CancelWhy, Delivery, Heartbeat};
use sha2::{Digest as _, Sha256};

/// Longest note of a progress report.
pub const NOTE_BYTES: usize = 256;

/// The attempt that an agent runs in. Nothing here waits.
pub trait AgentAttempt: Send + Sync + 'static {
    fn heartbeat(&self) -> &Heartbeat;

    /// Units done so far, with a note of at most [`NOTE_BYTES`] for people. Only a higher number is a forward step. It must
    /// reach the heartbeat, whose watermark all runs of the attempt and its handler share.
    fn progress(&self, done: u64, note: &str) {
        let _ = note;
        self.heartbeat().progress(done, None);
    }

    /// A note of at most [`NOTE_BYTES`] for people, where there is somebody to read it. It says nothing of progress.
    fn note(&self, note: &str) {
        let _ = note;
    }

    /// The time left until the deadline of the job, if it has one.
    fn deadline(&self) -> Option<Duration> {
        None
    }

    /// Whether somebody else ends the attempt at that deadline, and may move it. Then it is for models and tools to know, and
    /// the agent does not end by it.
    fn is_ended_at_deadline(&self) -> bool {
        false
    }

    /// A number that rises with every hand-out of the same work. A session refuses a lower one than it has seen.
    fn fence(&self) -> u64;

    /// The session of this work: the same for every attempt at it. The second run of an attempt has one of its own, whose
    /// name begins with this, and so has a run with a [name](crate::Agent::named).
    fn session(&self) -> String;

    /// Leaves the name of the session where a later attempt finds it.
    fn remember(&self, session: &str) {
        let _ = session;
    }

    /// The number of times that the lease was extended so far.
    fn extensions(&self) -> u64 {
        0
    }
}

/// A delivery of a message loop. Every hand-out of a message has the same session, named by its mailbox, its id and its
/// body.
///
/// A mailbox of your own that has no [identity](onward_lease::mailbox::Mailbox::identity) needs
/// [sessions](crate::session) of its own: the ids of another one may be the same.
impl AgentAttempt for Delivery {
    fn heartbeat(&self) -> &Heartbeat {
        Self::heartbeat(self)
    }

    fn fence(&self) -> u64 {
        Self::fence(self)
    }

    fn session(&self) -> String {
        // Ids have characters that names of sessions must not have, and an id has no end of its own.
        let (mailbox, id) = (self.mailbox_identity(), self.id().as_str());
        let digest = [mailbox.as_str(), id].iter().fold(Sha256::new(), |digest, part| {
            digest.chain_update((part.len() as u64).to_be_bytes()).chain_update(part)
        });
        let digest = digest.chain_update(self.body()).finalize();
        digest.iter().fold("message-".to_owned(), |name, byte| format!("{name}{byte:02x}"))
    }

    fn extensions(&self) -> u64 {
        Self::extensions(self)
    }
}

/// A call of an agent: a heartbeat of its own, whose beats rise to the attempt and are counted for the call.
#[derive(Clone)]
pub(crate) struct CallPulse {
    attempt: Arc<dyn AgentAttempt>,
    pub heartbeat: Heartbeat,
    beats: Arc<AtomicU64>,
    /// Whether progress inside of the call is a forward step of the agent.
    counts: bool,
    _counting: Arc<Observer>,
}

impl CallPulse {
    /// The pulse of a whole run: cancelled, it cancels all of its calls.
    pub fn new(attempt: Arc<dyn AgentAttempt>) -> Self {
        let heartbeat = attempt.heartbeat().child();
        Self::with(attempt, heartbeat, true)
    }

    /// The pulse of another call of the same agent. If the call does not count, its progress is no more than a beat.
    pub fn call(&self, counts: bool) -> Self {
        Self::with(self.attempt.clone(), self.heartbeat.child(), counts)
    }

    fn with(attempt: Arc<dyn AgentAttempt>, heartbeat: Heartbeat, counts: bool) -> Self {
        let beats = Arc::new(AtomicU64::new(0));
        let counted = beats.clone();
        let counting = heartbeat.observe(move |beat| {
            if matches!(beat, Beat::Beat | Beat::Progress { .. }) {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { attempt, heartbeat, beats, counts, _counting: Arc::new(counting) }
    }

    /// A forward step of the agent, and a beat; only a beat in a call that does not count, and nothing in one that is over.
    #[track_caller]
    pub fn step(&self, note: &str) {
        if self.counts && !self.heartbeat.is_detached() {
            // Of all runs of the attempt, and of its handler: a number that another one has reached already is no step.
            self.attempt.progress(self.attempt.heartbeat().next_unit(), note);
        }
        // Last, so that the place that is remembered is the caller's.
        self.heartbeat.beat();
    }

    /// A new note, which is no step.
    pub fn note(&self, note: &str) {
        self.attempt.note(note);
    }

    /// Progress begins where an earlier attempt ended. A run that is gone on with within the attempt has made its steps.
    pub fn resume_at(&self, done: u64, note: &str) {
        match self.attempt.heartbeat().watermark() {
            Some((known, _)) if known >= done => self.attempt.note(note),
            _ => self.attempt.progress(done, note),
        }
    }

    /// Ends the call, or the run, with the value: what still runs of it then renews nothing and makes no step.
    #[must_use]
    pub fn scope(&self) -> CallScope {
        CallScope(self.heartbeat.clone())
    }

    pub fn beats(&self) -> u64 {
        self.beats.load(Ordering::Relaxed)
    }

    pub fn extensions(&self) -> u64 {
        self.attempt.extensions()
    }
}

/// A call or a run, until this is dropped.
pub(crate) struct CallScope(Heartbeat);

impl Drop for CallScope {
    fn drop(&mut self) {
        self.0.detach(CancelWhy::Asked);
    }
}

impl fmt::Debug for CallPulse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pulse").field("beats", &self.beats).finish_non_exhaustive()
    }
}
