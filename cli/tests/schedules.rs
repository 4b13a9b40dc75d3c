//! Schedules on a real node: by the command line, over a SIGKILL, and where their failures are seen.

mod support;

use std::process::Output;

use jiff::Timestamp;
use serde_json::Value;
use support::process::until;
use support::{Node, PATIENCE, own_loopback};

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap().trim().to_owned()
}

fn err(output: &Output) -> String {
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

struct Stage {
    folder: tempfile::TempDir,
    node: Node,
}

impl Stage {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let node = Node::start_with(folder.path(), &own_loopback(), &["--slots", "2"]);
        Self { folder, node }
    }

    fn call(&self, args: &[&str]) -> Output {
        self.node.call(self.folder.path(), args)
    }

    fn show(&self, name: &str) -> Value {
        serde_json::from_str(&out(&self.call(&["schedule", "show", name, "--records", "256", "--json"]))).unwrap()
    }

    async fn until(&self, name: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        until(name, PATIENCE, async || Some(self.show(name)).filter(&is_so)).await
    }
}

fn succeeded(schedule: &Value) -> usize {
    let records = schedule["records"].as_array().unwrap();
    records.iter().filter(|record| record["outcome"] == "succeeded").count()
}

#[tokio::test]
async fn a_killed_node_leaves_out_no_instant_and_repeats_none() {
    let mut stage = Stage::new();
    let add = ["schedule", "add", "tick", "--every", "1s", "--overlap", "allow", "--missed", "all", "--", "true"];
    let said = out(&stage.call(&add));
    assert!(said.starts_with("schedule tick is set; next at "), "{said}");
    for _ in 0..2 {
        let before = stage.show("tick");
        stage.until("tick", |schedule| succeeded(schedule) > succeeded(&before)).await;
        let Stage { folder, node } = stage;
        node.kill();
        let node = Node::start_with(folder.path(), &own_loopback(), &["--slots", "2"]);
        stage = Stage { folder, node };
    }
    let before = stage.show("tick");
    let seen = stage.until("tick", |schedule| succeeded(schedule) > succeeded(&before)).await;
    let instants =
        |record: &Value, field: &str| record[field].as_str().unwrap().parse::<Timestamp>().unwrap().as_second();
    let records = seen["records"].as_array().unwrap();
    for pair in records.windows(2) {
        assert_eq!(instants(&pair[0], "due_at") - instants(&pair[1], "last_due_at"), 1, "{seen:#}");
    }
    let counted: u64 = records.iter().map(|record| record["count"].as_u64().unwrap()).sum();
    let (newest, oldest) = (&records[0], &records[records.len() - 1]);
    assert_eq!(counted as i64, instants(newest, "last_due_at") - instants(oldest, "due_at") + 1, "{seen:#}");
}

#[tokio::test]
async fn schedules_are_paused_run_and_removed_and_wrong_ones_are_refused_with_a_remedy() {
    let stage = Stage::new();
    let list = stage.call(&["schedule", "list"]);
    assert!(String::from_utf8_lossy(&list.stderr).contains("no schedules"), "{list:?}");
    let add = ["schedule", "add", "new year", "--cron", "0 0 1 1 *", "--zone", "Europe/Berlin", "--", "echo", "hello"];
    out(&stage.call(&add));
    let listed = out(&stage.call(&["schedule", "list"]));
    assert!(listed.contains("new year") && listed.contains("0 0 1 1 * Europe/Berlin"), "{listed}");
    let job = out(&stage.call(&["schedule", "run-now", "new year"]));
    assert!(stage.call(&["wait", &job]).status.success());
    let shown = out(&stage.call(&["schedule", "show", "new year"]));
    for part in ["echo hello", "overlap skip, missed once", "1 fired", "run_now", "succeeded", &job] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    assert!(out(&stage.call(&["schedule", "pause", "new year"])).contains("paused new year"));
    assert!(out(&stage.call(&["schedule", "show", "new year"])).contains("nothing starts until"));
    assert!(out(&stage.call(&["schedule", "resume", "new year"])).contains("next at 20"));
    out(&stage.call(&["schedule", "remove", "new year"]));
    assert!(err(&stage.call(&["schedule", "show", "new year"])).contains("onward schedule list"));
    let wrong = stage.call(&["schedule", "add", "s", "--cron", "0 6 * * *", "--zone", "Europe/Atlantis", "--", "true"]);
    assert!(err(&wrong).contains("IANA time zone database"), "{wrong:?}");
    for (args, says) in [
        (&["schedule", "add", "s", "--", "true"][..], "--cron"),
        (&["schedule", "add", "s", "--every", "1m"], "there is nothing to run"),
        (&["schedule", "add", "s", "--every", "1m", "--cron", "* * * * *", "--", "true"], "cannot be used with"),
    ] {
        let wrong = stage.call(args);
        assert_eq!(wrong.status.code(), Some(2), "{args:?}");
        assert!(err(&wrong).contains(says), "{wrong:?}");
    }
}

#[tokio::test]
async fn a_critical_schedule_that_fails_again_and_again_is_seen() {
    let stage = Stage::new();
    let status = || -> Value { serde_json::from_str(&out(&stage.call(&["status", "--json"]))).unwrap() };
    assert_eq!(status()["manager"]["failing_schedules"], serde_json::json!([]));
    out(&stage.call(&["schedule", "add", "doomed", "--every", "1s", "--critical", "--", "false"]));
    stage.until("doomed", |schedule| schedule["failing"] == true).await;
    let failing = &status()["manager"]["failing_schedules"][0];
    assert_eq!((&failing["name"], &failing["reason"]), (&"doomed".into(), &"runs_fail".into()));
    assert!(failing["failures"].as_u64().unwrap() >= 3, "{failing}");
    assert!(out(&stage.call(&["status"])).contains("doomed failed"));
    let mut client = support::http::Client::with_token(stage.node.address, stage.folder.path());
    let metrics = client.get("/metrics").await.text();
    assert!(metrics.contains("onward_schedules_failing 1"), "{metrics}");
    assert!(metrics.contains("onward_schedule_failing{schedule=\"doomed\",reason=\"runs_fail\"} 1"), "{metrics}");
    assert!(metrics.contains("onward_schedule_failures{schedule=\"doomed\"}"), "{metrics}");
}
