//! A datagram as it goes over the network, and why one is dropped.
//!
//! ```text
//! [key id 1][counter 8][MAC 16][health ≤ 64][foca]          1,300 bytes at most
//! ```
//!
//! The MAC is the first half of an HMAC-SHA256 over everything but itself. The key id only says which of two keys to try;
//! it proves nothing. Until the MAC was found right, no byte behind it is looked at.

use core::fmt;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::health::MAX_BLOCK_BYTES;
use crate::key::{ClusterKey, ClusterKeys};

pub const MAX_DATAGRAM_BYTES: usize = 1_300;
const COUNTER_AT: usize = 1;
const MAC_AT: usize = COUNTER_AT + 8;
const MAC_BYTES: usize = 16;
const BODY_AT: usize = MAC_AT + MAC_BYTES;
/// Bytes that are left for foca.
pub const MAX_FOCA_BYTES: usize = MAX_DATAGRAM_BYTES - BODY_AT - MAX_BLOCK_BYTES;

const PURPOSE: &str = "onward gossip datagram";
const ID_PURPOSE: &str = "onward gossip key id";

/// The reason why a datagram was dropped. None of them changes anything but its count.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum DropReason {
    /// Longer than any datagram of ours.
    Oversized,
    /// Too short, or sealed with our key and yet not readable.
    Garbage,
    /// Sealed with no key of ours, or altered on its way.
    WrongKey,
    /// Seen before, or of a life of its sender that is over.
    Replayed,
    UnknownVersion,
    /// The datagram is of the other ring.
    OtherRing,
    /// The datagram is for somebody else, or for an earlier life of ours.
    Misdirected,
    /// The sender does not belong into this ring: another datacenter, or another role.
    Foreign,
    /// The sender claims our own address.
    OwnAddress,
    /// The ring has too many members to take up another.
    Crowded,
}

impl DropReason {
    pub const ALL: [Self; 10] = [
        Self::Oversized,
        Self::Garbage,
        Self::WrongKey,
        Self::Replayed,
        Self::UnknownVersion,
        Self::OtherRing,
        Self::Misdirected,
        Self::Foreign,
        Self::OwnAddress,
        Self::Crowded,
    ];

    pub const fn code(self) -> &'static str {
        match self {
            Self::Oversized => "oversized",
            Self::Garbage => "garbage",
            Self::WrongKey => "wrong_key",
            Self::Replayed => "replayed",
            Self::UnknownVersion => "unknown_version",
            Self::OtherRing => "other_ring",
            Self::Misdirected => "misdirected",
            Self::Foreign => "foreign",
            Self::OwnAddress => "own_address",
            Self::Crowded => "crowded",
        }
    }
}

/// The number of dropped datagrams, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DropCounts([u64; DropReason::ALL.len()]);

impl DropCounts {
    pub fn add(&mut self, reason: DropReason) {
        self.0[reason as usize] += 1;
    }

    pub fn of(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    pub fn listed(&self) -> impl Iterator<Item = (DropReason, u64)> {
        DropReason::ALL.into_iter().zip(self.0)
    }
}

/// Seals datagrams with the first key, and opens those sealed with either.
#[derive(Clone)]
pub struct Seals {
    first: Seal,
    second: Option<Seal>,
}

impl fmt::Debug for Seals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seals").finish_non_exhaustive()
    }
}

#[derive(Clone)]
struct Seal {
    id: u8,
    keyed: Hmac<Sha256>,
}

impl Seal {
    fn new(key: &ClusterKey) -> Self {
        let id = key.derive(ID_PURPOSE).finalize().into_bytes()[0];
        Self { id, keyed: key.derive(PURPOSE) }
    }

    fn mac(&self, head: &[u8], body: &[u8]) -> Hmac<Sha256> {
        self.keyed.clone().chain_update(head).chain_update(body)
    }
}

/// The parts of a datagram of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatagramParts<'a> {
    pub counter: u64,
    /// Health, then foca's bytes.
    pub body: &'a [u8],
}

impl Seals {
    pub fn new(keys: &ClusterKeys) -> Self {
        let mut seals = keys.accepted().map(Seal::new);
        let first = seals.next().expect("there is always a first key");
        Self { first, second: seals.next() }
    }

