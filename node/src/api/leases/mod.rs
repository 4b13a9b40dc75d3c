//! Leases for workers without a session: ask for work, beat, say how it ended.
//!
//! Everything about a lease carries its receipt. A receipt that we did not write is unknown; one that we did write
//! speaks for the attempt that it names, and the machine says whether that attempt still holds.

mod checked;
mod sending;
mod shape;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use onward_api::lease::{
    Acceptance, BeatAnswerBody, BeatBody, BeatItemAnswer, BeatsAnswer, BeatsBody, DenialBody, ExtensionAnswerBody,
    ExtensionBody, FailBody, GoodbyeAnswer, GoodbyeBody, Leases, OutputBody, PollBody, ReleaseBody, SettleAnswerBody,
    SettleBody, SettleItemAnswer, SucceedBody,
};
use onward_core::grant::Denial;
use onward_core::ids::Name;
use onward_core::message::{Beat, BeatAccepted, ExtensionRequest, Settlement};
use onward_core::refusal::Refusal;
use onward_proto::common::bytes_out;
use onward_proto::worker::Output;

use super::App;
use super::json::Json;
use super::may::{May, Work};
use super::params::WorkerPath;
use super::problem::ProblemResponse;
use super::span;
use crate::engine::EngineRefusal;
use sending::Sending;

pub fn routes() -> Router<App> {
    Router::new()
        .route("/leases", post(poll))
        .route("/leases/beat", post(beat_many))
        .route("/leases/settle", post(settle_many))
        .route("/leases/{receipt}/beat", post(beat))
        .route("/leases/{receipt}/inputs/{workflow}", get(fetch_input))
        .route("/leases/{receipt}/output", post(output))
        .route("/leases/{receipt}/succeed", post(succeed))
        .route("/leases/{receipt}/fail", post(fail))
        .route("/leases/{receipt}/release", post(release))
        .route("/leases/{receipt}/request-extension", post(request_extension))
        .route("/workers/{id}/goodbye", post(goodbye))
}

#[derive(Debug, utoipa::OpenApi)]
#[openapi(
    paths(poll, beat_many, settle_many, beat, fetch_input, output, succeed, fail, release, request_extension, goodbye),
    components(schemas(Leases<'static>, ProblemResponse))
)]
pub struct LeasesApi;

/// Ask for work. Answers as soon as there is some, or with none when the wait is over. If the connection closes before
/// the answer was sent, its leases go back uncounted, unless the poll has an id.
#[utoipa::path(post, path = "/v1/leases", request_body = PollBody,
    responses((status = 200, body = Leases<'static>), (status = "4XX", body = ProblemResponse), (status = 503, body = ProblemResponse)))]
async fn poll(
    May { access, .. }: May<Work>,
    State(app): State<App>,
    Json(body): Json<PollBody>,
) -> Result<Response, ProblemResponse> {
    let by_reference = body.inputs_by_reference.unwrap_or(false);
    let poll = checked::poll(body, access.client(), app.engine.rules())?;
    let answer =
        async { if by_reference { app.engine.poll_by_reference(poll).await } else { app.engine.poll(poll).await } };
    let (leases, delivery) = tokio::select! {
        biased;
        problem = access.revoked() => return Err(problem),
        answer = answer => answer?,
        () = app.drained() => return Ok(Json(Leases { leases: Vec::new() }).into_response()),
    };
    let answer = Leases { leases: leases.iter().map(|lease| shape::lease(lease, &app.receipts)).collect() };
    let body = serde_json::to_vec(&answer).expect("leases are plain data");
    Ok(([(CONTENT_TYPE, "application/json")], Body::new(Sending::new(body, delivery))).into_response())
}

/// The handler is active: renews the lease at once, and keeps what is reported.
#[utoipa::path(post, path = "/v1/leases/{receipt}/beat", request_body = BeatBody,
    params(("receipt" = String, Path)),
    responses((status = 200, body = BeatAnswerBody), (status = "4XX", body = ProblemResponse), (status = 503, body = ProblemResponse)))]
