//! A datacenter's stream: frames in, orders out, until either side closes.
//!
//! Who speaks is proved before anything of the body is read ([`super::peers`]), and the gate's answer proves the gate. That
//! whoever speaks does so for the datacenter that it names is checked once more by the machine. A gate that follows lets a
//! datacenter in all the same and hears it once it leads: so when the leader goes, the datacenters are there already.
//!
//! **Flow control** is HTTP/2's own, both ways, as for a worker's session. A datacenter that does not read is cut off by its
//! outbox, and what it is owed is sent again when it is back.

use std::sync::Arc;
use std::time::Duration;

use onward_core::gate::message::{Frame, ToDatacenter};
use onward_core::ids::Name;
use onward_core::refusal::RefusalKind;
use onward_proto::gate::{down_out, up_in};
use onward_proto::v1::gate_service_server::{GateService, GateServiceServer};
use onward_proto::v1::{DatacenterFrame, GateFrame};
use onward_proto::{MAX_FRAME_BYTES, MAX_ORDER_BYTES};
use prost::Message as _;
use tokio::sync::mpsc::{Sender, channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Response, Status, Streaming};

use super::peers::PeerTrust;
use super::streams::Orders;
use super::{DatacenterStream, GateEngine};
use crate::api::access::ClientConnection;
use crate::clock;
use crate::cluster::leader::LeaderView;
use crate::grpc::status;
use crate::peer::proof::HEADER;

/// The time for a hello: a caller that connects and says nothing holds a place that another could have.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// Frames that wait to be taken by the network.
const FRAMES_AHEAD: usize = 16;
/// More than there are datacenters, since one may be dialling again before its old stream has ended.
const MAX_STREAMS: usize = 1_024;

type Out = Sender<Result<GateFrame, Status>>;

/// The gates' half of the protocol, without a fallback.
pub(crate) fn routes(engine: GateEngine, trust: PeerTrust, draining: watch::Receiver<bool>) -> axum::Router {
    let streams = Streams { engine, trust, draining, places: Arc::new(Semaphore::new(MAX_STREAMS)) };
    let service = GateServiceServer::new(streams).max_decoding_message_size(MAX_FRAME_BYTES);
    axum::Router::new().route_service("/onward.v1.GateService/{method}", service)
}

#[derive(Clone, Debug)]
struct Streams {
    engine: GateEngine,
    trust: PeerTrust,
    draining: watch::Receiver<bool>,
    places: Arc<Semaphore>,
}

#[tonic::async_trait]
impl GateService for Streams {
    type CoordinateStream = ReceiverStream<Result<GateFrame, Status>>;

    async fn coordinate(
        &self,
        request: Request<Streaming<DatacenterFrame>>,
    ) -> Result<Response<Self::CoordinateStream>, Status> {
        let headers = request.metadata().clone().into_headers();
        let connection = request.extensions().get::<ClientConnection>();
        let proved = self.trust.datacenter_of(connection, &headers, clock::now().wall);
        let datacenter = proved.map_err(|error| {
            self.engine.stats().streams_refused.add(1);
            tracing::warn!(%error, "a stream was refused");
            status::of(Code::Unauthenticated, "unauthorized", error.to_string())
        })?;
        let place = self.places.clone().try_acquire_owned().map_err(|_| {
            let text = format!("this gate has {MAX_STREAMS} streams and takes no more; try again later");
            status::of(Code::ResourceExhausted, RefusalKind::Limited.code(), text)
        })?;
        let (out, frames) = channel(FRAMES_AHEAD);
        tokio::spawn(serve(self.clone(), datacenter, request.into_inner(), out, place));
        let mut response = Response::new(ReceiverStream::new(frames));
        if let Some(proof) = self.trust.own_proof(clock::now().wall) {
            let proof = MetadataValue::try_from(proof).map_err(|_| Status::internal("a proof is fit for a header"))?;
            response.metadata_mut().insert(HEADER, proof);
        }
        Ok(response)
    }
}

async fn serve(
    streams: Streams,
    datacenter: Name,
    mut frames: Streaming<DatacenterFrame>,
    out: Out,
    _place: OwnedSemaphorePermit,
) {
    let mut draining = streams.draining.clone();
    let ended = tokio::select! {
        ended = converse(&streams.engine, datacenter, &mut frames, &out) => ended,
        // An error means that the gate is gone, which is the end of its streams too.
        _ = draining.wait_for(|draining| *draining) => {
            Err(status::of(Code::Unavailable, "stream_closed", "this gate drains; dial another"))
        }
    };
    if let Err(status) = ended {
        // If the datacenter is gone there is nobody to tell.
        let _ = timeout(HELLO_WITHIN, out.send(Err(status))).await;
    }
}

