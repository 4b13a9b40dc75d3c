//! The port: who gets in, who is kept out, and what one bad client cannot do to the others.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::rig::{self, PATIENCE, Request, config, lease, poll_body, post, read_reply, start, submit_kind};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper_util::rt::{TokioExecutor, TokioIo};
use onward_node::server::{DrainRule, HttpLimits, Node, NodeConfig, StartError};
use serde_json::json;
use tempfile::tempdir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

async fn start_limited(data: &Path, limits: HttpLimits) -> Node {
    Node::start(NodeConfig { limits, ..config(data) }).await.unwrap()
}

async fn start_draining_for(data: &Path, grace: Duration) -> Node {
    let drain = DrainRule { ready_grace: Some(grace), ..DrainRule::default() };
    Node::start(NodeConfig { drain, listen: own_loopback(), ..config(data) }).await.unwrap()
}

/// An address of this process alone: on the one that all share, somebody else may get a port as soon as it is free.
fn own_loopback() -> SocketAddr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    SocketAddr::from(([127, 64 | high & 63, middle, low], 0))
}

/// All text until the other side closes.
async fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // A reset is a way of closing, too.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("closed in time");
    String::from_utf8_lossy(&bytes).into_owned()
}

async fn is_served(node: &Node) -> bool {
    Request::get("/livez").send(node.address()).await.status == 200
}

#[tokio::test]
async fn foreign_hosts_and_origins_are_kept_out() {
    let data = tempdir().unwrap();
    let names = vec!["jobs.example".to_owned()];
    let node = Node::start(NodeConfig { host_names: names, ..config(data.path()) }).await.unwrap();
    let port = node.address().port();
    let get = |host: &str| Request::get("/status").host(host);
    for host in [format!("localhost:{port}"), format!("127.0.0.1:{port}"), "jobs.example".into()] {
        assert_eq!(get(&host).send(node.address()).await.status, 200, "{host}");
    }
    for host in ["evil.example", "localhost", "127.0.0.1:1", ""] {
        assert_eq!(get(host).send(node.address()).await.code(), (403, "foreign_host".into()), "{host}");
    }
    let own = format!("http://{}", node.address());
    let from = |origin: &str| Request::post("/v1/leases/beat", &json!({ "beats": [] })).header("origin", origin);
    assert_eq!(from(&own).send(node.address()).await.status, 200);
    for origin in ["http://evil.example", "null", "http://127.0.0.1:1", "https://evil.example:443"] {
        assert_eq!(from(origin).send(node.address()).await.code(), (403, "foreign_origin".into()), "{origin}");
    }
    // Probes come from everywhere.
    assert_eq!(Request::get("/readyz").host("10.1.2.3").send(node.address()).await.status, 200);
}

#[tokio::test]
async fn mutations_come_as_json() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    for content_type in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""] {
        let request = Request::post("/v1/leases/beat", &json!({})).header("content-type", content_type);
        assert_eq!(request.send(node.address()).await.code(), (415, "unsupported_media_type".into()), "{content_type}");
    }
    let mut empty = Request::post("/v1/leases/x/release", &json!({}));
    empty.body.clear();
    assert_eq!(empty.send(node.address()).await.code(), (404, "unknown_attempt".into()));
    empty.headers.clear();
    assert_eq!(empty.send(node.address()).await.code(), (415, "unsupported_media_type".into()));
}

#[tokio::test]
async fn what_is_not_there_is_a_problem_too() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    for path in ["/nothing", "/v1/nothing", "/v1/leases/x/nothing"] {
        assert_eq!(Request::get(path).send(node.address()).await.code(), (404, "unknown_path".into()), "{path}");
    }
    assert_eq!(Request::get("/v1/leases").send(node.address()).await.code(), (405, "wrong_method".into()));
    assert_eq!(post(&node, "/livez", json!({})).await.code(), (405, "wrong_method".into()));
    assert_eq!(post(&node, "/v1/leases", json!([])).await.code(), (400, "invalid".into()));
}

