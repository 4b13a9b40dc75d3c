//! The five jobs, and who plays in them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use onward::{Client, Context, Failure, Job, NodeAddress, Worker};
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::zombie;

pub const TAKES_S: u64 = 10;
/// The time that the demo's jobs may go without a forward step.
pub const STUCK_AFTER: Duration = Duration::from_secs(3);
/// Longer than the demo waits: as if nobody looked.
const NEVER: Duration = Duration::from_secs(3_600);
const TICK: Duration = Duration::from_millis(500);
const SLOW_STEPS: u64 = 8;

/// A protection that is taken away.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Sabotage {
    /// The zombie's result comes under its successor's fence, as if there were none
    Fence,
    /// A timer beats for the frozen worker, so that its lease never runs out
    Lease,
    /// Nobody looks whether jobs move
    Stuck,
}

impl Sabotage {
    pub fn word(self) -> &'static str {
        match self {
            Self::Fence => "fence",
            Self::Lease => "lease",
            Self::Stuck => "stuck",
        }
    }

    pub fn what(self) -> &'static str {
        match self {
            Self::Fence => "there are no fences: the zombie's result comes under its successor's",
            Self::Lease => "a timer beats, instead of work: the frozen worker's lease never runs out",
            Self::Stuck => "nobody looks whether jobs move: they may stand still for an hour",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DemoPart {
    Healthy,
    Slow,
    Hung,
    Busywork,
    Zombie,
}

impl DemoPart {
    pub const ALL: [Self; 5] = [Self::Healthy, Self::Slow, Self::Hung, Self::Busywork, Self::Zombie];

    pub fn kind(self) -> &'static str {
        match self {
            Self::Healthy => "demo.healthy",
            Self::Slow => "demo.slow",
            Self::Hung => "demo.hung",
            Self::Busywork => "demo.busywork",
            Self::Zombie => "demo.zombie",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Slow => "slow but moving",
            Self::Hung => "hung",
            Self::Busywork => "beating without progress",
            Self::Zombie => "frozen zombie that comes back",
        }
    }
}

/// The jobs, and the workers that run them.
#[derive(Debug)]
pub struct Cast {
    pub jobs: Vec<(DemoPart, String)>,
    stop: oneshot::Sender<()>,
    worker: JoinHandle<Result<(), onward::WorkerError>>,
    zombie: JoinHandle<()>,
}

impl Cast {
    pub async fn begin(client: &Client, place: NodeAddress, sabotage: Option<Sabotage>) -> Result<Self> {
        let mut jobs = Vec::new();
        for part in DemoPart::ALL {
            jobs.push((part, client.submit(job(part, sabotage)?).await?));
        }
        let released = Arc::new(tokio::sync::Notify::new());
        let worker = worker(place, released.clone(), sabotage == Some(Sabotage::Fence));
        let (stop, stopped) = oneshot::channel::<()>();
        // The zombie has its job before there is anybody else: its successor begins only when the lease has run out.
        let receipt = zombie::take(client).await?;
        let zombie = tokio::spawn(zombie::play(client.clone(), receipt, sabotage, released));
        let worker = tokio::spawn(worker.run_until(async { drop(stopped.await) }));
        Ok(Self { jobs, stop, worker, zombie })
    }

    /// Sends home whoever still plays.
    pub async fn end(self) {
        self.zombie.abort();
        drop(self.stop);
        // How a worker ends that was told to is no part of the show.
        let _ = self.worker.await;
    }
}

fn job(part: DemoPart, sabotage: Option<Sabotage>) -> Result<Job, serde_json::Error> {
    let stuck_after = if sabotage == Some(Sabotage::Stuck) { NEVER } else { STUCK_AFTER };
    let job = Job::new(part.kind(), Value::Null)?.tags(&["demo"]).stuck_after(stuck_after);
    Ok(match part {
        DemoPart::Hung => job.max_attempts(2).backoff(Duration::from_millis(100), Duration::from_millis(200)),
        DemoPart::Busywork => job.max_attempts(1),
        // Its lease is what must notice: it is shorter.
        DemoPart::Zombie => job.stuck_after(NEVER).backoff(Duration::from_millis(100), Duration::from_millis(200)),
        DemoPart::Healthy | DemoPart::Slow => job,
    })
}

fn worker(place: NodeAddress, released: Arc<tokio::sync::Notify>, no_fence: bool) -> Worker {
    Worker::at(place)
        .id("demo-worker")
        .slots(5)
        .beat_every(Duration::from_millis(100))
        .cancel_grace(Duration::from_millis(200))
        .drain_grace(Duration::ZERO)
        .handle(DemoPart::Healthy.kind(), |ctx: Context, _: Value| async move {
            for done in 1..=4 {
                sleep(TICK).await;
                ctx.progress_note(done, 4, "part done");
            }
            Ok("four parts")
        })
        .handle(DemoPart::Slow.kind(), |ctx: Context, _: Value| async move {
            for done in 1..=SLOW_STEPS {
                sleep(TICK).await;
                ctx.progress(done, SLOW_STEPS);
            }
            Ok("slow, and done")
        })
        .handle(DemoPart::Hung.kind(), |_: Context, _: Value| async move {
            core::future::pending::<()>().await;
            Ok(())
        })
        .handle(DemoPart::Busywork.kind(), |ctx: Context, _: Value| async move {
            ctx.progress(1, 10);
            while !ctx.is_cancelled() {
                sleep(TICK / 5).await;
                // Busy, and no further: the same number again is no step, and a beat is none once it has reported.
                ctx.progress(1, 10);
                ctx.beat();
            }
            Err::<(), _>(Failure::cancelled())
        })
        .handle(DemoPart::Zombie.kind(), move |ctx: Context, _: Value| {
            let released = released.clone();
            async move {
                for done in 1..=4 {
                    sleep(TICK).await;
                    ctx.progress(done, 5);
                }
                // The zombie comes back while its successor works.
                released.notify_one();
                if no_fence {
                    // What a store without fences does: the last writer wins, whoever it is.
                    return Ok(zombie::RESULT);
                }
                for _ in 0..4 {
                    sleep(TICK).await;
                    ctx.beat();
                }
                Ok("the successor's result")
            }
        })
}
