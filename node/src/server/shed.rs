//! What is turned away while the node has too much to do, before anything else is done about it.
//!
//! Each route has a class, and each level of load sheds some of them: busy sheds telemetry, stressed also submissions,
//! overloaded everything but control. Control is what ends load, or tells of it, and is never shed.

use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use onward_core::health::overload::{LoadClass, OverloadLevel, OverloadReason, sheds};

use crate::api::problem::ProblemResponse;
use crate::engine::{Engine, Stats};
use crate::grpc;

/// The class of each route for a node under load. The one table of it: a route that is not here is one that nobody
/// thought of.
pub(super) fn class_of(method: &Method, path: &str) -> Option<LoadClass> {
    use LoadClass::{Control, Other, Submission, Telemetry};
    let is_get = method == Method::GET || method == Method::HEAD;
    Some(match path {
        "/livez" | "/readyz" | "/startupz" | "/status" => Control,
        "/metrics" | "/v1/stats" | "/v1/jobs/{id}/events" => Telemetry,

        // Under the same path as its list.
        "/v1/jobs" if is_get => Other,
        "/v1/jobs" | "/v1/jobs/batch" => Submission,
        // These make new jobs like old ones.
        "/v1/jobs/{id}/retry" | "/v1/dead-letters/replay" => Submission,
        "/onward.v1.JobService/{method}" => Submission,

        "/v1/leases/beat" | "/v1/leases/{receipt}/beat" => Control,
        "/v1/leases/settle"
        | "/v1/leases/{receipt}/succeed"
        | "/v1/leases/{receipt}/fail"
        | "/v1/leases/{receipt}/release" => Control,
        // Without it an attempt that was handed out cannot begin.
        "/v1/leases/{receipt}/inputs/{workflow}" => Control,
        "/v1/leases/{receipt}/request-extension" | "/v1/jobs/{id}/extend" => Control,
        "/v1/jobs/{id}/cancel" | "/v1/jobs/cancel" | "/v1/dead-letters/drop" => Control,
        // The call may be what takes the load off this node.
        "/v1/leader/transfer" => Control,
        "/v1/nodes/{id}/drain" | "/v1/nodes/{id}/undrain" | "/v1/workers/{id}/goodbye" => Control,
        "/v1/queues/{name}/pause" | "/v1/queues/{name}/resume" => Control,
        // These end load, or may.
        "/v1/schedules/{name}/pause" => Control,
        "/v1/schedules/{name}" if method == Method::DELETE => Control,
        "/v1/schedules/{name}" if method == Method::PUT => Submission,
        "/v1/schedules/{name}/resume" | "/v1/schedules/{name}/run-now" => Submission,
        "/v1/schedules" | "/v1/schedules/{name}" | "/v1/schedules/{name}/records" => Other,
        // Beats and results come over it. What is handed out there is the machine's to say.
        "/onward.v1.WorkerService/{method}" => Control,
        // Decisions, and what they are made of, come over it.
        "/onward.v1.GateService/{method}" => Control,

        // Output of attempts is the first thing that can wait.
        "/v1/leases/{receipt}/output" => Telemetry,
        "/v1/jobs/{id}/attempts/{n}/output" => Other,
        "/v1/leases" | "/v1/backup" => Other,
        "/v1/jobs/{id}" | "/v1/jobs/{id}/ledger" | "/v1/jobs/{id}/explain" | "/v1/dead-letters" => Other,
        "/v1/queues" | "/v1/nodes" | "/v1/nodes/{id}" | "/v1/datacenters" => Other,
        "/" | "/openapi.json" => Other,
        _ => return None,
    })
}

pub(super) async fn shed(State(engine): State<Engine>, request: Request, next: Next) -> Response {
    let level = engine.load();
    if level == OverloadLevel::Normal {
        return next.run(request).await;
    }
    // Paths that do not exist are answered as such.
    let Some(path) = request.extensions().get::<MatchedPath>().cloned() else { return next.run(request).await };
    let class = class_of(request.method(), path.as_str()).unwrap_or(LoadClass::Other);
    let Some(text) = refused(&engine, class) else { return next.run(request).await };
    if path.as_str().starts_with("/onward.") {
        return grpc::overloaded(text);
    }
    ProblemResponse::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", text).into_response()
}

/// The reason why a call of this class is turned away now, if it is; that is counted.
pub(crate) fn refused(engine: &Engine, class: LoadClass) -> Option<String> {
    let level = engine.load();
    if !sheds(level, class) {
        return None;
    }
    count(engine.stats(), class);
    Some(refusal(level, engine.load_reason(), class))
}

fn count(stats: &Stats, class: LoadClass) {
    match class {
        LoadClass::Telemetry => stats.shed_telemetry.add(1),
        LoadClass::Submission => stats.shed_submissions.add(1),
        LoadClass::Control | LoadClass::Other => stats.shed_other.add(1),
    }
}

pub(super) fn refusal(level: OverloadLevel, reason: OverloadReason, class: LoadClass) -> String {
    let what = match class {
        LoadClass::Telemetry => "this is left out until there is time for it",
        LoadClass::Submission => "new jobs are not taken; those that were are worked on",
        LoadClass::Control | LoadClass::Other => "only beats, outcomes, cancels and other control is taken",
    };
    format!("this node is {} ({}): {what}; try again later", level.code(), reason.code())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api;
    use crate::server::pages;

    /// Every route of this node, as it is described or listed.
    fn routes() -> Vec<(Method, String)> {
        let described = api::openapi::openapi(utoipa::openapi::OpenApi::default());
        let paths = described["paths"].as_object().unwrap().iter();
        let described = paths.flat_map(|(path, methods)| {
            let methods = methods.as_object().unwrap().keys();
            methods.map(|method| (method.to_uppercase().parse().unwrap(), path.clone())).collect::<Vec<_>>()
        });
        let pages = pages::all().into_iter().map(|(path, _)| (Method::GET, path.to_owned()));
        let services = ["/onward.v1.WorkerService/{method}", "/onward.v1.JobService/{method}"];
        let services = services.map(|path| (Method::POST, path.to_owned()));
        described.chain(pages).chain(services).collect()
    }

    #[test]
    fn every_route_has_a_class() {
        let routes = routes();
        assert!(routes.len() > 35, "{routes:?}");
        let without: Vec<_> = routes.iter().filter(|(method, path)| class_of(method, path).is_none()).collect();
        assert!(without.is_empty(), "say in `class_of` what these are to a node under load: {without:?}");
        assert_eq!(class_of(&Method::GET, "/v1/new"), None);
    }

    #[test]
    fn what_ends_load_or_tells_of_it_is_never_shed() {
        let control = ["beat", "settle", "succeed", "fail", "release", "extension", "cancel", "extend", "drain"];
        for (method, path) in routes() {
            let ends_load = control.iter().any(|word| path.contains(word)) && method == Method::POST;
            let tells = path.ends_with('z') || path == "/status";
            if ends_load || tells {
                assert_eq!(class_of(&method, &path), Some(LoadClass::Control), "{method} {path}");
            }
        }
    }
}
