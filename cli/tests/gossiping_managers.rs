//! Managers that gossip: any of them lists all, with its verdict on each, and the key that they share is replaced without
//! anybody dropping out.

mod support;

use std::path::Path;
use std::process::Output;

use onward_testkit::{Cluster, ClusterOptions, ManagerProcess};
use serde_json::{Value, json};
use support::http::Client;
use support::process::until;
use support::{PATIENCE, onward};

/// How busy the computer is that these tests run on is not what they are about: nobody is turned away for that.
const PATIENT: &str = "[overload]\nrise = { busy = 1e6, stressed = 2e6, overloaded = 3e6 }\nlatency_ms = { busy = 1e6, stressed = 2e6, overloaded = 3e6 }\nresource_percent = { busy = 1e6, stressed = 2e6, overloaded = 3e6 }\n";

fn options() -> ClusterOptions {
    ClusterOptions::of(env!("CARGO_BIN_EXE_onward")).settings(PATIENT)
}

async fn get(asked: &ManagerProcess, path: &str) -> Option<Value> {
    let reply = Client::new(asked.address).try_call("GET", path, "").await.ok()?;
    (reply.status == 200).then(|| reply.json())
}

/// The row of a node, once it has this verdict or reason.
async fn row(asked: &ManagerProcess, name: &str, word: &str) -> Value {
    until(&format!("{} lists {name} with {word}", asked.name), PATIENCE, async || {
        let list = get(asked, "/v1/nodes").await?;
        let row = list["nodes"].as_array()?.iter().find(|row| row["id"] == name)?.clone();
        (row["verdict"] == word || row["reason"] == word).then_some(row)
    })
    .await
}

/// The place of the manager that leads.
async fn leader(cluster: &Cluster, but: Option<usize>) -> usize {
    until("a manager leads", PATIENCE, async || {
        for (index, manager) in cluster.managers.iter().enumerate().filter(|(index, _)| Some(*index) != but) {
            if get(manager, "/status").await.is_some_and(|status| status["manager"]["seat"] == "serving") {
                return Some(index);
            }
        }
        None
    })
    .await
}

fn text_of(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What the command line prints about this node.
fn line(asked: &ManagerProcess, name: &str) -> String {
    let mut command = onward(&["node", "list"]);
    command.env("ONWARD_SERVER", asked.url()).env("ONWARD_DATA", asked.data());
    let text = text_of(&command.output().unwrap());
    let found = text.lines().find(|line| line.starts_with(name));
    found.unwrap_or_else(|| panic!("no {name} in\n{text}")).to_owned()
}

#[tokio::test]
async fn any_manager_lists_all_and_one_that_was_killed_is_suspect() {
    let cluster = options().workers(1, 2).start().unwrap();
    let managers = &cluster.managers;
    for asked in managers {
        for known in managers {
            let row = row(asked, &known.name, "healthy").await;
            assert_eq!(
                (&row["role"], &row["address"]),
                (&json!("manager"), &json!(known.address.to_string())),
                "{row}"
            );
        }
        assert_eq!(row(asked, "worker-1", "healthy").await["role"], "worker");
        until("all are counted", PATIENCE, async || {
            let list = get(asked, "/v1/datacenters").await?;
            (list["datacenters"][0]["managers"] == 3).then_some(())
        })
        .await;
    }

    let led = leader(&cluster, None).await;
    let (other, lost) = (&managers[(led + 1) % 3], &managers[(led + 2) % 3]);
    until("it is known who leads", PATIENCE, async || line(other, &managers[led].name).contains("leads").then_some(()))
        .await;
    assert!(!line(other, &other.name).contains("leads"), "one alone leads: {}", line(other, &other.name));
    assert!(line(other, &lost.name).contains("healthy"), "{}", line(other, &lost.name));

    lost.server.kill();
    let seen = row(other, &lost.name, "suspect").await;
    assert_eq!((&seen["reason"], &seen["gossip"]["state"]), (&json!("missed_probes"), &json!("down")), "{seen}");
    let said = line(other, &lost.name);
    assert!(["manager", "suspect", "down", "missed_probes"].into_iter().all(|word| said.contains(word)), "{said}");
    lost.server.start_again().unwrap();
    row(other, &lost.name, "healthy").await;

    // Whoever leads then has known the one before from gossip alone.
    managers[led].server.kill();
    let next = leader(&cluster, Some(led)).await;
    row(&managers[next], &managers[led].name, "missed_probes").await;
    assert!(line(other, &managers[next].name).contains("leads"));
}

/// A new line for the file of keys.
fn new_key(folder: &Path) -> String {
    let file = folder.join("new.key");
    text_of(&onward(&["certs", "key", "--out"]).arg(&file).output().unwrap());
    std::fs::read_to_string(file).unwrap()
}

/// Whether this manager takes all others for alive, by its own view.
async fn knows_all(manager: &ManagerProcess, others: usize) -> bool {
    let reply = Client::new(manager.address).try_call("GET", "/metrics", "").await;
    let wanted = format!("onward_gossip_members{{state=\"alive\"}} {others}");
    reply.is_ok_and(|reply| reply.text().lines().any(|line| line == wanted))
}

#[tokio::test]
async fn a_key_is_replaced_in_three_rounds_of_restarts_and_nobody_drops_out() {
    let (cluster, folder) = (options().start().unwrap(), tempfile::tempdir().unwrap());
    let (old, new) = (std::fs::read_to_string(&cluster.key_file).unwrap(), new_key(folder.path()));
    let others = cluster.managers.len() - 1;
    let all_know_all = async |what: &str| {
        for manager in &cluster.managers {
            until(&format!("{what}, {} knows all", manager.name), PATIENCE, async || {
                knows_all(manager, others).await.then_some(())
            })
            .await;
        }
    };
    all_know_all("with the old key").await;
    for (what, keys) in [
        ("with the new key below", format!("{old}{new}")),
        ("with the new key first", format!("{new}{old}")),
        ("with the new key alone", new),
    ] {
        for manager in &cluster.managers {
            // Each manager reads the file when it starts.
            std::fs::write(&cluster.key_file, &keys).unwrap();
            manager.server.stop(PATIENCE);
            manager.server.start_again().unwrap();
            all_know_all(what).await;
        }
    }
    // Whoever still has the old one hears nobody, and is heard by nobody.
    std::fs::write(&cluster.key_file, &old).unwrap();
    let (last, first) = (&cluster.managers[2], &cluster.managers[0]);
    last.server.stop(PATIENCE);
    last.server.start_again().unwrap();
    until("its datagrams are dropped", PATIENCE, async || {
        let metrics = Client::new(first.address).try_call("GET", "/metrics", "").await.ok()?.text();
        let dropped =
            metrics.lines().filter(|line| line.starts_with("onward_gossip_dropped_total{reason=\"wrong_key\"}"));
        dropped.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).any(|count| count > 0).then_some(())
    })
    .await;
    assert!(knows_all(last, 0).await && !knows_all(first, others).await, "a key that was replaced is good for nothing");
}
