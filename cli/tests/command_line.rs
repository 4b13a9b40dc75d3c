//! The binary from outside: usage, help, completions, files, and a node that it starts itself.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use assert_cmd::cargo::cargo_bin;
use serde_json::Value;
use tokio::net::TcpSocket;

/// The binary in an environment of its own.
fn onward(args: &[&str]) -> Command {
    let mut command = Command::new(cargo_bin("onward"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ONWARD_")) {
        command.env_remove(name);
    }
    command.args(args);
    command
}

fn run(args: &[&str]) -> Output {
    onward(args).output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn names_after(help: &str, title: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != title).skip(1).take_while(|line| !line.trim().is_empty());
    let indented = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    indented.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
}

#[test]
fn every_command_has_help_with_an_example() {
    let top = out(&run(&["--help"]));
    let commands = names_after(&top, "Commands:");
    assert!(commands.len() >= 15, "{commands:?}");
    for role in ["manager", "gate", "worker"] {
        assert!(commands.iter().any(|name| name == role), "{role}");
    }
    let mut seen = 0;
    for name in commands {
        let output = run(&[&name, "--help"]);
        assert!(output.status.success());
        let help = out(&output);
        assert!(help.contains("Example") && help.contains(&format!("onward {name}")), "{name}: {help}");
        for verb in names_after(&help, "Commands:") {
            let help = out(&run(&[&name, &verb, "--help"]));
            assert!(
                help.contains("Example") && help.contains(&format!("onward {name} {verb}")),
                "{name} {verb}: {help}"
            );
            seen += 1;
        }
    }
    assert!(seen >= 12, "{seen} verbs");
}

#[test]
fn wrong_usage_exits_with_2_and_says_what_is_wrong() {
    for (args, hint) in [
        (&["submit"][..], "--kind"),
        (&["submit", "--kind", "k", "--", "ls"], "cannot be used with"),
        (&["submit", "--kind", "k", "--timeout", "90"], "1h30m"),
        (&["submit", "--kind", "k", "--priority", "101"], "100"),
        (&["submit", "--kind", "k", "--limit", "gpu"], "KEY=MAX"),
        (&["submit", "--kind", "k", "--payload", "{"], "not JSON"),
        (&["submit", "--kind", "k", "--delay", "1s", "--run-at", "2026-01-01T00:00:00Z"], "cannot be used with"),
        (&["list", "--state", "sleeping"], "succeeded"),
        (&["extend", "x", "--by", "5m"], "--reason"),
        (&["lsit"], "list"),
        (&["list", "--server", "localhost:7400"], "http://127.0.0.1:7400"),
        (&["token", "new", "--scope", "all", "--name", "x"], "operate"),
        (&["config", "--set", "lease.initail=2m"], "did you mean `lease.initial`?"),
        (&["config", "--config", "/does/not/exist.toml"], "/does/not/exist.toml"),
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", err(&output));
        assert!(err(&output).contains(hint), "{args:?}: {}", err(&output));
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn without_a_node_it_says_which_address_and_what_to_do() {
    // Taken, so that nobody else listens there, and not listened at.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap());
    let commands: [&[&str]; 5] =
        [&["list"], &["show", "x"], &["submit", "--kind", "k"], &["status"], &["queue", "pause", "q"]];
    for args in commands {
        let output = onward(args).env("ONWARD_SERVER", &url).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let text = err(&output);
        assert!(text.contains(&url) && text.contains("why: ") && text.contains("`onward up`"), "{text}");
    }
}

#[test]
fn completions_are_there_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(&["completions", shell]);
        assert!(output.status.success());
        assert!(out(&output).contains("dead-letter"), "{shell}");
    }
}

#[test]
fn nothing_is_coloured_where_nobody_looks() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(&["config", "--data", folder.path().to_str().unwrap()]);
    assert!(output.status.success() && !out(&output).contains('\u{1b}'));
}

#[test]
fn the_effective_settings_are_told_with_their_origin() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("onward.toml"), "seat_ttl = '4s'\n").unwrap();
    let mut command =
        onward(&["config", "--json", "--set", "job.timeout=2h", "--data", folder.path().to_str().unwrap()]);
    let output = command.env("ONWARD_LISTEN", "127.0.0.1:7500").output().unwrap();
    let settings: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |name: &str| {
        let all = settings["settings"].as_array().unwrap();
        let one = all.iter().find(|one| one["name"] == name).unwrap();
        format!("{} from {}", one["value"].as_str().unwrap(), one["origin"].as_str().unwrap())
    };
    assert_eq!(of("job.timeout"), "2h from flag");
    assert_eq!(of("listen"), "127.0.0.1:7500 from env ONWARD_LISTEN");
    assert_eq!(of("seat_ttl"), format!("4s from file {}", folder.path().join("onward.toml").display()));
    assert_eq!(of("quiet_budget"), "10m from default");
    assert_eq!(of("data"), format!("{} from flag", folder.path().display()));
}

#[test]
fn tokens_are_made_listed_and_revoked() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let token = |args: &[&str]| onward(args).env("ONWARD_DATA", &data).output().unwrap();
    let made = token(&["token", "new", "--scope", "read,submit", "--name", "ci"]);
    assert!(made.status.success(), "{}", err(&made));
    let text = out(&made);
    assert!(text.starts_with("onw_") && text.trim().len() == 47, "{text}");
    assert_eq!(token(&["token", "new", "--scope", "read", "--name", "ci"]).status.code(), Some(1));
    let listed: Value = serde_json::from_slice(&token(&["token", "list", "--json"]).stdout).unwrap();
    assert_eq!(listed["tokens"][0]["scopes"], serde_json::json!(["read", "submit"]));
    assert!(!listed.to_string().contains(text.trim()));
    assert!(token(&["token", "revoke", "ci"]).status.success());
    assert_eq!(token(&["token", "revoke", "ci"]).status.code(), Some(1));
}

