//! The results of a job, all of them: also what is not JSON, and what is too large for one answer.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::Output;

use serde_json::{Value, json};
use support::http::Client;
use support::jobs::{ended, submit};
use support::{Node, PATIENCE, onward};

/// Of the results over 4 KiB, an answer about several workflows has 16 MiB at most.
const PARTS: usize = 18;

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Submits a job with a workflow for each of these, and lets each succeed with this body. Gives the job's id.
async fn succeeded(client: &mut Client, bodies: &[(&str, Value)]) -> String {
    let workflows: Vec<Value> = bodies.iter().map(|(name, _)| json!({ "name": name, "kind": name })).collect();
    let id = submit(client, &json!({ "workflows": workflows })).await;
    for (name, body) in bodies {
        let poll = json!({ "worker_id": "w", "incarnation": "1", "kinds": [name], "wait_s": 10, "lease_s": 600 });
        let lease = client.post("/v1/leases", &poll).await;
        let receipt =
            lease.json()["leases"][0]["receipt"].as_str().unwrap_or_else(|| panic!("{}", lease.text())).to_owned();
        assert_eq!(client.post(&format!("/v1/leases/{receipt}/succeed"), body).await.status, 200);
    }
    assert_eq!(ended(client, &id, PATIENCE).await["state"], "succeeded");
    id
}

#[tokio::test]
async fn results_that_are_not_json_stand_beside_those_that_are() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(folder.path());
    let mut client = Client::new(node.address);
    let bodies = [("bin", json!({ "result_base64": "AAEC/w==" })), ("txt", json!({ "result": "hello" }))];
    let id = succeeded(&mut client, &bodies).await;
    let both = json!({ "bin": { "base64": "AAEC/w==" }, "txt": "hello" });
    for args in [&["result", &id][..], &["result", &id, "--json"]] {
        let printed: Value = serde_json::from_str(&out(&node.call(folder.path(), args))).unwrap();
        assert_eq!(printed, both, "{args:?}");
    }
    let shown = out(&node.call(folder.path(), &["show", &id]));
    assert!(shown.contains(&format!("result    {both}\n")), "{shown}");
    let alone = succeeded(&mut client, &[("bin", json!({ "result_base64": "AAEC/w==" }))]).await;
    assert_eq!(node.call(folder.path(), &["result", &alone]).stdout, [0, 1, 2, 0xff], "the bytes themselves");
    let shown = out(&node.call(folder.path(), &["show", &alone]));
    assert!(shown.contains("result    {\"base64\":\"AAEC/w==\"}\n"), "{shown}");
}

#[tokio::test]
async fn results_that_an_answer_leaves_out_are_fetched() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(folder.path());
    let mut client = Client::new(node.address);
    let names: Vec<String> = (0..PARTS).map(|n| format!("part/{n:02}")).collect();
    let text = |n: usize| char::from(b'a' + n as u8).to_string().repeat(1_000_000);
    // The last one is not JSON, and as large.
    let bodies: Vec<(&str, Value)> = names
        .iter()
        .enumerate()
        .map(|(n, name)| match n {
            n if n == PARTS - 1 => (&**name, json!({ "result_base64": "/w".repeat(500_000) })),
            n => (&**name, json!({ "result": text(n) })),
        })
        .collect();
    let id = succeeded(&mut client, &bodies).await;
    let left_out = client.get(&format!("/v1/jobs/{id}")).await.json()["left_out"].as_array().map_or(0, Vec::len);
    assert!(left_out > 0, "all of it fits into one answer");
    for args in [&["result", &id][..], &["result", &id, "--json"]] {
        let printed: Value = serde_json::from_str(&out(&node.call(folder.path(), args))).unwrap();
        assert_eq!(printed.as_object().unwrap().len(), PARTS);
        for (n, name) in names.iter().enumerate().take(PARTS - 1) {
            assert!(printed[name] == text(n), "{name}");
        }
        let last = printed[&names[PARTS - 1]]["base64"].as_str().unwrap_or("none");
        assert!(last.len() > 900_000, "{last:.20}");
    }
    let shown = out(&node.call(folder.path(), &["show", &id]));
    assert!(shown.contains(&format!("`onward result {id}` prints every result")), "{shown:.2000}");
    assert!(!shown.contains(":null"), "what is left out is not null");
}

/// Answers each connection with the next of these, and closes it.
fn answers(answers: Vec<(u16, Value)>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for (status, body) in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let request = BufReader::new(stream.try_clone().unwrap()).lines();
            request.map(Result::unwrap).take_while(|line| !line.is_empty()).for_each(drop);
            let body = body.to_string();
            let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            stream.write_all((head + &body).as_bytes()).unwrap();
        }
    });
    url
}

#[test]
fn a_result_that_cannot_be_fetched_is_a_failure_and_not_left_out() {
    let id = "0190b2c4-6f1e-7d3a-9a55-2f1c5b7e8d10";
    let left = json!([{ "workflow": "large", "field": "result", "bytes": 9, "why": "size" }]);
    let workflow = |name: &str| json!({ "name": name, "kind": "k", "state": "succeeded", "after": [], "counted": 1, "attempts": [] });
    let job = json!({
        "id": id, "queue": "default", "state": "succeeded", "created_at": "2026-01-01T00:00:00.000Z", "priority": 0,
        "tags": [], "progress": { "done": 2, "total": 2 }, "workflows": [workflow("large"), workflow("small")],
        "result": { "large": null, "small": 1 }, "timeout_s": 1, "stuck_after_s": 1, "max_extension_s": 1,
        "extensions_s": 0, "on_stuck": "retry", "require_progress": false,
        "retry": { "max_attempts": 1, "base_s": 1, "max_s": 1 }, "limits": [], "headers": {}, "datacenters": [],
        "timeout_policy": "any", "dead_letter": false, "left_out": left
    });
    let gone = json!({ "code": "damaged", "title": "x", "status": 500, "detail": "it is damaged" });
    for second in [(500, gone), (200, job.clone())] {
        let url = answers(vec![(200, job.clone()), second]);
        let output = onward(&["result", id, "--server", &url]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("result of workflow `large`") && output.stdout.is_empty(), "{said}");
    }
}
