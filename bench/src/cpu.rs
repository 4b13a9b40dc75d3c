//! Time on the processor of this thread: what a run cost, whatever else the machine was doing.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

#[derive(Debug)]
pub struct Stopwatch(Duration);

impl Stopwatch {
    pub fn start() -> Self {
        Self(on_cpu())
    }

    pub fn elapsed(&self) -> Duration {
        on_cpu().saturating_sub(self.0)
    }
}

fn on_cpu() -> Duration {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(spent.tv_sec.cast_unsigned(), spent.tv_nsec.cast_unsigned() as u32)
}
