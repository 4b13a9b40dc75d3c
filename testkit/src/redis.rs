//! Redis.

use crate::server::{StartPlan, folder};
use crate::{ServerProcess, ServerProcessError, port, programs};

/// A Redis server whose writes are in its log before they are answered, so that its end loses nothing.
#[derive(Debug)]
pub struct RedisServer {
    server: ServerProcess,
    port: u16,
}

impl RedisServer {
    pub fn start() -> Result<Self, ServerProcessError> {
        Self::start_with(&[])
    }

    /// Starts a server with further settings, each a name and a value as in `redis.conf`.
    pub fn start_with(settings: &[(&str, &str)]) -> Result<Self, ServerProcessError> {
        let folder = folder(None)?;
        let failed = |source| ServerProcessError::Files { folder: folder.path().to_owned(), source };
        let port = port::reserve().map_err(failed)?;
        let (port_text, files) = (port.to_string(), folder.path().display().to_string());
        let ours = [
            ("bind", "127.0.0.1"),
            ("port", &port_text),
            ("dir", &files),
            ("appendonly", "yes"),
            // What the kernel has is not lost with the process.
            ("appendfsync", "no"),
            // No snapshots beside the log.
            ("save", ""),
        ];
        let all = ours.iter().chain(settings);
        let plan = StartPlan {
            program: programs::find("redis-server")?,
            arguments: all.flat_map(|(name, value)| [format!("--{name}"), (*value).to_owned()]).collect(),
            variables: Vec::new(),
            user: None,
            ready: "Ready to accept connections",
            end_by: "KILL",
        };
        Ok(Self { server: ServerProcess::start(&plan, folder)?, port })
    }

    /// The address for clients.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process, for outages.
    pub fn server(&self) -> &ServerProcess {
        &self.server
    }
}
