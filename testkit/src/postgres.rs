//! PostgreSQL: a cluster, its standby, and the standby in the cluster's place.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::geteuid;
use tempfile::TempDir;

use crate::server::{StartPlan, as_user, folder, output_of, run, wait_until};
use crate::{ServerProcess, ServerProcessError, port, programs};

/// PostgreSQL refuses to run as root: then it runs as the user that its package made.
const USER: &str = "postgres";

/// The name that clients give; nobody asks for a password.
const ROLE: &str = "onward";

/// The name by which a primary knows its standby.
const STANDBY: &str = "standby";

/// The time that a standby has to become what it was asked to be, on a busy computer too.
const SETTLED: Duration = Duration::from_secs(120);

/// A PostgreSQL cluster.
#[derive(Debug)]
pub struct PostgresServer {
    server: ServerProcess,
    listen: SocketAddr,
    options: PostgresOptions,
    databases: AtomicU32,
}

/// Options of a PostgreSQL cluster.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    host: Ipv4Addr,
    fsync: bool,
    /// Certificate and key, as PEM.
    tls: Option<(String, String)>,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self { host: Ipv4Addr::LOCALHOST, fsync: false, tls: None }
    }
}

impl PostgresOptions {
    /// Sets the loopback address to listen at.
    pub fn host(mut self, host: Ipv4Addr) -> Self {
        self.host = host;
        self
    }

    /// A commit is on disk before it is answered, as PostgreSQL does by itself. Without this it is quicker, and still
    /// there after the process was killed.
    pub fn fsync(mut self) -> Self {
        self.fsync = true;
        self
    }

    /// Connections may be encrypted, under this certificate and key, as PEM.
    pub fn tls(mut self, certificate: impl Into<String>, key: impl Into<String>) -> Self {
        self.tls = Some((certificate.into(), key.into()));
        self
    }

    pub fn start(&self) -> Result<PostgresServer, ServerProcessError> {
        let user = geteuid().is_root().then_some(USER);
        let folder = folder(None)?;
        hand_over(folder.path(), user, 0o700)?;
        let data = folder.path().join("data");
        let mut initdb = command("initdb", user)?;
        initdb.args(["--no-sync", "--no-locale", "--encoding=UTF8", "--auth=trust"]);
        run(initdb.arg(format!("--username={ROLE}")).arg("--pgdata").arg(&data).current_dir(folder.path()))?;
        if let Some((certificate, key)) = &self.tls {
            for (name, text) in [("server.crt", certificate), ("server.key", key)] {
                let failed = |source| ServerProcessError::Files { folder: data.clone(), source };
                std::fs::write(data.join(name), text).map_err(failed)?;
                hand_over(&data.join(name), user, 0o600)?;
            }
        }
        self.serve(folder, user, "database system is ready to accept connections")
    }

    /// Starts the server on the files in `data` below the folder.
    fn serve(
        &self,
        folder: TempDir,
        user: Option<&'static str>,
        ready: &'static str,
    ) -> Result<PostgresServer, ServerProcessError> {
        let failed = |source| ServerProcessError::Files { folder: folder.path().to_owned(), source };
        let listen = SocketAddr::from((self.host, port::reserve_at(self.host).map_err(failed)?));
        let plan = StartPlan {
            program: programs::find("postgres")?,
            arguments: self.arguments(listen, &folder.path().join("data")),
            variables: Vec::new(),
            user,
            ready,
            // Killed, it would leave its processes and its shared memory behind.
            end_by: "QUIT",
        };
        let options = self.clone();
        Ok(PostgresServer {
            server: ServerProcess::start(&plan, folder)?,
            listen,
            options,
            databases: AtomicU32::new(0),
        })
    }

    fn arguments(&self, listen: SocketAddr, data: &Path) -> Vec<String> {
        let fsync = if self.fsync { "on" } else { "off" };
        let settings = [
            format!("listen_addresses={}", listen.ip()),
            format!("port={}", listen.port()),
            "unix_socket_directories=".into(),
            // With its files, which are removed.
            "dynamic_shared_memory_type=mmap".into(),
            "shared_buffers=16MB".into(),
            format!("fsync={fsync}"),
            format!("full_page_writes={fsync}"),
        ];
        let ssl = self.tls.is_some().then(|| "ssl=on".into());
        let settings = settings.into_iter().chain(ssl);
        let settings = settings.flat_map(|setting| ["-c".into(), setting]);
        ["-D".into(), data.display().to_string()].into_iter().chain(settings).collect()
    }
}

impl PostgresServer {
    /// Starts a cluster that does not sync its files.
    pub fn start() -> Result<Self, ServerProcessError> {
        Self::options().start()
    }

