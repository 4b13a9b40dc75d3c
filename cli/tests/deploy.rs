//! What people deploy, checked by the programs that will read it; and what a service manager is told.

mod support;

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use support::http::Client;
use support::jobs::{ended, shell, submit};
use support::{Node, PATIENCE, onward, own_loopback};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is in the workspace").to_owned()
}

fn text_of(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn succeeds(what: &str, output: &Output) {
    let said = [&output.stdout[..], &output.stderr].concat();
    assert!(output.status.success(), "{what}: {}\n{}", output.status, String::from_utf8_lossy(&said));
}

#[test]
fn systemd_accepts_the_units() {
    let folder = tempfile::tempdir().expect("a folder");
    for unit in ["onward.service", "onward-worker.service"] {
        // systemd looks whether the program is there.
        let text = text_of(&format!("deploy/systemd/{unit}")).replace("/usr/bin/onward", env!("CARGO_BIN_EXE_onward"));
        let copy = folder.path().join(unit);
        std::fs::write(&copy, text).expect("it can be written");
        let verified = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&copy).output();
        let verified = verified.expect("systemd-analyze is there: apt-get install systemd");
        succeeds(unit, &verified);
        assert!(verified.stderr.is_empty(), "{unit}: {}", String::from_utf8_lossy(&verified.stderr));
    }
}

/// What the node says to systemd, one datagram at a time.
struct ServiceManager {
    socket: UnixDatagram,
    seen: Vec<String>,
}

impl ServiceManager {
    fn at(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).expect("a socket");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Self { socket, seen: Vec::new() }
    }

    /// Waits until this was said once more.
    fn hears(&mut self, wanted: &str) {
        let mut buffer = [0; 4096];
        loop {
            let length = self.socket.recv(&mut buffer).unwrap_or_else(|_| panic!("no {wanted} after {:?}", self.seen));
            let said = String::from_utf8_lossy(&buffer[..length]).into_owned();
            let found = said.lines().any(|line| line == wanted);
            self.seen.push(said);
            if found {
                return;
            }
        }
    }
}

#[tokio::test]
async fn systemd_is_told_ready_alive_and_stopping() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("notify");
    let mut manager = ServiceManager::at(&socket);
    let mut command = onward(&["up", "--slots", "0", "--listen", &own_loopback(), "--data"]);
    command.arg(folder.path().join("data")).env("NOTIFY_SOCKET", &socket).env("WATCHDOG_USEC", "500000");
    let mut node = Node::start_as(command);
    manager.hears("READY=1");
    assert!(!manager.seen.concat().contains("WATCHDOG=1"), "alive before it is ready: {:?}", manager.seen);
    manager.hears("WATCHDOG=1");
    manager.hears("WATCHDOG=1");
    node.signal(Signal::TERM);
    manager.hears("STOPPING=1");
    assert_eq!(node.ended(PATIENCE).await, Some(0));
}

