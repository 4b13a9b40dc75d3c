//! `cargo xtask cluster` as a process: it says how to reach each of its nodes, and leaves nothing behind.

mod support;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use support::http::Client;
use support::process::{Mark, ended, signal, until};
use support::{PATIENCE, in_own_environment, onward};

fn cargo(arguments: &[&str]) -> Command {
    let mut command = in_own_environment(Command::new(env!("CARGO")));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is in the workspace");
    command.args(arguments).current_dir(root).stdin(Stdio::null());
    command
}

fn all<'a>(shown: &'a Value, list: &str) -> &'a [Value] {
    shown[list].as_array().unwrap_or_else(|| panic!("no {list} in {shown}"))
}

fn address(node: &Value) -> SocketAddr {
    let text = node["address"].as_str().unwrap_or_else(|| panic!("no address in {node}"));
    text.trim_start_matches("http://").parse().expect("an address")
}

#[tokio::test]
async fn a_cluster_to_try_things_on_says_how_to_reach_it_and_leaves_nothing_behind() {
    // However long that takes.
    let built = cargo(&["build", "--quiet", "--locked", "--package", "xtask"]).status().unwrap();
    assert!(built.success(), "{built}");
    let mark = Mark::new();
    let mut command = cargo(&["run", "--quiet", "--locked", "--package", "xtask", "--", "cluster", "--json"]);
    command.args(["--onward", env!("CARGO_BIN_EXE_onward")]).stdout(Stdio::piped());
    let mut child = mark.put(&mut command).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let shown: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("no JSON: {line:?}"));

    let (nodes, databases) = (all(&shown, "nodes"), all(&shown, "postgres"));
    let named: Vec<&str> = nodes.iter().filter_map(|node| node["name"].as_str()).collect();
    assert_eq!(named, ["manager-1", "manager-2", "manager-3", "worker-1", "worker-2"]);
    let managers: Vec<&Value> = nodes.iter().filter(|node| node["role"] == "manager").collect();
    let places: BTreeSet<_> = managers.iter().copied().chain(databases).map(|one| address(one).ip()).collect();
    assert_eq!(places.len(), 5, "each has an address of its own: {shown}");
    for database in databases {
        TcpStream::connect(address(database)).unwrap_or_else(|error| panic!("{database}: {error}"));
    }
    let roles: Vec<&str> = databases.iter().filter_map(|one| one["role"].as_str()).collect();
    assert_eq!(roles, ["primary", "standby"]);
    for manager in &managers {
        let mut client = Client::new(address(manager));
        until("it is ready and knows all", PATIENCE, async || {
            let ready = client.try_call("GET", "/readyz", "").await.ok()?.status == 200;
            let listed = client.try_call("GET", "/v1/nodes", "").await.ok()?.json();
            let listed: Vec<&str> = listed["nodes"].as_array()?.iter().filter_map(|node| node["id"].as_str()).collect();
            (ready && named.iter().all(|name| listed.contains(name))).then_some(())
        })
        .await;
    }
    let folders: Vec<PathBuf> = nodes.iter().filter_map(|node| Some(node["data"].as_str()?.into())).collect();
    assert!(folders.len() == nodes.len() && folders.iter().all(|folder| folder.is_dir()), "{folders:?}");
    let mut submit = onward(&["submit", "--wait", "--logs", "--", "echo", "it works"]);
    submit.env("ONWARD_SERVER", managers[1]["address"].as_str().unwrap()).env("ONWARD_DATA", &folders[1]);
    let output = submit.output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("it works"), "{output:?}");

    signal(child.id(), Signal::INT);
    assert_eq!(ended(&mut child, PATIENCE).await, Some(0));
    mark.gone(PATIENCE).await;
    assert!(!folders.iter().any(|folder| folder.exists()), "{folders:?}");
}
