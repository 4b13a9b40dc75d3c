//! Where a node is, and how to get a connection to it.

mod list;
mod proxy;

use core::fmt;
use core::time::Duration;
use std::io;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

pub use list::NodeAddresses;
pub use proxy::Proxy;

const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const DEFAULT_PORT: u16 = 7400;
/// A node that answers no ping of HTTP/2 within [`PING_ANSWERED_WITHIN`] is gone or frozen: whoever waits for it learns
/// that less than three seconds after it fell silent.
pub(crate) const PING_EVERY: Duration = Duration::from_secs(1);
pub(crate) const PING_ANSWERED_WITHIN: Duration = Duration::from_millis(1_500);

/// A connection to a node, whatever it runs over.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Opens a connection to a node in this very process.
pub type Opener = Arc<dyn Fn() -> io::Result<Box<dyn Stream>> + Send + Sync>;

/// A node's address, with what is needed to be let in. Cheap to clone.
#[derive(Clone)]
pub struct NodeAddress {
    transport: Transport,
    authority: Arc<str>,
    token: Option<Arc<str>>,
}

#[derive(Clone)]
enum Transport {
    Tcp { host: Arc<str>, port: u16, tls: Option<Tls>, proxy: Option<Proxy> },
    Inside(Opener),
}

#[derive(Clone)]
struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

/// `host:port` as it was written, and its parts.
struct HostPort {
    authority: String,
    /// The host without brackets.
    host: String,
    port: u16,
}

#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    #[error("`{0}` is not the address of a node; write it like http://127.0.0.1:7400 or https://onward.example:7400")]
    NotAnAddress(String),
    #[error("no certificate can be read from what was given as trusted: {0}; give PEM")]
    Certificates(String),
}

impl fmt::Debug for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeAddress").field("authority", &self.authority).finish_non_exhaustive()
    }
}

impl NodeAddress {
    /// `http://host:port`, or `https://…` with a certificate that a public authority has signed.
    pub fn at(url: &str) -> Result<Self, AddressError> {
        Self::parse(url, None)
    }

    /// An address as [`NodeAddress::at`] makes it, trusting only these certificates (PEM) for `https`.
    pub fn trusting(url: &str, pem: &[u8]) -> Result<Self, AddressError> {
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let mut roots = RootCertStore::empty();
        for certificate in certificates.map_err(|error| AddressError::Certificates(error.to_string()))? {
            roots.add(certificate).map_err(|error| AddressError::Certificates(error.to_string()))?;
        }
        if roots.is_empty() {
            return Err(AddressError::Certificates("there is none in it".into()));
        }
        Self::parse(url, Some(roots))
    }

    /// A node in this process, which is called by `authority` (its `host:port`).
    pub fn inside(authority: &str, opener: Opener) -> Self {
        Self { transport: Transport::Inside(opener), authority: authority.into(), token: None }
    }

    /// Proves who calls.
    pub fn with_token(mut self, token: &str) -> Self {
        self.token = Some(token.trim().into());
        self
    }

    /// Connections go through a proxy. To a node in this process they do not.
    pub fn through(mut self, between: Proxy) -> Self {
        if let Transport::Tcp { proxy, .. } = &mut self.transport {
            *proxy = Some(between);
        }
        self
    }

