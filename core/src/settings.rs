//! Every number of the rules, as written and as checked. Only a checked [`Rules`] runs anything.

use core::fmt;
use core::ops::RangeInclusive;
use core::time::Duration;

use crate::dispatch::AgingRule;
use crate::gate::{GateRule, MISSED_REPORTS};
use crate::grant::GrantRule;
use crate::health::overload::LoadLimits as Levels;
use crate::health::progress::MAX_FAILED_JOBS;
use crate::health::{EvictionRule, HoldRule, LivenessRule, OverloadRule, ProgressRule, QuorumRule};
use crate::job::draft::{JobDefaults, MAX_ATTEMPTS, MAX_SPAN};
use crate::lease::{AllowedRange, LeaseRule, LeaseRuleError};
use crate::limits::Limits;

/// The settings as an operator wrote them, completed by defaults. Not yet checked.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    pub lease: LeaseRule,
    pub grant: GrantRule,
    pub liveness: LivenessRule,
    pub progress: ProgressRule,
    pub eviction: EvictionRule,
    pub hold: HoldRule,
    pub quorum: QuorumRule,
    pub overload: OverloadRule,
    pub aging: AgingRule,
    pub gate: GateRule,
    pub job: JobDefaults,
    pub limits: Limits,
    /// A leader serves only while its seat was confirmed within this.
    pub seat_ttl: Duration,
    /// A late wake-up by more than this is a gap of our own.
    pub gap_after: Duration,
    /// The time after a takeover before which no overall timeout fires.
    pub takeover_grace: Duration,
    /// Quiet time that one attempt may use.
    pub quiet_budget: Duration,
    pub checkpoint_every: Duration,
    /// The shortest time between two logged watermarks of a running attempt.
    pub mark_every: Duration,
    /// The longest that a poll may wait.
    pub max_poll_wait: Duration,
    pub min_lease: Duration,
    pub max_lease: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            lease: LeaseRule::default(),
            grant: GrantRule::default(),
            liveness: LivenessRule::default(),
            progress: ProgressRule::default(),
            eviction: EvictionRule::default(),
            hold: HoldRule::default(),
            quorum: QuorumRule::default(),
            overload: OverloadRule::default(),
            aging: AgingRule::default(),
            gate: GateRule::default(),
            job: JobDefaults::default(),
            limits: Limits::default(),
            seat_ttl: Duration::from_secs(3),
            gap_after: Duration::from_secs(1),
            takeover_grace: Duration::from_secs(15),
            quiet_budget: Duration::from_secs(600),
            checkpoint_every: Duration::from_secs(1),
            mark_every: Duration::from_secs(10),
            max_poll_wait: Duration::from_secs(60),
            min_lease: Duration::from_secs(1),
            max_lease: Duration::from_secs(43_200),
        }
    }
}

/// Settings that were checked. Nothing else can be run.
#[derive(Clone, PartialEq, Debug)]
pub struct Rules(Settings);

impl core::ops::Deref for Rules {
    type Target = Settings;
    fn deref(&self) -> &Settings {
        &self.0
    }
}

impl Default for Rules {
    fn default() -> Self {
        Settings::default().check().expect("the defaults are valid")
    }
}

/// A setting outside its range: which, what it is, what it may be.
#[derive(Clone, PartialEq, Debug)]
pub struct BadSetting {
    pub field: &'static str,
    pub value: String,
    pub allowed: String,
}

impl fmt::Display for BadSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is {}; it must be {}", self.field, self.value, self.allowed)
    }
}

/// Adds to `bad` unless `value` is one of `allowed`.
pub fn in_range<T: PartialOrd + fmt::Display>(
    bad: &mut Vec<BadSetting>,
    field: &'static str,
    value: T,
    allowed: RangeInclusive<T>,
) {
    if !allowed.contains(&value) {
        let allowed = format!("from {} to {}", allowed.start(), allowed.end());
        bad.push(BadSetting { field, value: value.to_string(), allowed });
    }
}

pub fn span_in_range(
    bad: &mut Vec<BadSetting>,
    field: &'static str,
    value: Duration,
    allowed: RangeInclusive<Duration>,
) {
    if !allowed.contains(&value) {
        let allowed = format!("from {:?} to {:?}", allowed.start(), allowed.end());
        bad.push(BadSetting { field, value: format!("{value:?}"), allowed });
    }
}

impl Settings {
    /// Checks the settings. Gives all that is wrong, not only the first.
    pub fn check(self) -> Result<Rules, Vec<BadSetting>> {
        let mut bad = Vec::new();
        self.check_spans(&mut bad);
        self.check_relations(&mut bad);
        for (field, value) in self.limits.listed() {
            if value == 0 {
                bad.push(BadSetting { field, value: "0".into(), allowed: "at least 1".into() });
            }
        }
        if bad.is_empty() { Ok(Rules(self)) } else { Err(bad) }
    }

