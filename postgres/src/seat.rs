//! Who holds the seat of a log, for those who consider taking it and for those who look for the leader.

use std::time::{SystemTime, UNIX_EPOCH};

use onward_core::candidate::{HolderId, SeatSight};
use onward_core::fence::Term;
use onward_log::Error;
use uuid::Uuid;

use crate::connection::Pool;
use crate::failure::RequestFailure;

const LOOK: &str = "select seat.term, seat.beat, seat.holder, seat.is_importing,
        (select first from onward.batch where log = seat.log order by first desc limit 1),
        seat.handover, seat.name, seat.address, (extract(epoch from clock_timestamp()) * 1000)::bigint
    from onward.seat seat where seat.log = $1::text";

const HAND_OVER: &str = "update onward.seat set handover = $3::uuid, beat = beat + 1
    where log = $1::text and term = $2::bigint and holder = $4::uuid returning 1";

/// The seat of a log as it was seen at one look.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SeatView {
    pub sight: SeatSight,
    /// The name and the address that its holder gave.
    pub name: Option<String>,
    pub address: Option<String>,
    /// Milliseconds by which the database's clock is ahead of ours.
    pub clock_ahead_ms: i64,
}

impl SeatView {
    /// None was ever taken if there is no such log yet.
    pub(crate) fn look(log: &str, pool: &Pool) -> Result<Self, Error> {
        let asked_at = wall_ms();
        let rows = pool.look(LOOK, &[&log]).map_err(RequestFailure::of_look)?;
        let answered_at = wall_ms();
        let Some(row) = rows.first() else { return Ok(Self::default()) };
        let holder = |at| row.get::<_, Option<Uuid>>(at).map(holder_id);
        let sight = SeatSight {
            term: Term::new(row.get::<_, i64>(0).cast_unsigned()),
            beat: row.get(1),
            holder: holder(2),
            is_importing: row.get(3),
            newest: row.get(4),
            handover: holder(5),
        };
        // The database read its clock at some moment in between.
        let ours = asked_at.midpoint(answered_at);
        Ok(Self { sight, name: row.get(6), address: row.get(7), clock_ahead_ms: row.get::<_, i64>(8) - ours })
    }

    /// Hands the seat over. Gives whether it now is this heir's; not if the term is over.
    pub(crate) fn hand_over(log: &str, term: Term, holder: Uuid, heir: Uuid, pool: &Pool) -> Result<bool, Error> {
        let changed = pool.change(HAND_OVER, &[&log, &term.get().cast_signed(), &heir, &holder], 0);
        Ok(!changed.map_err(RequestFailure::of_change)?.is_empty())
    }
}

pub(crate) const fn holder_id(id: Uuid) -> HolderId {
    HolderId(id.as_u128())
}

fn wall_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
