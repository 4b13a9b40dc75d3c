//! Overload: how much of what comes in a node may still take on.
//!
//! The level is the worst of three inputs: latency against its own past, latency against fixed limits, and CPU or memory.
//!
//! | | busy | stressed | overloaded |
//! |---|---|---|---|
//! | mean of the last 10 latencies over the slow average | +20 % | +50 % | +100 % |
//! | that mean itself | 200 ms | 500 ms | 2000 ms |
//! | CPU or memory | 70 % | 85 % | 95 % |
//! | sheds | telemetry | and submissions | and all else but control |
//!
//! Where fewer than 10 latencies are known, the missing ones count as the slow average, or as those that are known if
//! that is less: one slow commit on an idle node is one of ten, and one quick commit is no overload. The comparison with
//! the slow average needs all ten.
//!
//! A level rises at once. It falls after `better_samples` better ones, to the worst of them; and one step for every
//! `decay_every` without a sample, since a node that sheds everything would otherwise never learn that it may stop.
//!
//! The slow average is exponentially weighted: each latency moves it by [`SLOW_WEIGHT`] of the difference, so that it
//! takes about 35 samples to learn half of a change. While latency is above normal it is moved by [`STRAINED_WEIGHT`]
//! only, half of a change in about 700 samples: overload must not become the new normal while it lasts, yet a
//! lasting change must in the end, or the node would shed for ever.

use crate::time::{Awake, span_ms};
use core::time::Duration;

pub const SLOW_WEIGHT: f64 = 0.02;
pub const STRAINED_WEIGHT: f64 = 0.001;
/// The number of latencies that the quick mean is taken over.
pub const QUICK_SAMPLES: usize = 10;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
pub enum OverloadLevel {
    #[default]
    Normal,
    Busy,
    Stressed,
    Overloaded,
}

impl OverloadLevel {
    pub const fn code(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Busy => "busy",
            Self::Stressed => "stressed",
            Self::Overloaded => "overloaded",
        }
    }

    const fn lower_by(self, steps: u64) -> Self {
        match (self as u64).saturating_sub(steps) {
            0 => Self::Normal,
            1 => Self::Busy,
            2 => Self::Stressed,
            _ => Self::Overloaded,
        }
    }
}

/// The input that set the level.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum OverloadReason {
    WithinLimits,
    LatencyRising,
    LatencyHigh,
    CpuHigh,
    MemoryHigh,
}

impl OverloadReason {
    pub const fn code(self) -> &'static str {
        match self {
            Self::WithinLimits => "within_limits",
            Self::LatencyRising => "latency_rising",
            Self::LatencyHigh => "latency_high",
            Self::CpuHigh => "cpu_high",
            Self::MemoryHigh => "memory_high",
        }
    }
}

/// The class of a call for the node that it comes in at. Beats, results and cancels are control.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum LoadClass {
    Telemetry,
    Submission,
    Control,
    Other,
}

/// Whether a call of this class is refused. Control never is: it is what ends load.
pub const fn sheds(level: OverloadLevel, class: LoadClass) -> bool {
    match class {
        LoadClass::Control => false,
        LoadClass::Telemetry => level as u8 >= OverloadLevel::Busy as u8,
        LoadClass::Submission => level as u8 >= OverloadLevel::Stressed as u8,
        LoadClass::Other => level as u8 >= OverloadLevel::Overloaded as u8,
    }
}

/// The values at which an input turns busy, stressed and overloaded.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LoadLimits {
    pub busy: f64,
    pub stressed: f64,
    pub overloaded: f64,
}

