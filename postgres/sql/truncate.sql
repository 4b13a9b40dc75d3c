-- Removes batches that the finished snapshot covers, the oldest first; the newest batch stays. Says whether the term holds
-- the seat, and how many batches could go, one more than asked for at most.
--
-- $1 log, $2 term, $3 how many at most
with seat as materialized (
    select snapshot from onward.seat where log = $1::text and term = $2::bigint and term > 0 for no key update
), covered as materialized (
    select first from onward.batch
    where log = $1::text and first <= (select snapshot from seat) and first + count <= (select snapshot from seat) + 1
      and first < (select first from onward.batch where log = $1::text order by first desc limit 1)
    order by first limit $3::bigint + 1
), removed as (
    delete from onward.batch
    where log = $1::text and first = any (array(select first from covered order by first limit $3::bigint))
)
select (select count(*) from seat), (select count(*) from covered)
