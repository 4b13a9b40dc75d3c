//! `/metrics`, and the files that use it: checked by Prometheus's own tool, and against each other.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use onward_health::Pulse;
use onward_node::server::Node;
use serde_json::{Value, json};
use tempfile::tempdir;

use crate::rig::{PATIENCE, Request, lease, poll_body, post, start, verb};

async fn metrics(node: &Node) -> String {
    let reply = Request::get("/metrics").send(node.address()).await;
    assert_eq!(reply.status, 200);
    String::from_utf8(reply.body).unwrap()
}

fn has(text: &str, line: &str) {
    assert!(text.lines().any(|found| found == line), "{line} in {text}");
}

fn monitoring(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/monitoring").join(file)
}

/// The output of promtool, and whether it is content.
fn promtool(args: &[&str], input: &str) -> (bool, String) {
    let mut command = Command::new("promtool");
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut tool = command.spawn().expect("promtool is there: `cargo xtask test` installs it (Debian: prometheus)");
    tool.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = tool.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

/// A node to which a bit of everything has happened.
async fn lived_in(data: &Path) -> Node {
    let node = start(data).await;
    for n in 0..3 {
        let body = json!({ "kind": "k", "payload": n, "retry": { "max_attempts": 1 } });
        assert_eq!(post(&node, "/v1/jobs", body).await.status, 201);
    }
    post(&node, "/v1/jobs", json!({ "kind": "k", "queue": "slow \"lane\"", "delay_s": 600 })).await;
    let leases = lease(&node, poll_body("1")).await;
    assert_eq!(leases.len(), 3);
    let extension = json!({ "reason": "long_workflow", "progress": 0.5, "estimated_remaining_s": 5 });
    for _ in 0..2 {
        post(&node, &verb(&leases[2], "request-extension"), extension.clone()).await;
    }
    post(&node, &verb(&leases[0], "succeed"), json!({ "result": 1 })).await;
    post(&node, &verb(&leases[1], "fail"), json!({ "error": "no", "retryable": false })).await;
    post(&node, &verb(&leases[1], "succeed"), json!({ "result": 1 })).await;
    node
}

#[tokio::test]
async fn metrics_tell_of_queues_kinds_leases_grants_refusals_and_verdicts() {
    let data = tempdir().unwrap();
    let node = lived_in(data.path()).await;
    let text = metrics(&node).await;
    for line in [
        "onward_queue_jobs{queue=\"default\",state=\"running\"} 1",
        "onward_queue_jobs{queue=\"default\",state=\"failed\"} 1",
        "onward_queue_jobs{queue=\"slow \\\"lane\\\"\",state=\"delayed\"} 1",
        "onward_queue_oldest_waiting_seconds{queue=\"default\"} 0",
        "onward_jobs_submitted_total{queue=\"default\"} 3",
        "onward_jobs_ended_total{queue=\"default\",outcome=\"succeeded\"} 1",
        "onward_attempts_total{kind=\"k\",outcome=\"succeeded\"} 1",
        "onward_attempts_total{kind=\"k\",outcome=\"failed\"} 1",
        "onward_submit_to_start_seconds_count{queue=\"default\"} 3",
        "onward_attempt_run_seconds_count{kind=\"k\"} 2",
        "onward_leases 1",
        "onward_grants_total 1",
        "onward_denials_total{reason=\"no_progress\"} 1",
        "onward_refusals_total{code=\"already_ended\"} 1",
        "onward_dead_letters 1",
    ] {
        has(&text, line);
    }
    let verdicts = text.lines().filter(|line| line.starts_with("onward_worker_verdicts{"));
    let workers: u64 = verdicts.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(workers, 1, "each worker has one verdict");
}

#[tokio::test]
async fn who_asks_about_an_archived_job_is_counted_as_refused_only_if_refused() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let job = post(&node, "/v1/jobs", json!({ "kind": "k" })).await.json();
    let job = job["id"].as_str().unwrap().to_owned();
    let leases = lease(&node, poll_body("1")).await;
    let succeeded = verb(&leases[0], "succeed");
    let succeed = || post(&node, &succeeded, json!({ "result": 1 }));
    assert_eq!(succeed().await.status, 200);
    while !metrics(&node).await.lines().any(|line| line == "onward_jobs 0") {}
    assert_eq!(succeed().await.status, 200, "said once more");
    let retry = async |job: &str| post(&node, &format!("/v1/jobs/{job}/retry"), json!({ "request_id": "r" })).await;
    assert_eq!(retry(&job).await.status, 201);
    has(&metrics(&node).await, "onward_refusals_total{code=\"unknown_job\"} 0");
    assert_eq!(retry("00000000-0000-0000-0000-000000000001").await.status, 404);
    assert_eq!(post(&node, &verb(&leases[0], "beat"), json!({})).await.status, 409, "it has ended");
    let text = metrics(&node).await;
    has(&text, "onward_refusals_total{code=\"unknown_job\"} 1");
    has(&text, "onward_refusals_total{code=\"already_ended\"} 1");
}

