//! A node on a log in memory, and a worker that speaks to it over a socket.

use std::collections::VecDeque;
use std::future::Future;
use std::time::Duration;

use axum::middleware::{Next, from_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use onward_core::health::LivenessRule;
use onward_core::health::overload::{LoadLimits, OverloadRule};
use onward_core::health::verdict::Verdict;
use onward_core::ids::{Bytes, Claim, ClientId, Incarnation, JobId, Name, WorkerId};
use onward_core::job::Draft;
use onward_core::manager::{JobView, WorkerView};
use onward_core::message::{Assignment, EndReport, FromWorker, Hello, Settlement, Subscription};
use onward_core::settings::Settings;
use onward_log::{EmbeddedArchive, MemoryLog};
use onward_node::api::access::Access;
use onward_node::engine::{DeliveryLimits, Engine, EngineStart};
use onward_node::grpc::routes_for;
use onward_node::outputs::{OutputFolder, OutputRules, Outputs};
use onward_proto::manager::{self, ManagerMessage};
use onward_proto::v1::job_service_client::JobServiceClient;
use onward_proto::v1::worker_service_client::WorkerServiceClient;
use onward_proto::v1::{ManagerFrame, SubmitRequest, WorkerFrame};
use onward_proto::{draft, worker};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{Sender, channel};
use tokio::sync::watch;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

/// Nothing here takes long, but a test must not wait for ever.
pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(120), what).await.expect("it should have happened by now")
}

/// More than any test opens.
pub const MAX_SESSIONS: usize = 100;

/// A machine that is slow or busy is no reason to refuse anything: load, gaps and the seat have tests of their own, and
/// so have probes, which would come in between otherwise.
pub fn settings() -> Settings {
    let never = LoadLimits { busy: 1e9, stressed: 2e9, overloaded: 3e9 };
    let overload = OverloadRule { rise: never, latency_ms: never, resource_percent: never, ..OverloadRule::default() };
    let long = Duration::from_secs(600);
    let liveness = LivenessRule { probe_every: long, answer_within: 2 * long, ..LivenessRule::default() };
    Settings { overload, liveness, seat_ttl: 2 * long, gap_after: long, ..Settings::default() }
}

/// The rights of a token's bearer, if there are any.
pub type FindAccess = fn(Option<&str>) -> Option<Access>;

/// Anybody may do anything, but for commands, which need a token.
pub fn anybody(token: Option<&str>) -> Option<Access> {
    Some(if token.is_some() { Access::full() } else { Access::without_token() })
}

pub struct Node {
    pub engine: Engine,
    pub outputs: Outputs,
    pub draining: watch::Sender<bool>,
    pub address: String,
    _folder: tempfile::TempDir,
}

impl Node {
    pub async fn start() -> Self {
        Self::with(settings(), anybody, MAX_SESSIONS).await
    }

    pub async fn with(settings: Settings, find: FindAccess, max_sessions: usize) -> Self {
        Self::on(Self::start_of(settings), find, max_sessions).await
    }

    /// Ended jobs leave memory for an archive in this folder.
    pub async fn with_archive(folder: &std::path::Path) -> Self {
        let archive = EmbeddedArchive::open(folder).expect("an empty folder");
        let start = EngineStart { archive: Some(std::sync::Arc::new(archive)), ..Self::start_of(settings()) };
        Self::on(start, anybody, MAX_SESSIONS).await
    }

    /// A node on a log that the test can spoil, for workers that take so much at once.
    pub async fn on_log(log: &MemoryLog, delivery: DeliveryLimits) -> Self {
        Self::on(EngineStart { delivery, ..Self::start_on(log.clone(), settings()) }, anybody, MAX_SESSIONS).await
    }

    fn start_of(settings: Settings) -> EngineStart {
        Self::start_on(MemoryLog::new(), settings)
    }

    fn start_on(log: MemoryLog, settings: Settings) -> EngineStart {
        let rules = settings.check().expect("valid settings");
        EngineStart::new(rules, move || Ok(Box::new(log.clone())))
    }

