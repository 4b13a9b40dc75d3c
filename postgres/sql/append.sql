-- Appends a batch, if the term still holds the seat and the batch before it ends where this one begins.
--
-- The row of the seat is locked, and not updated: a dead version per commit would slow down every later one. The lock
-- orders this statement with a change of the term: READ COMMITTED looks at the newest version of a row that it had to wait
-- for. `on conflict do nothing` covers a batch that was stored by an earlier try whose answer was lost.
--
-- $1 log, $2 term, $3 first, $4 first of the batch before, $5 count, $6 id, $7 row, $8 digests, $9 blobs
with seat as materialized (
    select 1 from onward.seat where log = $1::text and term = $2::bigint and term > 0 for no key update
), place as (
    select 1 from seat
    where not exists (select 1 from onward.batch where log = $1::text and first = $3::bigint)
      and case when $3::bigint = 1
          then not exists (select 1 from onward.batch where log = $1::text)
          else exists (select 1 from onward.batch where log = $1::text and first = $4::bigint and first + count = $3::bigint)
          end
), content as (
    insert into onward.blob (log, digest, bytes)
    select $1::text, given.digest, given.bytes from place, unnest($8::bytea[], $9::bytea[]) given (digest, bytes)
    on conflict do nothing
)
insert into onward.batch (log, first, count, term, id, row)
select $1::text, $3::bigint, $5::int, $2::bigint, $6::bigint, $7::bytea from place
on conflict (log, first) do nothing
returning 1
