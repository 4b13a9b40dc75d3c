//! Connections: accepted, counted, limited, drained.

use core::pin::pin;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::http::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use onward_health::Pulse;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, duplex};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Duration, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use super::config::HttpLimits;
use super::preface::{HttpVersion, sniff};
use crate::api::access::ClientConnection;
use crate::engine::vitals::DieOnPanic;
use crate::peer::certificate::of_chain;
use crate::peer::expiry::Expiring;

/// The pause after an accept that failed, as for want of file descriptors.
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// Bytes that a connection from inside holds between its ends.
const INSIDE_BYTES: usize = 256 << 10;
/// The smallest that hyper takes.
const MIN_BUFFER_BYTES: usize = 8 << 10;
/// Bytes that a client may send on one stream that are not read yet. A connection has room for several of them, so that
/// one that is not read on, such as a session that another manager passes on, holds up no other.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const HTTP2_PING_EVERY: Duration = Duration::from_secs(20);
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nonward-done: no\r\nconnection: close\r\n\
    content-type: application/problem+json\r\ncontent-length: 113\r\n\r\n\
    {\"code\":\"overloaded\",\"title\":\"Service Unavailable\",\"status\":503,\
    \"detail\":\"too many connections; try again later\"}";

/// The phase of a node on its way up or down.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum NodePhase {
    /// The log is being read; only probes are answered.
    Starting,
    Serving,
    /// Not ready any more, so that balancers stop sending, and otherwise as before.
    Leaving,
    /// No new connections; requests on the old ones may finish.
    Draining,
    /// Everything that is still open is cut.
    Closing,
}

#[derive(Debug, Default)]
pub(super) struct ConnectionCounts {
    pub(super) accepted: AtomicU64,
    pub(super) refused: AtomicU64,
    /// Ended without a proper request: no handshake, no headers in time, or no HTTP.
    pub(super) failed: AtomicU64,
}

pub(super) struct Acceptor {
    /// Answers until the other is there.
    pub(super) starting: Router,
    pub(super) router: Arc<OnceLock<Router>>,
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) limits: HttpLimits,
    pub(super) places: Arc<Semaphore>,
    pub(super) phase: watch::Receiver<NodePhase>,
    pub(super) counts: Arc<ConnectionCounts>,
    /// The pulse of the loop that accepts connections.
    pub(super) pulse: Pulse,
    /// The runtime that serves connections, whoever opens them.
    pub(super) runtime: Handle,
}

