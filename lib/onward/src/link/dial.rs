//! Connections to a manager.

use core::time::Duration;

use onward_api::cluster::LEADER;
use onward_proto::v1::worker_service_client::WorkerServiceClient;
use onward_proto::v1::{FetchInputAnswer, FetchInputRequest, ManagerFrame, WorkerFrame};
use onward_proto::{MAX_ASSIGNMENT_BYTES, MAX_FRAME_BYTES};
use tokio::sync::mpsc::{Sender, channel};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};

use crate::address::{NodeAddress, NodeAddresses, PING_ANSWERED_WITHIN, PING_EVERY};

/// Payload and inputs may be large together, for a manager that knows no references yet.
const MAX_HEARD_BYTES: usize = MAX_ASSIGNMENT_BYTES;
/// A manager that leads nobody and knows of no leader says so within this; a frozen one is found out by pings.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// A session, and the connection that it is on.
pub(super) struct OpenStream {
    pub(super) out: Sender<WorkerFrame>,
    pub(super) frames: Streaming<ManagerFrame>,
    pub(super) service: Service,
    /// Whom it is with.
    pub(super) place: NodeAddress,
}

/// Calls to a manager, with what is needed to be let in.
#[derive(Clone)]
pub(super) struct Service {
    client: WorkerServiceClient<Channel>,
    token: Option<MetadataValue<Ascii>>,
}

impl Service {
    pub(super) async fn fetch_input(&mut self, asked: FetchInputRequest) -> Result<FetchInputAnswer, Status> {
        let request = self.request(asked);
        Ok(self.client.fetch_input(request).await?.into_inner())
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.clone());
        }
        request
    }
}

/// A session with whoever leads, or is reached first: each of the addresses is tried once.
pub(super) async fn dial(places: NodeAddresses) -> Result<OpenStream, Status> {
    let mut tries = places.round();
    loop {
        let place = places.next();
        let late = |_| Err(Status::unavailable(format!("no answer within {ANSWERED_WITHIN:?}")));
        let opened = timeout(ANSWERED_WITHIN, open(&places, place.clone())).await.unwrap_or_else(late);
        let Err(status) = opened else { return opened };
        places.leave(&place);
        tries -= 1;
        // Who is not let in is not let in elsewhere either.
        if tries == 0 || status.code() != Code::Unavailable {
            return Err(status);
        }
        tracing::debug!(place = place.authority(), %status, "no session; the next address is tried");
    }
}

async fn open(places: &NodeAddresses, place: NodeAddress) -> Result<OpenStream, Status> {
    let unreachable = |error: &dyn std::fmt::Display| Status::unavailable(error.to_string());
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", place.authority()))
        .map_err(|error| unreachable(&error))?
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_ANSWERED_WITHIN)
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(8 << 20);
    let token = place.token().map(|token| MetadataValue::try_from(format!("Bearer {token}"))).transpose();
    let token = token.map_err(|_| Status::unauthenticated("the token has characters that no token has"))?;
    let to = place.clone();
    let connector = tower::service_fn(move |_| {
        let place = to.clone();
        async move { place.open().await.map(hyper_util::rt::TokioIo::new) }
    });
    let connected = endpoint.connect_with_connector(connector).await.map_err(|error| unreachable(&deepest(&error)))?;
    let client = WorkerServiceClient::new(connected)
        .max_decoding_message_size(MAX_HEARD_BYTES)
        .max_encoding_message_size(MAX_FRAME_BYTES);
    let mut service = Service { client, token };
    let (out, frames) = channel(1);
    let request = service.request(ReceiverStream::new(frames));
    let answer = service.client.session(request).await?;
    if let Some(Ok(hint)) = answer.metadata().get(LEADER).map(|hint| hint.to_str()) {
        places.learn(hint);
    }
    let frames = answer.into_inner();
    Ok(OpenStream { out, frames, service, place })
}

fn deepest(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
