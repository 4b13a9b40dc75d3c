//! A node that leads, one that follows it, and what stands in for leaders that fail.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use onward_core::fence::Term;
use onward_core::settings::Settings;
use onward_node::cluster::leader::{LeaderAddress, LeaderView};
use onward_node::server::{Node, NodeConfig};
use tempfile::{TempDir, tempdir};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::rig::{Reply, Request, config, settings};

pub struct Pair {
    pub leader: Node,
    pub follower: Node,
    data: [TempDir; 2],
}

impl Pair {
    pub async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub async fn start_with(change: impl Fn(&mut Settings)) -> Self {
        let data = [tempdir().unwrap(), tempdir().unwrap()];
        let mut settings = settings();
        change(&mut settings);
        let leader = member_with("a", &data[0], settings.clone()).await;
        let follower = member_with("b", &data[1], settings).await;
        follow(&follower, leader.address());
        Self { leader, follower, data }
    }

    /// The data folders: of the leader, and of the follower.
    pub fn folders(&self) -> [&Path; 2] {
        [self.data[0].path(), self.data[1].path()]
    }
}

/// A node that is not alone. It leads its own log until somebody says otherwise.
pub async fn member(name: &str, data: &TempDir) -> Node {
    member_with(name, data, settings()).await
}

async fn member_with(name: &str, data: &TempDir, settings: Settings) -> Node {
    let rules = settings.check().unwrap();
    let listen = free_port().await;
    let (name, advertise) = (Some(name.to_owned()), Some(listen.to_string()));
    Node::start(NodeConfig { listen, name, advertise, rules, ..config(data.path()) }).await.unwrap()
}

pub async fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

pub fn follow(node: &Node, leader: SocketAddr) {
    let leader = LeaderAddress { name: "leader".into(), address: leader.to_string() };
    publish(node, LeaderView::Following { term: Term::new(7), leader: Some(leader) });
}

pub fn follow_nobody(node: &Node) {
    publish(node, LeaderView::Following { term: Term::new(7), leader: None });
}

pub fn lead(node: &Node) {
    publish(node, LeaderView::Leading { term: Term::new(8) });
}

pub fn cut_off(node: &Node) {
    publish(node, LeaderView::CutOff { term: Term::new(1) });
}

fn publish(node: &Node, view: LeaderView) {
    node.engine().leader_view().send_replace(view);
}

pub fn header<'a>(reply: &'a Reply, name: &str) -> Option<&'a str> {
    reply.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// The parts in which every answer must be the same, whoever gave it.
pub fn essence(reply: &Reply) -> (u16, Vec<String>, String) {
    let lines = reply.head.lines().skip(1).filter(|line| !line.is_empty() && !line.starts_with("date: "));
    let mut lines: Vec<String> = lines.map(str::to_owned).collect();
    lines.sort();
    (reply.status, lines, String::from_utf8_lossy(&reply.body).into_owned())
}

pub async fn send(node: &Node, request: &Request) -> Reply {
    request.send(node.address()).await
}

/// Takes connections and says nothing on them, as a process does that was stopped.
pub struct FrozenNode {
    pub address: SocketAddr,
    _listener: TcpListener,
}

impl FrozenNode {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self { address: listener.local_addr().unwrap(), _listener: listener }
    }
}

/// Dies as soon as a request has come: each connection is closed without an answer.
pub struct Dying {
    pub address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Dying {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(until_headers(stream));
            }
        });
        Self { address, serving }
    }
}

impl Drop for Dying {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Reads the preface of HTTP/2, and frames up to the first that begins a request.
async fn until_headers(mut stream: TcpStream) {
    const HEADERS: u8 = 1;
    let mut preface = [0; 24];
    if stream.read_exact(&mut preface).await.is_err() {
        return;
    }
    let mut head = [0; 9];
    while stream.read_exact(&mut head).await.is_ok() && head[3] != HEADERS {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        if stream.read_exact(&mut payload).await.is_err() {
            return;
        }
    }
}

/// Longer than anything takes that must not take long, and shorter than what is made again.
pub const SOON: Duration = Duration::from_secs(3);
