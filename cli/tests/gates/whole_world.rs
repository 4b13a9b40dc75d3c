//! The world of `cargo xtask world`: two gates on PostgreSQL, and three datacenters of which the last has two managers.

use std::path::Path;

use serde_json::json;

use super::support::process::Mark;
use super::*;

/// The time that a node has to end.
const STOPS_WITHIN: Duration = Duration::from_secs(30);

#[tokio::test]
async fn the_whole_world_runs_a_job_everywhere_and_stops_without_a_trace() {
    let options = options().gates(2).datacenters(3).slots(4).second_manager().settings(PATIENT);
    let world = options.start().expect("a world");
    let gates: Vec<Gate> = world.gates.iter().map(|gate| Gate { address: gate.address, data: gate.data() }).collect();
    for gate in &gates {
        are_healthy(gate, 3).await;
    }
    let all = json!({ "datacenters": ["dc-a", "dc-b", "dc-c"] });
    let (mark, left) = (Mark::new(), Mark::new());
    for gate in &gates {
        let id = gate.submit(&command("exit 0", &mark, all.clone())).await;
        let job = gate.ended(&id).await;
        assert_eq!(job["state"], "succeeded", "{job}");
        assert!(all_confirmed(&job), "{job}");
    }
    let body = gates[0].client().get("/v1/datacenters").await.json();
    let known = body["datacenters"].as_array().expect("a list");
    let (names, managers): (Vec<_>, Vec<_>) = known.iter().map(|one| (&one["name"], &one["managers"])).unzip();
    assert_eq!((json!(names), json!(managers)), (json!(["dc-a", "dc-b", "dc-c"]), json!([1, 1, 2])), "{body}");
    assert!(known.iter().all(|one| one["class"] == one["health"]), "{body}");

    // What runs when all of it stops is ended by its worker.
    gates[1].submit(&command("exec sleep 600", &left, all)).await;
    left.runs("sleep", 3).await;
    let nodes = world.nodes();
    let roles = |role: &str| nodes.iter().filter(|node| node.role == role).count();
    assert_eq!((roles("gate"), roles("manager"), roles("worker")), (2, 4, 3));
    let processes: Vec<String> = nodes.iter().map(|node| format!("/proc/{}", node.pid)).collect();
    assert!(processes.iter().all(|process| Path::new(process).exists()));
    world.stop(STOPS_WITHIN);
    left.gone(ENDS_WITHIN).await;
    // They have ended; what waits for them goes with the world.
    drop(world);
    let is_left = |process: &&String| Path::new(process).exists();
    assert_eq!(processes.iter().filter(is_left).collect::<Vec<_>>(), [""; 0]);
}
