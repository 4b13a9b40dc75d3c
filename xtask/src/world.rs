//! `cargo xtask world`: gates and datacenters on this machine to try things on, until Ctrl-C.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use onward_testkit::{World, WorldNode, WorldOptions};
use serde_json::{Value, json};

use crate::cluster::{build, stop_signal};

/// The time that a node has to end.
const PATIENCE: Duration = Duration::from_secs(20);

pub fn run(root: &Path, as_json: bool) -> Result<()> {
    let onward = build(root)?;
    let stop = stop_signal()?;
    if !as_json {
        println!("onward: starting PostgreSQL, two gates, and three datacenters of a manager and a worker each");
    }
    let world = WorldOptions::of(onward.clone()).gates(2).datacenters(3).slots(4).second_manager().start()?;
    match as_json {
        true => {
            let postgres = world.postgres.iter().map(|one| (one.port(), one.server().pid().as_raw_nonzero().get()));
            println!("{}", json(&world.nodes(), &postgres.collect::<Vec<_>>()));
        }
        false => print(&world, &onward),
    }
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(50));
    }
    if !as_json {
        println!("onward: stopping");
    }
    world.stop(PATIENCE);
    drop(world);
    if !as_json {
        println!("onward: stopped; nothing is left");
    }
    Ok(())
}

/// `postgres` is the port and the pid of each database.
fn json(nodes: &[WorldNode<'_>], postgres: &[(u16, i32)]) -> Value {
    let nodes = nodes.iter().map(|node| {
        json!({
            "name": node.name, "role": node.role, "datacenter": node.datacenter, "address": node.address,
            "pid": node.pid, "data": node.data,
        })
    });
    let postgres = postgres.iter().map(|(port, pid)| json!({ "role": "primary", "port": port, "pid": pid }));
    json!({ "nodes": nodes.collect::<Vec<_>>(), "postgres": postgres.collect::<Vec<_>>() })
}

fn print(world: &World, onward: &Path) {
    println!("\n  {:<16} {:<24} {:>8}", "name", "address", "pid");
    for node in world.nodes() {
        let address = node.address.as_deref().unwrap_or("-");
        println!("  {:<16} {address:<24} {:>8}", node.name, node.pid);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_is_told_with_what_it_takes_to_reach_it() {
        let nodes = [
            WorldNode {
                name: "gate-1",
                role: "gate",
                datacenter: None,
                address: Some("http://127.0.0.1:1".into()),
                pid: 2,
                data: "/g".into(),
            },
            WorldNode {
                name: "dc-a-worker",
                role: "worker",
                datacenter: Some("dc-a"),
                address: None,
                pid: 3,
                data: "/w".into(),
            },
        ];
        let expected = json!({
            "nodes": [
                { "name": "gate-1", "role": "gate", "datacenter": null, "address": "http://127.0.0.1:1", "pid": 2, "data": "/g" },
                { "name": "dc-a-worker", "role": "worker", "datacenter": "dc-a", "address": null, "pid": 3, "data": "/w" },
            ],
            "postgres": [{ "role": "primary", "port": 4, "pid": 5 }],
        });
        assert_eq!(json(&nodes, &[(4, 5)]), expected);
    }
}
