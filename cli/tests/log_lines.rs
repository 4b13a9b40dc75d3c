//! What a node writes to its log about its decisions, as lines of JSON.

mod support;

use std::fs::File;

use serde_json::{Value, json};
use support::http::Client;
use support::jobs::submit;
use support::process::until;
use support::{Node, PATIENCE, onward, own_loopback};

#[tokio::test]
async fn each_decision_is_one_line_of_json_with_its_ids_as_fields() {
    let folder = tempfile::tempdir().unwrap();
    let (data, log) = (folder.path().join("data"), folder.path().join("log"));
    let mut command = onward(&["up", "--slots", "0", "--log-format", "json", "--listen", &own_loopback(), "--data"]);
    command.arg(&data).env("ONWARD_LOG", "info").stderr(File::create(&log).unwrap());
    let node = Node::start_as(command);
    let mut client = Client::with_token(node.address, &data);
    let mut ids = Vec::new();
    for (kind, settings) in [
        ("hangs", json!({ "stuck_after_s": 1 })),
        ("silent", json!({})),
        ("fails", json!({})),
        ("late", json!({ "timeout_s": 1 })),
    ] {
        let mut job = json!({ "kind": kind });
        job.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        ids.push(submit(&mut client, &job).await);
    }
    let mut take = async |kind: &str, lease_s: u64| -> String {
        let poll = json!({ "worker_id": kind, "incarnation": "1", "kinds": [kind], "max": 1, "wait_s": 60, "lease_s": lease_s });
        let leases = client.post("/v1/leases", &poll).await.json();
        leases["leases"][0]["receipt"].as_str().unwrap_or_else(|| panic!("{leases}")).to_owned()
    };
    take("hangs", 3_600).await;
    take("silent", 1).await;
    let receipt = take("fails", 3_600).await;
    let failed = json!({ "error": "a line\nand another", "retryable": false });
    client.post(&format!("/v1/leases/{receipt}/fail"), &failed).await;

    let lines = || -> Vec<Value> {
        let text = std::fs::read_to_string(&log).unwrap();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"))).collect()
    };
    for (message, job, field, value) in [
        ("stuck", &ids[0], "worker", "hangs"),
        ("lease expired", &ids[1], "kind", "silent"),
        ("dead letter", &ids[2], "error", "\"a line\\nand another\""),
        ("timed out", &ids[3], "level", "WARN"),
    ] {
        let found = until(message, PATIENCE, async || {
            let is_it = |line: &Value| line["message"].as_str().is_some_and(|text| text.starts_with(message));
            lines().into_iter().find(|line| is_it(line) && line["job"] == job.as_str())
        })
        .await;
        assert_eq!(found[field], value, "{found}");
    }
}
