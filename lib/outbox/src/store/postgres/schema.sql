-- The outbox of Onward on PostgreSQL: a public contract. Any program inserts rows, in its own transaction.
-- The writer's columns: topic, key, payload, headers; and dedup, if it has an identity of its own for what happened.
-- The others belong to the outbox.
CREATE TABLE IF NOT EXISTS onward_outbox (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  dedup uuid NOT NULL DEFAULT gen_random_uuid(),
  topic text NOT NULL,
  key text,
  payload bytea NOT NULL,
  headers jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(headers) = 'object'),
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  next_at timestamptz NOT NULL DEFAULT now(),
  attempts int NOT NULL DEFAULT 0,
  claimed_by uuid,
  claimed_until timestamptz,
  parked_at timestamptz,
  last_error text
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);

-- Neither index holds a row that was only inserted: a writer pays for the primary key and for nothing else.
CREATE INDEX IF NOT EXISTS onward_outbox_claimed ON onward_outbox (claimed_until) WHERE claimed_by IS NOT NULL;
CREATE INDEX IF NOT EXISTS onward_outbox_refused ON onward_outbox (key, id) WHERE attempts > 0 AND claimed_by IS NULL;

-- Published rows, where they are kept.
CREATE TABLE IF NOT EXISTS onward_outbox_published (
  id bigint PRIMARY KEY,
  dedup uuid NOT NULL,
  topic text NOT NULL,
  key text,
  payload bytea NOT NULL,
  headers jsonb NOT NULL,
  created_at timestamptz NOT NULL,
  published_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX IF NOT EXISTS onward_outbox_published_at ON onward_outbox_published (published_at);
