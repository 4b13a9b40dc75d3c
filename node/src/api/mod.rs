//! What users touch over HTTP.
//!
//! [`problem`] and [`json`] are the two shapes that everything has, [`access`] says what a caller may do, and [`may`]
//! what a handler needs. [`jobs`] is for those who submit and look, [`leases`] for workers without a session;
//! [`receipt`] is what they prove a lease with. [`payload`] is the border between JSON and the bytes that the core
//! keeps, [`span`] that between seconds and durations, [`instant`] that between dates and instants.

pub mod access;
pub mod backup;
pub mod few;
pub mod instant;
pub mod jobs;
pub mod json;
pub mod leases;
pub mod may;
pub mod params;
pub mod payload;
pub mod problem;
pub mod receipt;
pub mod span;

use tokio::sync::watch;

use crate::engine::Engine;
use crate::outputs::Outputs;
use jobs::follow::Followers;
use receipt::Receipts;

/// What every handler can reach. Cheap to clone.
#[derive(Clone, Debug)]
pub struct App {
    pub engine: Engine,
    pub receipts: Receipts,
    pub outputs: Outputs,
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

/// Everything under `/v1`, with a limit on how many may wait for jobs.
pub fn routes_for(followers: Followers) -> axum::Router<App> {
    leases::routes().merge(jobs::routes_for(followers)).route("/backup", axum::routing::post(backup::backup))
}

/// The description of [`routes_for`]. What goes wrong is a problem everywhere, whether or not a handler says so.
pub fn openapi() -> serde_json::Value {
    use utoipa::OpenApi as _;
    let mut all = leases::LeasesApi::openapi();
    all.merge(jobs::JobsApi::openapi());
    all.merge(backup::BackupApi::openapi());
    all.info.title = "Onward".into();
    all.info.description = None;
    let mut all = serde_json::to_value(all).expect("a description is plain data");
    let operations = all["paths"].as_object_mut().into_iter().flat_map(|paths| paths.values_mut());
    for operation in operations.filter_map(|methods| methods.as_object_mut()).flat_map(|methods| methods.values_mut()) {
        let Some(responses) = operation["responses"].as_object_mut() else { continue };
        for (status, response) in &mut *responses {
            let Some(content) = response["content"].as_object_mut() else { continue };
            if status.starts_with(['4', '5'])
                && let Some(problem) = content.remove("application/json")
            {
                content.insert(PROBLEM.into(), problem);
            }
        }
        responses.insert(
            "default".into(),
            serde_json::json!({
                "description": "refused: what, why and what to do",
                "content": { PROBLEM: { "schema": { "$ref": "#/components/schemas/Problem" } } },
            }),
        );
    }
    all
}

const PROBLEM: &str = "application/problem+json";
