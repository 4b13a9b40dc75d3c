//! A worker that fetches inputs, from a manager that does what the test says.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use onward::{Context, NodeAddress, Worker, WorkerError};
use onward_proto::v1;
use onward_proto::v1::worker_service_server::{WorkerService, WorkerServiceServer};
use onward_proto::v1::{FetchInputAnswer, FetchInputRequest, ManagerFrame, WorkerFrame};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};

/// Longer than anything here takes, on a busy computer too.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(120), what).await.expect("it should have happened by now")
}

/// A call for an input that waits for its answer.
struct Fetch {
    asked: FetchInputRequest,
    reply: oneshot::Sender<Result<Bytes, Status>>,
}

impl Fetch {
    fn answer(self, answer: Result<&'static str, Status>) {
        self.reply.send(answer.map(|text| Bytes::from_static(text.as_bytes()))).expect("somebody waits");
    }
}

type Tell = UnboundedSender<Result<ManagerFrame, Status>>;

#[derive(Clone)]
struct Manager {
    sessions: UnboundedSender<Tell>,
    said: UnboundedSender<WorkerFrame>,
    fetches: UnboundedSender<Fetch>,
}

#[tonic::async_trait]
impl WorkerService for Manager {
    type SessionStream = UnboundedReceiverStream<Result<ManagerFrame, Status>>;

    async fn session(&self, request: Request<Streaming<WorkerFrame>>) -> Result<Response<Self::SessionStream>, Status> {
        let (tell, frames) = unbounded_channel();
        self.sessions.send(tell).expect("the test listens");
        let (mut heard, said) = (request.into_inner(), self.said.clone());
        tokio::spawn(async move {
            while let Ok(Some(frame)) = heard.message().await {
                // The test may be over.
                let _ = said.send(frame);
            }
        });
        Ok(Response::new(UnboundedReceiverStream::new(frames)))
    }

    async fn fetch_input(&self, request: Request<FetchInputRequest>) -> Result<Response<FetchInputAnswer>, Status> {
        let (reply, answer) = oneshot::channel();
        self.fetches.send(Fetch { asked: request.into_inner(), reply }).expect("the test listens");
        let result = answer.await.map_err(|_| Status::unavailable("the test is over"))??;
        Ok(Response::new(FetchInputAnswer { result }))
    }
}

struct World {
    sessions: UnboundedReceiver<Tell>,
    said: UnboundedReceiver<WorkerFrame>,
    fetches: UnboundedReceiver<Fetch>,
    /// The sender to the session that is open.
    tell: Tell,
    run: JoinHandle<Result<(), WorkerError>>,
}

