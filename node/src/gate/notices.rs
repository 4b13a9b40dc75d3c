//! What a gate says in the node's own log about what it decides.

use onward_core::gate::effect::Notice;

pub(super) fn write(notice: &Notice) {
    match notice {
        Notice::WallClockStepped(step) => tracing::warn!(?step, "the wall clock was stepped; log time goes on"),
        Notice::GapNoticed { gap } => tracing::warn!(?gap, "this gate was not running; it confirms its seat first"),
        Notice::LeaderTransferred { datacenter, term } => {
            tracing::info!(%datacenter, term = term.get(), "a datacenter has another leader");
        }
        Notice::DatacenterRestored { datacenter, term } => {
            tracing::warn!(%datacenter, term = term.get(), "a datacenter speaks under a lower term: it was restored");
        }
        Notice::WrongDatacenter { proven, said } => {
            tracing::warn!(%proven, %said, "a stream claimed to be of another datacenter; it was closed");
        }
        Notice::TooManyDatacenters { datacenter, met } => {
            tracing::warn!(%datacenter, %met, "a new datacenter was turned away; raise the limit, or remove its manager");
        }
        Notice::TimeoutDeclared { job, reason } => {
            tracing::info!(%job, reason = reason.code(), "a job has timed out everywhere");
        }
        Notice::Corrected { job, datacenter, stale } => {
            tracing::info!(%job, %datacenter, stale = stale.code(), "a datacenter refused a decision; it is sent another");
        }
        Notice::JobRebuilt { job, datacenter } => {
            tracing::info!(%job, %datacenter, "a job that was not known here was taken over from a report");
        }
    }
}
