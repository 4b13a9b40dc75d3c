//! The managers that share a log. Each says once a second that it lives, where it is reached and how far it has read, so
//! that a seat can be handed to one by name and candidates know whose turn it is.

use core::time::Duration;

use onward_core::candidate::HolderId;
use onward_core::ids::Seq;
use onward_log::Error;
use uuid::Uuid;

use crate::connection::Pool;
use crate::failure::RequestFailure;
use crate::seat::holder_id;

const PUT: &str = include_str!("../sql/member_put.sql");
const LIST: &str = "select name, holder, address, version, applied, is_candidate, reaches_leader,
        (extract(epoch from clock_timestamp() - at) * 1000)::bigint
    from onward.member where log = $1::text order by name limit 256";
const REMOVE: &str = "delete from onward.member where log = $1::text and holder = $2::uuid returning 1";

/// A manager that shares a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberRow {
    pub name: String,
    /// The life of the member's process.
    pub holder: HolderId,
    pub address: String,
    pub version: String,
    /// The newest event that it has read.
    pub applied: Seq,
    /// Whether the member would lead if the seat were free.
    pub is_candidate: bool,
    /// False if it follows, and the leader does not answer it.
    pub reaches_leader: bool,
    /// Time since it was last heard of; zero for one that says so now.
    pub silent_for: Duration,
}

impl MemberRow {
    /// Says that this member lives. Not if its name belongs to another that was heard of within `keeps_name`.
    pub(crate) fn put(&self, log: &str, pool: &Pool, keeps_name: Duration) -> Result<bool, Error> {
        let holder = Uuid::from_u128(self.holder.0);
        let applied = self.applied.0.cast_signed();
        let (address, version, candidate) = (&self.address, &self.version, &self.is_candidate);
        let keeps_name = keeps_name.as_secs_f64();
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 9] =
            [&log, &self.name, &holder, address, version, &applied, candidate, &keeps_name, &self.reaches_leader];
        Ok(!pool.change(PUT, &params, 0).map_err(RequestFailure::of_change)?.is_empty())
    }

    pub(crate) fn remove(log: &str, holder: Uuid, pool: &Pool) -> Result<(), Error> {
        pool.change(REMOVE, &[&log, &holder], 0).map(drop).map_err(RequestFailure::of_change)
    }

    pub(crate) fn list(log: &str, pool: &Pool) -> Result<Vec<Self>, Error> {
        let rows = pool.look(LIST, &[&log]).map_err(RequestFailure::of_look)?;
        let member = |row: &tokio_postgres::Row| Self {
            name: row.get(0),
            holder: holder_id(row.get(1)),
            address: row.get(2),
            version: row.get(3),
            applied: Seq(row.get::<_, i64>(4).cast_unsigned()),
            is_candidate: row.get(5),
            reaches_leader: row.get(6),
            silent_for: Duration::from_millis(row.get::<_, i64>(7).max(0).cast_unsigned()),
        };
        Ok(rows.iter().map(member).collect())
    }
}
