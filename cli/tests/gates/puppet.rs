//! A gate whose orders the test writes: what a datacenter answers to those that a real gate sends only when it errs.

use std::net::SocketAddr;
use std::path::Path;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use onward_gossip::NodeLabel;
use onward_node::peer::PeerIdentity;
use onward_node::peer::proof::{HEADER, PeerProofs};
use onward_proto::v1::datacenter_frame::Message as Up;
use onward_proto::v1::gate_frame::Message as Down;
use onward_proto::v1::gate_service_server::{GateService, GateServiceServer};
use onward_proto::v1::job_correction::Stale;
use onward_proto::v1::{
    DatacenterFrame, Draft, Epoch, GateFrame, GlobalTimeout, JobPlacement, JobStatus, TimeoutCause, WorkflowDraft,
};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{Sender, UnboundedReceiver, UnboundedSender, channel, unbounded_channel};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::support::process::until;
use super::support::{Node, PATIENCE, onward, own_loopback};
use super::*;

const EPOCH: Epoch = Epoch { n: 7, gate: 1 };

/// A stream that a manager has opened.
struct PuppetStream {
    orders: Sender<Result<GateFrame, Status>>,
    frames: UnboundedReceiver<DatacenterFrame>,
}

struct Puppet {
    /// What it proves itself by, or nothing.
    proof: Option<String>,
    opened: UnboundedSender<PuppetStream>,
}

#[tonic::async_trait]
impl GateService for Puppet {
    type CoordinateStream = ReceiverStream<Result<GateFrame, Status>>;

    async fn coordinate(
        &self,
        request: Request<Streaming<DatacenterFrame>>,
    ) -> Result<Response<Self::CoordinateStream>, Status> {
        let (orders, sent) = channel(16);
        let (heard, frames) = unbounded_channel();
        let mut stream = request.into_inner();
        tokio::spawn(async move {
            while let Ok(Some(frame)) = stream.message().await {
                if heard.send(frame).is_err() {
                    return;
                }
            }
        });
        // The test may be over.
        let _ = self.opened.send(PuppetStream { orders, frames });
        let mut response = Response::new(ReceiverStream::new(sent));
        if let Some(proof) = &self.proof {
            response.metadata_mut().insert(HEADER, proof.parse().expect("it is fit for a header"));
        }
        Ok(response)
    }
}

impl PuppetStream {
    async fn order(&self, message: Down) {
        self.orders.send(Ok(GateFrame { message: Some(message) })).await.expect("the manager is there");
    }

    /// The next that is wanted, with the term that it was said under.
    async fn heard<T>(&mut self, what: &str, wanted: impl Fn(Up) -> Option<T>) -> (u64, T) {
        let found = async {
            loop {
                let frame = self.frames.recv().await.unwrap_or_else(|| panic!("the stream ended before {what}"));
                if let Some(found) = frame.message.and_then(&wanted) {
                    return (frame.term, found);
                }
            }
        };
        tokio::time::timeout(PATIENCE, found).await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
    }

    /// Lets a manager in, and gives its term.
    async fn welcome(&mut self) -> u64 {
        let hello = |message| matches!(message, Up::Hello(_)).then_some(());
        let (term, ()) = self.heard("a hello", hello).await;
        self.order(Down::Welcome(EPOCH)).await;
        term
    }
}

/// A gate that says what the test says, and the streams that are opened to it.
async fn puppet(key: &Path, who: Option<PeerIdentity>) -> (SocketAddr, UnboundedReceiver<PuppetStream>) {
    let proofs = PeerProofs::new(&onward_node::gossip::read_keys(key).expect("a key"));
    let proof = who.map(|who| proofs.prove(&who, onward_node::clock::now().wall));
    let listener = TcpListener::bind(own_loopback()).await.expect("a port");
    let address = listener.local_addr().expect("it has one");
    let (opened, streams) = unbounded_channel();
    let service = GateServiceServer::new(Puppet { proof, opened });
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let service = TowerToHyperService::new(service.clone());
            tokio::spawn(async move {
                let builder = Builder::new(TokioExecutor::new()).http2_only();
                // The manager may be killed at any time.
                let _ = builder.serve_connection(TokioIo::new(connection), service).await;
            });
        }
    });
    (address, streams)
}

fn label(text: &str) -> NodeLabel {
    NodeLabel::new(text).expect("a label")
}

/// A manager of `dc-a` that reports to one gate.
struct Manager {
    folder: TempDir,
    gate: SocketAddr,
}

impl Manager {
    fn key(folder: &TempDir) -> std::path::PathBuf {
        let key = folder.path().join("cluster.key");
        std::fs::write(&key, "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n").expect("a file");
        key
    }

