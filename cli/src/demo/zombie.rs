//! A worker that freezes with a job in its hands, and comes back when somebody else has it.

use std::sync::Arc;
use std::time::Duration;

use onward::{CallError, Client};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::sleep;

use super::cast::{Part, Sabotage};

/// It freezes for good, as far as its lease is concerned.
pub const LEASE: Duration = Duration::from_secs(2);
pub const RESULT: &str = "the zombie's result";

/// Takes the job as a thin worker over HTTP, and says nothing until `awake`. Then it hands in its result.
pub async fn play(client: Client, sabotage: Option<Sabotage>, awake: Arc<Notify>) {
    if let Err(error) = try_play(&client, sabotage, &awake).await {
        tracing::debug!(%error, "the zombie's part ended");
    }
}

async fn try_play(client: &Client, sabotage: Option<Sabotage>, awake: &Notify) -> Result<(), CallError> {
    let receipt = take(client).await?;
    if sabotage == Some(Sabotage::Lease) {
        loop {
            sleep(LEASE / 4).await;
            client.post::<Value>(&format!("/v1/leases/{receipt}/beat"), &json!({})).await?;
        }
    }
    awake.notified().await;
    if sabotage == Some(Sabotage::Fence) {
        // Its successor hands it in.
        return Ok(());
    }
    client.post::<Value>(&format!("/v1/leases/{receipt}/succeed"), &json!({ "result": RESULT })).await?;
    Ok(())
}

async fn take(client: &Client) -> Result<String, CallError> {
    let poll = json!({
        "worker_id": "frozen", "incarnation": "a", "kinds": [Part::Zombie.kind()], "max": 1, "wait_s": 10,
        "lease_s": LEASE.as_secs_f64(),
    });
    let answer: Value = client.post("/v1/leases", &poll).await?;
    let receipt = answer["leases"][0]["receipt"].as_str();
    receipt.map(str::to_owned).ok_or_else(|| CallError::Unreadable("no lease came".into()))
}
