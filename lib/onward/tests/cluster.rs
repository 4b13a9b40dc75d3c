//! Workers and clients of a cluster, over real sockets: several addresses, the leader's hint, nodes that go or freeze. Who
//! leads is set by hand.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use onward::{CallError, Client, Context, Job, JobState, NodeAddresses, Notice, Worker};
use onward_core::fence::Term;
use onward_core::health::overload::{LoadLimits, OverloadRule};
use onward_core::settings::Settings;
use onward_node::cluster::leader::{LeaderAddress, LeaderView};
use onward_node::server::{Node, NodeConfig};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Longer than anything here takes, on a busy computer too.
const SOON: Duration = Duration::from_secs(120);

/// A node that is not alone, and its data.
struct Member {
    node: Node,
    _data: tempfile::TempDir,
}

impl Member {
    async fn start(name: &str) -> Self {
        let listen = free_port().await;
        Self::reached_at(name, listen, listen).await
    }

    async fn reached_at(name: &str, listen: SocketAddr, advertise: SocketAddr) -> Self {
        let data = tempfile::tempdir().unwrap();
        let far = LoadLimits { busy: 1e9, stressed: 2e9, overloaded: 3e9 };
        let overload = OverloadRule { rise: far, latency_ms: far, resource_percent: far, ..OverloadRule::default() };
        let long = Duration::from_secs(600);
        let settings = Settings { overload, seat_ttl: 2 * long, gap_after: long, ..Settings::default() };
        let config = NodeConfig {
            name: Some(name.into()),
            advertise: Some(advertise.to_string()),
            host_names: vec!["127.0.0.1".into()],
            rules: settings.check().unwrap(),
            ..NodeConfig::new(listen, data.path())
        };
        Self { node: Node::start(config).await.unwrap(), _data: data }
    }

    fn follow(&self, leader: Option<SocketAddr>) {
        let leader = leader.map(|address| LeaderAddress { name: "leader".into(), address: address.to_string() });
        self.node.engine().leader_view().send_replace(LeaderView::Following { term: Term::new(1), leader });
    }

    fn address(&self) -> SocketAddr {
        self.node.address()
    }
}

async fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

fn places(all: &[SocketAddr]) -> NodeAddresses {
    let all: Vec<String> = all.iter().map(|address| format!("http://{address}")).collect();
    NodeAddresses::at(&all.join(",")).unwrap()
}

/// A worker that runs, and what it tells.
struct Running {
    notices: UnboundedReceiver<Notice>,
    stop: oneshot::Sender<()>,
    run: JoinHandle<Result<(), onward::WorkerError>>,
}

impl Running {
    fn start(worker: Worker) -> Self {
        let (told, notices) = unbounded_channel();
        let (stop, stopped) = oneshot::channel();
        let worker = worker.on_notice(move |notice| drop(told.send(notice)));
        let run = tokio::spawn(worker.run_until(async { drop(stopped.await) }));
        Self { notices, stop, run }
    }

    async fn next(&mut self, wanted: impl Fn(&Notice) -> bool) {
        let find = async { while !wanted(&self.notices.recv().await.expect("it still runs")) {} };
        timeout(SOON, find).await.expect("it is told");
    }

    async fn connected(&mut self) {
        self.next(|notice| *notice == Notice::Connected).await;
    }

    async fn disconnected(&mut self) {
        self.next(|notice| matches!(notice, Notice::Disconnected { .. })).await;
    }

    async fn stop(self) {
        drop(self.stop);
        timeout(SOON, self.run).await.expect("it ends").unwrap().unwrap();
    }
}

fn echo(place: NodeAddresses) -> Worker {
    Worker::at(place).id("w").slots(4).handle("echo", |_: Context, input: Value| async move { Ok(input) })
}

