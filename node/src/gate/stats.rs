//! Counters of a gate's engine, readable from every thread.

use std::time::Duration;

use crate::engine::Counter;

macro_rules! counters {
    ($($name:ident: $what:literal,)*) => {
        #[derive(Debug, Default)]
        pub struct GateStats { $(#[doc = $what] pub $name: Counter,)* }

        impl GateStats {
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
    commits: "Commits to the log.",
    events: "Events that were committed to the log.",
    commit_us: "Microseconds spent in commits.",
    snapshots: "Snapshots that were finished.",
    terms: "Terms that were begun.",
    streams_opened: "Streams of datacenters that were let in.",
    streams_refused: "Streams that were refused because nothing proved who speaks.",
    streams_cut_off: "Streams that were cut off because they did not read fast enough.",
    frames: "Frames that datacenters have sent.",
    shed: "Calls that were turned away because of load.",
    followed_bytes: "Bytes held now for clients that follow jobs; a text is counted once, whoever gets it.",
}

impl GateStats {
    pub(super) fn committed(&self, events: usize, took: Duration) {
        self.commits.add(1);
        self.events.add(events as u64);
        self.commit_us.add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }
}
