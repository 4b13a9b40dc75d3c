//! Calls at a rate that does not depend on the answers, by the Rust client; and a Rust worker. Both know all managers, and
//! have to find by themselves one that answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use onward::worker::WorkerError;
use onward::{Client, Job, JobState, NodeAddresses, Worker};
use onward_testkit::{Cluster, ManagerProcess};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::support::PATIENCE;

pub const CALLS_A_SECOND: u32 = 200;
/// A kind of its own in a queue of its own, which other clients leave alone.
const KIND: &str = "steady";
const QUEUE: &str = "steady";
/// One call of so many submits a job.
const SUBMITS: u64 = 4;

/// Everything that was called.
#[derive(Debug, Default)]
struct CallLog {
    calls: u64,
    submitted: Vec<String>,
    failed: Vec<String>,
}

/// The calls, and the worker, until they are told to end.
#[derive(Debug)]
pub struct Steady {
    client: Client,
    begun: Instant,
    over: Arc<AtomicBool>,
    calling: JoinHandle<CallLog>,
    done: Arc<AtomicU64>,
    stop: oneshot::Sender<()>,
    working: JoinHandle<Result<(), WorkerError>>,
}

impl Steady {
    pub fn begin(cluster: &Cluster) -> Self {
        let urls: Vec<String> = cluster.managers.iter().map(ManagerProcess::url).collect();
        let place = NodeAddresses::at(&urls.join(",")).expect("addresses");
        let (client, over, done) =
            (Client::at(place.clone()), Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (stop, stopped) = oneshot::channel();
        let counted = done.clone();
        let worker = Worker::at(place).id("steady").queues([QUEUE]).slots(8).handle_bytes(KIND, move |_, _| {
            counted.fetch_add(1, Ordering::Relaxed);
            async { Ok(Bytes::from_static(b"{}")) }
        });
        let working = tokio::spawn(worker.run_until(async {
            // Dropped is as good as told.
            let _ = stopped.await;
        }));
        let calling = tokio::spawn(call(client.clone(), over.clone()));
        Self { client, begun: Instant::now(), over, calling, done, stop, working }
    }

    /// Not one call failed, there were as many as the rate says, and all that was submitted has succeeded.
    pub async fn end(self) {
        self.over.store(true, Ordering::Relaxed);
        let lasted = self.begun.elapsed();
        let CallLog { calls, submitted, failed } = self.calling.await.expect("it calls on");
        assert!(failed.is_empty(), "{} of {calls} calls failed: {:?}", failed.len(), &failed[..failed.len().min(5)]);
        let rate = calls as f64 / lasted.as_secs_f64();
        assert!(rate > 0.95 * f64::from(CALLS_A_SECOND), "{rate} calls a second");
        for id in &submitted {
            let job = timeout(PATIENCE, self.client.wait(id)).await.expect("it ends").expect("it is known");
            assert_eq!(job.state, JobState::Succeeded, "{id}");
        }
        let done = self.done.load(Ordering::Relaxed);
        assert!(done >= submitted.len() as u64, "{done} of {} jobs came to the worker", submitted.len());
        let _ = self.stop.send(());
        self.working.await.expect("no panic").expect("the worker had managers all the time");
    }
}

/// A call that takes long holds up no other.
async fn call(client: Client, over: Arc<AtomicBool>) -> CallLog {
    let (mut made, mut under_way) = (CallLog::default(), JoinSet::new());
    let mut due = interval(Duration::from_secs(1) / CALLS_A_SECOND);
    due.set_missed_tick_behavior(MissedTickBehavior::Burst);
    while !over.load(Ordering::Relaxed) {
        due.tick().await;
        let (client, number) = (client.clone(), made.calls);
        under_way.spawn(async move {
            match number % SUBMITS {
                0 => client.submit(Job::of_kind(KIND).queue(QUEUE)).await.map(Some),
                _ => client.queues().await.map(|_| None),
            }
        });
        made.calls += 1;
        while let Some(answered) = under_way.try_join_next() {
            made.note(answered.expect("no panic"));
        }
    }
    while let Some(answered) = under_way.join_next().await {
        made.note(answered.expect("no panic"));
    }
    made
}

impl CallLog {
    fn note(&mut self, answered: Result<Option<String>, onward::CallError>) {
        match answered {
            Ok(id) => self.submitted.extend(id),
            Err(error) => self.failed.push(error.to_string()),
        }
    }
}
