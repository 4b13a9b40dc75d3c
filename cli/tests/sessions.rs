//! Very many native workers on one manager: nobody who answers is taken for ill.
//!
//! `ONWARD_SESSIONS=full` makes it a thousand sessions for ten minutes.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use onward_proto::v1::worker_service_client::WorkerServiceClient;
use onward_proto::v1::{Assignment, Hello, ManagerFrame, Settlement, Succeed, WorkerFrame, settlement};
use serde_json::{Value, json};
use support::http::Client;
use support::{Node, PATIENCE};
use tokio::sync::mpsc::{Sender, channel};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Endpoint;

#[derive(Clone, Copy, Debug)]
struct Size {
    sessions: u64,
    lasts: Duration,
}

/// Long enough for two probes of each.
const SMALL: Size = Size { sessions: 100, lasts: Duration::from_secs(22) };
const FULL: Size = Size { sessions: 1_000, lasts: Duration::from_secs(600) };
/// Jobs that are submitted between two looks, a second apart.
const JOBS: u64 = 20;
const KIND: &str = "moment";

/// A worker with one slot that answers every probe and does every job at once.
#[derive(Debug)]
struct Session {
    _working: JoinHandle<()>,
}

impl Session {
    async fn open(url: &str, number: u64, done: Arc<AtomicU64>) -> Self {
        let (out, frames) = channel(8);
        let hello = Hello {
            worker: name(number),
            incarnation: "1".into(),
            queues: vec!["default".into()],
            kinds: vec![KIND.into()],
            slots: 1,
            holding: Vec::new(),
            fetches_inputs: false,
        };
        out.send(WorkerFrame { hello: Some(hello), ..WorkerFrame::default() }).await.expect("it is taken");
        let channel = Endpoint::from_shared(url.to_owned()).expect("a URL").connect().await.expect("the node is there");
        let answer = WorkerServiceClient::new(channel).session(ReceiverStream::new(frames)).await;
        let heard = answer.expect("the session is opened").into_inner();
        Self { _working: tokio::spawn(work(out, heard, done)) }
    }
}

async fn work(out: Sender<WorkerFrame>, mut heard: Streaming<ManagerFrame>, done: Arc<AtomicU64>) {
    while let Ok(Some(frame)) = heard.message().await {
        done.fetch_add(frame.settle_answers.len() as u64, Ordering::Relaxed);
        let settlements: Vec<_> = frame.assignments.into_iter().map(success).collect();
        if settlements.is_empty() && frame.probes.is_empty() {
            continue;
        }
        let answer = WorkerFrame { settlements, probe_answers: frame.probes, ..WorkerFrame::default() };
        if out.send(answer).await.is_err() {
            return;
        }
    }
}

fn success(assignment: Assignment) -> Settlement {
    Settlement { claim: assignment.claim, report: Some(settlement::Report::Succeed(Succeed::default())) }
}

fn name(number: u64) -> String {
    format!("s{number:04}")
}

/// All workers, page by page.
async fn workers(client: &mut Client) -> Vec<Value> {
    let mut all = Vec::new();
    let mut path = "/v1/nodes?limit=1000".to_owned();
    loop {
        let page = client.get(&path).await.json();
        let nodes = page["nodes"].as_array().expect("a list").iter();
        all.extend(nodes.filter(|node| node["role"] == "worker").cloned());
        match page["next_cursor"].as_str() {
            Some(cursor) => path = format!("/v1/nodes?limit=1000&cursor={cursor}"),
            None => return all,
        }
    }
}

fn ill(workers: &[Value]) -> Vec<String> {
    let is_ill = |worker: &&Value| !matches!(worker["verdict"].as_str(), Some("healthy" | "busy"));
    workers.iter().filter(is_ill).map(Value::to_string).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_who_answers_is_taken_for_ill() {
    let size = match std::env::var("ONWARD_SESSIONS").as_deref() {
        Ok("full") => FULL,
        Ok(other) => panic!("ONWARD_SESSIONS is `full` or not set, not {other}"),
        Err(_) => SMALL,
    };
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(folder.path());
    let mut client = Client::with_token(node.address, folder.path());
    let done = Arc::new(AtomicU64::new(0));
    let mut sessions = Vec::new();
    for number in 0..size.sessions {
        sessions.push(Session::open(&node.url, number, done.clone()).await);
    }

    let (began, mut submitted) = (Instant::now(), 0);
    let mut each_second = interval(Duration::from_secs(1));
    each_second.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while began.elapsed() < size.lasts {
        each_second.tick().await;
        let jobs: Vec<Value> = (0..JOBS).map(|_| json!({ "kind": KIND })).collect();
        let reply = client.call("POST", "/v1/jobs/batch", &json!({ "jobs": jobs }).to_string()).await.unwrap();
        assert_eq!(reply.status, 201, "{}", reply.text());
        submitted += JOBS;
        let seen = workers(&mut client).await;
        assert_eq!(seen.len() as u64, size.sessions, "after {:?}", began.elapsed());
        assert_eq!(ill(&seen), [""; 0], "after {:?}", began.elapsed());
    }
    let deadline = Instant::now() + PATIENCE;
    while done.load(Ordering::Relaxed) < submitted {
        assert!(Instant::now() < deadline, "{} of {submitted} jobs are done", done.load(Ordering::Relaxed));
        each_second.tick().await;
    }

    // The same look sees one that has gone.
    sessions.pop().expect("there are some")._working.abort();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let ill = ill(&workers(&mut client).await);
        if !ill.is_empty() {
            assert!(ill.len() == 1 && ill[0].contains(&name(size.sessions - 1)), "{ill:?}");
            break;
        }
        assert!(Instant::now() < deadline, "a worker that went without a word is not seen");
        each_second.tick().await;
    }
}
