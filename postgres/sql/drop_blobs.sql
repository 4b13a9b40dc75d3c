-- Drops blobs, if nothing but appends happened since the head was read. The beat is what keeps a request that arrives very
-- late, after its sender asked again, from dropping what came back meanwhile.
--
-- $1 log, $2 term, $3 beat, $4 digests
with seat as (
    update onward.seat set beat = beat + 1 where log = $1::text and term = $2::bigint and beat = $3::bigint
    returning 1
), dropped as (
    delete from onward.blob using seat where blob.log = $1::text and blob.digest = any ($4::bytea[])
)
select 1 from seat
