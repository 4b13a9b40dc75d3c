//! What the command line says when something is not as it was meant: what is wrong, and the remedy that works.

mod support;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Output, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};
use support::http::Client;
use support::jobs::submit;
use support::process::{self, until};
use support::{Node, PATIENCE, onward, own_loopback};

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn says(output: &Output, wanted: i32, words: &[&str]) {
    let text = format!("{}{}", out(output), err(output));
    assert_eq!(code(output), Some(wanted), "{text}");
    for word in words {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
}

/// The id of a job whose command has ended.
fn ran(node: &Node, data: &Path, script: &str) -> String {
    let id = out(&node.call(data, &["submit", "--", "sh", "-c", script]));
    node.call(data, &["wait", &id]);
    id
}

#[test]
fn a_job_that_has_ended_cannot_be_cancelled_or_extended_and_that_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    let node = Node::start_with(data, &own_loopback(), &["--slots", "1"]);
    let (done, failed) = (ran(&node, data, "true"), ran(&node, data, "exit 3"));
    says(&node.call(data, &["cancel", &done]), 0, &["has already ended: it succeeded"]);
    says(&node.call(data, &["cancel", &failed]), 0, &["has already ended: it failed"]);
    let extended = node.call(data, &["extend", &done, "--by", "1h", "--reason", "r"]);
    says(&extended, 1, &["has already ended", "onward retry"]);
    let waiting = out(&node.call(data, &["submit", "--kind", "nobody-takes-this"]));
    let replayed = node.call(data, &["dead-letter", "replay", &waiting]);
    says(&replayed, 1, &["not_a_dead_letter", "onward dead-letter list", "onward retry"]);
    says(&node.call(data, &["cancel", &waiting]), 0, &["is cancelled"]);
    says(&node.call(data, &["cancel", &waiting]), 0, &["is cancelled"]);
}

#[test]
fn a_command_is_tried_once_unless_more_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    let node = Node::start_with(data, &own_loopback(), &["--slots", "1"]);
    let attempts = |args: &[&str]| {
        let output = node.call(data, &[&["submit", "--wait", "--json"], args].concat());
        let last: Value = serde_json::from_str(out(&output).lines().last().unwrap()).unwrap();
        (code(&output), last["workflows"][0]["attempts"].as_array().unwrap().len())
    };
    assert_eq!(attempts(&["--", "sh", "-c", "exit 3"]), (Some(3), 1));
    assert_eq!(attempts(&["--retries", "1", "--", "sh", "-c", "exit 3"]), (Some(3), 2));
    let help = out(&onward(&["submit", "--help"]).output().unwrap());
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("[default: 0 for a command; for a kind, the node's retry policy]"), "{help}");
}

#[test]
fn tls_is_told_apart_from_a_node_that_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let (data, tls) = (folder.path().join("data"), folder.path().join("tls"));
    let made = onward(&["certs", "new", "--host", "localhost", "--out", tls.to_str().unwrap()]).output().unwrap();
    says(&made, 0, &["ca.pem"]);
    let file = |name: &str| tls.join(name).to_str().unwrap().to_owned();
    let (cert, key, ca) = (file("cert.pem"), file("key.pem"), file("ca.pem"));
    let node = Node::start_with(&data, &own_loopback(), &["--tls-cert", &cert, "--tls-key", &key]);
    let list = |url: &str, more: &[&str]| onward(&[&["list", "--server", url], more].concat()).output().unwrap();
    let plain = node.url.replace("https://", "http://");
    says(&list(&node.url, &[]), 1, &["not trusted here", "--ca FILE", "ca.pem"]);
    says(&list(&node.url, &["--ca", &ca]), 1, &["not valid for name", "certs new --host"]);
    says(&list(&plain, &[]), 1, &["not HTTP", &format!("--server {}", node.url)]);

    let other = folder.path().join("other");
    let node = Node::start(&other);
    let secure = node.url.replace("http://", "https://");
    says(&list(&secure, &[]), 1, &["does not speak TLS", &format!("--server {}", node.url)]);
}

