//! Gates and managers that are killed, and datacenters that are cut off, while a decision is due.

use std::fs;

use serde_json::json;

use super::support::process::{Mark, until, with_gaps};
use super::support::{PATIENCE, a_moment, onward};
use super::*;

#[tokio::test]
async fn a_datacenter_that_is_cut_off_during_a_global_timeout_ends_the_job_once_it_is_back() {
    let world = world(options().proxies(), 2).await;
    let (gate, mark) = (gate(&world), Mark::new());
    let both = json!({ "datacenters": ["dc-a", "dc-b"], "timeout_s": 5, "stuck_after_s": 600 });
    let id = gate.submit(&command("exec sleep 600", &mark, both)).await;
    mark.runs("sleep", 2).await;
    world.managers[1].cut_off(true);
    let decided = |job: &Value| job["state"] == "cancelling" || !job["ended_at"].is_null();
    gate.until_job(&id, "the gate decides", decided).await;
    let at_once = tokio::time::Instant::now();
    let ended_in_a = |job: &Value| in_datacenter(job, "dc-a")["state"] == "timed_out";
    let (job, gaps) = with_gaps(gate.until_job(&id, "the one that is reached ends it", ended_in_a)).await;
    let took = at_once.elapsed().saturating_sub(gaps);
    assert!(took < Duration::from_secs(10), "it waited for the one that is cut off: {took:?}");
    assert_eq!(
        (&job["state"], &in_datacenter(&job, "dc-b")["confirmed"]),
        (&json!("cancelling"), &json!(false)),
        "{job}"
    );
    let reason = job["reason"].as_str().unwrap_or_default();
    assert!(reason.starts_with("ending: dc-b "), "{job}");
    mark.runs("sleep", 1).await;
    world.managers[1].cut_off(false);
    let job = gate.ended(&id).await;
    assert_eq!(job["state"], "timed_out", "{job}");
    assert!(all_confirmed(&job), "{job}");
    mark.gone(ENDS_WITHIN).await;
}

/// The gate decides for the others, and the one that it does not reach ends the job by itself.
#[tokio::test]
async fn a_datacenter_that_stays_cut_off_ends_the_job_by_fallback_and_the_gate_agrees() {
    let soon = SOON.replace("gate.fallback_after = \"10m\"", "gate.fallback_after = \"4s\"");
    let world = options().datacenters(2).proxies().settings(&soon).settings(PATIENT).start().expect("a world");
    let (gate, mark) = (gate(&world), Mark::new());
    are_healthy(&gate, 2).await;
    let both = json!({ "datacenters": ["dc-a", "dc-b"], "timeout_s": 5, "stuck_after_s": 600 });
    let id = gate.submit(&command("exec sleep 600", &mark, both)).await;
    mark.runs("sleep", 2).await;
    world.managers[1].cut_off(true);
    let ended_in_a = |job: &Value| in_datacenter(job, "dc-a")["state"] == "timed_out";
    gate.until_job(&id, "the one that is reached ends it", ended_in_a).await;
    mark.gone(ENDS_WITHIN).await;
    let there = at_manager(&world.managers[1], &id).await;
    assert_eq!(there["state"], "timed_out", "{there}");
    let job = gate.job(&id).await.expect("it is known");
    assert_eq!(in_datacenter(&job, "dc-b")["confirmed"], false, "{job}");
    world.managers[1].cut_off(false);
    let job = gate.ended(&id).await;
    assert_eq!(job["state"], "timed_out", "{job}");
    assert!(all_confirmed(&job), "{job}");
}

#[tokio::test]
async fn silence_ends_no_job_that_goes_forward() {
    let world = world(options().proxies(), 1).await;
    let (gate, mark) = (gate(&world), Mark::new());
    let script = "n=0; while :; do n=$((n+1)); echo \"@onward progress $n\"; sleep 0.2; done";
    let id = gate.submit(&command(script, &mark, json!({ "stuck_after_s": 2, "on_stuck": "time_out" }))).await;
    mark.runs("sleep", 1).await;
    world.managers[0].cut_off(true);
    let job =
        gate.until_job(&id, "it is unreachable", |job| in_datacenter(job, "dc-a")["state"] == "unreachable").await;
    assert_eq!(job["state"], "running", "{job}");
    world.managers[0].cut_off(false);
    let job = gate.until_job(&id, "it is heard", |job| in_datacenter(job, "dc-a")["state"] == "running").await;
    assert_eq!((&job["state"], &job["ended_at"]), (&json!("running"), &Value::Null), "{job}");
    gate.client().post(&format!("/v1/jobs/{id}/cancel"), &json!({})).await;
    mark.gone(ENDS_WITHIN).await;
}

#[tokio::test]
async fn a_gate_that_was_killed_decides_by_the_reports_that_are_repeated() {
    let world = world(options(), 2).await;
    decides_after(&world, || ()).await;
    let said = world.gates[0].server.said();
    assert!(!said.contains(REBUILT), "it knows the job: {said}");
}

