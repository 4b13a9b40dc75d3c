//! A node in this process, with workers.

#![allow(dead_code, reason = "every test file uses its own part of the world")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use onward::{Client, Job, JobInfo, NodeAddress, Worker, WorkerError};
use onward_core::health::overload::{LoadLimits, OverloadRule};
use onward_core::settings::Settings;
use onward_node::server::{Node, NodeConfig};
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{interval, timeout};

/// Longer than anything here takes, on a busy computer too.
pub const SOON: Duration = Duration::from_secs(120);

pub struct World {
    pub node: Node,
    pub client: Client,
    _data: tempfile::TempDir,
}

pub struct Working {
    stop: oneshot::Sender<()>,
    run: JoinHandle<Result<(), WorkerError>>,
}

impl World {
    pub async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub async fn start_with(change: impl FnOnce(&mut Settings)) -> Self {
        Self::start_where(false, change).await
    }

    /// Other processes reach the node too, at its address.
    pub async fn start_listening(change: impl FnOnce(&mut Settings)) -> Self {
        Self::start_where(true, change).await
    }

    async fn start_where(listens: bool, change: impl FnOnce(&mut Settings)) -> Self {
        let data = tempfile::tempdir().unwrap();
        let mut config = NodeConfig::new("127.0.0.1:0".parse().unwrap(), data.path());
        config.listens = listens;
        // How busy the computer is that these tests run on is not what they are about.
        let far = LoadLimits { busy: 1e9, stressed: 2e9, overloaded: 3e9 };
        let overload = OverloadRule { rise: far, latency_ms: far, resource_percent: far, ..OverloadRule::default() };
        let long = Duration::from_secs(600);
        let mut settings = Settings { overload, seat_ttl: 2 * long, gap_after: long, ..Settings::default() };
        change(&mut settings);
        config.rules = settings.check().unwrap();
        let node = Node::start(config).await.unwrap();
        let client = Client::at(place(&node));
        Self { node, client, _data: data }
    }

    pub fn place(&self) -> NodeAddress {
        place(&self.node)
    }

    pub fn work(&self, build: impl FnOnce(Worker) -> Worker) -> Working {
        self.work_at(self.place(), build)
    }

    pub fn work_at(&self, place: NodeAddress, build: impl FnOnce(Worker) -> Worker) -> Working {
        let worker = build(Worker::at(place).id("tester"));
        let (stop, stopped) = oneshot::channel();
        let run = tokio::spawn(worker.run_until(async { drop(stopped.await) }));
        Working { stop, run }
    }

    /// A place as [`Self::place`] gives it, over connections that can be cut.
    pub fn place_to_cut(&self) -> (NodeAddress, Cutter) {
        let (cutter, door) = (Cutter::default(), self.node.door());
        let pumps = cutter.0.clone();
        let open = move || {
            let (near, mut far) = tokio::io::duplex(64 << 10);
            let mut inner = door.open()?;
            let pump = tokio::spawn(async move { drop(tokio::io::copy_bidirectional(&mut far, &mut inner).await) });
            pumps.lock().unwrap().push(pump.abort_handle());
            Ok(Box::new(near) as Box<dyn onward::address::Stream>)
        };
        (NodeAddress::inside("127.0.0.1:0", Arc::new(open)), cutter)
    }

    pub async fn submit(&self, kind: &str, payload: &str) -> String {
        self.client.submit(job(kind, payload)).await.unwrap()
    }

    pub async fn submit_once(&self, kind: &str, payload: &str) -> String {
        self.client.submit(job(kind, payload).max_attempts(1)).await.unwrap()
    }

    /// The job, as soon as it is as `wanted`.
    pub async fn until(&self, id: &str, wanted: impl Fn(&JobInfo) -> bool) -> JobInfo {
        let mut looks = interval(Duration::from_millis(10));
        let look = async {
            loop {
                looks.tick().await;
                let job = self.client.job(id).await.unwrap();
                if wanted(&job) {
                    return job.into_value();
                }
            }
        };
        timeout(SOON, look).await.expect("it gets there")
    }

    pub async fn ended(&self, id: &str) -> Value {
        let job = timeout(SOON, self.client.wait(id)).await.expect("it ends").unwrap();
        onward::json::read(job.text().get().as_bytes()).unwrap()
    }
}

/// Cuts every connection that was opened so far.
#[derive(Clone, Default)]
pub struct Cutter(Arc<Mutex<Vec<AbortHandle>>>);

impl Cutter {
    pub fn cut(&self) {
        self.0.lock().unwrap().drain(..).for_each(|pump| pump.abort());
    }
}

impl Working {
    /// Ends by itself.
    pub async fn over(self) -> Result<(), WorkerError> {
        timeout(SOON, self.run).await.expect("it ends").unwrap()
    }

    /// Drops the worker, so that nobody drives it any more.
    pub fn abort(self) {
        self.run.abort();
    }

    /// Begins to drain, and gives what is left to wait for.
    pub fn stop(self) -> JoinHandle<Result<(), WorkerError>> {
        self.stop.send(()).expect("it still runs");
        self.run
    }

    pub async fn finish(self) -> Result<(), WorkerError> {
        self.stop.send(()).expect("it still runs");
        timeout(SOON, self.run).await.expect("it drains").unwrap()
    }
}

pub fn job(kind: &str, payload: &str) -> Job {
    Job::new(kind, serde_json::from_str::<Value>(payload).unwrap()).unwrap()
}

fn place(node: &Node) -> NodeAddress {
    let door = node.door();
    NodeAddress::inside(&node.address().to_string(), Arc::new(move || Ok(Box::new(door.open()?))))
}