#[test]
fn a_token_that_is_there_and_cannot_be_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (data, other) = (folder.path().join("data"), folder.path().join("other"));
    let node = Node::start(&data);
    std::fs::create_dir_all(other.join("token")).unwrap();
    let refused = node.call(&other, &["submit", "--", "true"]);
    says(&refused, 1, &["exec_needs_token", "the token in", "cannot be read"]);
}

#[test]
fn a_command_line_that_says_too_little_or_too_much_is_answered_with_what_to_write() {
    let run = |args: &[&str]| onward(args).output().unwrap();
    says(&run(&["submit"]), 2, &["nothing to submit", "onward submit -- ./backup.sh", "--kind"]);
    says(&run(&["submit", "--payload", "{}"]), 2, &["nothing to submit"]);
    says(&run(&["probe"]), 2, &["nothing to probe", "--file with --max-age, or --url"]);
    says(
        &run(&["submit", "--kind", "k", "--env", "A=1"]),
        2,
        &["'--kind <KIND>' cannot be used with '--env <NAME=VALUE>'"],
    );
    says(&run(&["submit", "--kind", "k", "--cwd", "/"]), 2, &["cannot be used with"]);
    says(&run(&["lsit"]), 2, &["did you mean `list`?"]);
    says(&run(&["submit", "true"]), 2, &["onward submit -- true"]);
    says(&run(&["up", "--listen", "7500"]), 2, &["like 127.0.0.1:7400"]);
    let wait = onward(&["wait"]).env("ONWARD_SERVER", "http://x").env("ONWARD_DATA", "/x").output().unwrap();
    says(&wait, 2, &["<ID>", "Usage: onward wait [OPTIONS] <ID>\n"]);
    says(&run(&["wait", "--help"]), 0, &["124 timed out or stuck", "128+n", "1 for anything else"]);
    let none = tempfile::tempdir().unwrap();
    says(&run(&["token", "list", "--data", none.path().to_str().unwrap()]), 0, &["no tokens in"]);
    says(&run(&["token", "list", "--help"]), 0, &["how it ends"]);
}

#[tokio::test]
async fn the_status_counts_what_was_archived_and_says_when_the_node_drains() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    let mut node = Node::start_with(data, &own_loopback(), &["--slots", "1"]);
    let line = |node: &Node, name: &str| {
        let text = out(&node.call(data, &["status"]));
        let found = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}: {text}"));
        found.trim().to_owned()
    };
    assert_eq!(line(&node, "jobs"), "0 open, 0 archived, 0 dead letters");
    ran(&node, data, "true");
    until("it is archived", PATIENCE, async || {
        (line(&node, "jobs") == "0 open, 1 archived, 0 dead letters").then_some(())
    })
    .await;
    assert_eq!((line(&node, "state"), line(&node, "workers")), ("serving".to_owned(), "1".to_owned()));
    let running = out(&node.call(data, &["submit", "--", "sh", "-c", "trap '' TERM; echo ready; sleep 1000"]));
    until("it runs and ignores signals", PATIENCE, async || {
        out(&node.call(data, &["logs", &running])).contains("ready").then_some(())
    })
    .await;
    node.signal(Signal::TERM);
    until("it drains", PATIENCE, async || (line(&node, "state") == "draining").then_some(())).await;
    assert_eq!(line(&node, "verdict"), "busy (not_accepting)");
    let top = out(&node.call(data, &["top", "--once"]));
    assert!(top.starts_with("draining, load normal, 1 open job, 0 dead letters;"), "{top}");
    node.signal(Signal::TERM);
    node.ended(PATIENCE).await;
}

