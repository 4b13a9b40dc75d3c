//! gRPC: sessions of workers, and jobs in large numbers.
//!
//! [`routes_for`] gives a router to be merged with the HTTP API's on the same port. What the server around it has to see to:
//!
//! - HTTP/2, also without TLS (`hyper_util::server::conn::auto`), and TCP_NODELAY: a session is a conversation of small
//!   frames.
//! - HTTP/2 keepalive, such as an interval of 20 s and a timeout of 10 s. Without it a peer that vanished without a
//!   word is found only by the machine's probes.
//! - Windows of about 1 MiB for a stream and 4 MiB for a connection: the default of 64 KiB is less than a full frame.
//! - No time limit on requests to `/onward.v1.WorkerService/Session` and `/onward.v1.JobService/SubmitStream`, and no
//!   compression.
//!
//! Who may call is decided before anything of the body is read, by the [`Access`] that the server has put into the
//! request; without one nobody may. A stream ends with the access that it was opened with.

mod jobs;
mod session;
pub(crate) mod status;
mod submissions;
mod unanswered;

use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use onward_api::cluster::CallFate;
use onward_core::refusal::RefusalKind;
use onward_proto::MAX_FRAME_BYTES;
use onward_proto::v1::job_service_server::JobServiceServer;
use onward_proto::v1::worker_service_server::WorkerServiceServer;
use tokio::sync::watch;
use tonic::service::interceptor::InterceptedService;
use tonic::{Code, Request, Status};

use crate::api::access::{Access, Scope};
use crate::api::problem::ProblemResponse;
use crate::engine::Engine;
use crate::outputs::Outputs;

/// Both services, without a fallback, and with room for so many sessions. Streams of submissions end once `draining`.
pub fn routes_for(
    engine: Engine,
    outputs: Outputs,
    draining: watch::Receiver<bool>,
    max_sessions: usize,
) -> axum::Router {
    let workers = WorkerServiceServer::new(session::WorkerSessions::new(engine.clone(), outputs, max_sessions))
        .max_decoding_message_size(MAX_FRAME_BYTES);
    let jobs = JobServiceServer::new(jobs::Jobs::new(engine, draining)).max_decoding_message_size(MAX_FRAME_BYTES);
    let workers = InterceptedService::new(workers, guard(Scope::Work));
    let jobs = InterceptedService::new(jobs, guard(Scope::Submit));
    axum::Router::new()
        .route_service("/onward.v1.WorkerService/{method}", workers)
        .route_service("/onward.v1.JobService/{method}", jobs)
}

pub(crate) fn is_call(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// The answer to a call that is not let in, or that nobody can answer now.
pub(crate) fn refused(problem: &ProblemResponse) -> axum::response::Response {
    status::problem(problem).into_http()
}

/// The answer to a call that is shed.
pub(crate) fn overloaded(text: String) -> axum::response::Response {
    status::unavailable(RefusalKind::Overloaded.code(), text, CallFate::No).into_http()
}

/// The answer to a message that is too large, or did not come as a whole.
pub(crate) fn unreadable(error: &(dyn core::error::Error + Send + Sync + 'static)) -> axum::response::Response {
    let text = format!("not a frame of at most {MAX_FRAME_BYTES} bytes: {error}");
    status::invalid("frame", text).into_http()
}

fn guard(scope: Scope) -> impl FnMut(Request<()>) -> Result<Request<()>, Status> + Clone + Send + Sync {
    move |request| {
        let Some(access) = request.extensions().get::<Access>() else {
            let text = "send a token of this node: `authorization: Bearer <token>`";
            return Err(status::of(Code::Unauthenticated, "unauthorized", text));
        };
        access.need(scope).map_err(|problem| status::problem(&problem))?;
        Ok(request)
    }
}

/// The access that [`guard`] has checked.
fn access_of<T>(request: &Request<T>) -> Access {
    request.extensions().get::<Access>().expect("nothing comes here without it").clone()
}
