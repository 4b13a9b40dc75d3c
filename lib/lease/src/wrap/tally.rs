//! What went through a wrapper, told to its heartbeat.

use core::panic::Location;

use crate::heartbeat::Heartbeat;

#[derive(Debug)]
pub(super) struct WorkTally {
    heartbeat: Heartbeat,
    place: &'static Location<'static>,
    done: u64,
    /// Beats alone, without it.
    pub(super) total: Option<u64>,
}

impl WorkTally {
    #[track_caller]
    pub(super) fn new(heartbeat: &Heartbeat) -> Self {
        Self { heartbeat: heartbeat.clone(), place: Location::caller(), done: 0, total: None }
    }

    /// Counts so many more units.
    pub(super) fn add(&mut self, count: u64) {
        self.done += count;
        match self.total {
            Some(total) => self.heartbeat.progress_at(self.place, self.done, Some(total)),
            None => self.heartbeat.beat_at(self.place),
        }
    }
}
