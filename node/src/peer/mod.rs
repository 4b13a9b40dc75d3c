//! Who is at the other end: a node of this cluster, in which role, of which datacenter.
//!
//! With TLS a node shows a certificate that the cluster's own authority has signed ([`certificate`]). Without it
//! (loopback, or `--insecure`) it shows a proof that it has the cluster's key ([`proof`]): that says that a node speaks, and
//! which one it says it is; who has the key may say that of any. Only certificates keep nodes apart from each other.

pub mod certificate;
pub(crate) mod expiry;
pub mod proof;

use core::fmt;
use core::str::FromStr;

use onward_gossip::{NodeLabel, Role};

/// A node as it has proved itself to another.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PeerIdentity {
    pub role: Role,
    /// A gate has none, and every other node has one.
    datacenter: Option<NodeLabel>,
    pub name: NodeLabel,
}

const SCHEME: &str = "onward://";

/// Text that names no node.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("must be like `onward://manager/DATACENTER/NAME`, `onward://worker/DATACENTER/NAME` or `onward://gate/NAME`")]
pub struct NotAPeer;

/// An act that a node may not do in the name that it has proved.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PeerRefusal {
    #[error("{who} is no {needed}; give it a certificate of that role: `onward certs node --role {needed}`")]
    WrongRole { who: PeerIdentity, needed: Role },
    #[error("{who} cannot speak for datacenter `{datacenter}`")]
    WrongDatacenter { who: PeerIdentity, datacenter: NodeLabel },
}

impl PeerIdentity {
    pub fn gate(name: NodeLabel) -> Self {
        Self { role: Role::Gate, datacenter: None, name }
    }

    pub fn manager(datacenter: NodeLabel, name: NodeLabel) -> Self {
        Self { role: Role::Manager, datacenter: Some(datacenter), name }
    }

    pub fn worker(datacenter: NodeLabel, name: NodeLabel) -> Self {
        Self { role: Role::Worker, datacenter: Some(datacenter), name }
    }

    pub fn datacenter(&self) -> Option<&NodeLabel> {
        self.datacenter.as_ref()
    }

    /// A worker cannot be a manager.
    pub fn need_role(&self, needed: Role) -> Result<(), PeerRefusal> {
        if self.role == needed { Ok(()) } else { Err(PeerRefusal::WrongRole { who: self.clone(), needed }) }
    }

    /// A manager cannot speak for another datacenter, and nobody else can speak for one.
    pub fn speaks_for(&self, datacenter: &NodeLabel) -> Result<(), PeerRefusal> {
        self.need_role(Role::Manager)?;
        if self.datacenter.as_ref() == Some(datacenter) {
            return Ok(());
        }
        Err(PeerRefusal::WrongDatacenter { who: self.clone(), datacenter: datacenter.clone() })
    }
}

/// Shown as it stands in a certificate.
impl fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.datacenter {
            Some(datacenter) => write!(f, "{SCHEME}{}/{datacenter}/{}", self.role, self.name),
            None => write!(f, "{SCHEME}{}/{}", self.role, self.name),
        }
    }
}

impl FromStr for PeerIdentity {
    type Err = NotAPeer;

    fn from_str(text: &str) -> Result<Self, NotAPeer> {
        let label = |text: &str| NodeLabel::new(text).map_err(|_| NotAPeer);
        let parts: Vec<&str> = text.strip_prefix(SCHEME).ok_or(NotAPeer)?.split('/').collect();
        match parts[..] {
            ["gate", name] => Ok(Self::gate(label(name)?)),
            ["manager", datacenter, name] => Ok(Self::manager(label(datacenter)?, label(name)?)),
            ["worker", datacenter, name] => Ok(Self::worker(label(datacenter)?, label(name)?)),
            _ => Err(NotAPeer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(text: &str) -> NodeLabel {
        NodeLabel::new(text).unwrap()
    }

    #[test]
    fn identities_are_read_back_and_nothing_else_is_one() {
        let all = [
            (PeerIdentity::gate(label("g1")), "onward://gate/g1"),
            (PeerIdentity::manager(label("dc-a"), label("m1")), "onward://manager/dc-a/m1"),
            (PeerIdentity::worker(label("dc-a"), label("w1")), "onward://worker/dc-a/w1"),
        ];
        for (identity, text) in all {
            assert_eq!((identity.to_string(), text.parse()), (text.to_owned(), Ok(identity)));
        }
        for bad in [
            "",
            "onward://",
            "manager/dc-a/m1",
            "http://manager/dc-a/m1",
            "onward://manager/m1",
            "onward://manager/dc-a/m1/x",
            "onward://manager//m1",
            "onward://manager/dc-a/",
            "onward://gate/dc-a/g1",
            "onward://Manager/dc-a/m1",
            "onward://leader/dc-a/m1",
            "onward://manager/dc-a/m 1",
        ] {
            assert_eq!(bad.parse::<PeerIdentity>(), Err(NotAPeer), "{bad}");
        }
    }

    #[test]
    fn a_worker_is_no_manager_and_a_manager_speaks_for_its_own_datacenter_only() {
        let (a, b) = (label("dc-a"), label("dc-b"));
        let manager = PeerIdentity::manager(a.clone(), label("m1"));
        let worker = PeerIdentity::worker(a.clone(), label("w1"));
        let gate = PeerIdentity::gate(label("g1"));
        assert_eq!((manager.speaks_for(&a), manager.need_role(Role::Manager)), (Ok(()), Ok(())));
        assert!(matches!(manager.speaks_for(&b), Err(PeerRefusal::WrongDatacenter { .. })));
        for other in [worker, gate] {
            assert!(matches!(other.speaks_for(&a), Err(PeerRefusal::WrongRole { .. })), "{other}");
            assert!(matches!(other.need_role(Role::Manager), Err(PeerRefusal::WrongRole { .. })), "{other}");
        }
    }
}
