//! Who may speak for a datacenter, and how its leader shows that.
//!
//! Where TLS is on, by the certificate that the connection was made with: a manager's, with its datacenter in it, so that
//! a manager cannot speak for another datacenter. Else, on loopback or a network that is trusted, by the proof that it has
//! the cluster's key ([`crate::peer::proof`]). Without either nobody opens a stream.

use core::fmt;
use std::sync::Arc;

use axum::http::HeaderMap;
use onward_core::ids::Name;
use onward_core::time::Wall;
use onward_gossip::Role;
use tokio_rustls::rustls::ClientConfig;

use crate::api::access::Connection;
use crate::peer::proof::{HEADER, PeerProofs, ProofError};
use crate::peer::{PeerIdentity, PeerRefusal};

/// Why nobody was believed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unproven {
    #[error(
        "the manager has shown no certificate; give it one: `onward certs node`, and `tls.cert`, `tls.key`, `tls.ca`"
    )]
    NoCertificate,
    #[error("the call proves nothing; give the manager the cluster's key: `cluster.key_file`")]
    NoProof,
    #[error("{0}")]
    Proof(#[from] ProofError),
    #[error("{0}")]
    Refused(#[from] PeerRefusal),
    #[error("{0} speaks for no datacenter")]
    NoDatacenter(PeerIdentity),
}

/// What a gate believes.
#[derive(Clone, Debug)]
pub enum PeerTrust {
    /// Certificates that the cluster's authority has signed.
    Certificates,
    /// Proofs under the cluster's key.
    Proofs(PeerProofs),
}

impl PeerTrust {
    /// The datacenter that whoever calls may speak for.
    pub fn datacenter_of(
        &self,
        connection: Option<&Connection>,
        headers: &HeaderMap,
        now: Wall,
    ) -> Result<Name, Unproven> {
        let who = match self {
            Self::Certificates => connection.and_then(Connection::identity).cloned().ok_or(Unproven::NoCertificate)?,
            Self::Proofs(proofs) => {
                let value = headers.get(HEADER).ok_or(Unproven::NoProof)?;
                proofs.check(value.to_str().map_err(|_| ProofError::Malformed)?, now)?
            }
        };
        who.need_role(Role::Manager)?;
        let name = who.datacenter().and_then(|datacenter| Name::new(datacenter.as_str()));
        name.ok_or(Unproven::NoDatacenter(who))
    }
}

/// What a manager shows to gates.
#[derive(Clone)]
pub struct PeerProof {
    pub who: PeerIdentity,
    /// Shown in a header where the gate is reached without TLS.
    pub proofs: Option<PeerProofs>,
    /// What the gate's certificate is checked by, and our own.
    pub tls: Option<Arc<ClientConfig>>,
}

impl fmt::Debug for PeerProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerProof").field("who", &self.who).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onward_gossip::{ClusterKey, ClusterKeys, Label};

    const NOON: Wall = Wall::from_ms(1_800_000_000_000);

    fn label(text: &str) -> Label {
        Label::new(text).expect("a label")
    }

    fn proofs(byte: u8) -> PeerProofs {
        PeerProofs::new(&ClusterKeys::new(ClusterKey::new([byte; 32]), None))
    }

    fn shown(value: &str) -> HeaderMap {
        [(HEADER.parse().expect("a name"), value.parse().expect("a value"))].into_iter().collect()
    }

    fn found(trust: &PeerTrust, who: Option<PeerIdentity>, headers: &HeaderMap) -> Result<String, Unproven> {
        let connection = Connection::from(None).of_node(who);
        trust.datacenter_of(Some(&connection), headers, NOON).map(|name| name.to_string())
    }

    #[test]
    fn only_a_manager_that_proves_it_speaks_for_a_datacenter_and_only_for_its_own() {
        let manager = PeerIdentity::manager(label("dc-a"), label("m1"));
        let worker = PeerIdentity::worker(label("dc-a"), label("w1"));
        let gate = PeerIdentity::gate(label("g1"));
        let by_key = PeerTrust::Proofs(proofs(1));
        let header = |who: &PeerIdentity, key: u8| shown(&proofs(key).prove(who, NOON));
        assert_eq!(found(&by_key, None, &header(&manager, 1)), Ok("dc-a".into()));
        assert_eq!(found(&by_key, None, &header(&manager, 2)), Err(Unproven::Proof(ProofError::WrongKey)));
        assert_eq!(found(&by_key, None, &HeaderMap::new()), Err(Unproven::NoProof));
        for who in [&worker, &gate] {
            assert!(matches!(found(&by_key, None, &header(who, 1)), Err(Unproven::Refused(_))), "{who}");
        }
        let by_certificate = PeerTrust::Certificates;
        assert_eq!(found(&by_certificate, Some(manager.clone()), &HeaderMap::new()), Ok("dc-a".into()));
        // The key says no more than a certificate.
        assert_eq!(found(&by_certificate, None, &header(&manager, 1)), Err(Unproven::NoCertificate));
        assert!(matches!(found(&by_certificate, Some(worker), &HeaderMap::new()), Err(Unproven::Refused(_))));
        let other = PeerIdentity::manager(label("dc-b"), label("m1"));
        assert_eq!(found(&by_certificate, Some(other), &header(&manager, 1)), Ok("dc-b".into()));
    }
}
