//! What is asked about the state, and waits where it cannot be answered yet.
//!
//! Without a confirmed seat nothing may be said of the state: another may have taken it. What is asked then waits for as
//! long as a call does; what a session has printed waits for the seat, as all that workers report. All are answered in
//! the order in which they came, behind what the machine was told before.

use std::collections::VecDeque;
use std::time::Duration;

use onward_core::ids::{Claim, SessionId};
use onward_core::time::Mono;

use super::{OutputsChecked, ReadWork};

pub(super) enum Question {
    Read(ReadWork),
    /// Attempts have printed something; which of it is kept?
    Printed {
        claims: Vec<Claim>,
        session: Option<SessionId>,
        reply: OutputsChecked,
    },
}

impl Question {
    /// Whether somebody waits for the answer, and not for ever.
    pub(super) fn is_call(&self) -> bool {
        match self {
            Self::Read(_) => true,
            Self::Printed { session, .. } => session.is_none(),
        }
    }
}

#[derive(Default)]
pub(super) struct KeptQuestions(VecDeque<(Mono, Question)>);

impl KeptQuestions {
    pub(super) fn add(&mut self, came_at: Mono, question: Question) {
        self.0.push_back((came_at, question));
    }

    pub(super) fn pop(&mut self) -> Option<Question> {
        self.0.pop_front().map(|(_, question)| question)
    }

    /// Dropping a question refuses it.
    pub(super) fn refuse_overdue(&mut self, now: Mono, wait: Duration) {
        self.0.retain(|(came_at, question)| !question.is_call() || *came_at + wait > now);
    }
}
