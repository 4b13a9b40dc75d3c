//! A node's place among others, from its settings.

use std::net::SocketAddr;
use std::path::Path;

use onward_gossip::{GossipRule, Label, Role};
use onward_node::auth::FileError;
use onward_node::gossip::{GossipConfig, next_incarnation, read_keys};

use crate::failure::Failure;

/// Who a node is to others, and whom it knows.
#[derive(Clone, Debug)]
pub struct Place {
    pub name: Label,
    pub role: Role,
    pub datacenter: Option<Label>,
    pub advertise: SocketAddr,
    pub peers: Vec<SocketAddr>,
}

impl Place {
    /// A node that has not been told anything: alone, under a name that means this machine.
    pub fn alone(listen: SocketAddr) -> Self {
        let local = Label::new("local").expect("it is a label");
        Self { name: local.clone(), role: Role::Manager, datacenter: Some(local), advertise: listen, peers: Vec::new() }
    }
}

/// The node's part in gossip: with a key, on the port that it listens on; without one it has none.
pub fn gossip(
    key_file: Option<&Path>,
    data: &Path,
    listen: SocketAddr,
    place: Place,
) -> Result<Option<GossipConfig>, Failure> {
    let Some(key_file) = key_file else { return Ok(None) };
    let cannot = |error: FileError| {
        Failure::new("the node has no part in its cluster")
            .why(error)
            .remedy("see `cluster.key_file` in `onward config`")
    };
    let keys = read_keys(key_file).map_err(cannot)?;
    std::fs::create_dir_all(data)
        .map_err(|error| Failure::new(format!("cannot make {}", data.display())).why(error))?;
    Ok(Some(GossipConfig {
        keys,
        bind: listen,
        advertise: place.advertise,
        name: place.name,
        role: place.role,
        datacenter: place.datacenter,
        incarnation: next_incarnation(data).map_err(cannot)?,
        peers: place.peers,
        rule: GossipRule::default(),
    }))
}
