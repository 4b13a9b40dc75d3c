//! Bytes that a user gave us to carry: a payload or a result.
//!
//! Small content lies in memory with its job. Large content lies in the store, under the digest of its bytes, and only
//! the digest is here: ten thousand queued jobs of a megabyte each cost ten thousand digests. Equal content has one
//! digest, so it is stored once however many jobs carry it; [`crate::state::State::stored_refs`] counts them.
//!
//! The shell decides what is stored and computes the digests; core takes either form, and treats them as the same
//! content wherever two are compared.

use core::fmt;
use core::fmt::Write;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::ids::Bytes;

/// The SHA-256 of some content.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    pub fn of(content: &[u8]) -> Self {
        Self(Sha256::digest(content).into())
    }
}

/// Content that lies in the store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StoredContent {
    pub digest: Digest,
    pub len: u32,
}

#[derive(Clone, Debug)]
pub enum Payload {
    Inline(Bytes),
    Stored(Arc<StoredContent>),
}

impl Payload {
    /// Content above this is to be stored. More is legal here, and costs memory.
    pub const INLINE_MAX: usize = 4096;

    pub fn stored(digest: Digest, len: u32) -> Self {
        Self::Stored(Arc::new(StoredContent { digest, len }))
    }

    /// Length of the content, wherever it lies.
    pub fn len(&self) -> usize {
        match self {
            Self::Inline(bytes) => bytes.len(),
            Self::Stored(stored) => stored.len as usize,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Digest of the content, wherever it lies. Computed anew where that is in memory.
    pub fn digest(&self) -> Digest {
        match self {
            Self::Inline(bytes) => Digest::of(bytes),
            Self::Stored(stored) => stored.digest,
        }
    }

    pub fn as_inline(&self) -> Option<&Bytes> {
        match self {
            Self::Inline(bytes) => Some(bytes),
            Self::Stored(_) => None,
        }
    }

    pub fn as_stored(&self) -> Option<&Arc<StoredContent>> {
        match self {
            Self::Inline(_) => None,
            Self::Stored(stored) => Some(stored),
        }
    }
}

/// The same content, wherever it lies.
impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Inline(one), Self::Inline(other)) => one == other,
            (Self::Stored(one), Self::Stored(other)) => one == other,
            _ => self.len() == other.len() && self.digest() == other.digest(),
        }
    }
}

impl Eq for Payload {}

impl Default for Payload {
    fn default() -> Self {
        Self::Inline(Bytes::default())
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Self::Inline(bytes)
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Inline(bytes.into())
    }
}

impl From<&[u8]> for Payload {
    fn from(bytes: &[u8]) -> Self {
        Self::Inline(bytes.into())
    }
}

impl<const N: usize> From<[u8; N]> for Payload {
    fn from(bytes: [u8; N]) -> Self {
        Self::Inline(Bytes::from(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut hex = String::with_capacity(64);
        for byte in self.0 {
            write!(hex, "{byte:02x}")?;
        }
        f.write_str(&hex)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(content: &[u8]) -> Payload {
        Payload::stored(Digest::of(content), content.len() as u32)
    }

    #[test]
    fn it_is_as_small_as_the_bytes_alone() {
        assert_eq!(size_of::<Payload>(), size_of::<Bytes>());
    }

    #[test]
    fn content_is_the_same_wherever_it_lies() {
        let (one, other) = (Payload::from(*b"one"), Payload::from(*b"other"));
        assert_eq!(one, stored(b"one"));
        assert_eq!(stored(b"one"), one);
        assert_eq!(stored(b"one"), stored(b"one"));
        assert_eq!((one.len(), stored(b"one").len()), (3, 3));
        assert_eq!(one.digest(), stored(b"one").digest());
        for (left, right) in [(&one, &other), (&one, &stored(b"two")), (&stored(b"one"), &other)] {
            assert_ne!(left, right);
            assert_ne!(left.digest(), right.digest());
        }
        assert_ne!(Payload::stored(Digest::of(b"one"), 4), one, "a digest with another length is another content");
    }

    #[test]
    fn a_digest_is_the_sha_256_and_shows_as_hex() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Payload::default().digest().to_string(), empty);
    }
}
