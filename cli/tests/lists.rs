//! Lists that answer questions, and acting on what they show.

mod support;

use std::io::{BufRead, BufReader};
use std::process::{Output, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};
use support::http::Client;
use support::jobs::{ended, show, submit};
use support::process::{self, signal, until};
use support::{Node, PATIENCE, onward, own_loopback};
use tempfile::TempDir;

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap().trim().to_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

struct Stage {
    folder: TempDir,
    node: Node,
    client: Client,
}

impl Stage {
    fn new(slots: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let node = Node::start_with(folder.path(), &own_loopback(), &["--slots", slots]);
        let client = Client::with_token(node.address, folder.path());
        Self { folder, node, client }
    }

    fn call(&self, args: &[&str]) -> Output {
        self.node.call(self.folder.path(), args)
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&out(&self.call(&[args, &["--json"]].concat()))).unwrap()
    }

    async fn poll(&mut self, kind: &str) -> String {
        let poll =
            json!({ "worker_id": "w", "incarnation": "1", "kinds": [kind], "max": 1, "wait_s": 10, "lease_s": 600 });
        let reply = self.client.post("/v1/leases", &poll).await;
        reply.json()["leases"][0]["receipt"].as_str().unwrap_or_else(|| panic!("{}", reply.text())).to_owned()
    }

    /// A job that has failed, and lies among the dead letters.
    async fn failed(&mut self, kind: &str, error: &str) -> String {
        let id = submit(&mut self.client, &json!({ "kind": kind, "tags": ["t"] })).await;
        let receipt = self.poll(kind).await;
        let body = json!({ "error": error, "retryable": false });
        assert_eq!(self.client.post(&format!("/v1/leases/{receipt}/fail"), &body).await.status, 200);
        ended(&mut self.client, &id, PATIENCE).await;
        id
    }
}

