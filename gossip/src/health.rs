//! What a node says about itself: readiness, progress and overload (the health that AD-19 lets ride on SWIM's messages).
//!
//! It stands in front of foca's bytes in every datagram, so that each ping and each ack carries it. Node and role are
//! those of the sender, which foca's header names. Instants never leave a process: how long demand has not been served
//! is said as a duration, and grows on the receiver's clock.
//!
//! ```text
//! block   = [version 1][ring 1][length 1][report]                                 64 bytes at most
//! report  = [sequence 4][flags 1][overload 1][capacity 4][workers 4][throughput 4][expected 4][unserved ms 4]
//!           [datacenters 2][doubts in all 1][doubts listed 1][doubt 4]*
//! ```
//!
//! A newer node may say more at the end of the report; that is passed over. Another version is refused.

use core::net::{IpAddr, SocketAddr};

use bytes::{Buf, BufMut, TryGetError};
use onward_core::health::OverloadLevel;

use crate::codec::{get_address, put_address};
use crate::identity::Ring;

pub const VERSION: u8 = 1;
pub const MAX_BLOCK_BYTES: usize = 64;
/// The most names that a node gives of the nodes that it takes for suspect or down.
pub const MAX_DOUBTS: usize = 6;

const FIXED_REPORT_BYTES: usize = 4 + 1 + 1 + 5 * 4 + 2 + 1 + 1;
const HEAD_BYTES: usize = 3;
const _: () = assert!(HEAD_BYTES + FIXED_REPORT_BYTES + 4 * MAX_DOUBTS <= MAX_BLOCK_BYTES);

const ACCEPTING: u8 = 1;
const HAS_QUORUM: u8 = 2;
const LEADS: u8 = 4;
const LEAVING: u8 = 8;

const LEVELS: [OverloadLevel; 4] =
    [OverloadLevel::Normal, OverloadLevel::Busy, OverloadLevel::Stressed, OverloadLevel::Overloaded];

/// A node's own health, as its shell measures it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeHealth {
    pub accepting: bool,
    /// The log has answered lately. Of managers.
    pub has_quorum: bool,
    /// The node holds the seat of its ring's log.
    pub leads: bool,
    pub overload: OverloadLevel,
    /// Free slots.
    pub capacity: u32,
    pub workers: u32,
    /// Work that was dispatched, forwarded or completed within the progress window.
    pub throughput: u32,
    /// The same and what could have been besides.
    pub expected_throughput: u32,
    /// The time for which there has been demand of which nothing was served.
    pub unserved_ms: u32,
    /// Datacenters that a gate reaches.
    pub datacenters: u16,
}

impl NodeHealth {
    /// Whether others should know of the difference at once, and not only by the next ping.
    pub fn is_other_class(&self, other: &Self) -> bool {
        let class = |one: &Self| {
            let stuck = one.throughput == 0 && one.expected_throughput > 0;
            (one.accepting, one.has_quorum, one.leads, one.overload, one.workers == 0, stuck, one.datacenters == 0)
        };
        class(self) != class(other)
    }
}

/// A node's health, with whom it takes for dead.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HealthReport {
    /// Rises with every report in one life of its node.
    pub sequence: u32,
    pub health: NodeHealth,
    /// The node is on its way out: that it will not answer is no failure.
    pub leaving: bool,
    /// Nodes that it takes for suspect or down, by [`address_hash`].
    pub doubts: Vec<u32>,
    /// The number of these nodes, listed or not.
    pub doubts_in_all: u8,
}

impl HealthReport {
    pub fn lists_all_doubts(&self) -> bool {
        usize::from(self.doubts_in_all) <= self.doubts.len()
    }
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BlockError {
    #[error("it ends too early, or says something impossible")]
    Malformed,
    #[error("version {0} is not known here; nodes of one cluster must be at most one release apart")]
    UnknownVersion(u8),
}

impl From<TryGetError> for BlockError {
    fn from(_: TryGetError) -> Self {
        Self::Malformed
    }
}

/// The part of a datagram before foca's bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    pub ring: Ring,
    pub report: HealthReport,
}

impl Block {
    pub fn put(&self, buf: &mut Vec<u8>) {
        buf.put_u8(VERSION);
        buf.put_u8(match self.ring {
            Ring::Datacenter => 0,
            Ring::Global => 1,
        });
        let listed = self.report.doubts.len().min(MAX_DOUBTS);
        buf.put_u8((FIXED_REPORT_BYTES + 4 * listed) as u8);
        put_report(&self.report, buf);
    }

