//! Schedules: when they are due, by cron and zone or by a fixed interval.
//!
//! [`Calendar`] turns what people write into instants, in order. What becomes of an instant is decided by
//! [`onward_core::schedule`], here as on a server. A [`Job`] runs by the clock inside of a process, and a
//! [`ScheduleStore`] keeps what became of its instants: in memory, in a file ([`FileStore`]), or, shared by several
//! processes, in PostgreSQL or SQLite (features `postgres` and `sqlite`).
//!
//! # Daylight saving
//!
//! Twice a year the wall clock of most zones jumps. An expression is either about *times* ("at 02:30") or about
//! *steps* (a `*` or a `/` in its minutes, seconds or hours):
//!
//! | | clocks go forward, and 02:00 to 03:00 does not exist | clocks go back, and 02:00 to 03:00 comes twice |
//! |---|---|---|
//! | times, `30 2 * * *` | due once, at the end of the gap: 03:00 | due once, the first time |
//! | steps, `*/10 * * * *` | due at the steps that exist | due at the steps of both |
//! | interval, `every 10m` | due every ten minutes | due every ten minutes |
//!
//! So a daily job runs once a day on those days too, and a job of every ten minutes leaves out none.

mod calendar;
mod file;
mod job;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;

pub use calendar::{Calendar, CalendarInstants, SHORTEST_INTERVAL, TimingError};
pub use file::FileStore;
pub use job::{Job, JobRun};
pub use onward_core::schedule::{MissedPolicy, Overlap, PassedInstants, RecordReason};
#[cfg(feature = "postgres")]
pub use postgres::PostgresStore;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;
pub use store::{
    ENDED_TOLD, EndedRun, JobRecords, MemoryStore, OpenRun, RunEnd, ScheduleEntry, ScheduleStore, StoreError,
};
