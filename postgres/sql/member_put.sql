-- Says that a manager lives. A name belongs to the life that used it last, unless that was not heard of for a while.
--
-- $1 log, $2 name, $3 this life of it, $4 address, $5 version, $6 how far it has read, $7 whether it may lead,
-- $8 for how many seconds a life that is not heard of keeps its name, $9 whether it reaches the leader
insert into onward.member as known (log, name, holder, address, version, applied, is_candidate, at, reaches_leader)
values ($1::text, $2::text, $3::uuid, $4::text, $5::text, $6::bigint, $7::boolean, clock_timestamp(), $9::boolean)
on conflict (log, name) do update
set holder = excluded.holder, address = excluded.address, version = excluded.version, applied = excluded.applied,
    is_candidate = excluded.is_candidate, at = excluded.at, reaches_leader = excluded.reaches_leader
where known.holder = excluded.holder or known.address = excluded.address
    or known.at < clock_timestamp() - make_interval(secs => $8::float8)
returning 1
