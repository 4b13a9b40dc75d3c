//! `onward demo`: five jobs that end as they must, and what is seen when a protection is taken away.

mod support;

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use support::http::Client;
use support::jobs::{facts, is_terminal, ledger, outcomes};
use support::process::until;
use support::{Node, onward, own_loopback};
use tokio::time::timeout;

/// The longest time that the contract allows the demo.
const AT_MOST: Duration = Duration::from_secs(60);

async fn demo(args: &[&str]) -> (Option<i32>, String) {
    let mut command = onward(&["demo"]);
    command.args(args).stdin(Stdio::null());
    let output = tokio::process::Command::from(command).kill_on_drop(true).output();
    let output = timeout(AT_MOST, output).await.expect("it takes less than a minute").unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

fn entries(part: &Value) -> Vec<Value> {
    part["ledger"]["entries"].as_array().expect("a ledger").clone()
}

/// What everybody may read in the ledgers, whoever wrote the verdicts.
fn check(kind: &str, job: &Value, ledger: &[Value]) {
    let (facts, outcomes) = (facts(ledger), outcomes(job));
    let state = job["state"].as_str().unwrap();
    let of = |fact: &str| facts.iter().filter(|one| *one == fact).count();
    let story = format!("{kind}: {state}, {outcomes:?}, {facts:?}");
    match kind {
        "demo.healthy" | "demo.slow" => {
            assert_eq!((state, &outcomes[..]), ("succeeded", &["succeeded".to_owned()][..]), "{story}");
            assert!(!facts.iter().any(|fact| fact.contains("stuck") || fact.contains("refused")), "{story}");
        }
        "demo.hung" => {
            assert_eq!((state, outcomes.len()), ("timed_out", 2), "{story}");
            assert_eq!((of("attempt_ended stuck"), of("timed_out stuck")), (2, 1), "{story}");
        }
        "demo.busywork" => {
            assert_eq!((state, outcomes.len()), ("timed_out", 1), "{story}");
            assert_eq!((of("attempt_ended stuck"), of("timed_out stuck")), (1, 1), "{story}");
        }
        "demo.zombie" => {
            assert_eq!((state, &outcomes[..]), ("succeeded", &["lease_expired", "succeeded"].map(String::from)[..]));
            assert_eq!(job["result"], "the successor's result", "{story}");
            let place =
                |fact: &str| facts.iter().position(|one| one == fact).unwrap_or_else(|| panic!("{fact}: {story}"));
            assert!(place("attempt_ended lease_expired") < place("refused stale_attempt"), "{story}");
            let refused = &ledger[place("refused stale_attempt")];
            let first = job["workflows"][0]["attempts"][0]["fence"].as_u64();
            assert_eq!((refused["fence"].as_u64(), &refused["verb"]), (first, &json!("succeed")), "{refused}");
        }
        other => panic!("{other} is no part of the demo"),
    }
}

#[tokio::test]
async fn five_jobs_end_as_they_must() {
    let (code, text) = demo(&["--json"]).await;
    let shown: Value = serde_json::from_str(&text).expect("one JSON document and nothing else");
    assert_eq!((code, &shown["ok"]), (Some(0), &json!(true)), "{text}");
    let jobs = shown["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 5);
    let mut kinds = Vec::new();
    for part in jobs {
        assert_eq!((&part["as_it_must"], &part["wrong"]), (&json!(true), &Value::Null), "{part}");
        assert_eq!(part["id"], part["job"]["id"]);
        let kind = part["job"]["kind"].as_str().unwrap();
        check(kind, &part["job"], &entries(part));
        kinds.push(kind.to_owned());
    }
    kinds.dedup();
    assert_eq!(kinds.len(), 5, "{kinds:?}");
}

#[tokio::test]
async fn without_a_protection_it_fails_and_says_why() {
    let (fence, lease, stuck) =
        tokio::join!(demo(&["--sabotage", "fence"]), demo(&["--sabotage", "lease"]), demo(&["--sabotage", "stuck"]));
    for (name, (code, text), wrong, words) in [
        ("fence", fence, 1, "the zombie's result was taken, and its successor's work is lost"),
        ("lease", lease, 1, "it is still running, and nobody would ever notice"),
        ("stuck", stuck, 2, "it is still running, and nobody would ever notice"),
    ] {
        assert_eq!(code, Some(1), "{name}: {text}");
        assert_eq!(text.matches("WRONG").count(), wrong, "{name}: {text}");
        assert!(text.contains(&format!("what went wrong: {words}")), "{name}: {text}");
        assert!(text.contains(&format!("{wrong} of 5 did not end as they must")), "{name}: {text}");
    }
}

#[tokio::test]
async fn a_node_with_the_demo_shows_the_same_in_its_ledgers() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start_with(folder.path(), &own_loopback(), &["--demo"]);
    let mut client = Client::new(node.address);
    let jobs = until("the demo's jobs end", AT_MOST, async || {
        let listed = client.get("/v1/jobs?tag=demo").await.json();
        let jobs = listed["jobs"].as_array().expect("a list").clone();
        (jobs.len() == 5 && jobs.iter().all(is_terminal)).then_some(jobs)
    })
    .await;
    for job in jobs {
        let id = job["id"].as_str().unwrap();
        let whole = support::jobs::show(&mut client, id).await;
        check(whole["kind"].as_str().unwrap(), &whole, &ledger(&mut client, id).await);
    }
}
