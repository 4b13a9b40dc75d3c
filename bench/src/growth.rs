//! What a job costs as things grow: the backlog behind it, the workers beside it, its payload.

use std::time::{Duration, Instant};

use onward_core::job::Draft;
use onward_core::payload::Payload;
use onward_proto::draft::draft_out;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::contest::Failed;
use crate::contest::ours::grpc::OverGrpc;
use crate::contest::ours::mixed::{self, Backlog};
use crate::contest::ours::program::Node;

const KIND: &str = "work";
/// Bytes of payloads in one submission, at most; and of those in flight.
const AT_ONCE: usize = 1 << 20;

/// Microseconds a job, by how much there is of what grows.
#[derive(Debug)]
pub struct Curve {
    pub what: &'static str,
    pub unit: &'static str,
    pub points: Vec<(u64, f64)>,
}

impl Curve {
    pub fn json(&self) -> Value {
        json!({ "what": self.what, "unit": self.unit, "points": self.points })
    }
}

pub async fn all(quick: bool, time: Duration, say: impl Fn(&str)) -> Result<Vec<Curve>, Failed> {
    let cut = |sizes: &[u64], most: u64| -> Vec<u64> {
        sizes.iter().copied().filter(|size| !quick || *size <= most).collect()
    };
    let mut backlog = Vec::new();
    for jobs in cut(&[1_000, 10_000, 100_000, 1_000_000, 3_000_000], 100_000) {
        say(&format!("growth: {jobs} jobs queued"));
        let folder = tempfile::tempdir()?;
        let mut node = Backlog::of(jobs as usize, folder.path()).await?;
        mixed::calm(node.pid()).await?;
        node.drain(time / 2).await?;
        backlog.push((jobs, 1e6 / node.drain(time).await?));
    }
    let mut workers = Vec::new();
    for count in cut(&[10, 100, 1_000, 5_000], 1_000) {
        say(&format!("growth: {count} workers"));
        workers.push((count, with_workers(count, time).await?));
    }
    let mut payload = Vec::new();
    for bytes in cut(&[100, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10], 16 << 10) {
        say(&format!("growth: payloads of {bytes} bytes"));
        payload.push((bytes, with_payload(bytes as usize, time).await?));
    }
    Ok(vec![
        Curve { what: "settling a workflow, by jobs queued (mixed)", unit: "jobs", points: backlog },
        Curve { what: "settling a job, by workers with a slot each", unit: "workers", points: workers },
        Curve { what: "submitting and settling a job, by its payload", unit: "bytes", points: payload },
    ])
}

/// Every worker has a connection and a slot, and settles what it gets at once.
async fn with_workers(count: u64, time: Duration) -> Result<f64, Failed> {
    let folder = tempfile::tempdir()?;
    // Room for all of them, and for us.
    std::fs::write(folder.path().join("onward.toml"), "[http]\nconnections = 6000\nsessions = 5500\n")?;
    let mut over = OverGrpc::on(Node::start(folder.path())?).await?;
    let mut sessions = Vec::new();
    for _ in 0..count {
        sessions.push(over.session(1, vec![KIND.into()]).await?);
    }
    // About as many as are settled in the time that was asked for, and the same share for all.
    let each = ((40_000.0 * time.as_secs_f64()) as u64 / count).max(2);
    let mut jobs = (count * each) as usize;
    let begun = Instant::now();
    let mut working = JoinSet::new();
    for mut session in sessions {
        working.spawn(async move { session.settle_some(&mut Vec::new(), each).await });
    }
    let settled = async {
        while let Some(settled) = working.join_next().await {
            settled??;
        }
        Ok::<_, Failed>(())
    };
    let submitted = async {
        // More than are needed, so that nobody waits for the last ones.
        jobs += count as usize * 4;
        while jobs > 0 {
            let batch = jobs.min(1_024);
            over.submit_drafts((0..batch).map(|_| draft(100)).collect()).await?;
            jobs -= batch;
        }
        Ok::<_, Failed>(())
    };
    tokio::try_join!(settled, submitted)?;
    Ok(begun.elapsed().as_secs_f64() * 1e6 / (count * each) as f64)
}

async fn with_payload(bytes: usize, time: Duration) -> Result<f64, Failed> {
    let folder = tempfile::tempdir()?;
    let mut over = OverGrpc::on(Node::start(folder.path())?).await?;
    let batch = (AT_ONCE / bytes).clamp(1, 256);
    let mut session = over.session(batch, vec![KIND.into()]).await?;
    let (begun, mut jobs, mut in_hand) = (Instant::now(), 0, Vec::new());
    while begun.elapsed() < time {
        over.submit_drafts((0..batch).map(|_| draft(bytes)).collect()).await?;
        jobs += session.settle_some(&mut in_hand, batch as u64).await?;
    }
    Ok(begun.elapsed().as_secs_f64() * 1e6 / jobs as f64)
}

/// Each payload is another, as users' are: equal ones would be stored once.
fn draft(bytes: usize) -> onward_proto::v1::Draft {
    static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let mut payload = vec![b'x'; bytes];
    payload[..16].copy_from_slice(format!("{number:016}").as_bytes());
    draft_out(Draft::of_kind(KIND, Payload::from(payload)))
}
