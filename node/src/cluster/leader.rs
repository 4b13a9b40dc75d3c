//! Who leads, as this node knows it.
//!
//! The engine's shell publishes it, since it alone sees the seat; forwarding, `/status`, `/readyz` and the headers of
//! answers read it. It is a hint and no authority: a call that reaches a node which leads no longer is refused there, by
//! its machine or by the log.

use onward_core::fence::Term;
use tokio::sync::watch;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LeaderView {
    /// The log was not read to its end yet.
    Starting,
    /// This node holds the seat, under this term.
    Leading { term: Term },
    /// This node held the seat under this term, and its storage does not answer since: another may lead, and nobody can
    /// say so here.
    CutOff { term: Term },
    /// Another node holds the seat, or nobody does: then there is no address.
    Following { term: Term, leader: Option<LeaderAddress> },
}

/// The address of a leader.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LeaderAddress {
    pub name: String,
    /// `host:port`, or a URL with its scheme.
    pub address: String,
}

impl LeaderView {
    /// The channel that a node's view is published on.
    pub fn channel() -> watch::Sender<Self> {
        watch::Sender::new(Self::Starting)
    }

    pub const fn role(&self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Leading { .. } => "leader",
            Self::CutOff { .. } => "cut_off",
            Self::Following { .. } => "follower",
        }
    }

    pub const fn term(&self) -> Option<Term> {
        match self {
            Self::Starting => None,
            Self::Leading { term } | Self::CutOff { term } | Self::Following { term, .. } => Some(*term),
        }
    }
}