async fn beat(
    _: May<Work>,
    State(app): State<App>,
    Path(receipt): Path<String>,
    Json(body): Json<BeatBody>,
) -> Result<Json<BeatAnswerBody>, ProblemResponse> {
    let beat = checked::beat(app.receipts.read(&receipt)?, body, app.engine.rules())?;
    let accepted = send_beats(&app, vec![beat]).await?.pop().expect("one answer to one beat")?;
    Ok(Json(BeatAnswerBody {
        lease_remaining_ms: span::ms(accepted.lease_remaining),
        cancel: accepted.cancel,
        quiet_allowed_ms: accepted.quiet.map(span::ms),
    }))
}

/// Many beats in one call. Each is answered for itself.
#[utoipa::path(post, path = "/v1/leases/beat", request_body = BeatsBody,
    responses((status = 200, body = BeatsAnswer), (status = "4XX", body = ProblemResponse), (status = 503, body = ProblemResponse)))]
async fn beat_many(
    _: May<Work>,
    State(app): State<App>,
    Json(body): Json<BeatsBody>,
) -> Result<Json<BeatsAnswer>, ProblemResponse> {
    checked::count("beats", body.beats.len(), app.engine.rules())?;
    let mut receipts = Vec::with_capacity(body.beats.len());
    let mut beats = Vec::with_capacity(body.beats.len());
    for item in body.beats {
        let (receipt, body) = item.split();
        beats.push(app.receipts.read(&receipt).and_then(|claim| checked::beat(claim, body, app.engine.rules())));
        receipts.push(receipt);
    }
    let answers = in_place(beats, async |beats| send_beats(&app, beats).await).await?;
    let beats = receipts.into_iter().zip(answers).map(|(receipt, answer)| match answer {
        Ok(accepted) => BeatItemAnswer {
            receipt,
            lease_remaining_ms: Some(span::ms(accepted.lease_remaining)),
            cancel: Some(accepted.cancel),
            quiet_allowed_ms: accepted.quiet.map(span::ms),
            error: None,
        },
        Err(problem) => BeatItemAnswer { receipt, error: Some(problem.into_body()), ..BeatItemAnswer::default() },
    });
    Ok(Json(BeatsAnswer { beats: beats.collect() }))
}

/// An input that the lease has by reference, byte for byte. It is no beat: beat for each that has come. Refused once
/// the attempt has ended or another has its place.
#[utoipa::path(get, path = "/v1/leases/{receipt}/inputs/{workflow}",
    params(("receipt" = String, Path), ("workflow" = String, Path, description = "as in `inputs_by_reference`")),
    responses((status = 200, description = "the result of that workflow", body = Vec<u8>,
            content_type = "application/octet-stream"),
        (status = "4XX", body = ProblemResponse), (status = 503, body = ProblemResponse)))]
async fn fetch_input(
    _: May<Work>,
    State(app): State<App>,
    Path((receipt, workflow)): Path<(String, String)>,
) -> Result<Response, ProblemResponse> {
    let claim = app.receipts.read(&receipt)?;
    // The job may well have a workflow of this name, which is no input of the attempt's.
    let is_no_input = || {
        let problem = ProblemResponse::from(Refusal::UnknownWorkflow);
        let detail =
            format!("the attempt's workflow does not come after `{workflow}`; `inputs_by_reference` names its inputs");
        problem.with_detail(detail)
    };
    let name = Name::new(workflow.clone()).ok_or_else(is_no_input)?;
    let content = app.engine.fetch_input(claim, name).await.map_err(|refused| match refused {
        EngineRefusal::ByMachine(Refusal::UnknownWorkflow) => is_no_input(),
        other => other.into(),
    })?;
    Ok(([(CONTENT_TYPE, "application/octet-stream")], bytes_out(&content)).into_response())
}

/// What the attempt has printed since the last call: kept apart from the log, the last 64 KiB in all. It is no beat.
/// Refused once another has the attempt's place, or its job is archived.
#[utoipa::path(post, path = "/v1/leases/{receipt}/output", request_body = OutputBody,
    params(("receipt" = String, Path)),
    responses((status = 204), (status = "4XX", body = ProblemResponse), (status = 503, body = ProblemResponse)))]
