//! A server that speaks chat completions, streamed, and breaks in every way that a test asks for.

#![allow(dead_code, reason = "every test file uses its own part of the server")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

pub struct Server {
    pub url: String,
    pub address: SocketAddr,
    asked: Arc<watch::Sender<Vec<ModelRequest>>>,
    open: watch::Receiver<usize>,
    accepting: JoinHandle<()>,
}

/// A request to the server.
#[derive(Clone, Debug)]
pub struct ModelRequest {
    pub head: String,
    pub body: Value,
}

impl ModelRequest {
    /// The server's host, as the client names it.
    pub fn host(&self) -> &str {
        let value = self
            .head
            .lines()
            .find_map(|line| line.split_once(": ").filter(|(name, _)| name.eq_ignore_ascii_case("host")));
        value.map_or("", |(_, host)| host.trim())
    }
}

/// The server's way to answer.
pub enum Reply {
    /// Anything but a stream: status, more headers, body.
    Plain(u16, String, String),
    Stream(Vec<Piece>),
    /// The connection ends without a word.
    Nothing,
}

pub enum Piece {
    /// An event with this JSON.
    Chunk(Value),
    /// Bytes as they are, inside of the stream.
    Raw(Vec<u8>),
    /// Bytes as they are on the wire, beside the framing.
    Wire(Vec<u8>),
    Wait(Duration),
    /// The connection ends here.
    Cut,
    /// Nothing more comes, until the client goes.
    Hang,
    /// Sends this event without end, until the client goes.
    Endless(Value),
    Done,
}

type Script = Arc<dyn Fn(usize, &ModelRequest) -> Reply + Send + Sync>;

impl Server {
    /// `script` is given the number of requests before this one, and the request.
    pub async fn start(script: impl Fn(usize, &ModelRequest) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_with(None, script).await
    }

    /// With a certificate, it is a server by HTTPS.
    pub async fn start_with(
        tls: Option<TlsAcceptor>,
        script: impl Fn(usize, &ModelRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (script, asked): (Script, Arc<watch::Sender<Vec<ModelRequest>>>) = (Arc::new(script), Arc::default());
        let (count, open) = watch::channel(0);
        let (count, seen) = (Arc::new(count), asked.clone());
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (script, seen, count, tls) = (script.clone(), seen.clone(), count.clone(), tls.clone());
                count.send_modify(|open| *open += 1);
                tokio::spawn(async move {
                    // A client that goes is no failure of the server.
                    let _ = match tls {
                        None => serve(stream, &script, &seen).await,
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => serve(stream, &script, &seen).await,
                            Err(error) => Err(error),
                        },
                    };
                    count.send_modify(|open| *open -= 1);
                });
            }
        });
        Self { url: format!("{scheme}://{address}/v1"), address, asked, open, accepting }
    }

    pub fn asked(&self) -> Vec<ModelRequest> {
        self.asked.borrow().clone()
    }

    /// Waits until it was asked so often.
    pub async fn asked_times(&self, times: usize) {
        self.asked.subscribe().wait_for(|asked| asked.len() >= times).await.unwrap();
    }

    /// Waits until no connection is open.
    pub async fn idle(&self) {
        self.open.clone().wait_for(|open| *open == 0).await.unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite,
    script: &Script,
    seen: &watch::Sender<Vec<ModelRequest>>,
) -> std::io::Result<()> {
    let (reader, mut writer) = tokio::io::split(stream);
    let mut reader = BufReader::new(reader);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        if line == "\r\n" {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).await?;
    let asked = ModelRequest { head, body: serde_json::from_slice(&body).unwrap_or_default() };
    let mut before = 0;
    seen.send_modify(|seen| {
        before = seen.len();
        seen.push(asked.clone());
    });
    match script(before, &asked) {
        Reply::Plain(status, headers, body) => {
            let length = body.len();
            let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n");
            writer.write_all(head.as_bytes()).await?;
            writer.write_all(body.as_bytes()).await
        }
        Reply::Nothing => Ok(()),
        Reply::Stream(pieces) => {
            let kind = "content-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: close";
            writer.write_all(format!("HTTP/1.1 200 OK\r\n{kind}\r\n\r\n").as_bytes()).await?;
            send(&mut reader, &mut writer, pieces).await
        }
    }
}