    /// `body` writes health and foca's bytes at the end of what it is given.
    pub fn seal(&self, counter: u64, body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(MAX_DATAGRAM_BYTES);
        bytes.push(self.first.id);
        bytes.extend_from_slice(&counter.to_be_bytes());
        bytes.extend_from_slice(&[0; MAC_BYTES]);
        body(&mut bytes);
        let mac = self.first.mac(&bytes[..MAC_AT], &bytes[BODY_AT..]).finalize().into_bytes();
        bytes[MAC_AT..BODY_AT].copy_from_slice(&mac[..MAC_BYTES]);
        bytes
    }

    pub fn open<'a>(&self, bytes: &'a [u8]) -> Result<DatagramParts<'a>, DropReason> {
        if bytes.len() > MAX_DATAGRAM_BYTES {
            return Err(DropReason::Oversized);
        }
        if bytes.len() <= BODY_AT {
            return Err(DropReason::Garbage);
        }
        let (head, mac, body) = (&bytes[..MAC_AT], &bytes[MAC_AT..BODY_AT], &bytes[BODY_AT..]);
        // Compares in constant time.
        let is_of = |seal: &Seal| seal.id == head[0] && seal.mac(head, body).verify_truncated_left(mac).is_ok();
        if !is_of(&self.first) && !self.second.as_ref().is_some_and(is_of) {
            return Err(DropReason::WrongKey);
        }
        let counter = u64::from_be_bytes(head[COUNTER_AT..].try_into().expect("the counter has eight bytes"));
        Ok(DatagramParts { counter, body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seals(first: u8, second: Option<u8>) -> Seals {
        let key = |byte| ClusterKey::new([byte; 32]);
        Seals::new(&ClusterKeys::new(key(first), second.map(key)))
    }

    fn sealed(seals: &Seals, counter: u64, body: &[u8]) -> Vec<u8> {
        seals.seal(counter, |bytes| bytes.extend_from_slice(body))
    }

    #[test]
    fn what_was_sealed_is_opened_by_whoever_has_the_key_as_first_or_second() {
        let datagram = sealed(&seals(1, None), 42, b"hello");
        let opened = DatagramParts { counter: 42, body: b"hello" };
        for (keys, expected) in [
            (seals(1, None), Ok(opened)),
            (seals(2, Some(1)), Ok(opened)),
            (seals(1, Some(2)), Ok(opened)),
            (seals(2, None), Err(DropReason::WrongKey)),
            (seals(2, Some(3)), Err(DropReason::WrongKey)),
        ] {
            assert_eq!(keys.open(&datagram), expected);
        }
        let by_second = sealed(&seals(2, Some(1)), 1, b"x");
        assert!(seals(1, None).open(&by_second).is_err(), "the first key is used");
    }

    #[test]
    fn a_single_changed_bit_is_a_forgery() {
        let ours = seals(1, None);
        let datagram = sealed(&ours, 42, b"hello");
        for at in 0..datagram.len() {
            for bit in 0..8 {
                let mut altered = datagram.clone();
                altered[at] ^= 1 << bit;
                assert_eq!(ours.open(&altered), Err(DropReason::WrongKey), "bit {bit} of {at}");
            }
        }
    }

    #[test]
    fn lengths() {
        let ours = seals(1, None);
        for (bytes, expected) in [
            (0, DropReason::Garbage),
            (BODY_AT, DropReason::Garbage),
            (BODY_AT + 1, DropReason::WrongKey),
            (MAX_DATAGRAM_BYTES, DropReason::WrongKey),
            (MAX_DATAGRAM_BYTES + 1, DropReason::Oversized),
        ] {
            assert_eq!(ours.open(&vec![0; bytes]), Err(expected), "{bytes} bytes");
        }
        let largest = sealed(&ours, 1, &vec![7; MAX_BLOCK_BYTES + MAX_FOCA_BYTES]);
        assert_eq!(largest.len(), MAX_DATAGRAM_BYTES);
        assert!(ours.open(&largest).is_ok());
    }

    #[test]
    fn every_reason_has_its_own_count() {
        let mut counts = DropCounts::default();
        for (number, reason) in DropReason::ALL.into_iter().enumerate() {
            (0..=number).for_each(|_| counts.add(reason));
        }
        for (number, (reason, count)) in counts.listed().enumerate() {
            assert_eq!((count, counts.of(reason)), (number as u64 + 1, number as u64 + 1), "{}", reason.code());
        }
    }
}
