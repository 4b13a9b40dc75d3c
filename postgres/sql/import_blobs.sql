-- Stores content, if this import goes on.
--
-- $1 log, $2 the name of the import, $3 digests, $4 content
with seat as materialized (
    select 1 from onward.seat where log = $1::text and holder = $2::uuid and is_importing for no key update
), stored as (
    insert into onward.blob (log, digest, bytes)
    select $1::text, given.* from seat, unnest($3::bytea[], $4::bytea[]) given
    on conflict do nothing
)
select 1 from seat
