-- Stores content ahead of its job. No row comes back if another term holds the seat. The lock: see archive_put.sql.
--
-- $1 log, $2 id, $3 digests, $4 content, $5 term, or null during an import
with seat as materialized (
    select 1 from onward.seat where log = $1::text and term = $5::bigint for key share
), admitted as materialized (
    select 1 where $5::bigint is null union all select 1 from seat
), content as (
    insert into onward.archive_blob (log, id, digest, bytes)
    select $1::text, $2::uuid, blob.* from admitted, unnest($3::bytea[], $4::bytea[]) blob
    on conflict do nothing
)
select 1 from admitted
