-- Stores jobs and content, and counts the jobs that are new. A job that is there gets the row that is given; content that is
-- there stays.
--
-- $1 log, $2 ids, $3 when each ended, $4 when each expires, $5 rows; $6 ids of content, $7 digests, $8 content
with put as (
    insert into onward.archive (log, id, ended_at, expires_at, row)
    select $1::text, job.* from unnest($2::uuid[], $3::bigint[], $4::bigint[], $5::bytea[]) job
    on conflict (log, id) do update
        set ended_at = excluded.ended_at, expires_at = excluded.expires_at, row = excluded.row
    returning xmax = 0 as is_new
), content as (
    insert into onward.archive_blob (log, id, digest, bytes)
    select $1::text, blob.* from unnest($6::uuid[], $7::bytea[], $8::bytea[]) blob
    on conflict do nothing
)
insert into onward.archive_count (log, jobs) select $1::text, count(*) from put where is_new
on conflict (log) do update set jobs = archive_count.jobs + excluded.jobs
returning 1