async fn converse(
    engine: &GateEngine,
    datacenter: Name,
    frames: &mut Streaming<DatacenterFrame>,
    out: &Out,
) -> Result<(), Status> {
    let Some(hello) = first_frame(frames, out).await? else { return Ok(()) };
    let waiting = engine.wait_with(&datacenter);
    let leads = leads(engine, frames, out).await;
    drop(waiting);
    if !leads? {
        return Ok(());
    }
    let (stream, mut orders) = engine.open_stream(datacenter);
    stream.send_frame(hello, 0);
    loop {
        tokio::select! {
            () = out.closed() => return Ok(()),
            frame = next_frame(&stream, frames) => match frame.map_err(status::undecodable)? {
                Some(frame) => {
                    let bytes = frame.encoded_len();
                    stream.send_frame(checked(frame)?, bytes);
                }
                None => return Ok(()),
            },
            ended = send_orders(&stream, &mut orders, out) => return ended,
        }
    }
}

/// Read when the machine has room for it, so that a datacenter cannot fill its queue.
async fn next_frame(
    stream: &DatacenterStream,
    frames: &mut Streaming<DatacenterFrame>,
) -> Result<Option<DatacenterFrame>, Status> {
    stream.room().await;
    frames.message().await
}

/// Sends orders, each whole. May be given up at any time, and begun again.
///
/// What can never be sent is left out: it would be the first of every stream to come, and nothing behind it would be sent.
async fn send_orders(stream: &DatacenterStream, orders: &mut Orders, out: &Out) -> Result<(), Status> {
    loop {
        let order = orders.next().await.map_err(|_| closed())?;
        let completed = match stream.complete(order).await {
            // The datacenter dials again, and is sent what it is owed then.
            Err(refused) if !refused.is_for_good() => return Err(status::refused(&refused)),
            completed => completed.map_err(|refused| refused.to_string()),
        };
        let Ok(permit) = out.reserve().await else { return Ok(()) };
        let Some(order) = orders.pop() else { continue };
        let job = match &order {
            ToDatacenter::Submit(placement) => Some(placement.job),
            _ => None,
        };
        match completed.and_then(|()| frame_of(order)) {
            Ok(frame) => permit.send(Ok(frame)),
            Err(why) => {
                let job = job.map(tracing::field::display);
                tracing::warn!(job, why, "an order can never be sent, and is left out");
            }
        }
    }
}

fn frame_of(order: ToDatacenter) -> Result<GateFrame, String> {
    let frame = down_out(order);
    match frame.encoded_len() {
        bytes if bytes > MAX_ORDER_BYTES => {
            Err(format!("it has {bytes} bytes, and a datacenter takes {MAX_ORDER_BYTES} at a time"))
        }
        _ => Ok(frame),
    }
}

/// The hello, or none if the datacenter has gone.
async fn first_frame(frames: &mut Streaming<DatacenterFrame>, out: &Out) -> Result<Option<Frame>, Status> {
    let first = tokio::select! {
        () = out.closed() => return Ok(None),
        first = timeout(HELLO_WITHIN, frames.message()) => first,
    };
    let late =
        |_| status::of(Code::DeadlineExceeded, RefusalKind::Invalid.code(), "no hello came within 10 s; say it first");
    let Some(first) = first.map_err(late)?.map_err(status::undecodable)? else { return Ok(None) };
    checked(first).map(Some)
}

fn checked(frame: DatacenterFrame) -> Result<Frame, Status> {
    up_in(frame).map_err(|error| status::malformed(&error))
}

/// Waits until this gate leads. False if the datacenter has gone meanwhile; it says nothing before it is welcomed.
async fn leads(engine: &GateEngine, frames: &mut Streaming<DatacenterFrame>, out: &Out) -> Result<bool, Status> {
    let mut view = engine.leader_view().subscribe();
    let leading = view.wait_for(|view| matches!(view, LeaderView::Leading { .. }));
    tokio::select! {
        leading = leading => leading.map(|_| true).map_err(|_| closed()),
        () = out.closed() => Ok(false),
        frame = frames.message() => match frame.map_err(status::undecodable)? {
            Some(_) => Err(status::invalid("message", "wait for the welcome before you report".into())),
            None => Ok(false),
        },
    }
}