    fn parse(url: &str, roots: Option<RootCertStore>) -> Result<Self, AddressError> {
        let wrong = || AddressError::NotAnAddress(url.to_owned());
        let (is_tls, rest) = match url.trim().split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            _ => return Err(wrong()),
        };
        let HostPort { authority, host, port } = HostPort::parse(rest).ok_or_else(wrong)?;
        let tls = is_tls.then(|| Tls::new(&host, roots)).transpose().map_err(|_| wrong())?;
        Ok(Self {
            transport: Transport::Tcp { host: host.into(), port, tls, proxy: None },
            authority: authority.into(),
            token: None,
        })
    }

    /// The same way to another node, `host:port` or a URL: with the same token, the same trust and the same proxy. None
    /// where that is no way: to a node in this process, or in or out of TLS.
    fn elsewhere(&self, address: &str) -> Option<Self> {
        let Transport::Tcp { tls, proxy, .. } = &self.transport else { return None };
        let (is_tls, rest) = match address.split_once("://") {
            None => (tls.is_some(), address),
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some(_) => return None,
        };
        if is_tls != tls.is_some() {
            return None;
        }
        let HostPort { authority, host, port } = HostPort::parse(rest)?;
        let tls = match tls {
            Some(Tls { config, .. }) => {
                Some(Tls { config: config.clone(), name: ServerName::try_from(host.clone()).ok()? })
            }
            None => None,
        };
        let transport = Transport::Tcp { host: host.into(), port, tls, proxy: proxy.clone() };
        Some(Self { transport, authority: authority.into(), token: self.token.clone() })
    }

    /// `host:port`, as a request names it.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    pub(crate) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// Opens a connection for HTTP/2.
    pub(crate) async fn open(&self) -> io::Result<Box<dyn Stream>> {
        self.open_for(b"h2").await
    }

    #[cfg(feature = "client")]
    pub(crate) async fn open_http1(&self) -> io::Result<Box<dyn Stream>> {
        self.open_for(b"http/1.1").await
    }

    async fn open_for(&self, protocol: &[u8]) -> io::Result<Box<dyn Stream>> {
        match &self.transport {
            Transport::Inside(opener) => opener(),
            Transport::Tcp { host, port, tls, proxy } => {
                let opening = async {
                    let stream = match proxy {
                        Some(proxy) => proxy.open(&self.authority).await?,
                        None => TcpStream::connect((&**host, *port)).await?,
                    };
                    stream.set_nodelay(true)?;
                    match tls {
                        None => Ok(Box::new(stream) as Box<dyn Stream>),
                        Some(tls) => Ok(Box::new(tls.connect(stream, protocol).await?) as Box<dyn Stream>),
                    }
                };
                timeout(CONNECT_WITHIN, opening).await.map_err(|_| {
                    io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {CONNECT_WITHIN:?}"))
                })?
            }
        }
    }
}

impl HostPort {
    /// Host and port; the port of nodes where none is given.
    fn parse(text: &str) -> Option<Self> {
        let uri: hyper::Uri = format!("http://{}", text.trim_end_matches('/')).parse().ok()?;
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return None;
        }
        let host = uri.host().filter(|host| !host.is_empty())?;
        let port = uri.port_u16();
        // A port that is none is left out by the parser, as is a user before the host.
        let whole = port.map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        if uri.authority().is_none_or(|named| named.as_str() != whole) {
            return None;
        }
        let port = port.unwrap_or(DEFAULT_PORT);
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        Some(Self { authority: format!("{host}:{port}"), host: bare.to_owned(), port })
    }
}

impl Tls {
    fn new(host: &str, roots: Option<RootCertStore>) -> Result<Self, Box<dyn std::error::Error>> {
        let roots = roots.unwrap_or_else(|| RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() });
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { config: Arc::new(config), name: ServerName::try_from(host.to_owned())? })
    }

    async fn connect(&self, stream: TcpStream, protocol: &[u8]) -> io::Result<TlsStream<TcpStream>> {
        let mut config = (*self.config).clone();
        config.alpn_protocols = vec![protocol.to_vec()];
        TlsConnector::from(Arc::new(config)).connect(self.name.clone(), stream).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (url, authority) in [
            ("http://127.0.0.1:7400", "127.0.0.1:7400"),
            ("http://localhost", "localhost:7400"),
            ("https://onward.example:443/", "onward.example:443"),
            ("http://[::1]:7500", "[::1]:7500"),
        ] {
            assert_eq!(NodeAddress::at(url).unwrap().authority(), authority, "{url}");
        }
        for url in [
            "",
            "127.0.0.1:7400",
            "ftp://x",
            "http://",
            "http://a b",
            "http://h:99999",
            "http://h/path",
            "http://h?x=1",
            "http://user@h",
        ] {
            assert!(matches!(NodeAddress::at(url), Err(AddressError::NotAnAddress(_))), "{url}");
        }
        assert!(matches!(NodeAddress::trusting("https://h", b"nonsense"), Err(AddressError::Certificates(_))));
    }
}
