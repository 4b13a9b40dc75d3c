//! Whatever comes in at the port, the answer says what is wrong, nothing is half done, and the node serves on.

mod support;

use std::io::ErrorKind;

use serde_json::json;
use support::http::{Client, LATER, Reply};
use support::{Dice, Node, PATIENCE};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

const JOB: &str = r#"{"kind":"k"}"#;
const UNKNOWN: &str = "0190b2c4-6f1e-7d3a-9a55-2f1c5b7e8d10";

/// A request that must be refused, and how.
struct Bad {
    what: String,
    line: String,
    headers: Vec<(&'static str, String)>,
    body: String,
    status: u16,
    code: &'static str,
}

impl Bad {
    fn new(what: &str, line: &str, body: impl Into<String>, status: u16, code: &'static str) -> Self {
        let headers = vec![("content-type", "application/json".into())];
        Self { what: what.into(), line: line.into(), headers, body: body.into(), status, code }
    }

    fn job(what: &str, body: impl Into<String>) -> Self {
        Self::new(what, "POST /v1/jobs", body, 400, "invalid")
    }

    fn poll(what: &str, more: &str) -> Self {
        let body = format!(r#"{{"worker_id":"w","incarnation":"1","kinds":["k"],{more}}}"#);
        Self::new(what, "POST /v1/leases", body, 400, "invalid")
    }

    fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.retain(|(known, _)| *known != name);
        self.headers.push((name, value.into()));
        self
    }

    fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| *known != name);
        self
    }

    async fn send(&self, node: &Node) -> Reply {
        let mut text = format!("{} HTTP/1.1\r\n", self.line);
        if !self.headers.iter().any(|(name, _)| *name == "host") {
            text.push_str(&format!("host: {}\r\n", node.address));
        }
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        if !self.headers.iter().any(|(name, _)| *name == "content-length") {
            text.push_str(&format!("content-length: {}\r\n", self.body.len()));
        }
        text.push_str(&format!("\r\n{}", self.body));
        loop {
            let reply = Client::new(node.address).exchange(text.as_bytes()).await;
            let reply = reply.unwrap_or_else(|error| panic!("{}: no answer: {error}", self.what));
            // A busy computer is not what this is about.
            if reply.status != 503 {
                return reply;
            }
            sleep(LATER).await;
        }
    }
}

fn listed(count: usize, item: &str) -> String {
    let mut list = String::with_capacity(count * (item.len() + 1) + 2);
    list.push('[');
    for at in 0..count {
        if at > 0 {
            list.push(',');
        }
        list.push_str(item);
    }
    list.push(']');
    list
}

