//! Counters of the engine, readable from every thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

macro_rules! counters {
    ($($name:ident: $what:literal,)*) => {
        #[derive(Debug, Default)]
        pub struct Stats { $(#[doc = $what] pub $name: Counter,)* }

        impl Stats {
            pub fn listed(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
                self.described().map(|(name, _, value)| (name, value))
            }

            /// Each with a sentence that says what it counts.
            pub fn described(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> + '_ {
                [$((stringify!($name), $what, self.$name.get()),)*].into_iter()
            }
        }
    };
}

counters! {
    inputs: "Inputs that the core was stepped with.",
    reads: "Reads that the core answered.",
    commits_begun: "Commits to the log that were begun.",
    commits: "Commits to the log.",
    events: "Events that were committed to the log.",
    commit_us: "Microseconds spent in commits.",
    last_commit_us: "Microseconds that the last commit took.",
    snapshots: "Snapshots that were finished.",
    archived: "Jobs that were moved to the archive.",
    terms: "Terms that were begun; more than one means that writes have failed.",
    seats_lost: "Terms that ended because another process took the seat; what was still to be written under them was refused.",
    sessions_cut_off: "gRPC workers that were cut off because they did not read fast enough.",
    late_claims_refused: "Calls that were refused because they spoke for an attempt of an archived job.",
    shed_telemetry: "Telemetry calls that were turned away because of load.",
    shed_submissions: "Submissions that were turned away because of load.",
    shed_other: "Other calls that were turned away because of load.",
    followed_bytes: "Bytes held now for clients that follow jobs; a text is counted once, whoever gets it.",
}

#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub fn sub(&self, count: u64) {
        self.0.fetch_sub(count, Ordering::Relaxed);
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
