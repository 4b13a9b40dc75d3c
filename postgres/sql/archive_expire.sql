-- Removes jobs that expired, and then, while there are too many, those that ended first. Says how many.
--
-- $1 log, $2 now, $3 how many to keep, $4 how many to remove at most
with counted as materialized (
    select jobs from onward.archive_count where log = $1::text for update
), expired as materialized (
    select id from onward.archive where log = $1::text and expires_at <= $2::bigint
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
    update onward.archive_count set jobs = jobs - (select count(*) from removed) where log = $1::text
)
select count(*) from removed
