//! Nodes that know each other: by certificate, and by gossip.

mod rig;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::routing::get;
use axum::{Extension, Router};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use onward_core::fence::Term;
use onward_gossip::{ClusterKey, ClusterKeys, GossipRule, NodeLabel, Role};
use onward_node::api::access::ClientConnection;
use onward_node::cluster::leader::LeaderView;
use onward_node::gossip::GossipConfig;
use onward_node::peer::PeerIdentity;
use onward_node::peer::certificate::{PeerTls, client_config};
use onward_node::server::{HttpLimits, Node, NodeConfig};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use rig::{PATIENCE, Request, config, until};
use serde_json::Value;
use tempfile::tempdir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

fn label(text: &str) -> NodeLabel {
    NodeLabel::new(text).unwrap()
}

fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<&str> = text.as_bytes().chunks(64).map(|line| str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

/// An authority as `onward certs ca` makes it.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(DnType::CommonName, "an authority");
        let signed = params.self_signed(&key).unwrap();
        Self { pem: pem("CERTIFICATE", signed.der()), issuer: Issuer::new(params, key) }
    }

    /// A certificate for localhost with these URIs in it.
    fn sign(&self, uris: &[&str], folder: &Path) -> PeerTls {
        self.sign_for(uris, folder, None)
    }

    /// Good for so long from now; for many years if that is not said.
    fn sign_for(&self, uris: &[&str], folder: &Path, good_for: Option<Duration>) -> PeerTls {
        fs::create_dir_all(folder).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let uris = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap()));
        params.subject_alt_names.extend(uris);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        if let Some(good_for) = good_for {
            params.not_after = (SystemTime::now() + good_for).into();
        }
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        let tls = PeerTls { cert: folder.join("cert.pem"), key: folder.join("key.pem"), ca: folder.join("ca.pem") };
        fs::write(&tls.cert, pem("CERTIFICATE", signed.der())).unwrap();
        fs::write(&tls.key, pem("PRIVATE KEY", &key.serialize_der())).unwrap();
        fs::write(&tls.ca, &self.pem).unwrap();
        tls
    }
}

async fn who(Extension(connection): Extension<ClientConnection>) -> String {
    connection.identity().map_or_else(|| "nobody".into(), PeerIdentity::to_string)
}

/// Whom the node takes the caller for; or how the handshake failed.
async fn taken_for(node: &Node, mut client: ClientConfig) -> Result<String, String> {
    client.alpn_protocols = vec![b"http/1.1".to_vec()];
    let stream = TcpStream::connect(node.address()).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let connected = TlsConnector::from(Arc::new(client)).connect(name, stream).await;
    let mut stream = connected.map_err(|error| error.to_string())?;
    // A certificate that the server refuses is told after the client's side of the handshake has ended.
    let request = Request::get("/who").header("connection", "close").text(node.address());
    stream.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
    let mut reply = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut reply)).await.unwrap().map_err(|error| error.to_string())?;
    let (_, body) = reply.split_once("\r\n\r\n").ok_or("no answer")?;
    Ok(body.to_owned())
}

#[tokio::test]
async fn a_node_is_who_its_certificate_says() {
    let folder = tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let authority = Authority::new();
    let server = authority.sign(&["onward://manager/dc-a/m1"], &at("m1"));
    let config = NodeConfig {
        tls: Some((server.cert.clone(), server.key.clone())),
        tls_ca: Some(server.ca.clone()),
        ..config(&at("data"))
    };
    let node = Node::start_with(config, |_| Router::new().route("/who", get(who))).await.unwrap();

    let table: [(&str, &[&str], &str); 6] = [
        ("manager", &["onward://manager/dc-a/m2"], "onward://manager/dc-a/m2"),
        ("worker", &["onward://worker/dc-a/w1"], "onward://worker/dc-a/w1"),
        ("gate", &["onward://gate/g1"], "onward://gate/g1"),
        ("unnamed", &[], "nobody"),
        ("other", &["https://example.org/manager/dc-a/m2"], "nobody"),
        ("twofold", &["onward://worker/dc-a/w1", "onward://manager/dc-a/m2"], "nobody"),
    ];
    for (name, uris, expected) in table {
        let client = client_config(&authority.sign(uris, &at(name))).unwrap();
        assert_eq!(taken_for(&node, client).await.as_deref(), Ok(expected), "{name}");
    }
    let worker: PeerIdentity = "onward://worker/dc-a/w1".parse().unwrap();
    assert!(worker.need_role(Role::Manager).is_err() && worker.speaks_for(&label("dc-a")).is_err());

    // Signed by somebody else: neither side believes the other.
    let stranger = Authority::new();
    let theirs = stranger.sign(&["onward://manager/dc-a/m2"], &at("stranger"));
    assert!(taken_for(&node, client_config(&theirs).unwrap()).await.is_err(), "the client refuses the server");
    let believing = PeerTls { ca: server.ca.clone(), ..theirs };
    assert!(taken_for(&node, client_config(&believing).unwrap()).await.is_err(), "the server refuses the client");
}