#[tokio::test]
async fn a_panic_in_a_handler_is_one_answer_of_500() {
    let data = tempdir().unwrap();
    async fn broken() {
        panic!("as a bug would");
    }
    let more = |_: &_| axum::Router::new().route("/broken", axum::routing::get(broken));
    let node = Node::start_with(config(data.path()), more).await.unwrap();
    assert_eq!(Request::get("/broken").send(node.address()).await.code(), (500, "internal".into()));
    assert!(is_served(&node).await);
}

#[tokio::test]
async fn a_job_that_has_left_memory_is_not_gone_from_the_status() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let status = async || Request::get("/status").send(node.address()).await.json()["manager"].take();
    assert_eq!(status().await["archived_jobs"], json!(0));
    submit_kind(node.engine(), "k").await;
    let leased = lease(&node, poll_body("1")).await;
    let counts = status().await;
    assert_eq!((&counts["jobs"], &counts["open_jobs"], &counts["archived_jobs"]), (&json!(1), &json!(1), &json!(0)));
    post(&node, &rig::verb(&leased[0], "succeed"), json!({})).await;
    rig::until(async || status().await["archived_jobs"] == 1 && status().await["jobs"] == 0).await;
    let stats = Request::get("/v1/stats").send(node.address()).await.json();
    assert_eq!((&stats["open_jobs"], &stats["archived_jobs"]), (&json!(0), &json!(1)));
}

#[tokio::test]
async fn pages_say_how_the_node_is() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    submit_kind(node.engine(), "k").await;
    let status = Request::get("/status").send(node.address()).await.json();
    assert_eq!(status["listen"], node.address().to_string());
    assert_eq!(status["data"], data.path().file_name().unwrap().to_str().unwrap());
    assert_eq!((&status["manager"]["seat"], &status["manager"]["jobs"]), (&json!("serving"), &json!(1)));
    assert!(status["manager"]["term"].as_u64().unwrap() >= 1);
    assert_eq!(status["trouble"], json!(null));
    let shown = |one: &serde_json::Value| format!("{} {}", one["name"].as_str().unwrap(), one["critical"]);
    let loops: Vec<_> = status["loops"].as_array().unwrap().iter().map(shown).collect();
    assert_eq!(
        loops,
        ["machine true", "committer false", "schedules true", "snapshots false", "archive false", "acceptor true"]
    );
    assert!(status["loops"].as_array().unwrap().iter().all(|one| one["state"] == "healthy"), "{status}");
    post(&node, "/v1/leases/x/beat", json!({})).await;
    let metrics = Request::get("/metrics").send(node.address()).await;
    let text = String::from_utf8(metrics.body).unwrap();
    for line in ["onward_ready 1", "onward_jobs 1", "onward_refusals_total{code=\"stale_attempt\"} 0"] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
    let openapi = Request::get("/openapi.json").send(node.address()).await.json();
    assert!(openapi["paths"]["/v1/leases/{receipt}/beat"]["post"].is_object());
    assert!(openapi["components"]["schemas"]["Problem"].is_object());
}

#[tokio::test]
async fn slow_and_silent_clients_are_cut_off() {
    let data = tempdir().unwrap();
    let short = Duration::from_millis(200);
    let node = start_limited(data.path(), HttpLimits { header_read: short, ..HttpLimits::default() }).await;
    for begun in ["", "P", "PRI * HTTP/2.0\r\n", "GET /livez HTTP/1.1\r\nhost: x\r\n"] {
        let mut stream = TcpStream::connect(node.address()).await.unwrap();
        stream.write_all(begun.as_bytes()).await.unwrap();
        assert_eq!(rest(&mut stream).await, "", "{begun:?}");
    }
    // Whoever is slow here is cut off too, so that the one who asks may have to ask again.
    rig::until(async || {
        let mut stream = TcpStream::connect(node.address()).await.unwrap();
        let _ = stream.write_all(Request::get("/livez").text(node.address()).as_bytes()).await;
        rest(&mut stream).await.starts_with("HTTP/1.1 200")
    })
    .await;
    node.shutdown(PATIENCE).await;
    // Headers have all the time that they need, so that only the body can be late.
    let limits = HttpLimits { header_read: PATIENCE, body_read: short, ..HttpLimits::default() };
    let node = start_limited(data.path(), limits).await;
    let mut stream = TcpStream::connect(node.address()).await.unwrap();
    let request = Request::post("/v1/leases/beat", &json!({ "beats": [] })).text(node.address());
    stream.write_all(&request.as_bytes()[..request.len() - 1]).await.unwrap();
    assert_eq!(read_reply(&mut stream).await.code(), (408, "body_timeout".into()));
    assert!(is_served(&node).await);
}

