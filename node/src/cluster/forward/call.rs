//! A call that may be sent more than once.

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::header::{self, HeaderName};
use axum::http::request::Parts;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderValue, Method, Uri};
use axum::response::Response;
use http_body::Body as _;
use http_body_util::{BodyExt, Limited};
use onward_api::cluster::FORWARDED;
use onward_proto::MAX_FRAME_BYTES;

use super::links::ConnectionKind;
use super::repeat::is_repeatable;
use super::target::NodeTargetParts;
use crate::byte_room::{ByteRoom, TakenRoom};
use crate::grpc;

/// Size of all bodies together that are kept in case they have to be sent again.
const MAX_KEPT_BYTES: usize = 128 << 20;
/// A frame of gRPC with what is in front of it.
const MAX_CALL_BYTES: usize = MAX_FRAME_BYTES + 5;

/// Headers that belong to a connection, and not to what is said on it.
const OF_CONNECTION: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::HOST,
    header::EXPECT,
    // Checked here, against the name by which this node was called; the leader has another.
    header::ORIGIN,
];

/// The room for bodies that are kept.
pub(super) fn room() -> ByteRoom {
    ByteRoom::of(MAX_KEPT_BYTES)
}

/// A request as it came, to be carried out here or sent to the leader.
pub(super) struct ForwardedCall {
    parts: Parts,
    /// The path with the part of it that routers hide.
    path: PathAndQuery,
    body: CallBody,
}

enum CallBody {
    Kept {
        bytes: Bytes,
        _room: Option<TakenRoom>,
    },
    /// A body that is sent as it comes, and once: none after that.
    Passing(Option<Body>),
}

impl ForwardedCall {
    /// Bodies that are short and whole are kept, if there is room for them. The API's were read within their limits
    /// before they come here. Refused if there is more of a message than there may be, or not all of it.
    pub(super) async fn of(request: Request, prefix: &str, room: &ByteRoom) -> Result<Self, Response> {
        let (parts, body) = request.into_parts();
        let path = whole_path(prefix, &parts.uri);
        if body.is_end_stream() {
            return Ok(Self { parts, path, body: CallBody::Kept { bytes: Bytes::new(), _room: None } });
        }
        let most = match body.size_hint().exact() {
            _ if lane_of(path.path()) == ConnectionKind::Streams => None,
            Some(bytes) => usize::try_from(bytes).ok(),
            None => Some(MAX_CALL_BYTES),
        };
        let Some((most, mut place)) = most.and_then(|most| Some((most, room.take(most)?))) else {
            return Ok(Self { parts, path, body: CallBody::Passing(Some(body)) });
        };
        // One that is in memory already is not copied by this.
        let read = Limited::new(body, most).collect().await;
        let bytes = read.map_err(|error| grpc::unreadable(&*error))?.to_bytes();
        place.shrink_to(bytes.len());
        Ok(Self { parts, path, body: CallBody::Kept { bytes, _room: Some(place) } })
    }

    pub(super) fn is_forwarded(&self) -> bool {
        self.parts.headers.contains_key(FORWARDED)
    }

    pub(super) fn is_grpc(&self) -> bool {
        grpc::is_call(&self.parts.headers)
    }

    pub(super) fn lane(&self) -> ConnectionKind {
        lane_of(self.path.path())
    }

    pub(super) const fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Whether all of the call is still there.
    pub(super) const fn is_whole(&self) -> bool {
        matches!(self.body, CallBody::Kept { .. } | CallBody::Passing(Some(_)))
    }

    /// Whether the call may be sent again although it may have been carried out.
    pub(super) fn is_repeatable(&self) -> bool {
        match &self.body {
            CallBody::Passing(_) => false,
            CallBody::Kept { bytes, .. } => {
                let Parts { method, headers, .. } = &self.parts;
                is_repeatable(method, self.path.path(), headers, bytes)
            }
        }
    }

    /// The request as it came, for this node itself.
    pub(super) fn local_request(&mut self) -> Request {
        Request::from_parts(self.parts.clone(), self.body.take())
    }

    /// The request for the leader, with a mark that it was forwarded by `own`.
    pub(super) fn forwarded_request(&mut self, target: &NodeTargetParts, own: &HeaderValue) -> Request {
        let mut request = Request::new(self.body.take());
        *request.method_mut() = self.parts.method.clone();
        *request.uri_mut() = target.uri(self.path.clone());
        let mut headers = self.parts.headers.clone();
        remove_of_connection(&mut headers);
        headers.insert(FORWARDED, own.clone());
        *request.headers_mut() = headers;
        request
    }

    /// Whether the call is a poll for work.
    pub(super) fn is_poll(&self) -> bool {
        self.parts.method == Method::POST && self.path.path() == "/v1/leases"
    }

    /// Whether the answer may come much later, and can be had at once.
    pub(super) fn is_waiting(&self) -> bool {
        let has_wait = |query: &str| query.split('&').any(is_wait);
        self.is_poll() || (self.parts.method == Method::GET && self.path.query().is_some_and(has_wait))
    }

    /// A call for a job once it has ended becomes one for the job as it is.
    pub(super) fn stop_waiting(&mut self) {
        let query = self.path.query().unwrap_or("");
        let rest: Vec<&str> = query.split('&').filter(|pair| !is_wait(pair)).collect();
        let path = PathAndQuery::try_from(format!("{}?{}", self.path.path(), rest.join("&")));
        self.path = path.expect("parts of one that was valid");
    }
}

fn is_wait(pair: &str) -> bool {
    pair.starts_with("wait_s=")
}

impl CallBody {
    fn take(&mut self) -> Body {
        match self {
            Self::Kept { bytes, .. } if bytes.is_empty() => Body::empty(),
            Self::Kept { bytes, .. } => Body::from(bytes.clone()),
            Self::Passing(body) => body.take().expect("it is asked for before whether there still is one"),
        }
    }
}

pub(super) fn remove_of_connection(headers: &mut HeaderMap) {
    for name in OF_CONNECTION {
        headers.remove(name);
    }
}

fn lane_of(path: &str) -> ConnectionKind {
    match path {
        "/onward.v1.WorkerService/Session" | "/onward.v1.JobService/SubmitStream" => ConnectionKind::Streams,
        _ => ConnectionKind::Calls,
    }
}

fn whole_path(prefix: &str, uri: &Uri) -> PathAndQuery {
    let seen = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    if prefix.is_empty() {
        return uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    }
    PathAndQuery::try_from(format!("{prefix}{seen}")).expect("parts of one that was valid")
}
