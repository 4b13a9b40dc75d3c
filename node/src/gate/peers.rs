//! Who may speak for a datacenter, and how its leader shows that; and how a gate shows it that it is one.
//!
//! Where TLS is on, by the certificate that the connection was made with: a manager's, with its datacenter in it, so that
//! a manager cannot speak for another datacenter. Else, on loopback or a network that is trusted, by the proof that it has
//! the cluster's key ([`crate::peer::proof`]). Without either nobody opens a stream.
//!
//! A manager obeys what it has dialled only once that has proved to be a gate, in the same way: it shows a gate's
//! certificate, or answers with a proof. A manager's or worker's is not enough, though it be of the same cluster.

use core::fmt;
use std::sync::Arc;

use axum::http::HeaderMap;
use onward_core::ids::Name;
use onward_core::time::Wall;
use onward_gossip::Role;
use tokio_rustls::rustls::ClientConfig;

use crate::api::access::ClientConnection;
use crate::peer::proof::{HEADER, PeerProofs, ProofError};
use crate::peer::{PeerIdentity, PeerRefusal};

/// The reason why a manager was not believed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MissingProof {
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

/// Proofs that a gate believes.
#[derive(Clone, Debug)]
pub enum PeerTrust {
    /// Certificates that the cluster's authority has signed.
    Certificates,
    /// Proofs under the cluster's key. The gate answers with one of its own.
    Proofs { proofs: Box<PeerProofs>, own: PeerIdentity },
}

impl PeerTrust {
    /// The datacenter that whoever calls may speak for.
    pub fn datacenter_of(
        &self,
        connection: Option<&ClientConnection>,
        headers: &HeaderMap,
        now: Wall,
    ) -> Result<Name, MissingProof> {
        let who = match self {
            Self::Certificates => {
                connection.and_then(ClientConnection::identity).cloned().ok_or(MissingProof::NoCertificate)?
            }
            Self::Proofs { proofs, .. } => {
                let value = headers.get(HEADER).ok_or(MissingProof::NoProof)?;
                proofs.check(value.to_str().map_err(|_| ProofError::Malformed)?, now)?
            }
        };
        who.need_role(Role::Manager)?;
        let name = who.datacenter().and_then(|datacenter| Name::new(datacenter.as_str()));
        name.ok_or(MissingProof::NoDatacenter(who))
    }

    /// The header by which the gate proves itself; none where its certificate does.
    pub fn own_proof(&self, now: Wall) -> Option<String> {
        match self {
            Self::Certificates => None,
            Self::Proofs { proofs, own } => Some(proofs.prove(own, now)),
        }
    }
}

