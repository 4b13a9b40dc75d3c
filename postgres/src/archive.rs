//! Finished jobs on PostgreSQL. Each call is one statement, so it is carried out whole or not at all.

use std::collections::BTreeMap;
use std::sync::Arc;

use onward_log::{Archive, ArchivedJob, Blob, Digest, Error, Scanned};
use uuid::Uuid;

use crate::connection::Pool;
use crate::failure::Failure;

const PUT: &str = include_str!("../sql/archive_put.sql");
const PUT_BLOBS: &str = "insert into onward.archive_blob (log, id, digest, bytes)
    select $1::text, $2::uuid, blob.* from unnest($3::bytea[], $4::bytea[]) blob on conflict do nothing";
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
}

impl PostgresArchive {
    pub(crate) fn new(name: &str, pool: Arc<Pool>) -> Self {
        Self { name: name.to_owned(), pool }
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
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 8] =
            [&self.name, &ids, &ended, &expires, &rows, &of, &digests, &contents];
        self.pool.change(PUT, &params, bytes).map_err(Failure::of_change).map(drop)
    }

    fn put_blobs(&self, id: u128, blobs: &[Blob<'_>]) -> Result<(), Error> {
        if blobs.is_empty() {
            return Ok(());
        }
        let digests: Vec<&[u8]> = blobs.iter().map(|blob| &blob.digest[..]).collect();
        let contents: Vec<&[u8]> = blobs.iter().map(|blob| blob.bytes).collect();
        let bytes = contents.iter().map(|bytes| bytes.len()).sum();
        let stored = self.pool.change(PUT_BLOBS, &[&self.name, &Uuid::from_u128(id), &digests, &contents], bytes);
        stored.map_err(Failure::of_change).map(drop)
    }

    fn get(&self, id: u128) -> Result<Option<Vec<u8>>, Error> {
        let rows = self.pool.look(GET, &[&self.name, &Uuid::from_u128(id)]).map_err(Failure::of_look)?;
        Ok(rows.first().map(|row| row.get(0)))
    }

    fn blob(&self, id: u128, digest: &Digest) -> Result<Option<Vec<u8>>, Error> {
        let rows = self.pool.look(BLOB, &[&self.name, &Uuid::from_u128(id), &&digest[..]]);
        Ok(rows.map_err(Failure::of_look)?.first().map(|row| row.get(0)))
    }

    fn scan(&self, before: Option<u128>, max_rows: usize, max_bytes: usize) -> Result<Scanned, Error> {
        let Some(highest) = before.unwrap_or(u128::MAX).checked_sub(u128::from(before.is_some())) else {
            return Ok(Scanned::default());
        };
        let (max_rows, max_bytes) = (at_most(max_rows), at_most(max_bytes));
        let rows = self.pool.look(SCAN, &[&self.name, &Uuid::from_u128(highest), &max_rows, &max_bytes]);
        let mut scanned = Scanned::default();
        for row in rows.map_err(Failure::of_look)? {
            match row.get::<_, Option<Vec<u8>>>(1) {
                Some(bytes) => scanned.rows.push((row.get::<_, Uuid>(0).as_u128(), bytes)),
                None => scanned.has_more = true,
            }
        }
        Ok(scanned)
    }

    fn count(&self) -> Result<u64, Error> {
        let rows = self.pool.look(COUNT, &[&self.name]).map_err(Failure::of_look)?;
        Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()))
    }

    fn expire(&self, now_ms: u64, keep_at_most: u64, max_rows: usize) -> Result<usize, Error> {
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
            [&self.name, &ms(now_ms), &ms(keep_at_most), &at_most(max_rows)];
        let rows = self.pool.change(EXPIRE, &params, 0).map_err(Failure::of_change)?;
        Ok(usize::try_from(rows[0].get::<_, i64>(0)).unwrap_or_default())
    }
}

/// PostgreSQL has no unsigned numbers; no instant and no count is as large.
fn ms(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// One more than this is asked for.
fn at_most(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX).min(i64::MAX - 1)
}