#[tokio::test]
async fn metrics_tell_of_the_loops_of_the_node() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let text = metrics(&node).await;
    for (name, critical) in [
        ("machine", true),
        ("committer", false),
        ("schedules", true),
        ("acceptor", true),
        ("snapshots", false),
        ("archive", false),
    ] {
        let state = |state: &str, value| {
            format!("onward_loop_state{{loop=\"{name}\",critical=\"{critical}\",state=\"{state}\"}} {value}")
        };
        has(&text, &state("healthy", 1));
        has(&text, &state("stalled", 0));
        has(&text, &format!("onward_loop_restarts_total{{loop=\"{name}\"}} 0"));
        let age = format!("onward_loop_success_age_seconds{{loop=\"{name}\"}} ");
        let age = text.lines().find_map(|line| line.strip_prefix(&age)).unwrap_or_else(|| panic!("{age} in {text}"));
        assert!(age.parse::<f64>().unwrap() < PATIENCE.as_secs_f64(), "{age}");
    }
    assert!(!text.contains("onward_executor_lag_seconds"), "nobody measures it");
    let _eye = node.engine().loops().open_eye(PATIENCE, None).unwrap();
    let began = std::time::Instant::now();
    while !metrics(&node).await.contains("\nonward_executor_lag_seconds ") {
        assert!(began.elapsed() < PATIENCE);
    }
    node.engine().loops().add("hopeless", PATIENCE, &failing("no luck"));
    let text = metrics(&node).await;
    has(&text, "onward_loop_state{loop=\"hopeless\",critical=\"true\",state=\"failing\"} 1");
    has(&text, "onward_loop_state{loop=\"hopeless\",critical=\"true\",state=\"healthy\"} 0");
    let ready = Request::get("/readyz").send(node.address()).await;
    assert_eq!(ready.status, 503);
    assert!(ready.json()["reason"].as_str().unwrap().contains("no luck"), "{}", ready.json());
}

fn failing(why: &str) -> Pulse {
    let pulse = Pulse::default();
    pulse.fail(why);
    pulse
}

#[tokio::test]
async fn every_metric_has_a_help_a_type_and_base_units_and_promtool_is_content() {
    let data = tempdir().unwrap();
    let node = lived_in(data.path()).await;
    let text = metrics(&node).await;
    let mut families = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        match (words.next().unwrap(), words.next().unwrap()) {
            ("#", "HELP") => {
                let name = words.next().unwrap();
                assert!(words.next().is_some(), "{line}");
                assert!(families.insert(name, None).is_none(), "{name} twice");
            }
            ("#", "TYPE") => {
                let (name, kind) = (words.next().unwrap(), words.next().unwrap());
                assert_eq!(families.insert(name, Some(kind)), Some(None), "{name}: its help comes first");
            }
            (sample, _) => {
                let name = sample.split('{').next().unwrap();
                let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
                let family = family.filter(|family| families.contains_key(family)).unwrap_or(name);
                assert!(families.get(family).is_some_and(Option::is_some), "{name} has no family");
            }
        }
    }
    assert!(families.len() > 40, "{families:?}");
    let (content, said) = promtool(&["check", "metrics"], &text);
    assert!(content && said.is_empty(), "{said}");
}

#[tokio::test]
async fn many_queues_and_kinds_share_a_label() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let jobs: Vec<Value> = (0..150).map(|n| json!({ "kind": format!("k{n}"), "queue": format!("q{n}") })).collect();
    assert_eq!(post(&node, "/v1/jobs/batch", json!({ "jobs": jobs })).await.status, 201);
    post(&node, "/v1/jobs", json!({ "kind": "k", "queue": "other" })).await;
    let text = metrics(&node).await;
    let ready = |line: &&str| line.starts_with("onward_queue_jobs{") && line.contains("state=\"ready\"");
    let queues: Vec<&str> = text.lines().filter(ready).collect();
    assert_eq!(queues.len(), 101);
    has(&text, "onward_queue_jobs{queue=\"other\",state=\"ready\"} 51");
    let (content, said) = promtool(&["check", "metrics"], &text);
    assert!(content, "{said}");
}

/// All words that look like one of our metrics.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("onward_")).map(str::to_owned).collect()
}

#[tokio::test]
async fn the_alert_rules_and_the_dashboard_ask_for_metrics_that_there_are() {
    let data = tempdir().unwrap();
    let node = lived_in(data.path()).await;
    let there = named(&metrics(&node).await);
    let (alerts, dashboard) = (monitoring("alerts.yml"), monitoring("dashboard.json"));
    let (content, said) = promtool(&["check", "rules", alerts.to_str().unwrap()], "");
    assert!(content, "{said}");
    for file in [&alerts, &dashboard] {
        let asked = named(&std::fs::read_to_string(file).unwrap());
        assert!(asked.len() > 8, "{asked:?}");
        assert_eq!(asked.difference(&there).collect::<Vec<_>>(), Vec::<&String>::new(), "{}", file.display());
    }
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(dashboard).unwrap()).unwrap();
    for panel in dashboard["panels"].as_array().unwrap() {
        let expressions = panel["targets"].as_array().unwrap();
        assert!(panel["title"].is_string() && !expressions.is_empty(), "{panel}");
    }
}

#[tokio::test]
async fn keda_finds_the_number_that_it_scales_by() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let file = std::fs::read_to_string(monitoring("keda.yml")).unwrap();
    let setting = |name: &str| -> String {
        let line = file.lines().find_map(|line| line.trim().strip_prefix(name)).unwrap();
        line.trim_start_matches(':').trim().trim_matches('"').to_owned()
    };
    let path = setting("url").split_once("/v1/").map(|(_, path)| format!("/v1/{path}")).unwrap();
    // KEDA's dots are steps into the answer.
    let pointer = format!("/{}", setting("valueLocation").replace('.', "/"));
    let value = async || {
        let answer = Request::get(&path).send(node.address()).await.json();
        answer.pointer(&pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("{pointer} in {answer}"))
    };
    assert_eq!(value().await, 0, "also where nobody has ever submitted anything");
    for _ in 0..3 {
        post(&node, "/v1/jobs", json!({ "kind": "k" })).await;
    }
    assert_eq!(value().await, 3);
    let leases = lease(&node, poll_body("1")).await;
    assert_eq!((leases.len(), value().await), (3, 3), "whoever works is not scaled away");
    for held in &leases {
        post(&node, &verb(held, "succeed"), json!({})).await;
    }
    assert_eq!(value().await, 0);
}