    pub fn options() -> PostgresOptions {
        PostgresOptions::default()
    }

    /// The one cluster of this process, started by the first test that asks. A test that makes outages takes one of
    /// its own.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<PostgresServer> = OnceLock::new();
        SHARED.get_or_init(|| Self::start().expect("PostgreSQL starts"))
    }

    /// Makes an empty database and returns its address.
    pub fn database(&self) -> Result<String, ServerProcessError> {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        let mut create = command("createdb", None)?;
        let (host, port) = (format!("--host={}", self.listen.ip()), format!("--port={}", self.port()));
        create.args([&host, &port, &format!("--username={ROLE}"), &name]);
        run(&mut create)?;
        Ok(self.address(&name))
    }

    /// Starts a standby beside this cluster, as [`Self::start_synchronous_standby_at`] does.
    pub fn start_synchronous_standby(&self) -> Result<Self, ServerProcessError> {
        self.start_synchronous_standby_at(self.options.host)
    }

    /// Starts a standby of this cluster, with the same options, at this loopback address. From then on a commit here is answered once the standby
    /// has it, and not at all while the standby is frozen.
    pub fn start_synchronous_standby_at(&self, host: Ipv4Addr) -> Result<Self, ServerProcessError> {
        let user = geteuid().is_root().then_some(USER);
        let folder = folder(None)?;
        hand_over(folder.path(), user, 0o700)?;
        let from = format!("host={} port={} user={ROLE} application_name={STANDBY}", self.listen.ip(), self.port());
        let mut copy = command("pg_basebackup", user)?;
        copy.args(["--checkpoint=fast", "--no-sync", "--write-recovery-conf", "--dbname", &from, "--pgdata"]);
        run(copy.arg(folder.path().join("data")).current_dir(folder.path()))?;
        let options = self.options.clone().host(host);
        let standby = options.serve(folder, user, "database system is ready to accept read-only connections")?;
        self.ask(&format!("alter system set synchronous_standby_names = '{STANDBY}'"))?;
        self.ask("select pg_reload_conf()")?;
        let state = "select string_agg(sync_state, ' ') from pg_stat_replication";
        wait_until(SETTLED, "a standby that is synchronous", || Ok(self.ask(state)? == "sync"))?;
        Ok(standby)
    }

    /// Makes a primary of a standby: it has all that it was sent, and accepts writes.
    pub fn promote(&self) -> Result<(), ServerProcessError> {
        self.ask("select pg_promote()")?;
        wait_until(SETTLED, "a promoted standby", || Ok(self.ask("select pg_is_in_recovery()")? == "f"))
    }

    /// Asks the database `postgres` of this cluster by `psql`; columns are separated by `|`.
    pub fn ask(&self, question: &str) -> Result<String, ServerProcessError> {
        let mut psql = command("psql", None)?;
        psql.args(["--no-psqlrc", "-qtA", "--set=ON_ERROR_STOP=1", "--command", question]);
        output_of(psql.arg(self.address("postgres")))
    }

    /// The address of a database of this name on this cluster.
    pub fn address(&self, database: &str) -> String {
        format!("postgresql://{ROLE}@{}/{database}", self.listen)
    }

    pub fn port(&self) -> u16 {
        self.listen.port()
    }

    pub fn socket_address(&self) -> SocketAddr {
        self.listen
    }

    /// The process, for outages.
    pub fn server(&self) -> &ServerProcess {
        &self.server
    }
}

/// Gives a folder or file to the user that the server runs as.
fn hand_over(path: &Path, user: Option<&str>, mode: u32) -> Result<(), ServerProcessError> {
    let failed = |source| ServerProcessError::Files { folder: path.to_owned(), source };
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).map_err(failed)?;
    let Some(user) = user else { return Ok(()) };
    let users = std::fs::read_to_string("/etc/passwd").map_err(failed)?;
    let fields = users.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| fields[0] == user);
    let number = |at: usize| fields.as_ref().and_then(|fields| fields.get(at)?.parse::<u32>().ok());
    let (Some(user_id), Some(group_id)) = (number(2), number(3)) else {
        return Err(ServerProcessError::Absent { program: format!("{user} (its user)") });
    };
    chown(path, Some(user_id), Some(group_id)).map_err(failed)
}

fn command(program: &str, user: Option<&str>) -> Result<Command, ServerProcessError> {
    let mut line = as_user(user);
    line.push(programs::find(program)?.display().to_string());
    let mut command = Command::new(&line[0]);
    command.args(&line[1..]);
    Ok(command)
}
