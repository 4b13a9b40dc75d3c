//! What those who follow a job and do not read, or send much at once, cost, counted by the allocator. A process of its
//! own, and one test at a time: nothing else allocates here.

#![allow(unsafe_code, reason = "an allocator cannot be written without it")]

#[path = "rig/mod.rs"]
mod rig;

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use onward_core::effect::Answer;
use onward_core::fence::Term;
use onward_core::gate::message::{
    FinalStatus, Frame, FromDatacenter, Hello, JobOutline, JobReport, Outcome, WorkflowCounts,
};
use onward_core::health::DatacenterCounts;
use onward_core::ids::{JobId, Name};
use onward_core::input::{Call, Submission};
use onward_core::job::{Draft, JobState};
use onward_core::message::{EndReport, Settlement};
use onward_core::timeout::ExtensionTotals;
use onward_node::gate::peers::PeerTrust;
use onward_node::server::{GateConfig, GateNode, Node};
use rig::{PATIENCE, Request, lease, poll_body, receipt, start, submit};
use tempfile::tempdir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::timeout;

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: every call goes on to the system's allocator as it came; only sizes are added up.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as it came.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as it came.
        unsafe { System.dealloc(block, layout) }
    }
}

const MIB: usize = 1 << 20;
const FOLLOWERS: usize = 300;

/// Whoever has this is alone with the allocator.
async fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::const_new(());
    ALONE.lock().await
}

async fn follow(address: SocketAddr, job: JobId) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = Request::get(&format!("/v1/jobs/{job}/events"));
    stream.write_all(request.text(address).as_bytes()).await.unwrap();
    // The first bytes of the answer and no more: from now on it is followed, and nobody reads.
    let mut first = [0; 12];
    timeout(PATIENCE, stream.read_exact(&mut first)).await.unwrap().unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    stream
}