#[tokio::test]
async fn garbage_closes_its_own_connection_only() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let mut good = TcpStream::connect(node.address()).await.unwrap();
    let alive = Request::get("/livez");
    assert_eq!(alive.send_on(&mut good, node.address()).await.status, 200);
    let http2_then_garbage = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &[0xff; 64]].concat();
    for garbage in [&[0u8; 64][..], &[0x16, 3, 1, 2, 0, 1, 0, 1], b"\xff\xfe\r\n\r\n", &http2_then_garbage] {
        let mut stream = TcpStream::connect(node.address()).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        stream.write_all(b"\r\n\r\n").await.unwrap();
        rest(&mut stream).await;
    }
    assert_eq!(alive.send_on(&mut good, node.address()).await.status, 200);
}

#[tokio::test]
async fn too_much_is_refused() {
    let data = tempdir().unwrap();
    let node = start_limited(data.path(), HttpLimits { body_bytes: 100, ..HttpLimits::default() }).await;
    // Told in advance, and found out on the way.
    let told = Request::post("/v1/leases/beat", &json!({ "beats": ["x".repeat(100)] }));
    assert_eq!(told.send(node.address()).await.code(), (413, "too_large".into()));
    let mut stream = TcpStream::connect(node.address()).await.unwrap();
    let head = format!(
        "POST /v1/leases/beat HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n",
        node.address()
    );
    stream.write_all(format!("{head}65\r\n{}\r\n0\r\n\r\n", " ".repeat(0x65)).as_bytes()).await.unwrap();
    assert_eq!(read_reply(&mut stream).await.code(), (413, "too_large".into()));
}

#[tokio::test]
async fn one_connection_too_many_is_told_so() {
    let data = tempdir().unwrap();
    let node = start_limited(data.path(), HttpLimits { connections: 2, ..HttpLimits::default() }).await;
    let mut first = TcpStream::connect(node.address()).await.unwrap();
    let mut second = TcpStream::connect(node.address()).await.unwrap();
    let alive = Request::get("/livez");
    assert_eq!(alive.send_on(&mut first, node.address()).await.status, 200);
    assert_eq!(alive.send_on(&mut second, node.address()).await.status, 200);
    let mut third = TcpStream::connect(node.address()).await.unwrap();
    assert_eq!(read_reply(&mut third).await.code(), (503, "overloaded".into()));
    let metrics = Request::get("/metrics").send_on(&mut first, node.address()).await;
    assert!(String::from_utf8_lossy(&metrics.body).contains("onward_http_connections_refused_total 1\n"));
    drop(second);
    rig::until(async || {
        let mut stream = TcpStream::connect(node.address()).await.unwrap();
        // It may be closed on us while we write, as long as the place is not free yet.
        stream.write_all(alive.text(node.address()).as_bytes()).await.is_ok() && rest_starts_with_200(&mut stream).await
    })
    .await;
}

async fn rest_starts_with_200(stream: &mut TcpStream) -> bool {
    let mut bytes = [0; 12];
    stream.read_exact(&mut bytes).await.is_ok() && bytes == *b"HTTP/1.1 200"
}

#[tokio::test]
async fn beyond_loopback_needs_tls_and_tokens_or_the_word() {
    let data = tempdir().unwrap();
    let open = NodeConfig { listen: SocketAddr::from(([0, 0, 0, 0], 0)), ..config(data.path()) };
    let (cert, key) = certificate(data.path());
    let tls = Some((cert.clone(), key));
    for refused in [
        open.clone(),
        NodeConfig { require_tokens: true, ..open.clone() },
        NodeConfig { tls: tls.clone(), ..open.clone() },
    ] {
        let error = Node::start(refused).await.unwrap_err();
        assert!(matches!(error, StartError::Exposed { .. }) && error.to_string().contains("--insecure"), "{error}");
    }
    drop(Node::start(NodeConfig { insecure: true, ..open.clone() }).await.unwrap());
    drop(Node::start(NodeConfig { tls, require_tokens: true, ..open.clone() }).await.unwrap());
    let wrong = NodeConfig { tls: Some((cert.clone(), cert)), require_tokens: true, ..open };
    assert!(matches!(Node::start(wrong).await.unwrap_err(), StartError::Tls { .. }));
}

