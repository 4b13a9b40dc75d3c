//! Certificates between nodes: what a node shows, whom it believes, and what it reads from what it is shown.
//!
//! A certificate that the cluster's authority (`tls.ca`) has signed names its node in a URI among its alternative names:
//! `onward://manager/dc-a/m1`. A certificate without one, or with several, is a good certificate of nobody in
//! particular. Clients of the API need none: they show tokens.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::PeerIdentity;

const HTTP_2: &[u8] = b"h2";
const HTTP_1: &[u8] = b"http/1.1";

/// PEM files: what a node shows, and whom it believes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerTls {
    pub cert: PathBuf,
    pub key: PathBuf,
    pub ca: PathBuf,
}

/// A PEM file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {what}", path.display())]
pub struct PemError {
    pub path: PathBuf,
    pub what: String,
}

fn wrong(path: &Path, what: impl ToString) -> PemError {
    PemError { path: path.to_owned(), what: what.to_string() }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PemError> {
    CertificateDer::pem_file_iter(path).and_then(Iterator::collect).map_err(|error| wrong(path, error))
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, PemError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| wrong(path, error))
}

fn authority(path: &Path) -> Result<Arc<RootCertStore>, PemError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| wrong(path, error))?;
    }
    if roots.is_empty() { Err(wrong(path, "there is no certificate in it")) } else { Ok(Arc::new(roots)) }
}

/// The TLS settings that a node serves with. With an authority it asks for certificates, checks those that it is shown,
/// and serves those who show none all the same.
pub fn server_config(cert: &Path, key: &Path, ca: Option<&Path>) -> Result<ServerConfig, PemError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(cert, error))?;
    let builder = match ca {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(authority(ca)?, provider)
                .allow_unauthenticated()
                .build()
                .map_err(|error| wrong(ca, error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config =
        builder.with_single_cert(certificates(cert)?, private_key(key)?).map_err(|error| wrong(cert, error))?;
    config.alpn_protocols = vec![HTTP_2.to_vec(), HTTP_1.to_vec()];
    Ok(config)
}

/// The TLS settings that a node dials others with: it believes the cluster's authority alone, and shows its own
/// certificate.
pub fn client_config(tls: &PeerTls) -> Result<ClientConfig, PemError> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&tls.cert, error))?
        .with_root_certificates(authority(&tls.ca)?)
        .with_client_auth_cert(certificates(&tls.cert)?, private_key(&tls.key)?)
        .map_err(|error| wrong(&tls.cert, error))?;
    config.alpn_protocols = vec![HTTP_2.to_vec()];
    Ok(config)
}

/// The node that a certificate names. That the certificate is good was checked by the handshake.
pub fn named(certificate: &CertificateDer<'_>) -> Option<PeerIdentity> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    let mut identities = certificate.valid_uri_names().filter_map(|uri| uri.parse().ok());
    let first = identities.next()?;
    identities.next().is_none().then_some(first)
}

/// The node at the other end of a connection, by the chain that it has shown.
pub fn of_chain(chain: Option<&[CertificateDer<'_>]>) -> Option<PeerIdentity> {
    named(chain?.first()?)
}
