-- Ends an import: whoever comes next may take the seat, from the term that is given here.
--
-- $1 log, $2 the name of the import, $3 term, $4 what the snapshot covers, $5 its chunks
update onward.seat
set is_importing = false, holder = null, term = $3::bigint, snapshot = $4::bigint, chunks = $5::int, beat = beat + 1
where log = $1::text and holder = $2::uuid and is_importing
returning 1