fn closed() -> Status {
    status::of(Code::Unavailable, "stream_closed", "this gate leads no longer, or has closed the stream; dial again")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use crate::cluster::{HandoverError, Heir, Leadership, OwnStanding, SeatLook, SoleLeader};
    use crate::engine::{EngineStart, Pacing};
    use crate::gate::GateStart;
    use onward_core::fence::GateEpoch;
    use onward_core::fence::Term;
    use onward_core::gate::message::Placement;
    use onward_core::ids::JobId;
    use onward_core::input::Submission;
    use onward_core::job::Draft;
    use onward_core::job::draft::WorkflowDraft;
    use onward_core::payload::{Digest, Payload};
    use onward_core::settings::Settings;
    use onward_log::{Log, MemoryLog};
    use onward_proto::v1::gate_frame::Message;

    fn start(log: impl FnMut() -> Result<Box<dyn Log>, onward_log::Error> + Send + 'static) -> GateStart {
        GateStart {
            rules: Settings::default().check().expect("the defaults are in range"),
            id: 1,
            log: Box::new(log),
            leadership: Box::new(SoleLeader),
            heirs: None,
            snapshot_every: EngineStart::SNAPSHOT_EVERY,
            pacing: Pacing::default(),
            hang_after: EngineStart::HANG_AFTER,
        }
    }

    fn engine() -> GateEngine {
        let log = MemoryLog::new();
        GateEngine::start(start(move || Ok(Box::new(log.clone()) as Box<dyn Log>)))
            .expect("a log in memory can be opened")
    }

    fn submit(workflows: usize, payload: &Payload) -> ToDatacenter {
        let workflow = WorkflowDraft { kind: "k".into(), payload: payload.clone(), ..WorkflowDraft::default() };
        ToDatacenter::Submit(Box::new(Placement {
            job: JobId::from_u128(1),
            epoch: GateEpoch { n: 1, gate: 1 },
            again: false,
            waited: Duration::ZERO,
            draft: Draft { workflows: vec![workflow; workflows], ..Draft::default() },
        }))
    }

    /// The two are a payload that was lost, and a job that was taken by a gate whose datacenters took more at a time.
    #[tokio::test]
    async fn an_order_that_can_never_be_sent_stands_in_the_way_of_none() {
        let engine = engine();
        let (stream, _) = engine.open_stream(Name::new("dc-a").expect("a name"));
        let small = Payload::Inline((*b"1").into());
        let mebibyte = Payload::Inline(vec![b'1'; 1 << 20].into());
        let lost = submit(1, &Payload::stored(Digest([7; 32]), 5_000));
        let all = [lost, submit(33, &mebibyte), submit(31, &mebibyte), submit(1, &small)];
        let mut orders = Orders::of(all);
        let (out, mut frames) = channel(FRAMES_AHEAD);
        let ended = send_orders(&stream, &mut orders, &out).await.expect_err("nobody has more to say");
        assert_eq!(ended.code(), Code::Unavailable);
        drop(out);
        let mut sent = Vec::new();
        while let Some(Ok(GateFrame { message: Some(Message::Submit(placement)) })) = frames.recv().await {
            sent.push(placement.draft.map_or(0, |draft| draft.workflows.len()));
        }
        assert_eq!(sent, [31, 1]);
        engine.stop();
    }

    /// Sees the seat unless it is told that the storage is away.
    struct CutOffWhenTold(Arc<AtomicBool>);

    impl Leadership for CutOffWhenTold {
        fn look(&mut self, own: OwnStanding) -> SeatLook {
            match self.0.load(Ordering::Relaxed) {
                true => SeatLook::Unseen,
                false if own.is_caught_up => SeatLook::Try,
                false => SeatLook::Follow { term: Term::default(), leader: None },
            }
        }

        fn hand_over(&mut self, _term: Term, _heir: &Heir) -> Result<(), HandoverError> {
            Err(HandoverError::Alone)
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_gate_that_is_cut_off_from_its_storage_does_not_say_that_it_leads() {
        let (log, is_away) = (MemoryLog::new(), Arc::new(AtomicBool::new(false)));
        let (theirs, away) = (log.clone(), is_away.clone());
        let started = start(move || match away.load(Ordering::Relaxed) {
            true => Err(onward_log::Error::Unknown { cause: "it is away".into() }),
            false => Ok(Box::new(theirs.clone()) as Box<dyn Log>),
        });
        let (seat_ttl, gap_after) = (Duration::from_millis(600), Duration::from_millis(599));
        let short = Settings { seat_ttl, gap_after, ..Settings::default() };
        let engine = GateEngine::start(GateStart {
            rules: short.check().expect("a seat may be short"),
            pacing: Pacing {
                ask_again: Duration::from_millis(1),
                term_every: Duration::from_millis(10),
                ..Pacing::default()
            },
            leadership: Box::new(CutOffWhenTold(is_away.clone())),
            ..started
        })
        .expect("a log in memory can be opened");
        let mut view = engine.leader_view().subscribe();
        let leads = |view: &LeaderView| matches!(view, LeaderView::Leading { .. });
        view.wait_for(leads).await.expect("it leads");
        is_away.store(true, Ordering::Relaxed);
        log.doubt(true);
        let job = Submission { id: engine.new_job_id(), draft: Draft::of_kind("k", *b"1") };
        assert!(engine.submit(vec![job]).await.is_err());
        view.wait_for(|view| matches!(view, LeaderView::CutOff { .. })).await.expect("it does not know who leads");
        is_away.store(false, Ordering::Relaxed);
        log.doubt(false);
        view.wait_for(leads).await.expect("it leads again");
        engine.stop();
    }
}
