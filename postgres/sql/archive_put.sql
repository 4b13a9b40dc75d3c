-- Stores jobs and content, and counts the jobs that are new. A job that is there gets the row that is given; content that is
-- there stays. Nothing happens, and no row comes back, if another term holds the seat.
--
-- The lock is one that whoever takes the seat waits for, and appends do not.
--
-- $1 log, $2 ids, $3 when each ended, $4 when each expires, $5 rows; $6 ids of content, $7 digests, $8 content; $9 term, or
-- null during an import
with seat as materialized (
    select 1 from onward.seat where log = $1::text and term = $9::bigint for key share
), admitted as materialized (
    select 1 where $9::bigint is null union all select 1 from seat
), put as (
    insert into onward.archive (log, id, ended_at, expires_at, row)
    select $1::text, job.* from admitted, unnest($2::uuid[], $3::bigint[], $4::bigint[], $5::bytea[]) job
    on conflict (log, id) do update
        set ended_at = excluded.ended_at, expires_at = excluded.expires_at, row = excluded.row
    returning xmax = 0 as is_new
), content as (
    insert into onward.archive_blob (log, id, digest, bytes)
    select $1::text, blob.* from admitted, unnest($6::uuid[], $7::bytea[], $8::bytea[]) blob
    on conflict do nothing
)
insert into onward.archive_count (log, jobs)
select $1::text, (select count(*) from put where is_new) from admitted
on conflict (log) do update set jobs = archive_count.jobs + excluded.jobs
returning 1
