//! Room for bytes that are in memory for others: so many in all, taken before they are there and given back with them.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The unit of room: a semaphore has no place for more bytes than 32 bits can say.
const UNIT: usize = 1 << 10;

/// Room for at most so many bytes. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct ByteRoom {
    places: Arc<Semaphore>,
    units: usize,
}

/// The room that is taken, until it is dropped.
#[derive(Debug)]
pub(crate) struct TakenRoom(OwnedSemaphorePermit);

impl ByteRoom {
    pub(crate) fn of(bytes: usize) -> Self {
        let units = bytes / UNIT;
        Self { places: Arc::new(Semaphore::new(units)), units }
    }

    /// None if so much is not free.
    pub(crate) fn take(&self, bytes: usize) -> Option<TakenRoom> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).ok()?;
        self.places.clone().try_acquire_many_owned(units).ok().map(TakenRoom)
    }

    /// The same, and all that there is for what is larger than that.
    pub(crate) fn take_at_most_all(&self, bytes: usize) -> Option<TakenRoom> {
        self.take(bytes.min(self.units * UNIT))
    }

    /// Bytes that are taken now.
    pub(crate) fn taken_bytes(&self) -> u64 {
        ((self.units - self.places.available_permits()) * UNIT) as u64
    }
}

impl TakenRoom {
    /// Gives back all but what so many bytes need.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let more = self.0.num_permits().saturating_sub(bytes.div_ceil(UNIT));
        drop(self.0.split(more));
    }

    /// Joins what was taken of the same room.
    pub(crate) fn join(&mut self, more: Self) {
        self.0.merge(more.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_free_again_once_it_is_dropped() {
        let room = ByteRoom::of(10 * UNIT);
        let mut first = room.take(7 * UNIT - 1).expect("there is room");
        assert_eq!(room.taken_bytes(), 7 * UNIT as u64, "a part of a unit is one");
        assert!(room.take(4 * UNIT).is_none(), "too much");
        first.join(room.take(3 * UNIT).expect("there is just so much"));
        assert!(room.take(1).is_none());
        first.shrink_to(2 * UNIT);
        assert_eq!(room.taken_bytes(), 2 * UNIT as u64);
        first.shrink_to(5 * UNIT);
        assert_eq!(room.taken_bytes(), 2 * UNIT as u64, "shrinking takes nothing");
        drop(first);
        assert!(room.take_at_most_all(11 * UNIT).is_some());
        assert_eq!(room.taken_bytes(), 0);
    }
}