#[tokio::test]
async fn who_waits_for_a_time_outlasts_a_node_that_is_away() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    let node = Node::start_with(data, &own_loopback(), &["--slots", "1"]);
    let id = ran(&node, data, "true");
    let (url, address) = (node.url.clone(), node.address.to_string());
    let wait = |id: &str, more: &[&str]| {
        let mut command = onward(&[&["wait", id], more].concat());
        command.env("ONWARD_SERVER", &url).env("ONWARD_DATA", data).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    node.kill();
    says(&wait(&id, &[]).output().unwrap(), 1, &["cannot reach a node", "`onward up`"]);
    let tried = wait(&id, &["--for", "300ms"]).output().unwrap();
    says(&tried, 1, &["cannot reach a node", "it was tried for 300ms", "`onward up`"]);
    let mut waiting = Vec::new();
    for id in [&id, &id[..13]] {
        let mut child = wait(id, &["--for", "1h"]).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert!(line.contains("cannot reach a node") && line.contains("trying again for up to 1h"), "{line}");
        waiting.push((child, said));
    }
    let _node = Node::start_with(data, &address, &[]);
    for (mut child, mut said) in waiting {
        assert_eq!(process::ended(&mut child, PATIENCE).await, Some(0));
        let mut rest = String::new();
        said.read_to_string(&mut rest).unwrap();
        assert!(rest.starts_with("succeeded"), "{rest}");
    }
}

#[test]
fn a_path_that_cannot_be_sent_is_wrong_usage() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(folder.path());
    let path = OsStr::from_bytes(b"/tmp/\xff");
    let mut backup = onward(&["backup"]);
    backup.arg(path);
    let mut submit = onward(&["submit", "--cwd"]);
    submit.arg(path).args(["--", "true"]);
    for (mut command, words) in [
        (backup, ["cannot be the path of a backup", "not UTF-8", "name a file"]),
        (submit, ["the command cannot run in", "not UTF-8", "--cwd DIR"]),
    ] {
        command.env("ONWARD_SERVER", &node.url).env("ONWARD_DATA", folder.path());
        says(&command.output().unwrap(), 2, &words);
    }
}

#[test]
fn a_node_that_does_not_start_says_with_which_options_it_would() {
    let folder = tempfile::tempdir().unwrap();
    let (data, other) = (folder.path().join("data"), folder.path().join("other"));
    let up = |listen: &str| onward(&["up", "--listen", listen, "--data"]).arg(&other).output().unwrap();
    says(&up("0.0.0.0:0"), 1, &["TLS and tokens", "onward certs new", "--tls-cert", "--tls-key", "--require-tokens"]);
    let node = Node::start(&data);
    says(&up(&node.address.to_string()), 1, &["cannot listen", "onward status", "--listen ADDRESS:PORT"]);
}

#[test]
fn what_cannot_help_is_not_offered() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    let node = Node::start_with(data, &own_loopback(), &["--slots", "1"]);
    let missing = node.call(data, &["submit", "--wait", "--", "no-such-program"]);
    says(&missing, 127, &["not found", "onward explain"]);
    assert!(!err(&missing).contains("onward logs"), "it has printed nothing: {}", err(&missing));
    let printed = node.call(data, &["submit", "--wait", "--", "sh", "-c", "echo no; exit 127"]);
    says(&printed, 127, &["onward logs", "onward explain"]);
    let waiting = out(&node.call(data, &["submit", "--kind", "nobody-takes-this"]));
    node.call(data, &["cancel", &waiting]);
    let result = err(&node.call(data, &["result", &waiting]));
    assert!(result.contains("has no result: it is cancelled") && !result.contains("why:"), "{result}");
    let backup = node.call(data, &["backup", "/no/such/folder/x"]);
    says(&backup, 1, &["backup_failed", "its folder has to be there on the node's own disk"]);
}

