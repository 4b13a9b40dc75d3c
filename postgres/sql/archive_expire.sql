-- Removes jobs that expired, and then, while there are too many, those that ended first. Says how many; no row comes back if
-- another term holds the seat. The lock: see archive_put.sql.
--
-- $1 log, $2 now, $3 how many to keep, $4 how many to remove at most, $5 term, or null where nobody shares the archive
with seat as materialized (
    select 1 from onward.seat where log = $1::text and term = $5::bigint for key share
), admitted as materialized (
    select 1 where $5::bigint is null union all select 1 from seat
), counted as materialized (
    select jobs from onward.archive_count, admitted where log = $1::text for update of archive_count
), expired as materialized (
    select id from onward.archive where log = $1::text and expires_at <= $2::bigint and exists (select 1 from admitted)
    order by expires_at, id limit $4::bigint
), surplus as materialized (
    select id from onward.archive where log = $1::text and id not in (select id from expired)
    order by ended_at, id
    limit greatest(0, least(
        $4::bigint - (select count(*) from expired),
        coalesce((select jobs from counted), 0) - (select count(*) from expired) - $3::bigint))
), removed as (
    delete from onward.archive
    where log = $1::text and id = any (array(select id from expired union all select id from surplus))
    returning id
), content as (
    delete from onward.archive_blob where log = $1::text and id = any (array(select id from removed))
), fewer as (
    update onward.archive_count set jobs = jobs - (select count(*) from removed)
    where log = $1::text and exists (select 1 from removed)
)
select (select count(*) from removed) from admitted
