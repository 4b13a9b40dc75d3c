//! Gates and datacenters as processes: from a decision of the gate until no process of the job is left anywhere.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use onward::{Client, NodeAddress};
use onward_testkit::{World, WorldOptions};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::contest::ContestError;
use crate::contest::ours::program::program;
use crate::report::Figure;
use crate::runs::median;

const DATACENTERS: [&str; 3] = ["dc-a", "dc-b", "dc-c"];
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// The time after which something is broken.
const PATIENCE: Duration = Duration::from_secs(60);

/// A job that runs in three datacenters is cancelled at the gate, again and again.
pub async fn decisions(quick: bool) -> Result<Vec<Figure>, ContestError> {
    let times = if quick { 5 } else { 20 };
    let world = WorldOptions::of(program()?).datacenters(DATACENTERS.len()).start()?;
    let gate = client(&world)?;
    all_connected(&gate).await?;
    let mut spans = Vec::new();
    for _ in 0..times {
        let folder = tempfile::tempdir()?;
        let id = submit(&gate, folder.path()).await?;
        let pids = running(folder.path()).await?;
        let begun = Instant::now();
        let _: Value = gate.post(&format!("/v1/jobs/{id}/cancel"), &json!({})).await?;
        gone(&pids, begun).await?;
        spans.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    let (value, spread) = median(spans);
    Ok(vec![Figure {
        what: format!("a decision of the gate until no process is left in 3 datacenters, p50 over {times}"),
        value,
        unit: "ms",
        wanted: Some(200.0),
        more: false,
        spread,
    }])
}

fn client(world: &World) -> Result<Client, ContestError> {
    let gate = &world.gates[0];
    let token = std::fs::read_to_string(gate.data().join("token"))?;
    Ok(Client::at(NodeAddress::at(&gate.url())?.with_token(token.trim())))
}

async fn all_connected(gate: &Client) -> Result<(), ContestError> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let list: Value = gate.get("/v1/datacenters").await?;
        let all = list["datacenters"].as_array().map(Vec::as_slice).unwrap_or_default();
        if all.iter().filter(|one| one["health"] == "healthy").count() == DATACENTERS.len() {
            return Ok(());
        }
        sleep(LOOK_EVERY).await;
    }
    Err("the datacenters do not reach the gate".into())
}

/// Each process writes its number into the folder, and waits to be ended.
async fn submit(gate: &Client, folder: &Path) -> Result<String, ContestError> {
    let script = format!("echo $$ > {0}/$$.new; mv {0}/$$.new {0}/$$; exec sleep 600", folder.display());
    let job = json!({ "kind": "exec", "payload": { "argv": ["sh", "-c", script] }, "stuck_after_s": 600, "datacenters": DATACENTERS });
    let answer: Value = gate.post("/v1/jobs", &job).await?;
    Ok(answer["id"].as_str().ok_or("no id")?.to_owned())
}

async fn running(folder: &Path) -> Result<Vec<PathBuf>, ContestError> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let names = std::fs::read_dir(folder)?.flatten().map(|entry| entry.file_name());
        let pids: Vec<PathBuf> = names
            .filter_map(|name| name.to_str()?.parse::<u32>().ok())
            .map(|pid| format!("/proc/{pid}").into())
            .collect();
        if pids.len() == DATACENTERS.len() {
            return Ok(pids);
        }
        sleep(LOOK_EVERY).await;
    }
    Err("the job does not run in all datacenters".into())
}

async fn gone(pids: &[PathBuf], since: Instant) -> Result<(), ContestError> {
    while pids.iter().any(|pid| pid.exists()) {
        if since.elapsed() > PATIENCE {
            return Err("processes are left of a job that was cancelled".into());
        }
        sleep(LOOK_EVERY).await;
    }
    Ok(())
}
