-- The outbox of Onward on SQLite: a public contract. Any program inserts rows, in its own transaction.
-- The writer's columns: topic, key, payload, headers; and dedup, if it has an identity of its own for what happened.
-- The others belong to the outbox. Instants are milliseconds since 1970.
CREATE TABLE IF NOT EXISTS onward_outbox (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  dedup TEXT NOT NULL DEFAULT (lower(hex(randomblob(16))))
    CHECK (length(replace(dedup, '-', '')) = 32 AND dedup NOT GLOB '*[^0-9a-fA-F-]*'),
  topic TEXT NOT NULL,
  key TEXT,
  payload BLOB NOT NULL,
  headers TEXT NOT NULL DEFAULT '{}' CHECK (json_type(headers) = 'object'),
  created_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
  next_at INTEGER NOT NULL DEFAULT 0,
  attempts INTEGER NOT NULL DEFAULT 0,
  claimed_by TEXT,
  claimed_until INTEGER,
  parked_at INTEGER,
  last_error TEXT
);

-- Neither index holds a row that was only inserted: a writer pays for the primary key and for nothing else.
CREATE INDEX IF NOT EXISTS onward_outbox_claimed ON onward_outbox (claimed_until) WHERE claimed_by IS NOT NULL;
CREATE INDEX IF NOT EXISTS onward_outbox_refused ON onward_outbox (key, id) WHERE attempts > 0 AND claimed_by IS NULL;

-- Published rows, where they are kept.
CREATE TABLE IF NOT EXISTS onward_outbox_published (
  id INTEGER PRIMARY KEY,
  dedup TEXT NOT NULL,
  topic TEXT NOT NULL,
  key TEXT,
  payload BLOB NOT NULL,
  headers TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  published_at INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS onward_outbox_published_at ON onward_outbox_published (published_at);
