-- Stores a chunk of the newest snapshot, if this import goes on.
--
-- $1 log, $2 the name of the import, $3 covers, $4 index, $5 bytes
with seat as materialized (
    select 1 from onward.seat where log = $1::text and holder = $2::uuid and is_importing for no key update
), stored as (
    insert into onward.chunk (log, covers, i, bytes) select $1::text, $3::bigint, $4::int, $5::bytea from seat
    on conflict do nothing
)
select 1 from seat