impl World {
    /// A worker whose handler gives all its inputs, one after the other.
    async fn start() -> Self {
        let ((new_session, mut sessions), (says, mut said)) = (unbounded_channel(), unbounded_channel());
        let (asks, fetches) = unbounded_channel();
        let manager = WorkerServiceServer::new(Manager { sessions: new_session, said: says, fetches: asks });
        let open = move || {
            let (near, far) = tokio::io::duplex(64 << 10);
            let service = TowerToHyperService::new(manager.clone());
            tokio::spawn(async move {
                // Connections end as they like.
                let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(far), service).await;
            });
            Ok(Box::new(near) as Box<dyn onward::address::Stream>)
        };
        // The worker's session has a runtime of its own; the manager runs on the test's.
        let runtime = tokio::runtime::Handle::current();
        let open = move || {
            let _inside = runtime.enter();
            open()
        };
        let worker = Worker::at(NodeAddress::inside("127.0.0.1:0", Arc::new(open))).id("w").slots(2);
        let worker = worker.beat_every(Duration::from_millis(1)).handle_bytes("join", |ctx: Context, _| async move {
            let inputs: Vec<Bytes> = ctx.inputs().map(|(_, bytes)| bytes).collect();
            Ok(Bytes::from(inputs.concat()))
        });
        let run = tokio::spawn(worker.run_until(std::future::pending()));
        let tell = soon(sessions.recv()).await.expect("it connects");
        let hello = soon(said.recv()).await.expect("it says hello").hello.expect("first");
        assert!(hello.fetches_inputs && hello.holding.is_empty());
        let world = Self { sessions, said, fetches, tell, run };
        world.tell(ManagerFrame { welcome: Some(v1::Welcome { term: 1 }), ..ManagerFrame::default() });
        world
    }

    fn tell(&self, frame: ManagerFrame) {
        self.tell.send(Ok(frame)).expect("the session is open");
    }

    fn assign(&self, inputs: &[(&str, Input)]) -> v1::Claim {
        let claim = v1::Claim { job_id: Bytes::from_static(&[7; 16]), workflow: 1, fence: 5 };
        let inputs = inputs.iter().map(|(name, input)| match *input {
            Input::Here(text) => v1::NamedResult {
                workflow: (*name).to_owned(),
                result: Bytes::from_static(text.as_bytes()),
                reference: None,
            },
            Input::ByReference(digest) => v1::NamedResult {
                workflow: (*name).to_owned(),
                result: Bytes::new(),
                reference: Some(v1::Reference { digest: vec![digest; 32].into(), length: 1 }),
            },
        });
        let assignment = v1::Assignment {
            claim: Some(claim.clone()),
            attempt: 1,
            queue: "default".to_owned(),
            workflow: "join".to_owned(),
            kind: "join".to_owned(),
            inputs: inputs.collect(),
            lease_ms: 300_000,
            deadline_remaining_ms: 3_600_000,
            ..v1::Assignment::default()
        };
        self.tell(ManagerFrame { assignments: vec![assignment], ..ManagerFrame::default() });
        claim
    }

    async fn fetch(&mut self) -> Fetch {
        soon(self.fetches.recv()).await.expect("the manager lives")
    }

    /// The next frame that has what is looked for.
    async fn hear<T>(&mut self, find: impl Fn(&WorkerFrame) -> Option<T>) -> T {
        loop {
            let frame = soon(self.said.recv()).await.expect("the manager lives");
            if let Some(found) = find(&frame) {
                return found;
            }
        }
    }

    async fn settled(&mut self) -> v1::settlement::Report {
        self.hear(|frame| frame.settlements.first()?.report.clone()).await
    }

    /// Lets the client do everything that it can do with what it knows.
    async fn settle_down(&mut self) {
        for probe in 1..=5 {
            self.tell(ManagerFrame { probes: vec![probe], ..ManagerFrame::default() });
            self.hear(|frame| frame.probe_answers.contains(&probe).then_some(())).await;
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.run.abort();
    }
}

