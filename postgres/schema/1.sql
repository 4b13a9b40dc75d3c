-- The seat: who may append, by term, and which life of which process that is. It is updated by each confirmation, in place: a
-- page has room for many versions of its one row, and is vacuumed often. Nobody takes the seat of a log that is being
-- imported.
create table onward.seat (
    log text primary key,
    term bigint not null default 0,
    holder uuid,
    beat bigint not null default 0,
    is_importing boolean not null default false,
    snapshot bigint,
    chunks int
) with (fillfactor = 10, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0);

-- One row per batch of events. Rows are not compressed: that would be on the way of every commit.
create table onward.batch (
    log text not null,
    first bigint not null,
    count int not null check (count > 0),
    term bigint not null,
    id bigint not null,
    at timestamptz not null default now(),
    row bytea not null,
    primary key (log, first)
) with (toast_tuple_target = 8160, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);
alter table onward.batch alter column row set storage external;

-- Content that is too large for a batch, by its SHA-256.
create table onward.blob (
    log text not null,
    digest bytea not null,
    bytes bytea not null,
    primary key (log, digest)
);
alter table onward.blob alter column bytes set storage external;

-- Snapshots: the finished one is named by the seat; at most one more is unfinished.
create table onward.chunk (
    log text not null,
    covers bigint not null,
    i int not null,
    bytes bytea not null,
    primary key (log, covers, i)
);
alter table onward.chunk alter column bytes set storage external;

-- Finished jobs, the order in which they go, and their content.
create table onward.archive (
    log text not null,
    id uuid not null,
    ended_at bigint not null,
    expires_at bigint,
    row bytea not null,
    primary key (log, id)
);
create index archive_ended on onward.archive (log, ended_at, id);
create index archive_expires on onward.archive (log, expires_at, id) where expires_at is not null;
create table onward.archive_blob (
    log text not null,
    id uuid not null,
    digest bytea not null,
    bytes bytea not null,
    primary key (log, id, digest)
);
alter table onward.archive_blob alter column bytes set storage external;
-- How many there are is kept, and not counted.
create table onward.archive_count (log text primary key, jobs bigint not null);

-- Keys that are made once.
create table onward.secret (
    log text not null,
    name text not null,
    key bytea not null,
    primary key (log, name)
);

-- What is known of tokens: everything but the tokens. Each change raises the number of changes.
create table onward.token (
    log text not null,
    name text not null,
    scopes text[] not null,
    created_at bigint not null,
    hint text not null,
    sha256 bytea not null,
    primary key (log, name)
);
create table onward.token_changes (log text primary key, number bigint not null);

-- What attempts have printed, in parts; each has the number of bytes that were printed before it.
create table onward.output (
    log text not null,
    job uuid not null,
    workflow int not null,
    fence bigint not null,
    start bigint not null,
    bytes bytea not null,
    written_at bigint not null,
    primary key (log, job, workflow, fence, start)
);
alter table onward.output alter column bytes set storage external;
