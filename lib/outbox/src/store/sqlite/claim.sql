-- The same as on PostgreSQL, where the words are explained; there is nobody else to lock rows against.
WITH claims AS MATERIALIZED (
  SELECT id, key, attempts, claimed_until > :now AS live FROM onward_outbox WHERE claimed_by IS NOT NULL),
refused AS MATERIALIZED (
  SELECT key FROM onward_outbox
  WHERE attempts > 0 AND claimed_by IS NULL AND key IS NOT NULL
    AND CASE WHEN parked_at IS NULL THEN next_at > :now ELSE :hold END),
stale AS MATERIALIZED (
  SELECT id, key, attempts FROM claims WHERE NOT live
  UNION ALL
  SELECT o.id, o.key, o.attempts
  FROM onward_outbox o
  JOIN (SELECT key, max(id) AS last FROM claims WHERE NOT live AND key IS NOT NULL GROUP BY key) e
    ON e.key = o.key AND o.id < e.last
  WHERE o.id < (SELECT max(id) FROM claims WHERE NOT live AND key IS NOT NULL)
    AND o.parked_at IS NULL AND o.claimed_by IS NULL AND o.next_at <= :now),
suspects AS MATERIALIZED (
  SELECT s.id FROM (
    SELECT c.id, row_number() OVER w AS place, first_value(c.attempts) OVER w AS tried
    FROM stale c
    WHERE (c.key IS NULL OR c.key NOT IN (
      SELECT key FROM refused UNION ALL SELECT key FROM claims WHERE live AND key IS NOT NULL))
    WINDOW w AS (ORDER BY c.id)) s
  WHERE s.place <= max(1, :rows >> min(3 * s.tried, 30))),
due AS MATERIALIZED (
  SELECT d.id FROM (
    SELECT f.id, sum(f.bytes) OVER (ORDER BY f.id) - f.bytes AS bytes_before
    FROM (
      SELECT o.id, octet_length(o.payload) AS bytes FROM onward_outbox o
      WHERE o.parked_at IS NULL AND o.claimed_by IS NULL AND o.next_at <= :now
        AND (o.key IS NULL OR o.key NOT IN (
          SELECT key FROM refused UNION ALL SELECT key FROM claims WHERE key IS NOT NULL))
        AND NOT EXISTS (SELECT 1 FROM suspects)
      ORDER BY o.id LIMIT :rows) f) d
  WHERE d.bytes_before < :bytes)
UPDATE onward_outbox
SET claimed_by = :token, claimed_until = :until, attempts = attempts + 1
WHERE id IN (SELECT id FROM suspects UNION ALL SELECT id FROM due)
RETURNING id, dedup, topic, key, payload, headers, attempts, created_at
