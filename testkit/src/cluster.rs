//! A datacenter of Onward on this machine: managers that share a PostgreSQL cluster with a synchronous standby, and
//! workers, each a process of its own. Every manager has an address of its own, and proxies of its own to the databases and
//! in front of itself, so that it can be cut off from either.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use crate::server::{Plan, folder};
use crate::{Postgres, Proxy, Server, ServerError};

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
    port: u16,
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
            port: 7400,
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

    pub fn start(self) -> Result<Cluster, ServerError> {
        let database = Postgres::options().fsync().start()?;
        let standby = self.has_standby.then(|| database.start_synchronous_standby()).transpose()?;
        let address = database.database()?;
        let name = address.rsplit('/').next().unwrap_or_default().to_owned();
        let mut cluster = Cluster { managers: Vec::new(), workers: Vec::new(), database, standby, name, options: self };
        for index in 1..=cluster.options.managers {
            let manager = cluster.start_manager(index)?;
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
    pub standby: Option<Postgres>,
    pub database: Postgres,
    name: String,
    options: ClusterOptions,
}

/// A manager, with what is between it and others.
#[derive(Debug)]
pub struct ManagerProcess {
    pub name: String,
    /// The address that it listens at.
    pub listen: SocketAddr,
    /// The address that others dial: a proxy, if there is one.
    pub address: SocketAddr,
    pub server: Server,
    /// Proxies in front of the databases, as this manager reaches them.
    pub to_databases: Vec<Proxy>,
    /// The proxy in front of this manager.
    pub in_front: Option<Proxy>,
}

impl ManagerProcess {
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn data(&self) -> PathBuf {
        self.server.folder().join("data")
    }
}

/// A worker that runs commands.
#[derive(Debug)]
pub struct WorkerProcess {
    pub name: String,
    pub server: Server,
}

impl Cluster {
    /// The database that the managers share, as `psql` takes it.
    pub fn database_url(&self) -> String {
        self.database.address(&self.name)
    }

    /// An address of this process alone for each node, all with the same port.
    fn address(&self, index: usize) -> SocketAddr {
        let [_, high, middle, low] = std::process::id().to_be_bytes();
        let first = Ipv4Addr::from([127, 128 | high & 63, middle, low]);
        let next = u32::from(first).wrapping_add(u32::try_from(index << 22).unwrap_or(0)) & 0x00ff_ffff | 0x7f00_0000;
        SocketAddr::new(IpAddr::V4(Ipv4Addr::from(next)), self.options.port)
    }

    fn start_manager(&self, index: usize) -> Result<ManagerProcess, ServerError> {
        let folder = folder(None)?;
        let failed = |source: io::Error| ServerError::Files { folder: folder.path().to_owned(), source };
        let name = format!("manager-{index}");
        let listen = self.address(index);
        let ports: Vec<u16> =
            [Some(&self.database), self.standby.as_ref()].into_iter().flatten().map(Postgres::port).collect();
        let (mut to_databases, mut in_front) = (Vec::new(), None);
        if self.options.has_proxies {
            for port in &ports {
                to_databases.push(Proxy::start(*port).map_err(failed)?);
            }
            in_front = Some(Proxy::before(listen).map_err(failed)?);
        }
        let reached: Vec<u16> =
            if to_databases.is_empty() { ports } else { to_databases.iter().map(Proxy::port).collect() };
        let hosts: Vec<String> = reached.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let address = in_front.as_ref().map_or(listen, |proxy| SocketAddr::from((Ipv4Addr::LOCALHOST, proxy.port())));
        let peers: Vec<String> = (1..=self.options.managers)
            .filter(|peer| *peer != index)
            .map(|peer| self.address(peer).to_string())
            .collect();
        let settings = format!(
            "name = \"{name}\"\nlisten = \"{listen}\"\nadvertise = \"{address}\"\n\
             storage = \"postgres://onward@{}/{}\"\npeers = [{}]\n{}",
            hosts.join(","),
            self.name,
            peers.iter().map(|peer| format!("\"{peer}\"")).collect::<Vec<_>>().join(", "),
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
        let server = Server::start(&plan, folder)?;
        Ok(ManagerProcess { name, listen, address, server, to_databases, in_front })
    }

    fn start_worker(&self, index: usize) -> Result<WorkerProcess, ServerError> {
        let name = format!("worker-{index}");
        let mut arguments = vec!["worker".into(), "--id".into(), name.clone()];
        arguments.extend(["--slots".into(), self.options.slots.to_string()]);
        for manager in &self.managers {
            arguments.extend(["--manager".into(), manager.url()]);
        }
        let server = Server::start(&self.plan(arguments, "onward: a worker with "), folder(None)?)?;
        Ok(WorkerProcess { name, server })
    }

    fn plan(&self, arguments: Vec<String>, ready: &'static str) -> Plan {
        Plan {
            program: self.options.onward.clone(),
            arguments,
            variables: vec![("ONWARD_LOG", std::env::var("ONWARD_LOG").unwrap_or_else(|_| "info".into()))],
            user: None,
            ready,
            end_by: "KILL",
        }
    }
}