    async fn on(start: EngineStart, find: FindAccess, max_sessions: usize) -> Self {
        let engine = Engine::start(start).expect("a log in memory can be read");
        // It serves once the first event of its term is durable.
        soon(async { while engine.read(|_| ()).await.is_err() {} }).await;
        let folder = tempfile::tempdir().expect("a folder");
        let outputs = Outputs::start(Box::new(OutputFolder::new(folder.path().join("output"), OutputRules::default())))
            .expect("a thread");
        let (draining, drained) = watch::channel(false);
        let router = routes_for(engine.clone(), outputs.clone(), drained, max_sessions);
        let router = router.layer(from_fn(move |mut request: axum::extract::Request, next: Next| async move {
            let given = request.headers().get("authorization").and_then(|value| value.to_str().ok());
            if let Some(access) = find(given.and_then(|text| text.split_once(' ')).map(|(_, token)| token)) {
                request.extensions_mut().insert(access);
            }
            next.run(request).await
        }));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = format!("http://{}", listener.local_addr().expect("bound"));
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                socket.set_nodelay(true).expect("a fresh socket");
                let service = TowerToHyperService::new(router.clone());
                tokio::spawn(async move {
                    let server = auto::Builder::new(TokioExecutor::new());
                    // Clients of these tests go away as they like.
                    let _ = server.serve_connection(TokioIo::new(socket), service).await;
                });
            }
        });
        Self { engine, outputs, draining, address, _folder: folder }
    }

    pub async fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(self.address.clone()).expect("an address");
        soon(endpoint.tcp_nodelay(true).connect()).await.expect("the node listens")
    }

    pub async fn submit(&self, drafts: Vec<Draft>) -> Result<Vec<(JobId, bool)>, Status> {
        let request = SubmitRequest { jobs: drafts.into_iter().map(draft::draft_out).collect() };
        let answer = soon(JobServiceClient::new(self.channel().await).submit(request)).await?.into_inner();
        Ok(answer.jobs.iter().map(|one| draft::accepted_in(one).expect("well formed")).collect())
    }

    pub async fn submit_one(&self) -> JobId {
        self.submit(vec![job("payload")]).await.expect("accepted")[0].0
    }

    pub async fn job(&self, id: JobId) -> JobView {
        let read = self.engine.read(move |view| view.manager.job(id));
        soon(read).await.expect("serving").expect("known")
    }

    /// Waits until the job is in the archive, and nowhere else.
    pub async fn until_archived(&self, id: JobId) {
        soon(async { while self.engine.read(move |view| view.manager.job(id)).await.expect("serving").is_some() {} })
            .await;
    }

    pub async fn worker(&self, id: &str) -> Option<WorkerView> {
        let id = WorkerId::new(id).expect("a name");
        soon(self.engine.read(move |view| view.manager.worker(&id))).await.expect("serving")
    }

    /// Asks again until it is so.
    pub async fn until_verdict(&self, id: &str, verdict: Verdict) {
        let asking = async { while self.worker(id).await.expect("known").judgement.verdict != verdict {} };
        soon(asking).await;
    }
}

pub fn job(payload: &str) -> Draft {
    Draft::of_kind("echo", Bytes::from(payload.as_bytes()))
}

pub fn hello(worker: &str, incarnation: &str, slots: u32, holding: Vec<Claim>) -> FromWorker {
    let name = |text: &str| Name::new(text).expect("a name");
    FromWorker::Hello(Hello {
        worker: WorkerId::new(worker).expect("a name"),
        incarnation: Incarnation::new(incarnation).expect("a name"),
        subscription: Subscription { queues: vec![name("default")], kinds: vec![name("echo")] },
        slots,
        holding,
        client: ClientId::default(),
    })
}

pub fn succeed(claim: Claim) -> Settlement {
    Settlement::new(claim, EndReport::Succeed { result: (*b"done").into() })
}

/// A worker's end of a session.
pub struct Worker {
    out: Sender<WorkerFrame>,
    frames: Streaming<ManagerFrame>,
    heard: VecDeque<ManagerMessage>,
}

impl Worker {
    pub async fn open(node: &Node) -> Result<Self, Status> {
        let (out, outgoing) = channel(16);
        let mut client = WorkerServiceClient::new(node.channel().await);
        let frames = soon(client.session(ReceiverStream::new(outgoing))).await?.into_inner();
        Ok(Self { out, frames, heard: VecDeque::new() })
    }

    /// Opens a session, says hello and is welcome.
    pub async fn welcome(node: &Node, id: &str, incarnation: &str, slots: u32, holding: Vec<Claim>) -> Self {
        let mut worker = Self::open(node).await.expect("a session");
        worker.say([hello(id, incarnation, slots, holding)]).await;
        assert!(matches!(worker.hear().await, ManagerMessage::Welcome { .. }));
        worker
    }

    /// All of it in one frame.
    pub async fn say(&self, parts: impl IntoIterator<Item = FromWorker>) {
        let mut frame = WorkerFrame::default();
        for part in parts {
            worker::put(&mut frame, part);
        }
        self.send(frame).await;
    }

    pub async fn send(&self, frame: WorkerFrame) {
        soon(self.out.send(frame)).await.expect("the session is open");
    }

    /// The rest of the last frame, or else the next one, taken apart; `None` once the session has ended well.
    pub async fn frame(&mut self) -> Result<Option<Vec<ManagerMessage>>, Status> {
        if !self.heard.is_empty() {
            return Ok(Some(self.heard.drain(..).collect()));
        }
        let frame = soon(self.frames.message()).await?;
        Ok(frame.map(|frame| manager::frame_in(&frame).expect("well formed")))
    }

    pub async fn hear(&mut self) -> ManagerMessage {
        loop {
            if let Some(heard) = self.heard.pop_front() {
                return heard;
            }
            let frame = self.frame().await.expect("the session lives").expect("the session goes on");
            self.heard.extend(frame);
        }
    }

    pub async fn assignment(&mut self) -> Assignment {
        match self.hear().await {
            ManagerMessage::Assign(assignment) => assignment,
            other => panic!("expected an assignment, heard {other:?}"),
        }
    }

    /// The end of the session; anything else that is still heard is passed over.
    pub async fn end(&mut self) -> Result<(), Status> {
        while self.frame().await?.is_some() {}
        Ok(())
    }
}

pub fn code(status: &Status) -> Option<&str> {
    status.metadata().get("onward-code")?.to_str().ok()
}

pub fn field(status: &Status) -> Option<&str> {
    status.metadata().get("onward-field")?.to_str().ok()
}
