//! One decision ends a job in every datacenter, and what has ended there before stands.

use serde_json::json;

use super::support::process::Mark;
use super::*;

/// The first so many that come hang; the others go forward for as long as they may.
fn some_hang(folder: &tempfile::TempDir, count: usize) -> String {
    let place = folder.path().display();
    let numbers: Vec<String> = (1..=count).map(|number| number.to_string()).collect();
    format!(
        "for i in {}; do if mkdir {place}/$i 2>/dev/null; then exec sleep 600; fi; done; n=0; while :; do n=$((n+1)); \
         echo \"@onward progress $n\"; sleep 0.2; done",
        numbers.join(" ")
    )
}

#[tokio::test]
async fn a_job_that_is_stuck_in_one_datacenter_ends_in_all_and_leaves_no_process() {
    let world = world(options(), 2).await;
    let (gate, mark, folder) = (gate(&world), Mark::new(), tempfile::tempdir().expect("a folder"));
    let both = json!({ "datacenters": ["dc-a", "dc-b"], "stuck_after_s": 2, "on_stuck": "time_out", "require_progress": true });
    let id = gate.submit(&command(&some_hang(&folder, 1), &mark, both)).await;
    mark.runs("sleep", 1).await;
    let job = gate.ended(&id).await;
    assert_eq!((&job["state"], &job["reason"]), (&json!("timed_out"), &json!("stuck")), "{job}");
    assert!(all_confirmed(&job), "{job}");
    mark.gone(ENDS_WITHIN).await;
    for manager in &world.managers {
        let there = at_manager(manager, &id).await;
        assert_eq!(there["state"], "timed_out", "{there}");
    }
}

/// How many stuck datacenters end a job is the job's to say.
#[tokio::test]
async fn a_job_ends_when_as_many_are_stuck_as_its_policy_says_and_not_before() {
    let world = world(options().slots(4), 3).await;
    let (gate, mark) = (gate(&world), Mark::new());
    let stuck_after = 2;
    let submit = async |policy: &str, hang: usize| {
        let folder = tempfile::tempdir().expect("a folder");
        let all = json!({ "datacenters": ["dc-a", "dc-b", "dc-c"], "timeout_policy": policy, "require_progress": true,
            "stuck_after_s": stuck_after, "on_stuck": "time_out" });
        let id = gate.submit(&command(&some_hang(&folder, hang), &mark, all)).await;
        (id, hang, folder)
    };
    let short = [submit("majority", 1).await, submit("all", 2).await];
    let enough = [submit("majority", 2).await, submit("all", 3).await];
    for (id, ..) in &enough {
        let job = gate.ended(id).await;
        assert_eq!((&job["state"], &job["reason"]), (&json!("timed_out"), &json!("stuck")), "{job}");
        assert!(all_confirmed(&job), "{job}");
    }
    let stuck = |job: &Value| -> usize {
        let all = job["datacenters"].as_array().expect("datacenters");
        all.iter().filter(|one| one["reason"] == "stuck").count()
    };
    let mut since = Vec::new();
    for (id, hang, _) in &short {
        gate.until_job(id, "the gate knows who is stuck", |job| stuck(job) == *hang).await;
        since.push(tokio::time::Instant::now());
    }
    tokio::time::sleep_until(since[1] + Duration::from_secs(3 * stuck_after)).await;
    for (id, hang, _) in &short {
        let job = gate.job(id).await.expect("it is known");
        assert_eq!((&job["state"], &job["ended_at"], stuck(&job)), (&json!("running"), &Value::Null, *hang), "{job}");
        gate.client().post(&format!("/v1/jobs/{id}/cancel"), &json!({})).await;
        assert_eq!(gate.ended(id).await["state"], "cancelled");
    }
    mark.gone(ENDS_WITHIN).await;
}

#[tokio::test]
async fn a_cancel_reaches_process_trees_in_all_datacenters() {
    let world = world(options(), 3).await;
    let (gate, mark) = (gate(&world), Mark::new());
    let all = json!({ "datacenters": ["dc-a", "dc-b", "dc-c"], "stuck_after_s": 600 });
    let id = gate.submit(&command("setsid sleep 601 & sleep 602; wait", &mark, all)).await;
    mark.runs("sleep", 6).await;
    let reply = gate.client().post(&format!("/v1/jobs/{id}/cancel"), &json!({})).await;
    assert_eq!((reply.status, &reply.json()["state"]), (200, &json!("cancelling")));
    mark.gone(ENDS_WITHIN).await;
    let job = gate.ended(&id).await;
    assert_eq!(job["state"], "cancelled", "{job}");
    assert!(all_confirmed(&job), "{job}");
    let again = gate.client().post(&format!("/v1/jobs/{id}/cancel"), &json!({})).await;
    assert_eq!((again.status, &again.json()["state"]), (200, &json!("cancelled")), "safe to repeat");
}

/// Jobs that end about when their time does: whatever was first written in the datacenter is what the gate says too.
#[tokio::test]
async fn completion_against_timeout_has_one_outcome() {
    let world = world(options().slots(9), 1).await;
    let (gate, mark) = (gate(&world), Mark::new());
    let mut ids = Vec::new();
    for tenths in 16..24 {
        let script = format!("sleep {}.{}", tenths / 10, tenths % 10);
        ids.push(gate.submit(&command(&script, &mark, json!({ "timeout_s": 2, "stuck_after_s": 60 }))).await);
    }
    let hopeless = gate.submit(&command("sleep 30", &mark, json!({ "timeout_s": 2, "stuck_after_s": 60 }))).await;
    ids.push(hopeless.clone());
    for id in &ids {
        let job = gate.ended(id).await;
        let there = at_manager(&world.managers[0], id).await;
        assert_eq!(job["state"], there["state"], "{job} against {there}");
        assert_eq!(in_datacenter(&job, "dc-a")["state"], there["state"], "{job}");
        assert!(["succeeded", "timed_out"].contains(&job["state"].as_str().unwrap_or_default()), "{job}");
    }
    assert_eq!(gate.ended(&ids[0]).await["state"], "succeeded", "it had time");
    assert_eq!(gate.ended(&hopeless).await["state"], "timed_out", "it had none");
    mark.gone(ENDS_WITHIN).await;
}

#[tokio::test]
async fn time_that_is_given_at_the_gate_counts_in_the_datacenter() {
    let world = world(options(), 1).await;
    let (gate, mark) = (gate(&world), Mark::new());
    let id = gate.submit(&command("sleep 4", &mark, json!({ "timeout_s": 2, "stuck_after_s": 60 }))).await;
    let more = json!({ "by_s": 60, "reason": "it is slow today", "request_id": "1" });
    let reply = gate.client().post(&format!("/v1/jobs/{id}/extend"), &more).await;
    assert_eq!((reply.status, &reply.json()["extensions_s"]), (200, &json!(60.0)), "{}", reply.text());
    assert_eq!(gate.ended(&id).await["state"], "succeeded");
}
