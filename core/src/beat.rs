//! Beat, watermark, forward step, quiet section: the clocks of one attempt.
//!
//! A **beat** says "the handler is active" and renews the lease. A **progress** report moves a monotone watermark.
//! A **forward step** is a watermark that rises; or a beat of an attempt that has never reported a watermark, unless
//! its job requires progress. So a handler that reports is judged by its reports alone, and one that cannot report
//! by its beats: if every beat counted, a retry loop would look healthy for ever.
//!
//! A **quiet section** is declared permission to be silent, bounded and charged to a budget. The lease clock and the
//! stuck clock stand still while it lasts; the next beat, or its own end, ends it. What the holder was told about its
//! lease stays true if it ends early: a lease never shrinks.
//!
//! All of this runs on [`Awake`] time, so that nobody pays for the manager's own absence.

use core::time::Duration;

use crate::lease;
use crate::time::Awake;

/// The clock of one running attempt. Beats change it; nothing here is logged by itself.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AttemptClock {
    /// Like `last_step` moved by every quiet section, so that the attempt does not age in one.
    handed_at: Awake,
    /// The later of hand-out and last forward step.
    last_step: Awake,
    stepped: bool,
    lease_until: Awake,
    /// The latest end of the lease that the holder was told of.
    promised: Awake,
    watermark: Option<u64>,
    total: Option<u64>,
    quiet: Option<Quiet>,
    quiet_used: Duration,
    grant_until: Awake,
    /// Set after a takeover until the worker is heard of: only the lease runs, which is the time that the worker has
    /// for that.
    unheard: bool,
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Quiet {
    began: Awake,
    until: Awake,
    /// Used of it before a takeover: charged with the rest, while the clocks started anew.
    used_before: Duration,
}

/// How an attempt counts for its worker's progress signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Motion {
    /// Younger than the window, without a step, or not heard of since a takeover: counts nowhere.
    Young,
    Moving,
    Unmoving,
    /// Was asked to stop, and would be unmoving otherwise: counts nowhere. It need not move, and does not.
    Stopping,
}

/// The quiet budget of the attempt is used up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuietSpent;

impl AttemptClock {
    pub fn start(now: Awake, lease: Duration) -> Self {
        Self {
            handed_at: now,
            last_step: now,
            stepped: false,
            lease_until: now + lease,
            promised: now + lease,
            watermark: None,
            total: None,
            quiet: None,
            quiet_used: Duration::ZERO,
            grant_until: Awake::ZERO,
            unheard: false,
        }
    }

    /// The attempt as a new leader finds it in the log: the stuck clock stands until its worker is heard of, what was
    /// reported stays reported, and a quiet section goes on for what was left of it.
    pub fn resume(now: Awake, lease: Duration, mark: Option<(u64, Option<u64>)>, quiet_used: Duration) -> Self {
        let (watermark, total) = mark.map_or((None, None), |(done, total)| (Some(done), total));
        Self { watermark, total, quiet_used, unheard: true, ..Self::start(now, lease) }
    }

    /// Resumes the quiet section that the log knows of, of which so much was used before the takeover.
    pub fn resume_quiet(&mut self, now: Awake, used_before: Duration, left: Duration) {
        self.quiet = Some(Quiet { began: now, until: now + left, used_before });
        self.promised = self.lease_end();
    }

    /// Whether its worker has not been heard of since a takeover.
    pub fn is_unheard(&self) -> bool {
        self.unheard
    }

    /// Starts the clocks once the worker is back after a takeover: the attempt counts as handed out now. Of a quiet
    /// section that goes on, only the rest holds the clocks from here on; they had not begun before.
    pub fn heard_again(&mut self, now: Awake) {
        if !core::mem::take(&mut self.unheard) {
            return;
        }
        if let Some(quiet) = &mut self.quiet {
            let used = now.min(quiet.until).since(quiet.began);
            quiet.used_before += used;
            quiet.began = quiet.began + used;
            self.lease_until = self.lease_until + used;
        }
        self.handed_at = now;
        self.last_step = now;
    }

