//! A job's ledger as it is shown.

use onward_api::instant::At;
use onward_api::ledger::{Entry, Ledger};
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
pub(crate) fn shown(entry: &LedgerEntry, name: impl Fn(u16) -> Option<String>) -> Entry {
    let fact = match &entry.what {
        LedgerFact::Granted { worker, by, reason, progress } => Entry {
            what: "granted".into(),
            worker: Some(worker.to_string()),
            by_s: Some(by.as_secs_f64()),
            reason: reason.map(|reason| reason.code().into()),
            progress: finite(*progress),
            ..Entry::default()
        },
        LedgerFact::Denied { worker, denial, reason, progress } => Entry {
            what: "denied".into(),
            worker: Some(worker.to_string()),
            denial: Some(denial.code().into()),
            reason: reason.map(|reason| reason.code().into()),
            progress: finite(*progress),
            ..Entry::default()
        },
        LedgerFact::ExtendedByHand { by, reason, request } => Entry {
            what: "extended_by_hand".into(),
            by_s: Some(by.as_secs_f64()),
            reason: Some(reason.to_string()),
            request_id: Some(request.to_string()),
            ..Entry::default()
        },
        LedgerFact::QuietBegan { workflow, allowed } => Entry {
            what: "quiet_began".into(),
            workflow: name(*workflow),
            allowed_s: Some(allowed.as_secs_f64()),
            ..Entry::default()
        },
        LedgerFact::QuietEnded { workflow, used } => Entry {
            what: "quiet_ended".into(),
            workflow: name(*workflow),
            used_s: Some(used.as_secs_f64()),
            ..Entry::default()
        },
        LedgerFact::AttemptEnded { workflow, fence, ending } => Entry {
            what: "attempt_ended".into(),
            workflow: name(*workflow),
            fence: Some(fence.get()),
            outcome: Some(ending.code().into()),
            ..Entry::default()
        },
        LedgerFact::TimedOut { reason, epoch } => Entry {
            what: "timed_out".into(),
            reason: Some(reason.code().into()),
            epoch: epoch.map(|epoch| epoch.n),
            ..Entry::default()
        },
        LedgerFact::CancelAsked { epoch } => {
            Entry { what: "cancel_asked".into(), epoch: epoch.map(|epoch| epoch.n), ..Entry::default() }
        }
        LedgerFact::Refused { workflow, fence, verb, refusal } => Entry {
            what: "refused".into(),
            workflow: name(*workflow),
            fence: Some(fence.get()),
            verb: Some(verb.code().into()),
            refusal: Some(refusal.code().into()),
            ..Entry::default()
        },
        LedgerFact::LocallyTimedOut { reason } => {
            Entry { what: "locally_timed_out".into(), reason: Some(reason.code().into()), ..Entry::default() }
        }
        LedgerFact::LocalTimeoutOver => Entry { what: "local_timeout_over".into(), ..Entry::default() },
        LedgerFact::GateAnswered => Entry { what: "gate_answered".into(), ..Entry::default() },
        LedgerFact::TimeGiven { until } => {
            Entry { what: "time_given".into(), until: Some(At(*until)), ..Entry::default() }
        }
        LedgerFact::ExtensionsReported { grants, by_hand } => Entry {
            what: "extensions_reported".into(),
            by_s: Some((*grants + *by_hand).as_secs_f64()),
            ..Entry::default()
        },
    };
    Entry { at: Some(At(entry.at)), times: entry.times, ..fact }
}

/// JSON has no word for what is not a number.
fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}
