//! Certificates and keys of a cluster, as people make them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;

use onward_gossip::ClusterKeys;
use onward_node::peer::certificate::{PeerTls, client_config, named, server_config};
use tempfile::tempdir;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

fn onward(args: &[&str]) -> Output {
    assert_cmd::Command::cargo_bin("onward").unwrap().args(args).output().unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn an_authority_is_kept_and_signs_nodes_with_role_and_datacenter() {
    let folder = tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    assert!(onward(&["certs", "ca", "--out", &at("ca")]).status.success());
    assert_eq!(mode(&folder.path().join("ca/ca.key")), 0o600);
    let node = |role: &str, more: &[&str], name: &str| {
        let (ca, out) = (at("ca"), at(name));
        let args = ["certs", "node", "--ca", &ca, "--role", role, "--name", name, "--host", "127.0.0.1", "--out", &out];
        onward(&[&args[..], more].concat())
    };
    let table: [(&str, &[&str], &str, &str); 3] = [
        ("manager", &["--datacenter", "dc-a"], "m1", "onward://manager/dc-a/m1"),
        ("worker", &["--datacenter", "dc-a"], "w1", "onward://worker/dc-a/w1"),
        ("gate", &[], "g1", "onward://gate/g1"),
    ];
    for (role, more, name, identity) in table {
        let made = node(role, more, name);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let folder = folder.path().join(name);
        let tls = PeerTls { cert: folder.join("cert.pem"), key: folder.join("key.pem"), ca: folder.join("ca.pem") };
        assert_eq!(mode(&tls.key), 0o600);
        let found = named(&CertificateDer::from_pem_file(&tls.cert).unwrap());
        assert_eq!(found.map(|peer| peer.to_string()).as_deref(), Some(identity));
        client_config(&tls).unwrap();
        server_config(&tls.cert, &tls.key, Some(&tls.ca)).unwrap();
    }
    for (role, more) in [("manager", &[][..]), ("gate", &["--datacenter", "dc-a"][..])] {
        assert_eq!(node(role, more, "bad").status.code(), Some(2), "{role} {more:?}");
    }
    let again = node("gate", &[], "g1");
    assert!(String::from_utf8_lossy(&again.stderr).contains("is there already"));
}

#[test]
fn a_key_is_made_for_its_owner_only_and_never_replaced() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("cluster.key");
    let out = path.to_str().unwrap();
    assert!(onward(&["certs", "key", "--out", out]).status.success());
    assert_eq!(mode(&path), 0o600);
    let text = fs::read_to_string(&path).unwrap();
    ClusterKeys::parse(&text).unwrap();
    assert!(!onward(&["certs", "key", "--out", out]).status.success());
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
}