impl Acceptor {
    pub(super) async fn run(self: Arc<Self>, listener: TcpListener) {
        let _die = DieOnPanic(&self.pulse);
        let mut phase = self.phase.clone();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = phase.wait_for(|phase| *phase >= NodePhase::Draining) => return,
            };
            match accepted {
                Ok((stream, peer)) => {
                    self.pulse.recover();
                    self.clone().take(stream, peer);
                }
                Err(error) => {
                    self.pulse.fail(&error);
                    tracing::warn!(%error, "a connection could not be accepted");
                    sleep(TRY_AGAIN).await;
                }
            }
        }
    }

    /// A connection from within this process. It is not encrypted, and counts like any other.
    pub(super) fn inside(self: Arc<Self>) -> io::Result<DuplexStream> {
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            self.counts.refused.fetch_add(1, Ordering::Relaxed);
            return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "the node has too many connections"));
        };
        self.counts.accepted.fetch_add(1, Ordering::Relaxed);
        let (near, far) = duplex(INSIDE_BYTES);
        self.runtime.clone().spawn(async move {
            let _place = place;
            let mut phase = self.phase.clone();
            let conversing = async {
                match sniff(far).await? {
                    Some((version, stream)) => self.converse(version, stream, ClientConnection::from(None)).await,
                    None => Ok(()),
                }
            };
            tokio::select! {
                ended = conversing => if let Err(error) = ended {
                    tracing::debug!(error, "a connection from inside ended early");
                },
                _ = phase.wait_for(|phase| *phase == NodePhase::Closing) => {}
            }
        });
        Ok(near)
    }

    fn take(self: Arc<Self>, stream: TcpStream, peer: SocketAddr) {
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            self.counts.refused.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(%peer, "too many connections");
            if self.tls.is_none() {
                // The answer fits into the system's buffer for the socket; whether the client reads it is not our
                // concern.
                let _ = stream.into_std().and_then(|mut stream| stream.write(FULL));
            }
            return;
        };
        self.counts.accepted.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(self.hold(stream, peer, place));
    }

    async fn hold(self: Arc<Self>, stream: TcpStream, peer: SocketAddr, _place: OwnedSemaphorePermit) {
        let mut phase = self.phase.clone();
        tokio::select! {
            served = self.serve(stream, peer) => if let Err(error) = served {
                self.counts.failed.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(%peer, error, "a connection ended early");
            },
            _ = phase.wait_for(|phase| *phase == NodePhase::Closing) => {}
        }
    }

    async fn serve(&self, stream: TcpStream, peer: SocketAddr) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        // Answers are small and awaited: they go out at once.
        stream.set_nodelay(true)?;
        let (mut phase, connection) = (self.phase.clone(), ClientConnection::from(Some(peer.ip())));
        let wait = self.limits.header_read;
        let Some(tls) = &self.tls else {
            let found = tokio::select! {
                found = timeout(wait, sniff(stream)) => found.map_err(|_| "no request in time")??,
                _ = phase.wait_for(|phase| *phase >= NodePhase::Draining) => return Ok(()),
            };
            return match found {
                Some((version, stream)) => self.converse(version, stream, connection).await,
                None => Ok(()),
            };
        };
        let stream = timeout(wait, tls.accept(stream)).await.map_err(|_| "no handshake in time")??;
        let version = match stream.get_ref().1.alpn_protocol() {
            Some(b"h2") => HttpVersion::Http2,
            _ => HttpVersion::Http1,
        };
        let chain = stream.get_ref().1.peer_certificates().map(<[_]>::to_vec);
        let connection = connection.of_node(of_chain(chain.as_deref()));
        self.converse(version, Expiring::new(stream, chain.as_deref())?, connection).await
    }

    async fn converse<S>(
        &self,
        version: HttpVersion,
        stream: S,
        connection: ClientConnection,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut builder = Builder::new(TokioExecutor::new());
        // The guard counts, and says what is wrong. This only bounds what is kept until then: hyper answers without a word.
        let header_buffer = (2 * self.limits.header_bytes as usize).max(MIN_BUFFER_BYTES);
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.header_read)
            .max_buf_size(header_buffer);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.limits.streams)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(4 * STREAM_WINDOW_BYTES)
            .max_header_list_size(self.limits.header_bytes)
            .keep_alive_interval(HTTP2_PING_EVERY)
            .keep_alive_timeout(self.limits.header_read);
        let builder = match version {
            HttpVersion::Http1 => builder.http1_only(),
            HttpVersion::Http2 => builder.http2_only(),
        };
        let (router, until) = match self.router.get() {
            Some(router) => (router, NodePhase::Draining),
            None => (&self.starting, NodePhase::Serving),
        };
        let inserted = connection.clone();
        let service = TowerToHyperService::new(router.clone().map_request(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(inserted.clone());
            request
        }));
        let mut conversation = pin!(builder.serve_connection(TokioIo::new(stream), service));
        let mut phase = self.phase.clone();
        tokio::select! {
            ended = conversation.as_mut() => return ended,
            _ = phase.wait_for(|phase| *phase >= until) => {}
            () = connection.is_cut() => return Ok(()),
        }
        conversation.as_mut().graceful_shutdown();
        tokio::select! {
            ended = conversation => ended,
            () = connection.is_cut() => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::pages;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const PATIENCE: Duration = Duration::from_secs(120);

    /// The answer to `GET path`.
    async fn ask(stream: &mut TcpStream, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
                if body.len() >= length.parse().unwrap() {
                    return text;
                }
            }
            assert_ne!(timeout(PATIENCE, stream.read_buf(&mut bytes)).await.unwrap().unwrap(), 0, "{text}");
        }
    }

    #[tokio::test]
    async fn until_the_node_serves_only_probes_are_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (phase, seen) = watch::channel(NodePhase::Starting);
        let router = Arc::new(OnceLock::new());
        let acceptor = Arc::new(Acceptor {
            starting: pages::starting(),
            router: router.clone(),
            tls: None,
            limits: HttpLimits { header_read: Duration::from_secs(3_600), ..HttpLimits::default() },
            places: Arc::new(Semaphore::new(10)),
            phase: seen,
            counts: Arc::default(),
            pulse: Pulse::default(),
            runtime: Handle::current(),
        });
        let accepting = tokio::spawn(acceptor.run(listener));
        let mut early = TcpStream::connect(address).await.unwrap();
        assert!(ask(&mut early, "/startupz").await.starts_with("HTTP/1.1 503"));
        assert!(ask(&mut early, "/readyz").await.contains("the node is starting"));
        assert!(ask(&mut early, "/livez").await.starts_with("HTTP/1.1 200"));
        assert!(ask(&mut early, "/v1/jobs").await.contains("\"code\":\"no_leader\""));

        router.set(Router::new().route("/startupz", get(async || "it serves"))).unwrap();
        phase.send_replace(NodePhase::Serving);
        // Connections that came early are not kept with answers that are no longer true.
        let mut rest = Vec::new();
        let ended = timeout(PATIENCE, early.read_to_end(&mut rest)).await.expect("it is closed");
        assert!(ended.is_err() || rest.is_empty());
        let mut later = TcpStream::connect(address).await.unwrap();
        assert!(ask(&mut later, "/startupz").await.ends_with("it serves"));
        phase.send_replace(NodePhase::Leaving);
        assert!(ask(&mut later, "/startupz").await.ends_with("it serves"));
        phase.send_replace(NodePhase::Draining);
        timeout(PATIENCE, accepting).await.expect("it takes no more").unwrap();
    }

    #[test]
    fn the_answer_to_one_too_many_is_whole() {
        let text = core::str::from_utf8(super::FULL).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("\r\ncontent-length: {}", body.len())), "{} {head}", body.len());
        serde_json::from_str::<serde_json::Value>(body).unwrap();
    }
}
