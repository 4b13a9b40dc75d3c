//! How foca's messages and our identities lie in their bytes. Numbers are big-endian.
//!
//! ```text
//! identity = [kind 1][IPv4 4 | IPv6 16][port 2] ([length 1][datacenter])? [length 1][name] [incarnation 8][renewals 4]
//! member   = [identity][incarnation 2][state 1]
//! header   = [identity of the sender][incarnation 2][identity of the addressee][message 1] ([identity][probe 1])?
//! ```
//!
//! `kind` has the role in its lower bits, `IPV6` and `HAS_DATACENTER` above. Whatever does not read as one of these
//! exactly is refused whole.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::{Buf, BufMut, TryGetError};
use foca::{Header, Member, Message, State};

use crate::identity::{MAX_LABEL_BYTES, NodeIdentity, NodeLabel, Role};

const IPV6: u8 = 0x10;
const HAS_DATACENTER: u8 = 0x20;

/// The encoding that all nodes of a ring speak.
#[derive(Clone, Copy, Debug, Default)]
pub struct GossipCodec;

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CodecError {
    #[error("it ends too early")]
    TooShort,
    #[error("there is no room for it")]
    NoRoom,
    #[error("{0} is out of range")]
    OutOfRange(&'static str),
}

impl From<TryGetError> for CodecError {
    fn from(_: TryGetError) -> Self {
        Self::TooShort
    }
}

impl foca::Codec<NodeIdentity> for GossipCodec {
    type Error = CodecError;

    fn encode_header(&mut self, header: &Header<NodeIdentity>, mut buf: impl BufMut) -> Result<(), CodecError> {
        let named = named(&header.message);
        let behind = match (&header.message, named) {
            (Message::Ping(_) | Message::Ack(_), _) => 1,
            (_, Some((identity, _))) => identity_bytes(identity) + 1,
            _ => 0,
        };
        need(&buf, identity_bytes(&header.src) + 2 + identity_bytes(&header.dst) + 1 + behind)?;
        put_identity(&header.src, &mut buf);
        buf.put_u16(header.src_incarnation);
        put_identity(&header.dst, &mut buf);
        buf.put_u8(tag(&header.message));
        match (&header.message, named) {
            (Message::Ping(probe) | Message::Ack(probe), _) => buf.put_u8(*probe),
            (_, Some((identity, probe))) => {
                put_identity(identity, &mut buf);
                buf.put_u8(probe);
            }
            _ => {}
        }
        Ok(())
    }

    fn decode_header(&mut self, mut buf: impl Buf) -> Result<Header<NodeIdentity>, CodecError> {
        let src = get_identity(&mut buf)?;
        let src_incarnation = buf.try_get_u16()?;
        let dst = get_identity(&mut buf)?;
        let message = get_message(&mut buf)?;
        Ok(Header { src, src_incarnation, dst, message })
    }

    fn encode_member(&mut self, member: &Member<NodeIdentity>, mut buf: impl BufMut) -> Result<(), CodecError> {
        need(&buf, identity_bytes(member.id()) + 3)?;
        put_identity(member.id(), &mut buf);
        buf.put_u16(member.incarnation());
        buf.put_u8(match member.state() {
            State::Alive => 0,
            State::Suspect => 1,
            State::Down => 2,
        });
        Ok(())
    }

    fn decode_member(&mut self, mut buf: impl Buf) -> Result<Member<NodeIdentity>, CodecError> {
        let identity = get_identity(&mut buf)?;
        let incarnation = buf.try_get_u16()?;
        let state = match buf.try_get_u8()? {
            0 => State::Alive,
            1 => State::Suspect,
            2 => State::Down,
            _ => return Err(CodecError::OutOfRange("a member's state")),
        };
        Ok(Member::new(identity, incarnation, state))
    }
}

fn need(buf: &impl BufMut, bytes: usize) -> Result<(), CodecError> {
    if buf.remaining_mut() < bytes { Err(CodecError::NoRoom) } else { Ok(()) }
}

const fn tag(message: &Message<NodeIdentity>) -> u8 {
    match message {
        Message::Ping(_) => 0,
        Message::Ack(_) => 1,
        Message::PingReq { .. } => 2,
        Message::IndirectPing { .. } => 3,
        Message::IndirectAck { .. } => 4,
        Message::ForwardedAck { .. } => 5,
        Message::Announce => 6,
        Message::Feed => 7,
        Message::Gossip => 8,
        Message::Broadcast => 9,
        Message::TurnUndead => 10,
    }
}

/// The third node that a message is about.
const fn named(message: &Message<NodeIdentity>) -> Option<(&NodeIdentity, u8)> {
    match message {
        Message::PingReq { target: node, probe_number }
        | Message::IndirectPing { origin: node, probe_number }
        | Message::IndirectAck { target: node, probe_number }
        | Message::ForwardedAck { origin: node, probe_number } => Some((node, *probe_number)),
        _ => None,
    }
}

fn get_message(buf: &mut impl Buf) -> Result<Message<NodeIdentity>, CodecError> {
    Ok(match buf.try_get_u8()? {
        0 => Message::Ping(buf.try_get_u8()?),
        1 => Message::Ack(buf.try_get_u8()?),
        2 => Message::PingReq { target: get_identity(buf)?, probe_number: buf.try_get_u8()? },
        3 => Message::IndirectPing { origin: get_identity(buf)?, probe_number: buf.try_get_u8()? },
        4 => Message::IndirectAck { target: get_identity(buf)?, probe_number: buf.try_get_u8()? },
        5 => Message::ForwardedAck { origin: get_identity(buf)?, probe_number: buf.try_get_u8()? },
        6 => Message::Announce,
        7 => Message::Feed,
        8 => Message::Gossip,
        9 => Message::Broadcast,
        10 => Message::TurnUndead,
        _ => return Err(CodecError::OutOfRange("a message's kind")),
    })
}

fn identity_bytes(identity: &NodeIdentity) -> usize {
    let datacenter = identity.datacenter.as_ref().map_or(0, |label| 1 + label.as_str().len());
    1 + address_bytes(&identity.address) + datacenter + 1 + identity.name.as_str().len() + 8 + 4
}

const fn address_bytes(address: &SocketAddr) -> usize {
    match address {
        SocketAddr::V4(_) => 4 + 2,
        SocketAddr::V6(_) => 16 + 2,
    }
}

fn put_identity(identity: &NodeIdentity, buf: &mut impl BufMut) {
    let role = Role::ALL.iter().position(|role| *role == identity.role).expect("all roles are listed") as u8;
    let has_datacenter = if identity.datacenter.is_some() { HAS_DATACENTER } else { 0 };
    let is_v6 = if identity.address.is_ipv6() { IPV6 } else { 0 };
    buf.put_u8(role | has_datacenter | is_v6);
    put_address(&identity.address, buf);
    for label in identity.datacenter.iter().chain([&identity.name]) {
        buf.put_u8(label.as_str().len() as u8);
        buf.put_slice(label.as_str().as_bytes());
    }
    buf.put_u64(identity.incarnation);
    buf.put_u32(identity.renewals);
}

fn get_identity(buf: &mut impl Buf) -> Result<NodeIdentity, CodecError> {
    let kind = buf.try_get_u8()?;
    let role = Role::ALL.get(usize::from(kind & 0x0f)).ok_or(CodecError::OutOfRange("a role"))?;
    if kind & !(0x0f | IPV6 | HAS_DATACENTER) != 0 {
        return Err(CodecError::OutOfRange("an identity's kind"));
    }
    let address = get_address(kind & IPV6 != 0, buf)?;
    let datacenter = if kind & HAS_DATACENTER != 0 { Some(get_label(buf)?) } else { None };
    let name = get_label(buf)?;
    let (incarnation, renewals) = (buf.try_get_u64()?, buf.try_get_u32()?);
    Ok(NodeIdentity { address, role: *role, datacenter, name, incarnation, renewals })
}

pub(crate) fn put_address(address: &SocketAddr, buf: &mut impl BufMut) {
    match address.ip() {
        IpAddr::V4(ip) => buf.put_slice(&ip.octets()),
        IpAddr::V6(ip) => buf.put_slice(&ip.octets()),
    }
    buf.put_u16(address.port());
}

pub(crate) fn get_address(is_v6: bool, buf: &mut impl Buf) -> Result<SocketAddr, CodecError> {
    let ip = if is_v6 {
        let mut octets = [0; 16];
        buf.try_copy_to_slice(&mut octets)?;
        IpAddr::V6(Ipv6Addr::from(octets))
    } else {
        let mut octets = [0; 4];
        buf.try_copy_to_slice(&mut octets)?;
        IpAddr::V4(Ipv4Addr::from(octets))
    };
    Ok(SocketAddr::new(ip, buf.try_get_u16()?))
}

fn get_label(buf: &mut impl Buf) -> Result<NodeLabel, CodecError> {
    const WHAT: CodecError = CodecError::OutOfRange("a name");
    let length = usize::from(buf.try_get_u8()?);
    if length > MAX_LABEL_BYTES {
        return Err(WHAT);
    }
    let mut bytes = [0; MAX_LABEL_BYTES];
    buf.try_copy_to_slice(&mut bytes[..length])?;
    let text = core::str::from_utf8(&bytes[..length]).map_err(|_| WHAT)?;
    NodeLabel::new(text).map_err(|_| WHAT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use foca::Codec;

    fn identity(address: &str, role: Role, datacenter: Option<&str>, name: &str) -> NodeIdentity {
        let label = |text| NodeLabel::new(text).unwrap();
        let mut one = NodeIdentity::new(address.parse().unwrap(), role, datacenter.map(label), label(name), 1 << 40);
        one.renewals = 3;
        one
    }

    fn messages() -> Vec<Message<NodeIdentity>> {
        let third = || identity("10.0.0.3:7400", Role::Manager, Some("dc-a"), "m3");
        vec![
            Message::Ping(1),
            Message::Ack(255),
            Message::PingReq { target: third(), probe_number: 2 },
            Message::IndirectPing { origin: third(), probe_number: 3 },
            Message::IndirectAck { target: third(), probe_number: 4 },
            Message::ForwardedAck { origin: third(), probe_number: 5 },
            Message::Announce,
            Message::Feed,
            Message::Gossip,
            Message::Broadcast,
            Message::TurnUndead,
        ]
    }

    fn headers() -> Vec<Header<NodeIdentity>> {
        let long = "x".repeat(MAX_LABEL_BYTES);
        let src = identity("[2001:db8::1]:7400", Role::Worker, Some(&long), &long);
        let dst = identity("127.0.0.1:7401", Role::Gate, None, "g1");
        let header = |message| Header { src: src.clone(), src_incarnation: 7, dst: dst.clone(), message };
        messages().into_iter().map(header).collect()
    }

    #[test]
    fn what_is_written_is_read_back_and_nothing_is_left() {
        for header in headers() {
            let mut bytes = Vec::new();
            GossipCodec.encode_header(&header, &mut bytes).unwrap();
            let mut rest = &bytes[..];
            assert_eq!(GossipCodec.decode_header(&mut rest).unwrap(), header);
            assert!(rest.is_empty(), "{header:?}");
        }
        for state in [State::Alive, State::Suspect, State::Down] {
            let member = Member::new(identity("10.0.0.1:1", Role::Manager, Some("dc-a"), "m"), 9, state);
            let mut bytes = Vec::new();
            GossipCodec.encode_member(&member, &mut bytes).unwrap();
            let mut rest = &bytes[..];
            assert_eq!(GossipCodec.decode_member(&mut rest).unwrap(), member);
            assert!(rest.is_empty());
        }
    }

    #[test]
    fn what_does_not_fit_leaves_the_buffer_clean_and_what_is_cut_off_is_refused() {
        for header in headers() {
            let mut whole = Vec::new();
            GossipCodec.encode_header(&header, &mut whole).unwrap();
            for room in 0..whole.len() {
                let mut bytes = Vec::new();
                let refused = GossipCodec.encode_header(&header, (&mut bytes).limit(room));
                assert_eq!((refused, bytes.len()), (Err(CodecError::NoRoom), 0), "{header:?} in {room}");
                assert!(GossipCodec.decode_header(&whole[..room]).is_err(), "{header:?} cut at {room}");
            }
        }
    }

    #[test]
    fn what_is_out_of_range_is_refused() {
        let mut bytes = Vec::new();
        let member = Member::alive(identity("10.0.0.1:1", Role::Manager, Some("dc-a"), "m"));
        GossipCodec.encode_member(&member, &mut bytes).unwrap();
        let last = bytes.len() - 1;
        // position, value
        for (at, value) in [(0, 3), (0, 0x41), (0, 0x81), (7, 64), (7, 0), (8, b'/'), (8, 0xff), (last, 3)] {
            let mut altered = bytes.clone();
            altered[at] = value;
            assert!(GossipCodec.decode_member(&altered[..]).is_err(), "{value:#x} at {at}");
        }
    }
}
