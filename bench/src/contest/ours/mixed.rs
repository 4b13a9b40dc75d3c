//! Onward with much behind what it works on: what a job costs must not depend on it.

use std::path::Path;
use std::time::{Duration, Instant};

use onward_proto::draft::draft_out;
use onward_proto::v1::Assignment;

use super::grpc::{BenchSession, OverGrpc};
use super::program::NodeProcess;
use crate::contest::ContestError;
use crate::runs::Mix;

/// Jobs in a submission, and what is taken between two submissions.
const BATCH: usize = 1_024;
const IN_FLIGHT: usize = 256;

/// A node with a mixed backlog, and a session that works on it.
pub struct StageBacklog {
    over: OverGrpc,
    session: BenchSession,
    mix: Mix,
    in_hand: Vec<Assignment>,
    /// Settled, beyond what was submitted for it: a session settles all that it has got.
    ahead: u64,
}

impl StageBacklog {
    /// So many jobs: 100 kinds, 3 priorities, 1,000 limit keys; a tenth delayed, a fifth of the workflows waiting.
    pub async fn of(jobs: usize, folder: &Path) -> Result<Self, ContestError> {
        let mut over = OverGrpc::on(NodeProcess::start(folder)?).await?;
        let mut mix = Mix::new();
        let mut left = jobs;
        while left > 0 {
            let count = left.min(BATCH);
            over.submit_drafts((0..count).map(|_| draft_out(mix.next(true))).collect()).await?;
            left -= count;
        }
        let kinds = mix.names().iter().map(ToString::to_string).collect();
        let session = over.session(IN_FLIGHT, kinds).await?;
        Ok(Self { over, session, mix, in_hand: Vec::new(), ahead: 0 })
    }

    pub fn pid(&self) -> u32 {
        self.over.node.pid()
    }

    /// Drains the backlog while as many workflows as are settled are submitted in between, so that it stays; only
    /// settling is timed.
    pub async fn drain(&mut self, time: Duration) -> Result<StageCost, ContestError> {
        let mut spent = StageCost::default();
        while spent.taken < time {
            let jobs: Vec<_> = (0..BATCH).map(|_| draft_out(self.mix.next(false))).collect();
            let submitted: usize = jobs.iter().map(|job| job.workflows.len()).sum();
            self.over.submit_drafts(jobs).await?;
            let due = (submitted as u64).saturating_sub(self.ahead);
            let begun = StageStart::now(self.pid())?;
            let found = self.session.settle_some(&mut self.in_hand, due).await?;
            spent = spent.and(begun.spent_on(found)?);
            self.ahead = (self.ahead + found).saturating_sub(submitted as u64);
        }
        Ok(spent)
    }
}

/// The work that was done, and its cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct StageCost {
    /// The number of jobs, or workflows.
    pub on: u64,
    /// Time by the clock.
    pub taken: Duration,
    /// Processor time of the node.
    pub used: Duration,
}

impl StageCost {
    fn and(self, more: Self) -> Self {
        Self { on: self.on + more.on, taken: self.taken + more.taken, used: self.used + more.used }
    }

    /// The rate in a second.
    pub fn rate(&self) -> f64 {
        self.on as f64 / self.taken.as_secs_f64()
    }
}

/// The beginning of a measurement, by the clock and by the processor time that the node had used.
#[derive(Debug)]
pub struct StageStart {
    pid: u32,
    used: Duration,
    pub at: Instant,
}

impl StageStart {
    pub fn now(pid: u32) -> Result<Self, ContestError> {
        Ok(Self { pid, used: cpu_time(pid)?, at: Instant::now() })
    }

    pub fn spent_on(self, on: u64) -> Result<StageCost, ContestError> {
        let taken = self.at.elapsed();
        Ok(StageCost { on, taken, used: cpu_time(self.pid)?.saturating_sub(self.used) })
    }
}

/// Measures the time that a node takes to be ready with what lies in this folder. It is stopped afterwards.
pub fn reopen(folder: &Path) -> Result<Duration, ContestError> {
    let begun = Instant::now();
    let node = NodeProcess::start(folder)?;
    let taken = begun.elapsed();
    node.stop()?;
    Ok(taken)
}

/// Waits until a process does next to nothing: no snapshot is being written any more.
pub async fn calm(pid: u32) -> Result<(), ContestError> {
    const LOOK: Duration = Duration::from_millis(300);
    loop {
        let before = cpu_time(pid)?;
        tokio::time::sleep(LOOK).await;
        if cpu_time(pid)?.saturating_sub(before) < LOOK / 20 {
            return Ok(());
        }
    }
}

/// The memory of a process, as the kernel tells it.
pub fn memory(pid: u32) -> Result<u64, ContestError> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib << 10)
}

/// Processor time that the threads of a process have used.
pub fn cpu_time(pid: u32) -> Result<Duration, ContestError> {
    let mut used = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // Nanoseconds it ran, nanoseconds it waited, and how often. A thread that has ended meanwhile counts no more.
        let Ok(schedstat) = std::fs::read_to_string(thread?.path().join("schedstat")) else { continue };
        used += schedstat.split(' ').next().ok_or("an empty schedstat")?.parse::<u64>()?;
    }
    // A process that runs has used some: a kernel that does not count must not pass for one that rests.
    if used == 0 {
        return Err(format!("this system does not say what process {pid} has used (no schedstat)").into());
    }
    Ok(Duration::from_nanos(used))
}
