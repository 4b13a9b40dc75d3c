//! How far this node has read its log while it follows, and who leads meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use onward_core::ids::Seq;
use onward_core::time::Mono;

use super::{Command, Engine, EngineState};
use crate::clock;
use crate::cluster::leader::LeaderView;
use crate::cluster::{HandoverError, handover};

/// The newest event that was read, and when the log was last read to its end.
#[derive(Default)]
pub(super) struct FollowingGauge {
    applied: AtomicU64,
    at_ms: AtomicU64,
}

impl FollowingGauge {
    pub(super) fn caught_up(&self, applied: Seq, now: Mono) {
        self.applied.store(applied.0, Ordering::Relaxed);
        self.at_ms.store(now.as_ms(), Ordering::Relaxed);
    }
}

impl Engine {
    /// The newest event that was read while following, and how long ago the log was read to its end.
    pub fn followed(&self) -> (Seq, Duration) {
        let FollowingGauge { applied, at_ms } = &self.0.following;
        let at = Mono::from_ms(at_ms.load(Ordering::Relaxed));
        (Seq(applied.load(Ordering::Relaxed)), clock::mono().since(at))
    }

    /// Hands the seat over to the manager of this name, or to the best one. Gives the name of the manager that leads next.
    /// What was decided is durable and answered before, and nobody is served from then on but by the next leader.
    pub async fn hand_over(&self, to: Option<&str>) -> Result<String, HandoverError> {
        let view = self.0.leader_view.borrow().clone();
        let send = |handover| self.0.send(Command::HandOver(handover));
        handover::hand_over(view, self.0.heirs.clone(), to, send).await
    }
}

impl EngineState {
    pub(super) fn publish(&self, view: LeaderView) {
        view.publish(&self.leader_view);
    }

    /// Publishes that nobody here knows who leads, if it is this node that was last known to.
    pub(super) fn publish_cut_off(&self) {
        LeaderView::publish_cut_off(&self.leader_view);
    }

    /// Whether calls are better made elsewhere.
    pub(super) fn is_other_leading(&self) -> bool {
        matches!(&*self.leader_view.borrow(), LeaderView::Following { leader: Some(_), .. })
    }
}
