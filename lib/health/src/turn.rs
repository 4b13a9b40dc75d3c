//! One turn of a loop: how it ended, and what it can say before it does.

use std::fmt::Display;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use onward_core::health::Iteration;

use crate::board::LoopEntry;

/// The end of a turn. Returning an error is a failure; so is a panic, and a turn that is dropped.
#[must_use = "a turn that does not say how it ended has failed"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The number of things that were done. None done is [`Skipped`](Self::Skipped).
    Progress(u64),
    /// The source was really asked, and there was nothing to do.
    Idle,
    /// Nothing was asked, or nothing could be done yet. Refreshes nothing, spends nothing.
    Skipped,
    /// Some of it failed. Spends budget, refreshes nothing.
    Degraded { ok: u64, failed: u64 },
    /// Nothing is left to do, ever: no further turn, and healthy for ever.
    Finished,
}

impl From<Iteration> for TurnEnd {
    fn from(iteration: Iteration) -> Self {
        Self { iteration, text: None }
    }
}

/// The end of a turn, for the account.
#[derive(Debug)]
pub(crate) struct TurnEnd {
    pub(crate) iteration: Iteration,
    pub(crate) text: Option<String>,
}

impl Outcome {
    /// `None` for the last turn of a loop.
    pub(crate) fn iteration(self) -> Option<Iteration> {
        Some(match self {
            Self::Progress(count) => Iteration::Progress(count),
            Self::Idle => Iteration::Idle,
            Self::Skipped => Iteration::Skipped,
            Self::Degraded { ok, failed } => Iteration::Degraded { ok, failed },
            Self::Finished => return None,
        })
    }
}

impl TryFrom<Iteration> for Outcome {
    /// The code of an iteration that failed, which a turn returns as its error.
    type Error = &'static str;

    fn try_from(iteration: Iteration) -> Result<Self, Self::Error> {
        Ok(match iteration {
            Iteration::Progress(count) => Self::Progress(count),
            Iteration::Idle => Self::Idle,
            Iteration::Skipped => Self::Skipped,
            Iteration::Degraded { ok, failed } => Self::Degraded { ok, failed },
            Iteration::Failed { code } => return Err(code),
        })
    }
}

/// A handle by which the code of a turn reports while it goes on. It can be cloned into whatever the turn starts; once
/// the turn has ended, nothing that is said on it counts.
#[derive(Clone, Debug)]
pub struct Turn {
    pub(crate) entry: Arc<LoopEntry>,
    /// The number of the turn.
    pub(crate) number: u64,
}

impl Turn {
    /// `count` more things are done. That is a forward step: a long turn stays fresh by it.
    #[track_caller]
    pub fn progress(&self, count: u64) {
        if count > 0 {
            self.entry.step(self.number, count, Location::caller());
        }
    }

    /// The source was really asked, and everything in it is in the hands of others. That is as fresh as a forward step, and
    /// no success: failures in a row go on.
    #[track_caller]
    pub fn refresh(&self) {
        self.entry.step(self.number, 0, Location::caller());
    }

    /// The turn is active. That keeps it from being taken for hanging, and refreshes nothing.
    #[track_caller]
    pub fn beat(&self) {
        self.entry.beat(self.number, Location::caller());
    }

    /// The next turn begins after this wait, whatever the loop's settings say; after a failure it is the settings' backoff
    /// all the same.
    pub fn next_in(&self, wait: Duration) {
        self.entry.next_in(self.number, wait);
    }

    /// The loop was told to stop: this is its last turn, and there is a deadline to it.
    pub fn is_stopping(&self) -> bool {
        self.entry.stop.is_stopping()
    }

    /// Returns when the loop is told to stop.
    pub async fn stopping(&self) {
        self.entry.stop.stopping().await;
    }
}

/// The account of one loop, for code that does not fit [`Loop::new`](crate::Loop::new): several turns at a time, or
/// waits of its own. [`Loop::running`](crate::Loop::running) gives it out.
#[derive(Clone, Debug)]
pub struct Reporter {
    pub(crate) entry: Arc<LoopEntry>,
}

impl Reporter {
    /// Begins a turn. One before it that has not ended has failed.
    pub fn begin(&self) -> OpenTurn {
        let number = self.entry.begin();
        OpenTurn { turn: Turn { entry: Arc::clone(&self.entry), number }, ended: false }
    }

    /// A turn has ended that never said that it began. That is for loops with several turns at a time.
    pub fn record(&self, outcome: Outcome) {
        self.entry.end(None, outcome.iteration().map(TurnEnd::from));
    }

    /// Records, as [`record`](Self::record) does, a turn that failed; `code` is a word in snake_case, `why` is shown to
    /// people.
    pub fn record_failure(&self, code: &'static str, why: impl Display) {
        self.entry.end(None, Some(TurnEnd { iteration: Iteration::Failed { code }, text: Some(why.to_string()) }));
    }

    /// It succeeded last so long ago, perhaps in another process, and has not failed since.
    pub(crate) fn restore(&self, succeeded_ago: Duration) {
        self.entry.restore(succeeded_ago);
    }

    /// A forward step of one of several turns.
    #[track_caller]
    pub fn progress(&self, count: u64) {
        if count > 0 {
            self.entry.step_any(count, Location::caller());
        }
    }

    /// Beats for one of several turns.
    #[track_caller]
    pub fn beat(&self) {
        self.entry.beat_any(Location::caller());
    }

    /// Waits, by choice, which is no stall. Ends early if the loop is woken or told to stop.
    pub async fn wait(&self, wait: Duration) {
        self.entry.wait(wait).await;
    }

    /// The loop waits by choice, for this long at most, and will say when it goes on by beginning or recording a turn.
    pub fn waiting(&self, wait: Duration) {
        self.entry.waiting(wait);
    }

    pub fn is_stopping(&self) -> bool {
        self.entry.stop.is_stopping()
    }

    /// Returns when the loop is told to stop.
    pub async fn stopping(&self) {
        self.entry.stop.stopping().await;
    }
}

/// A turn that somebody has to end. Dropped before that, it has failed.
#[must_use = "a turn that is dropped has failed"]
#[derive(Debug)]
pub struct OpenTurn {
    turn: Turn,
    ended: bool,
}

impl OpenTurn {
    pub fn turn(&self) -> Turn {
        self.turn.clone()
    }

    pub fn end(mut self, outcome: Outcome) {
        self.ended = true;
        self.turn.entry.end(Some(self.turn.number), outcome.iteration().map(TurnEnd::from));
    }

    /// `code` is a word in snake_case, `why` is shown to people.
    pub fn fail(mut self, code: &'static str, why: impl Display) {
        self.ended = true;
        let ended = TurnEnd { iteration: Iteration::Failed { code }, text: Some(why.to_string()) };
        self.turn.entry.end(Some(self.turn.number), Some(ended));
    }

    /// The turn crashed, and so has its loop: the supervisor says what comes next.
    pub(crate) fn crash(mut self) {
        self.ended = true;
    }
}

impl Drop for OpenTurn {
    fn drop(&mut self) {
        if !self.ended {
            self.turn.entry.abandon(self.turn.number);
        }
    }
}