#[tokio::test]
async fn a_gate_that_has_lost_all_rebuilds_the_job_from_reports_and_decides() {
    let world = world(options(), 2).await;
    decides_after(&world, || fs::remove_dir_all(world.gates[0].data()).expect("it is removed")).await;
    let said = world.gates[0].server.said();
    assert!(said.contains(REBUILT), "{said}");
}

const REBUILT: &str = "a job that was not known here was taken over from a report";

/// The gate is killed, and started again after a job has got stuck and `meanwhile` was done.
async fn decides_after(world: &World, meanwhile: impl FnOnce()) {
    let (gate, mark) = (gate(world), Mark::new());
    let both = json!({ "datacenters": ["dc-a", "dc-b"], "stuck_after_s": 3, "on_stuck": "time_out" });
    let id = gate.submit(&command("exec sleep 600", &mark, both)).await;
    mark.runs("sleep", 2).await;
    world.gates[0].server.kill();
    // They find that the job is stuck, and leave it to the gate.
    until("the managers know that it is stuck", PATIENCE, async || {
        for manager in &world.managers {
            let there = at_manager(manager, &id).await;
            assert!(there["ended_at"].is_null(), "{there}");
            let attempt = &there["workflows"][0]["attempts"][0];
            if attempt["since_step_ms"].as_u64().unwrap_or_default() < 4_000 {
                return None;
            }
        }
        Some(())
    })
    .await;
    mark.runs("sleep", 2).await;
    meanwhile();
    world.gates[0].server.start_again().expect("it starts");
    let job = gate.ended(&id).await;
    assert_eq!((&job["state"], &job["reason"]), (&json!("timed_out"), &json!("stuck")), "{job}");
    assert!(all_confirmed(&job), "{job}");
    mark.gone(ENDS_WITHIN).await;
}

#[tokio::test]
async fn without_a_gate_datacenters_end_a_job_by_themselves_and_the_gate_agrees() {
    let short = "gate.progress_every = \"300ms\"\ngate.silent_after = \"3s\"\ngate.fallback_after = \"3s\"\n";
    let world = options().datacenters(2).settings(short).settings(PATIENT).start().expect("a world");
    let (gate, mark) = (gate(&world), Mark::new());
    are_healthy(&gate, 2).await;
    let both = json!({ "datacenters": ["dc-a", "dc-b"], "stuck_after_s": 2, "on_stuck": "time_out" });
    let id = gate.submit(&command("exec sleep 600", &mark, both)).await;
    mark.runs("sleep", 2).await;
    world.gates[0].server.kill();
    for manager in &world.managers {
        until("the manager ends it", PATIENCE, async || {
            (at_manager(manager, &id).await["state"] == "timed_out").then_some(())
        })
        .await;
    }
    mark.gone(ENDS_WITHIN).await;
    world.gates[0].server.start_again().expect("it starts");
    let job = gate.ended(&id).await;
    assert_eq!((&job["state"], &job["reason"]), (&json!("timed_out"), &json!("stuck")), "{job}");
    assert!(all_confirmed(&job), "{job}");
}

#[tokio::test]
async fn a_manager_that_was_killed_takes_its_jobs_up_again_under_a_higher_term() {
    let world = world(options(), 1).await;
    let (gate, mark) = (gate(&world), Mark::new());
    let term = async || gate.client().get("/v1/datacenters").await.json()["datacenters"][0]["term"].as_u64();
    let before = term().await.expect("a term");
    let id = gate.submit(&command("sleep 3", &mark, json!({ "stuck_after_s": 600 }))).await;
    mark.runs("sleep", 1).await;
    let started_at = gate.job(&id).await.expect("it is known")["started_at"].clone();
    let started_there = at_manager(&world.managers[0], &id).await["started_at"].clone();
    assert!(started_there.is_string(), "{started_there}");
    world.managers[0].server.kill();
    tokio::time::sleep(a_moment()).await;
    world.managers[0].server.start_again().expect("it starts");
    let job = gate.ended(&id).await;
    assert_eq!((&job["state"], &job["started_at"]), (&json!("succeeded"), &started_at), "{job}");
    let there = at_manager(&world.managers[0], &id).await;
    assert_eq!(there["started_at"], started_there, "{there}");
    assert!(term().await.expect("a term") > before);
}

