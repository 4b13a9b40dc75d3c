//! Which datacenters get a job, and who may speak for one.

use std::fs;

use serde_json::json;

use super::support::process::{Mark, until};
use super::support::{PATIENCE, onward};
use super::*;

#[tokio::test]
async fn a_job_runs_in_one_datacenter_and_its_end_is_told() {
    let world = world(options(), 2).await;
    let (gate, mark) = (gate(&world), Mark::new());
    let id = gate.submit(&command("exit 0", &mark, json!({}))).await;
    let job = gate.ended(&id).await;
    assert_eq!((&job["state"], &job["result"]), (&json!("succeeded"), &json!({ "exit_code": 0 })), "{job}");
    let targets = job["datacenters"].as_array().expect("datacenters");
    assert_eq!(targets.len(), 1, "{job}");
    assert!(all_confirmed(&job), "{job}");
    let ran_in = targets[0]["name"].as_str().expect("a name");
    for manager in &world.managers {
        let status = Client::new(manager.address).get(&format!("/v1/jobs/{id}")).await.status;
        assert_eq!(status, if manager.datacenter == ran_in { 200 } else { 404 }, "one id, in one datacenter");
    }
    // What the command line says of it.
    let data = gate.data.display().to_string();
    let server = world.gates[0].url();
    for (command, told) in [("show", ran_in), ("explain", ran_in), ("list", id.as_str())] {
        let args: &[&str] = if command == "list" { &["list"] } else { &[command, &id] };
        let output = onward(&[&["--server", &server, "--data", &data], args].concat()).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains(told), "{command}: {output:?}");
    }
    let output = onward(&["--server", &server, "datacenter", "list"]).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("dc-a") && text.contains("dc-b") && text.contains("healthy"), "{text}");
    // A job is a gate's because it came over a gate's stream: who submits one cannot say so.
    for address in [gate.address, world.managers[0].address] {
        let told = json!({ "kind": "k", "gate": gate.address.to_string() });
        let reply = Client::new(address).post("/v1/jobs", &told).await;
        assert_eq!((reply.status, reply.code().as_str()), (400, "invalid"), "{}", reply.text());
    }
    // What belongs to one datacenter is not asked of a gate.
    let reply = Client::new(gate.address).get("/v1/queues").await;
    assert_eq!((reply.status, reply.code().as_str()), (404, "not_at_a_gate"));
}

#[tokio::test]
async fn a_job_runs_in_the_datacenters_that_it_names_and_has_a_result_of_each() {
    let world = world(options(), 3).await;
    let (gate, mark) = (gate(&world), Mark::new());
    let script = "onward=done; exit 0";
    let id = gate.submit(&command(script, &mark, json!({ "datacenters": ["dc-a", "dc-c"] }))).await;
    let job = gate.ended(&id).await;
    assert_eq!(job["state"], "succeeded", "{job}");
    assert_eq!(job["result"], json!({ "dc-a": { "exit_code": 0 }, "dc-c": { "exit_code": 0 } }), "{job}");
    for (manager, status) in world.managers.iter().zip([200, 404, 200]) {
        assert_eq!(Client::new(manager.address).get(&format!("/v1/jobs/{id}")).await.status, status);
    }
}

#[tokio::test]
async fn a_full_datacenter_is_busy_and_still_gets_jobs() {
    let world = world(options().slots(1), 1).await;
    let (gate, mark) = (gate(&world), Mark::new());
    let first = gate.submit(&command("sleep 600", &mark, json!({ "stuck_after_s": 600 }))).await;
    until("it is busy", PATIENCE, async || {
        let body = gate.client().get("/v1/datacenters").await.json();
        (body["datacenters"][0]["health"] == "busy").then_some(())
    })
    .await;
    let second = gate.submit(&command("exit 0", &mark, json!({}))).await;
    let is_queued = |job: &Value| job["state"] == "ready" && in_datacenter(job, "dc-a")["confirmed"] == true;
    gate.until_job(&second, "it is queued there", is_queued).await;
    gate.client().post(&format!("/v1/jobs/{first}/cancel"), &json!({})).await;
    assert_eq!(gate.ended(&second).await["state"], "succeeded");
    assert_eq!(gate.ended(&first).await["state"], "cancelled");
}

#[tokio::test]
async fn without_a_datacenter_a_job_waits_visibly_and_runs_when_there_is_one() {
    let world = world(options().proxies(), 1).await;
    let (gate, mark) = (gate(&world), Mark::new());
    world.managers[0].cut_off(true);
    until("it is unhealthy", PATIENCE, async || {
        let body = gate.client().get("/v1/datacenters").await.json();
        (body["datacenters"][0]["health"] == "unhealthy").then_some(())
    })
    .await;
    let id = gate.submit(&command("exit 0", &mark, json!({}))).await;
    let job = gate.job(&id).await.expect("it is known");
    assert_eq!((&job["state"], &job["reason"]), (&json!("waiting"), &json!("no_usable_datacenter")), "{job}");
    world.managers[0].cut_off(false);
    assert_eq!(gate.ended(&id).await["state"], "succeeded");
}

