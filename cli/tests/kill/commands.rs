//! Workers that run commands, over failures of the managers: an attempt that runs goes on as one, whoever leads, and
//! workers find whoever that is.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use onward_testkit::{Cluster, ManagerProcess};
use serde_json::{Value, json};

use crate::cluster::{addresses, leader, options, probe, status};
use crate::support::PATIENCE;
use crate::support::http::Client;
use crate::support::jobs::{attempts, is_terminal, shell};
use crate::support::process::until;

/// A command that prints, and goes on until it is let go.
struct HeldCommand {
    id: String,
    go: PathBuf,
}

impl HeldCommand {
    /// Submits it, and waits until it runs.
    async fn begin(manager: &ManagerProcess, folder: &Path, name: &str) -> Self {
        let (begun, go) = (folder.join(format!("{name}.begun")), folder.join(format!("{name}.go")));
        let script = "echo x >> \"$BEGUN\"; while ! test -e \"$GO\"; do echo .; sleep 0.1; done; echo done";
        let env = [("BEGUN", begun.display().to_string()), ("GO", go.display().to_string())];
        let env: Vec<_> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let job = shell(script, &env, &json!({ "idempotency_key": name }));
        let id = until("it is submitted", PATIENCE, async || {
            let mut client = Client::with_token(manager.address, &manager.data());
            let reply = client.try_call("POST", "/v1/jobs", &job.to_string()).await.ok()?;
            matches!(reply.status, 200 | 201).then(|| reply.json()["id"].as_str().unwrap().to_owned())
        })
        .await;
        until("it runs", PATIENCE, async || begun.exists().then_some(())).await;
        Self { id, go }
    }

    /// Lets it go: it ends well, and it was one attempt.
    async fn end(self, address: SocketAddr) {
        std::fs::write(&self.go, "").unwrap();
        let path = format!("/v1/jobs/{}", self.id);
        let job: Value = until("it ends", PATIENCE, async || {
            let reply = Client::new(address).try_call("GET", &path, "").await.ok()?;
            (reply.status == 200).then(|| reply.json()).filter(is_terminal)
        })
        .await;
        assert_eq!((&job["state"], attempts(&job).len()), (&json!("succeeded"), 1), "{job}");
    }
}

/// Waits until so many workers talk to the manager that leads.
async fn has_workers(cluster: &Cluster, but: &[usize], count: u64) -> usize {
    until("the workers are there", PATIENCE, async || {
        let (led, _) = leader(cluster, but).await;
        let status = status(cluster.managers[led].address).await?;
        (status["manager"]["workers"] == count).then_some(led)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_runs_is_one_attempt_whichever_manager_leads() {
    let cluster = options().workers(2, 4).start().unwrap();
    let (addresses, folder) = (addresses(&cluster), tempfile::tempdir().unwrap());
    let mut led = has_workers(&cluster, &[], 2).await;
    let over_all = HeldCommand::begin(&cluster.managers[led], folder.path(), "over-all").await;
    for round in 0..2 {
        let held = HeldCommand::begin(&cluster.managers[led], folder.path(), &format!("over-kill-{round}")).await;
        cluster.managers[led].server.kill();
        let next = has_workers(&cluster, &[led], 2).await;
        held.end(addresses[next]).await;
        cluster.managers[led].server.start_again().unwrap();
        led = next;
    }
    for (index, manager) in cluster.managers.iter().enumerate() {
        let other = (index + 1) % addresses.len();
        let held = HeldCommand::begin(&cluster.managers[other], folder.path(), &format!("over-restart-{index}")).await;
        manager.server.stop(PATIENCE);
        held.end(addresses[other]).await;
        manager.server.start_again().unwrap();
        until("it follows", PATIENCE, async || (probe(addresses[index], "/readyz").await == Some(200)).then_some(()))
            .await;
    }
    over_all.end(addresses[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_leave_a_leader_that_is_cut_off_from_the_database() {
    let cluster = options().proxies().workers(3, 2).start().unwrap();
    let (addresses, folder) = (addresses(&cluster), tempfile::tempdir().unwrap());
    let led = has_workers(&cluster, &[], 3).await;
    let held = HeldCommand::begin(&cluster.managers[led], folder.path(), "over-the-cut").await;
    cluster.managers[led].to_databases.iter().for_each(|proxy| proxy.silence(true));
    let (next, _) = leader(&cluster, &[led]).await;
    until("one manager says that it leads", PATIENCE, async || {
        // Its storage is asked as well, for a while.
        let cut_off = Client::new(addresses[led]).try_call("GET", "/status", "").await.ok()?.json();
        (cut_off["role"] == "cut_off" && cut_off["leader"].is_null()).then_some(())
    })
    .await;
    held.end(addresses[next]).await;
    // As many as all workers together have slots: none of them waits for the old leader.
    let mut all = Vec::new();
    for number in 0..6 {
        all.push(HeldCommand::begin(&cluster.managers[next], folder.path(), &format!("after-the-cut-{number}")).await);
    }
    for held in all {
        held.end(addresses[next]).await;
    }
    cluster.managers[led].to_databases.iter().for_each(|proxy| proxy.silence(false));
}
