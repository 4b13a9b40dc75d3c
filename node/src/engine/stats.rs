//! Counters of the engine, readable from every thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        #[derive(Debug, Default)]
        pub struct Stats { $($(#[$doc])* pub $name: Counter,)* }

        impl Stats {
            pub fn listed(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
                [$((stringify!($name), self.$name.get()),)*].into_iter()
            }
        }
    };
}

counters! {
    inputs,
    reads,
    commits_begun,
    commits,
    events,
    commit_us,
    /// Of the last commit.
    last_commit_us,
    snapshots,
    archived,
    terms,
    sessions_cut_off,
    /// Somebody spoke for an attempt of a job that is in the archive.
    late_claims_refused,
    /// Calls that were turned away because of load.
    shed_telemetry,
    shed_submissions,
    shed_other,
}

#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Stats {
    pub(super) fn committed(&self, events: usize, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.commits.add(1);
        self.events.add(events as u64);
        self.commit_us.add(us);
        self.last_commit_us.set(us);
    }
}
