//! What a node sees of its ring: the members, how each says it is, and who contradicts whom.
//!
//! Every node names those that it takes for suspect or down in its own health. So each sees what the others see, and a
//! node that only some can reach shows as a disagreement and not as a riddle.

use core::net::SocketAddr;
use core::time::Duration;

use crate::datagram::DropCounts;
use crate::health::{HealthReport, NodeHealth, address_hash};
use crate::identity::{NodeIdentity, NodeLabel, Ring};

/// The standing of a member with the node that looks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum MemberState {
    Alive,
    /// The member did not answer, and has not yet answered for that.
    Suspect,
    Down,
    /// The member said goodbye.
    Left,
}

impl MemberState {
    pub const fn code(self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Suspect => "suspect",
            Self::Down => "down",
            Self::Left => "left",
        }
    }

    /// Whether the member is taken for one that does not answer though it should.
    pub const fn is_doubted(self) -> bool {
        matches!(self, Self::Suspect | Self::Down)
    }

    /// Whether the member still counts: one that is suspect may answer yet.
    pub const fn is_live(self) -> bool {
        matches!(self, Self::Alive | Self::Suspect)
    }
}

/// A view of one other node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberView {
    pub identity: NodeIdentity,
    pub state: MemberState,
    /// The time for which it has been in that state.
    pub state_for: Duration,
    /// The last report of this life of the member.
    pub report: Option<HealthReport>,
    /// Time since that was heard.
    pub heard_ago: Option<Duration>,
}

/// A node that some take for dead and others do not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Disagreement {
    pub about: NodeIdentity,
    pub doubted_by: Vec<NodeLabel>,
    pub trusted_by: Vec<NodeLabel>,
}

/// The whole ring, at one instant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RingView {
    pub ring: Ring,
    pub own: NodeIdentity,
    pub own_health: NodeHealth,
    /// Sorted by name.
    pub members: Vec<MemberView>,
    pub disagreements: Vec<Disagreement>,
    /// The factor by which this node stretches its timers: 1 unless it is slow.
    pub stretch: u32,
    /// The number of times that this process did not run when it should have.
    pub gaps: u64,
    pub received: u64,
    pub sent: u64,
    pub drops: DropCounts,
}

impl RingView {
    pub fn member(&self, address: SocketAddr) -> Option<&MemberView> {
        self.members.iter().find(|member| member.identity.address == address)
    }

    pub fn named(&self, name: &str) -> Option<&MemberView> {
        self.members.iter().find(|member| member.identity.name.as_str() == name)
    }
}

/// Voices are this node's own and those of live members that have said something. One whose doubts are too many to be
/// listed is not counted as trusting those that it does not list.
pub(crate) fn disagreements(own: &NodeIdentity, members: &[MemberView]) -> Vec<Disagreement> {
    let mut found = Vec::new();
    for about in members {
        let hash = address_hash(&about.identity.address);
        let (mut doubted_by, mut trusted_by) = (Vec::new(), Vec::new());
        if about.state.is_doubted() {
            doubted_by.push(own.name.clone());
        } else if about.state == MemberState::Alive {
            trusted_by.push(own.name.clone());
        }
        for voice in members.iter().filter(|voice| voice.state.is_live()) {
            let Some(report) = &voice.report else { continue };
            if voice.identity.address == about.identity.address {
                continue;
            }
            if report.doubts.contains(&hash) {
                doubted_by.push(voice.identity.name.clone());
            } else if report.lists_all_doubts() && about.state != MemberState::Left {
                trusted_by.push(voice.identity.name.clone());
            }
        }
        if !doubted_by.is_empty() && !trusted_by.is_empty() {
            found.push(Disagreement { about: about.identity.clone(), doubted_by, trusted_by });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Role;

    fn identity(number: u16) -> NodeIdentity {
        let address = SocketAddr::from(([127, 0, 0, 1], number));
        let name = NodeLabel::new(&format!("m{number}")).unwrap();
        NodeIdentity::new(address, Role::Manager, None, name, 1)
    }

    fn member(number: u16, state: MemberState, doubts: Option<&[u16]>) -> MemberView {
        let report = doubts.map(|doubts| HealthReport {
            doubts: doubts.iter().map(|number| address_hash(&identity(*number).address)).collect(),
            doubts_in_all: doubts.len() as u8,
            ..HealthReport::default()
        });
        let heard_ago = report.as_ref().map(|_| Duration::ZERO);
        MemberView { identity: identity(number), state, state_for: Duration::ZERO, report, heard_ago }
    }

    fn told(members: &[MemberView]) -> Vec<String> {
        let names = |labels: &[NodeLabel]| labels.iter().map(NodeLabel::as_str).collect::<Vec<_>>().join("+");
        let found = disagreements(&identity(1), members);
        found
            .iter()
            .map(|one| format!("{}: {} / {}", one.about.name, names(&one.doubted_by), names(&one.trusted_by)))
            .collect()
    }

    #[test]
    fn who_contradicts_whom() {
        use MemberState::*;
        // All agree, on life and on death.
        assert!(told(&[member(2, Alive, Some(&[])), member(3, Alive, Some(&[]))]).is_empty());
        assert!(told(&[member(2, Alive, Some(&[3])), member(3, Down, Some(&[2]))]).is_empty());
        // We reach it, another does not; and the other way round.
        assert_eq!(told(&[member(2, Alive, Some(&[3])), member(3, Alive, Some(&[]))]), ["m3: m2 / m1"]);
        assert_eq!(told(&[member(2, Alive, Some(&[])), member(3, Suspect, Some(&[]))]), ["m3: m1 / m2"]);
        // Who is down, or has said nothing yet, has no voice. Who has left is missed by nobody.
        assert!(told(&[member(2, Down, Some(&[3])), member(3, Alive, None)]).is_empty());
        assert!(told(&[member(2, Alive, None), member(3, Down, None)]).is_empty());
        assert!(told(&[member(2, Alive, Some(&[3])), member(3, Left, None)]).is_empty());
    }

    #[test]
    fn one_with_more_doubts_than_it_lists_trusts_nobody_for_certain() {
        let mut crowded = member(2, MemberState::Alive, Some(&[]));
        crowded.report.as_mut().unwrap().doubts_in_all = 9;
        assert!(told(&[crowded, member(3, MemberState::Down, None)]).is_empty());
    }
}
