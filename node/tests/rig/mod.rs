//! A node on a port of its own, and a client that sees every byte.

#![allow(dead_code, reason = "each test file uses its part")]

pub mod waiting;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use onward_core::effect::Answer;
use onward_core::health::overload::{LoadLimits, OverloadRule};
use onward_core::ids::JobId;
use onward_core::input::{Call, Submission};
use onward_core::job::Draft;
use onward_core::settings::Settings;
use onward_node::engine::Engine;
use onward_node::server::{Node, NodeConfig};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

pub use waiting::{PATIENCE, until};

/// Settings for any computer: its load is not what these tests are about, so load, gaps and the seat are out of the
/// way.
pub fn settings() -> Settings {
    let far = LoadLimits { busy: 1e9, stressed: 2e9, overloaded: 3e9 };
    let overload = OverloadRule { rise: far, latency_ms: far, resource_percent: far, ..OverloadRule::default() };
    let long = Duration::from_secs(600);
    Settings { overload, seat_ttl: 2 * long, gap_after: long, ..Settings::default() }
}

pub fn config(data: &Path) -> NodeConfig {
    let rules = settings().check().unwrap();
    NodeConfig { rules, ..NodeConfig::new("127.0.0.1:0".parse().unwrap(), data) }
}

pub async fn start(data: &Path) -> Node {
    Node::start(config(data)).await.unwrap()
}

pub async fn submit(engine: &Engine, draft: Draft) -> JobId {
    let id = engine.new_job_id();
    let answer = engine.call(Call::Submit(vec![Submission { id, draft }])).await.unwrap();
    assert!(matches!(answer, Answer::Submitted(_)));
    id
}

pub async fn submit_kind(engine: &Engine, kind: &str) -> JobId {
    submit(engine, Draft::of_kind(kind, b"{\"n\":1}".as_slice())).await
}

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&self.body)))
    }

    pub fn code(&self) -> (u16, String) {
        assert!(self.head.contains("application/problem+json"), "{}", self.head);
        (self.status, self.json()["code"].as_str().unwrap().to_owned())
    }
}

/// A request as it goes over the wire; the `Host` is right and the content JSON unless said otherwise.
#[derive(Clone)]
pub struct Request {
    pub line: String,
    pub host: Option<String>,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Request {
    pub fn get(path: &str) -> Self {
        Self { line: format!("GET {path} HTTP/1.1"), host: None, headers: Vec::new(), body: String::new() }
    }

    pub fn post(path: &str, body: &Value) -> Self {
        let line = format!("POST {path} HTTP/1.1");
        Self { line, host: None, headers: Vec::new(), body: body.to_string() }
            .header("content-type", "application/json")
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(known, _)| known != name);
        self.headers.push((name.into(), value.into()));
        self
    }

    pub fn host(mut self, host: &str) -> Self {
        self.host = Some(host.into());
        self
    }

    pub fn text(&self, address: SocketAddr) -> String {
        let host = self.host.clone().unwrap_or_else(|| address.to_string());
        let mut text = format!("{}\r\nhost: {host}\r\ncontent-length: {}\r\n", self.line, self.body.len());
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("\r\n");
        text.push_str(&self.body);
        text
    }

    pub async fn send(&self, address: SocketAddr) -> Reply {
        let mut stream = TcpStream::connect(address).await.unwrap();
        self.send_on(&mut stream, address).await
    }

    pub async fn send_on<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: &mut S, address: SocketAddr) -> Reply {
        stream.write_all(self.text(address).as_bytes()).await.unwrap();
        read_reply(stream).await
    }
}

/// Reads a reply by its content length, so that the connection can stay open.
pub async fn read_reply<S: AsyncRead + Unpin>(stream: &mut S) -> Reply {
    timeout(PATIENCE, async {
        let mut bytes = Vec::new();
        let end = loop {
            if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0, "{:?}", String::from_utf8_lossy(&bytes));
        };
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
        let total = end + length.parse::<usize>().unwrap();
        while bytes.len() < total {
            assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0);
        }
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Reply { status, head, body: bytes[end..].to_vec() }
    })
    .await
    .expect("an answer in time")
}

pub async fn post(node: &Node, path: &str, body: Value) -> Reply {
    Request::post(path, &body).send(node.address()).await
}

pub fn poll_body(incarnation: &str) -> Value {
    json!({ "worker_id": "w", "incarnation": incarnation, "kinds": ["k"], "max": 10, "wait_s": 60, "lease_s": 3600 })
}

/// The leases that a poll gets.
pub async fn lease(node: &Node, body: Value) -> Vec<Value> {
    let reply = post(node, "/v1/leases", body).await;
    assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
    reply.json()["leases"].as_array().unwrap().clone()
}

pub fn receipt(lease: &Value) -> String {
    lease["receipt"].as_str().unwrap().to_owned()
}

pub fn verb(lease: &Value, verb: &str) -> String {
    format!("/v1/leases/{}/{verb}", receipt(lease))
}