    /// The handler is active. Returns whether that was a forward step.
    pub fn beat(&mut self, now: Awake, extension: Duration, require_progress: bool) -> bool {
        self.lease_until = lease::extend(self.lease_until, now, extension);
        self.promised = self.lease_end();
        let step = self.watermark.is_none() && !require_progress;
        if step {
            self.step(now);
        }
        step
    }

    /// The handler reports units done. A watermark that does not rise is only a beat of a handler that reports.
    pub fn progress(&mut self, now: Awake, watermark: u64, total: Option<u64>) -> bool {
        let rose = self.watermark.is_none_or(|before| watermark > before) && watermark > 0;
        self.watermark = Some(self.watermark.unwrap_or(0).max(watermark));
        self.total = total.or(self.total);
        if rose {
            self.step(now);
        }
        rose
    }

    fn step(&mut self, now: Awake) {
        self.last_step = self.last_step.max(now);
        self.stepped = true;
    }

    /// Begins a quiet section of at most `max`, cut to what the budget has left. Returns what was allowed.
    pub fn begin_quiet(&mut self, now: Awake, max: Duration, budget: Duration) -> Result<Duration, QuietSpent> {
        self.end_quiet(now);
        let allowed = max.min(budget.saturating_sub(self.quiet_used));
        if allowed.is_zero() {
            return Err(QuietSpent);
        }
        self.quiet = Some(Quiet { began: now, until: now + allowed, used_before: Duration::ZERO });
        self.promised = self.lease_end();
        Ok(allowed)
    }

    /// The part of the quiet budget that is left for the section that lasts, and those to come.
    pub fn quiet_left(&self, budget: Duration) -> Duration {
        budget.saturating_sub(self.quiet_used)
    }

    /// Ends the quiet section, if there is one, and lets the clocks go on. Returns what it used in all.
    pub fn end_quiet(&mut self, now: Awake) -> Option<Duration> {
        let quiet = self.quiet.take()?;
        let used = now.min(quiet.until).since(quiet.began);
        self.lease_until = self.lease_until + used;
        self.last_step = self.last_step + used;
        self.handed_at = self.handed_at + used;
        self.quiet_used += quiet.used_before + used;
        Some(quiet.used_before + used)
    }

    /// A grant to the worker covers this attempt until the health deadline that it set.
    pub fn grant(&mut self, until: Awake) {
        self.grant_until = self.grant_until.max(until);
    }

    /// The end of the grant that covers this attempt; zero before the first.
    pub fn granted_until(&self) -> Awake {
        self.grant_until
    }

    /// The end of the lease if nothing more is heard.
    pub fn lease_end(&self) -> Awake {
        let end = match self.quiet {
            Some(quiet) => quiet.until + self.lease_until.since(quiet.began),
            None => self.lease_until,
        };
        end.max(self.promised)
    }

    /// The instant at which the attempt is stuck if no forward step is made.
    pub fn stuck_at(&self, stuck_after: Duration) -> Awake {
        if self.unheard {
            return Awake::MAX;
        }
        let at = self.last_step + stuck_after;
        let held = match self.quiet {
            Some(quiet) => quiet.until + at.since(quiet.began),
            None => at,
        };
        held.max(self.grant_until)
    }

    /// `cancelled`: it was asked to stop. Then nothing covers it any more, and only a step is a step.
    pub fn motion(&self, now: Awake, window: Duration, cancelled: bool) -> Motion {
        let covered = self.quiet.is_some_and(|quiet| now < quiet.until) || now < self.grant_until;
        if (covered && !cancelled) || (self.stepped && now < self.last_step + window) {
            Motion::Moving
        } else if self.unheard || (!self.stepped && now < self.handed_at + window) {
            Motion::Young
        } else if cancelled {
            Motion::Stopping
        } else {
            Motion::Unmoving
        }
    }

    /// The instant at which [`Self::motion`] may change, or a quiet section end, with nothing heard.
    pub fn next_change(&self, now: Awake, window: Duration) -> Option<Awake> {
        [
            self.quiet.map(|quiet| quiet.until),
            Some(self.grant_until),
            (!self.unheard).then(|| if self.stepped { self.last_step } else { self.handed_at } + window),
        ]
        .into_iter()
        .flatten()
        .filter(|at| *at > now)
        .min()
    }

