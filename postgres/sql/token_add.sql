-- Adds a token, unless there is one of its name, or there are as many as may be. Says whether it was added, and whether
-- there was one of its name.
--
-- $1 log, $2 name, $3 scopes, $4 when it was made, $5 hint, $6 digest, $7 how many there may be
with taken as materialized (
    select exists (select 1 from onward.token where log = $1::text and name = $2::text) as is_taken
), added as (
    insert into onward.token (log, name, scopes, created_at, hint, sha256)
    select $1::text, $2::text, $3::text[], $4::bigint, $5::text, $6::bytea from taken
    where not is_taken and (select count(*) from onward.token where log = $1::text) < $7::bigint
    on conflict do nothing
    returning 1
), changed as (
    insert into onward.token_changes (log, number) select $1::text, 1 from added
    on conflict (log) do update set number = token_changes.number + 1
)
select exists (select 1 from added), is_taken from taken