/// Anybody who does not have the cluster's key is nobody to a gate, whatever datacenter it says it is of.
#[tokio::test]
async fn a_manager_without_the_key_is_refused() {
    let world = world(options(), 1).await;
    let gate = gate(&world);
    let folder = tempfile::tempdir().expect("a folder");
    let key = folder.path().join("other.key");
    fs::write(&key, "//////////////////////////////////////////8=\n").expect("a file");
    let settings = folder.path().join("manager.toml");
    let text = format!(
        "name = \"intruder\"\ndatacenter = \"dc-z\"\nlisten = \"127.0.0.1:0\"\ngates = [\"{}\"]\ncluster.key_file = {key:?}\n{SOON}",
        gate.address
    );
    fs::write(&settings, text).expect("a file");
    let (settings, data) = (settings.display().to_string(), folder.path().join("data").display().to_string());
    let mut intruder = support::Node::start_as(onward(&["manager", "--config", &settings, "--data", &data]));
    until("it is refused", PATIENCE, async || {
        let text = gate.client().get("/metrics").await.text();
        let refused = text.lines().find_map(|line| line.strip_prefix("onward_gate_streams_refused_total "));
        refused.filter(|count| *count != "0").map(drop)
    })
    .await;
    let body = gate.client().get("/v1/datacenters").await.json();
    let names: Vec<&str> =
        body["datacenters"].as_array().expect("a list").iter().filter_map(|known| known["name"].as_str()).collect();
    assert_eq!(names, ["dc-a"]);
    intruder.signal(rustix::process::Signal::TERM);
    assert_eq!(intruder.ended(PATIENCE).await, Some(0));
}

/// What a gate takes, a datacenter takes: an order that is too large to be read would be repeated for ever, and those behind
/// it would starve.
#[tokio::test]
async fn a_large_job_gets_there_and_so_does_the_one_behind_it() {
    let world = world(options(), 1).await;
    let (gate, mark) = (gate(&world), Mark::new());
    let (name, value) = mark.variable();
    // Just below what one payload may have.
    let filler = "x".repeat((1 << 20) - 1_024);
    let workflow = |index: usize| {
        let payload = json!({ "argv": ["sh", "-c", "cat > /dev/null"], "env": { name: value }, "stdin": filler });
        json!({ "name": format!("w{index}"), "kind": "exec", "payload": payload })
    };
    let large = json!({ "workflows": (0..6).map(workflow).collect::<Vec<_>>() });
    let large = gate.submit(&large).await;
    let small = gate.submit(&command("exit 0", &mark, json!({}))).await;
    for id in [small, large] {
        let job = gate.ended(&id).await;
        assert_eq!(job["state"], "succeeded", "{job}");
    }
}

/// Also those that do not speak to the gate: a datacenter that has lost half of its managers is not what it was.
#[tokio::test]
async fn a_datacenter_counts_all_its_managers() {
    let world = world(options().second_manager(), 1).await;
    let seen = async |address: SocketAddr| {
        let reply = Client::new(address).try_call("GET", "/v1/datacenters", "").await.ok()?;
        let known = reply.json()["datacenters"][0].clone();
        Some((known["managers"].as_u64()?, known["health"].as_str()?.to_owned()))
    };
    let leader = until("one leads", PATIENCE, async || {
        for (index, manager) in world.managers.iter().enumerate() {
            let reply = Client::new(manager.address).try_call("GET", "/status", "").await.ok()?;
            if reply.json()["role"] == "leader" {
                return Some(index);
            }
        }
        None
    })
    .await;
    let asked = [world.gates[0].address, world.managers[leader].address];
    let are_seen = async |health: &str| {
        for address in asked {
            until(&format!("two managers, {health}"), PATIENCE, async || {
                (seen(address).await? == (2, health.to_owned())).then_some(())
            })
            .await;
        }
    };
    are_seen("healthy").await;
    world.managers[1 - leader].server.kill();
    are_seen("degraded").await;
}

#[tokio::test]
async fn many_jobs_are_cancelled_at_the_gate_by_what_they_have_in_common() {
    let world = world(options(), 2).await;
    let (gate, mark) = (gate(&world), Mark::new());
    let tagged = |tag: &str| json!({ "tags": [tag], "datacenters": ["dc-a", "dc-b"], "stuck_after_s": 600 });
    let mut ids = Vec::new();
    for tag in ["old", "old", "new"] {
        ids.push(gate.submit(&command("exec sleep 600", &mark, tagged(tag))).await);
    }
    let ask = async |which: &Value| gate.client().post("/v1/jobs/cancel", which).await;
    let all = ask(&json!({})).await;
    assert_eq!((all.status, &all.json()["field"]), (400, &json!("all")), "{}", all.text());
    let dry = ask(&json!({ "tag": "old", "dry_run": true })).await.json();
    let expected = json!({ "cancelled": 0, "would_cancel": 2, "jobs": [ids[1], ids[0]], "next_cursor": null });
    assert_eq!(dry, expected);
    let done = ask(&json!({ "tag": "old", "since_s": 600 })).await.json();
    assert_eq!(done, json!({ "cancelled": 2, "next_cursor": null }));
    for id in &ids[..2] {
        assert_eq!(gate.ended(id).await["state"], "cancelled");
    }
    assert_eq!(ask(&json!({ "tag": "old" })).await.json()["cancelled"], 0, "safe to repeat");
    let listed = gate.client().get("/v1/jobs?tag=new&since_s=600").await.json();
    assert_eq!((listed["jobs"][0]["id"].as_str(), &listed["jobs"][1]), (Some(&*ids[2]), &Value::Null), "{listed}");
    assert!(listed["jobs"][0]["ended_at"].is_null(), "{listed}");
    let still = gate.client().get("/v1/jobs?tag=new&since_s=0").await.json();
    assert_eq!(still["jobs"], json!([]), "it was submitted before");
    ask(&json!({ "all": true })).await;
    mark.gone(ENDS_WITHIN).await;
}
