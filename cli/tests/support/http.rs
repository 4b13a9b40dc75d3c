//! HTTP/1.1 by hand: an answer counts only if its last byte arrived.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::PATIENCE;

/// The wait of a client that was told to come back later.
pub const LATER: Duration = Duration::from_millis(50);

const IDLE: Duration = Duration::from_secs(2);

#[derive(Clone, PartialEq, Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.text()))
    }

    /// Whether a refused call may be made again without being carried out twice.
    pub fn was_surely_not_done(&self) -> bool {
        self.field("onward-done") == Some("no")
    }

    /// The leader when this was answered, and its term; none of a node that is alone.
    pub fn leader(&self) -> Option<&str> {
        self.field("onward-leader")
    }

    fn field(&self, wanted: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(':'));
        fields.find_map(|(name, value)| name.eq_ignore_ascii_case(wanted).then(|| value.trim()))
    }

    /// The code of a problem, empty for other answers.
    pub fn code(&self) -> String {
        let body: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        body["code"].as_str().unwrap_or_default().to_owned()
    }

    /// The text of the body without what counts on, and what depends on who is connected: why something waits that has not
    /// ended.
    pub fn lasting(&self) -> String {
        fn without(value: &mut Value) {
            match value {
                Value::Array(items) => items.iter_mut().for_each(without),
                Value::Object(fields) => {
                    let is_open = fields.get("ended_at").is_some_and(Value::is_null);
                    for (name, field) in fields.iter_mut() {
                        match name.as_str() {
                            "blocked" => *field = Value::Null,
                            "reason" if is_open => *field = Value::Null,
                            span if span.ends_with("_ms") || span == "oldest_waiting_s" => *field = Value::Null,
                            _ => without(field),
                        }
                    }
                }
                _ => {}
            }
        }
        match serde_json::from_slice::<Value>(&self.body) {
            Ok(mut value) => {
                without(&mut value);
                value.to_string()
            }
            Err(_) => String::from_utf8_lossy(&self.body).into_owned(),
        }
    }

    pub fn text(&self) -> String {
        format!("{} {}", self.status, String::from_utf8_lossy(&self.body))
    }
}

/// A connection that stays open from call to call, and is made anew after an error.
#[derive(Debug)]
pub struct Client {
    /// The address to connect to; below, the name of the node.
    address: SocketAddr,
    host: SocketAddr,
    token: Option<String>,
    /// The connection, and when it was used last: a node closes what is idle.
    stream: Option<(TcpStream, Instant)>,
}

impl Client {
    pub fn new(address: SocketAddr) -> Self {
        Self::through(address, address)
    }

    /// A client by way of a proxy.
    pub fn through(address: SocketAddr, host: SocketAddr) -> Self {
        Self { address, host, token: None, stream: None }
    }

    /// May do what needs the token in the data folder: submit commands.
    pub fn with_token(address: SocketAddr, data: &Path) -> Self {
        let token = std::fs::read_to_string(data.join("token")).expect("a node has written its token");
        Self { token: Some(token.trim().to_owned()), ..Self::new(address) }
    }

    /// Makes one exchange. An error says that the answer did not arrive in full, and nothing about what was done.
    pub async fn try_call(&mut self, method: &str, path: &str, body: &str) -> io::Result<Reply> {
        let host = self.host;
        let length = body.len();
        let token = self.token.as_ref().map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\n{token}content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        self.exchange(request.as_bytes()).await
    }

    pub async fn exchange(&mut self, request: &[u8]) -> io::Result<Reply> {
        let mut stream = match self.stream.take() {
            Some((stream, used)) if used.elapsed() < IDLE => stream,
            _ => {
                let stream = TcpStream::connect(self.address).await?;
                stream.set_nodelay(true)?;
                stream
            }
        };
        let reply = timeout(PATIENCE, async {
            stream.write_all(request).await?;
            read_reply(&mut stream).await
        });
        let reply = reply.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        if !reply.head.contains("connection: close") {
            self.stream = Some((stream, Instant::now()));
        }
        Ok(reply)
    }

    /// Calls as a patient client does: 503 means later.
    pub async fn call(&mut self, method: &str, path: &str, body: &str) -> io::Result<Reply> {
        loop {
            let reply = self.try_call(method, path, body).await?;
            if reply.status != 503 {
                return Ok(reply);
            }
            sleep(LATER).await;
        }
    }

    pub async fn get(&mut self, path: &str) -> Reply {
        self.call("GET", path, "").await.expect("the node answers")
    }

    pub async fn post(&mut self, path: &str, body: &Value) -> Reply {
        self.call("POST", path, &body.to_string()).await.expect("the node answers")
    }
}

/// Reads a reply by its content length, so that the connection can stay open.
pub async fn read_reply(stream: &mut TcpStream) -> io::Result<Reply> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        more(stream, &mut bytes).await?;
    };
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
    while bytes.len() < end + length {
        more(stream, &mut bytes).await?;
    }
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
    let status = status.ok_or_else(|| io::Error::other(format!("no status in {head:?}")))?;
    Ok(Reply { status, head, body: bytes[end..end + length].to_vec() })
}

async fn more(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> io::Result<()> {
    match stream.read_buf(bytes).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}