    /// Advances `buf` to where foca's bytes begin.
    pub fn get(buf: &mut &[u8]) -> Result<Self, BlockError> {
        let version = buf.try_get_u8()?;
        if version != VERSION {
            return Err(BlockError::UnknownVersion(version));
        }
        let ring = match buf.try_get_u8()? {
            0 => Ring::Datacenter,
            1 => Ring::Global,
            _ => return Err(BlockError::Malformed),
        };
        let length = usize::from(buf.try_get_u8()?);
        if length > MAX_BLOCK_BYTES - HEAD_BYTES || length > buf.len() {
            return Err(BlockError::Malformed);
        }
        let (mut report, rest) = buf.split_at(length);
        let report = get_report(&mut report)?;
        *buf = rest;
        Ok(Self { ring, report })
    }
}

fn put_report(report: &HealthReport, buf: &mut Vec<u8>) {
    let health = &report.health;
    let flags = [
        (ACCEPTING, health.accepting),
        (HAS_QUORUM, health.has_quorum),
        (LEADS, health.leads),
        (LEAVING, report.leaving),
    ];
    buf.put_u32(report.sequence);
    buf.put_u8(flags.into_iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| flag).sum());
    buf.put_u8(health.overload as u8);
    for number in [health.capacity, health.workers, health.throughput, health.expected_throughput, health.unserved_ms] {
        buf.put_u32(number);
    }
    buf.put_u16(health.datacenters);
    let listed = &report.doubts[..report.doubts.len().min(MAX_DOUBTS)];
    buf.put_u8(report.doubts_in_all);
    buf.put_u8(listed.len() as u8);
    listed.iter().for_each(|doubt| buf.put_u32(*doubt));
}

fn get_report(buf: &mut &[u8]) -> Result<HealthReport, BlockError> {
    let sequence = buf.try_get_u32()?;
    let flags = buf.try_get_u8()?;
    let overload = *LEVELS.get(usize::from(buf.try_get_u8()?)).ok_or(BlockError::Malformed)?;
    let mut number = || buf.try_get_u32();
    let health = NodeHealth {
        accepting: flags & ACCEPTING != 0,
        has_quorum: flags & HAS_QUORUM != 0,
        leads: flags & LEADS != 0,
        overload,
        capacity: number()?,
        workers: number()?,
        throughput: number()?,
        expected_throughput: number()?,
        unserved_ms: number()?,
        datacenters: buf.try_get_u16()?,
    };
    let (doubts_in_all, listed) = (buf.try_get_u8()?, usize::from(buf.try_get_u8()?));
    if listed > MAX_DOUBTS {
        return Err(BlockError::Malformed);
    }
    let doubts = (0..listed).map(|_| buf.try_get_u32()).collect::<Result<_, _>>()?;
    Ok(HealthReport { sequence, health, leaving: flags & LEAVING != 0, doubts, doubts_in_all })
}

/// A change of class as it is broadcast: who it is about, in which life, and the whole block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Broadcast {
    pub address: SocketAddr,
    pub incarnation: u64,
    pub block: Block,
}

impl Broadcast {
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(1 + 18 + 8 + MAX_BLOCK_BYTES);
        bytes.put_u8(u8::from(self.address.is_ipv6()));
        put_address(&self.address, &mut bytes);
        bytes.put_u64(self.incarnation);
        self.block.put(&mut bytes);
        bytes
    }

    pub fn from_bytes(mut bytes: &[u8]) -> Result<Self, BlockError> {
        let is_v6 = match bytes.try_get_u8()? {
            0 => false,
            1 => true,
            _ => return Err(BlockError::Malformed),
        };
        let address = get_address(is_v6, &mut bytes).map_err(|_| BlockError::Malformed)?;
        let incarnation = bytes.try_get_u64()?;
        let block = Block::get(&mut bytes)?;
        if bytes.is_empty() { Ok(Self { address, incarnation, block }) } else { Err(BlockError::Malformed) }
    }
}

