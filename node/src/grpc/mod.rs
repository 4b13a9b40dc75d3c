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
//! Who may call is decided by a [`CheckAccess`], before anything of the body is read.

mod jobs;
mod session;
mod status;
mod submissions;
mod unanswered;

use std::sync::Arc;

use onward_core::refusal::RefusalKind;
use onward_proto::MAX_FRAME_BYTES;
use onward_proto::v1::job_service_server::JobServiceServer;
use onward_proto::v1::worker_service_server::WorkerServiceServer;
use tokio::sync::watch;
use tonic::service::interceptor::InterceptedService;
use tonic::{Request, Status};

use crate::engine::Engine;
use crate::outputs::Outputs;

/// Given the bearer token of a call, if it has one, and the scope that it needs (`work` or `submit`).
pub type CheckAccess = Arc<dyn Fn(Option<&str>, &'static str) -> Result<(), Status> + Send + Sync>;

/// Both services, without a fallback, and with room for so many sessions. Streams of submissions end once `draining`.
pub fn routes_for(
    engine: Engine,
    outputs: Outputs,
    draining: watch::Receiver<bool>,
    check: CheckAccess,
    max_sessions: usize,
) -> axum::Router {
    let workers = WorkerServiceServer::new(session::Workers::new(engine.clone(), outputs, max_sessions))
        .max_decoding_message_size(MAX_FRAME_BYTES);
    let jobs = JobServiceServer::new(jobs::Jobs::new(engine, draining)).max_decoding_message_size(MAX_FRAME_BYTES);
    let workers = InterceptedService::new(workers, guard(check.clone(), "work"));
    let jobs = InterceptedService::new(jobs, guard(check, "submit"));
    axum::Router::new()
        .route_service("/onward.v1.WorkerService/{method}", workers)
        .route_service("/onward.v1.JobService/{method}", jobs)
}

/// The answer to a call that is shed.
pub(crate) fn overloaded(text: String) -> axum::response::Response {
    status::of(tonic::Code::Unavailable, RefusalKind::Overloaded.code(), text).into_http()
}

fn guard(
    check: CheckAccess,
    scope: &'static str,
) -> impl FnMut(Request<()>) -> Result<Request<()>, Status> + Clone + Send + Sync {
    move |mut request| {
        let token = bearer(&request);
        check(token, scope)?;
        let by_token = ByToken(token.is_some());
        request.extensions_mut().insert(by_token);
        Ok(request)
    }
}

/// The caller has shown a token, which was checked, and is not merely somebody who reaches the port.
#[derive(Clone, Copy, Debug)]
struct ByToken(bool);

fn bearer(request: &Request<()>) -> Option<&str> {
    let (scheme, token) = request.metadata().get("authorization")?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
