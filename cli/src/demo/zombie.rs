//! A worker that freezes with a job in its hands, and comes back when somebody else has it.

use std::sync::Arc;
use std::time::Duration;

use onward::{CallError, Client};
use onward_api::lease::{Acceptance, BeatAnswerBody, BeatBody, Leases, PollBody, SucceedBody};
use onward_api::raw::Raw;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::cast::{DemoPart, Sabotage};

/// The lease of a worker that then freezes for good, as far as its lease is concerned.
pub const LEASE: Duration = Duration::from_secs(2);
pub const RESULT: &str = "the zombie's result";

/// Says nothing of the job that it took until `awake`. Then it hands in its result.
pub async fn play(client: Client, receipt: String, sabotage: Option<Sabotage>, awake: Arc<Notify>) {
    if let Err(error) = try_play(&client, &receipt, sabotage, &awake).await {
        tracing::debug!(%error, "the zombie's part ended");
    }
}

async fn try_play(client: &Client, receipt: &str, sabotage: Option<Sabotage>, awake: &Notify) -> Result<(), CallError> {
    if sabotage == Some(Sabotage::Lease) {
        loop {
            sleep(LEASE / 4).await;
            client.post::<BeatAnswerBody>(&format!("/v1/leases/{receipt}/beat"), &BeatBody::default()).await?;
        }
    }
    awake.notified().await;
    if sabotage == Some(Sabotage::Fence) {
        // Its successor hands it in.
        return Ok(());
    }
    let result = Some(Raw::of(RESULT).expect("a text can be written as JSON"));
    let body = SucceedBody { result, result_base64: None };
    client.post::<Acceptance>(&format!("/v1/leases/{receipt}/succeed"), &body).await?;
    Ok(())
}

/// Takes the job as a thin worker over HTTP; the receipt of its lease.
pub async fn take(client: &Client) -> Result<String, CallError> {
    let poll = PollBody {
        worker_id: "frozen".into(),
        incarnation: "a".into(),
        queues: None,
        kinds: vec![DemoPart::Zombie.kind().to_owned()],
        max: Some(1),
        wait_s: Some(10.0),
        lease_s: Some(LEASE.as_secs_f64()),
        poll_id: None,
        inputs_by_reference: None,
    };
    let answer: Leases<'static> = client.post("/v1/leases", &poll).await?;
    let lease = answer.leases.into_iter().next();
    lease.map(|lease| lease.receipt).ok_or_else(|| CallError::Unreadable("no lease came".into()))
}
