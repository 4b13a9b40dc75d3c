//! A job's ledger as it is shown.

use onward_api::instant::At;
use onward_api::ledger::{Ledger, LedgerLine};
use onward_core::manager::JobView;
use onward_core::state::{LedgerEntry, LedgerFact};

pub fn ledger(view: &JobView) -> Ledger {
    let name = |index: u16| view.workflows.get(usize::from(index)).map(|workflow| workflow.name.to_string());
    Ledger {
        id: view.id.to_string(),
        state: view.state.into(),
        entries: view.ledger.iter().map(|entry| shown(entry, name)).collect(),
        dropped: view.ledger_dropped,
    }
}

/// An entry as it is shown; `name` is that of the workflow with this index.
pub(crate) fn shown(entry: &LedgerEntry, name: impl Fn(u16) -> Option<String>) -> LedgerLine {
    let fact = match &entry.what {
        LedgerFact::Granted { worker, by, reason, progress } => LedgerLine {
            what: "granted".into(),
            worker: Some(worker.to_string()),
            by_s: Some(by.as_secs_f64()),
            reason: reason.map(|reason| reason.code().into()),
            progress: finite(*progress),
            ..LedgerLine::default()
        },
        LedgerFact::Denied { worker, denial, reason, progress } => LedgerLine {
            what: "denied".into(),
            worker: Some(worker.to_string()),
            denial: Some(denial.code().into()),
            reason: reason.map(|reason| reason.code().into()),
            progress: finite(*progress),
            ..LedgerLine::default()
        },
        LedgerFact::ExtendedByHand { by, reason, request } => LedgerLine {
            what: "extended_by_hand".into(),
            by_s: Some(by.as_secs_f64()),
            reason: Some(reason.to_string()),
            request_id: Some(request.to_string()),
            ..LedgerLine::default()
        },
        LedgerFact::QuietBegan { workflow, allowed } => LedgerLine {
            what: "quiet_began".into(),
            workflow: name(*workflow),
            allowed_s: Some(allowed.as_secs_f64()),
            ..LedgerLine::default()
        },
        LedgerFact::QuietEnded { workflow, used } => LedgerLine {
            what: "quiet_ended".into(),
            workflow: name(*workflow),
            used_s: Some(used.as_secs_f64()),
            ..LedgerLine::default()
        },
        LedgerFact::AttemptEnded { workflow, fence, ending } => LedgerLine {
            what: "attempt_ended".into(),
            workflow: name(*workflow),
            fence: Some(fence.get()),
            outcome: Some(ending.code().into()),
            ..LedgerLine::default()
        },
        LedgerFact::TimedOut { reason, epoch } => LedgerLine {
            what: "timed_out".into(),
            reason: Some(reason.code().into()),
            epoch: epoch.map(|epoch| epoch.n),
            ..LedgerLine::default()
        },
        LedgerFact::CancelAsked { epoch } => {
            LedgerLine { what: "cancel_asked".into(), epoch: epoch.map(|epoch| epoch.n), ..LedgerLine::default() }
        }
        LedgerFact::Refused { workflow, fence, verb, refusal } => LedgerLine {
            what: "refused".into(),
            workflow: name(*workflow),
            fence: Some(fence.get()),
            verb: Some(verb.code().into()),
            refusal: Some(refusal.code().into()),
            ..LedgerLine::default()
        },
        LedgerFact::LocallyTimedOut { reason } => {
            LedgerLine { what: "locally_timed_out".into(), reason: Some(reason.code().into()), ..LedgerLine::default() }
        }
        LedgerFact::LocalTimeoutOver => LedgerLine { what: "local_timeout_over".into(), ..LedgerLine::default() },
        LedgerFact::GateAnswered => LedgerLine { what: "gate_answered".into(), ..LedgerLine::default() },
        LedgerFact::TimeGiven { until } => {
            LedgerLine { what: "time_given".into(), until: Some(At(*until)), ..LedgerLine::default() }
        }
        LedgerFact::ExtensionsReported { grants, by_hand } => LedgerLine {
            what: "extensions_reported".into(),
            by_s: Some((*grants + *by_hand).as_secs_f64()),
            ..LedgerLine::default()
        },
    };
    LedgerLine { at: Some(At(entry.at)), times: entry.times, ..fact }
}

/// JSON has no word for what is not a number.
fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}
