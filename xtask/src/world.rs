//! `cargo xtask world`: gates and datacenters on this machine to try things on, until Ctrl-C.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use onward_testkit::{Server, World, WorldOptions};
use serde_json::{Value, json};

use crate::cluster::{build, stop_signal};

/// The time that a node has to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// A node as it is told about.
struct Shown<'a> {
    name: &'a str,
    role: &'static str,
    datacenter: Option<&'a str>,
    address: Option<String>,
    server: &'a Server,
}

pub fn run(root: &Path, as_json: bool) -> Result<()> {
    let onward = build(root)?;
    let stop = stop_signal()?;
    if !as_json {
        println!("onward: starting PostgreSQL, two gates, and three datacenters of a manager and a worker each");
    }
    let world = WorldOptions::of(onward.clone()).gates(2).datacenters(3).slots(4).second_manager().start()?;
    match as_json {
        true => println!("{}", json(&world)),
        false => print(&world, &onward),
    }
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(50));
    }
    if !as_json {
        println!("onward: stopping");
    }
    // Workers first, so that managers hear of what they end; gates last.
    let mut nodes = nodes(&world);
    nodes.reverse();
    nodes.iter().for_each(|node| node.server.stop(PATIENCE));
    drop(nodes);
    drop(world);
    if !as_json {
        println!("onward: stopped; nothing is left");
    }
    Ok(())
}

fn nodes(world: &World) -> Vec<Shown<'_>> {
    let gates = world.gates.iter().map(|gate| Shown {
        name: &gate.name,
        role: "gate",
        datacenter: None,
        address: Some(gate.url()),
        server: &gate.server,
    });
    let managers = world.managers.iter().map(|manager| Shown {
        name: &manager.name,
        role: "manager",
        datacenter: Some(&manager.datacenter),
        address: Some(manager.url()),
        server: &manager.server,
    });
    let workers = world.workers.iter().map(|worker| Shown {
        name: &worker.name,
        role: "worker",
        datacenter: Some(&worker.datacenter),
        address: None,
        server: &worker.server,
    });
    gates.chain(managers).chain(workers).collect()
}

fn json(world: &World) -> Value {
    let pid = |server: &Server| server.pid().as_raw_nonzero().get();
    let nodes = nodes(world).into_iter().map(|node| {
        let data = if node.address.is_some() { node.server.folder().join("data") } else { node.server.folder().into() };
        json!({
            "name": node.name, "role": node.role, "datacenter": node.datacenter, "address": node.address,
            "pid": pid(node.server), "data": data,
        })
    });
    let postgres = world.postgres.iter();
    let postgres = postgres.map(|one| json!({ "role": "primary", "port": one.port(), "pid": pid(one.server()) }));
    json!({ "nodes": nodes.collect::<Vec<_>>(), "postgres": postgres.collect::<Vec<_>>() })
}

fn print(world: &World, onward: &Path) {
    println!("\n  {:<16} {:<24} {:>8}", "name", "address", "pid");
    for node in nodes(world) {
        let address = node.address.as_deref().unwrap_or("-");
        println!("  {:<16} {address:<24} {:>8}", node.name, node.server.pid().as_raw_nonzero());
    }
    let (gate, onward) = (&world.gates[0], onward.display());
    println!(
        "\nTry next, in another terminal:
  export ONWARD_SERVER={} ONWARD_DATA={}
  {onward} datacenter list
  {onward} submit --wait -- sh -c 'echo hello; sleep 2'
  {onward} list
  kill -9 {}        (a gate; the other goes on)

Ctrl-C stops all of it.",
        gate.url(),
        gate.data().display(),
        gate.server.pid().as_raw_nonzero(),
    );
}
