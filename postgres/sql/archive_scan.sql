-- Jobs from an id downwards, one more than asked for; those within both bounds have their row.
--
-- $1 log, $2 the highest id, $3 how many rows, $4 how many bytes
with page as materialized (
    select id, octet_length(row) as bytes from onward.archive
    where log = $1::text and id <= $2::uuid order by id desc limit $3::bigint + 1
), bounded as materialized (
    select id, number <= $3::bigint and (total <= $4::bigint or number = 1) as is_within
    from (
        select id, row_number() over (order by id desc) as number, sum(bytes) over (order by id desc) as total from page
    ) numbered
)
select bounded.id, job.row
from bounded left join onward.archive job on bounded.is_within and job.log = $1::text and job.id = bounded.id
order by bounded.id desc