async fn send(
    reader: &mut (impl AsyncReadExt + Unpin),
    writer: &mut (impl AsyncWriteExt + Unpin),
    pieces: Vec<Piece>,
) -> std::io::Result<()> {
    for piece in pieces {
        match piece {
            Piece::Chunk(value) => writer.write_all(&framed(&event(&value))).await?,
            Piece::Raw(bytes) => writer.write_all(&framed(&bytes)).await?,
            Piece::Wire(bytes) => writer.write_all(&bytes).await?,
            Piece::Wait(span) => tokio::time::sleep(span).await,
            Piece::Cut => return Ok(()),
            Piece::Hang => {
                let mut byte = [0];
                return reader.read(&mut byte).await.map(drop);
            }
            Piece::Endless(value) => loop {
                writer.write_all(&framed(&event(&value))).await?;
            },
            Piece::Done => writer.write_all(&framed(b"data: [DONE]\n\n")).await?,
        }
        writer.flush().await?;
    }
    writer.write_all(b"0\r\n\r\n").await
}

fn event(value: &Value) -> Vec<u8> {
    format!("data: {value}\n\n").into_bytes()
}

fn framed(bytes: &[u8]) -> Vec<u8> {
    let mut framed = format!("{:x}\r\n", bytes.len()).into_bytes();
    framed.extend_from_slice(bytes);
    framed.extend_from_slice(b"\r\n");
    framed
}

/// Sends these events in one write: whoever reads them has them at once.
pub fn at_once(values: impl IntoIterator<Item = Value>) -> Piece {
    Piece::Raw(values.into_iter().flat_map(|value| event(&value)).collect())
}

/// A chunk of an answer.
pub fn chunk(delta: Value, finish: Option<&str>) -> Value {
    let choice = json!({ "index": 0, "delta": delta, "finish_reason": finish });
    json!({ "id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice] })
}

pub fn text_chunk(text: &str) -> Piece {
    Piece::Chunk(chunk(json!({ "content": text }), None))
}

/// The reason why an answer ended, and nothing else.
pub fn finish(reason: &str) -> Piece {
    Piece::Chunk(chunk(json!({}), Some(reason)))
}

pub fn usage(input: u64, output: u64) -> Piece {
    Piece::Chunk(usage_chunk(input, output))
}

pub fn usage_chunk(input: u64, output: u64) -> Value {
    let total = input.saturating_add(output);
    let usage = json!({ "prompt_tokens": input, "completion_tokens": output, "total_tokens": total });
    json!({ "id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": usage })
}

/// A whole answer with text, in several chunks.
pub fn text(text: &str) -> Reply {
    let mut pieces = vec![Piece::Chunk(chunk(json!({ "role": "assistant", "content": "" }), None))];
    let letters: Vec<char> = text.chars().collect();
    pieces.extend(letters.chunks(5).map(|part| text_chunk(&part.iter().collect::<String>())));
    pieces.extend([Piece::Chunk(chunk(json!({}), Some("stop"))), usage(10, 5), Piece::Done]);
    Reply::Stream(pieces)
}

/// A whole answer that calls tools: names with arguments. Arguments come in two parts each.
pub fn calls(calls: &[(&str, &str)]) -> Reply {
    let mut pieces = vec![Piece::Chunk(chunk(json!({ "role": "assistant", "content": null }), None))];
    for (index, (name, arguments)) in calls.iter().enumerate() {
        let (first, second) = arguments.split_at(arguments.len() / 2);
        let begin = json!({ "index": index, "id": format!("call_{index}"), "type": "function",
                            "function": { "name": name, "arguments": first } });
        let rest = json!({ "index": index, "function": { "arguments": second } });
        pieces.push(Piece::Chunk(chunk(json!({ "tool_calls": [begin] }), None)));
        pieces.push(Piece::Chunk(chunk(json!({ "tool_calls": [rest] }), None)));
    }
    pieces.extend([Piece::Chunk(chunk(json!({}), Some("tool_calls"))), usage(10, 5), Piece::Done]);
    Reply::Stream(pieces)
}

/// The number of answers in the conversation of a request.
pub fn answers(asked: &ModelRequest) -> usize {
    messages(asked).iter().filter(|message| message["role"] == "assistant").count()
}

pub fn messages(asked: &ModelRequest) -> &[Value] {
    asked.body["messages"].as_array().map_or(&[], Vec::as_slice)
}