    /// Every span with its name, as `onward config` prints them.
    pub fn spans(&self) -> [(&'static str, Duration); 38] {
        [
            ("lease.initial", self.lease.initial),
            ("lease.extension", self.lease.extension),
            ("lease.interval", self.lease.interval),
            ("grant.base", self.grant.base),
            ("grant.min", self.grant.min),
            ("liveness.probe_every", self.liveness.probe_every),
            ("liveness.answer_within", self.liveness.answer_within),
            ("liveness.forget_after", self.liveness.forget_after),
            ("progress.window", self.progress.window),
            ("progress.stuck_after", self.progress.stuck_after),
            ("eviction.suspect_grace", self.eviction.suspect_grace),
            ("eviction.stuck_grace", self.eviction.stuck_grace),
            ("eviction.backoff", self.eviction.backoff),
            ("eviction.max_backoff", self.eviction.max_backoff),
            ("eviction.remember_for", self.eviction.remember_for),
            ("hold.recheck_every", self.hold.recheck_every),
            ("hold.forget_after", self.hold.forget_after),
            ("hold.evicted_within", self.hold.evicted_within),
            ("quorum.log_answer_within", self.quorum.log_answer_within),
            ("aging.step", self.aging.step),
            ("gate.progress_every", self.gate.progress_every),
            ("gate.fallback_after", self.gate.fallback_after),
            ("gate.silent_after", self.gate.silent_after),
            ("job.timeout", self.job.timeout),
            ("job.stuck_after", self.job.stuck_after),
            ("job.retry.max", self.job.retry.max),
            ("seat_ttl", self.seat_ttl),
            ("gap_after", self.gap_after),
            ("takeover_grace", self.takeover_grace),
            ("quiet_budget", self.quiet_budget),
            ("checkpoint_every", self.checkpoint_every),
            ("mark_every", self.mark_every),
            ("max_poll_wait", self.max_poll_wait),
            ("min_lease", self.min_lease),
            ("max_lease", self.max_lease),
            ("job.retry.base", self.job.retry.base),
            ("overload.decay_every", self.overload.decay_every),
            ("overload.rise_from", self.overload.rise_from),
        ]
    }

    fn check_spans(&self, bad: &mut Vec<BadSetting>) {
        for (field, value) in self.spans() {
            span_in_range(bad, field, value, Duration::from_millis(1)..=MAX_SPAN);
        }
    }

    fn check_relations(&self, bad: &mut Vec<BadSetting>) {
        let mut need = |holds: bool, field, value: String, allowed: String| {
            if !holds {
                bad.push(BadSetting { field, value, allowed });
            }
        };
        if let Err(LeaseRuleError { value, allowed: allowed @ AllowedRange::AThirdOfTheLease(_), .. }) =
            self.lease.validate()
        {
            need(false, "lease.interval", format!("{value:?}"), allowed.to_string());
        }
        need(
            self.lease.initial >= self.min_lease && self.lease.initial <= self.max_lease,
            "lease.initial",
            format!("{:?}", self.lease.initial),
            format!("from min_lease ({:?}) to max_lease ({:?})", self.min_lease, self.max_lease),
        );
        need(
            self.grant.min <= self.grant.base,
            "grant.min",
            format!("{:?}", self.grant.min),
            format!("at most grant.base ({:?})", self.grant.base),
        );
        need(
            self.liveness.probe_every < self.liveness.answer_within,
            "liveness.probe_every",
            format!("{:?}", self.liveness.probe_every),
            format!("less than liveness.answer_within ({:?})", self.liveness.answer_within),
        );
        need(self.liveness.max_misses > 0, "liveness.max_misses", "0".into(), "at least 1".into());
        let progress = &self.progress;
        need(
            progress.slow_at > 0.0 && progress.slow_at <= progress.normal_at && progress.normal_at <= 1.0,
            "progress.slow_at",
            format!("{} (with progress.normal_at {})", progress.slow_at, progress.normal_at),
            "above 0, and at most progress.normal_at, which is at most 1".into(),
        );
        need(
            progress.expected > 0.0 && progress.expected <= 1.0,
            "progress.expected",
            format!("{}", progress.expected),
            "above 0 and at most 1".into(),
        );
        need(progress.min_samples > 0, "progress.min_samples", "0".into(), "at least 1".into());
        need(
            (1..=MAX_FAILED_JOBS as u32).contains(&progress.min_failed_jobs),
            "progress.min_failed_jobs",
            format!("{}", progress.min_failed_jobs),
            format!("from 1 to {MAX_FAILED_JOBS}"),
        );
        let overload = &self.overload;
        for (field, levels) in [
            ("overload.rise.busy", overload.rise),
            ("overload.latency_ms.busy", overload.latency_ms),
            ("overload.resource_percent.busy", overload.resource_percent),
        ] {
            let Levels { busy, stressed, overloaded } = levels;
            need(
                busy > 0.0 && busy <= stressed && stressed <= overloaded && overloaded.is_finite(),
                field,
                format!("{busy} (with stressed {stressed} and overloaded {overloaded})"),
                "above 0, and none of the three above the next".into(),
            );
        }
        need(overload.better_samples > 0, "overload.better_samples", "0".into(), "at least 1".into());
        let attempts = self.job.retry.max_attempts;
        need(
            (1..=MAX_ATTEMPTS).contains(&attempts),
            "job.retry.max_attempts",
            format!("{attempts}"),
            format!("from 1 to {MAX_ATTEMPTS}"),
        );
        need(
            self.job.retry.base <= self.job.retry.max,
            "job.retry.base",
            format!("{:?}", self.job.retry.base),
            format!("at most job.retry.max ({:?})", self.job.retry.max),
        );
        for (field, value) in
            [("gate.silent_after", self.gate.silent_after), ("gate.fallback_after", self.gate.fallback_after)]
        {
            let least = self.gate.progress_every * MISSED_REPORTS;
            need(
                value > least,
                field,
                format!("{value:?}"),
                format!("more than {MISSED_REPORTS} times gate.progress_every ({least:?})"),
            );
        }
        need(
            self.gap_after < self.seat_ttl,
            "gap_after",
            format!("{:?}", self.gap_after),
            format!("less than seat_ttl ({:?})", self.seat_ttl),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(change: impl FnOnce(&mut Settings)) -> Vec<String> {
        let mut settings = Settings::default();
        change(&mut settings);
        settings.check().err().unwrap_or_default().iter().map(BadSetting::to_string).collect()
    }

    #[test]
    fn the_defaults_are_the_numbers_of_the_rules() {
        let rules = Rules::default();
        let table = [
            ("lease.initial", 300_000),
            ("lease.extension", 300_000),
            ("lease.interval", 60_000),
            ("grant.base", 30_000),
            ("grant.min", 1_000),
            ("liveness.probe_every", 10_000),
            ("liveness.answer_within", 30_000),
            ("liveness.forget_after", 300_000),
            ("progress.window", 60_000),
            ("progress.stuck_after", 120_000),
            ("eviction.suspect_grace", 10_000),
            ("eviction.stuck_grace", 30_000),
            ("eviction.backoff", 60_000),
            ("eviction.remember_for", 3_600_000),
            ("hold.recheck_every", 1_000),
            ("hold.forget_after", 900_000),
            ("hold.evicted_within", 300_000),
            ("quorum.log_answer_within", 5_000),
            ("aging.step", 30_000),
            ("gate.progress_every", 10_000),
            ("gate.fallback_after", 300_000),
            ("gate.silent_after", 180_000),
            ("job.timeout", 86_400_000),
            ("job.stuck_after", 120_000),
            ("seat_ttl", 3_000),
            ("gap_after", 1_000),
            ("takeover_grace", 15_000),
            ("quiet_budget", 600_000),
            ("checkpoint_every", 1_000),
            ("mark_every", 10_000),
            ("max_poll_wait", 60_000),
            ("min_lease", 1_000),
            ("max_lease", 43_200_000),
        ];
        for (field, ms) in table {
            let found = rules.spans().into_iter().find(|(name, _)| *name == field).map(|(_, span)| span.as_millis());
            assert_eq!(found, Some(ms), "{field}");
        }
        assert_eq!((rules.grant.max_grants, rules.aging.max_levels, rules.job.retry.max_attempts), (5, 50, 5));
    }

    #[test]
    fn a_bad_setting_is_named_with_its_value_and_range() {
        assert_eq!(
            problems(|settings| settings.lease.interval = Duration::from_secs(101)),
            [
                "`lease.interval` is 101s; it must be at most 100s, a third of the shorter of lease.initial and lease.extension"
            ]
        );
        assert_eq!(
            problems(|settings| settings.quiet_budget = Duration::ZERO),
            ["`quiet_budget` is 0ns; it must be from 1ms to 31622400s"]
        );
        assert_eq!(problems(|settings| settings.limits.workers = 0), ["`workers` is 0; it must be at least 1"]);
        assert_eq!(
            problems(|settings| settings.progress.min_failed_jobs = 5),
            ["`progress.min_failed_jobs` is 5; it must be from 1 to 4"]
        );
        assert_eq!(
            problems(|settings| settings.job.retry.max_attempts = 0),
            ["`job.retry.max_attempts` is 0; it must be from 1 to 1000"]
        );
    }

    #[test]
    fn everything_that_is_wrong_is_said_at_once() {
        let all = problems(|settings| {
            settings.grant.min = Duration::from_secs(31);
            settings.liveness.probe_every = Duration::from_secs(30);
            settings.liveness.max_misses = 0;
            settings.progress.slow_at = 0.9;
            settings.gap_after = Duration::from_secs(3);
            settings.gate.silent_after = Duration::from_secs(30);
            settings.gate.fallback_after = Duration::from_secs(30);
        });
        assert_eq!(all.len(), 7, "{all:#?}");
    }
}
