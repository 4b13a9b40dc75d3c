//! What the seat's holder changes besides appending: blobs that go, snapshots, truncation.
//!
//! What may be done is decided by [`Head`](onward_log::Head), as for every engine, on what was read a moment ago. The change
//! carries the term *and* the beat that were read, and raises the beat: so it is carried out only if nothing but appends
//! happened meanwhile, which no decision here depends on.

use onward_core::fence::Term;
use onward_core::ids::Seq;
use onward_log::{AppendAdmission, BlobDigest, Error};
use tokio_postgres::types::ToSql;

use super::{PostgresLog, Standing, TRIES, signed};
use crate::failure::RequestFailure;

const BLOBS: &str = "select digest from onward.blob where log = $1::text and digest > $2::bytea
    order by digest limit $3::bigint";
const DROP_BLOBS: &str = include_str!("../../sql/drop_blobs.sql");
const PUT_CHUNK: &str = include_str!("../../sql/put_chunk.sql");
const FINISH_SNAPSHOT: &str = include_str!("../../sql/finish_snapshot.sql");
const CHUNK: &str = "select chunk.bytes from onward.seat seat
    join onward.chunk chunk on chunk.log = seat.log and chunk.covers = seat.snapshot and chunk.i = $2::int
    where seat.log = $1::text";
const TRUNCATE: &str = include_str!("../../sql/truncate.sql");

impl PostgresLog {
    pub(super) fn list_blobs(&mut self, after: Option<&BlobDigest>, max: usize) -> Result<Vec<BlobDigest>, Error> {
        let deadline = self.connection.read_deadline();
        let after = after.map_or(&[][..], |digest| &digest[..]);
        let max = i64::try_from(max).unwrap_or(i64::MAX);
        let rows =
            self.connection.look(BLOBS, &[&self.name, &after, &max], deadline).map_err(RequestFailure::of_look)?;
        let digests = rows.iter().map(|row| BlobDigest::try_from(row.get::<_, &[u8]>(0)));
        digests.collect::<Result<_, _>>().map_err(|_| Error::Corrupt { what: "a blob without a digest".into() })
    }

    pub(super) fn remove_blobs(&mut self, term: Term, digests: &[BlobDigest]) -> Result<(), Error> {
        let digests: Vec<&[u8]> = digests.iter().map(|digest| &digest[..]).collect();
        self.change_at_beat(DROP_BLOBS, term, 0, &[&digests], |standing| {
            standing.head.holds_seat(term).map(|()| AppendAdmission::Write)
        })
    }

    pub(super) fn store_chunk(&mut self, term: Term, covers: Seq, index: u32, chunk: &[u8]) -> Result<(), Error> {
        let given: [&(dyn ToSql + Sync); 3] = [&signed(covers.0), &index.cast_signed(), &chunk];
        self.change_at_beat(PUT_CHUNK, term, chunk.len(), &given, |standing| {
            standing.head.admit_chunk(term, covers, index).map(|()| AppendAdmission::Write)
        })
    }

    pub(super) fn complete_snapshot(&mut self, term: Term, covers: Seq, chunks: u32) -> Result<(), Error> {
        let given: [&(dyn ToSql + Sync); 2] = [&signed(covers.0), &chunks.cast_signed()];
        self.change_at_beat(FINISH_SNAPSHOT, term, 0, &given, |standing| {
            standing.head.admit_finish(term, covers, chunks)
        })
    }

    pub(super) fn read_chunk(&mut self, index: u32) -> Result<Vec<u8>, Error> {
        let deadline = self.connection.read_deadline();
        let chunk = index.cast_signed();
        let rows = self.connection.look(CHUNK, &[&self.name, &chunk], deadline).map_err(RequestFailure::of_look)?;
        if let Some(row) = rows.first() {
            return Ok(row.get(0));
        }
        let snapshot = self.standing(deadline).map_err(RequestFailure::of_look)?.head.snapshot;
        if snapshot.is_some_and(|snapshot| index < snapshot.chunks) {
            return Err(Error::Corrupt { what: format!("chunk {index} of the snapshot is missing") });
        }
        Err(Error::WrongSnapshot { what: "the newest one has no such chunk" })
    }

    pub(super) fn remove_covered(&mut self, term: Term, max_batches: usize) -> Result<bool, Error> {
        let deadline = self.connection.deadline(0);
        let max = i64::try_from(max_batches).unwrap_or(i64::MAX).min(i64::MAX - 1);
        let rows = self.connection.change(TRUNCATE, &[&self.name, &signed(term.get()), &max], deadline);
        let rows = rows.map_err(RequestFailure::of_change)?;
        let (holds_seat, covered): (i64, i64) = (rows[0].get(0), rows[0].get(1));
        if holds_seat == 0 {
            self.standing(deadline).map_err(RequestFailure::of_change)?.head.holds_seat(term)?;
        }
        Ok(covered > max)
    }

    /// Decides on what the log is now, and changes it if it still is.
    fn change_at_beat(
        &mut self,
        text: &'static str,
        term: Term,
        bytes: usize,
        given: &[&(dyn ToSql + Sync)],
        admit: impl Fn(&Standing) -> Result<AppendAdmission, Error>,
    ) -> Result<(), Error> {
        let deadline = self.connection.deadline(bytes);
        for _ in 0..TRIES {
            let standing = self.standing(deadline).map_err(RequestFailure::of_change)?;
            if admit(&standing)? == AppendAdmission::AlreadyThere {
                return self.confirm_until(term, deadline);
            }
            let term = signed(term.get());
            let mut params: Vec<&(dyn ToSql + Sync)> = vec![&self.name, &term, &standing.beat];
            params.extend(given);
            if !self.connection.change(text, &params, deadline).map_err(RequestFailure::of_change)?.is_empty() {
                return Ok(());
            }
        }
        Err(Error::Unknown { cause: "the log changes while it is looked at".into() })
    }
}
