//! One HTTP/1.1 request over a connection of its own, to addresses that a rule allows.
//!
//! A name is looked up once, each address is judged before it is connected to, and the connected address once more: a
//! name that resolves elsewhere the second time gains nothing. The connection ends with the value that reads its body.

use core::fmt;
use core::time::Duration;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::HOST;
use hyper::{HeaderMap, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// For the lookup of a name, and for each of its addresses: one that is silent leaves time for the next.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
const MAX_URL_BYTES: usize = 8 << 10;

/// An `http` or `https` URL without a user.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Url {
    pub is_tls: bool,
    pub host: String,
    pub port: u16,
    /// Path with the query.
    pub path: String,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    #[error("`{0}` is not an http or https URL that can be used")]
    NotAUrl(String),
    #[error("{host} is at {address}, which is refused: only public addresses are allowed")]
    Refused { host: String, address: IpAddr },
    #[error("no connection to {host}: {error}")]
    Connect { host: String, error: io::Error },
    #[error("{host} does not answer: {error}")]
    Exchange { host: String, error: hyper::Error },
}

/// Decides which addresses may be connected to.
pub(crate) trait Reach: Sync {
    fn allows(&self, address: SocketAddr) -> bool;
}

/// Every address: for servers that the program's own author named.
pub(crate) struct Anywhere;

impl Reach for Anywhere {
    fn allows(&self, _: SocketAddr) -> bool {
        true
    }
}

impl Url {
    pub fn parse(text: &str) -> Result<Self, HttpError> {
        let wrong = || HttpError::NotAUrl(without_user(text).chars().take(200).collect());
        if text.len() > MAX_URL_BYTES {
            return Err(wrong());
        }
        let uri: Uri = text.split('#').next().unwrap_or_default().trim().parse().map_err(|_| wrong())?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong()),
        };
        let authority = uri.authority().filter(|named| !named.as_str().contains('@')).ok_or_else(wrong)?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(wrong());
        }
        let default = if is_tls { 443 } else { 80 };
        let port = match authority.as_str().rsplit_once(':') {
            Some((_, port)) if !port.ends_with(']') => port.parse().map_err(|_| wrong())?,
            _ => default,
        };
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Ok(Self { is_tls, host, port, path })
    }

    /// The address to which a redirect from here leads.
    pub fn join(&self, location: &str) -> Result<Self, HttpError> {
        let scheme = if self.is_tls { "https" } else { "http" };
        if has_scheme(location) {
            Self::parse(location)
        } else if location.starts_with('?') {
            let path = self.path.split('?').next().unwrap_or_default();
            Self::parse(&format!("{scheme}://{}{path}{location}", self.authority()))
        } else if location.starts_with("//") {
            Self::parse(&format!("{scheme}:{location}"))
        } else if location.starts_with('/') {
            Self::parse(&format!("{scheme}://{}{location}", self.authority()))
        } else {
            let path = self.path.split('?').next().unwrap_or_default();
            let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
            Self::parse(&format!("{scheme}://{}{folder}/{location}", self.authority()))
        }
    }

    pub fn authority(&self) -> String {
        format!("{}:{}", self.bare_host(), self.port)
    }

    /// The host, with the port unless it is the scheme's own: servers that redirect to their own name take it for
    /// another one.
    fn host_header(&self) -> String {
        let default = if self.is_tls { 443 } else { 80 };
        if self.port == default { self.bare_host() } else { self.authority() }
    }

    fn bare_host(&self) -> String {
        if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() }
    }
}

/// Whether a location says how to get there, and not only where from here: a scheme is a word before the first colon, and
/// no such word has a slash or a question mark.
fn has_scheme(location: &str) -> bool {
    location.split_once(':').is_some_and(|(word, _)| {
        let is_in_scheme = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        word.starts_with(|first: char| first.is_ascii_alphabetic()) && word.bytes().all(is_in_scheme)
    })
}

/// A text that was taken for a URL, as it may be shown: a user and a password in it are nobody's business.
pub(crate) fn without_user(text: &str) -> String {
    match text.rsplit_once('@') {
        None => text.to_owned(),
        Some((user, rest)) => {
            let scheme = user.split_once("://").map_or("", |(scheme, _)| scheme);
            format!("{scheme}://…@{rest}")
        }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", if self.is_tls { "https" } else { "http" }, self.authority(), self.path)
    }
}

/// An answer. The connection ends when this is dropped.
pub(crate) struct Response {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: Incoming,
    _connection: Connection,
}

