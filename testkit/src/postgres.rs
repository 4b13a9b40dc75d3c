//! PostgreSQL.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::geteuid;
use tempfile::TempDir;

use crate::server::{Plan, as_user, folder, run};
use crate::{Server, ServerError, port, programs};

/// PostgreSQL refuses to run as root: then it runs as the user that its package made.
const USER: &str = "postgres";

/// The name that clients give; nobody asks for a password.
const ROLE: &str = "onward";

/// A PostgreSQL cluster.
#[derive(Debug)]
pub struct Postgres {
    server: Server,
    port: u16,
    databases: AtomicU32,
}

/// How a PostgreSQL cluster is started.
#[derive(Clone, Debug, Default)]
pub struct PostgresOptions {
    fsync: bool,
}

impl PostgresOptions {
    /// A commit is on disk before it is answered, as PostgreSQL does by itself. Without this it is quicker, and still
    /// there after the process was killed.
    pub fn fsync(mut self) -> Self {
        self.fsync = true;
        self
    }

    pub fn start(&self) -> Result<Postgres, ServerError> {
        let user = geteuid().is_root().then_some(USER);
        let folder = folder(None)?;
        hand_over(&folder, user)?;
        let data = folder.path().join("data");
        let mut initdb = command("initdb", user)?;
        initdb.args(["--no-sync", "--no-locale", "--encoding=UTF8", "--auth=trust"]);
        run(initdb.arg(format!("--username={ROLE}")).arg("--pgdata").arg(&data).current_dir(folder.path()))?;
        let failed = |source| ServerError::Files { folder: folder.path().to_owned(), source };
        let port = port::reserve().map_err(failed)?;
        let plan = Plan {
            program: programs::find("postgres")?,
            arguments: self.arguments(port, &data),
            variables: Vec::new(),
            user,
            ready: "database system is ready to accept connections",
            // Killed, it would leave its processes and its shared memory behind.
            end_by: "QUIT",
        };
        Ok(Postgres { server: Server::start(&plan, folder)?, port, databases: AtomicU32::new(0) })
    }

    fn arguments(&self, port: u16, data: &Path) -> Vec<String> {
        let fsync = if self.fsync { "on" } else { "off" };
        let settings = [
            "listen_addresses=127.0.0.1".into(),
            format!("port={port}"),
            "unix_socket_directories=".into(),
            // With its files, which are removed.
            "dynamic_shared_memory_type=mmap".into(),
            "shared_buffers=16MB".into(),
            format!("fsync={fsync}"),
            format!("full_page_writes={fsync}"),
        ];
        let settings = settings.into_iter().flat_map(|setting| ["-c".into(), setting]);
        ["-D".into(), data.display().to_string()].into_iter().chain(settings).collect()
    }
}

impl Postgres {
    /// Starts a cluster that does not sync its files.
    pub fn start() -> Result<Self, ServerError> {
        Self::options().start()
    }

    pub fn options() -> PostgresOptions {
        PostgresOptions::default()
    }

    /// The one cluster of this process, started by the first test that asks. A test that makes outages takes one of
    /// its own.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Postgres> = OnceLock::new();
        SHARED.get_or_init(|| Self::start().expect("PostgreSQL starts"))
    }

    /// Makes an empty database and returns its address.
    pub fn database(&self) -> Result<String, ServerError> {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        let mut create = command("createdb", None)?;
        create.args(["--host=127.0.0.1", &format!("--port={}", self.port), &format!("--username={ROLE}"), &name]);
        run(&mut create)?;
        Ok(format!("postgresql://{ROLE}@127.0.0.1:{}/{name}", self.port))
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process, for outages.
    pub fn server(&self) -> &Server {
        &self.server
    }
}

/// Gives the folder to the user that the server runs as.
fn hand_over(folder: &TempDir, user: Option<&str>) -> Result<(), ServerError> {
    let Some(user) = user else { return Ok(()) };
    let failed = |source| ServerError::Files { folder: folder.path().to_owned(), source };
    let users = std::fs::read_to_string("/etc/passwd").map_err(failed)?;
    let fields = users.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| fields[0] == user);
    let number = |at: usize| fields.as_ref().and_then(|fields| fields.get(at)?.parse::<u32>().ok());
    let (Some(user_id), Some(group_id)) = (number(2), number(3)) else {
        return Err(ServerError::Absent { program: format!("{user} (its user)") });
    };
    chown(folder.path(), Some(user_id), Some(group_id)).map_err(failed)?;
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700)).map_err(failed)
}

fn command(program: &str, user: Option<&str>) -> Result<Command, ServerError> {
    let mut line = as_user(user);
    line.push(programs::find(program)?.display().to_string());
    let mut command = Command::new(&line[0]);
    command.args(&line[1..]);
    Ok(command)
}
