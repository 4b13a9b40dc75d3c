//! Systems side by side, on the same work.
//!
//! Every contender's server is a process of its own with files in a folder of its own; the client is this process;
//! between them is loopback TCP. The work is the same for all: jobs with a payload of [`PAYLOAD`] bytes.

pub mod ours;
pub mod rows;

use std::error::Error;
use std::path::Path;
use std::time::Duration;

#[cfg(feature = "peers")]
pub mod peers;

/// Bytes of a job's payload.
pub const PAYLOAD: usize = 100;

/// Jobs in one call where calls are batched.
pub const BATCH: usize = 256;

pub type ContestError = Box<dyn Error + Send + Sync>;

/// A contender, as a table describes it.
#[derive(Clone, Copy, Debug)]
pub struct PeerInfo {
    /// The name of its row, such as `beanstalkd -f0`.
    pub name: &'static str,
    /// The point from which a job is safe from a power cut, in a few words, such as "fsync before each answer".
    pub durable: &'static str,
    /// Whether everything that it has acknowledged survives a power cut.
    pub before_answer: bool,
}

/// A system that can be started here.
pub trait Contender {
    type Running: StartedPeer;

    fn about(&self) -> PeerInfo;

    /// The program or package that is not installed here, and so keeps the contender out.
    fn missing(&self) -> Option<String>;

    /// Starts its server with its files in this empty folder, and connects.
    async fn start(&self, folder: &Path) -> Result<Self::Running, ContestError>;
}

/// A started system. Its server ends when this is dropped.
pub trait StartedPeer {
    /// Adds jobs for so long, `batch` in a call, the next call after the answer to the last: how many were
    /// acknowledged. A system without calls of many jobs sends `batch` of them before it waits for their answers.
    async fn enqueue(&mut self, batch: usize, time: Duration) -> Result<u64, ContestError>;

    /// Adds so many jobs, as fast as it can.
    async fn fill(&mut self, jobs: u64) -> Result<(), ContestError>;

    /// Takes and finishes so many of the jobs that were added, at most `in_flight` of them taken and not yet known as
    /// finished: how long that took.
    async fn drain(&mut self, jobs: u64, in_flight: usize) -> Result<Duration, ContestError>;

    /// Adds a job every `every`, `jobs` of them, to a waiting consumer: for each the time from before its submission
    /// until the consumer had it.
    async fn latency(&mut self, jobs: u64, every: Duration) -> Result<Vec<Duration>, ContestError>;

    /// Takes `leases` jobs and extends its hold on them round and round for so long: how many extensions were
    /// answered. None where the system has nothing like it.
    async fn touch(&mut self, leases: u64, time: Duration) -> Result<Option<u64>, ContestError>;

    /// Throws every job away that is left.
    async fn clear(&mut self) -> Result<(), ContestError>;

    /// Waits for what the system has begun in the background and will end by itself.
    async fn rest(&mut self) -> Result<(), ContestError> {
        Ok(())
    }
}