fn submissions() -> Vec<Bad> {
    let mib2 = "x".repeat(2 << 20);
    let mut all = vec![
        Bad::job("no JSON", "{"),
        Bad::job("two values", r#"{"kind":"k"}{"kind":"k"}"#),
        Bad::job("no object", "[]"),
        Bad::job("no text in it", "\u{0}\u{1}\u{2}"),
        Bad::job("nothing", "{}"),
        Bad::job("a kind that is a number", r#"{"kind":1}"#),
        Bad::job("a kind that is empty", r#"{"kind":""}"#),
        Bad::job("a kind with a control character", r#"{"kind":"a\u0000b"}"#),
        Bad::job("a kind that is too long", format!(r#"{{"kind":"{}"}}"#, "k".repeat(10_000))),
        Bad::job("a priority that is text", r#"{"kind":"k","priority":"high"}"#),
        Bad::job("a priority out of range", r#"{"kind":"k","priority":101}"#),
        Bad::job("a field that is not there", r#"{"kind":"k","prioritty":1}"#),
        Bad::job("a field twice", r#"{"kind":"k","kind":"k"}"#),
        Bad::job("a field too many inside", r#"{"kind":"k","retry":{"max":1}}"#),
        Bad::job("kind and workflows", r#"{"kind":"k","workflows":[{"kind":"k"}]}"#),
        Bad::job("no workflows", r#"{"workflows":[]}"#),
        Bad::new(
            "a payload of 2 MiB",
            "POST /v1/jobs",
            format!(r#"{{"kind":"k","payload":"{mib2}"}}"#),
            413,
            "too_large",
        ),
        Bad::job("base64 that is none", r#"{"kind":"k","payload_base64":"%%%"}"#),
        Bad::job(
            "a cycle",
            r#"{"workflows":[{"name":"a","kind":"k","after":["b"]},{"name":"b","kind":"k","after":["a"]}]}"#,
        ),
        Bad::job("after itself", r#"{"workflows":[{"name":"a","kind":"k","after":["a"]}]}"#),
        Bad::job("an unknown name", r#"{"workflows":[{"name":"a","kind":"k","after":["b"]}]}"#),
        Bad::job("a name twice", r#"{"workflows":[{"name":"a","kind":"k"},{"name":"a","kind":"k"}]}"#),
        Bad::job("a million tags", format!(r#"{{"kind":"k","tags":{}}}"#, listed(1_000_000, r#""t""#))),
        Bad::job(
            "a million names",
            format!(r#"{{"workflows":[{{"name":"a","kind":"k","after":{}}}]}}"#, listed(1_000_000, r#""b""#)),
        ),
        Bad::new(
            "a million jobs",
            "POST /v1/jobs/batch",
            format!(r#"{{"jobs":{}}}"#, listed(1_000_000, JOB)),
            400,
            "invalid",
        ),
        Bad::new(
            "a batch with one that is wrong",
            "POST /v1/jobs/batch",
            r#"{"jobs":[{"kind":"k"},{"kind":""}]}"#,
            400,
            "invalid",
        ),
        Bad::new(
            "a command without a token",
            "POST /v1/jobs",
            r#"{"kind":"exec","payload":{"argv":["true"]}}"#,
            403,
            "exec_needs_token",
        ),
        Bad::new("more than any body may have", "POST /v1/jobs", "", 413, "too_large")
            .header("content-length", "17000000"),
        Bad::job("depth", format!(r#"{{"kind":"k","tags":{}{}}}"#, "[".repeat(200_000), "]".repeat(200_000))),
        Bad::job("two keys that differ", r#"{"kind":"k","idempotency_key":"a"}"#).header("idempotency-key", "b"),
    ];
    for field in ["timeout_s", "stuck_after_s", "delay_s", "max_extension_s", "retain_s"] {
        for value in ["-1", "1e300", "NaN", "Infinity", "\"1h\"", "1e999", "-1e-9"] {
            all.push(Bad::job(&format!("{field} {value}"), format!(r#"{{"kind":"k","{field}":{value}}}"#)));
        }
    }
    for value in ["\"yesterday\"", "-1", "{}", "\"2026-13-01T00:00:00Z\"", "99999999999999999999"] {
        all.push(Bad::job(&format!("run_at {value}"), format!(r#"{{"kind":"k","run_at":{value}}}"#)));
    }
    all
}

fn others() -> Vec<Bad> {
    let forbidden = |what: &str, code| Bad::new(what, "POST /v1/jobs", JOB, 403, code);
    let untyped = |what: &str| Bad::new(what, "POST /v1/jobs", JOB, 415, "unsupported_media_type");
    let unauthorized = |what: &str| Bad::new(what, "POST /v1/jobs", JOB, 401, "unauthorized");
    let mut all = vec![
        Bad::new("an unknown job", &format!("GET /v1/jobs/{UNKNOWN}"), "", 404, "unknown_job"),
        Bad::new("an unknown ledger", &format!("GET /v1/jobs/{UNKNOWN}/ledger"), "", 404, "unknown_job"),
        Bad::new("cancel what is unknown", &format!("POST /v1/jobs/{UNKNOWN}/cancel"), "{}", 404, "unknown_job"),
        Bad::new(
            "retry what is unknown",
            &format!("POST /v1/jobs/{UNKNOWN}/retry"),
            r#"{"request_id":"r"}"#,
            404,
            "unknown_job",
        ),
        Bad::new("an unknown receipt", "POST /v1/leases/x/succeed", "{}", 404, "unknown_attempt"),
        Bad::new("an unknown path", "GET /v1/nothing", "", 404, "unknown_path"),
        Bad::new("a wrong method", "PUT /v1/jobs", "{}", 405, "wrong_method"),
        Bad::new("a wrong state", "GET /v1/jobs?state=sleeping", "", 400, "invalid"),
        Bad::new("a wrong cursor", "GET /v1/jobs?cursor=x", "", 400, "invalid"),
        Bad::new("a wrong limit", "GET /v1/jobs?limit=1000000000", "", 400, "invalid"),
        Bad::new("an unknown parameter", "GET /v1/jobs?colour=red", "", 400, "invalid"),
        Bad::poll("a lease too short", r#""lease_s":0.5"#),
        Bad::poll("a lease too long", r#""lease_s":43201"#),
        Bad::poll("a wait too long", r#""wait_s":61"#),
        Bad::poll("a wait below zero", r#""wait_s":-1"#),
        Bad::poll("a wait that is no number", r#""wait_s":NaN"#),
        Bad::poll("no leases at all", r#""max":0"#),
        Bad::poll("too many leases", r#""max":1001"#),
        Bad::poll("no queue", r#""queues":[]"#),
        forbidden("a foreign host", "foreign_host").header("host", "evil.example"),
        forbidden("a foreign origin", "foreign_origin").header("origin", "https://evil.example"),
        forbidden("an origin that is null", "foreign_origin").header("origin", "null"),
        unauthorized("a wrong token").header("authorization", "Bearer onw_wrong"),
        unauthorized("a wrong scheme").header("authorization", "Basic b253Og=="),
        untyped("no content type").without("content-type"),
        untyped("a form").header("content-type", "application/x-www-form-urlencoded"),
        untyped("plain text").header("content-type", "text/plain"),
    ];
    all.push(Bad::poll("a million queues", &format!(r#""queues":{}"#, listed(1_000_000, r#""q""#))));
    for id in ["x", "..%2f..%2fetc%2fpasswd", "%00", "01a1"] {
        all.push(Bad::new(&format!("the id {id}"), &format!("GET /v1/jobs/{id}"), "", 404, "unknown_job"));
    }
    all
}

/// How many jobs are listed, and how many are open.
async fn standing(client: &mut Client) -> (usize, u64) {
    let jobs = client.get("/v1/jobs?limit=1000").await.json()["jobs"].as_array().unwrap().len();
    (jobs, client.get("/v1/stats").await.json()["open_jobs"].as_u64().unwrap())
}

#[tokio::test]
async fn what_is_wrong_is_said_and_nothing_is_half_done() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(folder.path());
    let mut client = Client::new(node.address);
    assert_eq!(client.post("/v1/jobs", &json!({ "kind": "other" })).await.status, 201);
    let mut wrong = Vec::new();
    for bad in submissions().into_iter().chain(others()) {
        let reply = bad.send(&node).await;
        let as_it_must = (reply.status, reply.code().as_str()) == (bad.status, bad.code)
            && reply.head.contains("application/problem+json")
            && reply.json()["detail"].as_str().is_some_and(|detail| !detail.is_empty());
        if !as_it_must {
            let said: String = reply.text().chars().take(300).collect();
            wrong.push(format!("{}: {said}, instead of {} {}", bad.what, bad.status, bad.code));
        }
        if standing(&mut client).await != (1, 1) {
            wrong.push(format!("{}: there are more jobs than before", bad.what));
            break;
        }
    }
    assert!(wrong.is_empty(), "{} answers are wrong:\n  {}", wrong.len(), wrong.join("\n  "));
    assert_eq!(client.post("/v1/jobs", &json!({ "kind": "other" })).await.status, 201);
    assert_eq!(standing(&mut client).await, (2, 2));
}

#[tokio::test]
async fn garbage_on_the_port_ends_its_connection_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(folder.path());
    let mut dice = Dice::new(7);
    let mut noise = |length: u64| (0..length).map(|_| dice.below(256) as u8).collect::<Vec<_>>();
    let mut garbage = vec![
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        b"GET\r\n\r\n".to_vec(),
        b"GET / HTTP/9.9\r\n\r\n".to_vec(),
        b"POST /v1/jobs HTTP/1.1\r\ncontent-length: x\r\n\r\n".to_vec(),
        b"POST /v1/jobs HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n".to_vec(),
        [b"GET /".as_slice(), &[b'a'; 1 << 20]].concat(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nthis is no frame at all".to_vec(),
        vec![0; 4096],
        vec![b'\n'; 4096],
    ];
    for length in [1, 10, 100, 1_000, 100_000] {
        garbage.push(noise(length));
    }
    for bytes in garbage {
        let mut stream = TcpStream::connect(node.address).await.unwrap();
        // It may hang up before it has heard all of it.
        let _ = stream.write_all(&bytes).await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        let ended = timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("the connection ends");
        assert!(ended.is_ok() || ended.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
        let text = String::from_utf8_lossy(&answer).into_owned();
        let head = text.lines().next().unwrap_or_default().to_owned();
        assert!(!head.starts_with("HTTP/1.1 2") && !head.starts_with("HTTP/1.1 5"), "{bytes:?}: {head}");
        let mut client = Client::new(node.address);
        assert_eq!(standing(&mut client).await, (0, 0));
        assert_eq!(client.get("/livez").await.status, 200);
    }
}
