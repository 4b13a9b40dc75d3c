-- Where a log stands: its seat, its newest batch, and the snapshot that is unfinished.
--
-- $1 log
select seat.term, seat.beat, seat.snapshot, seat.chunks,
    batch.first, batch.count, batch.term, batch.id,
    chunk.covers, chunk.chunks
from onward.seat seat
left join lateral (
    select first, count, term, id from onward.batch where log = seat.log order by first desc limit 1
) batch on true
left join lateral (
    select covers, i + 1 as chunks from onward.chunk
    where log = seat.log and covers > coalesce(seat.snapshot, 0) order by covers desc, i desc limit 1
) chunk on true
where seat.log = $1::text
