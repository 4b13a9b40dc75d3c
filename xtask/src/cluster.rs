//! `cargo xtask cluster`: a datacenter on this machine to try things on, until Ctrl-C.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use onward_testkit::{Cluster, ClusterOptions, PostgresServer, ServerProcess};
use serde_json::{Value, json};

use crate::workspace;

/// The time that a node has to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// Starts it with this binary, or with one that is built of this checkout.
pub fn run(root: &Path, as_json: bool, onward: Option<PathBuf>) -> Result<()> {
    let onward = onward.map_or_else(|| build(root), Ok)?;
    let stop = stop_signal()?;
    if !as_json {
        println!("onward: starting PostgreSQL with a synchronous standby, three managers and two workers");
    }
    let cluster = ClusterOptions::of(onward.clone()).workers(2, 4).standby().start()?;
    match as_json {
        true => println!("{}", nodes(&cluster)),
        false => print(&cluster, &onward),
    }
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(50));
    }
    if !as_json {
        println!("onward: stopping");
    }
    for worker in &cluster.workers {
        worker.server.stop(PATIENCE);
    }
    for manager in &cluster.managers {
        manager.server.stop(PATIENCE);
    }
    drop(cluster);
    if !as_json {
        println!("onward: stopped; nothing is left");
    }
    Ok(())
}

/// The binary of this checkout.
pub fn build(root: &Path) -> Result<PathBuf> {
    let built = workspace::cargo(root).args(["build", "--quiet", "--locked", "-p", "onward-cli"]).status()?;
    ensure!(built.success(), "the build of onward failed ({built})");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let onward = target.join("debug/onward");
    onward.canonicalize().with_context(|| format!("{} is not there", onward.display()))
}

/// Set by Ctrl-C, or by a request to end.
pub fn stop_signal() -> Result<Arc<AtomicBool>> {
    let stop = Arc::<AtomicBool>::default();
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // A second one ends us at once; the guards end what we started.
        signal_hook::flag::register_conditional_shutdown(signal, 130, stop.clone())?;
        signal_hook::flag::register(signal, stop.clone())?;
    }
    Ok(stop)
}

fn nodes(cluster: &Cluster) -> Value {
    let pid = |server: &ServerProcess| server.pid().as_raw_nonzero().get();
    let managers = cluster.managers.iter().map(|manager| {
        json!({
            "name": manager.name, "role": "manager", "datacenter": "default", "address": manager.url(),
            "pid": pid(&manager.server), "data": manager.data(),
        })
    });
    let workers = cluster.workers.iter().map(|worker| {
        json!({
            "name": worker.name, "role": "worker", "datacenter": "default", "address": null,
            "pid": pid(&worker.server), "data": worker.server.folder(),
        })
    });
    let postgres = |role: &str, server: &PostgresServer| {
        let address = server.socket_address();
        json!({ "role": role, "address": address.to_string(), "port": address.port(), "pid": pid(server.server()) })
    };
    let standby = cluster.standby.iter().map(|standby| postgres("standby", standby));
    let databases: Vec<Value> = [postgres("primary", &cluster.database)].into_iter().chain(standby).collect();
    json!({ "nodes": managers.chain(workers).collect::<Vec<_>>(), "postgres": databases, "database": cluster.database_url() })
}

fn print(cluster: &Cluster, onward: &Path) {
    println!("\n  {:<11} {:<24} {:>8}", "name", "address", "pid");
    for manager in &cluster.managers {
        println!("  {:<11} {:<24} {:>8}", manager.name, manager.url(), manager.server.pid().as_raw_nonzero());
    }
    for worker in &cluster.workers {
        println!("  {:<11} {:<24} {:>8}", worker.name, "-", worker.server.pid().as_raw_nonzero());
    }
    let databases = [("postgres", Some(&cluster.database)), ("standby", cluster.standby.as_ref())];
    for (name, server) in databases.into_iter().filter_map(|(name, server)| Some((name, server?))) {
        let (address, pid) = (server.socket_address().to_string(), server.server().pid().as_raw_nonzero());
        println!("  {name:<11} {address:<24} {pid:>8}");
    }
    let (first, onward) = (&cluster.managers[0], onward.display());
    println!(
        "\nTry next, in another terminal:
  export ONWARD_SERVER={} ONWARD_DATA={}
  {onward} status
  {onward} node list
  {onward} submit --wait -- sh -c 'echo hello; sleep 2'
  {onward} transfer-leader
  kill -9 {}        (a manager; the others go on)

Ctrl-C stops all of it.",
        cluster.managers.iter().map(onward_testkit::ManagerProcess::url).collect::<Vec<_>>().join(","),
        first.data().display(),
        first.server.pid().as_raw_nonzero(),
    );
}
