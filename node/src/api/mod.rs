//! What users touch over HTTP.
//!
//! [`problem`] and [`json`] are the two shapes that everything has, [`access`] says what a caller may do, and [`may`]
//! what a handler needs. [`jobs`] is for those who submit and look, [`leases`] for workers without a session;
//! [`receipt`] is what they prove a lease with. What requests and answers look like is in `onward_api`, for clients too;
//! here is the way between those shapes and the machine. [`payload`] is the border between JSON and the bytes that the
//! core keeps, [`span`] that between seconds and durations, [`instant`] that between dates and instants. [`answers`] bounds
//! what large answers hold, [`openapi`] describes all of it.

pub mod access;
pub mod answers;
pub mod backup;
pub mod instant;
pub mod jobs;
pub mod json;
pub mod leader;
pub mod leases;
pub mod may;
pub mod openapi;
pub mod params;
pub mod payload;
pub mod problem;
pub mod receipt;
pub mod span;

use std::sync::Arc;

use tokio::sync::watch;

use crate::engine::Engine;
use crate::gossip::GossipHandle;
use crate::outputs::Outputs;
use jobs::follow::Followers;
use receipt::Receipts;

/// State that every handler can reach. Cheap to clone.
#[derive(Clone, Debug)]
pub struct App {
    pub engine: Engine,
    pub receipts: Receipts,
    pub outputs: Outputs,
    /// The datacenter that this node is of.
    pub datacenter: Arc<str>,
    /// What is seen of other nodes, if this one gossips.
    pub gossip: Option<GossipHandle>,
    /// True once the node drains: whoever waits for something is answered now.
    pub draining: watch::Receiver<bool>,
}

impl App {
    /// Resolves when the node begins to drain.
    pub async fn drained(&self) {
        // An error means that the node is gone, which is the end of all waiting too.
        let _ = self.draining.clone().wait_for(|draining| *draining).await;
    }
}

/// Routes under `/v1`, with a limit on the callers that may wait for jobs.
pub fn routes_for(followers: Followers) -> axum::Router<App> {
    leases::routes()
        .merge(jobs::routes_for(followers))
        .route("/backup", axum::routing::post(backup::backup))
        .route("/leader/transfer", axum::routing::post(leader::transfer))
}
