//! The cluster's key: what nodes prove themselves to each other with where there are no certificates.
//!
//! A key is never used as it is: for each purpose another key is derived from it, so that what one purpose signs means
//! nothing to another.
//!
//! **Rotation.** A node uses the first of its keys and accepts both. To go from key A to key B without losing a member:
//! give every node `A, B`, then every node `B, A`, then every node `B`.

use core::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

pub const KEY_BYTES: usize = 32;

/// A secret that all nodes of a cluster share.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKey([u8; KEY_BYTES]);

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey")
    }
}

impl ClusterKey {
    pub const fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// The key as a line of a key file.
    pub fn to_line(&self) -> String {
        STANDARD.encode(self.0)
    }

    /// The HMAC that this key gives for one purpose.
    pub fn derive(&self, purpose: &str) -> Hmac<Sha256> {
        let key = keyed(&self.0).chain_update(purpose.as_bytes()).finalize().into_bytes();
        keyed(&key)
    }
}

fn keyed(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes a key of any length")
}

/// The reason why a key file cannot be used. Its content is not repeated.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyError {
    #[error("there is no key in it; `onward certs key` makes one")]
    Empty,
    #[error("line {line} is not base64; `onward certs key` shows how a key is written")]
    NotBase64 { line: usize },
    #[error("line {line} has {bytes} bytes; a key has {KEY_BYTES}: `onward certs key` makes one")]
    WrongLength { line: usize, bytes: usize },
    #[error("there are {count} keys in it; one or two are allowed, the first is used and both are accepted")]
    TooMany { count: usize },
}

/// The keys of a node: the first is used, all are accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterKeys {
    first: ClusterKey,
    second: Option<ClusterKey>,
}

impl ClusterKeys {
    pub const fn new(first: ClusterKey, second: Option<ClusterKey>) -> Self {
        Self { first, second }
    }

    /// Reads one or two lines of base64; empty lines and lines that begin with `#` are passed over.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
        let lines: Vec<_> = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).collect();
        let key = |&(line, text): &(usize, &str)| {
            let bytes = STANDARD.decode(text).map_err(|_| KeyError::NotBase64 { line })?;
            let length = bytes.len();
            let bytes = bytes.try_into().map_err(|_| KeyError::WrongLength { line, bytes: length })?;
            Ok(ClusterKey(bytes))
        };
        match &lines[..] {
            [] => Err(KeyError::Empty),
            [first] => Ok(Self { first: key(first)?, second: None }),
            [first, second] => Ok(Self { first: key(first)?, second: Some(key(second)?) }),
            more => Err(KeyError::TooMany { count: more.len() }),
        }
    }

    /// The key that is used.
    pub const fn first(&self) -> &ClusterKey {
        &self.first
    }

    /// All keys that are accepted, the one that is used first.
    pub fn accepted(&self) -> impl Iterator<Item = &ClusterKey> {
        core::iter::once(&self.first).chain(&self.second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_files() {
        let (a, b) = (ClusterKey::new([1; 32]), ClusterKey::new([2; 32]));
        let (la, lb) = (a.to_line(), b.to_line());
        let short = STANDARD.encode([1; 31]);
        let table = [
            (format!("{la}\n"), Ok(ClusterKeys::new(a.clone(), None))),
            (format!("# of May\n{la}\n\n{lb}"), Ok(ClusterKeys::new(a.clone(), Some(b.clone())))),
            (format!("  {lb}  \r\n{la}\r\n"), Ok(ClusterKeys::new(b, Some(a)))),
            (String::new(), Err(KeyError::Empty)),
            ("# none\n".into(), Err(KeyError::Empty)),
            (format!("{la}\nno key"), Err(KeyError::NotBase64 { line: 2 })),
            (format!("{la}\n{short}"), Err(KeyError::WrongLength { line: 2, bytes: 31 })),
            (format!("{la}\n{la}\n{la}"), Err(KeyError::TooMany { count: 3 })),
        ];
        for (text, expected) in table {
            assert_eq!(ClusterKeys::parse(&text), expected, "{text}");
        }
    }

    #[test]
    fn a_key_is_another_for_every_purpose_and_never_printed() {
        let key = ClusterKey::new([7; 32]);
        let tag = |purpose| key.derive(purpose).chain_update(b"x").finalize().into_bytes();
        assert_eq!(tag("a"), tag("a"));
        assert_ne!(tag("a"), tag("b"));
        assert_ne!(tag("a"), keyed(&[7; 32]).chain_update(b"x").finalize().into_bytes());
        assert_eq!(format!("{key:?}"), "ClusterKey");
    }
}
