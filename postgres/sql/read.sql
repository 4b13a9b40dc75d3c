-- Rows from the one that holds $2 on, until there are at least $3 events. Nothing, if no row begins at or before $2.
--
-- $1 log, $2 from, $3 how many events
select batch.first, batch.row
from onward.batch batch
where batch.log = $1::text and batch.first < $2::bigint + $3::bigint
  and batch.first >= (
      select first from onward.batch where log = $1::text and first <= $2::bigint order by first desc limit 1)
  and batch.first + batch.count > $2::bigint
order by batch.first