/// A short stand-in for an address (FNV-1a), the same on every node.
pub fn address_hash(address: &SocketAddr) -> u32 {
    let port = address.port().to_be_bytes();
    let fold = |hash: u32, bytes: &[u8]| {
        bytes.iter().fold(hash, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
    };
    let ip = match address.ip() {
        IpAddr::V4(ip) => fold(0x811c_9dc5, &ip.octets()),
        IpAddr::V6(ip) => fold(0x811c_9dc5, &ip.octets()),
    };
    fold(ip, &port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(doubts: usize) -> HealthReport {
        let health = NodeHealth {
            accepting: true,
            has_quorum: true,
            leads: false,
            overload: OverloadLevel::Stressed,
            capacity: 17,
            workers: u32::MAX,
            throughput: 5,
            expected_throughput: 9,
            unserved_ms: 1_000_000,
            datacenters: 2,
        };
        let doubts: Vec<u32> = (0..doubts as u32).collect();
        HealthReport { sequence: 77, health, leaving: true, doubts_in_all: doubts.len() as u8, doubts }
    }

    #[test]
    fn a_block_is_read_back_and_never_longer_than_64_bytes() {
        for doubts in [0, 1, MAX_DOUBTS] {
            let block = Block { ring: Ring::Global, report: report(doubts) };
            let mut bytes = Vec::new();
            block.put(&mut bytes);
            assert!(bytes.len() <= MAX_BLOCK_BYTES, "{}", bytes.len());
            bytes.extend_from_slice(b"foca");
            let mut rest = &bytes[..];
            assert_eq!((Block::get(&mut rest), rest), (Ok(block), &b"foca"[..]));
        }
        let many = Block { ring: Ring::Datacenter, report: report(MAX_DOUBTS + 9) };
        let mut bytes = Vec::new();
        many.put(&mut bytes);
        assert!(bytes.len() <= MAX_BLOCK_BYTES);
        let read = Block::get(&mut &bytes[..]).unwrap().report;
        assert_eq!((read.doubts.len(), read.doubts_in_all), (MAX_DOUBTS, (MAX_DOUBTS + 9) as u8));
        assert!(!read.lists_all_doubts());
    }

    #[test]
    fn other_versions_and_damage_are_refused_and_what_a_newer_node_adds_is_passed_over() {
        let block = Block { ring: Ring::Datacenter, report: report(1) };
        let mut bytes = Vec::new();
        block.put(&mut bytes);
        for length in 0..bytes.len() {
            assert!(Block::get(&mut &bytes[..length]).is_err(), "cut at {length}");
        }
        for (at, value) in [(1, 2), (2, 62), (2, 255), (8, 4), (32, 7)] {
            let mut altered = bytes.clone();
            altered[at] = value;
            altered.resize(300, 0);
            assert_eq!(Block::get(&mut &altered[..]), Err(BlockError::Malformed), "{value} at {at}");
        }
        bytes[0] = 2;
        assert_eq!(Block::get(&mut &bytes[..]), Err(BlockError::UnknownVersion(2)));
        bytes[0] = VERSION;
        bytes[2] += 1;
        bytes.push(9);
        assert_eq!(Block::get(&mut &bytes[..]), Ok(block));
    }

    #[test]
    fn a_broadcast_is_read_back() {
        for address in ["10.1.2.3:7400", "[::1]:7400"] {
            let block = Block { ring: Ring::Datacenter, report: report(2) };
            let broadcast = Broadcast { address: address.parse().unwrap(), incarnation: 9, block };
            let bytes = broadcast.to_bytes();
            assert_eq!(Broadcast::from_bytes(&bytes), Ok(broadcast));
            for length in 0..bytes.len() {
                assert!(Broadcast::from_bytes(&bytes[..length]).is_err());
            }
            assert!(Broadcast::from_bytes(&[&bytes[..], b"x"].concat()).is_err());
        }
    }

    #[test]
    fn a_class_changes_with_what_others_route_by_and_not_with_every_count() {
        let plain = NodeHealth { accepting: true, has_quorum: true, workers: 2, ..NodeHealth::default() };
        let same = [
            NodeHealth { capacity: 9, ..plain },
            NodeHealth { throughput: 9, expected_throughput: 9, ..plain },
            NodeHealth { workers: 3, ..plain },
        ];
        let other = [
            NodeHealth { accepting: false, ..plain },
            NodeHealth { has_quorum: false, ..plain },
            NodeHealth { leads: true, ..plain },
            NodeHealth { overload: OverloadLevel::Busy, ..plain },
            NodeHealth { workers: 0, ..plain },
            NodeHealth { expected_throughput: 4, ..plain },
            NodeHealth { datacenters: 1, ..plain },
        ];
        assert!(same.iter().all(|one| !one.is_other_class(&plain)));
        assert!(other.iter().all(|one| one.is_other_class(&plain)));
    }
}
