-- $1 token, $2 published, $3 whether they are kept, $4 given back; $5 to $8 refused: ids, ms to the retry, errors, parked.
WITH gone AS (
  DELETE FROM onward_outbox WHERE id = ANY ($2::bigint[]) AND claimed_by = $1::uuid
  RETURNING id, dedup, topic, key, payload, headers, created_at),
kept AS (
  INSERT INTO onward_outbox_published (id, dedup, topic, key, payload, headers, created_at)
  SELECT id, dedup, topic, key, payload, headers, created_at FROM gone WHERE $3::bool ON CONFLICT (id) DO NOTHING),
back AS (
  UPDATE onward_outbox SET attempts = attempts - 1, claimed_by = NULL, claimed_until = NULL
  WHERE id = ANY ($4::bigint[]) AND claimed_by = $1::uuid RETURNING id),
refused AS (
  UPDATE onward_outbox o
  SET claimed_by = NULL, claimed_until = NULL, last_error = r.error,
    next_at = statement_timestamp() + r.retry_ms * interval '1 millisecond',
    parked_at = CASE WHEN r.park THEN statement_timestamp() END
  FROM unnest($5::bigint[], $6::bigint[], $7::text[], $8::bool[]) AS r (id, retry_ms, error, park)
  WHERE o.id = r.id AND o.claimed_by = $1::uuid RETURNING o.id)
SELECT (SELECT count(*) FROM gone) + (SELECT count(*) FROM back) + (SELECT count(*) FROM refused)
