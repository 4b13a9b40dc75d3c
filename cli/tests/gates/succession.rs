//! Which of several gates leads next.

use onward_testkit::WorldGate;

use super::*;

fn gates(world: &World) -> Vec<Gate> {
    world.gates.iter().map(|gate| Gate { address: gate.address, data: gate.data() }).collect()
}

async fn leads(gate: &Gate) -> bool {
    let reply = gate.client().try_call("GET", "/status", "").await;
    reply.is_ok_and(|reply| reply.json()["role"] == "leader")
}

/// The place of the gate that leads.
async fn leader(gates: &[Gate]) -> usize {
    until("one leads", PATIENCE, async || {
        for (index, gate) in gates.iter().enumerate() {
            if leads(gate).await {
                return Some(index);
            }
        }
        None
    })
    .await
}

/// Waits until the other gates know whether this one may stand.
async fn may_stand(gate: &WorldGate, may_stand: bool) {
    let line = |text: &&str| text.contains("candidacy");
    until("it has said whether it may stand", PATIENCE, async || {
        let said = gate.server.said();
        said.lines().rfind(line)?.contains(&format!("may_stand={may_stand}")).then_some(())
    })
    .await;
}

fn tries(gate: &WorldGate) -> Vec<String> {
    let said = gate.server.said();
    said.lines().filter(|line| line.contains("trying for the seat")).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_gate_that_is_told_to_stop_hands_the_lead_over() {
    let world = options().gates(2).settings(SOON).settings(PATIENT).start().expect("a world");
    let gates = gates(&world);
    let leader = leader(&gates).await;
    let other = 1 - leader;
    may_stand(&world.gates[other], true).await;
    world.gates[leader].server.stop(PATIENCE);
    until("the other leads", PATIENCE, async || leads(&gates[other]).await.then_some(())).await;
    let tries = tries(&world.gates[other]);
    assert!(tries.last().is_some_and(|line| line.contains("handed_over")), "not since the first has gone: {tries:?}");
}

#[tokio::test]
async fn a_gate_that_no_datacenter_reaches_leads_only_if_no_other_can() {
    let world = options().gates(3).proxies().settings(SOON).settings(PATIENT).start().expect("a world");
    let gates = gates(&world);
    let first = leader(&gates).await;
    // Of the others, the one whose turn would be the first.
    let others: Vec<usize> = (0..3).filter(|index| *index != first).collect();
    let [lonely, well] = others[..] else { panic!("two follow") };
    for index in [lonely, well] {
        may_stand(&world.gates[index], true).await;
    }
    let way = &world.managers[0].to_gates[lonely];
    way.refuse(true);
    way.cut();
    may_stand(&world.gates[lonely], false).await;
    let before = tries(&world.gates[lonely]).len();
    // The lonely one is the first to see that nobody leads.
    world.gates[well].server.freeze();
    world.gates[first].server.kill();
    until("the lonely one leaves the lead to the other", PATIENCE, async || {
        assert_eq!(tries(&world.gates[lonely]).len(), before, "it tries");
        world.gates[lonely].server.said().contains("does not try for the seat").then_some(())
    })
    .await;
    world.gates[well].server.thaw();
    until("the one that is reached leads", PATIENCE, async || leads(&gates[well]).await.then_some(())).await;
    assert_eq!(tries(&world.gates[lonely]).len(), before, "it has not even tried");
    world.gates[well].server.kill();
    until("the lonely one leads, for there is no other", PATIENCE, async || leads(&gates[lonely]).await.then_some(()))
        .await;
}
