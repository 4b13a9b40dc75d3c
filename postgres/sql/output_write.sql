-- Adds to what an attempt has printed, and says how many bytes are kept of it then. Nothing happens, and no row comes back, if
-- the attempt has output of a later term.
--
-- A part that is short grows; else a new part begins. What is kept has no hole: if bytes are skipped, all before them goes;
-- and so does a part of which no byte is among the last that are kept. Nobody waits for the disk, or for a standby:
-- output is worth keeping, and never worth waiting for.
--
-- $1 log, $2 job, $3 workflow, $4 fence, $5 skipped, $6 bytes, $7 now, $8 size of a part that no longer grows, $9 how many
-- bytes to keep, $10 term
with cheap as materialized (
    select set_config('synchronous_commit', 'off', true)
), part as materialized (
    select start, octet_length(bytes) as size, term from onward.output, cheap
    where log = $1::text and job = $2::uuid and workflow = $3::int and fence = $4::bigint
), place as materialized (
    select newest.start as newest, coalesce(newest.start + newest.size, 0) + $5::bigint as start,
        $5::bigint = 0 and newest.start is not null
            and (newest.size = 0 or newest.size + octet_length($6::bytea) <= $8::int) as grows
    from cheap left join (select start, size from part order by start desc limit 1) newest on true
    where not exists (select 1 from part where term > $10::bigint)
), goes as materialized (
    select part.start, part.size from part, place
    where not (place.grows and part.start = place.newest)
      and ($5::bigint > 0 or part.start + part.size <= place.start + octet_length($6::bytea) - $9::bigint)
), removed as (
    delete from onward.output
    where log = $1::text and job = $2::uuid and workflow = $3::int and fence = $4::bigint
      and start = any (array(select start from goes))
), grown as (
    update onward.output set bytes = bytes || $6::bytea, written_at = $7::bigint, term = $10::bigint
    where log = $1::text and job = $2::uuid and workflow = $3::int and fence = $4::bigint
      and start = (select newest from place where grows)
      -- Looked at again if another has changed it meanwhile.
      and term <= $10::bigint
    returning 1
), begun as (
    insert into onward.output (log, job, workflow, fence, start, bytes, written_at, term)
    select $1::text, $2::uuid, $3::int, $4::bigint, place.start, $6::bytea, $7::bigint, $10::bigint
    from place where not place.grows
    returning 1
)
select octet_length($6::bytea) + coalesce((select sum(size) from part), 0) - coalesce((select sum(size) from goes), 0)
where exists (select 1 from grown) or exists (select 1 from begun)
