-- Makes a snapshot the newest, and drops the chunks of every other.
--
-- $1 log, $2 term, $3 beat, $4 covers, $5 chunks
with seat as (
    update onward.seat set beat = beat + 1, snapshot = $4::bigint, chunks = $5::int
    where log = $1::text and term = $2::bigint and beat = $3::bigint
    returning 1
), dropped as (
    delete from onward.chunk using seat where chunk.log = $1::text and chunk.covers <> $4::bigint
)
select 1 from seat
