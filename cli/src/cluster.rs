//! A node's place among others, from its settings.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;

use onward_gossip::{GossipRule, Label, Role};
use onward_node::auth::FileError;
use onward_node::gossip::{GossipConfig, next_incarnation, read_keys};

use crate::config::NodeSettings;
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
    /// A manager's, as its settings say.
    pub fn of_manager(settings: &NodeSettings) -> Result<Self, Failure> {
        let listen = settings.listen;
        let name =
            settings.name.clone().unwrap_or_else(|| listen.to_string().replace(['[', ']'], "").replace(':', "-"));
        let advertise = settings.advertise.as_deref().map(|text| address("advertise", text)).transpose()?;
        let peers = settings.peers.iter().map(|text| address("peers", text)).collect::<Result<Vec<_>, _>>()?;
        let advertise = advertise.unwrap_or(listen);
        Ok(Self {
            name: label("name", &name)?,
            role: Role::Manager,
            datacenter: Some(label("datacenter", settings.datacenter.as_str())?),
            // A node may well be in the list that all of them share.
            peers: peers.into_iter().filter(|peer| *peer != advertise).collect(),
            advertise,
        })
    }
}

fn label(setting: &str, text: &str) -> Result<Label, Failure> {
    Label::new(text).map_err(|_| {
        Failure::new(format!("`{setting}` is `{text}`, which cannot be said in a datagram"))
            .remedy("give a shorter one, of letters, digits, dots and dashes")
            .usage()
    })
}

/// `host:port`, or a URL.
fn address(setting: &str, text: &str) -> Result<SocketAddr, Failure> {
    let host = text.split_once("://").map_or(text, |(_, host)| host).trim_end_matches('/');
    let found = host.to_socket_addrs().map(|mut found| found.next());
    let wrong = |why: String| {
        Failure::new(format!("`{setting}` has `{text}`, which is no address of a node"))
            .why(why)
            .remedy("write a host and a port, like manager-2.internal:7400")
            .usage()
    };
    match found {
        Ok(Some(address)) => Ok(address),
        Ok(None) => Err(wrong("the name has no address".into())),
        Err(error) => Err(wrong(error.to_string())),
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
