//! Stand-ins for SQS. Neither keeps anything over a restart, and a real queue lies between them: `moto` accepts any old
//! receipt, `ministack` only the newest.

use std::path::PathBuf;

use crate::server::{StartPlan, folder};
use crate::{ServerProcess, ServerProcessError, port, venv};

/// `moto` without the packages of its other services.
const PACKAGES: &[&str] = &["moto==5.2.5", "flask==3.1.3", "flask-cors==6.0.5", "ministack==1.5.33"];

/// An SQS stand-in. Any credentials and any region do.
#[derive(Debug)]
pub struct SqsServer {
    server: ServerProcess,
    port: u16,
}

impl SqsServer {
    pub fn moto() -> Result<Self, ServerProcessError> {
        Self::start("moto_server", "Running on http://", |port| {
            let arguments = vec!["-H".into(), "127.0.0.1".into(), "-p".into(), port.to_string()];
            (arguments, Vec::new())
        })
    }

    pub fn ministack() -> Result<Self, ServerProcessError> {
        Self::start("ministack", "Running on http://", |port| {
            let variables = vec![
                ("BIND_HOST", "127.0.0.1".into()),
                ("MINISTACK_HOST", "127.0.0.1".into()),
                ("GATEWAY_PORT", port.to_string()),
                ("SERVICES", "sqs".into()),
            ];
            (Vec::new(), variables)
        })
    }

    fn start(
        program: &str,
        ready: &'static str,
        settings: impl FnOnce(u16) -> (Vec<String>, Vec<(&'static str, String)>),
    ) -> Result<Self, ServerProcessError> {
        let program: PathBuf = venv::programs("sqs", PACKAGES)?.join(program);
        let folder = folder(None)?;
        let failed = |source| ServerProcessError::Files { folder: folder.path().to_owned(), source };
        let port = port::reserve().map_err(failed)?;
        let (arguments, mut variables) = settings(port);
        variables.push(("TMPDIR", folder.path().display().to_string()));
        // Python keeps what it says in a buffer otherwise, and we wait for it.
        variables.push(("PYTHONUNBUFFERED", "1".into()));
        let plan = StartPlan { program, arguments, variables, user: None, ready, end_by: "KILL" };
        Ok(Self { server: ServerProcess::start(&plan, folder)?, port })
    }

    /// The address for clients.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process, for outages.
    pub fn server(&self) -> &ServerProcess {
        &self.server
    }
}
