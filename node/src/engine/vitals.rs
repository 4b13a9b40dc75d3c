//! Whether the loops that everything depends on still move. A loop that hangs or has died is what a restart helps
//! against; one that waits, for storage as for anything else, or meets the same failure again and again, is not.
//!
//! | loop | a round of it | critical |
//! |---|---|---|
//! | machine | one round of asks | yes |
//! | committer | one call to the log, until it is known what became of it | for readiness |
//! | schedules | one search for due instants | yes |
//! | snapshots | one part of a snapshot, until it is stored | no |
//! | archive | one batch of ended jobs, or of expired ones | no |
//!
//! Beside them, a log that has not answered for `seat_ttl` fails readiness, long before its loop is taken to hang.
//!
//! Each says what it is at by a relaxed store at either end of a round, which has many jobs under load.

use std::time::Duration;

use onward_health::{Input, LoopWatch, Pulse};

/// A snapshot's part and an archive's batch wait for the disk in turn with everything else.
const SLOW: u32 = 30;

/// A thread that panics takes its loop along.
pub(crate) struct DieOnPanic<'a>(pub(crate) &'a Pulse);

impl Drop for DieOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.die();
        }
    }
}

#[derive(Debug)]
pub(crate) struct Vitals {
    pub(crate) watch: LoopWatch,
    pub(crate) machine: Pulse,
    /// The committer, at one call to the log.
    pub(crate) log: Pulse,
    pub(crate) snapshots: Pulse,
    pub(crate) archive: Pulse,
    /// At one search for due instants.
    pub(crate) schedules: Pulse,
    /// Between two machines. Reading a long log takes its time, and is no hang.
    pub(crate) takeover: Pulse,
}

impl Vitals {
    pub(crate) fn new(hang_after: Duration, seat_ttl: Duration, has_archive: bool) -> Self {
        Self::with(hang_after, seat_ttl, true, has_archive)
    }

    /// Of a gate, which has neither schedules nor an archive.
    pub(crate) fn of_gate(hang_after: Duration, seat_ttl: Duration) -> Self {
        Self::with(hang_after, seat_ttl, false, false)
    }

    fn with(hang_after: Duration, seat_ttl: Duration, has_schedules: bool, has_archive: bool) -> Self {
        let vitals = Self {
            watch: LoopWatch::new("node"),
            machine: Pulse::default(),
            log: Pulse::default(),
            snapshots: Pulse::default(),
            archive: Pulse::default(),
            schedules: Pulse::default(),
            takeover: Pulse::default(),
        };
        vitals.watch.add("machine", hang_after, &vitals.machine);
        // A store that does not answer is no better for it if we begin anew; nothing can be stored, and that is known by
        // whoever asks whether we are ready.
        vitals.watch.add_reporting_only("committer", hang_after, &vitals.log);
        if has_schedules {
            vitals.watch.add("schedules", hang_after, &vitals.schedules);
        }
        vitals.watch.add_reporting_only("snapshots", hang_after * SLOW, &vitals.snapshots);
        if has_archive {
            vitals.watch.add_reporting_only("archive", hang_after * SLOW, &vitals.archive);
        }
        let (log, takeover) = (vitals.log.clone(), vitals.takeover.clone());
        vitals.watch.add_input(LogAnswers { log, takeover, seat_ttl });
        vitals
    }

    /// For how long nothing can have been answered that waits for the log, or for a machine.
    pub(crate) fn stalled_for(&self) -> Duration {
        stalled_for(&self.log, &self.takeover)
    }
}

fn stalled_for(log: &Pulse, takeover: &Pulse) -> Duration {
    log.busy_for().max(takeover.busy_for()).unwrap_or_default()
}

/// Whether the log answers in time: without that the seat is not confirmed, and nobody is served.
struct LogAnswers {
    log: Pulse,
    takeover: Pulse,
    seat_ttl: Duration,
}

impl Input for LogAnswers {
    fn name(&self) -> &str {
        "log"
    }

    fn problem(&self) -> Option<String> {
        let stalled = stalled_for(&self.log, &self.takeover);
        (stalled >= self.seat_ttl).then(|| format!("it has not answered for {stalled:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_does_not_answer_fails_readiness_before_it_is_taken_to_hang() {
        let hour = Duration::from_secs(3_600);
        let (patient, strict) = (Vitals::new(hour, hour, false), Vitals::new(hour, Duration::ZERO, false));
        for vitals in [&patient, &strict] {
            vitals.log.begin();
        }
        let report = patient.watch.health().report();
        assert!(report.ready && report.live, "it has only begun: {:?}", report.why_not_ready());
        let report = strict.watch.health().report();
        assert!(report.live && !report.ready);
        assert!(report.why_not_ready().unwrap().starts_with("log: it has not answered for "));
    }
}
