//! A network between a datacenter and its gate that brings an order late: to a leader that the gate did not mean.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use onward_node::peer::proof::HEADER;
use onward_proto::v1::datacenter_frame::Message as Up;
use onward_proto::v1::gate_frame::Message as Down;
use onward_proto::v1::gate_service_client::GateServiceClient;
use onward_proto::v1::gate_service_server::{GateService, GateServiceServer};
use onward_proto::v1::job_correction::Stale;
use onward_proto::v1::{DatacenterFrame, GateFrame};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{Sender, channel};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use tonic::{Request, Response, Status, Streaming};

use super::support::own_loopback;
use super::support::process::until;
use super::*;

/// What becomes of global timeouts on their way down.
#[derive(Debug, Default)]
enum Fate {
    #[default]
    Delivered,
    /// The next is kept back, and so is every other on its stream.
    Awaited,
    /// It is brought on another stream, in place of the first that the gate sends there; the next ones are lost.
    Kept {
        order: Box<GateFrame>,
        stream: usize,
    },
    Brought,
    /// The datacenter has refused it, under this term.
    Refused {
        stale: i32,
        term: u64,
    },
}

#[derive(Debug, Default)]
struct RelayState {
    gate: OnceLock<SocketAddr>,
    fate: Mutex<Fate>,
    streams: Mutex<usize>,
}

impl RelayState {
    fn fate(&self) -> MutexGuard<'_, Fate> {
        self.fate.lock().expect("nobody panics with it")
    }

    /// What is passed on to the datacenter.
    fn down(&self, stream: usize, frame: GateFrame) -> Option<GateFrame> {
        if !matches!(frame.message, Some(Down::GlobalTimeout(_))) {
            return Some(frame);
        }
        let mut fate = self.fate();
        match &*fate {
            Fate::Delivered | Fate::Refused { .. } => Some(frame),
            Fate::Brought => None,
            Fate::Awaited => {
                *fate = Fate::Kept { order: Box::new(frame), stream };
                None
            }
            Fate::Kept { stream: of, .. } if *of == stream => None,
            Fate::Kept { order, .. } => {
                let order = GateFrame::clone(order);
                *fate = Fate::Brought;
                Some(order)
            }
        }
    }

    fn note_up(&self, frame: &DatacenterFrame) {
        let mut fate = self.fate();
        if let (Fate::Brought, Some(Up::Correction(correction))) = (&*fate, &frame.message) {
            *fate = Fate::Refused { stale: correction.stale, term: frame.term };
        }
    }

    /// The term that the order echoes which is kept back.
    fn kept(&self) -> Option<u64> {
        match &*self.fate() {
            Fate::Kept { order, .. } => match &order.message {
                Some(Down::GlobalTimeout(order)) => Some(order.term),
                _ => None,
            },
            _ => None,
        }
    }

    fn refused(&self) -> Option<(i32, u64)> {
        match &*self.fate() {
            Fate::Refused { stale, term } => Some((*stale, *term)),
            _ => None,
        }
    }
}

/// A gate for the datacenter, and a datacenter for the gate: both prove themselves to each other through it.
#[derive(Clone)]
struct Relay(Arc<RelayState>);

#[tonic::async_trait]
impl GateService for Relay {
    type CoordinateStream = ReceiverStream<Result<GateFrame, Status>>;

    async fn coordinate(
        &self,
        request: Request<Streaming<DatacenterFrame>>,
    ) -> Result<Response<Self::CoordinateStream>, Status> {
        let gate = self.0.gate.get().ok_or_else(|| Status::unavailable("there is no gate yet"))?;
        let endpoint = Endpoint::from_shared(format!("http://{gate}")).expect("an address");
        let connected = endpoint.connect().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let mut client = GateServiceClient::new(connected);
        let (to_gate, frames) = channel(16);
        let mut dialled = Request::new(ReceiverStream::new(frames));
        if let Some(proof) = request.metadata().get(HEADER) {
            dialled.metadata_mut().insert(HEADER, proof.clone());
        }
        let stream = {
            let mut streams = self.0.streams.lock().expect("nobody panics with it");
            *streams += 1;
            *streams
        };
        tokio::spawn(carry_up(self.0.clone(), request.into_inner(), to_gate));
        let answer = client.coordinate(dialled).await?;
        let proof = answer.metadata().get(HEADER).cloned();
        let (to_datacenter, orders) = channel(16);
        tokio::spawn(carry_down(self.0.clone(), stream, answer.into_inner(), to_datacenter));
        let mut response = Response::new(ReceiverStream::new(orders));
        if let Some(proof) = proof {
            response.metadata_mut().insert(HEADER, proof);
        }
        Ok(response)
    }
}

async fn carry_up(shared: Arc<RelayState>, mut from: Streaming<DatacenterFrame>, to: Sender<DatacenterFrame>) {
    while let Ok(Some(frame)) = from.message().await {
        shared.note_up(&frame);
        if to.send(frame).await.is_err() {
            return;
        }
    }
}

async fn carry_down(
    shared: Arc<RelayState>,
    stream: usize,
    mut from: Streaming<GateFrame>,
    to: Sender<Result<GateFrame, Status>>,
) {
    while let Ok(Some(frame)) = from.message().await {
        if let Some(frame) = shared.down(stream, frame)
            && to.send(Ok(frame)).await.is_err()
        {
            return;
        }
    }
}

async fn relay() -> (SocketAddr, Arc<RelayState>) {
    let shared = Arc::<RelayState>::default();
    let listener = TcpListener::bind(own_loopback()).await.expect("a port");
    let address = listener.local_addr().expect("it has one");
    let service = GateServiceServer::new(Relay(shared.clone()));
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
    (address, shared)
}

/// The gate decides, and its order reaches the datacenter only when that has another leader.
#[tokio::test]
async fn a_global_timeout_that_comes_after_its_leader_is_refused_and_decided_again_under_the_new_term() {
    let (address, relay) = relay().await;
    let world = options().dialled_at(&[address]).settings(SOON).settings(PATIENT).start().expect("a world");
    relay.gate.set(world.gates[0].address).expect("it is set once");
    let (gate, mark) = (gate(&world), Mark::new());
    are_healthy(&gate, 1).await;
    *relay.fate() = Fate::Awaited;
    let impatient = json!({ "stuck_after_s": 2, "on_stuck": "time_out" });
    let id = gate.submit(&command("exec sleep 600", &mark, impatient)).await;
    mark.runs("sleep", 1).await;
    let old = until("the gate decides", PATIENCE, async || relay.kept()).await;
    let manager = &world.managers[0];
    let there = at_manager(manager, &id).await;
    assert!(there["ended_at"].is_null(), "the order is on its way: {there}");

    manager.server.kill();
    manager.server.start_again().expect("it starts");
    let (stale, new) = until("the order is refused", PATIENCE, async || relay.refused()).await;
    assert_eq!(Stale::try_from(stale), Ok(Stale::Term));
    assert!(new > old, "{new} after {old}");

    let job = gate.ended(&id).await;
    assert_eq!((&job["state"], &job["reason"]), (&json!("timed_out"), &json!("stuck")), "{job}");
    assert!(all_confirmed(&job), "{job}");
    let ended_there = at_manager(manager, &id).await;
    assert_eq!(ended_there["state"], "timed_out", "{ended_there}");
    assert_eq!(ended_there["started_at"], there["started_at"], "{ended_there}");
    let said = world.gates[0].server.said();
    assert!(said.contains("a datacenter refused a decision; it is sent another"), "{said}");
    mark.gone(ENDS_WITHIN).await;
}