/// The second manager has the job from the log that both share: its start, so that the gate's timeout goes on, and its
/// attempt, whose worker comes over.
#[tokio::test]
async fn another_manager_takes_a_gates_job_over_and_the_timeout_goes_on() {
    let world = world(options().second_manager(), 1).await;
    let (gate, mark) = (gate(&world), Mark::new());
    let (first, second) = until("one manager leads", PATIENCE, async || {
        let [one, other] = &world.managers[..] else { panic!("there are two managers") };
        let leads = [leads(one.address).await, leads(other.address).await];
        match leads {
            [true, false] => Some((one, other)),
            [false, true] => Some((other, one)),
            _ => None,
        }
    })
    .await;
    let term = async || {
        let reply = gate.client().get("/v1/datacenters").await.json();
        reply["datacenters"][0]["term"].as_u64().unwrap_or_default()
    };
    let id = gate.submit(&command("exec sleep 600", &mark, json!({ "timeout_s": 25, "stuck_after_s": 600 }))).await;
    mark.runs("sleep", 1).await;
    let (before, there) = (term().await, at_manager(first, &id).await);
    let shown = gate.job(&id).await.expect("it is known");
    assert!(there["started_at"].is_string() && shown["started_at"].is_string(), "{there} {shown}");

    first.server.kill();
    until("the gate hears the other", PATIENCE, async || (term().await > before).then_some(())).await;
    assert!(leads(second.address).await);
    let taken_over = at_manager(second, &id).await;
    assert_eq!((&taken_over["started_at"], &taken_over["ended_at"]), (&there["started_at"], &Value::Null));
    mark.runs("sleep", 1).await;

    let job = gate.ended(&id).await;
    assert_eq!((&job["state"], &job["reason"]), (&json!("timed_out"), &json!("timeout")), "{job}");
    assert!(all_confirmed(&job), "{job}");
    let ended_there = at_manager(second, &id).await;
    for (ended, of_first) in [(&job, &shown), (&ended_there, &there)] {
        assert_eq!(ended["started_at"], of_first["started_at"], "{ended}");
    }
    // The gate decides, by its own clock: the job came to it a moment before it came to the datacenter.
    assert!(job["ended_at"].as_str() >= shown["deadline_at"].as_str(), "not before its time: {job}");
    mark.gone(ENDS_WITHIN).await;
}

async fn leads(address: SocketAddr) -> bool {
    let reply = Client::new(address).try_call("GET", "/status", "").await;
    reply.is_ok_and(|reply| reply.json()["role"] == "leader")
}

#[tokio::test]
async fn of_two_gates_either_is_asked_and_the_other_takes_over() {
    let world = options().gates(2).datacenters(2).settings(SOON).settings(PATIENT).start().expect("a world");
    let gates: Vec<Gate> = world.gates.iter().map(|gate| Gate { address: gate.address, data: gate.data() }).collect();
    are_healthy(&gates[0], 2).await;
    let mark = Mark::new();
    let leader = until("one leads", PATIENCE, async || {
        for (index, gate) in gates.iter().enumerate() {
            if leads(gate.address).await {
                return Some(index);
            }
        }
        None
    })
    .await;
    let other = 1 - leader;
    let both = json!({ "datacenters": ["dc-a", "dc-b"], "stuck_after_s": 600 });
    let id = gates[other].submit(&command("exec sleep 600", &mark, both)).await;
    mark.runs("sleep", 2).await;
    world.gates[leader].server.kill();
    until("the other leads", PATIENCE, async || leads(gates[other].address).await.then_some(())).await;
    let cancelled = gates[other].client().post(&format!("/v1/jobs/{id}/cancel"), &json!({})).await;
    assert_eq!(cancelled.status, 200, "{}", cancelled.text());
    let job = gates[other].ended(&id).await;
    assert_eq!(job["state"], "cancelled", "{job}");
    assert!(all_confirmed(&job), "{job}");
    mark.gone(ENDS_WITHIN).await;
}

/// Its term goes on from where the backup was made, below what the gate has heard of it.
#[tokio::test]
async fn a_datacenter_that_was_restored_from_a_backup_is_heard_again() {
    let world = world(options(), 1).await;
    let (gate, mark, folder) = (gate(&world), Mark::new(), tempfile::tempdir().expect("a folder"));
    let manager = &world.managers[0];
    let (file, data) = (folder.path().join("backup").display().to_string(), manager.data().display().to_string());
    let run = |args: &[&str]| {
        let output = onward(args).output().expect("it runs");
        assert!(output.status.success(), "{args:?}: {output:?}");
    };
    run(&["--server", &manager.url(), "--data", &data, "backup", &file]);
    let seen = async || {
        let body = gate.client().get("/v1/datacenters").await.json();
        (body["datacenters"][0]["term"].as_u64(), body["datacenters"][0]["connected"] == true)
    };
    let (before, _) = seen().await;
    // The restore and the start after it take two.
    for _ in 0..3 {
        manager.server.kill();
        manager.server.start_again().expect("it starts");
    }
    let highest = until("its new term is known", PATIENCE, async || {
        let (term, is_connected) = seen().await;
        term.filter(|term| is_connected && *term >= before.unwrap_or_default() + 3)
    })
    .await;
    manager.server.kill();
    fs::remove_dir_all(manager.data()).expect("it is removed");
    run(&["restore", &file, "--data", &data]);
    manager.server.start_again().expect("it starts");
    let id = gate.submit(&command("exit 0", &mark, json!({}))).await;
    let job = gate.ended(&id).await;
    assert_eq!(job["state"], "succeeded", "{job}");
    let (term, is_connected) = seen().await;
    assert!(is_connected && term.is_some_and(|term| term < highest), "{term:?} after {highest}");
}
