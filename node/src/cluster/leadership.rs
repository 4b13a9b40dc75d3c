//! When a node tries for the seat of its log, and to whom it may hand the seat over.
//!
//! The engine asks each time that it has read the log to its end, and tells what became of it. Who leads is decided by the
//! log alone; see [`onward_core::candidate`] for when a try makes sense.

use core::fmt;
use std::sync::Arc;

use onward_core::candidate::HolderId;
use onward_core::fence::Term;
use onward_core::ids::Seq;
use onward_log::Error;

use super::leader::LeaderAddress;

/// Says when to try for the seat, and learns what became of it. Asked from the machine's thread only, which may wait for
/// the answer.
pub trait Leadership: Send {
    /// Looks at the seat.
    fn look(&mut self, own: OwnStanding) -> SeatLook;

    /// Notes that this node leads from now on.
    fn leads(&mut self, _term: Term) {}

    /// A term of this node ended, and the seat was not handed over.
    fn term_ended(&mut self) {}

    /// The version of onward that the leader runs, where that is known.
    fn leader_version(&self) -> Option<String> {
        None
    }

    /// Hands the seat of this term over. Nothing is written under the term any more.
    fn hand_over(&mut self, term: Term, heir: &Heir) -> Result<(), HandoverError>;
}

/// The standing of the node that looks at the seat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnStanding {
    /// The newest event that was read.
    pub applied: Seq,
    /// Everything in the log was read; else the look is only to learn who leads.
    pub is_caught_up: bool,
    /// The node's loops move: no restart would help it.
    pub is_live: bool,
    /// The node may stand for election: a gate that is live, ready, and idle or normal; a manager always.
    pub may_stand: bool,
}

impl OwnStanding {
    /// The standing of a node that has read nothing yet.
    pub const BEFORE_READING: Self = Self { applied: Seq(0), is_caught_up: false, is_live: true, may_stand: true };
}

/// The result of a look at the seat.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SeatLook {
    Try,
    Follow {
        term: Term,
        leader: Option<LeaderAddress>,
    },
    /// The storage does not answer, and this node held the seat when it last did: no other is known to lead. Calls are
    /// refused here at once, and do not wait for a leader that nobody can become.
    Unseen,
}

/// A manager that the seat can be handed to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Heir {
    pub holder: HolderId,
    pub leader: LeaderAddress,
}

/// Finds the manager of this name, or the best one if none is named.
pub type Heirs = Arc<dyn Fn(Option<&str>) -> Result<Heir, HandoverError> + Send + Sync>;

/// The reason why the seat was not handed over. The leader leads on.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum HandoverError {
    #[error("this node does not lead; {}", leader_or_none(.0.as_ref()))]
    NotLeading(Option<LeaderAddress>),
    #[error("no other manager shares this node's storage, so nobody can take the seat; start one that does")]
    Alone,
    #[error("no manager is named `{name}`; there {}", Names(known))]
    UnknownManager { name: String, known: Vec<String> },
    #[error("`{name}` leads already")]
    LeadsAlready { name: String },
    #[error("`{name}` cannot lead now: {why}; try again later, or name another")]
    NotReady { name: String, why: String },
    #[error("the storage did not take the change: {0}; try again")]
    Storage(Error),
    #[error("another hand-over is under way; try again later")]
    UnderWay,
    #[error("this node stops, or its term ended meanwhile; see `onward status`")]
    TermOver,
}

fn leader_or_none(leader: Option<&LeaderAddress>) -> String {
    match leader {
        Some(LeaderAddress { name, address }) => format!("ask the leader, `{name}` at {address}"),
        None => "nobody leads just now; try again soon".into(),
    }
}

struct Names<'a>(&'a [String]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("is no other"),
            [one] => write!(f, "is `{one}`"),
            many => write!(f, "are {}", many.join(", ")),
        }
    }
}

/// A node that is alone with its log: it leads whenever it can.
#[derive(Clone, Copy, Debug, Default)]
pub struct SoleLeader;

impl Leadership for SoleLeader {
    fn look(&mut self, own: OwnStanding) -> SeatLook {
        if own.is_caught_up { SeatLook::Try } else { SeatLook::Follow { term: Term::default(), leader: None } }
    }

    fn hand_over(&mut self, _term: Term, _heir: &Heir) -> Result<(), HandoverError> {
        Err(HandoverError::Alone)
    }
}
