//! Who holds the seat of a log, for those who consider taking it.

use onward_core::fence::Term;
use onward_log::Error;
use uuid::Uuid;

use crate::connection::Pool;
use crate::failure::Failure;

const LOOK: &str = "select seat.term, seat.beat, seat.holder, seat.is_importing,
        (select first from onward.batch where log = seat.log order by first desc limit 1)
    from onward.seat seat where seat.log = $1::text";

/// What is seen of a seat. Whoever holds it changes it with everything that it writes, and writes at least once in a third
/// of `seat_ttl`; so one that stays the same for longer has no holder that lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seat {
    pub term: Term,
    /// One life of one process; none if nobody ever sat.
    pub holder: Option<Uuid>,
    pub beat: i64,
    /// Where the newest batch begins.
    pub newest: Option<i64>,
    /// An import into this log has begun and not ended.
    pub is_importing: bool,
}

impl Seat {
    /// None was ever taken if there is no such log yet.
    pub(crate) fn look(log: &str, pool: &Pool) -> Result<Self, Error> {
        let rows = pool.look(LOOK, &[&log]).map_err(Failure::of_look)?;
        let Some(row) = rows.first() else { return Ok(Self::default()) };
        Ok(Self {
            term: Term::new(row.get::<_, i64>(0).cast_unsigned()),
            beat: row.get(1),
            holder: row.get(2),
            is_importing: row.get(3),
            newest: row.get(4),
        })
    }
}
