//! What a node is started with, and why it may not start.

use core::time::Duration;
use std::net::SocketAddr;
use std::path::PathBuf;

use onward_core::settings::Rules;

use crate::auth::FileError;
use crate::engine::ArchiveRules;
use crate::outputs::OutputRules;

#[derive(Clone, Debug)]
pub struct NodeConfig {
    pub listen: SocketAddr,
    /// Off: nothing listens, and only this process can reach the node, by its [`Door`](super::Door).
    pub listens: bool,
    /// The data folder: log, archive, output, keys and tokens.
    pub data: PathBuf,
    /// PEM files: the certificates, the node's own first, and its private key.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Nobody does anything without a token.
    pub require_tokens: bool,
    /// Listen beyond loopback without TLS or without tokens all the same.
    pub insecure: bool,
    /// By which names, besides the address, clients may call this node: `name` with any port, or `name:port`.
    pub host_names: Vec<String>,
    pub rules: Rules,
    pub limits: HttpLimits,
    /// What is kept of finished jobs.
    pub archive: ArchiveRules,
    /// What is kept of what attempts print.
    pub outputs: OutputRules,
    /// See [`Start::commit_mark`](crate::engine::Start::commit_mark).
    pub commit_mark: Option<PathBuf>,
}

impl NodeConfig {
    pub fn new(listen: SocketAddr, data: impl Into<PathBuf>) -> Self {
        Self {
            listen,
            listens: true,
            data: data.into(),
            tls: None,
            require_tokens: false,
            insecure: false,
            host_names: Vec::new(),
            rules: Rules::default(),
            limits: HttpLimits::default(),
            archive: ArchiveRules::default(),
            outputs: OutputRules::default(),
            commit_mark: None,
        }
    }

    /// Whoever can reach the port could run things here, so that what is open to others needs both locks.
    pub(super) fn check(&self) -> Result<(), StartError> {
        let safe = self.listen.ip().is_loopback() || (self.tls.is_some() && self.require_tokens);
        if safe || self.insecure { Ok(()) } else { Err(StartError::Exposed { listen: self.listen }) }
    }
}

/// What a client may take up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HttpLimits {
    pub connections: usize,
    /// From the start of a connection, or the end of the last answer on it, until the next request's headers are here.
    /// The same for the handshake of TLS.
    pub header_read: Duration,
    pub body_bytes: usize,
    pub body_read: Duration,
    /// At a time, on one HTTP/2 connection.
    pub streams: u32,
    /// Of one request by HTTP/2.
    pub header_bytes: u32,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            connections: 4_096,
            header_read: Duration::from_secs(10),
            body_bytes: 16 << 20,
            body_read: Duration::from_secs(30),
            streams: 1_024,
            header_bytes: 64 << 10,
        }
    }
}

/// Why a node did not start. Nothing is left running.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(
        "{listen} can be reached from other computers, and that needs TLS and tokens: give a certificate and its key, \
         and require tokens; or listen on 127.0.0.1; or, if the network is trusted with everything, say `--insecure`"
    )]
    Exposed { listen: SocketAddr },
    #[error("cannot listen on {listen}: {error}; free the port, or listen on another one")]
    Listen { listen: SocketAddr, error: std::io::Error },
    #[error("{0}")]
    Log(#[from] onward_log::Error),
    #[error("the node does not serve after {within:?}: {why}; see to the disk, and start again")]
    NotServing { within: Duration, why: String },
    #[error("{0}")]
    File(#[from] FileError),
    #[error("no thread can be started: {0}; raise the limits of this process")]
    Thread(std::io::Error),
    #[error("{}: {what}; give PEM files with the certificates and their private key", path.display())]
    Tls { path: PathBuf, what: String },
}
