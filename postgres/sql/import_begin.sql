-- Begins an import, if nobody ever led this log, and it holds nothing but what an import has left that did not end.
--
-- $1 log, $2 the name of the import
update onward.seat set is_importing = true, holder = $2::uuid, beat = beat + 1
where log = $1::text and term = 0
  and (is_importing
    or not exists (select 1 from onward.token where log = $1::text)
       and not exists (select 1 from onward.secret where log = $1::text)
       and not exists (select 1 from onward.archive where log = $1::text))
returning 1
