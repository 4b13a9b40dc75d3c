//! Finished jobs on PostgreSQL. Each call is one statement, so it is carried out whole or not at all.

use std::collections::BTreeMap;
use std::sync::Arc;

use onward_core::fence::Term;
use onward_log::{Archive, ArchivedJob, Blob, BlobDigest, Error, ScanPage};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::connection::Pool;
use crate::failure::RequestFailure;

const PUT: &str = include_str!("../sql/archive_put.sql");
const PUT_BLOBS: &str = include_str!("../sql/archive_put_blobs.sql");
const TERM: &str = "select term from onward.seat where log = $1::text";
const GET: &str = "select row from onward.archive where log = $1::text and id = $2::uuid";
const BLOB: &str = "select bytes from onward.archive_blob
    where log = $1::text and id = $2::uuid and digest = $3::bytea";
const SCAN: &str = include_str!("../sql/archive_scan.sql");
const COUNT: &str = "select jobs from onward.archive_count where log = $1::text";
const EXPIRE: &str = include_str!("../sql/archive_expire.sql");

/// The archive that belongs to one log. Its clones are further handles, for whichever threads.
#[derive(Clone, Debug)]
pub struct PostgresArchive {
    name: String,
    pool: Arc<Pool>,
    /// Once another term holds the seat, nothing is changed. None during an import, when nobody can take the seat.
    term: Option<Term>,
}

impl PostgresArchive {
    pub(crate) fn new(name: &str, pool: Arc<Pool>) -> Self {
        Self { name: name.to_owned(), pool, term: None }
    }

    fn term(&self) -> Option<i64> {
        self.term.map(|term| term.get().cast_signed())
    }

    /// The only row of a change that says by it that the term holds the seat.
    fn admitted(&self, rows: Vec<Row>) -> Result<Row, Error> {
        if let Some(row) = rows.into_iter().next() {
            return Ok(row);
        }
        let given = self.term.expect("without a term everything is admitted");
        let rows = self.pool.look(TERM, &[&self.name]).map_err(RequestFailure::of_look)?;
        let current = rows.first().map_or(0, |row| row.get::<_, i64>(0).cast_unsigned());
        Err(Error::StaleTerm { given, current: Term::new(current) })
    }
}

impl Archive for PostgresArchive {
    fn put(&self, jobs: &[ArchivedJob<'_>]) -> Result<(), Error> {
        if jobs.is_empty() {
            return Ok(());
        }
        // Of two of one id the later; their content counts all the same.
        let by_id: BTreeMap<u128, &ArchivedJob<'_>> = jobs.iter().map(|job| (job.id, job)).collect();
        let ids: Vec<Uuid> = by_id.keys().map(|id| Uuid::from_u128(*id)).collect();
        let ended: Vec<i64> = by_id.values().map(|job| ms(job.ended_at_ms)).collect();
        let expires: Vec<Option<i64>> = by_id.values().map(|job| job.expires_at_ms.map(ms)).collect();
        let rows: Vec<&[u8]> = by_id.values().map(|job| job.row).collect();
        let blobs = || jobs.iter().flat_map(|job| job.blobs.iter().map(|blob| (job.id, blob)));
        let of: Vec<Uuid> = blobs().map(|(id, _)| Uuid::from_u128(id)).collect();
        let digests: Vec<&[u8]> = blobs().map(|(_, blob)| &blob.digest[..]).collect();
        let contents: Vec<&[u8]> = blobs().map(|(_, blob)| blob.bytes).collect();
        let bytes = rows.iter().chain(&contents).map(|bytes| bytes.len()).sum();
        let params: [&(dyn ToSql + Sync); 9] =
            [&self.name, &ids, &ended, &expires, &rows, &of, &digests, &contents, &self.term()];
        self.admitted(self.pool.change(PUT, &params, bytes).map_err(RequestFailure::of_change)?).map(drop)
    }

    fn put_blobs(&self, id: u128, blobs: &[Blob<'_>]) -> Result<(), Error> {
        if blobs.is_empty() {
            return Ok(());
        }
        let digests: Vec<&[u8]> = blobs.iter().map(|blob| &blob.digest[..]).collect();
        let contents: Vec<&[u8]> = blobs.iter().map(|blob| blob.bytes).collect();
        let bytes = contents.iter().map(|bytes| bytes.len()).sum();
        let params: [&(dyn ToSql + Sync); 5] = [&self.name, &Uuid::from_u128(id), &digests, &contents, &self.term()];
        self.admitted(self.pool.change(PUT_BLOBS, &params, bytes).map_err(RequestFailure::of_change)?).map(drop)
    }

    fn get(&self, id: u128) -> Result<Option<Vec<u8>>, Error> {
        let rows = self.pool.look(GET, &[&self.name, &Uuid::from_u128(id)]).map_err(RequestFailure::of_look)?;
        Ok(rows.first().map(|row| row.get(0)))
    }

    fn blob(&self, id: u128, digest: &BlobDigest) -> Result<Option<Vec<u8>>, Error> {
        let rows = self.pool.look(BLOB, &[&self.name, &Uuid::from_u128(id), &&digest[..]]);
        Ok(rows.map_err(RequestFailure::of_look)?.first().map(|row| row.get(0)))
    }

    fn scan(&self, before: Option<u128>, max_rows: usize, max_bytes: usize) -> Result<ScanPage, Error> {
        let Some(highest) = before.unwrap_or(u128::MAX).checked_sub(u128::from(before.is_some())) else {
            return Ok(ScanPage::default());
        };
        let (max_rows, max_bytes) = (at_most(max_rows), at_most(max_bytes));
        let rows = self.pool.look(SCAN, &[&self.name, &Uuid::from_u128(highest), &max_rows, &max_bytes]);
        let mut scanned = ScanPage::default();
        for row in rows.map_err(RequestFailure::of_look)? {
            match row.get::<_, Option<Vec<u8>>>(1) {
                Some(bytes) => scanned.rows.push((row.get::<_, Uuid>(0).as_u128(), bytes)),
                None => scanned.has_more = true,
            }
        }
        Ok(scanned)
    }

    fn count(&self) -> Result<u64, Error> {
        let rows = self.pool.look(COUNT, &[&self.name]).map_err(RequestFailure::of_look)?;
        Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()))
    }

    fn expire(&self, now_ms: u64, keep_at_most: u64, max_rows: usize) -> Result<usize, Error> {
        let params: [&(dyn ToSql + Sync); 5] =
            [&self.name, &ms(now_ms), &ms(keep_at_most), &at_most(max_rows), &self.term()];
        let row = self.admitted(self.pool.change(EXPIRE, &params, 0).map_err(RequestFailure::of_change)?)?;
        Ok(usize::try_from(row.get::<_, i64>(0)).unwrap_or_default())
    }

    fn under(&self, term: Term) -> Arc<dyn Archive> {
        Arc::new(Self { term: Some(term), ..self.clone() })
    }
}

/// PostgreSQL has no unsigned numbers; no instant and no count is as large.
fn ms(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The number as a limit of SQL, which leaves room for one more.
fn at_most(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX).min(i64::MAX - 1)
}