async fn output(
    _: May<Work>,
    State(app): State<App>,
    Path(receipt): Path<String>,
    Json(body): Json<OutputBody>,
) -> Result<StatusCode, ProblemResponse> {
    let output = Output { claim: app.receipts.read(&receipt)?, data: checked::output(body)?, skipped: 0 };
    app.outputs.offer_with_receipt(&app.engine, output).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// It is done, with this result.
#[utoipa::path(post, path = "/v1/leases/{receipt}/succeed", request_body = SucceedBody,
    params(("receipt" = String, Path)),
    responses((status = 200, body = Acceptance), (status = "4XX", body = ProblemResponse), (status = 503, body = ProblemResponse)))]
async fn succeed(
    _: May<Work>,
    State(app): State<App>,
    Path(receipt): Path<String>,
    Json(body): Json<SucceedBody>,
) -> Result<Json<Acceptance>, ProblemResponse> {
    settle(&app, &receipt, || checked::succeed(&body, app.engine.rules())).await
}

/// It failed. It is tried again by the job's retry policy, or ends for good where it is not retryable.
#[utoipa::path(post, path = "/v1/leases/{receipt}/fail", request_body = FailBody,
    params(("receipt" = String, Path)),
    responses((status = 200, body = Acceptance), (status = "4XX", body = ProblemResponse), (status = 503, body = ProblemResponse)))]
async fn fail(
    _: May<Work>,
    State(app): State<App>,
    Path(receipt): Path<String>,
    Json(body): Json<FailBody>,
) -> Result<Json<Acceptance>, ProblemResponse> {
    settle(&app, &receipt, || checked::fail(body, app.engine.rules())).await
}

/// Give it back for somebody else to do. It does not count as an attempt.
#[utoipa::path(post, path = "/v1/leases/{receipt}/release", request_body = ReleaseBody,
    params(("receipt" = String, Path)),
    responses((status = 200, body = Acceptance), (status = "4XX", body = ProblemResponse), (status = 503, body = ProblemResponse)))]
async fn release(
    _: May<Work>,
    State(app): State<App>,
    Path(receipt): Path<String>,
    Json(body): Json<ReleaseBody>,
) -> Result<Json<Acceptance>, ProblemResponse> {
    settle(&app, &receipt, || checked::release(&body, app.engine.rules())).await
}

async fn settle(
    app: &App,
    receipt: &str,
    outcome: impl FnOnce() -> Result<checked::CheckedOutcome, ProblemResponse>,
) -> Result<Json<Acceptance>, ProblemResponse> {
    let claim = app.receipts.read(receipt)?;
    let (report, checkpoint) = outcome()?;
    let settlement = Settlement { claim, report, checkpoint };
    send_settlements(app, vec![settlement]).await?.pop().expect("one answer to one settlement")?;
    Ok(Json(Acceptance {}))
}

/// Many outcomes in one call. Each is answered for itself.
#[utoipa::path(post, path = "/v1/leases/settle", request_body = SettleBody,
    responses((status = 200, body = SettleAnswerBody), (status = "4XX", body = ProblemResponse), (status = 503, body = ProblemResponse)))]
async fn settle_many(
    _: May<Work>,
    State(app): State<App>,
    Json(body): Json<SettleBody>,
) -> Result<Json<SettleAnswerBody>, ProblemResponse> {
    checked::count("settlements", body.settlements.len(), app.engine.rules())?;
    let mut receipts = Vec::with_capacity(body.settlements.len());
    let mut settlements = Vec::with_capacity(body.settlements.len());
    for item in body.settlements {
        let claim = app.receipts.read(&item.receipt);
        receipts.push(item.receipt.clone());
        settlements.push(claim.and_then(|claim| {
            let (report, checkpoint) = checked::outcome(item, app.engine.rules())?;
            Ok(Settlement { claim, report, checkpoint })
        }));
    }
    let answers = in_place(settlements, async |list| send_settlements(&app, list).await).await?;
    let settlements = receipts.into_iter().zip(answers);
    let settlements = settlements
        .map(|(receipt, answer)| SettleItemAnswer { receipt, error: answer.err().map(ProblemResponse::into_body) });
    Ok(Json(SettleAnswerBody { settlements: settlements.collect() }))
}

