-- $1 attempts after which a row whose holders never settled it is parked.
UPDATE onward_outbox
SET parked_at = statement_timestamp(), claimed_by = NULL, claimed_until = NULL,
  last_error = 'claimed ' || attempts || ' times, and no holder came back to say what became of it'
WHERE claimed_by IS NOT NULL AND claimed_until <= statement_timestamp() AND attempts >= $1::int
RETURNING id
