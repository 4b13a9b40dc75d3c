//! The processes of a world: what they are, and how all of them are stopped.

use std::path::PathBuf;
use std::time::Duration;

use crate::{ServerProcess, World};

/// A process of a world, as it is told about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorldNode<'a> {
    pub name: &'a str,
    pub role: &'static str,
    pub datacenter: Option<&'a str>,
    /// The URL of a gate or manager; workers have none.
    pub address: Option<String>,
    pub pid: i32,
    pub data: PathBuf,
}

impl World {
    /// Gates, managers, workers.
    pub fn nodes(&self) -> Vec<WorldNode<'_>> {
        let pid = |server: &ServerProcess| server.pid().as_raw_nonzero().get();
        let gates = self.gates.iter().map(|gate| WorldNode {
            name: &gate.name,
            role: "gate",
            datacenter: None,
            address: Some(gate.url()),
            pid: pid(&gate.server),
            data: gate.data(),
        });
        let managers = self.managers.iter().map(|manager| WorldNode {
            name: &manager.name,
            role: "manager",
            datacenter: Some(&manager.datacenter),
            address: Some(manager.url()),
            pid: pid(&manager.server),
            data: manager.data(),
        });
        let workers = self.workers.iter().map(|worker| WorldNode {
            name: &worker.name,
            role: "worker",
            datacenter: Some(&worker.datacenter),
            address: None,
            pid: pid(&worker.server),
            data: worker.server.folder().to_owned(),
        });
        gates.chain(managers).chain(workers).collect()
    }

    /// Asks every node to end and waits for it, as an operator does: workers first, so that managers hear of what they
    /// end; gates last.
    pub fn stop(&self, patience: Duration) {
        let workers = self.workers.iter().map(|worker| &worker.server);
        let managers = self.managers.iter().map(|manager| &manager.server);
        let gates = self.gates.iter().map(|gate| &gate.server);
        workers.chain(managers).chain(gates).for_each(|server| server.stop(patience));
    }
}
