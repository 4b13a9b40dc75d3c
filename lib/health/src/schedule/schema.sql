-- Records of schedules, for PostgreSQL and for SQLite. Instants are milliseconds since 1970.
CREATE TABLE IF NOT EXISTS onward_schedules (
  job text PRIMARY KEY,
  -- Every due instant up to here has its record.
  horizon_ms bigint NOT NULL
);

-- What became of due instants. Instants in a row that share one fate and start nothing share one record.
CREATE TABLE IF NOT EXISTS onward_schedule_records (
  job text NOT NULL REFERENCES onward_schedules (job) ON DELETE CASCADE,
  due_ms bigint NOT NULL,
  last_due_ms bigint NOT NULL,
  count bigint NOT NULL,
  -- fired, skipped or missed, and why.
  record text NOT NULL,
  reason text NOT NULL,
  -- Until when a run that has not ended belongs to whoever began it.
  claimed_until_ms bigint,
  -- How a run ended: succeeded or failed.
  outcome text,
  PRIMARY KEY (job, due_ms)
);
