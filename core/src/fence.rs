//! Fences: ordered tokens. A lower one is stale and refused.
//!
//! | token | raised when | carried by |
//! |---|---|---|
//! | [`AttemptFence`] | a workflow is handed out | beat, extension, result, release |
//! | [`Term`] | a manager takes the seat of a datacenter's log | log append, reports, dispatch |
//! | [`GateEpoch`] | a gate takes the gates' seat; a job is rebuilt from reports | global timeout, cancel, withdraw |
//!
//! They are distinct types on purpose: no code can compare a term with an epoch.
//! ```compile_fail
//! use onward_core::fence::{AttemptFence, Term};
//! let _ = Term::new(3) < AttemptFence::new(Term::new(3), 1).unwrap();
//! ```
//! ```compile_fail
//! use onward_core::fence::{GateEpoch, Term};
//! let _ = Term::new(3) == GateEpoch { n: 3, gate: 1 };
//! ```

use core::fmt;

/// A manager's tenure of the seat. The first is 1; 0 means that nobody ever sat.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Term(u64);

impl Term {
    pub const fn new(n: u64) -> Self {
        Self(n)
    }

    pub const fn get(self) -> u64 {
        self.0
    }
}

/// `term · 2²⁰ + hand-out number`: rises every time a workflow is handed out, also across takeovers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct AttemptFence(u64);

impl AttemptFence {
    /// The fence before the first hand-out; lower than any that was issued.
    pub const NONE: Self = Self(0);
    pub const MAX_HANDOUTS: u32 = (1 << 20) - 1;

    /// `None` once a workflow has been handed out 2²⁰ − 1 times: another fence would run into the next term's.
    pub const fn new(term: Term, handout: u32) -> Option<Self> {
        if handout > Self::MAX_HANDOUTS || term.0 >= 1 << 44 {
            return None;
        }
        Some(Self((term.0 << 20) | handout as u64))
    }

    /// A fence as a receipt or a message carries it.
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    pub const fn get(self) -> u64 {
        self.0
    }

    pub const fn term(self) -> Term {
        Term(self.0 >> 20)
    }

    /// The number of the hand-out that has this fence, 1 for the workflow's first.
    pub const fn handout(self) -> u32 {
        (self.0 & Self::MAX_HANDOUTS as u64) as u32
    }
}

/// A gate's claim to decide about a job: a number, then the gate's id to break ties.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GateEpoch {
    pub n: u64,
    pub gate: u64,
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for AttemptFence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for GateEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.n, self.gate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_fence_is_term_times_two_to_the_twenty_plus_handout() {
        for (term, handout, raw) in [(0, 1, 1), (1, 0, 1_048_576), (1, 7, 1_048_583), (3, 1_048_575, 4_194_303)] {
            assert_eq!(AttemptFence::new(Term::new(term), handout).unwrap().get(), raw);
        }
        assert_eq!(AttemptFence::new(Term::new(1), 1 << 20), None);
        assert_eq!(AttemptFence::new(Term::new(1 << 44), 1), None);
    }

    #[test]
    fn it_rises_with_every_handout_and_with_every_term() {
        let fence = |term, handout| AttemptFence::new(Term::new(term), handout).unwrap();
        assert!(fence(1, 2) > fence(1, 1));
        assert!(fence(2, 3) > fence(1, AttemptFence::MAX_HANDOUTS));
        assert!(fence(1, 1) > AttemptFence::NONE);
        assert_eq!((fence(9, 4).term(), fence(9, 4).handout()), (Term::new(9), 4));
    }

    #[test]
    fn gate_epochs_order_by_number_then_gate() {
        assert!(GateEpoch { n: 2, gate: 1 } > GateEpoch { n: 1, gate: 9 });
        assert!(GateEpoch { n: 2, gate: 2 } > GateEpoch { n: 2, gate: 1 });
    }
}
