//! Answers probes over a listener of its own, on threads of its own: no executor is asked.
//!
//! One request for each connection, in HTTP/1.1. Everything is bounded: connections at a time, the size of a request, and
//! how long a caller may take to send it and to take the answer. Who takes longer is hung up on.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::runtime::Handle;

use crate::board::{Board, ExecutorReport, HeartbeatReport, InputReport, LoopReport, ProcessReport};
use crate::clock::lock;

/// Connections at a time; further ones wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 32;
/// Bytes of a request's head. What may follow it is not read.
const MAX_REQUEST: usize = 8 * 1024;
/// The time for a whole request, and for a whole answer.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct ProbeListener {
    address: SocketAddr,
    shared: Arc<ProbeState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct ProbeState {
    board: Arc<Board>,
    handle: Handle,
    closed: AtomicBool,
    connections: Mutex<usize>,
    ended: Condvar,
}

impl ProbeListener {
    pub(super) fn open(address: &str, board: Arc<Board>, handle: Handle) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let shared = ProbeState {
            board,
            handle,
            closed: AtomicBool::new(false),
            connections: Mutex::new(0),
            ended: Condvar::new(),
        };
        let shared = Arc::new(shared);
        let served = Arc::clone(&shared);
        let thread = thread::Builder::new().name("onward-probes".into()).spawn(move || serve(&listener, &served))?;
        tracing::info!(%address, "probes are answered here");
        Ok(Self { address, shared, thread: Some(thread) })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for ProbeListener {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        let mut own = self.address;
        match own {
            SocketAddr::V4(v4) if v4.ip().is_unspecified() => own.set_ip(Ipv4Addr::LOCALHOST.into()),
            SocketAddr::V6(v6) if v6.ip().is_unspecified() => own.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        // The thread waits in `accept`: somebody has to come. If nobody can, it ends with the process.
        let has_come = TcpStream::connect_timeout(&own, PATIENCE).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| has_come)
            && thread.join().is_err()
        {
            tracing::error!("the thread that answers probes panicked");
        }
    }
}

fn serve(listener: &TcpListener, shared: &Arc<ProbeState>) {
    loop {
        let accepted = listener.accept();
        if shared.closed.load(Ordering::Acquire) {
            return;
        }
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of file descriptors, say. Nobody can be answered until that is over.
                tracing::warn!(%error, "a probe could not be accepted");
                thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        let place = Place::take(shared);
        let answer = move || {
            let shared = Arc::clone(&place.0);
            // The caller hung up, or took too long; there is nobody to be told.
            let _ = converse(stream, &shared);
            drop(place);
        };
        if let Err(error) = thread::Builder::new().name("onward-probe".into()).spawn(answer) {
            tracing::warn!(%error, "no thread can be started to answer a probe");
        }
    }
}

/// A place among the connections that are allowed at a time.
struct Place(Arc<ProbeState>);

impl Place {
    fn take(shared: &Arc<ProbeState>) -> Self {
        let count = lock(&shared.connections);
        let mut count = shared
            .ended
            .wait_while(count, |count| *count >= MAX_CONNECTIONS)
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        *count += 1;
        Self(Arc::clone(shared))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *lock(&self.0.connections) -= 1;
        self.0.ended.notify_one();
    }
}

fn converse(mut stream: TcpStream, shared: &ProbeState) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    let answer = loop {
        if let Some(end) = head.windows(4).position(|window| window == b"\r\n\r\n") {
            break answer(&head[..end], shared);
        }
        if head.len() >= MAX_REQUEST {
            break Answer::text(431, "the request is too long\n");
        }
        stream.set_read_timeout(Some(left(deadline)?))?;
        let mut part = [0; 1024];
        match stream.read(&mut part)? {
            0 => return Ok(()),
            count => head.extend_from_slice(&part[..count]),
        }
    };
    let deadline = Instant::now() + PATIENCE;
    let bytes = answer.bytes();
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        stream.set_write_timeout(Some(left(deadline)?))?;
        match stream.write(rest)? {
            0 => return Ok(()),
            count => rest = &rest[count..],
        }
    }
    stream.shutdown(std::net::Shutdown::Write)
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