/// The reason why a manager did not believe that it speaks to a gate.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UnprovenGate {
    #[error("the gate's certificate names no node; make one: `onward certs node --role gate`")]
    Nameless,
    #[error("the gate is reached without TLS, and this manager has no key to know it by; set `cluster.key_file`")]
    NoKey,
    #[error("the gate's answer proves nothing; give the gate the cluster's key, `cluster.key_file`, and this version")]
    NoProof,
    #[error("{0}")]
    Proof(#[from] ProofError),
    #[error("{0}")]
    Refused(#[from] PeerRefusal),
}

/// A certificate of the cluster's authority says who a node is; only a gate's says that it is a gate.
pub fn check_gate_certificate(who: Option<&PeerIdentity>) -> Result<(), UnprovenGate> {
    Ok(who.ok_or(UnprovenGate::Nameless)?.need_role(Role::Gate)?)
}

/// The proof that a manager shows to gates.
#[derive(Clone)]
pub struct PeerProof {
    pub who: PeerIdentity,
    /// Shown in a header where the gate is reached without TLS.
    pub proofs: Option<PeerProofs>,
    /// The TLS settings that the gate's certificate is checked by, with our own certificate.
    pub tls: Option<Arc<ClientConfig>>,
}

impl PeerProof {
    /// Checks the answer of a gate to a call without TLS.
    pub fn check_gate(&self, answer: &HeaderMap, now: Wall) -> Result<(), UnprovenGate> {
        let proofs = self.proofs.as_ref().ok_or(UnprovenGate::NoKey)?;
        let value = answer.get(HEADER).ok_or(UnprovenGate::NoProof)?;
        let who = proofs.check(value.to_str().map_err(|_| ProofError::Malformed)?, now)?;
        Ok(who.need_role(Role::Gate)?)
    }
}

impl fmt::Debug for PeerProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerProof").field("who", &self.who).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onward_gossip::{ClusterKey, ClusterKeys, NodeLabel};

    const NOON: Wall = Wall::from_ms(1_800_000_000_000);

    fn label(text: &str) -> NodeLabel {
        NodeLabel::new(text).expect("a label")
    }

    fn proofs(byte: u8) -> PeerProofs {
        PeerProofs::new(&ClusterKeys::new(ClusterKey::new([byte; 32]), None))
    }

    fn shown(value: &str) -> HeaderMap {
        [(HEADER.parse().expect("a name"), value.parse().expect("a value"))].into_iter().collect()
    }

    fn found(trust: &PeerTrust, who: Option<PeerIdentity>, headers: &HeaderMap) -> Result<String, MissingProof> {
        let connection = ClientConnection::from(None).of_node(who);
        trust.datacenter_of(Some(&connection), headers, NOON).map(|name| name.to_string())
    }

    #[test]
    fn only_a_manager_that_proves_it_speaks_for_a_datacenter_and_only_for_its_own() {
        let manager = PeerIdentity::manager(label("dc-a"), label("m1"));
        let worker = PeerIdentity::worker(label("dc-a"), label("w1"));
        let gate = PeerIdentity::gate(label("g1"));
        let by_key = PeerTrust::Proofs { proofs: Box::new(proofs(1)), own: gate.clone() };
        let header = |who: &PeerIdentity, key: u8| shown(&proofs(key).prove(who, NOON));
        assert_eq!(found(&by_key, None, &header(&manager, 1)), Ok("dc-a".into()));
        assert_eq!(found(&by_key, None, &header(&manager, 2)), Err(MissingProof::Proof(ProofError::WrongKey)));
        assert_eq!(found(&by_key, None, &HeaderMap::new()), Err(MissingProof::NoProof));
        for who in [&worker, &gate] {
            assert!(matches!(found(&by_key, None, &header(who, 1)), Err(MissingProof::Refused(_))), "{who}");
        }
        let by_certificate = PeerTrust::Certificates;
        assert_eq!(found(&by_certificate, Some(manager.clone()), &HeaderMap::new()), Ok("dc-a".into()));
        // The key says no more than a certificate.
        assert_eq!(found(&by_certificate, None, &header(&manager, 1)), Err(MissingProof::NoCertificate));
        assert!(matches!(found(&by_certificate, Some(worker), &HeaderMap::new()), Err(MissingProof::Refused(_))));
        let other = PeerIdentity::manager(label("dc-b"), label("m1"));
        assert_eq!(found(&by_certificate, Some(other), &header(&manager, 1)), Ok("dc-b".into()));
    }

    #[test]
    fn only_a_gate_that_proves_it_is_obeyed() {
        let manager = PeerIdentity::manager(label("dc-a"), label("m1"));
        let worker = PeerIdentity::worker(label("dc-a"), label("w1"));
        let gate = PeerIdentity::gate(label("g1"));
        assert_eq!(check_gate_certificate(Some(&gate)), Ok(()));
        assert_eq!(check_gate_certificate(None), Err(UnprovenGate::Nameless));
        let with_key = |key: Option<u8>| PeerProof { who: manager.clone(), proofs: key.map(proofs), tls: None };
        let answer = |who: &PeerIdentity| {
            let trust = PeerTrust::Proofs { proofs: Box::new(proofs(1)), own: who.clone() };
            shown(&trust.own_proof(NOON).expect("a proof"))
        };
        assert_eq!(with_key(Some(1)).check_gate(&answer(&gate), NOON), Ok(()));
        assert_eq!(with_key(Some(2)).check_gate(&answer(&gate), NOON), Err(ProofError::WrongKey.into()));
        assert_eq!(with_key(Some(1)).check_gate(&HeaderMap::new(), NOON), Err(UnprovenGate::NoProof));
        assert_eq!(with_key(None).check_gate(&answer(&gate), NOON), Err(UnprovenGate::NoKey));
        for who in [&worker, &manager] {
            assert!(matches!(check_gate_certificate(Some(who)), Err(UnprovenGate::Refused(_))), "{who}");
            let found = with_key(Some(1)).check_gate(&answer(who), NOON);
            assert!(matches!(found, Err(UnprovenGate::Refused(_))), "{who}");
        }
        assert_eq!(PeerTrust::Certificates.own_proof(NOON), None);
    }
}
