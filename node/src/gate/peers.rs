//! How the leader of a datacenter proves to a gate for which datacenter it speaks.
//!
//! [`PeerAuthority`] is the seam: what a manager shows with the call that opens its stream, and what a gate reads from it.
//! [`ClusterKeys`] is the one without certificates: a header `onward-peer: 1;SECONDS;onward://manager/DATACENTER;MAC`, the
//! MAC being an HMAC-SHA256 over what stands before it. It says that a node of this cluster speaks, and for which
//! datacenter it says so. SECONDS bounds for how long a proof that somebody has overheard is good.

use core::fmt;
use core::time::Duration;
use std::path::{Path, PathBuf};

use axum::http::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use onward_core::ids::Name;
use onward_core::time::Wall;
use sha2::Sha256;

pub const HEADER: &str = "onward-peer";
const VERSION: &str = "1";
const MANAGER: &str = "onward://manager/";
const PURPOSE: &[u8] = b"onward peer proof";
const KEY_BYTES: usize = 32;
/// How far the two clocks may be apart.
pub const GOOD_FOR: Duration = Duration::from_secs(15 * 60);

/// Says who may speak for a datacenter.
pub trait PeerAuthority: Send + Sync + fmt::Debug {
    /// What a manager of this datacenter shows, as the value of [`HEADER`].
    fn prove(&self, datacenter: &Name, now: Wall) -> String;

    /// The datacenter that whoever sent these headers may speak for.
    fn datacenter_of(&self, headers: &HeaderMap, now: Wall) -> Result<Name, ProofError>;
}

/// Why nobody was believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProofError {
    #[error("the call proves nothing; give the manager the cluster's key: `cluster.key_file`")]
    Missing,
    #[error("`{HEADER}` cannot be read; nodes of one cluster must be at most one release apart")]
    Malformed,
    #[error("the manager does not have the cluster's key; give every node the same `cluster.key_file`")]
    WrongKey,
    #[error("the proof is not of this time; set the clocks of the nodes")]
    OutOfTime,
}

/// A key file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {what}; it must have one or two lines of base64, of {KEY_BYTES} bytes each", path.display())]
pub struct KeyFileError {
    pub path: PathBuf,
    pub what: String,
}

/// The cluster's keys: the first is used, and all are accepted.
#[derive(Clone)]
pub struct ClusterKeys(Vec<Hmac<Sha256>>);

impl fmt::Debug for ClusterKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterKeys").finish_non_exhaustive()
    }
}

impl ClusterKeys {
    pub fn read(path: &Path) -> Result<Self, KeyFileError> {
        let wrong = |what: String| KeyFileError { path: path.to_owned(), what };
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        Self::parse(&text).map_err(|what| wrong(what.into()))
    }

    fn parse(text: &str) -> Result<Self, &'static str> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let keys = lines.map(|line| {
            let bytes = STANDARD.decode(line).map_err(|_| "a line is not base64")?;
            if bytes.len() == KEY_BYTES { Ok(derived(&bytes)) } else { Err("a key has another length") }
        });
        let keys: Vec<_> = keys.collect::<Result<_, _>>()?;
        match keys.len() {
            0 => Err("there is no key in it"),
            1 | 2 => Ok(Self(keys)),
            _ => Err("there are more than two keys in it"),
        }
    }
}

/// What is proved by it cannot be taken for anything else that is made with the same key.
fn derived(key: &[u8]) -> Hmac<Sha256> {
    let keyed = |key: &[u8]| Hmac::<Sha256>::new_from_slice(key).expect("any length of key will do");
    keyed(&keyed(key).chain_update(PURPOSE).finalize().into_bytes())
}

impl PeerAuthority for ClusterKeys {
    fn prove(&self, datacenter: &Name, now: Wall) -> String {
        // A datacenter's name may hold anything; in a header it is base64.
        let datacenter = URL_SAFE_NO_PAD.encode(datacenter.as_str());
        let said = format!("{VERSION};{};{MANAGER}{datacenter}", now.as_ms() / 1_000);
        let mac = self.0[0].clone().chain_update(said.as_bytes()).finalize().into_bytes();
        format!("{said};{}", URL_SAFE_NO_PAD.encode(mac))
    }

