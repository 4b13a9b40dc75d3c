//! The same measurements for every contender.

use std::time::{Duration, Instant};

use super::{BATCH, Contender, ContestError, PeerInfo, StartedPeer};

/// The amounts that are run.
#[derive(Clone, Copy, Debug)]
pub struct ContestPlan {
    pub runs: usize,
    /// About how long one run of a measurement takes.
    pub time: Duration,
    /// The same for the drain that systems are compared by: some are fast only until what they have thrown away has to
    /// be cleared up.
    pub long: Duration,
    pub latency_every: Duration,
    pub leases: u64,
}

impl ContestPlan {
    pub const FULL: Self = Self {
        runs: 5,
        time: Duration::from_millis(500),
        long: Duration::from_secs(3),
        latency_every: Duration::from_millis(5),
        leases: 10_000,
    };
    /// Enough to see that everything works and about where it stands.
    pub const QUICK: Self = Self {
        runs: 3,
        time: Duration::from_millis(150),
        long: Duration::from_millis(300),
        leases: 1_000,
        ..Self::FULL
    };
}

/// The kind of a measurement.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum What {
    EnqueueOne,
    EnqueueBatched,
    DrainOne,
    Drain64,
    Drain1024,
    LatencyP50,
    LatencyP99,
    LatencyP999,
    Touch,
}

impl What {
    pub const ALL: [Self; 9] = [
        Self::EnqueueOne,
        Self::EnqueueBatched,
        Self::DrainOne,
        Self::Drain64,
        Self::Drain1024,
        Self::LatencyP50,
        Self::LatencyP99,
        Self::LatencyP999,
        Self::Touch,
    ];
}

/// Figures of one contender, run by run.
#[derive(Debug)]
pub struct Measurement {
    pub about: PeerInfo,
    pub values: Vec<(What, Vec<f64>)>,
}

impl Measurement {
    fn add(&mut self, what: What, value: f64) {
        match self.values.iter_mut().find(|(known, _)| *known == what) {
            Some((_, values)) => values.push(value),
            None => self.values.push((what, vec![value])),
        }
    }

    /// The median, and the least and the most.
    pub fn of(&self, what: What) -> Option<(f64, f64, f64)> {
        let (_, values) = self.values.iter().find(|(known, _)| *known == what)?;
        let mut values = values.clone();
        values.sort_by(f64::total_cmp);
        Some((values[values.len() / 2], values[0], values[values.len() - 1]))
    }
}

/// Everything, of one contender.
pub async fn measure<C: Contender>(contender: &C, plan: ContestPlan) -> Result<Measurement, ContestError> {
    let mut measured = Measurement { about: contender.about(), values: Vec::new() };
    let folder = tempfile::tempdir()?;
    let mut running = contender.start(folder.path()).await?;
    // Warm, and no file is new.
    running.fill(2_000).await?;
    running.drain(2_000, 64).await?;
    for _ in 0..plan.runs {
        running.rest().await?;
        for (what, batch) in [(What::EnqueueOne, 1), (What::EnqueueBatched, BATCH)] {
            let begun = Instant::now();
            let count = running.enqueue(batch, plan.time).await?;
            measured.add(what, count as f64 / begun.elapsed().as_secs_f64());
        }
        running.clear().await?;
        let drains =
            [(What::DrainOne, 1, plan.time), (What::Drain64, 64, plan.long), (What::Drain1024, 1_024, plan.time)];
        for (what, in_flight, time) in drains {
            let rate = drain(&mut running, in_flight, time).await?;
            measured.add(what, rate);
        }
        running.rest().await?;
        let jobs = (plan.time.as_secs_f64() / plan.latency_every.as_secs_f64()).ceil() as u64;
        let mut waits = running.latency(jobs, plan.latency_every).await?;
        waits.sort_unstable();
        let part = |part: f64| waits[((waits.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
        measured.add(What::LatencyP50, part(0.5));
        measured.add(What::LatencyP99, part(0.99));
        measured.add(What::LatencyP999, part(0.999));
        running.fill(plan.leases).await?;
        if let Some(count) = running.touch(plan.leases, plan.time).await? {
            measured.add(What::Touch, count as f64 / plan.time.as_secs_f64());
        }
        running.clear().await?;
    }
    Ok(measured)
}

/// Drains as many jobs as take about that long, by a short run before.
pub async fn drain(running: &mut impl StartedPeer, in_flight: usize, time: Duration) -> Result<f64, ContestError> {
    let few = (2 * in_flight as u64).max(200);
    running.fill(few).await?;
    let rate = few as f64 / running.drain(few, in_flight).await?.as_secs_f64();
    let jobs = ((rate * time.as_secs_f64()) as u64).max(few);
    running.fill(jobs).await?;
    Ok(jobs as f64 / running.drain(jobs, in_flight).await?.as_secs_f64())
}
