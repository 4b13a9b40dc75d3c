-- Removes a token. Gives a row if there was one.
--
-- $1 log, $2 name
with removed as (
    delete from onward.token where log = $1::text and name = $2::text returning 1
), changed as (
    insert into onward.token_changes (log, number) select $1::text, 1 from removed
    on conflict (log) do update set number = token_changes.number + 1
)
select 1 from removed