#[tokio::test]
async fn limits_out_of_range_do_not_start() {
    let data = tempdir().unwrap();
    let limits = HttpLimits { connections: 0, body_read: Duration::ZERO, ..HttpLimits::default() };
    let error = Node::start(NodeConfig { limits, ..config(data.path()) }).await.unwrap_err();
    let told = "`http.connections` is 0; it must be from 1 to 1000000; \
                `http.body_read` is 0ns; it must be from 1ms to 3600s";
    assert_eq!(error.to_string(), told);
}

#[tokio::test]
async fn a_second_node_on_the_same_folder_is_refused() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let error = Node::start(config(data.path())).await.unwrap_err();
    assert!(error.to_string().contains("another process has the data folder"), "{error}");
    let taken = NodeConfig { listen: node.address(), ..config(&data.path().join("other")) };
    assert!(matches!(Node::start(taken).await.unwrap_err(), StartError::Listen { .. }));
    node.shutdown(PATIENCE).await;
    start(data.path()).await;
}

#[tokio::test]
async fn a_node_that_leaves_says_so_to_new_connections_and_serves_them_for_a_while() {
    let data = tempdir().unwrap();
    let node = start_draining_for(data.path(), Duration::from_secs(3_600)).await;
    let (address, engine) = (node.address(), node.engine().clone());
    assert_eq!(Request::get("/readyz").send(address).await.status, 200);
    let leaving = tokio::spawn(node.shutdown(PATIENCE));
    rig::until(async || Request::get("/readyz").send(address).await.status == 503).await;
    let told = Request::get("/readyz").send(address).await.json();
    assert_eq!(told["reason"], "the node is draining");
    let status = Request::get("/status").send(address).await.json();
    assert_eq!(status["draining"], json!(true));
    let judged = (&status["manager"]["verdict"], &status["manager"]["reason"]);
    assert_eq!(judged, (&json!("busy"), &json!("not_accepting")), "no balancer is to send more");
    assert_eq!(Request::get("/livez").send(address).await.status, 200);
    let job = json!({ "kind": "k" });
    assert_eq!(Request::post("/v1/jobs", &job).send(address).await.status, 201, "whoever was routed here is served");
    let leased = Request::post("/v1/leases", &poll_body("1")).send(address).await.json();
    assert_eq!(leased["leases"].as_array().unwrap().len(), 1);
    // Stopped at once, as by a second signal.
    leaving.abort();
    assert!(leaving.await.unwrap_err().is_cancelled());
    assert!(TcpStream::connect(address).await.is_err() || engine.read(|_| ()).await.is_err());
}

#[tokio::test]
async fn the_grace_is_over_at_its_end() {
    let data = tempdir().unwrap();
    let node = start_draining_for(data.path(), Duration::from_millis(50)).await;
    let address = node.address();
    timeout(PATIENCE, node.shutdown(PATIENCE)).await.expect("nothing is left to wait for");
    assert!(TcpStream::connect(address).await.is_err());
    let grace_on = |listen: &str| NodeConfig::new(listen.parse().unwrap(), data.path()).effective_ready_grace();
    assert_eq!(grace_on("127.0.0.1:0"), Duration::ZERO);
    assert_eq!(grace_on("[::1]:0"), Duration::ZERO);
    assert_eq!(grace_on("0.0.0.0:0"), Duration::from_secs(5));
}

#[tokio::test]
async fn a_node_whose_machine_has_died_is_not_alive() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    assert!(is_served(&node).await);
    assert!(node.engine().read(|_| panic!("as a bug would")).await.is_err());
    rig::until(async || !is_served(&node).await).await;
    let told = Request::get("/livez").send(node.address()).await;
    assert_eq!(told.status, 503);
    assert!(told.json()["reason"].as_str().unwrap().contains("loop `machine` is dead"), "{:?}", told.json());
    assert_eq!(Request::get("/readyz").send(node.address()).await.status, 503);
}