fn ids(list: &Value) -> Vec<&str> {
    list["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_list_can_be_narrowed_to_what_stands_still_and_to_what_is_new() {
    let mut stage = Stage::new("0");
    let still = submit(&mut stage.client, &json!({ "kind": "k" })).await;
    let receipt = stage.poll("k").await;
    let waiting = submit(&mut stage.client, &json!({ "kind": "other" })).await;
    until("it has stood still for a while", PATIENCE, async || {
        let job = show(&mut stage.client, &still).await;
        (job["workflows"][0]["attempts"][0]["since_step_ms"].as_u64()? >= 300).then_some(())
    })
    .await;
    assert_eq!(ids(&stage.json(&["list", "--not-moving", "300ms"])), [&*still]);
    assert_eq!(ids(&stage.json(&["list", "--not-moving", "1h"])), [""; 0]);
    assert_eq!(ids(&stage.json(&["list", "--since", "1h"])), [&*waiting, &*still]);
    assert_eq!(ids(&stage.json(&["list", "--since", "1ms"])), [""; 0]);
    let over_http = stage.client.get("/v1/jobs?not_moving_s=0.3&since_s=3600").await.json();
    assert_eq!(ids(&over_http), [&*still]);
    for wrong in ["not_moving_s=-1", "since_s=x", "since_s=1e300"] {
        assert_eq!(stage.client.get(&format!("/v1/jobs?{wrong}")).await.status, 400, "{wrong}");
    }
    assert_eq!(ids(&stage.json(&["list", "--not-moving", "300ms", "--kind", "other"])), [""; 0]);
    // Whoever has said that it would be silent does not stand still.
    let quiet = stage.client.post(&format!("/v1/leases/{receipt}/beat"), &json!({ "quiet_s": 600 })).await;
    assert_eq!(quiet.status, 200, "{}", quiet.text());
    assert_eq!(ids(&stage.json(&["list", "--not-moving", "0ms"])), [""; 0]);
}

#[tokio::test]
async fn a_list_shows_commands_and_can_be_counted_by_what_they_share() {
    let mut stage = Stage::new("1");
    let id = out(&stage.call(&["submit", "--", "sh", "-c", "exit 3"]));
    stage.call(&["wait", &id]);
    let listed = out(&stage.call(&["list"]));
    assert!(listed.contains("exec: sh -c 'exit 3'"), "{listed}");
    assert!(listed.contains("  exited with code 3") && !listed.contains("failed: exited"), "said once: {listed}");
    let shown = out(&stage.call(&["show", &id]));
    assert!(shown.contains("command   sh -c 'exit 3'\n") && shown.contains("failed: exited with code 3"), "{shown}");
    for error in ["no space", "no route", "no space"] {
        stage.failed("k", error).await;
    }
    let lines = |by: &str| {
        let text = out(&stage.call(&["list", "--group-by", by]));
        text.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    let by_error = lines("error");
    assert!(by_error[0].starts_with("2 no space ") && by_error.len() == 3, "{by_error:?}");
    assert!(by_error.iter().any(|line| line.starts_with("1 exited with code 3 ")), "{by_error:?}");
    let by_kind = lines("kind");
    assert!(by_kind[0].starts_with("3 k ") && by_kind[1].starts_with("1 exec "), "{by_kind:?}");
    let two = json!({ "workflows": [{ "name": "a", "kind": "k" }, { "name": "b", "kind": "after" }, { "name": "c", "kind": "k" }] });
    submit(&mut stage.client, &two).await;
    let of_kind = out(&stage.call(&["list", "--kind", "after", "--group-by", "kind"]));
    assert!(of_kind.contains("1      k, after  "), "a job of several kinds has a group by all of them: {of_kind}");
    assert!(out(&stage.call(&["list", "--kind", "after"])).contains("  k, after  "));
    assert!(stage.call(&["cancel", "--kind", "after", "--yes"]).status.success());
    let groups = stage.json(&["list", "--state", "failed", "--group-by", "reason"]);
    let counts: u64 = groups["groups"].as_array().unwrap().iter().map(|group| group["count"].as_u64().unwrap()).sum();
    assert_eq!(counts, 4, "{groups}");
}

#[tokio::test]
async fn jobs_are_submitted_again_by_filter_once_somebody_said_yes() {
    let mut stage = Stage::new("0");
    for error in ["a", "b"] {
        stage.failed("k", error).await;
    }
    stage.failed("other", "c").await;
    let unsaid = stage.call(&["retry"]);
    assert_eq!(unsaid.status.code(), Some(2), "{}", err(&unsaid));
    let unsure = stage.call(&["retry", "--kind", "k"]);
    assert_eq!(unsure.status.code(), Some(2));
    assert!(
        err(&unsure).contains("2 jobs would be submitted once more") && err(&unsure).contains("--yes"),
        "{}",
        err(&unsure)
    );
    let tried = out(&stage.call(&["retry", "--kind", "k", "--dry-run"]));
    assert!(tried.starts_with("2 jobs would be submitted once more\n  "), "{tried}");
    let one = stage.failed("alone", "d").await;
    let tried = out(&stage.call(&["retry", &one, "--dry-run"]));
    assert_eq!(tried, format!("1 job would be submitted once more\n  {one}"));
    for unfit in [&["--not-moving", "1s"][..], &["--state", "running"], &["--kind", "k", &one], &["--all", &one]] {
        let refused = stage.call(&[&["retry", "--yes"], unfit].concat());
        assert_eq!(refused.status.code(), Some(2), "{unfit:?}: {}", err(&refused));
    }
    assert_eq!(ids(&stage.json(&["list", "--state", "ready"])).len(), 0, "nothing has happened yet");
    assert_eq!(out(&stage.call(&["retry", "--kind", "k", "--yes"])), "2 jobs submitted once more");
    assert_eq!(ids(&stage.json(&["list", "--state", "ready", "--kind", "k"])).len(), 2);
}

#[tokio::test]
async fn jobs_are_cancelled_by_what_a_list_can_be_narrowed_by() {
    let mut stage = Stage::new("0");
    let still = submit(&mut stage.client, &json!({ "kind": "k" })).await;
    stage.poll("k").await;
    let waiting = submit(&mut stage.client, &json!({ "kind": "other", "tags": ["t"] })).await;
    let tried = out(&stage.call(&["cancel", "--not-moving", "0ms", "--dry-run"]));
    assert_eq!(tried, format!("1 job would be cancelled\n  {still}"));
    assert_eq!(stage.json(&["cancel", "--tag", "t", "--dry-run"]), json!({ "count": 1, "jobs": [waiting] }));
    assert_eq!(out(&stage.call(&["cancel", &waiting, "--dry-run"])), format!("1 job would be cancelled\n  {waiting}"));
    assert_eq!(out(&stage.call(&["cancel", "--not-moving", "1h", "--yes"])), "no job matches");
    let unsure = stage.call(&["cancel", "--since", "1h"]);
    assert_eq!(unsure.status.code(), Some(2), "{}", err(&unsure));
    assert!(err(&unsure).contains("2 jobs would be cancelled") && err(&unsure).contains("--yes"), "{}", err(&unsure));
    for unfit in [&["--state", "failed"][..], &["--kind", "k", &still], &[]] {
        assert_eq!(stage.call(&[&["cancel", "--yes"], unfit].concat()).status.code(), Some(2), "{unfit:?}");
    }
    assert_eq!(ids(&stage.json(&["list", "--state", "cancelled"])).len(), 0, "nothing has happened yet");
    assert_eq!(out(&stage.call(&["cancel", "--not-moving", "0ms", "--yes"])), "asked to cancel 1 job");
    assert_eq!(show(&mut stage.client, &still).await["state"], "cancelling");
    assert_eq!(stage.json(&["cancel", "--since", "1h", "--yes"]), json!({ "cancelled": 1 }));
    assert_eq!(show(&mut stage.client, &waiting).await["state"], "cancelled");
    assert_eq!(stage.json(&["cancel", &waiting, "--dry-run"]), json!({ "count": 0, "jobs": [] }));
}

#[tokio::test]
async fn dead_letters_are_replayed_and_dropped_by_filter() {
    let mut stage = Stage::new("0");
    let (first, second) = (stage.failed("k", "a").await, stage.failed("k", "b").await);
    let other = stage.failed("other", "c").await;
    let tried = out(&stage.call(&["dead-letter", "replay", "--kind", "k", "--dry-run"]));
    assert_eq!(tried, format!("2 jobs would be replayed\n  {first}\n  {second}"));
    let named = stage.json(&["dead-letter", "drop", &other, "--dry-run"]);
    assert_eq!(named, json!({ "count": 1, "jobs": [other] }));
    for unfit in [&["--not-moving", "1s"][..], &["--state", "ready"], &["--kind", "k", &first]] {
        let refused = stage.call(&[&["dead-letter", "drop", "--yes"], unfit].concat());
        assert_eq!(refused.status.code(), Some(2), "{unfit:?}: {}", err(&refused));
    }
    assert_eq!(
        stage.json(&["dead-letter", "list"])["dead_letters"].as_array().unwrap().len(),
        3,
        "nothing has happened"
    );
    assert_eq!(stage.call(&["dead-letter", "drop", "--all"]).status.code(), Some(2), "nobody has said yes");
    let replayed = out(&stage.call(&["dead-letter", "replay", "--kind", "k", "--yes"]));
    assert!(replayed.contains(&first) && replayed.contains(&second) && !replayed.contains(&other), "{replayed}");
    let dropped = out(&stage.call(&["dead-letter", "drop", "--all", "--yes"]));
    assert_eq!(dropped, format!("dropped {other}"));
    assert_eq!(stage.json(&["dead-letter", "list"])["dead_letters"], json!([]));
    assert_eq!(out(&stage.call(&["dead-letter", "drop", "--all", "--yes"])), "no job matches");
}

#[tokio::test]
async fn a_dead_letter_is_replayed_from_where_it_failed_or_from_the_start() {
    let mut stage = Stage::new("0");
    let graph = json!({ "workflows": [{ "name": "a", "kind": "k" }, { "name": "b", "kind": "k", "after": ["a"] }] });
    for (from, first) in [(&[][..], "b"), (&["--from", "failed"], "b"), (&["--from", "start"], "a")] {
        let id = submit(&mut stage.client, &graph).await;
        let a = stage.poll("k").await;
        assert_eq!(stage.client.post(&format!("/v1/leases/{a}/succeed"), &json!({ "result": 7 })).await.status, 200);
        let b = stage.poll("k").await;
        let body = json!({ "error": "no", "retryable": false });
        assert_eq!(stage.client.post(&format!("/v1/leases/{b}/fail"), &body).await.status, 200);
        ended(&mut stage.client, &id, PATIENCE).await;

        let replayed = stage.json(&[&["dead-letter", "replay", &id], from].concat());
        let again = replayed["jobs"][0]["id"].as_str().unwrap().to_owned();
        let shown = stage.json(&["show", &again]);
        let states = ["a", "b"].map(|name| {
            let named = |workflow: &&Value| workflow["name"] == name;
            let found = shown["workflows"].as_array().unwrap().iter().find(named).unwrap();
            found["state"].as_str().unwrap().to_owned()
        });
        let screen = out(&stage.call(&["show", &again]));
        let told = out(&stage.call(&["explain", &again]));
        if first == "b" {
            assert_eq!(states, ["succeeded", "ready"]);
            assert!(screen.contains("succeeded in"), "{screen}");
            assert!(told.contains(&format!("succeeded in job {id}; its result was taken over")), "{told}");
        } else {
            assert_eq!(states, ["ready", "waiting"]);
        }
        assert!(stage.call(&["cancel", &again]).status.success());
    }
    let wrong = stage.call(&["dead-letter", "replay", "x", "--from", "middle"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", err(&wrong));
}

#[tokio::test]
async fn many_jobs_come_from_a_file() {
    let stage = Stage::new("0");
    let file = stage.folder.path().join("jobs.jsonl");
    let graph = r#"{"workflows": [{"name": "a", "kind": "k"}, {"name": "b", "kind": "k", "after": ["a"]}]}"#;
    let lines = format!("{}\n\n{graph}\n{}\n", r#"{"kind": "k", "payload": 1e999}"#, r#"{"kind": "k", "priority": 5}"#);
    std::fs::write(&file, lines).unwrap();
    let path = file.to_str().unwrap();
    let submitted = out(&stage.call(&["submit", "--file", path]));
    let given: Vec<&str> = submitted.lines().collect();
    assert_eq!(given.len(), 3, "{submitted}");
    assert_eq!(stage.json(&["show", given[1]])["workflows"].as_array().unwrap().len(), 2);
    assert_eq!(stage.json(&["show", given[2]])["priority"], 5);
    std::fs::write(&file, "{\"kind\": \"k\"}\n{\"kind\": }\n").unwrap();
    let wrong = stage.call(&["submit", "--file", path]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(err(&wrong).contains("line 2"), "{}", err(&wrong));
    for (bad, hints) in [
        ("{\"kind\": \"k\", \"prioritty\": 1}", &["prioritty", "line 3", "no job was submitted"][..]),
        ("{\"kind\": \"\"}", &["kind", "line 3", "no job was submitted"]),
    ] {
        std::fs::write(&file, format!("\n{{\"kind\": \"k\"}}\n{bad}\n")).unwrap();
        let wrong = stage.call(&["submit", "--file", path]);
        assert_eq!(wrong.status.code(), Some(1));
        assert!(hints.iter().all(|hint| err(&wrong).contains(hint)), "{}", err(&wrong));
    }
    assert_eq!(ids(&stage.json(&["list"])).len(), 3, "all or nothing");
}

#[tokio::test]
async fn of_a_file_with_a_wrong_line_it_is_said_what_was_submitted() {
    let stage = Stage::new("0");
    let file = stage.folder.path().join("jobs.jsonl");
    std::fs::write(&file, "{\"kind\": \"k\"}\n".repeat(1_500) + "{\"kind\": \"\"}\n{\"kind\": \"k\"}\n").unwrap();
    let wrong = stage.call(&["submit", "--file", file.to_str().unwrap()]);
    assert_eq!(
        (wrong.status.code(), String::from_utf8(wrong.stdout.clone()).unwrap().lines().count()),
        (Some(1), 1_000)
    );
    let said = err(&wrong);
    for words in ["line 1501", "lines 1001 to 1502", "1000 jobs of the lines before", "none of this batch was stored"] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn a_file_that_cannot_be_read_and_options_that_do_not_go_with_one_are_named() {
    let gone = onward(&["submit", "--file", "/none/jobs.jsonl"]).output().unwrap();
    assert_eq!(gone.status.code(), Some(1));
    let said = err(&gone);
    assert!(said.contains("cannot read the jobs from /none/jobs.jsonl") && said.contains("--file"), "{said}");
    assert!(!said.contains("payload"), "{said}");
    for (option, value) in [("--queue", "q"), ("--priority", "5"), ("--tag", "t"), ("--ordered", "k"), ("--env", "A=1")]
    {
        let refused = onward(&["submit", "--file", "jobs.jsonl", option, value]).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{option}");
        assert!(err(&refused).contains(&format!("'{option} <")), "{}", err(&refused));
    }
}

#[tokio::test]
async fn waiting_can_show_what_is_printed_and_says_when_the_job_goes_on() {
    let stage = Stage::new("1");
    let script = "echo one; echo two >&2; [ $ONWARD_ATTEMPT = 2 ] || exit 3; echo three";
    let waited = stage.call(&["submit", "--wait", "--logs", "--retries", "1", "--", "sh", "-c", script]);
    let text = out(&waited);
    assert_eq!(text.lines().filter(|line| *line == "one").count(), 2, "{text}");
    assert!(text.lines().any(|line| line == "three"), "{text}");
    assert!(err(&waited).contains("succeeded"), "{}", err(&waited));

    let mut command = onward(&["submit", "--wait", "--", "sleep", "1000"]);
    command.env("ONWARD_SERVER", &stage.node.url).env("ONWARD_DATA", stage.folder.path());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut id = String::new();
    let mut printed = BufReader::new(child.stdout.take().unwrap());
    printed.read_line(&mut id).unwrap();
    let mut client = stage.client;
    let running = until("it runs", PATIENCE, async || {
        let list = client.get("/v1/jobs?state=running").await.json();
        list["jobs"][0]["id"].as_str().map(str::to_owned)
    })
    .await;
    assert_eq!(id.trim(), running);
    signal(child.id(), Signal::INT);
    assert_eq!(process::ended(&mut child, PATIENCE).await, Some(130));
    let said = err(&child.wait_with_output().unwrap());
    assert!(said.contains(&format!("job {running} goes on")) && said.contains("onward cancel"), "{said}");
    assert_eq!(show(&mut client, &running).await["state"], "running");
}
