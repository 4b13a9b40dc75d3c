-- Stores what an attempt has printed, if this import goes on.
--
-- $1 log, $2 the name of the import, $3 job, $4 workflow, $5 fence, $6 skipped, $7 bytes, $8 when it was printed
with seat as materialized (
    select 1 from onward.seat where log = $1::text and holder = $2::uuid and is_importing for no key update
), stored as (
    insert into onward.output (log, job, workflow, fence, start, bytes, written_at)
    select $1::text, $3::uuid, $4::int, $5::bigint, $6::bigint, $7::bytea, $8::bigint from seat
    on conflict do nothing
)
select 1 from seat
