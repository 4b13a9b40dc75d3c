//! How much of the machine this process uses: its own share, since what others use is not ours to shed. And the level
//! that follows from it, for all to see.

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use onward_core::health::overload::{OverloadLevel, OverloadReason};
use onward_core::time::Mono;

use super::memory;

/// The interval between two samples.
pub(crate) const EVERY: Duration = Duration::from_secs(1);

/// The level as every thread can read it.
#[derive(Debug)]
pub(crate) struct Gauge {
    level: AtomicU8,
    reason: Mutex<OverloadReason>,
}

impl Default for Gauge {
    fn default() -> Self {
        Self { level: AtomicU8::new(0), reason: Mutex::new(OverloadReason::WithinLimits) }
    }
}

impl Gauge {
    pub(crate) fn level(&self) -> OverloadLevel {
        match self.level.load(Ordering::Relaxed) {
            0 => OverloadLevel::Normal,
            1 => OverloadLevel::Busy,
            2 => OverloadLevel::Stressed,
            _ => OverloadLevel::Overloaded,
        }
    }

    pub(crate) fn reason(&self) -> OverloadReason {
        *self.reason.lock().expect("no thread panics while it holds this")
    }

    pub(crate) fn set(&self, level: OverloadLevel, reason: OverloadReason) {
        *self.reason.lock().expect("no thread panics while it holds this") = reason;
        self.level.store(level as u8, Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
pub(crate) struct Meter {
    last: Option<(Mono, Duration)>,
    cores: f64,
    memory_bytes: f64,
}

impl Meter {
    /// Processor and memory in percent, about once a second; none in between, or where the system does not tell.
    pub(crate) fn sample(&mut self, now: Mono) -> Option<(f64, f64)> {
        if self.last.is_some_and(|(at, _)| now.since(at) < EVERY) {
            return None;
        }
        if self.cores == 0.0 {
            self.cores = std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64);
            self.memory_bytes = memory::limit(Path::new("/")).map_or(f64::INFINITY, |bytes| bytes as f64);
        }
        let usage = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let used = Duration::new(u64::try_from(usage.tv_sec).ok()?, u32::try_from(usage.tv_nsec).ok()?);
        let before = self.last.replace((now, used));
        let (at, earlier) = before?;
        let cpu = 100.0 * used.saturating_sub(earlier).as_secs_f64() / now.since(at).as_secs_f64() / self.cores;
        Some((cpu, 100.0 * resident_bytes()? / self.memory_bytes))
    }
}

fn resident_bytes() -> Option<f64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: f64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as f64)
}
