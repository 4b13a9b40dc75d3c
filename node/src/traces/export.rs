//! Sends spans to a collector: OTLP over HTTP, protobuf, in batches, from a thread of its own.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use onward_core::time::Wall;
use prost::Message;

use super::wire::{
    AnyValue, ExportTraceServiceRequest, InstrumentationScope, KeyValue, Resource, ResourceSpans, ScopeSpans,
    Span as WireSpan, SpanLink, SpanStatus, Value,
};
use super::{Attribute, Span};
use crate::engine::Counter;

/// Spans that wait to be sent; more are dropped.
const QUEUE: usize = 8_192;
const BATCH: usize = 512;
const SEND_EVERY: Duration = Duration::from_secs(1);
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// The consumer of work that somebody else has sent, in OTLP's numbers.
const KIND_CONSUMER: i32 = 5;
const STATUS_ERROR: i32 = 2;

/// The address that spans go to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint {
    host: String,
    path: String,
    pub service: String,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{url} is no endpoint for traces: give http://HOST:PORT; a collector that needs TLS is reached through one beside this node"
)]
pub struct BadEndpoint {
    url: String,
}

impl Endpoint {
    /// An endpoint as `OTEL_EXPORTER_OTLP_ENDPOINT` gives it: spans go to `/v1/traces` below it.
    pub fn parse(url: &str, service: &str) -> Result<Self, BadEndpoint> {
        let bad = || BadEndpoint { url: url.to_owned() };
        let rest = url.strip_prefix("http://").ok_or_else(bad)?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        if host.is_empty() || host.contains(['@', ' ']) {
            return Err(bad());
        }
        let host = if host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
            host.to_owned()
        } else {
            format!("{host}:4318")
        };
        let path = path.trim_matches('/');
        let path = if path.is_empty() { "/v1/traces".to_owned() } else { format!("/{path}/v1/traces") };
        Ok(Self { host, path, service: service.to_owned() })
    }
}

/// A handle on the thread that sends. Cheap to clone; the thread ends, after what is left was sent, with the last one.
#[derive(Clone, Debug)]
pub struct Exporter(Arc<ExporterState>);

#[derive(Debug)]
struct ExporterState {
    queue: Option<SyncSender<Span>>,
    thread: Option<JoinHandle<()>>,
    counts: Arc<ExportCounts>,
}

#[derive(Debug, Default)]
pub struct ExportCounts {
    pub sent: Counter,
    pub dropped: Counter,
}

impl Exporter {
    pub fn start(endpoint: Endpoint) -> std::io::Result<Self> {
        let (queue, spans) = sync_channel(QUEUE);
        let counts = Arc::<ExportCounts>::default();
        let theirs = counts.clone();
        let thread =
            thread::Builder::new().name("onward-traces".into()).spawn(move || run(&endpoint, &spans, &theirs))?;
        Ok(Self(Arc::new(ExporterState { queue: Some(queue), thread: Some(thread), counts })))
    }

    /// Never waits.
    pub fn send(&self, span: Span) {
        let queue = self.0.queue.as_ref().expect("it is there until the last handle is gone");
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = queue.try_send(span) {
            self.0.counts.dropped.add(1);
        }
    }

    pub fn counts(&self) -> &ExportCounts {
        &self.0.counts
    }
}

impl Drop for ExporterState {
    fn drop(&mut self) {
        self.queue.take();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that sends traces panicked");
        }
    }
}

