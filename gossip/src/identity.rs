//! The identity of a node: its address, role, datacenter and name, and which of its lives this is.
//!
//! Health is no part of it: an identity that changed with every change of health would be a new member each time.

use core::fmt;
use core::net::SocketAddr;
use core::str::FromStr;
use std::sync::Arc;

/// Longest name of a node or of a datacenter.
pub const MAX_LABEL_BYTES: usize = 63;

/// The name of a node or of a datacenter: letters, digits, `.`, `_` and `-`, so that it can stand in a certificate, in
/// a URL and in a host name as it is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeLabel(Arc<str>);

/// Text that cannot be the name of a node or of a datacenter.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("must be 1 to {MAX_LABEL_BYTES} letters, digits, `.`, `_` or `-`, and begin with a letter or a digit")]
pub struct NotALabel;

impl NodeLabel {
    pub fn new(text: &str) -> Result<Self, NotALabel> {
        let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        let begins_well = text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric());
        if begins_well && text.len() <= MAX_LABEL_BYTES && text.bytes().all(is_inner) {
            Ok(Self(text.into()))
        } else {
            Err(NotALabel)
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NodeLabel {
    type Err = NotALabel;

    fn from_str(text: &str) -> Result<Self, NotALabel> {
        Self::new(text)
    }
}

impl fmt::Display for NodeLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodeLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// The role of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Role {
    Gate,
    Manager,
    Worker,
}

impl Role {
    pub const ALL: [Self; 3] = [Self::Gate, Self::Manager, Self::Worker];

    pub const fn code(self) -> &'static str {
        match self {
            Self::Gate => "gate",
            Self::Manager => "manager",
            Self::Worker => "worker",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

/// Text that names none of the three roles.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("must be `gate`, `manager` or `worker`")]
pub struct NotARole;

impl FromStr for Role {
    type Err = NotARole;

    fn from_str(text: &str) -> Result<Self, NotARole> {
        Self::ALL.into_iter().find(|role| role.code() == text).ok_or(NotARole)
    }
}

/// A node in one of its lives.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct NodeIdentity {
    /// The address by which others reach it, by UDP for gossip and by TCP for everything else.
    pub address: SocketAddr,
    pub role: Role,
    /// A gate has none.
    pub datacenter: Option<NodeLabel>,
    pub name: NodeLabel,
    /// The life of the process. The number rises from one life to the next; whoever starts a node sees to that.
    pub incarnation: u64,
    /// The number of times that this life was declared down by the others and came back.
    pub(crate) renewals: u32,
}

impl NodeIdentity {
    pub const fn new(
        address: SocketAddr,
        role: Role,
        datacenter: Option<NodeLabel>,
        name: NodeLabel,
        incarnation: u64,
    ) -> Self {
        Self { address, role, datacenter, name, incarnation, renewals: 0 }
    }

    /// An unknown node at this address: the addressee of a first announcement.
    pub(crate) fn unknown_at(address: SocketAddr) -> Self {
        Self::new(address, Role::Manager, None, NodeLabel("unknown".into()), 0)
    }

    pub const fn renewals(&self) -> u32 {
        self.renewals
    }

    /// Whether both are the same life of the same node.
    pub fn is_same_life(&self, other: &Self) -> bool {
        self.address == other.address && self.incarnation == other.incarnation
    }
}

impl foca::Identity for NodeIdentity {
    type Addr = SocketAddr;

    /// Declared down while alive (frozen, or cut off): the same life under a number that the others have not buried.
    fn renew(&self) -> Option<Self> {
        Some(Self { renewals: self.renewals.checked_add(1)?, ..self.clone() })
    }

    fn addr(&self) -> SocketAddr {
        self.address
    }

    /// The later life of a node replaces the earlier one.
    fn win_addr_conflict(&self, adversary: &Self) -> bool {
        (self.incarnation, self.renewals) > (adversary.incarnation, adversary.renewals)
    }
}

/// A ring of nodes that gossip with each other. A manager is in both, with one machine for each.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Ring {
    /// Managers and workers of one datacenter.
    Datacenter,
    /// Gates, and the managers of all datacenters.
    Global,
}

impl Ring {
    pub const fn code(self) -> &'static str {
        match self {
            Self::Datacenter => "datacenter",
            Self::Global => "global",
        }
    }

    /// Whether `other` belongs into the ring that `own` is in.
    pub fn admits(self, own: &NodeIdentity, other: &NodeIdentity) -> bool {
        match self {
            Self::Datacenter => other.role != Role::Gate && other.datacenter == own.datacenter,
            Self::Global => other.role != Role::Worker,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foca::Identity;

    fn node(role: Role, datacenter: Option<&str>, incarnation: u64) -> NodeIdentity {
        let label = |text| NodeLabel::new(text).unwrap();
        NodeIdentity::new("127.0.0.1:7400".parse().unwrap(), role, datacenter.map(label), label("a"), incarnation)
    }

    #[test]
    fn labels_can_stand_in_a_url() {
        for good in ["a", "dc-a", "m1.example_x", "7", &"x".repeat(MAX_LABEL_BYTES)] {
            assert_eq!(NodeLabel::new(good).map(|label| label.as_str().to_owned()), Ok(good.to_owned()));
        }
        for bad in ["", "-a", ".a", "a/b", "a b", "ä", "a\n", &"x".repeat(MAX_LABEL_BYTES + 1)] {
            assert_eq!(NodeLabel::new(bad), Err(NotALabel), "{bad}");
        }
    }

    #[test]
    fn the_later_life_wins_and_a_renewal_wins_within_a_life() {
        let (first, second) = (node(Role::Manager, None, 1), node(Role::Manager, None, 2));
        let renewed = first.renew().unwrap();
        // contender, against, wins
        let table =
            [(&second, &first, true), (&first, &second, false), (&renewed, &first, true), (&second, &renewed, true)];
        for (one, other, wins) in table {
            assert_eq!(one.win_addr_conflict(other), wins, "{one:?} {other:?}");
        }
        assert!(renewed.is_same_life(&first) && !second.is_same_life(&first));
    }

    #[test]
    fn rings() {
        let own = node(Role::Manager, Some("dc-a"), 1);
        // who, in the ring of the datacenter, in the global ring
        let table = [
            (Role::Manager, Some("dc-a"), true, true),
            (Role::Worker, Some("dc-a"), true, false),
            (Role::Manager, Some("dc-b"), false, true),
            (Role::Worker, Some("dc-b"), false, false),
            (Role::Gate, None, false, true),
        ];
        for (role, datacenter, local, global) in table {
            let other = node(role, datacenter, 1);
            let admitted = (Ring::Datacenter.admits(&own, &other), Ring::Global.admits(&own, &other));
            assert_eq!(admitted, (local, global), "{other:?}");
        }
    }
}