async fn read_until(stream: &mut TcpStream, end: &str) {
    let mut text = String::new();
    let mut bytes = vec![0; 64 << 10];
    let reading = async {
        while !text.contains(end) {
            let count = stream.read(&mut bytes).await.unwrap();
            assert_ne!(count, 0, "{text}");
            // What is looked for may lie across two reads.
            let tail = text.len().saturating_sub(end.len());
            text.drain(..tail);
            text.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    };
    timeout(PATIENCE, reading).await.expect("it comes");
}

#[tokio::test]
async fn three_hundred_who_do_not_read_hold_next_to_nothing() {
    let _alone = alone().await;
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let payload = format!("\"{}\"", "x".repeat(MIB - 2));
    let job = submit(node.engine(), Draft::of_kind("k", payload.into_bytes())).await;
    let held = lease(&node, poll_body("1")).await.pop().unwrap();
    let mut reader = follow(node.address(), job).await;
    let before = LIVE.load(Ordering::Relaxed);
    let growth = || LIVE.load(Ordering::Relaxed).saturating_sub(before);

    let mut unread = Vec::new();
    for _ in 0..FOLLOWERS {
        unread.push(follow(node.address(), job).await);
    }
    for n in 0..20_u32 {
        let by = core::time::Duration::from_secs(1);
        let request = onward_core::ids::Name::new(format!("r{n}")).unwrap();
        let extend = Call::Extend { job, by, reason: "more".into(), request };
        assert!(matches!(node.engine().call(extend).await, Ok(Answer::Extended { .. })));
    }
    read_until(&mut reader, "\"extensions_s\":20.0").await;
    assert!(growth() < 24 * MIB, "{} MiB while it runs", growth() / MIB);

    // Its result is told to all, and is there once.
    let claim = {
        let view = node.engine().read(move |view| view.manager.job(job)).await.unwrap().unwrap();
        view.workflows[0].running.as_ref().unwrap().claim
    };
    assert!(!receipt(&held).is_empty());
    let result = format!("\"{}\"", "y".repeat(MIB - 2)).into_bytes();
    let settle = Call::Settle(vec![Settlement::new(claim, EndReport::Succeed { result: result.into() })]);
    assert!(node.engine().call(settle).await.is_ok());
    read_until(&mut reader, "event: end").await;
    read_until(&mut reader, "\r\n0\r\n\r\n").await;
    assert!(growth() < 32 * MIB, "{} MiB when it has ended", growth() / MIB);
    drop(unread);
    rig::until(async || node.engine().stats().followed_bytes.get() == 0).await;
}

/// A gate, and what the leaders of its datacenters say.
struct Datacenters {
    gate: GateNode,
    streams: Vec<(Name, onward_node::gate::DatacenterStream, onward_node::gate::Orders)>,
    number: u64,
}

impl Datacenters {
    async fn start(data: &std::path::Path, names: &[&str]) -> Self {
        let config = GateConfig { node: rig::config(data), trust: PeerTrust::Certificates };
        let gate = GateNode::start(config).await.unwrap();
        let open = |name: &&str| {
            let name = Name::new(*name).unwrap();
            let (stream, orders) = gate.engine().open_stream(name.clone());
            (name, stream, orders)
        };
        let mut opened = Self { streams: names.iter().map(open).collect(), gate, number: 0 };
        for at in 0..names.len() {
            let counts = DatacenterCounts {
                managers: 1,
                managers_live: 1,
                managers_ready: 1,
                managers_stuck: 0,
                workers: 1,
                workers_healthy_or_busy: 1,
                free_slots: 9,
            };
            let datacenter = opened.streams[at].0.clone();
            opened.say(at, FromDatacenter::Hello(Hello { datacenter, life: 1, epoch: None, counts }));
        }
        opened
    }

    fn say(&mut self, at: usize, message: FromDatacenter) {
        self.number += 1;
        self.streams[at].1.send_frame(Frame { term: Term::new(1), number: self.number, message }, 0);
    }

    /// The job succeeds in this datacenter, with a result of so many bytes.
    fn succeed(&mut self, at: usize, job: JobId, outline: &JobOutline, bytes: usize) {
        let report = JobReport {
            job,
            outline: outline.clone(),
            epoch: None,
            elapsed: Some(core::time::Duration::from_secs(1)),
            extended: ExtensionTotals::default(),
            since_progress: None,
            state: JobState::Succeeded,
            timed_out: None,
            workflows: WorkflowCounts { total: 1, succeeded: 1, failed: 0 },
            attempts: 1,
        };
        let result = format!("\"{}\"", "z".repeat(bytes - 2)).into_bytes();
        let status = FinalStatus { report, outcome: Outcome::Succeeded, result: Some(result.into()), error: None };
        self.say(at, FromDatacenter::Final(Box::new(status)));
    }
}

#[tokio::test]
async fn three_hundred_who_do_not_read_a_gates_job_hold_next_to_nothing() {
    let _alone = alone().await;
    let data = tempdir().unwrap();
    let names = ["dc-a", "dc-b", "dc-c"];
    let mut datacenters = Datacenters::start(data.path(), &names).await;
    let engine = datacenters.gate.engine().clone();
    let id = engine.new_job_id();
    let draft = Draft { datacenters: names.iter().map(|name| (*name).into()).collect(), ..Draft::of_kind("k", *b"1") };
    engine.submit(vec![Submission { id, draft }]).await.unwrap();
    let outline = engine.read(move |gate| gate.job(id).map(|view| view.job.outline)).await.unwrap().unwrap();
    let address = datacenters.gate.address();
    let mut reader = follow(address, id).await;
    let before = LIVE.load(Ordering::Relaxed);
    let growth = || LIVE.load(Ordering::Relaxed).saturating_sub(before);

    let mut unread = Vec::new();
    for _ in 0..FOLLOWERS {
        unread.push(follow(address, id).await);
    }
    for at in 0..2 {
        datacenters.succeed(at, id, &outline, 600 << 10);
    }
    // They are named as left out, until all is over.
    let of_b = format!("\"workflow\":\"dc-b\",\"field\":\"result\",\"bytes\":{}", 600 << 10);
    read_until(&mut reader, &of_b).await;
    assert!(growth() < 24 * MIB, "{} MiB while it runs", growth() / MIB);

    datacenters.succeed(2, id, &outline, 600 << 10);
    read_until(&mut reader, "event: end").await;
    read_until(&mut reader, "zzzz").await;
    read_until(&mut reader, "\r\n0\r\n\r\n").await;
    assert!(growth() < 48 * MIB, "{} MiB when it has ended", growth() / MIB);
    assert!(engine.stats().followed_bytes.get() > 0);
    drop(unread);
    rig::until(async || engine.stats().followed_bytes.get() == 0).await;
}

/// Sends nearly all of a body of 16 MiB; the stream, if the node has taken it all.
async fn send_most_of_a_body(address: SocketAddr) -> Result<TcpStream, String> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /v1/jobs HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        16 * MIB
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let (mut read, mut write) = stream.split();
    let (mut answer, piece) = (vec![0; 4 << 10], vec![b'x'; MIB]);
    let sent = async {
        for _ in 0..15 {
            if write.write_all(&piece).await.is_err() {
                // It is said why.
                core::future::pending::<()>().await;
            }
        }
    };
    tokio::select! {
        // Whoever is refused hears so while it still sends.
        biased;
        count = read.read(&mut answer) => {
            let count = count.unwrap_or(0);
            return Err(String::from_utf8_lossy(&answer[..count]).into_owned());
        }
        () = sent => {}
    }
    Ok(stream)
}

