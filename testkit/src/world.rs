//! A world of Onward on this machine: gates, and datacenters of a manager and a worker each, all of them processes. Every
//! datacenter can reach the gates by proxies of its own, so that it can be cut off from them.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::key::write_key;
use crate::port;
use crate::server::{StartPlan, folder};
use crate::{FaultProxy, PostgresServer, ServerProcess, ServerProcessError};

/// The parts of a world.
#[derive(Clone, Debug)]
pub struct WorldOptions {
    /// The binary.
    onward: PathBuf,
    gates: usize,
    datacenters: usize,
    slots: u32,
    has_second_manager: bool,
    has_proxies: bool,
    dialled: Vec<SocketAddr>,
    settings: String,
}

impl WorldOptions {
    /// A gate with embedded storage and a datacenter, of this binary.
    pub fn of(onward: impl Into<PathBuf>) -> Self {
        Self {
            onward: onward.into(),
            gates: 1,
            datacenters: 1,
            slots: 2,
            has_second_manager: false,
            has_proxies: false,
            dialled: Vec::new(),
            settings: String::new(),
        }
    }

    /// Several share a PostgreSQL database.
    pub fn gates(mut self, gates: usize) -> Self {
        self.gates = gates;
        self
    }

    pub fn datacenters(mut self, datacenters: usize) -> Self {
        self.datacenters = datacenters;
        self
    }

    /// Sets the slots of each worker.
    pub fn slots(mut self, slots: u32) -> Self {
        self.slots = slots;
        self
    }

    /// The last datacenter has two managers, on PostgreSQL.
    pub fn second_manager(mut self) -> Self {
        self.has_second_manager = true;
        self
    }

    /// Puts proxies between managers and gates.
    pub fn proxies(mut self) -> Self {
        self.has_proxies = true;
        self
    }

    /// Managers dial these addresses instead of the gates': there is a relay of the test's own.
    pub fn dialled_at(mut self, addresses: &[SocketAddr]) -> Self {
        self.dialled = addresses.to_vec();
        self
    }

    /// Further lines for the settings of every gate and manager. They come last, so that they may begin a table.
    pub fn settings(mut self, lines: &str) -> Self {
        self.settings.push_str(lines);
        self
    }

    pub fn start(self) -> Result<World, ServerProcessError> {
        let shared = folder(None)?;
        let key = shared.path().join("cluster.key");
        write_key(&key)?;
        let needs_database = self.gates > 1 || self.has_second_manager;
        let postgres = needs_database.then(|| PostgresServer::options().fsync().start()).transpose()?;
        let mut world =
            World { workers: Vec::new(), managers: Vec::new(), gates: Vec::new(), postgres, shared, options: self };
        world.start_nodes()?;
        Ok(world)
    }
}

/// A running world. It ends with this value.
#[derive(Debug)]
pub struct World {
    // The database last: whoever uses it ends first.
    pub workers: Vec<WorldWorker>,
    pub managers: Vec<ManagerOfDatacenter>,
    pub gates: Vec<WorldGate>,
    pub postgres: Option<PostgresServer>,
    /// The cluster's key is here.
    shared: TempDir,
    options: WorldOptions,
}

#[derive(Debug)]
pub struct WorldGate {
    pub name: String,
    pub address: SocketAddr,
    pub server: ServerProcess,
}

#[derive(Debug)]
pub struct ManagerOfDatacenter {
    pub name: String,
    pub datacenter: String,
    pub address: SocketAddr,
    pub server: ServerProcess,
    /// Proxies in front of each gate, as this manager reaches it.
    pub to_gates: Vec<FaultProxy>,
}

/// A worker that runs commands.
#[derive(Debug)]
pub struct WorldWorker {
    pub name: String,
    pub datacenter: String,
    pub server: ServerProcess,
}

impl WorldGate {
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn data(&self) -> PathBuf {
        self.server.folder().join("data")
    }
}

impl ManagerOfDatacenter {
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn data(&self) -> PathBuf {
        self.server.folder().join("data")
    }

    /// Cuts it off from all gates, or lets it reach them again.
    ///
    /// # Panics
    /// If the world has no proxies.
    pub fn cut_off(&self, is_cut_off: bool) {
        assert!(!self.to_gates.is_empty(), "a world without proxies cannot be cut");
        for proxy in &self.to_gates {
            proxy.refuse(is_cut_off);
            if is_cut_off {
                proxy.cut();
            }
        }
    }
}

/// Something to start, and where.
struct NodePlan<'a> {
    role: &'static str,
    name: &'a str,
    listen: SocketAddr,
    /// Lines that are this node's own.
    settings: String,
}

impl World {
    /// `dc-a`, `dc-b` and so on.
    pub fn datacenter(index: usize) -> String {
        format!("dc-{}", char::from(b'a' + u8::try_from(index % 26).unwrap_or(0)))
    }

    pub fn key_file(&self) -> PathBuf {
        self.shared.path().join("cluster.key")
    }

