-- Stores a chunk, if nothing but appends happened since the head was read: the beat is still the same. The first chunk gives
-- up every other snapshot that is unfinished.
--
-- $1 log, $2 term, $3 beat, $4 covers, $5 index, $6 bytes
with seat as (
    update onward.seat set beat = beat + 1 where log = $1::text and term = $2::bigint and beat = $3::bigint
    returning snapshot
), given_up as (
    delete from onward.chunk using seat
    where chunk.log = $1::text and $5::int = 0 and chunk.covers is distinct from seat.snapshot
      and not (chunk.covers = $4::bigint and chunk.i = 0)
), stored as (
    insert into onward.chunk (log, covers, i, bytes) select $1::text, $4::bigint, $5::int, $6::bytea from seat
    on conflict (log, covers, i) do update set bytes = excluded.bytes
)
select 1 from seat
