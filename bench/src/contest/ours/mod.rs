//! Onward itself: the program as it is shipped, without a worker of its own.

pub mod grpc;
pub mod http;
pub mod mixed;
pub mod program;

use super::{PAYLOAD, PeerInfo};

const DURABLE: &str = "fsync before each answer, shared by what waits";
const KIND: &str = "work";

const fn about(name: &'static str) -> PeerInfo {
    PeerInfo { name, durable: DURABLE, before_answer: true }
}

/// A payload that says which job it is of: its number in front, so that a consumer knows what it got.
fn payload(number: u64) -> [u8; PAYLOAD] {
    let mut bytes = [b'x'; PAYLOAD];
    bytes[..16].copy_from_slice(format!("{number:016}").as_bytes());
    bytes
}

fn number_of(payload: &[u8]) -> Option<u64> {
    std::str::from_utf8(payload.get(..16)?).ok()?.parse().ok()
}