    fn start_nodes(&mut self) -> Result<(), ServerProcessError> {
        let options = self.options.clone();
        let gates: Vec<SocketAddr> = (0..options.gates).map(|_| address()).collect::<Result<_, _>>()?;
        let mut proxies = Vec::new();
        let managers: Vec<usize> = (0..options.datacenters)
            .flat_map(|index| {
                let is_double = options.has_second_manager && index + 1 == options.datacenters;
                std::iter::repeat_n(index, if is_double { 2 } else { 1 })
            })
            .collect();
        for _ in &managers {
            let before = |gate: &SocketAddr| FaultProxy::before(*gate);
            let made: io::Result<Vec<FaultProxy>> = gates.iter().filter(|_| options.has_proxies).map(before).collect();
            proxies.push(made.map_err(|source| ServerProcessError::Files { folder: PathBuf::from("."), source })?);
        }
        let gate_storage = if options.gates > 1 { self.database()? } else { "embedded".into() };
        let names: Vec<String> = proxies.iter().flatten().map(|proxy| format!("127.0.0.1:{}", proxy.port())).collect();
        for (index, listen) in gates.iter().enumerate() {
            let name = format!("gate-{}", index + 1);
            let peers = gates.iter().filter(|peer| *peer != listen).map(ToString::to_string);
            let settings = format!(
                "storage = \"{gate_storage}\"\nhost_names = {:?}\npeers = {:?}\n",
                names,
                peers.collect::<Vec<_>>()
            );
            let server = self.start_node(NodePlan { role: "gate", name: &name, listen: *listen, settings })?;
            self.gates.push(WorldGate { name, address: *listen, server });
        }
        let shared_storage = if options.has_second_manager { self.database()? } else { String::new() };
        for (index, to_gates) in managers.iter().zip(proxies) {
            self.start_manager(*index, to_gates, &shared_storage)?;
        }
        for index in 0..options.datacenters {
            let worker = self.start_worker(index)?;
            self.workers.push(worker);
        }
        Ok(())
    }

    fn database(&self) -> Result<String, ServerProcessError> {
        self.postgres.as_ref().expect("it was started for this").database()
    }

    fn start_manager(
        &mut self,
        index: usize,
        to_gates: Vec<FaultProxy>,
        shared: &str,
    ) -> Result<(), ServerProcessError> {
        let datacenter = Self::datacenter(index);
        let is_double = self.options.has_second_manager && index + 1 == self.options.datacenters;
        let others = self.managers.iter().filter(|known| known.datacenter == datacenter);
        let peers: Vec<String> = others.map(|other| other.address.to_string()).collect();
        let place = peers.len() + 1;
        let name = format!("{datacenter}-manager-{place}");
        let gates: Vec<String> = match (&self.options.dialled[..], &to_gates[..]) {
            ([], []) => self.gates.iter().map(|gate| gate.address.to_string()).collect(),
            ([], proxies) => proxies.iter().map(|proxy| format!("127.0.0.1:{}", proxy.port())).collect(),
            (dialled, _) => dialled.iter().map(ToString::to_string).collect(),
        };
        let storage = if is_double { shared } else { "embedded" };
        let settings =
            format!("datacenter = \"{datacenter}\"\nstorage = \"{storage}\"\ngates = {gates:?}\npeers = {peers:?}\n");
        let listen = address()?;
        let server = self.start_node(NodePlan { role: "manager", name: &name, listen, settings })?;
        self.managers.push(ManagerOfDatacenter { name, datacenter, address: listen, server, to_gates });
        Ok(())
    }

    fn start_worker(&self, index: usize) -> Result<WorldWorker, ServerProcessError> {
        let datacenter = Self::datacenter(index);
        let name = format!("{datacenter}-worker");
        let mut arguments = vec!["worker".into(), "--id".into(), name.clone()];
        arguments.extend(["--slots".into(), self.options.slots.to_string()]);
        for manager in self.managers.iter().filter(|manager| manager.datacenter == datacenter) {
            arguments.extend(["--manager".into(), manager.url()]);
        }
        let server = ServerProcess::start(&self.plan(arguments, "onward: a worker with "), folder(None)?)?;
        Ok(WorldWorker { name, datacenter, server })
    }

    fn start_node(&self, node: NodePlan<'_>) -> Result<ServerProcess, ServerProcessError> {
        let folder = folder(None)?;
        let NodePlan { role, name, listen, settings } = node;
        let key = self.key_file();
        let settings = format!(
            "name = \"{name}\"\nlisten = \"{listen}\"\n{settings}cluster.key_file = \"{}\"\n{}",
            key.display(),
            self.options.settings,
        );
        let file = folder.path().join(format!("{role}.toml"));
        std::fs::write(&file, settings)
            .map_err(|source| ServerProcessError::Files { folder: folder.path().to_owned(), source })?;
        let data = folder.path().join("data");
        let text = |path: &Path| path.display().to_string();
        let arguments = [role.into(), "--config".into(), text(&file), "--data".into(), text(&data)];
        ServerProcess::start(&self.plan(arguments.into(), "onward: ready on "), folder)
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

/// An address on loopback, with a port that nobody else is given.
fn address() -> Result<SocketAddr, ServerProcessError> {
    let port = port::reserve().map_err(|source| ServerProcessError::Files { folder: PathBuf::from("."), source })?;
    Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
}