async fn run(client: &Client, input: Value) -> Value {
    let id = client.submit(Job::new("echo", input).unwrap()).await.unwrap();
    let done = timeout(SOON, client.wait(&id)).await.expect("it ends").unwrap();
    assert_eq!(done.state, JobState::Succeeded);
    done.result::<Value>().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_through_a_follower_runs_jobs_and_goes_on_at_the_leader() {
    let (leader, follower) = (Member::start("a").await, Member::start("b").await);
    follower.follow(Some(leader.address()));
    let mut worker = Running::start(echo(places(&[follower.address()])));
    worker.connected().await;
    let client = Client::at(places(&[follower.address()]));
    let large = json!("x".repeat((1 << 20) - 2));
    assert_eq!(run(&client, large.clone()).await, large);
    for n in 0..50 {
        assert_eq!(run(&client, json!(n)).await, json!(n));
    }
    assert_eq!(follower.node.engine().read(|view| view.manager.view().jobs).await, Ok(0));

    // The leader was never named to either of them, but by its follower.
    drop(follower);
    worker.disconnected().await;
    worker.connected().await;
    assert_eq!(run(&client, json!("more")).await, json!("more"));
    worker.stop().await;
}

#[tokio::test]
async fn of_several_addresses_one_is_enough() {
    let leader = Member::start("a").await;
    let nobody = free_port().await;
    let mut worker = Running::start(echo(places(&[nobody, leader.address()])));
    worker.connected().await;
    let client = Client::at(places(&[nobody, leader.address()]));
    assert_eq!(run(&client, json!(1)).await, json!(1));
    worker.stop().await;
    let urls = format!("http://{nobody},http://{}", leader.address());
    Worker::connect(&urls).await.unwrap();
    assert!(Worker::connect(&format!("http://{nobody}")).await.is_err());
}

#[tokio::test]
async fn what_one_node_has_surely_not_done_is_asked_of_the_next() {
    let (leader, apart) = (Member::start("a").await, Member::start("b").await);
    apart.follow(None);
    let retries = onward::client::Retries { pauses: Vec::new(), unreachable: false };
    let client = Client::at(places(&[apart.address(), leader.address()])).retrying(retries.clone());
    // Not one that may be made again in doubt.
    let made: Value = client.post("/v1/jobs", &json!({ "kind": "k" })).await.unwrap();
    assert!(made["id"].is_string());
    assert_eq!(leader.node.engine().read(|view| view.manager.view().jobs).await, Ok(1));
    let alone = Client::at(places(&[apart.address()])).retrying(retries);
    let refused = alone.post::<Value>("/v1/jobs", &json!({ "kind": "k" })).await.unwrap_err();
    assert_eq!(refused.code(), Some("no_leader"), "{refused}");
    assert!(matches!(refused, CallError::Refused { status: 503, .. }));
}

/// A way to a node that can be frozen: what is open stays open, what is new is taken, and nothing moves.
struct Relay {
    address: SocketAddr,
    frozen: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl Relay {
    async fn to(node: SocketAddr, listener: TcpListener) -> Self {
        let address = listener.local_addr().unwrap();
        let (frozen, is_frozen) = watch::channel(false);
        let serving = tokio::spawn(async move {
            let mut silent = Vec::new();
            while let Ok((near, _)) = listener.accept().await {
                if *is_frozen.borrow() {
                    silent.push(near);
                    continue;
                }
                let (from_near, to_near) = near.into_split();
                let (from_far, to_far) = TcpStream::connect(node).await.unwrap().into_split();
                tokio::spawn(copy(from_near, to_far, is_frozen.clone()));
                tokio::spawn(copy(from_far, to_near, is_frozen.clone()));
            }
        });
        Self { address, frozen, serving }
    }

    fn freeze(&self) {
        self.frozen.send_replace(true);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, frozen: watch::Receiver<bool>) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count) = from.read(&mut bytes).await {
        if *frozen.borrow() {
            return core::future::pending().await;
        }
        if count == 0 || to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_leader_is_noticed_and_what_is_held_goes_on() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, advertise) = (free_port().await, listener.local_addr().unwrap());
    let leader = Member::reached_at("a", address, advertise).await;
    let relay = Relay::to(address, listener).await;
    let follower = Member::start("b").await;
    follower.follow(Some(address));
    let (go, begun) = (Arc::new(Notify::new()), Arc::new(AtomicU32::new(0)));
    let (held, count) = (go.clone(), begun.clone());
    let worker = echo(places(&[relay.address, follower.address()])).handle("held", move |_: Context, input: Value| {
        let (held, count) = (held.clone(), count.clone());
        async move {
            count.fetch_add(1, Ordering::Relaxed);
            held.notified().await;
            Ok(input)
        }
    });
    let mut worker = Running::start(worker);
    worker.connected().await;
    let client = Client::at(places(&[relay.address, follower.address()]));
    let id = client.submit(Job::new("held", json!("kept")).unwrap()).await.unwrap();
    while begun.load(Ordering::Relaxed) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    relay.freeze();
    let began = Instant::now();
    let reading = tokio::spawn({
        let (client, id) = (client.clone(), id.clone());
        async move { client.job(&id).await.map(|job| (job.state.clone(), Instant::now())) }
    });
    worker.disconnected().await;
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    worker.connected().await;
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    let (state, at) = reading.await.unwrap().unwrap();
    assert_eq!(state, JobState::Running);
    assert!(at - began < Duration::from_secs(4), "the client is no slower: {:?}", at - began);
    go.notify_one();
    let done = timeout(SOON, client.wait(&id)).await.expect("it ends").unwrap();
    assert_eq!((&done.state, done.result::<Value>().unwrap()), (&JobState::Succeeded, json!("kept")));
    assert_eq!(begun.load(Ordering::Relaxed), 1, "one attempt, over both sessions");
    worker.stop().await;
    drop(leader);
}