/// Ask for more time before the worker's health deadline. A denial is an answer too, and says why.
#[utoipa::path(post, path = "/v1/leases/{receipt}/request-extension", request_body = ExtensionBody,
    params(("receipt" = String, Path)),
    responses((status = 200, body = ExtensionAnswerBody), (status = "4XX", body = ProblemResponse),
        (status = 503, body = ProblemResponse)))]
async fn request_extension(
    _: May<Work>,
    State(app): State<App>,
    Path(receipt): Path<String>,
    Json(body): Json<ExtensionBody>,
) -> Result<Json<ExtensionAnswerBody>, ProblemResponse> {
    let claim = app.receipts.read(&receipt)?;
    let request = ExtensionRequest {
        claims: vec![claim],
        reason: body.reason.into(),
        progress: body.progress,
        estimated_remaining: span::if_given("estimated_remaining_s", body.estimated_remaining_s)?,
    };
    let answer = app.engine.request_extension(request).await?;
    if answer.result == Err(Denial::StaleAttempt) {
        // As every other call with a fence that is no longer the newest.
        return Err(Refusal::StaleAttempt.into());
    }
    Ok(Json(ExtensionAnswerBody {
        granted: answer.result.is_ok(),
        extension_ms: answer.result.map_or(0, span::ms),
        remaining_ms: span::ms(answer.remaining),
        remaining_extensions: answer.remaining_extensions,
        denial: answer.result.err().map(|denial| DenialBody { code: denial.code().into(), detail: denial.to_string() }),
    }))
}

/// The worker wants no more work: an open poll of it is answered with nothing, and the worker is away as soon as it
/// holds nothing. What it holds stays its own until it is settled or released, or the lease runs out. It may be repeated.
#[utoipa::path(post, path = "/v1/workers/{id}/goodbye", request_body = GoodbyeBody, params(("id" = String, Path)),
    responses((status = 200, body = GoodbyeAnswer), (status = "4XX", body = ProblemResponse), (status = 503, body = ProblemResponse)))]
async fn goodbye(
    _: May<Work>,
    State(app): State<App>,
    WorkerPath(worker): WorkerPath,
    Json(body): Json<GoodbyeBody>,
) -> Result<Json<GoodbyeAnswer>, ProblemResponse> {
    let incarnation = checked::incarnation(body.incarnation)?;
    let held = app.engine.leave(worker, incarnation).await?;
    Ok(Json(GoodbyeAnswer { held }))
}

async fn send_beats(
    app: &App,
    beats: Vec<Beat>,
) -> Result<Vec<Result<BeatAccepted, ProblemResponse>>, ProblemResponse> {
    let answers = app.engine.beat(beats).await?.into_iter();
    Ok(answers.map(|answer| answer.answer.map_err(ProblemResponse::from)).collect())
}

async fn send_settlements(
    app: &App,
    list: Vec<Settlement>,
) -> Result<Vec<Result<(), ProblemResponse>>, ProblemResponse> {
    let answers = app.engine.settle(list).await?.into_iter();
    Ok(answers.map(|answer| answer.answer.map_err(ProblemResponse::from)).collect())
}

/// Sends what is good in one call, and puts each answer in the place of its item, between the problems of the others.
async fn in_place<T, A>(
    items: Vec<Result<T, ProblemResponse>>,
    send: impl AsyncFnOnce(Vec<T>) -> Result<Vec<Result<A, ProblemResponse>>, ProblemResponse>,
) -> Result<Vec<Result<A, ProblemResponse>>, ProblemResponse> {
    let mut good = Vec::with_capacity(items.len());
    let mut places = Vec::with_capacity(items.len());
    for item in items {
        places.push(item.map(|item| good.push(item)));
    }
    let mut answers = if good.is_empty() { Vec::new() } else { send(good).await? }.into_iter();
    let place =
        |place: Result<(), ProblemResponse>| place.and_then(|()| answers.next().expect("as many answers as items"));
    Ok(places.into_iter().map(place).collect())
}
