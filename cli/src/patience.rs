//! How long somebody asks on, if no node answers.

use std::thread;
use std::time::{Duration, Instant};

use crate::client::NodeClient;
use crate::failure::CommandFailure;
use crate::screen::Screen;
use crate::span;
use crate::status_line::StatusLine;

/// The pause between two questions, if the node answers at once, or not at all.
pub const PAUSE: Duration = Duration::from_millis(250);
/// A node that was there and is away has this long to start again.
const RESTARTS_WITHIN: Duration = Duration::from_secs(60);

/// The time that somebody wants to wait for a job, and so for a node that does not answer. With a limit, it is asked
/// until that is over. Without one, a node that never answered is not waited for, since that might have no end; one
/// that did has the time that a restart takes.
#[derive(Debug)]
pub struct Patience {
    began: Instant,
    at_most: Option<Duration>,
}

impl Patience {
    pub fn new(at_most: Option<Duration>) -> Self {
        Self { began: Instant::now(), at_most }
    }

    pub fn began(&self) -> Instant {
        self.began
    }

    pub fn at_most(&self) -> Option<Duration> {
        self.at_most
    }

    pub fn left(&self) -> Option<Duration> {
        self.at_most.map(|most| most.saturating_sub(self.began.elapsed()))
    }

    pub fn is_over(&self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }

    /// Asks until there is an answer, or a failure that does not pass.
    pub fn ask<T>(
        &self,
        client: &NodeClient,
        screen: &Screen,
        mut question: impl FnMut() -> Result<T, CommandFailure>,
    ) -> Result<T, CommandFailure> {
        let mut failing_since = None;
        loop {
            let failure = match question() {
                Err(failure) if failure.may_pass() => failure,
                answered => return answered,
            };
            let is_first = failing_since.is_none();
            let since = *failing_since.get_or_insert_with(Instant::now);
            let (most, left) = match (self.at_most.zip(self.left()), client.has_answered()) {
                (Some(limited), _) => limited,
                (None, true) => (RESTARTS_WITHIN, RESTARTS_WITHIN.saturating_sub(since.elapsed())),
                (None, false) => return Err(failure),
            };
            let shown = span::human(most);
            if left.is_zero() {
                return Err(failure.and_why(&format!("it was tried for {shown}")));
            }
            if is_first {
                StatusLine::wipe(screen.bars);
                screen.note(format!("onward: {}; trying again for up to {shown}", failure.what()));
            }
            thread::sleep(PAUSE.min(left));
        }
    }
}
