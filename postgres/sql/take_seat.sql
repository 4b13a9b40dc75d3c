-- Takes the seat from the term that was seen. A term is never used twice, also not after a backup was restored: it is no
-- lower than the seconds since 1970.
--
-- The row is locked more strongly than the change of its term needs: who changes the archive under the old term holds a
-- lock that appends go by, and this one waits for.
--
-- $1 log, $2 the term that was seen, $3 who takes it, $4 and $5 that one's name and address
with free as materialized (
    select 1 from onward.seat where log = $1::text and term = $2::bigint and not is_importing for update
)
update onward.seat
set term = greatest(term + 1, extract(epoch from clock_timestamp())::bigint), holder = $3::uuid, beat = beat + 1,
    name = $4::text, address = $5::text, handover = null
where log = $1::text and term = $2::bigint and not is_importing and exists (select 1 from free)
returning term
