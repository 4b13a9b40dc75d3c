//! What people see on a terminal: colours as colours, lines that fit, nothing that a job could have drawn itself, and no
//! traces of lines that were drawn over.

mod support;

use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};
use support::http::Client;
use support::jobs::{ended, show};
use support::process::signal;
use support::terminal::{ScreenText, Terminal};
use support::{Node, PATIENCE, onward, own_loopback};

/// Clears the screen, begins a line, turns the direction, and is a control character that JSON does not escape.
const HOSTILE: &str = "bad\u{1b}[2J\u{1b}[31m\nfake  row\r\u{85}\u{202e}end";

fn asking(node: &Node, data: &Path, args: &[&str]) -> Command {
    let mut command = onward(args);
    command.env("ONWARD_SERVER", &node.url).env("ONWARD_DATA", data);
    command
}

async fn on_terminal(command: Command, columns: u16) -> (Option<i32>, ScreenText, String) {
    let mut terminal = Terminal::start(command, columns);
    let (code, seen) = terminal.ended().await;
    (code, seen, terminal.raw())
}

async fn lease(client: &mut Client) -> String {
    let poll = json!({ "worker_id": "w", "incarnation": "1", "kinds": ["k"], "max": 1, "wait_s": 10, "lease_s": 600 });
    let reply = client.post("/v1/leases", &poll).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()["leases"][0]["receipt"].as_str().expect("a lease").to_owned()
}

/// A node with a job in most states, one of which has failed with a hostile error, and one has a hostile note.
async fn stage(data: &Path) -> (Node, String, String) {
    let node = Node::start(data);
    let mut client = Client::with_token(node.address, data);
    let job = json!({ "kind": "k", "retry": { "max_attempts": 1 }, "tags": ["t"] });
    let mut ids = Vec::new();
    for _ in 0..2 {
        let reply = client.post("/v1/jobs", &job).await;
        ids.push(reply.json()["id"].as_str().expect("an id").to_owned());
    }
    let failing = lease(&mut client).await;
    let body = json!({ "error": HOSTILE, "retryable": false });
    assert_eq!(client.post(&format!("/v1/leases/{failing}/fail"), &body).await.status, 200);
    let running = lease(&mut client).await;
    let body = json!({ "watermark": 3, "total": 10, "note": HOSTILE });
    assert_eq!(client.post(&format!("/v1/leases/{running}/beat"), &body).await.status, 200);
    ended(&mut client, &ids[0], PATIENCE).await;
    let waiting = json!({ "kind": "a-kind-with-a-name-that-is-longer-than-most-of-them-are", "queue": "nobody-takes-from-this-queue" });
    client.post("/v1/jobs", &waiting).await;
    (node, ids[0].clone(), ids[1].clone())
}

#[tokio::test]
async fn tables_have_colours_fit_and_show_nothing_that_a_job_has_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    let (node, failed, running) = stage(data).await;
    for columns in [80, 120, 200] {
        for (args, has_colour, expected) in [
            (&["list"][..], true, "failed"),
            (&["show", &failed], true, "failed"),
            (&["show", &running], true, "running"),
            (&["node", "list"], true, "w"),
            (&["queue", "list"], false, "default"),
            (&["dead-letter", "list"], false, &*failed),
            (&["datacenter", "list"], true, "default"),
            (&["token", "list"], false, "NAME"),
            (&["config"], false, "lease.initial"),
        ] {
            let (code, seen, raw) = on_terminal(asking(&node, data, args), columns).await;
            let what = format!("{args:?} at {columns}: {}", seen.text());
            assert_eq!(code, Some(0), "{what}");
            assert!(seen.text().contains(expected), "{what}");
            assert!(!seen.is_wrapped, "{what}");
            assert_eq!(seen.has_colour, has_colour, "{what}\n{raw:?}");
            assert!(!raw.contains("[2J") || raw.contains("\\u{1b}[2J"), "{what}\n{raw:?}");
            assert!(!seen.lines.iter().any(|line| line.starts_with("fake")), "{what}");
        }
    }
    let (_, seen, _) = on_terminal(asking(&node, data, &["list"]), 80).await;
    assert!([&failed, &running].iter().all(|id| seen.text().contains(*id)), "ids stay whole: {}", seen.text());
}

#[tokio::test]
async fn a_hostile_word_is_shown_on_one_line_and_is_the_same_in_json() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    let (node, failed, running) = stage(data).await;
    let shown = "bad\\u{1b}[2J\\u{1b}[31m\\nfake  row\\r\\u{85}\\u{202e}end";
    for args in [&["explain", &failed][..], &["explain", &running], &["watch", &failed]] {
        let (_, seen, raw) = on_terminal(asking(&node, data, args), 2_000).await;
        assert!(seen.lines.iter().any(|line| line.contains(shown)), "{args:?}: {}", seen.text());
        assert!(!seen.has_colour && !raw.contains("\u{1b}[31m"), "{args:?}: {raw:?}");
        let piped = asking(&node, data, args).output().unwrap();
        assert!(String::from_utf8(piped.stdout).unwrap().contains(shown), "{args:?}, also where no terminal is");
    }
    for args in
        [&["show", &failed][..], &["list", "--state", "failed"], &["explain", &failed], &["dead-letter", "list"]]
    {
        let output = asking(&node, data, &[args, &["--json"]].concat()).output().unwrap();
        let json: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{args:?}: {error}"));
        let job = [&json, &json["jobs"][0], &json["job"], &json["dead_letters"][0]]
            .into_iter()
            .find(|job| job["id"] == *failed);
        let attempt = &job.unwrap_or_else(|| panic!("{args:?}: {json}"))["workflows"][0]["attempts"][0];
        assert_eq!(attempt["error"], HOSTILE, "{args:?}");
    }
}

