//! A datacenter's stream: frames in, orders out, until either side closes.
//!
//! Who speaks is proved before anything of the body is read ([`super::peers`]), and that it speaks for the datacenter that
//! it names is checked once more by the machine. A gate that follows lets a datacenter in all the same and hears it once it
//! leads: so when the leader goes, the datacenters are there already.
//!
//! **Flow control** is HTTP/2's own, both ways, as for a worker's session. A datacenter that does not read is cut off by its
//! outbox, and what it is owed is sent again when it is back.

use std::sync::Arc;
use std::time::Duration;

use onward_core::gate::message::Frame;
use onward_core::ids::Name;
use onward_core::refusal::RefusalKind;
use onward_proto::MAX_FRAME_BYTES;
use onward_proto::gate::{down_out, up_in};
use onward_proto::v1::gate_service_server::{GateService, GateServiceServer};
use onward_proto::v1::{DatacenterFrame, GateFrame};
use tokio::sync::mpsc::{Sender, channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};

use super::peers::PeerTrust;
use super::streams::Orders;
use super::{DatacenterStream, GateEngine};
use crate::api::access::Connection;
use crate::clock;
use crate::cluster::leader::LeaderView;
use crate::grpc::status;

/// Who connects and says nothing holds a place that another could have.
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
        let connection = request.extensions().get::<Connection>();
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
        Ok(Response::new(ReceiverStream::new(frames)))
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
    if !leads(engine, frames, out).await? {
        return Ok(());
    }
    let (stream, mut orders) = engine.open_stream(datacenter);
    stream.say(hello);
    loop {
        tokio::select! {
            () = out.closed() => return Ok(()),
            frame = frames.message() => match frame.map_err(status::undecodable)? {
                Some(frame) => stream.say(checked(frame)?),
                None => return Ok(()),
            },
            ended = tell(&stream, &mut orders, out) => return ended,
        }
    }
}

/// Sends orders, each whole. May be given up at any time, and begun again.
async fn tell(stream: &DatacenterStream, orders: &mut Orders, out: &Out) -> Result<(), Status> {
    loop {
        let order = orders.next().await.map_err(|_| closed())?;
        // If it cannot be read now, the datacenter dials again and is sent what it is owed then.
        stream.complete(order).await.map_err(|refused| status::refused(&refused))?;
        let Ok(permit) = out.reserve().await else { return Ok(()) };
        if let Some(order) = orders.pop() {
            permit.send(Ok(down_out(order)));
        }
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
