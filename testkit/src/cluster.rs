//! A datacenter of Onward on this machine: managers that gossip and share a PostgreSQL cluster with a synchronous
//! standby, and workers, each a process of its own. Every manager and every database has an address of its own. A manager
//! can have proxies of its own to the databases and in front of itself, so that it can be cut off from either.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};

use crate::key::write_key;
use crate::server::{StartPlan, folder};
use crate::{FaultProxy, PostgresServer, ServerProcess, ServerProcessError};

/// The port of the managers of this process's first cluster; each further cluster has the next.
const PORT: u16 = 7400;
/// Parts of a cluster that have addresses of their own.
const PRIMARY: u32 = 0;
const STANDBY: u32 = 1;
const FIRST_MANAGER: u32 = 2;
const PARTS: usize = 5;
const MOST_MANAGERS: usize = PARTS - FIRST_MANAGER as usize;

/// The parts of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// The binary.
    onward: PathBuf,
    managers: usize,
    workers: usize,
    slots: u32,
    has_standby: bool,
    has_proxies: bool,
    settings: String,
    /// Environment variables for the process of one manager, by its number.
    variables: Vec<(usize, &'static str, String)>,
}

impl ClusterOptions {
    /// Three managers and no worker, of this binary.
    pub fn of(onward: impl Into<PathBuf>) -> Self {
        Self {
            onward: onward.into(),
            managers: 3,
            workers: 0,
            slots: 4,
            has_standby: false,
            has_proxies: false,
            settings: String::new(),
            variables: Vec::new(),
        }
    }

    pub fn managers(mut self, managers: usize) -> Self {
        self.managers = managers;
        self
    }

    /// Sets the number of workers that run commands, and of commands that each runs at a time.
    pub fn workers(mut self, workers: usize, slots: u32) -> Self {
        (self.workers, self.slots) = (workers, slots);
        self
    }

    /// Commits wait for a standby.
    pub fn standby(mut self) -> Self {
        self.has_standby = true;
        self
    }

    /// Puts proxies in front of databases and managers.
    pub fn proxies(mut self) -> Self {
        self.has_proxies = true;
        self
    }

    /// Further lines for the settings of every manager.
    pub fn settings(mut self, lines: &str) -> Self {
        self.settings.push_str(lines);
        self
    }

    /// A variable in the environment of one manager; they count from 1.
    pub fn variable_of(mut self, manager: usize, name: &'static str, value: impl Into<String>) -> Self {
        self.variables.push((manager, name, value.into()));
        self
    }

    /// # Panics
    /// If there are more managers than addresses for them.
    pub fn start(self) -> Result<Cluster, ServerProcessError> {
        static NEXT_PORT: AtomicU16 = AtomicU16::new(PORT);
        assert!(self.managers <= MOST_MANAGERS, "there are addresses for {MOST_MANAGERS} managers");
        let database = PostgresServer::options().fsync().host(own_address(PRIMARY)).start()?;
        // In a folder that is removed however this process ends.
        let key_file = database.server().folder().join("cluster.key");
        write_key(&key_file)?;
        let standby =
            self.has_standby.then(|| database.start_synchronous_standby_at(own_address(STANDBY))).transpose()?;
        let address = database.database()?;
        let name = address.rsplit('/').next().unwrap_or_default().to_owned();
        let port = NEXT_PORT.fetch_add(1, Ordering::Relaxed);
        let mut cluster = Cluster {
            managers: Vec::new(),
            workers: Vec::new(),
            database,
            standby,
            name,
            port,
            key_file,
            options: self,
        };
        let failed = |source: io::Error| ServerProcessError::Files { folder: PathBuf::from("."), source };
        let mut places = Vec::new();
        for index in 1..=cluster.options.managers {
            let listen = cluster.listen(index);
            let in_front =
                cluster.options.has_proxies.then(|| FaultProxy::with_datagrams(listen)).transpose().map_err(failed)?;
            places.push(Place { listen, in_front });
        }
        let addresses: Vec<SocketAddr> = places.iter().map(Place::address).collect();
        for place in places {
            let manager = cluster.start_manager(place, &addresses)?;
            cluster.managers.push(manager);
        }
        for index in 1..=cluster.options.workers {
            let worker = cluster.start_worker(index)?;
            cluster.workers.push(worker);
        }
        Ok(cluster)
    }
}

/// A running datacenter. It ends with this value.
#[derive(Debug)]
pub struct Cluster {
    // The database last: whoever uses it ends first.
    pub workers: Vec<WorkerProcess>,
    pub managers: Vec<ManagerProcess>,
    pub standby: Option<PostgresServer>,
    pub database: PostgresServer,
    name: String,
    /// The port of every manager.
    port: u16,
    /// The cluster's key; a manager that is started again reads it anew.
    pub key_file: PathBuf,
    options: ClusterOptions,
}

