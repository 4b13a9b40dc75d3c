-- $1 token, $2 lease in ms, $3 rows at most, $4 bytes at most, $5 whether a parked row holds its key.
--
-- A row can be claimed unless its key is stopped: by a claim, by a refused row that waits for its retry, by a parked row.
-- Rows whose claim ran out (suspects: their holder may have died of one of them) go before all others, and in groups that
-- shrink with every attempt, so that a row that kills its holder ends up alone. With them goes what a later holder gave
-- back or was refused of the same key, and stands before them: else they would overtake it.
--
-- Large sets are compared by `NOT IN (SELECT unnest(…))` and `= ANY (ARRAY(…))`: these are a hash table and an index scan
-- whatever the planner thinks of the table.
WITH claims AS MATERIALIZED (
  SELECT id, key, attempts, claimed_until > statement_timestamp() AS live FROM onward_outbox WHERE claimed_by IS NOT NULL),
refused AS MATERIALIZED (
  SELECT key FROM onward_outbox
  WHERE attempts > 0 AND claimed_by IS NULL AND key IS NOT NULL
    AND CASE WHEN parked_at IS NULL THEN next_at > statement_timestamp() ELSE $5::bool END),
stale AS MATERIALIZED (
  SELECT id, key, attempts FROM claims WHERE NOT live
  UNION ALL
  SELECT o.id, o.key, o.attempts
  FROM onward_outbox o
  JOIN (SELECT key, max(id) AS last FROM claims WHERE NOT live AND key IS NOT NULL GROUP BY key) e
    ON e.key = o.key AND o.id < e.last
  WHERE o.id < (SELECT max(id) FROM claims WHERE NOT live AND key IS NOT NULL)
    AND o.parked_at IS NULL AND o.claimed_by IS NULL AND o.next_at <= statement_timestamp()),
suspects AS MATERIALIZED (
  SELECT s.id, s.key FROM (
    SELECT c.id, c.key, row_number() OVER w AS place, first_value(c.attempts) OVER w AS tried
    FROM stale c
    WHERE (c.key IS NULL OR c.key NOT IN (SELECT unnest(ARRAY(
      SELECT key FROM refused UNION ALL SELECT key FROM claims WHERE live AND key IS NOT NULL))))
    WINDOW w AS (ORDER BY c.id)) s
  WHERE s.place <= greatest(1, $3::int >> least(3 * s.tried, 30))),
due AS MATERIALIZED (
  SELECT d.id, d.key FROM (
    SELECT f.id, f.key, sum(octet_length(f.payload)) OVER (ORDER BY f.id) - octet_length(f.payload) AS bytes_before
    FROM (
      SELECT o.id, o.key, o.payload FROM onward_outbox o
      WHERE o.parked_at IS NULL AND o.claimed_by IS NULL AND o.next_at <= statement_timestamp()
        AND (o.key IS NULL OR o.key NOT IN (SELECT unnest(ARRAY(
          SELECT key FROM refused UNION ALL SELECT key FROM claims WHERE key IS NOT NULL))))
        AND NOT EXISTS (SELECT FROM suspects)
      ORDER BY o.id LIMIT $3::int) f) d
  WHERE d.bytes_before < $4::bigint),
wanted AS MATERIALIZED (SELECT id, key FROM suspects UNION ALL SELECT id, key FROM due),
locked AS MATERIALIZED (
  SELECT id FROM onward_outbox
  WHERE id = ANY (ARRAY(SELECT id FROM wanted)) AND parked_at IS NULL AND next_at <= statement_timestamp()
    AND (claimed_by IS NULL OR claimed_until <= statement_timestamp())
  FOR UPDATE SKIP LOCKED),
missed AS MATERIALIZED (
  SELECT w.key, min(w.id) AS id FROM wanted w LEFT JOIN locked ON locked.id = w.id
  WHERE locked.id IS NULL AND w.key IS NOT NULL GROUP BY w.key)
UPDATE onward_outbox
SET claimed_by = $1::uuid, claimed_until = statement_timestamp() + $2::bigint * interval '1 millisecond',
  attempts = attempts + 1
WHERE id = ANY (ARRAY(
  SELECT w.id FROM wanted w JOIN locked ON locked.id = w.id LEFT JOIN missed ON missed.key = w.key
  WHERE missed.id IS NULL OR w.id < missed.id))
RETURNING id, dedup, topic, key, payload, headers::text, attempts,
  (extract(epoch FROM statement_timestamp() - created_at) * 1000)::bigint