/// A node of its own, stopped when dropped.
struct Up {
    child: Child,
    url: String,
}

impl Up {
    fn start(data: &Path) -> Self {
        // An address of this process alone: nobody else gets the port when the node is gone.
        let [_, high, middle, low] = std::process::id().to_be_bytes();
        let listen = format!("127.{}.{middle}.{low}:0", 64 | high & 63);
        let mut command = onward(&["up", "--slots", "0", "--listen", &listen, "--data"]);
        let mut child = command.arg(data).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().map(Result::unwrap).unwrap_or_default();
        let url = first.strip_prefix("onward: ready on ").map(str::to_owned);
        let commands = lines.map(Result::unwrap).filter(|line| line.starts_with("  onward ")).take(3).count();
        assert_eq!(commands, 3, "three commands to try next");
        Self { child, url: url.unwrap_or_else(|| panic!("not ready: {first}")) }
    }

    fn call(&self, data: &Path, args: &[&str]) -> Output {
        onward(args).env("ONWARD_SERVER", &self.url).env("ONWARD_DATA", data).output().unwrap()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn up_is_ready_answers_and_stops_when_asked() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut up = Up::start(&data);
    let status = up.call(&data, &["status", "--json"]);
    assert!(status.status.success(), "{}", err(&status));
    assert!(serde_json::from_slice::<Value>(&status.stdout).unwrap().is_object());
    let pid = up.child.id().to_string();
    assert!(Command::new("sh").args(["-c", "kill -TERM $0", &pid]).status().unwrap().success());
    assert_eq!(up.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_filter_cancels_all_that_match_and_nothing_is_cancelled_by_accident() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let up = Up::start(&data);
    for kind in ["a", "a", "b"] {
        let submitted = up.call(&data, &["submit", "--kind", kind, "--payload", "{}"]);
        assert!(submitted.status.success(), "{}", err(&submitted));
    }
    for wrong in [&["cancel"][..], &["cancel", "x", "--all"], &["cancel", "--all", "--kind", "a"]] {
        assert_eq!(up.call(&data, wrong).status.code(), Some(2), "{wrong:?}");
    }
    let unsure = up.call(&data, &["cancel", "--kind", "a"]);
    assert_eq!(unsure.status.code(), Some(2), "nobody has said yes");
    assert!(err(&unsure).contains("2 jobs would be cancelled") && err(&unsure).contains("--yes"), "{}", err(&unsure));
    let cancelled = up.call(&data, &["cancel", "--kind", "a", "--state", "ready", "--yes"]);
    assert_eq!(out(&cancelled), "asked to cancel 2 jobs\n", "{}", err(&cancelled));
    let again = up.call(&data, &["cancel", "--kind", "a", "--yes", "--json"]);
    assert_eq!(serde_json::from_slice::<Value>(&again.stdout).unwrap(), serde_json::json!({"cancelled": 0}));
    assert_eq!(out(&up.call(&data, &["cancel", "--all", "--yes"])), "asked to cancel 1 job\n");
}

#[test]
fn probe_says_whether_a_file_is_fresh_and_an_address_answers() {
    let folder = tempfile::tempdir().unwrap();
    let (file, missing) = (folder.path().join("beat"), folder.path().join("none"));
    std::fs::write(&file, "").unwrap();
    let probe = |args: &[&str]| run(&[&["probe"], args].concat());
    let (fresh, none) = (file.to_str().unwrap(), missing.to_str().unwrap());
    assert_eq!(probe(&["--file", fresh, "--max-age", "1h"]).status.code(), Some(0));
    let beat = std::fs::File::options().write(true).open(&file).unwrap();
    beat.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(7_200)).unwrap();
    let stale = probe(&["--file", fresh, "--max-age", "1h"]);
    assert_eq!(stale.status.code(), Some(1));
    assert!(err(&stale).contains("is stale") && err(&stale).contains("2h"), "{}", err(&stale));
    assert_eq!(probe(&["--file", fresh, "--max-age", "3h"]).status.code(), Some(0));
    assert_eq!(probe(&["--file", none, "--max-age", "1h"]).status.code(), Some(1));
    for wrong in
        [&[][..], &["--file", fresh], &["--max-age", "1h"], &["--url", "x", "--file", fresh, "--max-age", "1h"]]
    {
        assert_eq!(probe(wrong).status.code(), Some(2), "{wrong:?}");
    }

    let up = Up::start(&folder.path().join("data"));
    let url = up.url.clone();
    assert_eq!(probe(&["--url", &format!("{url}/readyz")]).status.code(), Some(0));
    let other = probe(&["--url", &format!("{url}/no-such-page")]);
    assert_eq!(other.status.code(), Some(1));
    assert!(err(&other).contains("404"), "{}", err(&other));
    drop(up);
    let gone = probe(&["--url", &format!("{url}/readyz")]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(err(&gone).contains("does not answer"), "{}", err(&gone));
}

#[test]
fn up_refuses_what_would_be_open_to_others() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let exposed = run(&["up", "--listen", "0.0.0.0:0", "--data", data]);
    assert_eq!(exposed.status.code(), Some(1));
    assert!(err(&exposed).contains("--insecure"), "{}", err(&exposed));
}