#[tokio::test]
async fn a_drain_answers_polls_and_lets_requests_finish() {
    let data = tempdir().unwrap();
    let node = start_draining_for(data.path(), Duration::ZERO).await;
    let address = node.address();
    let waiting = tokio::spawn(async move { Request::post("/v1/leases", &poll_body("1")).send(address).await });
    let engine = node.engine().clone();
    rig::until(async || engine.read(|view| view.manager.workers().any(|worker| worker.free > 0)).await.unwrap()).await;
    let mut idle = TcpStream::connect(address).await.unwrap();
    assert_eq!(Request::get("/livez").send_on(&mut idle, address).await.status, 200);
    timeout(PATIENCE, node.shutdown(Duration::from_secs(3_600))).await.expect("nothing is left to wait for");
    assert_eq!(waiting.await.unwrap().json(), json!({ "leases": [] }));
    assert_eq!(rest(&mut idle).await, "");
    assert!(TcpStream::connect(address).await.is_err());
}

/// A certificate for localhost that signs itself, and its key, as PEM files.
fn certificate(folder: &Path) -> (PathBuf, PathBuf) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let pem = |label: &str, der: &[u8]| {
        let text = STANDARD.encode(der);
        let lines: Vec<&str> = text.as_bytes().chunks(64).map(|line| str::from_utf8(line).unwrap()).collect();
        format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
    };
    let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    fs::write(&cert, pem("CERTIFICATE", made.cert.der())).unwrap();
    fs::write(&key, pem("PRIVATE KEY", &made.signing_key.serialize_der())).unwrap();
    (cert, key)
}

#[tokio::test]
async fn tls_serves_both_versions_and_nothing_in_the_clear() {
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    let data = tempdir().unwrap();
    let (cert, key) = certificate(data.path());
    let node = Node::start(NodeConfig { tls: Some((cert.clone(), key)), ..config(data.path()) }).await.unwrap();
    assert!(node.url().starts_with("https://127.0.0.1:"));
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&cert).unwrap()).unwrap();
    let mut client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    for (offered, agreed) in
        [(vec![], None), (vec![b"http/1.1".to_vec()], Some("http/1.1")), (vec![b"h2".to_vec()], Some("h2"))]
    {
        client.alpn_protocols = offered;
        let stream = TcpStream::connect(node.address()).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = TlsConnector::from(Arc::new(client.clone())).connect(name, stream).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), agreed.map(str::as_bytes));
        if agreed == Some("h2") {
            stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
            let mut frame = [0; 9];
            stream.read_exact(&mut frame).await.unwrap();
            assert_eq!(frame[3], 4, "the server's settings come first");
        } else {
            assert_eq!(Request::get("/livez").send_on(&mut stream, node.address()).await.status, 200);
        }
    }
    let mut clear = TcpStream::connect(node.address()).await.unwrap();
    clear.write_all(Request::get("/livez").text(node.address()).as_bytes()).await.unwrap();
    assert!(!rest(&mut clear).await.contains("200"));
}

#[tokio::test]
async fn many_requests_share_a_connection() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    submit_kind(node.engine(), "k").await;
    let held = lease(&node, poll_body("1")).await.pop().unwrap();
    let mut stream = TcpStream::connect(node.address()).await.unwrap();
    for n in 1..=50 {
        let beat = Request::post(&rig::verb(&held, "beat"), &json!({ "watermark": n }));
        assert_eq!(beat.send_on(&mut stream, node.address()).await.status, 200);
    }
}

#[tokio::test]
async fn http2_without_tls_is_understood_and_guarded_alike() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let stream = TcpStream::connect(node.address()).await.unwrap();
    let (mut client, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    for (host, status) in [(node.address().to_string(), 200), ("evil.example".to_owned(), 403)] {
        let request =
            axum::http::Request::get(format!("http://{host}/status")).body(axum::body::Body::empty()).unwrap();
        assert_eq!(client.send_request(request).await.unwrap().status().as_u16(), status, "{host}");
    }
    drop(client);
    connection.await.unwrap().unwrap();
}
