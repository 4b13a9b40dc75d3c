//! A node in this process, with workers.

#![allow(dead_code, reason = "every test file uses its own part of the world")]

use std::sync::Arc;
use std::time::Duration;

use onward::{Client, Job, JobInfo, Place, Worker, WorkerError};
use onward_node::server::{Node, NodeConfig};
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{interval, timeout};

const SOON: Duration = Duration::from_secs(30);

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
        let data = tempfile::tempdir().unwrap();
        let mut config = NodeConfig::new("127.0.0.1:0".parse().unwrap(), data.path());
        config.listens = false;
        let node = Node::start(config).await.unwrap();
        let client = Client::at(place(&node));
        Self { node, client, _data: data }
    }

    pub fn place(&self) -> Place {
        place(&self.node)
    }

    pub fn work(&self, build: impl FnOnce(Worker) -> Worker) -> Working {
        let worker = build(Worker::at(self.place()).id("tester"));
        let (stop, stopped) = oneshot::channel();
        let run = tokio::spawn(worker.run_until(async { drop(stopped.await) }));
        Working { stop, run }
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
                    return job;
                }
            }
        };
        timeout(SOON, look).await.expect("it gets there")
    }

    pub async fn ended(&self, id: &str) -> Value {
        timeout(SOON, self.client.wait(id)).await.expect("it ends").unwrap().json
    }
}

impl Working {
    pub async fn finish(self) -> Result<(), WorkerError> {
        self.stop.send(()).expect("it still runs");
        timeout(SOON, self.run).await.expect("it drains").unwrap()
    }
}

pub fn job(kind: &str, payload: &str) -> Job {
    Job::new(kind, serde_json::from_str::<Value>(payload).unwrap()).unwrap()
}

fn place(node: &Node) -> Place {
    let door = node.door();
    Place::inside("127.0.0.1:0", Arc::new(move || Ok(Box::new(door.open()?))))
}