/// Whoever keeps a connection open is somebody for no longer than its certificate says.
#[tokio::test]
async fn a_connection_ends_with_the_certificate_that_it_was_opened_with() {
    const GOOD_FOR: Duration = Duration::from_secs(2);
    let folder = tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let authority = Authority::new();
    let server = authority.sign(&["onward://manager/dc-a/m1"], &at("m1"));
    let plain = config(&at("data"));
    let config = NodeConfig {
        tls: Some((server.cert.clone(), server.key.clone())),
        tls_ca: Some(server.ca.clone()),
        // Else it would end for want of a request.
        limits: HttpLimits { header_read: Duration::from_secs(3_600), ..plain.limits.clone() },
        ..plain
    };
    let node = Node::start(config).await.unwrap();
    let ask = async |good_for| {
        let tls = authority.sign_for(&["onward://worker/dc-a/w1"], &at("w1"), good_for);
        let mut client = client_config(&tls).unwrap();
        client.alpn_protocols = vec![b"http/1.1".to_vec()];
        let stream = TcpStream::connect(node.address()).await.ok()?;
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = TlsConnector::from(Arc::new(client)).connect(name, stream).await.ok()?;
        stream.write_all(Request::get("/livez").text(node.address()).as_bytes()).await.ok()?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.ok()?;
        (answer == *b"HTTP/1.1 200").then_some(stream)
    };
    let mut lasting = ask(None).await.unwrap();
    // On a busy computer it may have expired before it was shown.
    let mut expiring = loop {
        if let Some(stream) = ask(Some(GOOD_FOR)).await {
            break stream;
        }
    };
    let mut rest = Vec::new();
    let ended = timeout(PATIENCE, expiring.read_to_end(&mut rest)).await;
    ended.expect("it ends with the certificate").ok();
    lasting.write_all(Request::get("/livez").text(node.address()).as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    while seen.windows(12).filter(|text| text == b"HTTP/1.1 200").count() < 1 {
        assert_ne!(lasting.read_buf(&mut seen).await.unwrap(), 0, "the other goes on");
    }
}

fn gossip(name: &str, incarnation: u64, peers: &[SocketAddr]) -> GossipConfig {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let ms = Duration::from_millis;
    GossipConfig {
        keys: ClusterKeys::new(ClusterKey::new([1; 32]), None),
        bind: loopback,
        advertise: loopback,
        name: label(name),
        role: Role::Manager,
        datacenter: Some(label("dc-a")),
        incarnation,
        peers: peers.to_vec(),
        rule: GossipRule {
            probe_every: ms(200),
            answer_within: ms(100),
            suspect_for: ms(1_000),
            join_every: ms(200),
            ..GossipRule::default()
        },
    }
}

/// Calls to a manager that lost its database go to the one that says that it leads.
#[tokio::test]
async fn a_manager_that_cannot_see_the_seat_learns_from_gossip_who_leads() {
    let folder = tempdir().unwrap();
    let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let with = |name: &str, peers: &[SocketAddr]| {
        let listen = free();
        let gossip = Some(gossip(name, 1, peers));
        NodeConfig { listen, advertise: Some(listen.to_string()), gossip, ..config(&folder.path().join(name)) }
    };
    let leader = Node::start(with("m1", &[])).await.unwrap();
    let apart = Node::start(with("m2", &[leader.address()])).await.unwrap();
    apart.engine().leader_view().send_replace(LeaderView::CutOff { term: Term::new(1) });
    until(async || {
        let answer = Request::get("/v1/jobs").send(apart.address()).await;
        answer.head.contains(&format!("onward-leader: {}", leader.address()))
    })
    .await;
    let submitted = Request::post("/v1/jobs", &serde_json::json!({ "kind": "k" })).send(apart.address()).await;
    assert_eq!(submitted.status, 201);
    assert_eq!(leader.engine().read(|view| view.manager.view().jobs).await, Ok(1));
}

async fn nodes(node: &Node) -> Value {
    Request::get("/v1/nodes").send(node.address()).await.json()["nodes"].clone()
}

#[tokio::test]
async fn managers_stand_among_the_nodes_with_their_verdicts() {
    let folder = tempdir().unwrap();
    let with = |name: &str, peers: &[SocketAddr]| NodeConfig {
        gossip: Some(gossip(name, 1, peers)),
        ..config(&folder.path().join(name))
    };
    let first = Node::start(with("m1", &[])).await.unwrap();
    let second = Node::start(with("m2", &[first.address()])).await.unwrap();
    assert_eq!(first.gossip().unwrap().address(), first.address(), "one number for both ports");
    until(async || {
        let seen = nodes(&first).await;
        seen.as_array().unwrap().len() == 2 && seen[1]["gossip"]["leads"] == true
    })
    .await;
    let seen = nodes(&first).await;
    let row =
        |at: usize| ["id", "role", "verdict", "action", "reason", "datacenter"].map(|field| seen[at][field].clone());
    assert_eq!(row(0), ["m1", "manager", "busy", "drain", "no_worker", "dc-a"].map(Value::from));
    assert_eq!(row(1), ["m2", "manager", "busy", "drain", "no_worker", "dc-a"].map(Value::from));
    assert_eq!(seen[1]["signals"]["live"], true);
    assert_eq!(seen[1]["address"], second.address().to_string());

    let one = Request::get("/v1/nodes/m2").send(first.address()).await;
    assert_eq!((one.status, one.json()["gossip"]["state"].clone()), (200, "alive".into()));
    let metrics = Request::get("/metrics").send(first.address()).await;
    let metrics = String::from_utf8(metrics.body).unwrap();
    assert!(metrics.contains("onward_gossip_members{state=\"alive\"} 1"), "{metrics}");
    assert!(metrics.contains("onward_gossip_dropped_total{reason=\"replayed\"} 0"), "{metrics}");

    // Shut down it says goodbye; killed it is down.
    second.shutdown(Duration::from_secs(5)).await;
    until(async || nodes(&first).await[1]["gossip"]["state"] == "left").await;
    let third = Node::start(with("m3", &[first.address()])).await.unwrap();
    until(async || nodes(&first).await.as_array().unwrap().len() == 3).await;
    drop(third);
    until(async || {
        let seen = nodes(&first).await;
        let third = seen.as_array().unwrap().iter().find(|node| node["id"] == "m3").unwrap().clone();
        third["verdict"] == "suspect" && third["reason"] == "missed_probes" && third["action"] == "evict"
    })
    .await;
}