#[test]
fn a_queue_that_nobody_uses_is_paused_and_that_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(folder.path());
    says(&node.call(folder.path(), &["queue", "pause", "typo"]), 0, &["paused typo", "is the name right?"]);
    assert!(node.call(folder.path(), &["submit", "--kind", "k"]).status.success());
    let known = node.call(folder.path(), &["queue", "pause", "default"]);
    assert_eq!((code(&known), err(&known)), (Some(0), String::new()));
}

#[tokio::test]
async fn an_id_may_be_shortened_while_it_names_one_job() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(folder.path());
    let mut client = Client::with_token(node.address, folder.path());
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(submit(&mut client, &json!({ "kind": "nobody-takes-this" })).await);
    }
    let shared = ids[0].chars().zip(ids[4].chars()).take_while(|(a, b)| a == b).count();
    says(&node.call(folder.path(), &["show", &ids[0][..shared]]), 1, &["several jobs begin with", "write more"]);
    for id in &ids {
        let least = (4..36).find(|length| ids.iter().filter(|other| other.starts_with(&id[..*length])).count() == 1);
        let short = &id[..least.expect("ids differ")];
        for args in [&["show", short][..], &["explain", short], &["show", &short.replace('-', "")], &["cancel", short]]
        {
            says(&node.call(folder.path(), args), 0, &[id]);
        }
    }
    // All beginnings of one that ends in the highest digit: nothing lies above it.
    let mut last = ids.swap_remove(0);
    while !last.ends_with('f') {
        last = submit(&mut client, &json!({ "kind": "nobody-takes-this" })).await;
    }
    says(&node.call(folder.path(), &["show", &last[..35]]), 0, &[&last]);
    says(&node.call(folder.path(), &["show", "ffff0000"]), 1, &["unknown_job"]);
    says(&node.call(folder.path(), &["show", "ffff"]), 1, &["unknown_job"]);
    for command in ["show", "explain", "watch", "wait", "logs", "result", "cancel", "retry"] {
        says(&node.call(folder.path(), &[command, ""]), 2, &["an id is needed", "onward list"]);
    }
    says(&node.call(folder.path(), &["show", "zzzz"]), 1, &["unknown_job"]);
}

#[test]
fn settings_can_be_given_to_a_node_as_to_config() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    let node = Node::start_with(data, &own_loopback(), &["--set", "job.timeout=90m"]);
    let id = out(&node.call(data, &["submit", "--kind", "k"]));
    let job: Value = serde_json::from_str(&out(&node.call(data, &["show", &id, "--json"]))).unwrap();
    assert_eq!(job["timeout_s"], 5400.0);
    let wrong = onward(&["up", "--set", "lease.initail=2m"]).output().unwrap();
    says(&wrong, 2, &["did you mean `lease.initial`?"]);
}

#[test]
fn with_json_every_line_on_stderr_is_json() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    let node = Node::start_with(data, &own_loopback(), &["--slots", "1"]);
    let failed = ran(&node, data, "exit 3");
    let waiting = out(&node.call(data, &["submit", "--kind", "nobody-takes-this"]));
    let mut said = 0;
    for args in [
        &["list", "--queue", "empty"][..],
        &["list", "--limit", "1"],
        &["wait", &failed],
        &["wait", &waiting, "--for", "10ms"],
        &["show", "ffff0000"],
        &["logs", &failed],
        &["queue", "pause", "typo"],
        &["token", "new", "--scope", "read", "--name", "ci"],
        &["submit"],
        &["submit", "--wait", "--", "true"],
        &["lsit"],
        &["extend", &failed],
        &["run", "--stuck-after", "1s", "--", "sleep", "100"],
        &["list", "--server", "http://127.0.0.1:1"],
    ] {
        // What comes after `--` is the command's.
        let mut all = args.to_vec();
        all.insert(1, "--json");
        let output = node.call(data, &all);
        for line in err(&output).lines() {
            assert!(serde_json::from_str::<Value>(line).is_ok_and(|json| json.is_object()), "{args:?}: {line}");
            said += 1;
        }
    }
    assert!(said >= 8, "{said}");
}
