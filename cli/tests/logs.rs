//! What a command prints, from its process to `onward logs`, and over the death of the node.

mod support;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Output, Stdio};

use serde_json::Value;
use support::process::ended;
use support::{Node, PATIENCE, onward, own_loopback};

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{}", err(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn start(data: &Path) -> Node {
    Node::start_with(data, &own_loopback(), &["--slots", "1"])
}

/// The id of a job whose command has ended.
fn ran(node: &Node, data: &Path, script: &str) -> String {
    let id = out(&node.call(data, &["submit", "--", "sh", "-c", script])).trim().to_owned();
    node.call(data, &["wait", &id]);
    id
}

#[test]
fn what_a_command_prints_is_there_and_outlives_the_node() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    let node = start(data);
    let id = ran(&node, data, "echo hello; echo oops >&2");
    let mut lines: Vec<String> = out(&node.call(data, &["logs", &id])).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["hello", "oops"]);

    let long = ran(&node, data, "head -c 200000 /dev/zero | tr '\\0' x; echo end");
    let printed = node.call(data, &["logs", &long]);
    let text = out(&printed);
    assert_eq!((text.len(), text.trim_start_matches('x')), (64 << 10, "end\n"));
    assert!(err(&printed).contains(&format!("{} bytes", 200_004 - (64 << 10))), "{}", err(&printed));
    let piece: Value = serde_json::from_str(&out(&node.call(data, &["logs", &long, "--json"]))).unwrap();
    assert_eq!((&piece["attempt"], &piece["skipped_bytes"]), (&1.into(), &(200_004 - (64 << 10)).into()));
    assert_eq!(piece["text"], text);
    node.kill();

    let node = start(data);
    let again = out(&node.call(data, &["logs", &id]));
    assert!(again.len() == 11 && again.contains("hello\n") && again.contains("oops\n"), "{again:?}");
    assert_eq!(out(&node.call(data, &["logs", &long])), text);
}

#[test]
fn following_ends_with_the_attempt_and_tells_everything_once() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    let node = start(data);
    // One slot: the second waits for the first, so that following begins before there is an attempt.
    let script = "for n in 1 2 3 4 5 6; do echo line $n; sleep 0.25; done";
    let first = out(&node.call(data, &["submit", "--", "sh", "-c", script]));
    let second = out(&node.call(data, &["submit", "--", "printf", "\\377\\001"]));
    let followed = out(&node.call(data, &["logs", "--follow", first.trim()]));
    assert_eq!(followed, (1..=6).map(|n| format!("line {n}\n")).collect::<String>());
    let followed = node.call(data, &["logs", "--follow", second.trim()]);
    assert_eq!((followed.status.code(), followed.stdout), (Some(0), vec![0xff, 1]), "byte for byte");
    let piece: Value = serde_json::from_str(&out(&node.call(data, &["logs", second.trim(), "--json"]))).unwrap();
    assert_eq!(piece["data_base64"], "/wE=");
}

#[test]
fn what_is_not_there_is_said_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    let node = start(data);
    let silent = ran(&node, data, "true");
    let nothing = node.call(data, &["logs", &silent]);
    assert!(nothing.status.success() && nothing.stdout.is_empty() && err(&nothing).contains("nothing is kept"));
    let waiting = out(&node.call(data, &["submit", "--kind", "nobody-takes-this"]));
    for (args, hint) in [
        (&["logs", "01890000-0000-7000-8000-000000000000"][..], "onward list"),
        (&["logs", &silent, "--attempt", "9"], "--attempt is one of: 1"),
        (&["logs", &silent, "--workflow", "none"], "--workflow is one of: exec"),
        (&["logs", waiting.trim()], "--follow"),
    ] {
        let output = node.call(data, args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(err(&output).contains(hint) && output.stdout.is_empty(), "{args:?}: {}", err(&output));
    }
}

struct Following {
    child: Child,
    out: BufReader<ChildStdout>,
    err: BufReader<ChildStderr>,
}

impl Following {
    fn start(node: &Node, data: &Path, args: &[&str]) -> Self {
        let mut command = onward(args);
        command.env("ONWARD_SERVER", &node.url).env("ONWARD_DATA", data);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        Self { child, out: BufReader::new(out), err: BufReader::new(err) }
    }

    fn line(&mut self) -> String {
        line(&mut self.out)
    }

    /// The exit code, with everything printed and said after the lines that were read.
    async fn end(mut self) -> (Option<i32>, String, String) {
        let code = ended(&mut self.child, PATIENCE).await;
        let (mut out, mut err) = (String::new(), String::new());
        self.out.read_to_string(&mut out).unwrap();
        self.err.read_to_string(&mut err).unwrap();
        (code, out, err)
    }
}

fn line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

#[tokio::test]
async fn who_follows_outlasts_a_node_that_starts_again() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    let node = start(data);
    let (address, again) = (node.address.to_string(), folder.path().join("again"));
    let script = format!("echo one; [ -e {} ] || sleep 1000; echo two; exit 3", again.display());
    let submit = ["submit", "--wait", "--logs", "--retries", "1", "--", "sh", "-c", &script];
    let mut waiting = Following::start(&node, data, &submit);
    let id = waiting.line();
    assert_eq!(waiting.line(), "one");
    let mut following = Following::start(&node, data, &["logs", "--follow", &id]);
    assert_eq!(following.line(), "one");
    let mut watching = Following::start(&node, data, &["watch", &id]);
    assert!(watching.line().contains("began"));
    node.kill();
    std::fs::write(&again, "").unwrap();
    for one in [&mut waiting, &mut following, &mut watching] {
        let said = line(&mut one.err);
        assert!(said.contains("trying again for up to 1m"), "{said}");
    }
    let _node = Node::start_with(data, &address, &["--slots", "1"]);
    let (code, out, err) = waiting.end().await;
    assert_eq!((code, out.as_str()), (Some(3), "one\ntwo\n"), "{err}");
    assert!(err.contains("failed"), "{err}");
    let (code, _, err) = following.end().await;
    assert_eq!(code, Some(0), "the attempt that it followed is over: {err}");
    let (code, _, err) = watching.end().await;
    assert_eq!(code, Some(3), "{err}");
}