    fn datacenter_of(&self, headers: &HeaderMap, now: Wall) -> Result<Name, ProofError> {
        let value = headers.get(HEADER).ok_or(ProofError::Missing)?;
        let value = value.to_str().map_err(|_| ProofError::Malformed)?;
        let (said, mac) = value.rsplit_once(';').ok_or(ProofError::Malformed)?;
        let mac = URL_SAFE_NO_PAD.decode(mac).map_err(|_| ProofError::Malformed)?;
        // Compares in constant time.
        let is_of = |key: &Hmac<Sha256>| key.clone().chain_update(said.as_bytes()).verify_slice(&mac).is_ok();
        if !self.0.iter().any(is_of) {
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
        let name = who.strip_prefix(MANAGER).and_then(|name| URL_SAFE_NO_PAD.decode(name).ok());
        let name = name.and_then(|name| String::from_utf8(name).ok()).and_then(Name::new);
        name.ok_or(ProofError::Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: Wall = Wall::from_ms(1_800_000_000_000);

    fn keys(bytes: &[u8]) -> ClusterKeys {
        let lines: Vec<String> = bytes.iter().map(|byte| STANDARD.encode([*byte; KEY_BYTES])).collect();
        ClusterKeys::parse(&lines.join("\n")).expect("keys")
    }

    fn headers(value: &str) -> HeaderMap {
        [(HEADER.parse().expect("a name"), value.parse().expect("a value"))].into_iter().collect()
    }

    fn datacenter() -> Name {
        Name::new("dc ä").expect("a name")
    }

    #[test]
    fn a_proof_is_believed_by_whoever_has_the_key_while_it_is_of_this_time() {
        let shown = headers(&keys(&[1]).prove(&datacenter(), NOON));
        let second = Duration::from_secs(1);
        for (checked_by, now, expected) in [
            (keys(&[1]), NOON, Ok(datacenter())),
            (keys(&[2, 1]), NOON, Ok(datacenter())),
            (keys(&[2]), NOON, Err(ProofError::WrongKey)),
            (keys(&[1]), NOON + GOOD_FOR, Ok(datacenter())),
            (keys(&[1]), NOON + GOOD_FOR + second, Err(ProofError::OutOfTime)),
            (keys(&[1]), NOON - GOOD_FOR - second, Err(ProofError::OutOfTime)),
        ] {
            assert_eq!(checked_by.datacenter_of(&shown, now), expected, "{now:?}");
        }
        assert_eq!(keys(&[1]).datacenter_of(&HeaderMap::new(), NOON), Err(ProofError::Missing));
    }

    #[test]
    fn nothing_of_a_proof_can_be_changed() {
        let value = keys(&[1]).prove(&datacenter(), NOON);
        for at in 0..value.len() {
            for other in *b"0;aZ-" {
                let mut altered = value.clone().into_bytes();
                if core::mem::replace(&mut altered[at], other) == other {
                    continue;
                }
                let altered = String::from_utf8(altered).expect("ASCII");
                assert!(keys(&[1]).datacenter_of(&headers(&altered), NOON).is_err(), "{altered}");
            }
            assert!(keys(&[1]).datacenter_of(&headers(&value[..at]), NOON).is_err());
        }
    }

    #[test]
    fn a_key_file_has_one_or_two_keys_of_32_bytes() {
        let key = STANDARD.encode([7; KEY_BYTES]);
        for (text, is_good) in [
            (format!("{key}\n"), true),
            (format!("{key}\n\n  {key}\n"), true),
            (format!("{key}\n{key}\n{key}"), false),
            (String::new(), false),
            ("not base64!".into(), false),
            (STANDARD.encode([7; 31]), false),
        ] {
            assert_eq!(ClusterKeys::parse(&text).is_ok(), is_good, "{text:?}");
        }
    }
}