/// A manager, with what is between it and others.
#[derive(Debug)]
pub struct ManagerProcess {
    pub name: String,
    /// The address that it listens at.
    pub listen: SocketAddr,
    /// The address that others dial and send datagrams to: a proxy, if there is one.
    pub address: SocketAddr,
    pub server: ServerProcess,
    /// Proxies in front of the databases, as this manager reaches them.
    pub to_databases: Vec<FaultProxy>,
    /// The proxy in front of this manager.
    pub in_front: Option<FaultProxy>,
}

impl ManagerProcess {
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn data(&self) -> PathBuf {
        self.server.folder().join("data")
    }
}

/// Where a manager listens, and what is in front of it.
struct Place {
    listen: SocketAddr,
    in_front: Option<FaultProxy>,
}

impl Place {
    /// The address that others dial.
    fn address(&self) -> SocketAddr {
        self.in_front.as_ref().map_or(self.listen, |proxy| SocketAddr::from((Ipv4Addr::LOCALHOST, proxy.port())))
    }
}

/// A worker that runs commands.
#[derive(Debug)]
pub struct WorkerProcess {
    pub name: String,
    pub server: ServerProcess,
}

impl Cluster {
    /// The database that the managers share, as `psql` takes it.
    pub fn database_url(&self) -> String {
        self.database.address(&self.name)
    }

    fn listen(&self, index: usize) -> SocketAddr {
        let part = FIRST_MANAGER + u32::try_from(index - 1).expect("there are few managers");
        SocketAddr::from((own_address(part), self.port))
    }

    /// `addresses` are those of all managers.
    fn start_manager(&self, place: Place, addresses: &[SocketAddr]) -> Result<ManagerProcess, ServerProcessError> {
        let index = self.managers.len() + 1;
        let folder = folder(None)?;
        let failed = |source: io::Error| ServerProcessError::Files { folder: folder.path().to_owned(), source };
        let name = format!("manager-{index}");
        let address = place.address();
        let Place { listen, in_front } = place;
        let databases = [Some(&self.database), self.standby.as_ref()].into_iter().flatten();
        let mut hosts: Vec<SocketAddr> = databases.map(PostgresServer::socket_address).collect();
        let mut to_databases = Vec::new();
        if self.options.has_proxies {
            for host in &mut hosts {
                let proxy = FaultProxy::before(*host).map_err(failed)?;
                *host = SocketAddr::from((Ipv4Addr::LOCALHOST, proxy.port()));
                to_databases.push(proxy);
            }
        }
        let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
        let peers: Vec<String> = addresses.iter().filter(|peer| **peer != address).map(ToString::to_string).collect();
        let settings = format!(
            "name = \"{name}\"\nlisten = \"{listen}\"\nadvertise = \"{address}\"\n\
             storage = \"postgres://onward@{}/{}\"\npeers = {peers:?}\n\
             cluster.key_file = {:?}\n{}",
            hosts.join(","),
            self.name,
            self.key_file,
            self.options.settings,
        );
        let file = folder.path().join("manager.toml");
        std::fs::write(&file, settings).map_err(failed)?;
        let data = folder.path().join("data");
        let text = |path: &Path| path.display().to_string();
        let arguments = ["manager".into(), "--config".into(), text(&file), "--data".into(), text(&data)];
        let mut plan = self.plan(arguments.into(), "onward: ready on ");
        let own = self.options.variables.iter().filter(|(manager, ..)| *manager == index);
        plan.variables.extend(own.map(|(_, name, value)| (*name, value.clone())));
        let server = ServerProcess::start(&plan, folder)?;
        Ok(ManagerProcess { name, listen, address, server, to_databases, in_front })
    }

    fn start_worker(&self, index: usize) -> Result<WorkerProcess, ServerProcessError> {
        let name = format!("worker-{index}");
        let mut arguments = vec!["worker".into(), "--id".into(), name.clone()];
        arguments.extend(["--slots".into(), self.options.slots.to_string()]);
        for manager in &self.managers {
            arguments.extend(["--manager".into(), manager.url()]);
        }
        let server = ServerProcess::start(&self.plan(arguments, "onward: a worker with "), folder(None)?)?;
        Ok(WorkerProcess { name, server })
    }

    fn plan(&self, arguments: Vec<String>, ready: &'static str) -> StartPlan {
        StartPlan {
            program: self.options.onward.clone(),
            arguments,
            variables: vec![("ONWARD_LOG", std::env::var("ONWARD_LOG").unwrap_or_else(|_| "info".into()))],
            user: None,
            ready,
            end_by: "KILL",
        }
    }
}

/// A loopback address of this process alone for each part of its clusters; tests have nodes of their own where the
/// second byte begins with the bits 01.
fn own_address(part: u32) -> Ipv4Addr {
    const PREFIXES: [u32; PARTS] = [1, 4, 5, 6, 7];
    let prefix = PREFIXES[part as usize];
    // Pids have up to 22 bits; two that differ in the first alone are never seen at once.
    Ipv4Addr::from(127 << 24 | prefix << 21 | std::process::id() & 0x1f_ffff)
}