struct Answer {
    code: u16,
    kind: &'static str,
    body: String,
    /// A `HEAD` has the length of a body, and none.
    has_body: bool,
}

impl Answer {
    fn text(code: u16, body: &str) -> Self {
        Self { code, kind: "text/plain; charset=utf-8", body: body.to_owned(), has_body: true }
    }

    fn json(code: u16, body: &impl Serialize) -> Self {
        let body = serde_json::to_string(body).expect("names are text, and figures are finite or null");
        Self { code, kind: "application/json", body: body + "\n", has_body: true }
    }

    fn bytes(self) -> Vec<u8> {
        let phrase = match self.code {
            200 => "OK",
            400 => "Bad Request",
            404 => "Not Found",
            405 => "Method Not Allowed",
            431 => "Request Header Fields Too Large",
            _ => "Service Unavailable",
        };
        let (code, kind, length) = (self.code, self.kind, self.body.len());
        let head = format!(
            "HTTP/1.1 {code} {phrase}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\ncache-control: no-store\r\nconnection: close\r\n\r\n"
        );
        let mut bytes = head.into_bytes();
        if self.has_body {
            bytes.extend_from_slice(self.body.as_bytes());
        }
        bytes
    }
}

fn answer(head: &[u8], shared: &ProbeState) -> Answer {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = std::str::from_utf8(line).unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some("HTTP/1.1" | "HTTP/1.0")) = (words.next(), words.next(), words.next()) else {
        return Answer::text(400, "this is no HTTP/1.1 request\n");
    };
    if method != "GET" && method != "HEAD" {
        return Answer::text(405, "ask with GET\n");
    }
    // Within it, time is the runtime's: a test may have stopped it.
    let _guard = shared.handle.enter();
    let path = target.split('?').next().unwrap_or_default();
    let report = || shared.board.report();
    let answer = match path {
        "/livez" => probe(&report(), ProcessReport::why_not_live),
        "/readyz" => probe(&report(), ProcessReport::why_not_ready),
        "/startupz" => probe(&report(), ProcessReport::why_not_started),
        "/status" => Answer::json(200, &Status::of(&report())),
        "/metrics" => {
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            Answer { kind, ..Answer::text(200, &report().metrics()) }
        }
        _ => Answer::text(404, "there are /livez, /readyz, /startupz, /status and /metrics\n"),
    };
    Answer { has_body: method == "GET", ..answer }
}

fn probe(report: &ProcessReport, why: fn(&ProcessReport) -> Option<String>) -> Answer {
    let reason = why(report);
    let (code, status) = if reason.is_none() { (200, "ok") } else { (503, "unavailable") };
    Answer::json(code, &ProbeAnswer { status, reason, parts: PartsAnswer::of(report) })
}

#[derive(Serialize)]
struct ProbeAnswer<'a> {
    status: &'static str,
    reason: Option<String>,
    #[serde(flatten)]
    parts: PartsAnswer<'a>,
}

#[derive(Serialize)]
struct PartsAnswer<'a> {
    loops: &'a [LoopReport],
    inputs: &'a [InputReport],
    heartbeats: &'a [HeartbeatReport],
    executor: &'a Option<ExecutorReport>,
}

impl<'a> PartsAnswer<'a> {
    fn of(report: &'a ProcessReport) -> Self {
        let ProcessReport { loops, inputs, heartbeats, executor, .. } = report;
        Self { loops, inputs, heartbeats, executor }
    }
}

#[derive(Serialize)]
struct Status<'a> {
    service: &'a str,
    live: bool,
    ready: bool,
    started: bool,
    stopping: bool,
    reason: Option<String>,
    #[serde(flatten)]
    parts: PartsAnswer<'a>,
}

impl<'a> Status<'a> {
    fn of(report: &'a ProcessReport) -> Self {
        let ProcessReport { service, live, ready, started, stopping, .. } = report;
        let (live, ready, started, stopping) = (*live, *ready, *started, *stopping);
        Self { service, live, ready, started, stopping, reason: report.why_not_ready(), parts: PartsAnswer::of(report) }
    }
}
