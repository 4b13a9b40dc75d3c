//! What is outside `/v1`: probes, status, metrics, the description of the API, and a first page.

use core::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::extract::{FromRef, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use onward_core::manager::{ManagerView, SeatState};
use onward_core::time::Wall;
use serde::Serialize;
use serde_json::json;
use tokio::time::timeout;

use super::accept::Counts;
use crate::api::instant::At;
use crate::api::json::Json;
use crate::api::may::{May, Read};
use crate::api::{self, App};

/// A node whose machine takes longer to answer does not serve.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(super) struct Pages {
    pub(super) app: App,
    pub(super) about: Arc<About>,
}

#[derive(Debug)]
pub(super) struct About {
    pub(super) started_at: Wall,
    pub(super) listen: String,
    /// The name of the data folder, without the way to it.
    pub(super) data: String,
    pub(super) counts: Arc<Counts>,
}

impl FromRef<Pages> for App {
    fn from_ref(pages: &Pages) -> Self {
        pages.app.clone()
    }
}

pub(super) fn routes() -> Router<Pages> {
    Router::new()
        .route("/", get(index))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/startupz", get(startupz))
        .route("/status", get(status))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(openapi))
}

async fn index() -> Html<&'static str> {
    Html(include_str!("index.html"))
}

async fn openapi() -> Response {
    Json(api::openapi()).into_response()
}

fn probe(answer: Result<(), String>) -> Response {
    match answer {
        Ok(()) => Json(json!({ "status": "ok" })).into_response(),
        Err(why) => {
            (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "status": "unavailable", "reason": why }))).into_response()
        }
    }
}

/// That this is answered is all that it says: a restart would help only if it were not.
async fn livez() -> Response {
    probe(Ok(()))
}

/// Does this node accept calls, and store them durably?
async fn readyz(State(app): State<App>) -> Response {
    if *app.draining.borrow() {
        return probe(Err("the node is draining".into()));
    }
    probe(machine(&app).await.map(drop))
}

/// The log was replayed and the seat taken before the node began to listen.
async fn startupz() -> Response {
    probe(Ok(()))
}

/// What the machine says about itself, or why it does not.
async fn machine(app: &App) -> Result<(ManagerView, u64), String> {
    if let Some(trouble) = app.engine.trouble() {
        return Err(trouble);
    }
    let read = app.engine.read(|view| (view.manager.view(), view.manager.state().term().get()));
    match timeout(ANSWER_WITHIN, read).await {
        Ok(answer) => answer.map_err(|refused| refused.to_string()),
        Err(_) => Err(format!("the machine did not answer within {ANSWER_WITHIN:?}")),
    }
}

#[derive(Serialize)]
struct Status<'a> {
    version: &'static str,
    started_at: At,
    listen: &'a str,
    data: &'a str,
    draining: bool,
    /// Null while no machine answers.
    manager: Option<ManagerStatus>,
    trouble: Option<String>,
}

#[derive(Serialize)]
struct ManagerStatus {
    seat: &'static str,
    term: u64,
    jobs: usize,
    open_jobs: usize,
    dead_letters: usize,
    workers: usize,
    verdict: &'static str,
    reason: &'static str,
}

async fn status(_: May<Read>, State(pages): State<Pages>) -> Response {
    let (manager, trouble) = match machine(&pages.app).await {
        Ok((view, term)) => (
            Some(ManagerStatus {
                seat: seat_word(view.seat),
                term,
                jobs: view.jobs,
                open_jobs: view.open_jobs,
                dead_letters: view.dead_letters,
                workers: view.workers,
                verdict: view.judgement.verdict.code(),
                reason: view.judgement.reason.code(),
            }),
            None,
        ),
        Err(trouble) => (None, Some(trouble)),
    };
    let about = &pages.about;
    Json(Status {
        version: env!("CARGO_PKG_VERSION"),
        started_at: At(about.started_at),
        listen: &about.listen,
        data: &about.data,
        draining: *pages.app.draining.borrow(),
        manager,
        trouble,
    })
    .into_response()
}

const fn seat_word(seat: SeatState) -> &'static str {
    match seat {
        SeatState::NeverTaken => "never_taken",
        SeatState::Unconfirmed => "unconfirmed",
        SeatState::Settling => "settling",
        SeatState::Serving => "serving",
        SeatState::Lost => "lost",
    }
}

async fn metrics(_: May<Read>, State(pages): State<Pages>) -> Response {
    let view = machine(&pages.app).await.ok();
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], render(&pages, view)).into_response()
}

fn render(pages: &Pages, view: Option<(ManagerView, u64)>) -> String {
    let mut text = String::new();
    let mut metric = |kind: &str, name: &str, values: &[(String, u64)]| {
        // Writing into a string cannot fail.
        let _ = writeln!(text, "# TYPE onward_{name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(text, "onward_{name}{labels} {value}");
        }
    };
    let alone = |value: u64| [(String::new(), value)];
    metric("gauge", "ready", &alone(u64::from(view.is_some())));
    for (name, value) in pages.app.engine.stats().listed() {
        match name {
            "last_commit_us" => metric("gauge", name, &alone(value)),
            _ => metric("counter", &format!("{name}_total"), &alone(value)),
        }
    }
    let outputs = pages.app.outputs.stats();
    for (name, counter) in [
        ("output_written_bytes_total", &outputs.written_bytes),
        ("output_dropped_bytes_total", &outputs.dropped_bytes),
        ("output_removed_total", &outputs.removed),
        ("output_errors_total", &outputs.errors),
    ] {
        metric("counter", name, &alone(counter.get()));
    }
    metric("gauge", "output_kept_bytes", &alone(outputs.kept_bytes.get()));
    metric("gauge", "output_kept_files", &alone(outputs.kept_files.get()));
    let counts = &pages.about.counts;
    for (name, counter) in [
        ("http_connections_accepted_total", &counts.accepted),
        ("http_connections_refused_total", &counts.refused),
        ("http_connections_failed_total", &counts.failed),
    ] {
        metric("counter", name, &alone(counter.load(Ordering::Relaxed)));
    }
    let Some((view, term)) = view else { return text };
    for (name, value) in [
        ("term", term),
        ("jobs", view.jobs as u64),
        ("open_jobs", view.open_jobs as u64),
        ("dead_letters", view.dead_letters as u64),
        ("workers", view.workers as u64),
    ] {
        metric("gauge", name, &alone(value));
    }
    let refusals: Vec<_> =
        view.refusals.listed().map(|(kind, count)| (format!("{{code=\"{}\"}}", kind.code()), count)).collect();
    metric("counter", "refusals_total", &refusals);
    text
}
