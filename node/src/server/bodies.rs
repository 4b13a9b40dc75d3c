//! Bodies of requests, from their first bytes until the request is answered. All of them together are bounded: those who
//! send much, or slowly, must not fill the memory.
//!
//! Room is taken as a body comes, for what is in memory of it and not for what was announced. Short bodies have room of
//! their own, so that beats, results and cancels come through while large ones have taken all of theirs.

use axum::body::{Body, Bytes};
use http_body_util::BodyExt;

use crate::byte_room::{ByteRoom, TakenRoom};

/// Bytes of a body that counts as short. A checkpoint is no larger.
const SHORT_BYTES: usize = 64 << 10;
/// Bytes of all short bodies together, and of the beginnings of longer ones.
const MAX_SHORT_BYTES: usize = 256 << 20;
/// Bytes of all that is in memory of longer ones.
const MAX_LONG_BYTES: usize = 256 << 20;

/// The room for bodies. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct BodyRooms {
    short: ByteRoom,
    long: ByteRoom,
}

/// The room of one body.
#[derive(Debug, Default)]
pub(super) struct BodyRoom {
    short: Option<TakenRoom>,
    long: Option<TakenRoom>,
    bytes: usize,
}

/// The reason why a body was not read to its end.
#[derive(Debug)]
pub(super) enum Unread {
    TooLarge,
    NoRoom,
    Failed(axum::Error),
}

impl Default for BodyRooms {
    fn default() -> Self {
        Self { short: ByteRoom::of(MAX_SHORT_BYTES), long: ByteRoom::of(MAX_LONG_BYTES) }
    }
}

impl BodyRooms {
    pub(super) fn taken_bytes(&self) -> u64 {
        self.short.taken_bytes() + self.long.taken_bytes()
    }

    /// Makes a body's room so large.
    fn grow(&self, room: &mut BodyRoom, bytes: usize) -> Result<(), Unread> {
        let parts = [
            (&self.short, &mut room.short, bytes.min(SHORT_BYTES) - room.bytes.min(SHORT_BYTES)),
            (&self.long, &mut room.long, bytes.max(SHORT_BYTES) - room.bytes.max(SHORT_BYTES)),
        ];
        for (all, taken, more) in parts {
            if more == 0 {
                continue;
            }
            let more = all.take(more).ok_or(Unread::NoRoom)?;
            match taken {
                Some(taken) => taken.join(more),
                None => *taken = Some(more),
            }
        }
        room.bytes = bytes;
        Ok(())
    }

    /// The body, if it has at most `max` bytes. Its room is to be kept until the request is answered.
    pub(super) async fn read(&self, mut body: Body, max: usize) -> Result<(Bytes, BodyRoom), Unread> {
        let (mut text, mut room) = (Vec::new(), BodyRoom::default());
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(Unread::Failed)?.into_data() else { continue };
            let needed = text.len() + data.len();
            if needed > max {
                return Err(Unread::TooLarge);
            }
            if needed > text.capacity() {
                let capacity = needed.max(2 * text.capacity()).min(max);
                self.grow(&mut room, capacity)?;
                text.reserve_exact(capacity - text.len());
            }
            text.extend_from_slice(&data);
        }
        Ok((text.into(), room))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(bytes: usize) -> Body {
        Body::from(vec![b'x'; bytes])
    }

    #[tokio::test]
    async fn long_bodies_leave_room_for_short_ones() {
        let rooms = BodyRooms { short: ByteRoom::of(3 * SHORT_BYTES), long: ByteRoom::of(4 * SHORT_BYTES) };
        let max = 100 * SHORT_BYTES;
        let first = rooms.read(body(4 * SHORT_BYTES), max).await.expect("there is room");
        assert_eq!(first.0.len(), 4 * SHORT_BYTES);
        assert!(matches!(rooms.read(body(3 * SHORT_BYTES), max).await, Err(Unread::NoRoom)));
        let short = rooms.read(body(SHORT_BYTES), max).await.expect("short ones have their own");
        let more = rooms.read(body(SHORT_BYTES), max).await.expect("there is just so much");
        assert!(matches!(rooms.read(body(1), max).await, Err(Unread::NoRoom)), "short ones are bounded too");
        drop((first, short, more));
        assert_eq!(rooms.taken_bytes(), 0);
        assert!(matches!(rooms.read(body(101), 100).await, Err(Unread::TooLarge)));
        assert!(rooms.read(body(100), 100).await.is_ok());
    }
}
