-- Stores batches as they are, if this import goes on.
--
-- $1 log, $2 the name of the import, $3 firsts, $4 counts, $5 terms, $6 ids, $7 rows
with seat as materialized (
    select 1 from onward.seat where log = $1::text and holder = $2::uuid and is_importing for no key update
), stored as (
    insert into onward.batch (log, first, count, term, id, row)
    select $1::text, given.* from seat,
        unnest($3::bigint[], $4::int[], $5::bigint[], $6::bigint[], $7::bytea[]) given
    on conflict do nothing
)
select 1 from seat
