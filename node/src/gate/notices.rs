//! What a gate says in the node's own log about what it decides.

use onward_core::gate::effect::GateNotice;

pub(super) fn write(notice: &GateNotice) {
    match notice {
        GateNotice::WallClockStepped(step) => tracing::warn!(?step, "the wall clock was stepped; log time goes on"),
        GateNotice::GapNoticed { gap } => tracing::warn!(?gap, "this gate was not running; it confirms its seat first"),
        GateNotice::LeaderTransferred { datacenter, term } => {
            tracing::info!(%datacenter, term = term.get(), "a datacenter has another leader");
        }
        GateNotice::DatacenterRestored { datacenter, term } => {
            tracing::warn!(%datacenter, term = term.get(), "a datacenter speaks under a lower term: it was restored");
        }
        GateNotice::WrongDatacenter { proven, said } => {
            tracing::warn!(%proven, %said, "a stream claimed to be of another datacenter; it was closed");
        }
        GateNotice::TooManyDatacenters { datacenter, met } => {
            tracing::warn!(%datacenter, %met, "a new datacenter was turned away; raise the limit, or remove its manager");
        }
        GateNotice::TimeoutDeclared { job, reason } => {
            tracing::info!(%job, reason = reason.code(), "a job has timed out everywhere");
        }
        GateNotice::Corrected { job, datacenter, stale } => {
            tracing::info!(%job, %datacenter, stale = stale.code(), "a datacenter refused a decision; it is sent another");
        }
        GateNotice::JobRebuilt { job, datacenter } => {
            tracing::info!(%job, %datacenter, "a job that was not known here was taken over from a report");
        }
    }
}
