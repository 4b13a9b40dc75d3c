//! TLS to the database, by rustls.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::io;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Trusts the certificates that browsers trust.
#[derive(Clone)]
pub(crate) struct DatabaseTls {
    config: Arc<ClientConfig>,
}

impl DatabaseTls {
    pub(crate) fn new() -> Self {
        let roots: RootCertStore = webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect();
        let config = ClientConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .expect("the provider knows the versions that rustls knows")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self { config: Arc::new(config) }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for DatabaseTls {
    type Stream = DatabaseTlsStream<S>;
    type TlsConnect = DatabaseHandshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> Result<DatabaseHandshake, io::Error> {
        let host = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        Ok(DatabaseHandshake { connector: TlsConnector::from(self.config.clone()), host })
    }
}

pub(crate) struct DatabaseHandshake {
    connector: TlsConnector,
    host: ServerName<'static>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for DatabaseHandshake {
    type Stream = DatabaseTlsStream<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<DatabaseTlsStream<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move { self.connector.connect(self.host, stream).await.map(Box::new).map(DatabaseTlsStream) })
    }
}

pub(crate) struct DatabaseTlsStream<S>(Box<tokio_rustls::client::TlsStream<S>>);

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for DatabaseTlsStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for DatabaseTlsStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for DatabaseTlsStream<S> {
    /// None: a pooler in between would not have the database's certificate.
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}
