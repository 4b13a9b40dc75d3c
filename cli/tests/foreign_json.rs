//! JSON of users that is valid, and beyond what a Rust program can hold: it is carried, shown and given back to the byte.

mod support;

use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::value::RawValue;
use support::{Node, PATIENCE, onward, own_loopback};
use tokio::time::timeout;

/// A number that no machine has, half of a pair, nests of arrays, digits that a float would lose, spaces and order.
fn values() -> Vec<String> {
    let deep = format!("{}{}", "[".repeat(130), "]".repeat(130));
    let mixed = r#"{"z": [1e999, "\ud800"],  "a":123456789012345678901234567890.10}"#;
    ["1e999", r#""\ud800 x""#, &deep, mixed, r#"{"\udfff": 1}"#].map(str::to_owned).to_vec()
}

/// A command that hangs is a failure, and not one of the whole test run.
async fn call(node: &Node, data: &Path, args: &[&str]) -> Output {
    let mut command = onward(args);
    command.env("ONWARD_SERVER", &node.url).env("ONWARD_DATA", data).stdin(Stdio::null());
    let running = tokio::process::Command::from(command).kill_on_drop(true).output();
    timeout(PATIENCE, running).await.unwrap_or_else(|_| panic!("{args:?} does not end")).expect("the binary is there")
}

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The JSON without the spaces between tokens.
fn squeezed(json: &str) -> String {
    json.chars().filter(|c| !c.is_whitespace()).collect()
}

#[tokio::test]
async fn commands_end_and_say_what_there_is() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    let node = Node::start_with(data, &own_loopback(), &["--slots", "1"]);
    for value in values() {
        let submitted = call(&node, data, &["submit", "--wait", "--", "onward", "result", &value]).await;
        let id = out(&submitted).trim().to_owned();
        assert_eq!(call(&node, data, &["wait", &id]).await.status.code(), Some(0), "{value}");
        let watched = out(&call(&node, data, &["watch", &id]).await);
        assert!(watched.contains("succeeded"), "{value}: {watched}");
        let shown = out(&call(&node, data, &["show", &id]).await);
        assert!(shown.contains(&id) && shown.contains("succeeded"), "{value}: {shown}");
        let explained = out(&call(&node, data, &["explain", &id]).await);
        assert!(explained.contains("succeeded"), "{value}: {explained}");
        let listed = out(&call(&node, data, &["list"]).await);
        assert!(listed.contains(&id), "{value}: {listed}");
        assert_eq!(squeezed(&out(&call(&node, data, &["result", &id, "--json"]).await)), squeezed(&value));
        for args in [&["show", &id][..], &["wait", &id], &["watch", &id], &["list"], &["explain", &id]] {
            let text = out(&call(&node, data, &[args, &["--json"]].concat()).await);
            for line in if args[0] == "watch" { text.lines().collect() } else { vec![text.as_str()] } {
                let json: &RawValue =
                    serde_json::from_str(line).unwrap_or_else(|error| panic!("{args:?}: {error}: {line}"));
                assert!(args[0] == "watch" || squeezed(json.get()).contains(&squeezed(&value)), "{args:?}: {line}");
            }
        }
    }
}

#[tokio::test]
async fn a_payload_is_sent_as_it_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    let node = Node::start(data);
    for value in values() {
        let id = out(&call(&node, data, &["submit", "--kind", "k", "--payload", &value]).await);
        let shown = out(&call(&node, data, &["show", id.trim(), "--json"]).await);
        assert!(squeezed(&shown).contains(&squeezed(&value)), "{value}: {shown}");
        let waited = call(&node, data, &["wait", id.trim(), "--for", "10ms"]).await;
        assert_eq!(waited.status.code(), Some(1), "{value}");
        assert!(String::from_utf8_lossy(&waited.stderr).contains("is still ready"), "{value}: {waited:?}");
    }
}

#[tokio::test]
async fn a_command_run_here_may_have_such_a_result() {
    for value in values() {
        let running = tokio::process::Command::from(onward(&["run", "--", "onward", "result", &value])).output();
        let ran = timeout(PATIENCE, running).await.expect("it ends").unwrap();
        assert_eq!((ran.status.code(), ran.stdout.len()), (Some(0), 0), "{value}: {ran:?}");
    }
}
