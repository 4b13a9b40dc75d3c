//! A job's ledger as it is shown: every decision about its time, the oldest first.

use onward_core::manager::JobView;
use onward_core::state::{LedgerEntry, LedgerFact};
use serde::Serialize;
use utoipa::ToSchema;

use super::super::instant::At;

#[derive(Debug, Serialize, ToSchema)]
pub struct Ledger {
    pub id: String,
    pub state: &'static str,
    pub entries: Vec<Entry>,
    /// Older entries that are not kept.
    pub dropped: u64,
}

/// `what` says which of the other fields there are.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct Entry {
    #[schema(value_type = String)]
    pub at: Option<At>,
    /// How often the same was decided in a row; `at` is of the last.
    pub times: u32,
    #[schema(example = "granted")]
    pub what: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denial: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verb: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
}

impl Ledger {
    pub fn of(view: &JobView) -> Self {
        let name = |index: u16| view.workflows.get(usize::from(index)).map(|workflow| workflow.name.to_string());
        Self {
            id: view.id.to_string(),
            state: view.state.word(),
            entries: view.ledger.iter().map(|entry| shown(entry, name)).collect(),
            dropped: view.ledger_dropped,
        }
    }
}

fn shown(entry: &LedgerEntry, name: impl Fn(u16) -> Option<String>) -> Entry {
    let fact = match &entry.what {
        LedgerFact::Granted { worker, by, reason, progress } => Entry {
            what: "granted",
            worker: Some(worker.to_string()),
            by_s: Some(by.as_secs_f64()),
            reason: reason.map(|reason| reason.code().into()),
            progress: finite(*progress),
            ..Entry::default()
        },
        LedgerFact::Denied { worker, denial, reason, progress } => Entry {
            what: "denied",
            worker: Some(worker.to_string()),
            denial: Some(denial.code()),
            reason: reason.map(|reason| reason.code().into()),
            progress: finite(*progress),
            ..Entry::default()
        },
        LedgerFact::ExtendedByHand { by, reason, request } => Entry {
            what: "extended_by_hand",
            by_s: Some(by.as_secs_f64()),
            reason: Some(reason.to_string()),
            request_id: Some(request.to_string()),
            ..Entry::default()
        },
        LedgerFact::QuietBegan { workflow, allowed } => Entry {
            what: "quiet_began",
            workflow: name(*workflow),
            allowed_s: Some(allowed.as_secs_f64()),
            ..Entry::default()
        },
        LedgerFact::QuietEnded { workflow, used } => Entry {
            what: "quiet_ended",
            workflow: name(*workflow),
            used_s: Some(used.as_secs_f64()),
            ..Entry::default()
        },
        LedgerFact::AttemptEnded { workflow, fence, ending } => Entry {
            what: "attempt_ended",
            workflow: name(*workflow),
            fence: Some(fence.get()),
            outcome: Some(ending.code()),
            ..Entry::default()
        },
        LedgerFact::TimedOut { reason } => {
            Entry { what: "timed_out", reason: Some(reason.code().into()), ..Entry::default() }
        }
        LedgerFact::CancelAsked { epoch } => {
            Entry { what: "cancel_asked", epoch: epoch.map(|epoch| epoch.n), ..Entry::default() }
        }
        LedgerFact::Refused { workflow, fence, verb, refusal } => Entry {
            what: "refused",
            workflow: name(*workflow),
            fence: Some(fence.get()),
            verb: Some(verb.code()),
            refusal: Some(refusal.code()),
            ..Entry::default()
        },
    };
    Entry { at: Some(At(entry.at)), times: entry.times, ..fact }
}

/// JSON has no word for what is not a number.
fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}
