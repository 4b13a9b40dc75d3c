//! Time on the processor of this thread: what a run cost, whatever else the machine was doing.

use std::time::{Duration, Instant};

#[derive(Debug)]
pub struct Stopwatch {
    cpu: Option<Duration>,
    wall: Instant,
}

impl Stopwatch {
    pub fn start() -> Self {
        Self { cpu: on_cpu(), wall: Instant::now() }
    }

    /// Processor time since the start; elapsed time where the system does not tell.
    pub fn elapsed(&self) -> Duration {
        match (self.cpu, on_cpu()) {
            (Some(before), Some(now)) => now - before,
            _ => self.wall.elapsed(),
        }
    }
}

/// Linux says it in nanoseconds, as the first number of this file.
fn on_cpu() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}
