-- Stores a key, if this import goes on.
--
-- $1 log, $2 the name of the import, $3 name, $4 key
with seat as materialized (
    select 1 from onward.seat where log = $1::text and holder = $2::uuid and is_importing for no key update
), stored as (
    insert into onward.secret (log, name, key) select $1::text, $3::text, $4::bytea from seat
    on conflict do nothing
)
select 1 from seat