#[derive(Clone, Copy)]
enum Input {
    Here(&'static str),
    /// Sent by reference, with a digest of so many of these bytes.
    ByReference(u8),
}
use Input::{ByReference, Here};

fn refusal(code: Code, word: &'static str) -> Status {
    let mut status = Status::new(code, word);
    status.metadata_mut().insert("onward-code", word.parse().expect("a word"));
    status
}

fn released(report: v1::settlement::Report) -> Option<u64> {
    match report {
        v1::settlement::Report::Release(v1::Release { delay_ms, .. }) => delay_ms,
        other => panic!("it is given back, and not {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_few_are_fetched_at_a_time_and_each_is_a_beat_and_probes_are_answered() {
    let mut world = World::start().await;
    let named = [("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5), ("f", 6)];
    let mut inputs: Vec<(&str, Input)> = named.iter().map(|(name, digest)| (*name, ByReference(*digest))).collect();
    inputs.extend([("g", ByReference(1)), ("h", Here("H"))]);
    let claim = world.assign(&inputs);
    let mut waiting = Vec::new();
    for _ in 0..4 {
        waiting.push(world.fetch().await);
    }
    world.settle_down().await;
    assert!(world.fetches.try_recv().is_err(), "four of them are on their way, and no more");

    // `a` and `g` are one content, under either name.
    let content = |fetch: &Fetch| match fetch.asked.workflow.as_str() {
        "a" | "g" => "A",
        "b" => "B",
        "c" => "C",
        "d" => "D",
        "e" => "E",
        "f" => "F",
        other => panic!("{other} is not to be fetched"),
    };
    for _ in 0..2 {
        let one = waiting.remove(0);
        assert_eq!(one.asked.claim, Some(claim.clone()));
        let answer = content(&one);
        one.answer(Ok(answer));
        world.hear(|frame| frame.beats.iter().any(|beat| beat.claim == Some(claim.clone())).then_some(())).await;
        // So that the next beat is not the answer to this.
        let accepted = v1::BeatAccepted { lease_remaining_ms: 300_000, cancel: false, quiet_ms: None };
        let answer = Some(v1::beat_answer::Answer::Accepted(accepted));
        let answer = v1::BeatAnswer { claim: Some(claim.clone()), answer };
        world.tell(ManagerFrame { beat_answers: vec![answer], ..ManagerFrame::default() });
        waiting.push(world.fetch().await);
    }
    for fetch in waiting {
        let answer = content(&fetch);
        fetch.answer(Ok(answer));
    }
    let v1::settlement::Report::Succeed(v1::Succeed { result }) = world.settled().await else { panic!("it succeeds") };
    assert_eq!(result, "ABCDEFAH");
    assert!(world.fetches.try_recv().is_err(), "equal content was fetched once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_must_stop_while_it_fetches_has_stopped() {
    let mut world = World::start().await;
    let claim = world.assign(&[("a", ByReference(1)), ("b", ByReference(2))]);
    let waiting = [world.fetch().await, world.fetch().await];
    let cancel = v1::Cancel { claim: Some(claim.clone()), why: v1::CancelWhy::Asked.into() };
    world.tell(ManagerFrame { cancels: vec![cancel], ..ManagerFrame::default() });
    world.hear(|frame| frame.ended.contains(&claim).then_some(())).await;
    // Nobody waits for them any more.
    for mut fetch in waiting {
        soon(fetch.reply.closed()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_is_anothers_is_let_go_at_once() {
    let mut world = World::start().await;
    for refused in [refusal(Code::FailedPrecondition, "stale_attempt"), refusal(Code::DataLoss, "damaged")] {
        let claim = world.assign(&[("a", ByReference(1))]);
        world.fetch().await.answer(Err(refused));
        assert_eq!(released(world.settled().await), None);
        let answer = v1::SettleAnswer { claim: Some(claim), refused: None };
        world.tell(ManagerFrame { settle_answers: vec![answer], ..ManagerFrame::default() });
    }
    assert!(world.fetches.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_cannot_read_is_asked_a_few_times_and_then_the_attempt_is_given_back() {
    let mut world = World::start().await;
    world.assign(&[("a", ByReference(1))]);
    for _ in 0..4 {
        world.fetch().await.answer(Err(refusal(Code::Unavailable, "no_leader")));
    }
    world.fetch().await.answer(Err(Status::internal("the connection broke")));
    assert_eq!(released(world.settled().await), Some(1_000), "which does not count");
    assert!(world.fetches.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fetching_goes_on_over_the_next_session() {
    let mut world = World::start().await;
    let claim = world.assign(&[("a", ByReference(1))]);
    let lost = world.fetch().await;
    world.tell.send(Err(Status::unavailable("a new term"))).expect("the session is open");
    world.tell = soon(world.sessions.recv()).await.expect("it connects again");
    let hello = world.hear(|frame| frame.hello.clone()).await;
    assert!(hello.holding == [claim] && hello.fetches_inputs);
    world.tell(ManagerFrame { welcome: Some(v1::Welcome { term: 2 }), ..ManagerFrame::default() });
    lost.answer(Err(Status::unavailable("the connection broke")));
    world.fetch().await.answer(Ok("A"));
    let v1::settlement::Report::Succeed(v1::Succeed { result }) = world.settled().await else { panic!("it succeeds") };
    assert_eq!(result, "A");
}
