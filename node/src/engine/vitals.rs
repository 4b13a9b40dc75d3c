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
//! Beside them, a log that refuses, or has not answered for `seat_ttl`, fails readiness, long before its loop is taken to
//! hang. The port adds its `acceptor`, which is critical, and `gossip`, which is not.
//!
//! | what is wrong | a critical loop | one that is shown only |
//! |---|---|---|
//! | it has panicked, or never started | not live | shown as `dead` |
//! | a round of it takes too long | not live | shown as `stalled` |
//! | a round of it failed | not ready | shown as `failing` |
//!
//! **Why some are shown only.** Without a committer nothing is stored, but a restart brings back no disk: the input says
//! so to readiness, and a committer that panics ends its term, after which the log is opened anew. Without snapshots the
//! log grows, without the archive memory does: both are for people to see long before they matter to callers, and the
//! second ends in refusals by the limits on memory.
//!
//! **Why they are watched, and not run by the supervisor.** They are threads that own state which no restart in place could
//! trust: a machine that panicked half-way through a step is begun again from the log, and nothing less than that.
//!
//! Each says what it is at by a relaxed store at either end of a round, which has many jobs under load.

use std::time::Duration;

use onward_health::{LoopWatch, Pulse, ReadinessInput};

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
    /// The pulse during one search for due instants.
    pub(crate) schedules: Pulse,
    /// The pulse between two machines. Reading a long log takes its time, and is no hang.
    pub(crate) takeover: Pulse,
}

impl Vitals {
    pub(crate) fn new(hang_after: Duration, seat_ttl: Duration, has_archive: bool) -> Self {
        Self::with(hang_after, seat_ttl, true, has_archive)
    }

    /// Vitals of a gate, which has neither schedules nor an archive.
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

    /// The time for which nothing can have been answered that waits for the log, or for a machine.
    pub(crate) fn stalled_for(&self) -> Duration {
        stalled_for(&self.log, &self.takeover)
    }
}

fn stalled_for(log: &Pulse, takeover: &Pulse) -> Duration {
    log.busy_for().max(takeover.busy_for()).unwrap_or_default()
}

/// Whether the log takes what it is given, and answers in time: without that the seat is not confirmed, and nobody is served.
struct LogAnswers {
    log: Pulse,
    takeover: Pulse,
    seat_ttl: Duration,
}

impl ReadinessInput for LogAnswers {
    fn name(&self) -> &str {
        "log"
    }

    fn problem(&self) -> Option<String> {
        if let Some(trouble) = self.log.trouble() {
            return Some(trouble);
        }
        let stalled = stalled_for(&self.log, &self.takeover);
        (stalled >= self.seat_ttl).then(|| format!("it has not answered for {stalled:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn all(vitals: &Vitals) -> [(&'static str, bool, &Pulse); 5] {
        [
            ("machine", true, &vitals.machine),
            ("committer", false, &vitals.log),
            ("schedules", true, &vitals.schedules),
            ("snapshots", false, &vitals.snapshots),
            ("archive", false, &vitals.archive),
        ]
    }

    /// What is wrong with a loop, and how it is shown.
    struct Wrong {
        happens: fn(&Pulse),
        state: &'static str,
        reason: &'static str,
        restart_helps: bool,
    }

    #[test]
    fn every_loop_is_shown_with_its_reason_and_fails_the_probes_that_it_is_critical_for() {
        let all_wrong = [
            Wrong { happens: Pulse::die, state: "dead", reason: "gone", restart_helps: true },
            Wrong { happens: Pulse::begin, state: "stalled", reason: "iteration_too_long", restart_helps: true },
            Wrong {
                happens: |pulse| pulse.fail("no luck"),
                state: "failing",
                reason: "budget_spent",
                restart_helps: false,
            },
        ];
        for Wrong { happens, state, reason, restart_helps } in all_wrong {
            for place in 0..5 {
                // Whatever is at something hangs at once; the log is given an hour all the same.
                let vitals = Vitals::new(Duration::ZERO, HOUR, true);
                let (name, critical, pulse) = all(&vitals)[place];
                assert!(vitals.watch.health().report().ready);
                happens(pulse);
                let report = vitals.watch.health().report();
                let shown = &report.loops[place];
                assert_eq!((&*shown.name, shown.critical), (name, critical));
                assert_eq!((shown.state.code(), shown.reason.code()), (state, reason), "{name}");
                assert!(shown.since_ms < HOUR.as_millis() as u64, "{name}");
                let log_refuses = name == "committer" && state == "failing";
                assert_eq!(report.ready, !critical && !log_refuses, "{name} is {state}");
                assert_eq!(report.live, !(critical && restart_helps), "{name} is {state}");
                let (why, expected) = (report.why_not_ready(), if log_refuses { "log" } else { name });
                assert!(report.ready || why.as_ref().is_some_and(|why| why.contains(expected)), "{name}: {why:?}");
                assert_eq!(report.loops.iter().filter(|one| one.state.code() != "healthy").count(), 1, "{name} alone");
            }
        }
    }

    #[test]
    fn a_log_that_refuses_fails_readiness_until_it_takes_something_again() {
        let vitals = Vitals::new(HOUR, HOUR, false);
        vitals.log.fail("the disk is full");
        let report = vitals.watch.health().report();
        assert_eq!((report.live, report.ready), (true, false));
        assert_eq!(report.why_not_ready().unwrap(), "log: the disk is full");
        vitals.log.recover();
        assert!(vitals.watch.health().report().ready);
    }

    #[test]
    fn a_log_that_does_not_answer_fails_readiness_before_it_is_taken_to_hang() {
        let (patient, strict) = (Vitals::new(HOUR, HOUR, false), Vitals::new(HOUR, Duration::ZERO, false));
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