#[tokio::test]
async fn a_command_cannot_speak_for_the_node_to_systemd() {
    let folder = tempfile::tempdir().expect("a folder");
    let (socket, data) = (folder.path().join("notify"), folder.path().join("data"));
    let _manager = ServiceManager::at(&socket);
    let mut command = onward(&["up", "--slots", "1", "--listen", &own_loopback(), "--data"]);
    command.arg(&data).env("NOTIFY_SOCKET", &socket).env("WATCHDOG_USEC", "60000000");
    let node = Node::start_as(command);
    let mut client = Client::with_token(node.address, &data);
    let script = r#"test -z "$NOTIFY_SOCKET$WATCHDOG_USEC$WATCHDOG_PID""#;
    let id = submit(&mut client, &shell(script, &[], &json!({ "retry": { "max_attempts": 1 } }))).await;
    let job = ended(&mut client, &id, PATIENCE).await;
    assert_eq!(job["state"], "succeeded", "{job}");
    // A command that this process stands for may.
    let mut run = onward(&["run", "--", "sh", "-c", r#"test "$NOTIFY_SOCKET" = x"#]);
    succeeds("onward run", &run.env("NOTIFY_SOCKET", "x").output().expect("it runs"));
}

#[tokio::test]
async fn the_containers_command_starts_a_node_that_wants_tokens() {
    let dockerfile = text_of("deploy/container/Dockerfile");
    let words = dockerfile.lines().find_map(|line| line.strip_prefix("CMD ")).expect("it has a command");
    let words: Vec<String> = serde_json::from_str(words).expect("in the form that needs no shell");
    assert!(words.windows(2).any(|two| two == ["--listen", "0.0.0.0:7400"]), "others must reach it: {words:?}");
    // The same command, where only this test reaches it.
    let listen = own_loopback();
    let words: Vec<&str> =
        words.iter().map(|word| if word == "0.0.0.0:7400" { &listen } else { word.as_str() }).collect();
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = onward(&words);
    command.env("ONWARD_DATA", folder.path());
    let node = Node::start_as(command);
    let mut client = Client::new(node.address);
    assert_eq!(client.get("/readyz").await.status, 200);
    assert_eq!(client.get("/v1/jobs").await.status, 401);
    assert_eq!(Client::with_token(node.address, folder.path()).get("/v1/jobs").await.status, 200);
}

#[test]
fn each_command_has_a_manual_page() {
    let folder = tempfile::tempdir().expect("a folder");
    succeeds("onward man", &onward(&["man", "--out"]).arg(folder.path()).output().expect("it runs"));
    for page in ["onward.1", "onward-submit.1", "onward-queue-pause.1", "onward-up.1"] {
        let text = std::fs::read_to_string(folder.path().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
        assert!(text.contains(".TH "), "{page}: {text}");
    }
}

/// The settings that a file or an environment gives, as the program shows them.
fn settings(command: &mut Command) -> String {
    let output = command.output().expect("it runs");
    succeeds("onward config", &output);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_settings_of_a_manager_among_several_are_known() {
    let file = root().join("deploy/cluster/manager-1.toml");
    let shown = settings(onward(&["config", "--config"]).arg(file));
    for wanted in ["manager-1", "10.0.0.1:7400", "10.0.0.3:7400", "/etc/onward/cluster.key", "/etc/onward/tls/ca.pem"] {
        assert!(shown.contains(wanted), "{wanted}: {shown}");
    }
    // Every variable of the manifest is one that is read.
    let manifest = text_of("deploy/kubernetes-cluster.yaml");
    let names = manifest.lines().filter_map(|line| line.trim().strip_prefix("- name: "));
    let variables: Vec<&str> = names.filter(|name| name.starts_with("ONWARD_")).collect();
    assert_eq!(variables.len(), 6, "{variables:?}");
    let mut config = onward(&["config"]);
    config.envs([("ONWARD_NAME", "onward-0"), ("ONWARD_ADVERTISE", "10.0.0.9:7400"), ("ONWARD_PEERS", "a:1,b:2")]);
    config.envs([("ONWARD_STORAGE", "postgres://jobs@db/jobs"), ("ONWARD_CLUSTER_KEY_FILE", "/k")]);
    let shown = settings(config.env("ONWARD_HOST_NAMES", "onward:7400"));
    for variable in variables {
        assert!(shown.contains(variable), "{variable} is not where a setting came from: {shown}");
    }
}

/// The page shows the file as it is, but for the comments on top.
#[test]
fn the_page_shows_the_scrape_that_is_in_the_file() {
    let file: String = text_of("deploy/prometheus.yml")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| format!("{line}\n"))
        .collect();
    assert!(text_of("docs/deploy.md").contains(&format!("```yaml\n{file}```")), "{file}");
}

#[test]
fn the_grace_of_every_deployment_is_longer_than_the_nodes_own() {
    let config = onward(&["config", "--json"]).output().expect("it runs");
    let settings: serde_json::Value = serde_json::from_slice(&config.stdout).expect("JSON");
    let text = settings.to_string();
    assert!(text.contains("drain.grace"), "{text}");
    let grace = Duration::from_secs(30);
    for (file, before) in [
        ("deploy/systemd/onward.service", "TimeoutStopSec="),
        ("deploy/systemd/onward-worker.service", "TimeoutStopSec="),
        ("deploy/compose.yaml", "stop_grace_period: "),
        ("deploy/kubernetes.yaml", "terminationGracePeriodSeconds: "),
        ("deploy/kubernetes-cluster.yaml", "terminationGracePeriodSeconds: "),
    ] {
        let text = text_of(file);
        let spans: Vec<u64> = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix(before)?.trim_end_matches('s').parse().ok())
            .collect();
        assert!(!spans.is_empty(), "{file} has no {before}");
        assert!(spans.iter().all(|span| Duration::from_secs(*span) > grace), "{file}: {spans:?}");
    }
}