#[tokio::test]
async fn those_who_send_much_at_once_are_refused_before_memory_is_full_and_beats_come_through() {
    let _alone = alone().await;
    let data = tempdir().unwrap();
    let mut config = rig::config(data.path());
    config.limits.body_read = core::time::Duration::from_secs(600);
    let node = Node::start(config).await.unwrap();
    let address = node.address();
    rig::submit_kind(node.engine(), "k").await;
    let held = lease(&node, poll_body("1")).await.pop().unwrap();
    let before = LIVE.load(Ordering::Relaxed);
    let growth = || LIVE.load(Ordering::Relaxed).saturating_sub(before);
    let (mut open, mut refused) = (Vec::new(), Vec::new());
    for _ in 0..40 {
        match send_most_of_a_body(address).await {
            Ok(stream) => open.push(stream),
            Err(answer) => refused.push(answer),
        }
    }
    // What is on its way is read meanwhile, and then there is no room for most of it.
    let reading = async {
        while open.len() > 20 {
            for at in (0..open.len()).rev() {
                let mut answer = vec![0; 4 << 10];
                if let Ok(count) = open[at].try_read(&mut answer) {
                    refused.push(String::from_utf8_lossy(&answer[..count]).into_owned());
                    open.swap_remove(at);
                }
            }
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, reading).await.expect("most are refused");
    assert!(open.len() > 10, "only {} of 40 are being read", open.len());
    for answer in &refused {
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("overloaded"), "{answer}");
    }
    assert!(growth() < 400 * MIB, "{} MiB", growth() / MIB);
    let metrics = Request::get("/metrics").send(address).await;
    let text = String::from_utf8(metrics.body).unwrap();
    let taken = text.lines().find_map(|line| line.strip_prefix("onward_body_bytes ")).expect("it is shown");
    assert!(taken.parse::<f64>().unwrap() > (200 * MIB) as f64, "{taken}");

    let beat = serde_json::json!({ "watermark": 1 });
    let reply = rig::post(&node, &format!("/v1/leases/{}/beat", receipt(&held)), beat).await;
    assert_eq!(reply.status, 200, "{}", reply.json());
    drop(open);
    rig::until(async || {
        let metrics = Request::get("/metrics").send(address).await;
        String::from_utf8(metrics.body).unwrap().contains("\nonward_body_bytes 0\n")
    })
    .await;
}
