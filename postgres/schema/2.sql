-- Who holds the seat, for those who look for the leader; and to whom its holder has handed it over.
alter table onward.seat add column name text, add column address text, add column handover uuid;

-- The managers that share a log: each says once a second that it lives, and how far it has read.
create table onward.member (
    log text not null,
    name text not null,
    holder uuid not null,
    address text not null,
    version text not null,
    applied bigint not null,
    is_candidate boolean not null,
    at timestamptz not null,
    primary key (log, name)
) with (fillfactor = 10, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0);
