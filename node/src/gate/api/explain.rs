//! Why a gate's job is where it is: what was decided and under which token, how it is in each datacenter, which clocks run,
//! what happens next, and what can be done. Pure: the job and log time go in, the explanation comes out.

use core::time::Duration;

use axum::extract::State;
use onward_api::explanation::{Clock, Explanation, Remedy};
use onward_api::instant::At;
use onward_api::span::human;
use onward_core::gate::event::EndCause;
use onward_core::gate::{GateRule, JobView, TargetState, TargetView};
use onward_core::state::LedgerFact;
use onward_core::time::{Wall, span_ms};

use super::jobs::view_of;
use super::{GateApp, shape};
use crate::api::jobs::explain::fact;
use crate::api::json::Json;
use crate::api::may::{May, Read};
use crate::api::params::JobPath;
use crate::api::problem::ProblemResponse;

/// Why a job is where it is, and what can be done about it.
#[utoipa::path(get, path = "/v1/jobs/{id}/explain", tag = "jobs", params(("id" = String, Path)),
    responses((status = 200, body = Explanation),
        (status = 404, description = "unknown_job", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn get(
    _: May<Read>,
    State(app): State<GateApp>,
    JobPath(job): JobPath,
) -> Result<Json<Explanation>, ProblemResponse> {
    let view = view_of(&app.engine, job).await?;
    Ok(Json(explain(&view, &app.engine.rules().gate)))
}

pub fn explain(view: &JobView, rule: &GateRule) -> Explanation {
    Explanation {
        code: code(view).into(),
        summary: summary(view),
        so_far: so_far(view),
        clocks: clocks(view),
        next: next(view, rule),
        can_do: can_do(view),
    }
}

fn code(view: &JobView) -> &'static str {
    match view.waits {
        _ if view.job.has_ended() => view.state.word(),
        Some(waits) => waits.code(),
        None if view.decided.is_some() => "ending",
        None if is_any(view, TargetState::Unreachable) => "unreachable",
        None if is_any(view, TargetState::Submitting) => "submitting",
        None => view.state.word(),
    }
}

fn is_any(view: &JobView, state: TargetState) -> bool {
    view.targets.iter().any(|target| target.state == state)
}

fn summary(view: &JobView) -> String {
    let reason = shape::reason(view).map_or_else(String::new, |reason| format!(" ({reason})"));
    let places = match view.targets.len() {
        0 => "in no datacenter yet".to_owned(),
        1 => format!("in datacenter {}", view.targets[0].datacenter),
        many => format!("in {many} datacenters"),
    };
    let state = view.state.word();
    match view.waits {
        Some(_) if !view.job.has_ended() => {
            "The job waits at the gate: no datacenter may be routed to. `onward datacenter list` says why.".into()
        }
        _ => format!("The job is {state} {places}{reason}."),
    }
}

fn so_far(view: &JobView) -> Vec<String> {
    let job = &view.job;
    let mut lines = vec![match &job.spec {
        Some(_) => format!("{} submitted to the gate", instant(job.created_at)),
        None => format!("{} taken over from a datacenter's report", instant(job.created_at)),
    }];
    lines.extend(extensions(view));
    lines.extend(view.targets.iter().map(target_line));
    if let Some(decision) = view.decided {
        let what = match decision.why {
            EndCause::TimedOut(reason) => format!("timed out everywhere ({})", reason.code()),
            EndCause::Cancelled => "cancelled everywhere".into(),
        };
        lines.push(format!("{} {what}, under epoch {}", instant(decision.at), view.epoch.n));
    }
    if let Some(at) = job.ended_at {
        lines.push(format!("{} ended as {}", instant(at), view.state.word()));
    }
    lines
}

/// Every extension, with its reason. The decision to end the job is told by itself.
fn extensions(view: &JobView) -> impl Iterator<Item = String> {
    let entries = view.job.ledger.iter().flat_map(|ledger| &ledger.entries);
    let given = entries.filter(|entry| {
        matches!(entry.what, LedgerFact::ExtendedByHand { .. } | LedgerFact::ExtensionsReported { .. })
    });
    given.map(|entry| format!("{} {}", instant(entry.at), fact(&entry.what, true)))
}

fn target_line(target: &TargetView) -> String {
    let mut line = format!("{}: {}", target.datacenter, target.state.code());
    if let Some(reason) = &target.reason {
        line.push_str(&format!(" ({reason})"));
    }
    line.push_str(if target.confirmed { ", confirmed" } else { ", not confirmed" });
    match (target.ended_at, target.since_progress, target.since_report) {
        (Some(at), ..) => line.push_str(&format!(", ended {}", instant(at))),
        (None, Some(progress), Some(report)) => {
            let total = human(progress + report);
            line.push_str(&format!(", last forward step {total} ago, reported {} ago", human(report)));
        }
        (None, None, Some(report)) => line.push_str(&format!(", reported {} ago", human(report))),
        (None, _, None) => {}
    }
    if target.attempts > 0 {
        line.push_str(&format!(", {} attempts", target.attempts));
    }
    line
}

fn clocks(view: &JobView) -> Vec<Clock> {
    if view.job.has_ended() {
        return Vec::new();
    }
    let outline = &view.job.outline;
    let extended = view.job.extensions();
    let given = (extended.grants + extended.by_hand).min(outline.max_extension.max(extended.by_hand));
    let more = if given == Duration::ZERO { String::new() } else { format!(" and {} of extensions", human(given)) };
    vec![Clock {
        name: "overall".into(),
        text: format!(
            "{} left; {} in all{more}, until {}",
            human(view.remaining),
            human(outline.timeout),
            At(view.deadline)
        ),
        remaining_ms: Some(span_ms(view.remaining)),
    }]
}

fn next(view: &JobView, rule: &GateRule) -> Vec<String> {
    if view.job.has_ended() {
        return Vec::new();
    }
    if view.decided.is_some() {
        let open = view.targets.iter().filter(|target| target.end.is_none());
        let mut lines: Vec<String> = open
            .map(|target| {
                let every = human(rule.progress_every);
                format!("{} is sent the decision every {every}, and at once when it is back", target.datacenter)
            })
            .collect();
        let alone = human(rule.fallback_after);
        lines
            .push(format!("a datacenter that has timed the job out and hears no gate ends it by itself after {alone}"));
        return lines;
    }
    let mut lines =
        vec![format!("{} it times out everywhere, unless it has ended or has more time", At(view.deadline))];
    for target in view.targets.iter().filter(|target| target.state == TargetState::Unreachable) {
        lines
            .push(format!("{} decides with its first report once it is back; silence ends nothing", target.datacenter));
    }
    lines
}

fn can_do(view: &JobView) -> Vec<Remedy> {
    let id = view.job.id;
    if view.job.has_ended() {
        return vec![Remedy::command(format!("onward show {id}"), "see how it ended in each datacenter")];
    }
    let mut all = Vec::new();
    if view.waits.is_some() || is_any(view, TargetState::Unreachable) || is_any(view, TargetState::Submitting) {
        all.push(Remedy::command("onward datacenter list", "see why a datacenter gets no jobs"));
    }
    if view.decided.is_none() {
        all.push(Remedy::command(format!("onward cancel {id}"), "end it in all datacenters"));
        all.push(Remedy::command(format!("onward extend {id} --by 1h --reason WHY"), "give it more time everywhere"));
    }
    all
}

/// An instant without a fraction that says nothing.
fn instant(at: Wall) -> String {
    At(at).to_string().replace(".000Z", "Z")
}
