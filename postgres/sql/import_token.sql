-- Stores a token, if this import goes on.
--
-- $1 log, $2 the name of the import, $3 name, $4 scopes, $5 when it was made, $6 hint, $7 digest
with seat as materialized (
    select 1 from onward.seat where log = $1::text and holder = $2::uuid and is_importing for no key update
), stored as (
    insert into onward.token (log, name, scopes, created_at, hint, sha256)
    select $1::text, $3::text, $4::text[], $5::bigint, $6::text, $7::bytea from seat
    on conflict do nothing
)
select 1 from seat
