//! PgBouncer, a pooler in front of PostgreSQL.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rustix::process::geteuid;

use crate::server::{StartPlan, folder};
use crate::{PostgresServer, ServerProcess, ServerProcessError, port, programs};

/// A pooler that gives out the connections of a cluster, one per transaction.
#[derive(Debug)]
pub struct PgBouncer {
    server: ServerProcess,
    port: u16,
}

impl PgBouncer {
    /// Starts a pooler in front of this cluster, with further lines of settings.
    pub fn start(cluster: &PostgresServer, settings: &str) -> Result<Self, ServerProcessError> {
        let folder = folder(None)?;
        let failed = |source| ServerProcessError::Files { folder: folder.path().to_owned(), source };
        let port = port::reserve().map_err(failed)?;
        let file = folder.path().join("pgbouncer.ini");
        // `any` lets everybody in, as the user that is named.
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={} user=onward\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nauth_type = any\nauth_file = /dev/null\npool_mode = transaction\n\
             default_pool_size = 2\nunix_socket_dir =\n{settings}\n",
            cluster.port()
        );
        fs::write(&file, text).map_err(failed)?;
        fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).map_err(failed)?;
        let plan = StartPlan {
            program: programs::find("pgbouncer")?,
            arguments: vec![file.display().to_string()],
            variables: Vec::new(),
            // It refuses to run as root.
            user: geteuid().is_root().then_some("postgres"),
            ready: "process up",
            end_by: "KILL",
        };
        Ok(Self { server: ServerProcess::start(&plan, folder)?, port })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process, for outages.
    pub fn server(&self) -> &ServerProcess {
        &self.server
    }
}
