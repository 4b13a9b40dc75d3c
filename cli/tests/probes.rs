//! What a node says of its loops, and where its probes are answered.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;
use support::process::until;
use support::{Node, PATIENCE, onward, own_loopback};

/// A connection that stays, asked for one thing after the other.
struct Asking(BufReader<TcpStream>, SocketAddr);

impl Asking {
    fn on(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream), address)
    }

    fn get(&mut self, path: &str) -> (u16, Value) {
        let host = self.1;
        write!(self.0.get_mut(), "GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n").unwrap();
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let begins = head.len();
            assert_ne!(self.0.read_line(&mut head).unwrap(), 0, "{head}");
            let line = head[begins..].trim_end();
            if line.is_empty() {
                break;
            }
            if let Some(bytes) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
                length = bytes.parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_slice(&body).unwrap())
    }
}

fn status_lines(node: &Node, data: &std::path::Path) -> Vec<String> {
    let text = String::from_utf8(node.call(data, &["status"]).stdout).unwrap();
    text.lines().filter_map(|line| line.strip_prefix("loop ")).map(|line| line.trim().to_owned()).collect()
}

#[tokio::test]
async fn a_node_that_can_accept_nobody_says_so_to_whoever_is_there_and_recovers() {
    let data = tempfile::tempdir().unwrap();
    let more = ["--set", "http.header_read=10m"];
    let node = Node::start_with(data.path(), &own_loopback(), &more);
    let lines = status_lines(&node, data.path());
    let names: Vec<&str> = lines.iter().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(names, ["machine", "committer", "schedules", "snapshots", "archive", "acceptor"]);
    for line in &lines {
        let rest = line.split_once(' ').unwrap().1.trim_start();
        assert!(rest.starts_with("healthy (") && rest.contains(") for "), "{line}");
    }

    let mut there = Asking::on(node.address);
    assert_eq!(there.get("/readyz").0, 200);
    // Fewer than it has open: from now on it gets no more.
    let before = node.set_open_files(3);
    let _waits = TcpStream::connect(node.address).unwrap();
    let answer = until("it is not ready", PATIENCE, async || {
        let (status, answer) = there.get("/readyz");
        (status == 503).then_some(answer)
    })
    .await;
    let reason = answer["reason"].as_str().unwrap();
    assert!(reason.contains("`acceptor` is failing") && reason.contains("Too many open files"), "{reason}");
    assert_eq!(there.get("/livez").0, 200, "a restart is not what helps");
    let (_, status) = there.get("/status");
    let acceptor = status["loops"].as_array().unwrap().iter().find(|one| one["name"] == "acceptor").unwrap();
    assert_eq!((&acceptor["state"], &acceptor["critical"]), (&"failing".into(), &true.into()), "{acceptor}");

    node.set_open_files(before);
    until("it is ready again", PATIENCE, async || (there.get("/readyz").0 == 200).then_some(())).await;
    assert!(status_lines(&node, data.path()).iter().any(|line| line.starts_with("acceptor   healthy")));
}

#[tokio::test]
async fn probes_are_answered_where_they_were_asked_for_and_a_port_that_is_taken_is_an_error() {
    let (data, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let listen = own_loopback();
    let mut node = Node::start_with(data.path(), &listen, &["--set", &format!("http.probes={listen}")]);
    let line = node.next_line();
    let address: SocketAddr = line.trim_end().strip_prefix("onward: probes on http://").unwrap().parse().unwrap();
    assert_ne!(address, node.address);
    for path in ["/livez", "/readyz", "/startupz"] {
        assert_eq!(Asking::on(address).get(path).0, 200, "{path}");
    }
    let taken = format!("http.probes={address}");
    let mut second = onward(&["up", "--slots", "0", "--listen", &listen, "--set", &taken, "--data"]);
    let second = second.arg(other.path()).env("ONWARD_LOG", "error").output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(1), "{said}");
    assert!(
        said.contains(&format!("probes cannot be answered on {address}")) && said.contains("http.probes"),
        "{said}"
    );
}
