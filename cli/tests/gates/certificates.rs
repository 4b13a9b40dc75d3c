//! Where TLS is on, it is a certificate that says for which datacenter a manager speaks.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use super::support::process::until;
use super::support::{Node, PATIENCE, onward};
use super::*;

/// The authority of a cluster, and a folder for each node.
struct Certificates(TempDir);

impl Certificates {
    fn new() -> Self {
        let this = Self(tempfile::tempdir().expect("a folder"));
        run(&["certs", "ca", "--out", &this.path("authority")]);
        this
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// Makes a certificate, and gives the settings that use it.
    fn node(&self, name: &str, role: &str, datacenter: Option<&str>) -> String {
        let (authority, out) = (self.path("authority"), self.path(name));
        let place: Vec<&str> = datacenter.iter().flat_map(|datacenter| ["--datacenter", datacenter]).collect();
        let args = ["certs", "node", "--ca", &authority, "--role", role, "--name", name, "--host", "127.0.0.1"];
        run(&[&args[..], &place, &["--out", &out]].concat());
        format!(
            "name = \"{name}\"\nlisten = \"127.0.0.1:0\"\ntls.cert = \"{out}/cert.pem\"\ntls.key = \"{out}/key.pem\"\ntls.ca = \"{out}/ca.pem\"\n{SOON}"
        )
    }

    fn start(&self, name: &str, role: &str, settings: &str) -> Node {
        let (file, data) = (self.path(&format!("{name}.toml")), self.path(&format!("{name}.data")));
        fs::write(Path::new(&file), settings).expect("a file");
        let mut command = onward(&[role, "--config", &file, "--data", &data]);
        let log = fs::File::create(self.path(&format!("{name}.log"))).expect("a file");
        command.env("ONWARD_LOG", "info").stderr(log);
        Node::start_as(command)
    }

    /// What this node has logged.
    fn said(&self, name: &str) -> String {
        fs::read_to_string(self.path(&format!("{name}.log"))).expect("it logs")
    }
}

fn run(args: &[&str]) -> String {
    let output = onward(args).output().expect("it runs");
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test]
async fn a_manager_cannot_speak_for_another_datacenter_than_its_certificates() {
    let certificates = Certificates::new();
    let gate = certificates.start("gate-1", "gate", &certificates.node("gate-1", "gate", None));
    let ca = format!("{}/ca.pem", certificates.path("gate-1"));
    let datacenters = || -> Vec<String> {
        let text = run(&["--server", &gate.url, "--ca", &ca, "--json", "datacenter", "list"]);
        let body: Value = serde_json::from_str(&text).expect("JSON");
        let all = body["datacenters"].as_array().expect("a list");
        all.iter().filter(|known| known["connected"] == true).map(|known| known["name"].to_string()).collect()
    };
    let manager = |name: &str, certified: &str, role: &str, said: &str| {
        let settings = certificates.node(name, role, Some(certified));
        let settings = format!("datacenter = \"{said}\"\ngates = [\"{}\"]\n{settings}", gate.address);
        certificates.start(name, "manager", &settings)
    };
    // The certificate is of dc-b, and the manager says that it speaks for dc-a.
    let _liar = manager("liar", "dc-b", "manager", "dc-a");
    // The certificate is a worker's.
    let _worker = manager("worker", "dc-a", "worker", "dc-a");
    let honest = manager("honest", "dc-c", "manager", "dc-c");
    until("the honest one is heard", PATIENCE, async || (datacenters() == ["\"dc-c\""]).then_some(())).await;
    // Each was refused with a reason, and has not merely not come yet.
    for why in
        ["a stream claimed to be of another datacenter; it was closed", "onward://worker/dc-a/worker is no manager"]
    {
        until(why, PATIENCE, async || certificates.said("gate-1").contains(why).then_some(())).await;
    }
    assert_eq!(datacenters(), ["\"dc-c\""]);
    drop(honest);
}

/// Who has a certificate of the same authority for the host that gates are dialled at could else order a datacenter about.
#[tokio::test]
async fn a_gate_with_the_certificate_of_a_worker_or_manager_is_not_obeyed() {
    let certificates = Certificates::new();
    for role in ["worker", "manager"] {
        let impostor = format!("no-gate-but-{role}");
        let settings = certificates.node(&impostor, role, Some("dc-a"));
        let gate = certificates.start(&impostor, "gate", &settings);
        let name = format!("honest-{role}");
        let settings = certificates.node(&name, "manager", Some("dc-a"));
        let settings = format!("datacenter = \"dc-a\"\ngates = [\"{}\"]\n{settings}", gate.address);
        let _manager = certificates.start(&name, "manager", &settings);
        until("the manager says that this is no gate", PATIENCE, async || {
            let said = certificates.said(&name);
            assert!(!said.contains("a gate that leads is reported to"), "{said}");
            said.contains(&format!("onward://{role}/dc-a/{impostor} is no gate")).then_some(())
        })
        .await;
        let ca = format!("{}/ca.pem", certificates.path(&impostor));
        let text = run(&["--server", &gate.url, "--ca", &ca, "datacenter", "list"]);
        assert!(!text.contains("dc-a"), "{text}");
    }
}