impl LoadLimits {
    fn level(&self, value: f64) -> OverloadLevel {
        if value >= self.overloaded {
            OverloadLevel::Overloaded
        } else if value >= self.stressed {
            OverloadLevel::Stressed
        } else if value >= self.busy {
            OverloadLevel::Busy
        } else {
            OverloadLevel::Normal
        }
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct OverloadRule {
    /// Rise of the quick mean over the slow average; 0.2 is +20 %.
    pub rise: LoadLimits,
    /// A quick mean below this is no overload, however it compares: a commit that takes 10 ms
    /// instead of 5 has company, or a disk with other work to do, and is no reason to turn anybody away.
    pub rise_from: Duration,
    pub latency_ms: LoadLimits,
    pub resource_percent: LoadLimits,
    pub better_samples: u8,
    pub decay_every: Duration,
}

impl Default for OverloadRule {
    fn default() -> Self {
        Self {
            rise: LoadLimits { busy: 0.2, stressed: 0.5, overloaded: 1.0 },
            rise_from: Duration::from_millis(100),
            latency_ms: LoadLimits { busy: 200.0, stressed: 500.0, overloaded: 2000.0 },
            resource_percent: LoadLimits { busy: 70.0, stressed: 85.0, overloaded: 95.0 },
            better_samples: 2,
            decay_every: Duration::from_secs(10),
        }
    }
}

/// Latencies and resources rise, fall and decay each by themselves, so that one cannot talk the other down.
#[derive(Clone, Debug)]
pub struct OverloadDetector {
    rule: OverloadRule,
    baseline: Baseline,
    latency: Steps,
    resources: Steps,
}

impl OverloadDetector {
    pub fn new(rule: OverloadRule) -> Self {
        Self { rule, baseline: Baseline::default(), latency: Steps::default(), resources: Steps::default() }
    }

    /// Takes in the latency of a call.
    pub fn latency(&mut self, now: Awake, took: Duration) {
        let level_before = self.latency.level(&self.rule, now);
        if self.latency.silent_for(now) >= self.rule.decay_every {
            self.baseline.forget_quick();
        }
        self.baseline.add(took.as_secs_f64() * 1000.0, level_before);

        let mean_ms = self.baseline.quick_mean_ms();
        let high = self.rule.latency_ms.level(mean_ms);
        let rising = match self.baseline.rise() {
            Some(rise) if mean_ms >= self.rule.rise_from.as_secs_f64() * 1000.0 => self.rule.rise.level(rise),
            _ => OverloadLevel::Normal,
        };
        let reason = if rising > high { OverloadReason::LatencyRising } else { OverloadReason::LatencyHigh };
        self.latency.sample(&self.rule, now, high.max(rising), reason);
    }

    /// Takes in the host's use of its resources, in percent. A value that cannot be measured is given as 0.
    pub fn resources(&mut self, now: Awake, cpu_percent: f64, memory_percent: f64) {
        let cpu = self.rule.resource_percent.level(cpu_percent);
        let memory = self.rule.resource_percent.level(memory_percent);
        let reason = if memory > cpu { OverloadReason::MemoryHigh } else { OverloadReason::CpuHigh };
        self.resources.sample(&self.rule, now, cpu.max(memory), reason);
    }

    pub fn level(&self, now: Awake) -> OverloadLevel {
        self.judge(now).0
    }

    pub fn judge(&self, now: Awake) -> (OverloadLevel, OverloadReason) {
        let latency = self.latency.level(&self.rule, now);
        let resources = self.resources.level(&self.rule, now);
        match latency.max(resources) {
            OverloadLevel::Normal => (OverloadLevel::Normal, OverloadReason::WithinLimits),
            level if resources == level => (level, self.resources.reason),
            level => (level, self.latency.reason),
        }
    }

    /// The instant when the level may fall by time alone.
    pub fn next_change(&self, now: Awake) -> Option<Awake> {
        let latency = self.latency.next_decay(&self.rule, now);
        let resources = self.resources.next_decay(&self.rule, now);
        latency.into_iter().chain(resources).min()
    }
}

/// The hysteresis: up at once, down after better samples or with time.
#[derive(Clone, Copy, Debug)]
struct Steps {
    level: OverloadLevel,
    reason: OverloadReason,
    last_sample: Awake,
    /// Better samples in a row.
    better: u8,
    worst_better: (OverloadLevel, OverloadReason),
}

impl Default for Steps {
    fn default() -> Self {
        Self {
            level: OverloadLevel::Normal,
            reason: OverloadReason::WithinLimits,
            last_sample: Awake::ZERO,
            better: 0,
            worst_better: (OverloadLevel::Normal, OverloadReason::WithinLimits),
        }
    }
}

impl Steps {
    fn sample(&mut self, rule: &OverloadRule, now: Awake, seen: OverloadLevel, reason: OverloadReason) {
        self.level = self.level(rule, now);
        self.last_sample = now;
        if seen >= self.level {
            (self.level, self.reason) = (seen, reason);
            self.better = 0;
            return;
        }
        if self.better == 0 || seen > self.worst_better.0 {
            self.worst_better = (seen, reason);
        }
        self.better = self.better.saturating_add(1);
        if self.better >= rule.better_samples {
            (self.level, self.reason) = self.worst_better;
            self.better = 0;
        }
    }

    fn level(&self, rule: &OverloadRule, now: Awake) -> OverloadLevel {
        self.level.lower_by(span_ms(self.silent_for(now)) / span_ms(rule.decay_every).max(1))
    }

    fn silent_for(&self, now: Awake) -> Duration {
        now.since(self.last_sample)
    }

    fn next_decay(&self, rule: &OverloadRule, now: Awake) -> Option<Awake> {
        if self.level(rule, now) == OverloadLevel::Normal {
            return None;
        }
        let every = span_ms(rule.decay_every).max(1);
        let passed = span_ms(self.silent_for(now)) / every;
        Some(self.last_sample + Duration::from_millis(every.saturating_mul(passed + 1)))
    }
}

/// The last latencies, and the slow average that they are compared with.
#[derive(Clone, Copy, Debug, Default)]
struct Baseline {
    quick_ms: [f64; QUICK_SAMPLES],
    /// The number of filled entries in `quick_ms`; below, the place for the next.
    filled: usize,
    next: usize,
    slow_ms: f64,
    /// The slow average before the newest latency: that must not stand for those that are missing.
    slow_before_ms: f64,
    /// Samples learnt from, as far as it matters.
    learnt: u16,
}

impl Baseline {
    fn add(&mut self, ms: f64, level: OverloadLevel) {
        self.quick_ms[self.next] = ms;
        self.next = (self.next + 1) % QUICK_SAMPLES;
        self.filled = (self.filled + 1).min(QUICK_SAMPLES);

        self.slow_before_ms = self.slow_ms;
        self.learnt = self.learnt.saturating_add(1);
        let usual = if level > OverloadLevel::Normal { STRAINED_WEIGHT } else { SLOW_WEIGHT };
        // The first few are averaged plainly, or the very first would stand for all.
        let weight = if usize::from(self.learnt) <= QUICK_SAMPLES { 1.0 / f64::from(self.learnt) } else { usual };
        self.slow_ms += weight * (ms - self.slow_ms);
    }

    fn quick_mean_ms(&self) -> f64 {
        let (filled, missing) = (self.filled as f64, (QUICK_SAMPLES - self.filled) as f64);
        let known: f64 = self.quick_ms[..self.filled].iter().sum();
        (known + missing * self.slow_before_ms.min(known / filled.max(1.0))) / QUICK_SAMPLES as f64
    }

    /// None until there are enough samples to compare.
    fn rise(&self) -> Option<f64> {
        (self.filled == QUICK_SAMPLES && self.slow_ms > 0.0).then(|| self.quick_mean_ms() / self.slow_ms - 1.0)
    }

    /// Forgets the quick samples after a silence: they say nothing about now.
    fn forget_quick(&mut self) {
        (self.filled, self.next) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use OverloadLevel::*;
    use OverloadReason::*;

    fn ms(ms: u64) -> Awake {
        Awake::from_ms(ms)
    }

    fn detector() -> OverloadDetector {
        OverloadDetector::new(OverloadRule { rise_from: Duration::from_millis(5), ..OverloadRule::default() })
    }

    /// Latencies in ms, one every 100 ms of time from `from` on.
    fn feed(detector: &mut OverloadDetector, from: u64, latencies: impl IntoIterator<Item = u64>) -> Awake {
        let mut now = ms(from);
        for (n, latency) in latencies.into_iter().enumerate() {
            now = ms(from + n as u64 * 100);
            detector.latency(now, Duration::from_millis(latency));
        }
        now
    }

    fn times(count: usize, latency: u64) -> impl Iterator<Item = u64> {
        std::iter::repeat_n(latency, count)
    }

    #[test]
    fn each_input_has_its_limits() {
        // (latencies before, then), cpu, memory -> level
        let table = [
            ((0, 0, 0, 0), 0.0, 0.0, Normal, WithinLimits),
            ((10, 199, 0, 0), 0.0, 0.0, Normal, WithinLimits),
            ((10, 200, 0, 0), 0.0, 0.0, Busy, LatencyHigh),
            ((10, 500, 0, 0), 0.0, 0.0, Stressed, LatencyHigh),
            ((10, 2000, 0, 0), 0.0, 0.0, Overloaded, LatencyHigh),
            ((200, 100, 10, 115), 0.0, 0.0, Normal, WithinLimits),
            ((200, 100, 10, 130), 0.0, 0.0, Busy, LatencyRising),
            ((200, 100, 10, 170), 0.0, 0.0, Stressed, LatencyRising),
            ((200, 50, 10, 120), 0.0, 0.0, Overloaded, LatencyRising),
            ((200, 1, 10, 4), 0.0, 0.0, Normal, WithinLimits), // noise, though fourfold
            ((1, 6, 9, 30), 0.0, 0.0, Normal, WithinLimits),   // the first sample does not stand for all
            ((0, 0, 0, 0), 69.9, 69.9, Normal, WithinLimits),
            ((0, 0, 0, 0), 70.0, 0.0, Busy, CpuHigh),
            ((0, 0, 0, 0), 0.0, 85.0, Stressed, MemoryHigh),
            ((0, 0, 0, 0), 95.0, 85.0, Overloaded, CpuHigh),
            ((10, 500, 0, 0), 70.0, 0.0, Stressed, LatencyHigh),
            ((10, 200, 0, 0), 0.0, 85.0, Stressed, MemoryHigh),
            ((0, 0, 0, 0), f64::NAN, 0.0, Normal, WithinLimits),
        ];
        for ((count, before, more, then), cpu, memory, level, reason) in table {
            let mut detector = detector();
            let now = feed(&mut detector, 1000, times(count, before).chain(times(more, then)));
            detector.resources(now, cpu, memory);
            assert_eq!(
                detector.judge(now),
                (level, reason),
                "{count} × {before} ms, {more} × {then} ms, cpu {cpu}, memory {memory}"
            );
        }
    }

    #[test]
    fn rises_at_once_and_falls_after_two_better_samples_to_the_worse_of_them() {
        // cpu samples -> level after each
        let table: [(&[f64], &[OverloadLevel]); 5] = [
            (&[10.0, 96.0], &[Normal, Overloaded]),
            (&[96.0, 10.0, 10.0], &[Overloaded, Overloaded, Normal]),
            (&[96.0, 10.0, 86.0, 10.0, 10.0], &[Overloaded, Overloaded, Stressed, Stressed, Normal]),
            (&[96.0, 10.0, 96.0, 10.0, 10.0], &[Overloaded, Overloaded, Overloaded, Overloaded, Normal]),
            (&[71.0, 10.0, 86.0, 10.0, 10.0], &[Busy, Busy, Stressed, Stressed, Normal]),
        ];
        for (samples, levels) in table {
            let mut detector = detector();
            for (n, (cpu, level)) in samples.iter().zip(levels).enumerate() {
                let now = ms(n as u64 * 1000);
                detector.resources(now, *cpu, 0.0);
                assert_eq!(detector.level(now), *level, "{samples:?}, sample {n}");
            }
        }
    }

    #[test]
    fn the_reason_falls_together_with_the_level() {
        let mut detector = detector();
        for (n, (cpu, memory)) in [(96.0, 0.0), (0.0, 86.0), (71.0, 0.0)].into_iter().enumerate() {
            detector.resources(ms(n as u64), cpu, memory);
        }
        assert_eq!(detector.judge(ms(3)), (Stressed, MemoryHigh));
    }

    #[test]
    fn good_latencies_do_not_talk_down_a_full_memory() {
        let mut detector = detector();
        detector.resources(ms(0), 0.0, 99.0);
        let now = feed(&mut detector, 0, times(50, 10));
        assert_eq!(detector.judge(now), (Overloaded, MemoryHigh));
    }

    #[test]
    fn decays_a_step_at_a_time_where_no_sample_comes() {
        let mut detector = detector();
        detector.resources(ms(1_000), 99.0, 0.0);
        let table = [
            (1_000, Overloaded, Some(11_000)),
            (10_999, Overloaded, Some(11_000)),
            (11_000, Stressed, Some(21_000)),
            (21_000, Busy, Some(31_000)),
            (31_000, Normal, None),
            (999_000, Normal, None),
        ];
        for (at, level, next) in table {
            assert_eq!((detector.level(ms(at)), detector.next_change(ms(at))), (level, next.map(ms)), "at {at} ms");
        }
    }

    #[test]
    fn after_a_silence_old_latencies_do_not_count() {
        let mut detector = detector();
        feed(&mut detector, 0, times(20, 3000));
        assert_eq!(detector.level(ms(1_900)), Overloaded);
        detector.latency(ms(41_900), Duration::from_millis(20));
        assert_eq!(detector.level(ms(41_900)), Normal);
    }

    #[test]
    fn one_slow_commit_on_an_idle_node_is_one_of_ten() {
        // latencies before the silence -> level after each slow one; a second one is all that a new node knows
        let table: [(usize, &[OverloadLevel]); 2] = [(20, &[Busy, Busy, Stressed]), (0, &[Busy, Overloaded])];
        for (before, levels) in table {
            let mut detector = OverloadDetector::new(OverloadRule::default());
            feed(&mut detector, 0, times(before, 5));
            for (n, level) in levels.iter().enumerate() {
                let now = ms(13_000 + n as u64 * 100);
                detector.latency(now, Duration::from_millis(2_100));
                assert_eq!(detector.judge(now), (*level, LatencyHigh), "{before} before, {} slow ones", n + 1);
            }
        }
    }

    #[test]
    fn overload_does_not_become_normal_while_it_lasts_but_a_lasting_change_does() {
        let mut detector = detector();
        feed(&mut detector, 0, times(200, 40));
        let now = feed(&mut detector, 20_000, times(100, 100));
        assert_eq!(detector.level(now), Overloaded, "100 samples later it is still 150 % above");
        let now = feed(&mut detector, 30_000, times(5_000, 100));
        assert_eq!(detector.level(now), Normal, "the new latency is the usual one by now");
    }

    #[test]
    fn shedding_table() {
        use LoadClass::*;
        // level -> telemetry, submission, other, control
        let table = [
            (Normal, [false, false, false, false]),
            (Busy, [true, false, false, false]),
            (Stressed, [true, true, false, false]),
            (Overloaded, [true, true, true, false]),
        ];
        for (level, expected) in table {
            assert_eq!([Telemetry, Submission, Other, Control].map(|class| sheds(level, class)), expected, "{level:?}");
        }
    }
}
