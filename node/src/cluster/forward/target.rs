//! Where a leader is, and how to get a connection to it.

use core::time::Duration;
use std::io;
use std::path::Path;
use std::sync::Arc;

use axum::body::Body;
use axum::http::uri::{Authority, PathAndQuery, Scheme};
use axum::http::{Request, Uri};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use onward_gossip::{NodeLabel, Role};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::peer::PeerIdentity;
use crate::peer::certificate::of_chain;
use crate::peer::expiry::Expiring;

/// A connection is there within this, or the leader is not reached.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// A leader that answers no ping for [`PING_ANSWERED_WITHIN`] is gone or frozen: whoever waits for it learns that less
/// than three seconds after it fell silent.
const PING_EVERY: Duration = Duration::from_secs(1);
const PING_ANSWERED_WITHIN: Duration = Duration::from_millis(1_500);
/// Bytes that one call may have on its way to a client that does not read. All calls of a connection fit into its
/// window, so that such a client holds up nobody else.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
/// Bytes that one call may have waiting to be sent to the leader.
const SEND_BUFFER_BYTES: usize = 256 << 10;

/// The trust in those that this node forwards to: the authority, and the role that a certificate must give them.
#[derive(Clone, Debug)]
pub(crate) struct LeaderTrust {
    config: Arc<ClientConfig>,
    /// The datacenter whose managers are believed; none where the leader of gates is.
    datacenter: Option<NodeLabel>,
}

impl LeaderTrust {
    pub(crate) fn new(config: Arc<ClientConfig>, datacenter: Option<NodeLabel>) -> Self {
        Self { config, datacenter }
    }

    /// Tokens of clients are shown to nobody but a node that may lead this one.
    fn check(&self, who: Option<PeerIdentity>) -> io::Result<()> {
        let who = who.ok_or_else(|| {
            io::Error::other("its certificate names no node; `onward certs node` makes one that does")
        })?;
        match &self.datacenter {
            Some(datacenter) => who.speaks_for(datacenter),
            None => who.need_role(Role::Gate),
        }
        .map_err(io::Error::other)
    }
}

/// The address of a node, taken apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct NodeTargetParts {
    authority: Authority,
    host: String,
    port: u16,
    is_tls: bool,
}

impl NodeTargetParts {
    /// `host:port`, `http://host:port` or `https://host:port`; nothing else is the address of a node.
    pub(super) fn parse(address: &str) -> Result<Self, String> {
        let wrong = || format!("`{address}` is not the address of a node; it is written like 10.0.0.1:7400");
        let (is_tls, rest) = match address.split_once("://") {
            None => (false, address),
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some(_) => return Err(wrong()),
        };
        let authority: Authority = rest.trim_end_matches('/').parse().map_err(|_| wrong())?;
        let port = authority.port_u16().ok_or_else(wrong)?;
        if authority.as_str().contains('@') {
            return Err(wrong());
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self { authority, host, port, is_tls })
    }

    /// The URI of the path on that node.
    pub(super) fn uri(&self, path: PathAndQuery) -> Uri {
        let scheme = if self.is_tls { Scheme::HTTPS } else { Scheme::HTTP };
        Uri::builder().scheme(scheme).authority(self.authority.clone()).path_and_query(path).build().expect("all parts")
    }

    /// A request for something that anybody may ask for there.
    pub(super) fn request_of(&self, path: &'static str) -> Request<Body> {
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = self.uri(PathAndQuery::from_static(path));
        request
    }

