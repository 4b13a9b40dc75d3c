//! A header that proves one node to another where TLS is off.
//!
//! `onward-peer: 1;SECONDS;onward://manager/dc-a/m1;MAC`, the MAC being an HMAC-SHA256 over what stands before it, under
//! a key that is derived from the cluster's. SECONDS is the sender's wall clock. It bounds how long a proof that somebody
//! has overheard is good for, and is generous: a node whose clock is minutes off must be able to follow and to forward.
//! Where others can listen, use TLS.

use core::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use onward_core::time::Wall;
use onward_gossip::ClusterKeys;
use sha2::Sha256;

use super::PeerIdentity;

pub const HEADER: &str = "onward-peer";
const VERSION: &str = "1";
const PURPOSE: &str = "onward peer proof";
/// The difference that there may be between the two clocks.
pub const GOOD_FOR: Duration = Duration::from_secs(15 * 60);

/// The reason why a node was not believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProofError {
    #[error("`{HEADER}` cannot be read; nodes of one cluster must be at most one release apart")]
    Malformed,
    #[error("the node does not have the cluster's key; give every node the same `cluster.key_file`")]
    WrongKey,
    #[error("the proof is not of this time; set the clocks of the nodes")]
    OutOfTime,
}

/// Makes and checks proofs under the cluster's keys.
#[derive(Clone)]
pub struct PeerProofs {
    first: Hmac<Sha256>,
    accepted: Vec<Hmac<Sha256>>,
}

impl core::fmt::Debug for PeerProofs {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PeerProofs").finish_non_exhaustive()
    }
}

impl PeerProofs {
    pub fn new(keys: &ClusterKeys) -> Self {
        let accepted = keys.accepted().map(|key| key.derive(PURPOSE)).collect();
        Self { first: keys.first().derive(PURPOSE), accepted }
    }

    /// The value of the header, for a call that is made now.
    pub fn prove(&self, who: &PeerIdentity, now: Wall) -> String {
        let said = format!("{VERSION};{};{who}", now.as_ms() / 1_000);
        let mac = self.first.clone().chain_update(said.as_bytes()).finalize().into_bytes();
        format!("{said};{}", URL_SAFE_NO_PAD.encode(mac))
    }

    /// The identity of the caller, if it was proved.
    pub fn check(&self, value: &str, now: Wall) -> Result<PeerIdentity, ProofError> {
        let (said, mac) = value.rsplit_once(';').ok_or(ProofError::Malformed)?;
        let mac = URL_SAFE_NO_PAD.decode(mac).map_err(|_| ProofError::Malformed)?;
        // Compares in constant time.
        let is_of = |key: &Hmac<Sha256>| key.clone().chain_update(said.as_bytes()).verify_slice(&mac).is_ok();
        if !self.accepted.iter().any(is_of) {
            return Err(ProofError::WrongKey);
        }
        let mut parts = said.splitn(3, ';');
        let (Some(VERSION), Some(seconds), Some(who)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(ProofError::Malformed);
        };
        let seconds: u64 = seconds.parse().map_err(|_| ProofError::Malformed)?;
        let at = Wall::from_ms(seconds.saturating_mul(1_000));
        if now.since(at).max(at.since(now)) > GOOD_FOR {
            return Err(ProofError::OutOfTime);
        }
        who.parse().map_err(|_| ProofError::Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onward_gossip::{ClusterKey, NodeLabel};

    fn proofs(first: u8, second: Option<u8>) -> PeerProofs {
        let key = |byte| ClusterKey::new([byte; 32]);
        PeerProofs::new(&ClusterKeys::new(key(first), second.map(key)))
    }

    fn who() -> PeerIdentity {
        PeerIdentity::manager(NodeLabel::new("dc-a").unwrap(), NodeLabel::new("m1").unwrap())
    }

    const NOON: Wall = Wall::from_ms(1_800_000_000_000);

    #[test]
    fn a_proof_is_believed_by_whoever_has_the_key_while_it_is_of_this_time() {
        let value = proofs(1, None).prove(&who(), NOON);
        for (keys, now, expected) in [
            (proofs(1, None), NOON, Ok(who())),
            (proofs(2, Some(1)), NOON, Ok(who())),
            (proofs(2, None), NOON, Err(ProofError::WrongKey)),
            (proofs(1, None), NOON + GOOD_FOR, Ok(who())),
            (proofs(1, None), NOON + GOOD_FOR + Duration::from_secs(1), Err(ProofError::OutOfTime)),
            (proofs(1, None), NOON - GOOD_FOR - Duration::from_secs(1), Err(ProofError::OutOfTime)),
        ] {
            assert_eq!(keys.check(&value, now), expected, "{now:?}");
        }
        let by_second = proofs(2, Some(1)).prove(&who(), NOON);
        assert_eq!(proofs(1, None).check(&by_second, NOON), Err(ProofError::WrongKey), "the first key is used");
    }

    #[test]
    fn nothing_of_a_proof_can_be_changed() {
        let ours = proofs(1, None);
        let value = ours.prove(&who(), NOON);
        for at in 0..value.len() {
            for other in *b"0;aZ-" {
                let mut altered = value.clone().into_bytes();
                if core::mem::replace(&mut altered[at], other) == other {
                    continue;
                }
                let altered = String::from_utf8(altered).unwrap();
                assert!(ours.check(&altered, NOON).is_err(), "{altered}");
            }
            assert!(ours.check(&value[..at], NOON).is_err());
        }
        assert!(ours.check("", NOON).is_err());
    }
}