/// A connection's own job beside the one that reads.
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Response {
    /// The next bytes of the body; `None` at its end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, hyper::Error> {
        loop {
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(error),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }

    /// The beginning of the body, whatever becomes of the rest.
    pub async fn beginning(&mut self, limit: usize) -> String {
        let mut text = Vec::new();
        while text.len() < limit {
            match self.chunk().await {
                Ok(Some(bytes)) => text.extend_from_slice(&bytes),
                _ => break,
            }
        }
        text.truncate(limit);
        String::from_utf8_lossy(&text).into_owned()
    }
}

/// Sends one request and waits for the head of its answer.
pub(crate) async fn send(
    url: &Url,
    mut request: Request<Full<Bytes>>,
    reach: &dyn Reach,
    trust: &Trust,
) -> Result<Response, HttpError> {
    let stream = connect(url, reach, trust).await?;
    *request.uri_mut() = url.path.parse().map_err(|_| HttpError::NotAUrl(url.to_string()))?;
    let host = url.host_header().parse().map_err(|_| HttpError::NotAUrl(url.to_string()))?;
    request.headers_mut().insert(HOST, host);
    let exchange = |error| HttpError::Exchange { host: url.authority(), error };
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(exchange)?;
    // How a connection ends is seen by whoever reads the answer.
    let connection = Connection(tokio::spawn(async move { drop(connection.await) }));
    let (head, body) = sender.send_request(request).await.map_err(exchange)?.into_parts();
    Ok(Response { status: head.status, headers: head.headers, body, _connection: connection })
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

async fn connect(url: &Url, reach: &dyn Reach, trust: &Trust) -> Result<Box<dyn Stream>, HttpError> {
    let failed = |error| HttpError::Connect { host: url.authority(), error };
    let found = timeout(CONNECT_WITHIN, lookup_host((url.host.as_str(), url.port))).await;
    let addresses = found.map_err(|_| failed(late())).and_then(|found| found.map_err(failed))?;
    connect_to_first(url, addresses, reach, trust).await
}

/// Connects to the first of these addresses that is allowed and answers.
async fn connect_to_first(
    url: &Url,
    addresses: impl Iterator<Item = SocketAddr>,
    reach: &dyn Reach,
    trust: &Trust,
) -> Result<Box<dyn Stream>, HttpError> {
    let failed = |error| HttpError::Connect { host: url.authority(), error };
    let refused = |address: IpAddr| HttpError::Refused { host: url.authority(), address };
    let name = url.is_tls.then(|| ServerName::try_from(url.host.clone())).transpose();
    let name = name.map_err(|_| HttpError::NotAUrl(url.to_string()))?;
    let mut last = failed(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    for address in addresses {
        if !reach.allows(address) {
            last = refused(address.ip());
            continue;
        }
        let opened = timeout(CONNECT_WITHIN, async {
            let stream = TcpStream::connect(address).await.map_err(ConnectFailure::Next)?;
            let connected = stream.peer_addr().map_err(ConnectFailure::End)?;
            if !reach.allows(connected) {
                return Err(ConnectFailure::Refused(connected.ip()));
            }
            stream.set_nodelay(true).map_err(ConnectFailure::End)?;
            let Some(name) = name.clone() else { return Ok(Box::new(stream) as Box<dyn Stream>) };
            let tls = TlsConnector::from(trust.0.clone()).connect(name, stream).await.map_err(ConnectFailure::End)?;
            Ok(Box::new(tls) as Box<dyn Stream>)
        });
        match opened.await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(ConnectFailure::Next(error))) => last = failed(error),
            Ok(Err(ConnectFailure::End(error))) => return Err(failed(error)),
            Ok(Err(ConnectFailure::Refused(address))) => return Err(refused(address)),
            Err(_) => last = failed(late()),
        }
    }
    Err(last)
}

/// The reason why an address gave no connection.
enum ConnectFailure {
    /// Another address may.
    Next(io::Error),
    End(io::Error),
    Refused(IpAddr),
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("not within {CONNECT_WITHIN:?}"))
}

/// The authorities whose certificates are believed. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Trust(Arc<ClientConfig>);

