//! A node's place among others, from its settings.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;

use onward_gossip::{GossipRule, NodeLabel, Role};
use onward_node::auth::FileError;
use onward_node::gate::peers::{PeerProof, PeerTrust};
use onward_node::gates::GateLinks;
use onward_node::gossip::{GossipConfig, next_incarnation, read_keys};

use onward_node::peer::PeerIdentity;
use onward_node::peer::certificate::{PeerTls, client_config};
use onward_node::peer::proof::PeerProofs;

use crate::config::NodeSettings;
use crate::failure::CommandFailure;

/// Who a node is to others, and whom it knows.
#[derive(Clone, Debug)]
pub struct Place {
    pub name: NodeLabel,
    pub role: Role,
    pub datacenter: Option<NodeLabel>,
    pub advertise: SocketAddr,
    pub peers: Vec<SocketAddr>,
}

impl Place {
    /// A manager's, as its settings say.
    pub fn of_manager(settings: &NodeSettings) -> Result<Self, CommandFailure> {
        Self::of(settings, Role::Manager, Some(label("datacenter", settings.datacenter.as_str())?))
    }

    /// A gate's, which is in no datacenter.
    pub fn of_gate(settings: &NodeSettings) -> Result<Self, CommandFailure> {
        Self::of(settings, Role::Gate, None)
    }

    fn of(settings: &NodeSettings, role: Role, datacenter: Option<NodeLabel>) -> Result<Self, CommandFailure> {
        let listen = settings.listen;
        let advertise = settings.advertise.as_deref().map(|text| address("advertise", text)).transpose()?;
        let peers = settings.peers.iter().map(|text| address("peers", text)).collect::<Result<Vec<_>, _>>()?;
        let advertise = advertise.unwrap_or(listen);
        Ok(Self {
            name: own_name(settings)?,
            role,
            datacenter,
            // A node may well be in the list that all of them share.
            peers: peers.into_iter().filter(|peer| *peer != advertise).collect(),
            advertise,
        })
    }
}

/// The name that the node was given, or its address.
fn own_name(settings: &NodeSettings) -> Result<NodeLabel, CommandFailure> {
    let of_address = || settings.listen.to_string().replace(['[', ']'], "").replace(':', "-");
    label("name", &settings.name.clone().unwrap_or_else(of_address))
}

fn label(setting: &str, text: &str) -> Result<NodeLabel, CommandFailure> {
    NodeLabel::new(text).map_err(|_| {
        CommandFailure::new(format!("`{setting}` is `{text}`, which cannot be said in a datagram"))
            .remedy("give a shorter one, of letters, digits, dots and dashes")
            .usage()
    })
}

/// `host:port`, or a URL.
fn address(setting: &str, text: &str) -> Result<SocketAddr, CommandFailure> {
    let host = text.split_once("://").map_or(text, |(_, host)| host).trim_end_matches('/');
    let found = host.to_socket_addrs().map(|mut found| found.next());
    let wrong = |why: String| {
        CommandFailure::new(format!("`{setting}` has `{text}`, which is no address of a node"))
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
) -> Result<Option<GossipConfig>, CommandFailure> {
    let Some(key_file) = key_file else { return Ok(None) };
    let cannot = |error: FileError| {
        CommandFailure::new("the node has no part in its cluster")
            .why(error)
            .remedy("see `cluster.key_file` in `onward config`")
    };
    let keys = read_keys(key_file).map_err(cannot)?;
    std::fs::create_dir_all(data)
        .map_err(|error| CommandFailure::new(format!("cannot make {}", data.display())).why(error))?;
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

/// The gates that a manager reports to, and what it shows them; none if it has no gates.
pub fn gate_links(settings: &NodeSettings) -> Result<Option<GateLinks>, CommandFailure> {
    if settings.gates.is_empty() {
        return Ok(None);
    }
    let Place { name, datacenter, .. } = Place::of_manager(settings)?;
    let datacenter = datacenter.expect("a manager has one");
    let tls = peer_tls(settings).map(|tls| client_config(&tls)).transpose().map_err(|error| {
        CommandFailure::new("this node's certificate cannot be used")
            .why(error)
            .remedy("`onward certs node` makes one")
            .usage()
    })?;
    if tls.is_none() && settings.cluster_key_file.is_none() {
        return Err(unproven("a manager that reports to gates"));
    }
    let proof =
        PeerProof { who: PeerIdentity::manager(datacenter, name), proofs: proofs(settings)?, tls: tls.map(Arc::new) };
    Ok(Some(GateLinks { gates: settings.gates.clone(), datacenter: settings.datacenter.clone(), proof }))
}

/// Whom a gate believes: certificates where it serves TLS, else the cluster's key.
pub fn gate_trust(settings: &NodeSettings) -> Result<PeerTrust, CommandFailure> {
    if peer_tls(settings).is_some() {
        return Ok(PeerTrust::Certificates);
    }
    let proofs = proofs(settings)?.ok_or_else(|| unproven("a gate"))?;
    Ok(PeerTrust::Proofs { proofs: Box::new(proofs), own: PeerIdentity::gate(own_name(settings)?) })
}

fn peer_tls(settings: &NodeSettings) -> Option<PeerTls> {
    let NodeSettings { tls_cert, tls_key, tls_ca, .. } = settings.clone();
    Some(PeerTls { cert: tls_cert?, key: tls_key?, ca: tls_ca? })
}

fn proofs(settings: &NodeSettings) -> Result<Option<PeerProofs>, CommandFailure> {
    let cannot = |error: FileError| {
        CommandFailure::new("the cluster's key cannot be used")
            .why(error)
            .remedy("`onward certs key` makes one")
            .usage()
    };
    let Some(file) = &settings.cluster_key_file else { return Ok(None) };
    Ok(Some(PeerProofs::new(&read_keys(file).map_err(cannot)?)))
}

/// The failure for a node without a certificate and a key: nobody could tell a datacenter's leader from anybody else.
fn unproven(who: &str) -> CommandFailure {
    CommandFailure::new(format!("{who} needs `cluster.key_file`, or `tls.cert`, `tls.key` and `tls.ca`"))
        .remedy("`onward certs key` makes a key, and every node of the cluster gets the same; `onward certs node` makes certificates")
        .usage()
}