#[tokio::test]
async fn top_draws_one_picture_over_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    let (node, _, running) = stage(data).await;
    for columns in [80, 140] {
        let mut terminal = Terminal::start(asking(&node, data, &["top", "--every", "50ms"]), columns);
        let seen = terminal.shows(&running).await;
        // Several pictures later it looks the same.
        while terminal.raw().matches("\u{1b}[H").count() < 5 {
            terminal.shows(&running).await;
        }
        let later = terminal.shows(&running).await;
        assert_eq!(later.text().matches("Ctrl-C leaves").count(), 1, "{}", later.text());
        assert!(!later.is_wrapped && later.has_colour, "{}", later.text());
        assert_eq!(seen.lines.len(), later.lines.len());
        signal(terminal.child.id(), Signal::INT);
        terminal.ended().await;
    }
}

#[tokio::test]
async fn run_leaves_what_its_command_has_printed_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    // Long enough between two lines for several pictures of ours, which the command waits for.
    let script = "echo one; sleep 1; echo '@onward progress 1/2'; printf tw; sleep 0.6; echo o; sleep 0.6; echo three >&2; sleep 0.6";
    let mut command = onward(&["run", "--", "sh", "-c", script]);
    command.current_dir(folder.path());
    for columns in [80, 20] {
        let mut again = onward(&["run", "--", "sh", "-c", script]);
        std::mem::swap(&mut command, &mut again);
        let mut terminal = Terminal::start(again, columns);
        terminal.shows(if columns == 80 { "1/2 50%" } else { "[####" }).await;
        let (code, seen) = terminal.ended().await;
        assert_eq!(code, Some(0), "{}", seen.text());
        assert_eq!(seen.text(), "one\ntwo\nthree", "{:?}", terminal.raw());
        assert!(!seen.is_wrapped);
    }
}

#[tokio::test]
async fn waiting_leaves_only_how_it_ended() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    let node = Node::start_with(data, &own_loopback(), &["--slots", "1"]);
    let submit = asking(&node, data, &["submit", "--wait", "--", "sh", "-c", "onward progress 1/4; sleep 3"]);
    let mut terminal = Terminal::start(submit, 80);
    terminal.shows("1/4 25%").await;
    let (code, seen) = terminal.ended().await;
    assert_eq!((code, seen.lines.len()), (Some(0), 2), "{}", seen.text());
    assert!(seen.lines[1].starts_with("succeeded after "), "{}", seen.text());
    let id = seen.lines[0].trim();
    let mut client = Client::with_token(node.address, data);
    assert_eq!(show(&mut client, id).await["state"], "succeeded");
}

#[tokio::test]
async fn many_jobs_are_changed_after_a_yes_and_the_question_says_how_many_and_which() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    let node = Node::start(data);
    let mut client = Client::with_token(node.address, data);
    let mut ids = Vec::new();
    for _ in 0..7 {
        ids.push(support::jobs::submit(&mut client, &json!({ "kind": "nobody" })).await);
    }
    for (answer, wanted, state) in [("", 1, "ready"), ("n", 1, "ready"), ("y", 0, "cancelled")] {
        let mut terminal = Terminal::start(asking(&node, data, &["cancel", "--kind", "nobody"]), 80);
        let seen = terminal.shows("Go on? [y/N]").await.text();
        let first = [&["7 jobs would be cancelled"][..], &[&*ids[6], &ids[5]]].concat();
        assert!(first.iter().all(|word| seen.contains(word)) && seen.contains("and 2 more"), "{seen}");
        terminal.enter(answer);
        let (code, seen) = terminal.ended().await;
        assert_eq!(code, Some(wanted), "{}", seen.text());
        let said = if wanted == 0 { "asked to cancel 7 jobs" } else { "nothing was changed" };
        assert!(seen.text().contains(said), "{}", seen.text());
        for id in &ids {
            assert_eq!(show(&mut client, id).await["state"], state, "after `{answer}`");
        }
    }
}

#[tokio::test]
async fn the_demo_and_the_status_are_readable_on_a_terminal() {
    let (demo, status) = tokio::join!(on_terminal(onward(&["demo"]), 80), async {
        let folder = tempfile::tempdir().unwrap();
        let node = Node::start(folder.path());
        on_terminal(asking(&node, folder.path(), &["status"]), 80).await
    });
    let (code, seen, raw) = demo;
    assert_eq!(code, Some(0), "{}", seen.text());
    assert!(seen.has_colour && !raw.contains("u{1b}") && seen.text().contains("All 5 ended as they must"), "{raw:?}");
    let (code, seen, raw) = status;
    assert_eq!(code, Some(0), "{}", seen.text());
    assert!(!raw.contains("u{1b}"), "{raw:?}");
}