impl Trust {
    /// The authorities that browsers trust.
    pub fn public() -> Self {
        Self::of(RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() })
    }

    /// These certificates alone, in PEM.
    pub fn only(pem: &[u8]) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|error| error.to_string())?;
            roots.add(certificate).map_err(|error| error.to_string())?;
        }
        if roots.is_empty() { Err("there is none in it".into()) } else { Ok(Self::of(roots)) }
    }

    fn of(roots: RootCertStore) -> Self {
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has the versions that it is built with")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self(Arc::new(config))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[test]
    fn urls() {
        for (text, whole) in [
            ("http://a", "http://a:80/"),
            ("https://a.example/x?y=1#z", "https://a.example:443/x?y=1"),
            ("http://[::1]:81/", "http://[::1]:81/"),
            ("http://[::1]", "http://[::1]:80/"),
        ] {
            assert_eq!(Url::parse(text).unwrap().to_string(), whole);
        }
        for (text, header) in [
            ("http://a:80", "a"),
            ("https://a", "a"),
            ("https://a:80", "a:80"),
            ("http://[::1]/", "[::1]"),
            ("http://[::1]:81/", "[::1]:81"),
        ] {
            assert_eq!(Url::parse(text).unwrap().host_header(), header);
        }
        let long = format!("http://a/{}", "x".repeat(MAX_URL_BYTES));
        for text in ["", "a", "file:///etc/passwd", "http://user@a/", "http://a:99999/", "http://", "ftp://a", &long] {
            assert!(Url::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn redirects_are_joined() {
        let from = Url::parse("https://a:1/b/c?d=/e").unwrap();
        for (location, whole) in [
            ("http://b/", "http://b:80/"),
            ("//b/x", "https://b:443/x"),
            ("/x", "https://a:1/x"),
            ("x", "https://a:1/b/x"),
            ("?f", "https://a:1/b/c?f"),
            // What another address is a part of is no address.
            ("/login?next=https://x", "https://a:1/login?next=https://x"),
            ("login?next=https://x", "https://a:1/b/login?next=https://x"),
            ("x/http://y", "https://a:1/b/x/http://y"),
        ] {
            assert_eq!(from.join(location).unwrap().to_string(), whole);
        }
        for location in ["file:///etc/passwd", "gopher://x/", "javascript:alert(1)", "data:,x", "http://user:pass@b/"] {
            assert!(from.join(location).is_err(), "{location}");
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        for (text, shown) in [
            ("http://user:pass@a/v1", "http://…@a/v1"),
            ("http//user:p@ss@a", "://…@a"),
            ("user:pass@a/b@c", "://…@c"),
            ("http://a/v1", "http://a/v1"),
        ] {
            assert_eq!(without_user(text), shown);
            assert!(!Url::parse(text).err().is_some_and(|error| error.to_string().contains("pass")), "{text}");
        }
    }

    /// Allows what a name resolves to, and not what answers there.
    struct OnlyUnspecified;

    impl Reach for OnlyUnspecified {
        fn allows(&self, address: SocketAddr) -> bool {
            address.ip().is_unspecified()
        }
    }

    #[tokio::test]
    async fn the_connected_address_is_judged_too() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        // Whoever connects to no address in particular is connected to this computer.
        let url = Url::parse(&format!("http://0.0.0.0:{}/", listener.local_addr().unwrap().port())).unwrap();
        let hear = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            // Nobody is answered: whoever has said something is told that it is over.
            stream.read(&mut [0]).await.unwrap()
        };
        let trust = Trust::public();
        let (answer, heard) = tokio::join!(send(&url, Request::new(Full::default()), &OnlyUnspecified, &trust), hear);
        let Err(error) = answer else { panic!("it answers") };
        let refused = IpAddr::from([127, 0, 0, 1]);
        assert!(matches!(error, HttpError::Refused { address, .. } if address == refused), "{error}");
        assert_eq!(heard, 0, "nothing was said to it");
    }

    /// In a time that passes at once where nothing else happens.
    #[tokio::test(start_paused = true)]
    async fn an_address_that_is_silent_leaves_time_for_the_next() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let addresses = [silent.local_addr().unwrap(), gone, silent.local_addr().unwrap()];
        let url = Url::parse("https://silent.example/").unwrap();
        let began = tokio::time::Instant::now();
        let ended = connect_to_first(&url, addresses.into_iter(), &Anywhere, &Trust::public()).await;
        let Err(error) = ended else { panic!("nobody answers") };
        assert_eq!(error.to_string(), "no connection to silent.example:443: not within 10s");
        assert_eq!(began.elapsed(), 2 * CONNECT_WITHIN, "each of both had its time");
    }
}
