-- $1 whether a parked row holds its key, $2 how many rows are counted at most. All in the order of the ids, also where that
-- changes no answer: a scan of the table would visit the pages of all that was published since it was vacuumed.
WITH parked AS MATERIALIZED (
  SELECT key FROM onward_outbox WHERE attempts > 0 AND claimed_by IS NULL AND parked_at IS NOT NULL),
held AS MATERIALIZED (SELECT key FROM parked WHERE key IS NOT NULL AND $1::bool),
busy AS MATERIALIZED (
  SELECT key FROM onward_outbox
  WHERE claimed_by IS NOT NULL AND claimed_until > statement_timestamp() AND key IS NOT NULL)
SELECT
  (SELECT count(*) FROM (SELECT FROM onward_outbox WHERE parked_at IS NULL ORDER BY id LIMIT $2::bigint) counted),
  (SELECT count(*) FROM parked),
  (SELECT (extract(epoch FROM statement_timestamp() - created_at) * 1000)::bigint FROM onward_outbox
   WHERE parked_at IS NULL AND (key IS NULL OR key NOT IN (SELECT unnest(ARRAY(SELECT key FROM held))))
   ORDER BY id LIMIT 1),
  (SELECT true FROM onward_outbox
   WHERE parked_at IS NULL AND (claimed_by IS NULL OR claimed_until <= statement_timestamp())
     AND (key IS NULL OR key NOT IN (SELECT unnest(ARRAY(SELECT key FROM held UNION ALL SELECT key FROM busy))))
   ORDER BY id LIMIT 1) IS NOT NULL,
  EXISTS (SELECT FROM onward_outbox WHERE claimed_by IS NOT NULL AND claimed_until > statement_timestamp())
