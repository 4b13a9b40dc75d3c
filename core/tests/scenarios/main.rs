//! What a manager does, told in scenarios. They share one binary, since each would link the same rig and machine again.

#[path = "../due/mod.rs"]
mod due;
#[path = "../rig/mod.rs"]
mod rig;
#[path = "../twins/mod.rs"]
mod twins;

mod away;
mod batches;
mod bites;
mod counts;
mod delivery;
mod eviction;
mod extensions;
mod false_greens;
mod false_reds;
mod grants;
mod hold;
mod images;
mod jobs;
mod late;
mod limits;
mod memory;
mod notices;
mod older_logs;
mod ordered;
mod outputs;
mod polls;
mod replays;
mod schedule_changes;
mod schedule_takeovers;
mod schedule_trouble;
mod schedules;
mod seat;
mod sessions;
mod slice;
mod snapshot;
mod stored;
mod stuck;
mod takeover;
mod zombie;
