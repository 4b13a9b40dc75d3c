//! Gates that gossip: each knows how the others are.

use super::*;

/// The row of a gate in the list of another.
async fn row(asked: &Gate, name: &str) -> Option<Value> {
    let reply = asked.client().try_call("GET", "/v1/nodes", "").await.ok()?;
    let body = reply.json();
    body["nodes"].as_array()?.iter().find(|node| node["id"] == name).cloned()
}

#[tokio::test]
async fn each_gate_lists_the_others_and_one_that_was_killed_is_suspect() {
    let world = options().gates(2).datacenters(1).settings(SOON).settings(PATIENT).start().expect("a world");
    let gates: Vec<Gate> = world.gates.iter().map(|gate| Gate { address: gate.address, data: gate.data() }).collect();
    for asked in &gates {
        for known in &world.gates {
            let row = until("it is listed as healthy", PATIENCE, async || {
                row(asked, &known.name).await.filter(|row| row["verdict"] == "healthy")
            })
            .await;
            assert_eq!((&row["role"], &row["gossip"]["overload"]), (&json!("gate"), &json!("normal")), "{row}");
            let signals = json!({ "live": true, "ready": true, "progress": "idle" });
            assert_eq!(row["signals"], signals, "{row}");
        }
    }
    let leader = until("one is known to lead", PATIENCE, async || {
        let rows = [row(&gates[1], "gate-1").await?, row(&gates[0], "gate-2").await?];
        rows.iter().position(|row| row["gossip"]["leads"] == true)
    })
    .await;
    let other = 1 - leader;
    gates[other].submit(&json!({ "kind": "exec", "payload": { "argv": ["true"] } })).await;
    until("the other hears what was forwarded", PATIENCE, async || {
        row(&gates[other], &world.gates[leader].name).await.filter(|row| {
            let flow = &row["gossip"];
            flow["throughput"].as_u64() >= Some(1)
                && flow["expected_throughput"].as_u64() >= flow["throughput"].as_u64()
        })
    })
    .await;
    world.gates[leader].server.kill();
    let row = until("it is suspect", PATIENCE, async || {
        row(&gates[other], &world.gates[leader].name).await.filter(|row| row["verdict"] == "suspect")
    })
    .await;
    assert_eq!(row["reason"], "missed_probes", "{row}");
}