    /// A quiet section whose time is over ends by itself.
    pub fn quiet_over(&self, now: Awake) -> bool {
        self.quiet.is_some_and(|quiet| now >= quiet.until)
    }

    pub fn quiet_until(&self) -> Option<Awake> {
        self.quiet.map(|quiet| quiet.until)
    }

    pub fn watermark(&self) -> Option<(u64, Option<u64>)> {
        self.watermark.map(|done| (done, self.total))
    }

    pub fn handed_at(&self) -> Awake {
        self.handed_at
    }

    pub fn last_step(&self) -> Awake {
        self.last_step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(300);
    const STUCK: Duration = Duration::from_secs(120);
    const WINDOW: Duration = Duration::from_secs(60);
    const BUDGET: Duration = Duration::from_secs(600);

    fn at(seconds: u64) -> Awake {
        Awake::from_ms(seconds * 1000)
    }

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// What a handler does, in order, and whether it is a forward step.
    #[test]
    fn what_is_a_forward_step() {
        enum Do {
            Beat,
            Report(u64),
        }
        use Do::{Beat, Report};
        let table: &[(bool, &[(Do, bool)])] = &[
            (false, &[(Beat, true), (Beat, true)]),
            (true, &[(Beat, false), (Beat, false), (Report(1), true), (Beat, false)]),
            (false, &[(Report(1), true), (Beat, false), (Report(1), false), (Report(2), true)]),
            (false, &[(Report(5), true), (Report(3), false), (Report(5), false), (Report(6), true)]),
            (false, &[(Report(0), false), (Beat, false), (Report(1), true)]),
        ];
        for (require_progress, script) in table {
            let mut clock = AttemptClock::start(at(0), LEASE);
            for (second, (what, expected)) in script.iter().enumerate() {
                let now = at(second as u64 + 1);
                let stepped = match what {
                    Beat => clock.beat(now, LEASE, *require_progress),
                    Report(units) => clock.progress(now, *units, None),
                };
                assert_eq!(stepped, *expected, "step {second} with require_progress {require_progress}");
                assert_eq!(clock.last_step() == now, *expected);
            }
        }
    }

    #[test]
    fn a_beat_renews_the_lease_and_only_a_step_resets_the_stuck_clock() {
        let mut clock = AttemptClock::start(at(0), LEASE);
        clock.progress(at(10), 1, Some(9));
        clock.beat(at(100), LEASE, false);
        assert_eq!(clock.lease_end(), at(400));
        assert_eq!(clock.stuck_at(STUCK), at(130));
        assert_eq!(clock.watermark(), Some((1, Some(9))));
    }

    #[test]
    fn a_quiet_section_holds_both_clocks_for_what_it_used() {
        let mut clock = AttemptClock::start(at(0), LEASE);
        assert_eq!(clock.begin_quiet(at(100), secs(200), BUDGET), Ok(secs(200)));
        // Silent to its end: 20 s of stuck clock and 200 s of lease are left then.
        assert_eq!(clock.stuck_at(STUCK), at(320));
        assert_eq!(clock.lease_end(), at(500));
        // Ended early by a beat: the stuck clock goes on, and the lease stays what it was said to be.
        assert_eq!(clock.end_quiet(at(150)), Some(secs(50)));
        assert_eq!(clock.stuck_at(STUCK), at(170));
        assert_eq!(clock.lease_end(), at(500));
        assert_eq!(clock.end_quiet(at(160)), None);
        // The next one counts from the lease itself: promises do not add up.
        clock.begin_quiet(at(200), secs(200), BUDGET).unwrap();
        assert_eq!(clock.lease_end(), at(550));
    }

    #[test]
    fn quiet_time_is_charged_to_a_budget() {
        let mut clock = AttemptClock::start(at(0), LEASE);
        // (asked at, asked, allowed, ended at)
        for (begin, asked, allowed, end) in [(0, 400, 400, 400), (500, 400, 200, 600), (600, 400, 100, 9_000)] {
            assert_eq!(clock.begin_quiet(at(begin), secs(asked), BUDGET), Ok(secs(allowed)));
            clock.end_quiet(at(end));
        }
        assert_eq!(clock.begin_quiet(at(9_001), secs(1), BUDGET), Err(QuietSpent));
    }

    #[test]
    fn a_live_grant_holds_off_stuck_and_counts_as_moving() {
        let mut clock = AttemptClock::start(at(0), LEASE);
        clock.grant(at(200));
        clock.grant(at(150));
        assert_eq!(clock.stuck_at(STUCK), at(200));
        assert_eq!(clock.motion(at(199), WINDOW, false), Motion::Moving);
        assert_eq!(clock.motion(at(200), WINDOW, false), Motion::Unmoving);
    }

    #[test]
    fn motion_over_the_progress_window() {
        let silent = AttemptClock::start(at(0), LEASE);
        let mut stepped = silent;
        stepped.beat(at(30), LEASE, false);
        let mut quiet = silent;
        quiet.begin_quiet(at(50), secs(100), BUDGET).unwrap();
        let table = [
            (silent, 59, Motion::Young),
            (silent, 60, Motion::Unmoving),
            (stepped, 89, Motion::Moving),
            (stepped, 90, Motion::Unmoving),
            (quiet, 149, Motion::Moving),
            (quiet, 150, Motion::Unmoving),
        ];
        for (clock, second, expected) in table {
            assert_eq!(clock.motion(at(second), WINDOW, false), expected, "at {second}");
            if second % 10 == 0 {
                assert_eq!(clock.next_change(at(second - 1), WINDOW), Some(at(second)));
            }
        }
    }

    #[test]
    fn a_quiet_section_over_a_takeover_holds_the_clocks_once() {
        let mut clock = AttemptClock::resume(at(1_000), secs(303), None, Duration::ZERO);
        clock.resume_quiet(at(1_000), secs(50), secs(350));
        assert_eq!(clock.lease_end(), at(1_350 + 303));
        clock.heard_again(at(1_200));
        assert_eq!(clock.lease_end(), at(1_350 + 303));
        assert_eq!(clock.stuck_at(STUCK), at(1_350 + 120));
        clock.heard_again(at(1_300));
        assert_eq!(clock.stuck_at(STUCK), at(1_350 + 120), "it is heard of once");
        assert_eq!(clock.end_quiet(at(1_350)), Some(secs(400)), "all of it is charged");
        assert_eq!(clock.stuck_at(STUCK), at(1_350 + 120));
        clock.begin_quiet(at(1_350), secs(100), BUDGET).unwrap();
        assert_eq!(clock.lease_end(), at(1_450 + 303), "none of the lease was used before");
    }

    #[test]
    fn a_quiet_section_that_ends_early_after_a_takeover_shrinks_no_lease() {
        let mut clock = AttemptClock::resume(at(1_000), secs(303), None, Duration::ZERO);
        clock.resume_quiet(at(1_000), secs(50), secs(350));
        clock.heard_again(at(1_010));
        clock.end_quiet(at(1_020));
        clock.beat(at(1_020), LEASE, false);
        assert_eq!(clock.lease_end(), at(1_350 + 303), "what the holder was told before stays true");
    }

    #[test]
    fn a_takeover_restarts_the_stuck_clock_and_keeps_what_was_reported() {
        let mut clock = AttemptClock::resume(at(1_000), secs(303), Some((7, Some(10))), secs(590));
        assert_eq!((clock.stuck_at(STUCK), clock.motion(at(1_200), WINDOW, false)), (Awake::MAX, Motion::Young));
        assert_eq!(clock.lease_end(), at(1_303));
        clock.heard_again(at(1_000));
        assert_eq!(clock.stuck_at(STUCK), at(1_120));
        assert!(!clock.beat(at(1_001), LEASE, false), "a handler that reported is judged by its reports");
        assert_eq!(clock.begin_quiet(at(1_002), secs(60), BUDGET), Ok(secs(10)));
    }
}
