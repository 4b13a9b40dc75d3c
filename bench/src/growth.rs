//! What a job costs as things grow: the backlog behind it, the workers beside it, its payload.

use std::time::Duration;

use onward_core::job::Draft;
use onward_core::payload::Payload;
use onward_proto::draft::draft_out;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::contest::ContestError;
use crate::contest::ours::grpc::OverGrpc;
use crate::contest::ours::mixed::{self, StageBacklog, StageCost, StageStart};
use crate::contest::ours::program::NodeProcess;
use crate::contest::rows::ContestPlan;
use crate::runs::median;

const KIND: &str = "work";
/// Bytes of payloads in one submission, at most; and of those in flight.
const AT_ONCE: usize = 1 << 20;

/// Microseconds a job, by how much there is of what grows.
#[derive(Debug)]
pub struct Curve {
    pub what: &'static str,
    pub unit: &'static str,
    pub points: Vec<Point>,
}

#[derive(Clone, Copy, Debug)]
pub struct Point {
    pub size: u64,
    /// The time from beginning to end, by the clock.
    pub taken: f64,
    /// Processor time of the node. The rest is the client's, the disk's and waiting.
    pub node: f64,
}

impl Curve {
    pub fn json(&self) -> Value {
        let points: Vec<_> = self.points.iter().map(|point| json!([point.size, point.taken, point.node])).collect();
        json!({ "what": self.what, "unit": self.unit, "points": points })
    }
}

/// The curves that `wants` asks for by name: `backlog`, `workers`, `payload`.
pub async fn curves(
    quick: bool,
    plan: ContestPlan,
    wants: impl Fn(&str) -> bool,
    say: impl Fn(&str),
) -> Result<Vec<Curve>, ContestError> {
    let cut = |sizes: &[u64], most: u64| -> Vec<u64> {
        sizes.iter().copied().filter(|size| !quick || *size <= most).collect()
    };
    let mut curves = Vec::new();
    if wants("backlog") {
        let mut points = Vec::new();
        for jobs in cut(&[1_000, 10_000, 100_000, 1_000_000, 3_000_000], 100_000) {
            say(&format!("growth: {jobs} jobs queued"));
            points.push(with_backlog(jobs, plan).await?);
        }
        curves.push(Curve { what: "settling a workflow, by jobs queued (mixed)", unit: "jobs", points });
    }
    if wants("workers") {
        let mut points = Vec::new();
        for count in cut(&[10, 100, 1_000, 5_000], 1_000) {
            say(&format!("growth: {count} workers"));
            points.push(with_workers(count, plan).await?);
        }
        curves.push(Curve { what: "settling a job, by workers with a slot each", unit: "workers", points });
    }
    if wants("payload") {
        let mut points = Vec::new();
        for bytes in cut(&[100, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10], 16 << 10) {
            say(&format!("growth: payloads of {bytes} bytes"));
            points.push(with_payload(bytes, plan).await?);
        }
        curves.push(Curve { what: "submitting and settling a job, by its payload", unit: "bytes", points });
    }
    Ok(curves)
}

impl Point {
    /// Medians of rounds, without the first: in that, everything gets warm.
    fn of(size: u64, rounds: &[StageCost]) -> Self {
        let of = |cost: fn(&StageCost) -> Duration| {
            let each = |round: &StageCost| cost(round).as_secs_f64() * 1e6 / round.on as f64;
            median(rounds[1..].iter().map(each).collect()).0
        };
        Self { size, taken: of(|round| round.taken), node: of(|round| round.used) }
    }
}

async fn with_backlog(jobs: u64, plan: ContestPlan) -> Result<Point, ContestError> {
    let folder = tempfile::tempdir()?;
    let mut node = StageBacklog::of(jobs as usize, folder.path()).await?;
    mixed::calm(node.pid()).await?;
    let mut rounds = Vec::new();
    for _ in 0..=plan.runs {
        rounds.push(node.drain(plan.time).await?);
    }
    Ok(Point::of(jobs, &rounds))
}

/// Every worker has a connection and a slot, and settles what it gets at once.
async fn with_workers(count: u64, plan: ContestPlan) -> Result<Point, ContestError> {
    let folder = tempfile::tempdir()?;
    // Room for all of them, and for us.
    std::fs::write(folder.path().join("onward.toml"), "[http]\nconnections = 6000\nsessions = 5500\n")?;
    let mut over = OverGrpc::on(NodeProcess::start(folder.path())?).await?;
    let mut sessions = Vec::new();
    for _ in 0..count {
        sessions.push((over.session(1, vec![KIND.into()]).await?, Vec::new()));
    }
    // About as many as are settled in the time that was asked for, and the same share for all.
    let each = ((40_000.0 * plan.time.as_secs_f64()) as u64 / count).max(8);
    // Two more for everyone: one that it has in hand after a round, and one so that nobody waits for the last ones.
    submit(&mut over, count * 2).await?;
    let mut rounds = Vec::new();
    for _ in 0..=plan.runs {
        submit(&mut over, count * each).await?;
        mixed::calm(over.node.pid()).await?;
        let begun = StageStart::now(over.node.pid())?;
        let mut working = JoinSet::new();
        for (mut session, mut in_hand) in sessions.drain(..) {
            working.spawn(async move {
                session.settle_some(&mut in_hand, each).await?;
                Ok::<_, ContestError>((session, in_hand))
            });
        }
        while let Some(done) = working.join_next().await {
            sessions.push(done??);
        }
        rounds.push(begun.spent_on(count * each)?);
    }
    Ok(Point::of(count, &rounds))
}

async fn submit(over: &mut OverGrpc, mut jobs: u64) -> Result<(), ContestError> {
    while jobs > 0 {
        let batch = jobs.min(1_024);
        over.submit_drafts((0..batch).map(|_| draft(100)).collect()).await?;
        jobs -= batch;
    }
    Ok(())
}

async fn with_payload(bytes: u64, plan: ContestPlan) -> Result<Point, ContestError> {
    let folder = tempfile::tempdir()?;
    let mut over = OverGrpc::on(NodeProcess::start(folder.path())?).await?;
    let batch = (AT_ONCE / bytes as usize).clamp(1, 256);
    let mut session = over.session(batch, vec![KIND.into()]).await?;
    let mut in_hand = Vec::new();
    let mut rounds = Vec::new();
    for _ in 0..=plan.runs {
        let (begun, mut jobs) = (StageStart::now(over.node.pid())?, 0);
        while begun.at.elapsed() < plan.time {
            over.submit_drafts((0..batch).map(|_| draft(bytes as usize)).collect()).await?;
            jobs += session.settle_some(&mut in_hand, batch as u64).await?;
        }
        rounds.push(begun.spent_on(jobs)?);
    }
    Ok(Point::of(bytes, &rounds))
}

/// Each payload is another, as users' are: equal ones would be stored once.
fn draft(bytes: usize) -> onward_proto::v1::Draft {
    static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let mut payload = vec![b'x'; bytes];
    payload[..16].copy_from_slice(format!("{number:016}").as_bytes());
    draft_out(Draft::of_kind(KIND, Payload::from(payload)))
}
