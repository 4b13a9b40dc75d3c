//! TLS from PEM files.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;

use super::config::StartError;
use crate::peer::certificate::{PemError, server_config};

/// The acceptor of TLS connections. With an authority, nodes are asked for their certificates.
pub(super) fn acceptor(cert: &Path, key: &Path, ca: Option<&Path>) -> Result<TlsAcceptor, StartError> {
    let config = server_config(cert, key, ca).map_err(|PemError { path, what }| StartError::Tls { path, what })?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