    /// A connection for this many calls at a time.
    pub(super) async fn connect(&self, trust: Option<&LeaderTrust>, calls: usize) -> io::Result<SendRequest<Body>> {
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {CONNECT_WITHIN:?}"));
        let connecting = async {
            let stream = TcpStream::connect((&*self.host, self.port)).await?;
            stream.set_nodelay(true)?;
            if !self.is_tls {
                return speak_http2(stream, calls).await;
            }
            let trust =
                trust.ok_or_else(|| io::Error::other("it speaks TLS, and no authority to trust is configured"))?;
            let name = ServerName::try_from(self.host.clone()).map_err(io::Error::other)?;
            let stream = TlsConnector::from(trust.config.clone()).connect(name, stream).await?;
            let chain = stream.get_ref().1.peer_certificates().map(<[_]>::to_vec);
            trust.check(of_chain(chain.as_deref()))?;
            speak_http2(Expiring::new(stream, chain.as_deref())?, calls).await
        };
        timeout(CONNECT_WITHIN, connecting).await.map_err(late)?
    }
}

async fn speak_http2<S>(stream: S, calls: usize) -> io::Result<SendRequest<Body>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let all = u32::try_from(calls).unwrap_or(u32::MAX).saturating_mul(STREAM_WINDOW_BYTES).min(i32::MAX as u32);
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(all)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_ANSWERED_WITHIN)
        .keep_alive_while_idle(true)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    // It ends with the last who uses it; what goes wrong with it, every call on it is told.
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to the leader ended");
        }
    });
    Ok(sender)
}

/// The TLS settings by which this node trusts other managers (`ca`, PEM), and the certificate that it shows them.
pub(crate) fn tls_client(
    ca: &Path,
    own: Option<(&Path, &Path)>,
) -> Result<Arc<ClientConfig>, (std::path::PathBuf, String)> {
    let wrong = |path: &Path, what: &dyn ToString| (path.to_owned(), what.to_string());
    let read = |path: &Path| -> Result<Vec<CertificateDer<'static>>, _> {
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect).map_err(|error| wrong(path, &error))
    };
    let mut roots = RootCertStore::empty();
    for certificate in read(ca)? {
        roots.add(certificate).map_err(|error| wrong(ca, &error))?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(ca, &error))?
        .with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let private = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, &error))?;
            builder.with_client_auth_cert(read(cert)?, private).map_err(|error| wrong(cert, &error))?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_forwarded_to_managers_of_the_own_datacenter_and_from_gates_to_gates() {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let config = Arc::new(config);
        let manager = LeaderTrust::new(config.clone(), Some(NodeLabel::new("dc-a").unwrap()));
        let gate = LeaderTrust::new(config, None);
        for (who, by_manager, by_gate) in [
            (Some("onward://manager/dc-a/m1"), true, false),
            (Some("onward://manager/dc-b/m1"), false, false),
            (Some("onward://worker/dc-a/w1"), false, false),
            (Some("onward://gate/g1"), false, true),
            (None, false, false),
        ] {
            let who: Option<PeerIdentity> = who.map(|text| text.parse().unwrap());
            let is_believed = |trust: &LeaderTrust| trust.check(who.clone()).is_ok();
            assert_eq!((is_believed(&manager), is_believed(&gate)), (by_manager, by_gate), "{who:?}");
        }
    }

    #[test]
    fn an_address_has_a_host_and_a_port_and_may_have_a_scheme() {
        for (address, uri) in [
            ("127.0.0.1:7400", "http://127.0.0.1:7400/v1/jobs?limit=1"),
            ("http://m1:7400/", "http://m1:7400/v1/jobs?limit=1"),
            ("https://[::1]:7400", "https://[::1]:7400/v1/jobs?limit=1"),
        ] {
            let target = NodeTargetParts::parse(address).unwrap();
            assert_eq!(target.uri(PathAndQuery::from_static("/v1/jobs?limit=1")).to_string(), uri);
        }
        assert_eq!(NodeTargetParts::parse("https://[::1]:7400").unwrap().host, "::1");
        for address in ["", "m1", "ftp://m1:7400", "user@m1:7400", "m1:x", "m1:7400/path"] {
            assert!(NodeTargetParts::parse(address).is_err(), "{address}");
        }
    }
}
