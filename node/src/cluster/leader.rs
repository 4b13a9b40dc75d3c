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

    /// Publishes what a node knows now, and logs it where it is news.
    pub(crate) fn publish(self, to: &watch::Sender<Self>) {
        to.send_if_modified(|known| {
            let is_news = *known != self;
            if is_news {
                tracing::info!(role = self.role(), view = ?self, "leadership");
                *known = self;
            }
            is_news
        });
    }

    /// Publishes that nobody here knows who leads, if it is this node that was last known to.
    pub(crate) fn publish_cut_off(to: &watch::Sender<Self>) {
        let Self::Leading { term } = *to.borrow() else { return };
        Self::CutOff { term }.publish(to);
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