    fn start(&self) -> Node {
        let file = |name: &str| self.folder.path().join(name).display().to_string();
        let (settings, data) = (file("manager.toml"), file("data"));
        let text = format!(
            "name = \"m1\"\ndatacenter = \"dc-a\"\nlisten = \"{}\"\ngates = [\"{}\"]\ncluster.key_file = {:?}\n{SOON}",
            own_loopback(),
            self.gate,
            file("cluster.key")
        );
        std::fs::write(&settings, text).expect("a file");
        let mut command = onward(&["manager", "--config", &settings, "--data", &data]);
        let log = std::fs::File::create(file("log")).expect("a file");
        command.env("ONWARD_LOG", "info").stderr(log);
        Node::start_as(command)
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).expect("it logs")
    }
}

/// A global timeout echoes the term of the leader whose reports it was based on: another leader does not obey it, and says
/// how things are.
#[tokio::test]
async fn a_global_timeout_under_a_stale_term_is_corrected_and_ends_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let (gate, mut streams) = puppet(&Manager::key(&folder), Some(PeerIdentity::gate(label("g1")))).await;
    let manager = Manager { folder, gate };
    let first = manager.start();
    let mut stream = streams.recv().await.expect("the manager dials");
    let old = stream.welcome().await;
    let job_id = bytes::Bytes::copy_from_slice(&0x0198_0000_0000_7000_8000_0000_0000_0001_u128.to_be_bytes());
    let workflow = WorkflowDraft { kind: "k".into(), payload: "{}".into(), ..WorkflowDraft::default() };
    let draft = Draft { workflows: vec![workflow], datacenters: vec!["dc-a".into()], ..Draft::default() };
    let placement =
        JobPlacement { job_id: job_id.clone(), epoch: Some(EPOCH), draft: Some(draft), ..JobPlacement::default() };
    stream.order(Down::Submit(placement)).await;
    let submitted = |message| match message {
        Up::Submitted(submitted) => Some(submitted.problem),
        _ => None,
    };
    assert_eq!(stream.heard("that it has the job", submitted).await, (old, None));
    first.kill();

    let second = manager.start();
    let mut stream = streams.recv().await.expect("the manager dials");
    let new = stream.welcome().await;
    assert!(new > old, "{new} after {old}");
    let timeout = |term| {
        let reason = TimeoutCause::Stuck.into();
        Down::GlobalTimeout(GlobalTimeout { job_id: job_id.clone(), epoch: Some(EPOCH), term, reason })
    };
    stream.order(timeout(old)).await;
    let answer = |message| match message {
        Up::Correction(correction) => Some(Ok(correction)),
        Up::Final(last) => Some(Err(last)),
        _ => None,
    };
    let (term, corrected) = stream.heard("a correction", answer).await;
    let corrected = corrected.expect("nothing has ended");
    let report = corrected.report.clone().expect("it says how the job is");
    assert_eq!((term, corrected.stale(), report.state()), (new, Stale::Term, JobStatus::Ready), "{corrected:?}");
    assert_eq!(report.job_id, job_id);
    let id = uuid(&job_id);
    let there = Client::new(second.address).get(&format!("/v1/jobs/{id}")).await.json();
    assert!(there["ended_at"].is_null(), "{there}");

    stream.order(timeout(new)).await;
    let (term, last) = stream.heard("its end", answer).await;
    let report = last.expect_err("it is obeyed").report.expect("it says how the job is");
    assert_eq!((term, report.state(), report.job_id.clone()), (new, JobStatus::TimedOut, job_id), "{report:?}");
    let there = Client::new(second.address).get(&format!("/v1/jobs/{id}")).await.json();
    assert_eq!(there["state"], "timed_out", "{there}");
}

fn uuid(id: &[u8]) -> String {
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// A job is a gate's because it came over a stream that has proved to be one; whoever does not prove it is told nothing.
#[tokio::test]
async fn a_manager_says_nothing_to_what_does_not_prove_to_be_a_gate() {
    let worker = PeerIdentity::worker(label("dc-a"), label("w1"));
    for (who, why) in [(None, "the gate's answer proves nothing"), (Some(worker), "onward://worker/dc-a/w1 is no gate")]
    {
        let folder = tempfile::tempdir().expect("a folder");
        let (gate, mut streams) = puppet(&Manager::key(&folder), who).await;
        let manager = Manager { folder, gate };
        let _node = manager.start();
        let mut stream = streams.recv().await.expect("the manager dials");
        until("it says why", PATIENCE, async || manager.said().contains(why).then_some(())).await;
        assert!(stream.frames.recv().await.is_none(), "it has hung up without a word");
    }
}
