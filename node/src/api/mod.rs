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
            if let Some(response) = response.as_object_mut() {
                let what = if status.starts_with('2') { "done" } else { "refused: what, why and what to do" };
                response.entry("description").or_insert_with(|| what.into());
            }
            // By name: an index would put an empty one where there is none.
            let Some(content) = response.get_mut("content").and_then(|content| content.as_object_mut()) else {
                continue;
            };
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

#[cfg(test)]
mod tests {
    #[test]
    fn every_answer_is_described_and_none_has_an_empty_body() {
        let all = super::openapi();
        let paths = all["paths"].as_object().expect("there are paths").iter();
        let mut answers = 0;
        for (path, operation) in paths.flat_map(|(path, methods)| {
            methods.as_object().expect("methods by name").values().map(move |operation| (path, operation))
        }) {
            for (status, answer) in operation["responses"].as_object().expect("every call has answers") {
                answers += 1;
                assert!(answer["description"].is_string(), "{path} {status}: {answer}");
                assert!(answer.get("content").is_none_or(serde_json::Value::is_object), "{path} {status}: {answer}");
            }
        }
        assert!(answers > 50, "{answers}");
    }
}
