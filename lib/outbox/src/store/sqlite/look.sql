WITH parked AS MATERIALIZED (
  SELECT key FROM onward_outbox WHERE attempts > 0 AND claimed_by IS NULL AND parked_at IS NOT NULL),
held AS MATERIALIZED (SELECT key FROM parked WHERE key IS NOT NULL AND :hold),
busy AS MATERIALIZED (
  SELECT key FROM onward_outbox WHERE claimed_by IS NOT NULL AND claimed_until > :now AND key IS NOT NULL)
SELECT
  (SELECT count(*) FROM (SELECT 1 FROM onward_outbox WHERE parked_at IS NULL LIMIT :counted)),
  (SELECT count(*) FROM parked),
  (SELECT :now - created_at FROM onward_outbox
   WHERE parked_at IS NULL AND (key IS NULL OR key NOT IN (SELECT key FROM held))
   ORDER BY id LIMIT 1),
  EXISTS (SELECT 1 FROM onward_outbox
   WHERE parked_at IS NULL AND (claimed_by IS NULL OR claimed_until <= :now)
     AND (key IS NULL OR key NOT IN (SELECT key FROM held UNION ALL SELECT key FROM busy))),
  EXISTS (SELECT 1 FROM onward_outbox WHERE claimed_by IS NOT NULL AND claimed_until > :now)