fn run(endpoint: &Endpoint, spans: &Receiver<Span>, counts: &ExportCounts) {
    let (mut batch, mut is_failing) = (Vec::new(), false);
    let mut send_at = Instant::now() + SEND_EVERY;
    loop {
        let over = match spans.recv_timeout(send_at.saturating_duration_since(Instant::now())) {
            Ok(span) => {
                batch.push(span);
                false
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => true,
        };
        if over || batch.len() >= BATCH || Instant::now() >= send_at {
            send_at = Instant::now() + SEND_EVERY;
            if !batch.is_empty() {
                let count = batch.len() as u64;
                let sent = post(endpoint, &request(&endpoint.service, batch.drain(..)).encode_to_vec());
                match &sent {
                    Ok(()) => counts.sent.add(count),
                    Err(_) => counts.dropped.add(count),
                }
                match sent {
                    Err(error) if !is_failing => {
                        tracing::warn!(%error, to = endpoint.host, "traces cannot be sent, and are dropped");
                        is_failing = true;
                    }
                    Ok(()) if is_failing => {
                        tracing::info!(to = endpoint.host, "traces are sent again");
                        is_failing = false;
                    }
                    _ => {}
                }
            }
        }
        if over {
            return;
        }
    }
}

fn post(endpoint: &Endpoint, body: &[u8]) -> std::io::Result<()> {
    let other = |what: String| std::io::Error::other(what);
    let address = endpoint.host.to_socket_addrs()?.next().ok_or_else(|| other("no such host".into()))?;
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_WITHIN)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.set_write_timeout(Some(ANSWER_WITHIN))?;
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/x-protobuf\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        endpoint.path,
        endpoint.host,
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    let mut answer = [0; 64];
    let mut read = 0;
    while read < 12 {
        match stream.read(&mut answer[read..])? {
            0 => break,
            more => read += more,
        }
    }
    let line = String::from_utf8_lossy(&answer[..read]).lines().next().unwrap_or_default().to_owned();
    if line.split(' ').nth(1).is_some_and(|status| status.starts_with('2')) { Ok(()) } else { Err(other(line)) }
}

fn request(service: &str, spans: impl Iterator<Item = Span>) -> ExportTraceServiceRequest {
    let scope = InstrumentationScope { name: "onward".into(), version: env!("CARGO_PKG_VERSION").into() };
    let spans = ScopeSpans { scope: Some(scope), spans: spans.map(wire).collect() };
    let resource = Resource { attributes: vec![attribute("service.name", Attribute::Text(service.to_owned()))] };
    let spans = ResourceSpans { resource: Some(resource), scope_spans: vec![spans] };
    ExportTraceServiceRequest { resource_spans: vec![spans] }
}

fn wire(span: Span) -> WireSpan {
    let trace_id = span.context.trace.0.to_vec();
    WireSpan {
        span_id: span.id.0.to_vec(),
        parent_span_id: span.context.span.map_or(Vec::new(), |parent| parent.0.to_vec()),
        name: span.name,
        kind: KIND_CONSUMER,
        start_time_unix_nano: nanos(span.start),
        end_time_unix_nano: nanos(span.end.max(span.start)),
        attributes: span.attributes.into_iter().map(|(key, value)| attribute(key, value)).collect(),
        links: span
            .link
            .map(|link| SpanLink { trace_id: trace_id.clone(), span_id: link.0.to_vec() })
            .into_iter()
            .collect(),
        status: span.error.map(|message| SpanStatus { message, code: STATUS_ERROR }),
        trace_id,
    }
}

fn attribute(key: &str, value: Attribute) -> KeyValue {
    let value = match value {
        Attribute::Text(text) => Value::Text(text),
        Attribute::Number(number) => Value::Number(i64::try_from(number).unwrap_or(i64::MAX)),
    };
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

fn nanos(at: Wall) -> u64 {
    at.as_ms().saturating_mul(1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_where_the_environment_says() {
        for (url, host, path) in [
            ("http://collector:4318", "collector:4318", "/v1/traces"),
            ("http://collector", "collector:4318", "/v1/traces"),
            ("http://10.0.0.7:80/otlp/", "10.0.0.7:80", "/otlp/v1/traces"),
        ] {
            let endpoint = Endpoint::parse(url, "s").unwrap();
            assert_eq!((endpoint.host.as_str(), endpoint.path.as_str()), (host, path));
        }
        for wrong in ["https://collector:4318", "collector:4318", "http://", "http://user@host"] {
            assert!(Endpoint::parse(wrong, "s").unwrap_err().to_string().contains("http://HOST:PORT"), "{wrong}");
        }
    }
}
