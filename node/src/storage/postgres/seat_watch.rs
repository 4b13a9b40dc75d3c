//! When a seat may be taken that somebody else held.
//!
//! Whoever leads writes at least once in a third of `seat_ttl`, so a seat that has not moved for `seat_ttl`, by the clock of
//! whoever looks, has no leader that anybody would obey. An earlier life of this very node needs no waiting: its process is
//! gone, since the data folder is ours. Nothing here decides who leads; the database does, by comparing terms. This only
//! keeps two nodes from taking the seat from each other for ever.

use core::time::Duration;
use std::time::Instant;

use onward_postgres::Seat;
use uuid::Uuid;

#[derive(Debug)]
pub(super) struct SeatWatch {
    /// This life of this node, and the one before it.
    ours: [Option<Uuid>; 2],
    still_for: Duration,
    /// The seat as it was last, and since when.
    seen: Option<(Seat, Instant)>,
}

impl SeatWatch {
    pub(super) fn new(holder: Uuid, earlier: Option<Uuid>, still_for: Duration) -> Self {
        Self { ours: [Some(holder), earlier], still_for, seen: None }
    }

    pub(super) fn may_take(&mut self, seat: &Seat, now: Instant) -> bool {
        if seat.is_importing {
            return false;
        }
        if seat.holder.is_none() || self.ours.contains(&seat.holder) {
            return true;
        }
        match self.seen {
            Some((seen, since)) if seen == *seat => now.duration_since(since) >= self.still_for,
            _ => {
                self.seen = Some((*seat, now));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use onward_core::fence::Term;

    use super::*;

    fn seat(holder: Option<u128>, term: u64) -> Seat {
        Seat { term: Term::new(term), holder: holder.map(Uuid::from_u128), ..Seat::default() }
    }

    #[test]
    fn a_seat_is_taken_from_nobody_who_moves() {
        let (ttl, start) = (Duration::from_secs(3), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let mut watch = SeatWatch::new(Uuid::from_u128(1), Some(Uuid::from_u128(2)), ttl);
        assert!(watch.may_take(&seat(None, 0), at(0)), "nobody ever sat");
        assert!(watch.may_take(&seat(Some(1), 5), at(0)), "our own");
        assert!(watch.may_take(&seat(Some(2), 5), at(0)), "that of our process before");
        assert!(!watch.may_take(&seat(Some(9), 5), at(0)));
        assert!(!watch.may_take(&seat(Some(9), 5), at(2_999)));
        assert!(!watch.may_take(&seat(Some(9), 6), at(3_000)), "it moved");
        assert!(!watch.may_take(&seat(Some(9), 6), at(5_999)));
        assert!(watch.may_take(&seat(Some(9), 6), at(6_000)), "still for long enough");
        let importing = Seat { is_importing: true, ..seat(None, 0) };
        assert!(!watch.may_take(&importing, at(9_000)), "not whole yet");
    }
}
