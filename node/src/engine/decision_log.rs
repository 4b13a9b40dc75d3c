//! The node's log of decisions: one line each, ids as fields, so many of a kind in a while.

use core::time::Duration;

use onward_core::effect::{ManagerNotice, TimeoutAuthority};
use onward_core::event::NextState;
use onward_core::health::{Judgement, Verdict};
use onward_core::job::EndingKind;
use onward_core::state::ScheduleTrouble;
use onward_core::time::{Mono, span_ms};

/// The span in which at most [`LINES`] of a kind are logged; the number of those withheld comes with the next.
const WINDOW: Duration = Duration::from_secs(10);
const LINES: u32 = 20;
/// An error text longer than this is cut: the job has it in full.
const ERROR_CHARS: usize = 200;

#[derive(Default)]
pub(super) struct DecisionLog {
    windows: [Window; Kind::ALL.len()],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Clock,
    Hold,
    Evicted,
    Verdict,
    Stuck,
    LeaseExpired,
    Crashed,
    TimedOut,
    Gate,
    DeadLetter,
    Schedule,
}

impl Kind {
    const ALL: [Self; 11] = [
        Self::Clock,
        Self::Hold,
        Self::Evicted,
        Self::Verdict,
        Self::Stuck,
        Self::LeaseExpired,
        Self::Crashed,
        Self::TimedOut,
        Self::Gate,
        Self::DeadLetter,
        Self::Schedule,
    ];

    fn of(notice: &ManagerNotice) -> Self {
        match notice {
            ManagerNotice::WallClockStepped(_) | ManagerNotice::GapNoticed { .. } => Self::Clock,
            ManagerNotice::HoldBegan { .. } | ManagerNotice::HoldEnded => Self::Hold,
            ManagerNotice::WorkerEvicted { .. } => Self::Evicted,
            ManagerNotice::VerdictChanged { .. } => Self::Verdict,
            ManagerNotice::AttemptLost { ending: EndingKind::Stuck, .. } => Self::Stuck,
            ManagerNotice::AttemptLost { ending: EndingKind::LeaseExpired, .. } => Self::LeaseExpired,
            ManagerNotice::AttemptLost { .. } => Self::Crashed,
            ManagerNotice::JobTimedOut { .. } => Self::TimedOut,
            ManagerNotice::LocallyTimedOut { .. } | ManagerNotice::GateCorrected { .. } => Self::Gate,
            ManagerNotice::DeadLetter { .. } | ManagerNotice::DeadLetterOverflow { .. } => Self::DeadLetter,
            ManagerNotice::ScheduleFailing { .. } | ManagerNotice::ScheduleRecovered { .. } => Self::Schedule,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Clock => "clock",
            Self::Hold => "hold",
            Self::Evicted => "evicted",
            Self::Verdict => "verdict changed",
            Self::Stuck => "stuck",
            Self::LeaseExpired => "lease expired",
            Self::Crashed => "crashed",
            Self::TimedOut => "timed out",
            Self::Gate => "gate",
            Self::DeadLetter => "dead letter",
            Self::Schedule => "schedule",
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Window {
    began: Option<Mono>,
    said: u32,
    withheld: u64,
}

impl Window {
    /// Whether one more line may be written, and how many were withheld before it.
    fn admit(&mut self, now: Mono) -> Option<u64> {
        if self.began.is_none_or(|began| now.since(began) >= WINDOW) {
            (self.began, self.said) = (Some(now), 0);
        }
        if self.said == LINES {
            self.withheld += 1;
            return None;
        }
        self.said += 1;
        Some(core::mem::take(&mut self.withheld))
    }
}

impl DecisionLog {
    pub(super) fn write(&mut self, now: Mono, notice: &ManagerNotice) {
        let kind = Kind::of(notice);
        let Some(withheld) = self.windows[kind as usize].admit(now) else { return };
        if withheld > 0 {
            tracing::warn!(withheld, of = kind.word(), "there were too many lines");
        }
        line(notice);
    }
}

fn line(notice: &ManagerNotice) {
    match notice {
        ManagerNotice::WallClockStepped(step) => {
            tracing::warn!(by_ms = step.by_ms, "the wall clock was stepped; log time does not follow");
        }
        ManagerNotice::GapNoticed { gap } => {
            tracing::warn!(gap_ms = span_ms(*gap), "this process could not run; clocks are moved by the gap");
        }
        ManagerNotice::HoldBegan { failing, tracked } => {
            tracing::warn!(failing, tracked, "systemic failure, holding eviction");
        }
        ManagerNotice::HoldEnded => tracing::info!("eviction is no longer held"),
        ManagerNotice::WorkerEvicted { worker } => tracing::warn!(%worker, "evicted"),
        ManagerNotice::VerdictChanged { worker, from, to } => verdict(worker.as_str(), *from, to),
        ManagerNotice::AttemptLost { claim, kind, worker, ending, then, note } => {
            let (job, workflow, fence) = (claim.job, claim.workflow, claim.fence.get());
            let then = then_word(*then);
            let message = match ending {
                EndingKind::Stuck => "stuck: no forward step in time",
                EndingKind::LeaseExpired => "lease expired: no beat renewed it",
                _ => "crashed: its worker came back as another incarnation",
            };
            let note = note.as_deref().unwrap_or_default();
            tracing::warn!(%job, workflow, fence, %kind, %worker, then, note, "{message}");
        }
        ManagerNotice::JobTimedOut { job, reason, by } => {
            let reason = reason.code();
            match by {
                TimeoutAuthority::Datacenter => {
                    tracing::warn!(%job, reason, "timed out: the overall deadline has passed");
                }
                TimeoutAuthority::Gate(epoch) => {
                    tracing::warn!(%job, reason, epoch = epoch.n, "timed out: a gate has decided it for all datacenters");
                }
                TimeoutAuthority::Fallback => {
                    tracing::warn!(%job, reason, "timed out: no gate has answered, so this datacenter decides alone");
                }
            }
        }
        ManagerNotice::LocallyTimedOut { job, reason } => {
            tracing::warn!(%job, reason = reason.code(), "it would time out here; a gate was told, and decides");
        }
        ManagerNotice::GateCorrected { job, stale } => {
            tracing::warn!(%job, stale = stale.code(), "a gate decided under a stale token; it was refused and corrected");
        }
        ManagerNotice::DeadLetter { job, kind, error } => {
            let error: String = error.chars().take(ERROR_CHARS).collect();
            tracing::warn!(%job, %kind, ?error, "dead letter");
        }
        ManagerNotice::ScheduleFailing { schedule, why, failures } => {
            let (reason, failures) = (why.code(), *failures);
            match why {
                ScheduleTrouble::RunsFail => {
                    tracing::error!(%schedule, reason, failures, "a critical schedule fails again and again");
                }
                ScheduleTrouble::NotFresh | ScheduleTrouble::NeverSucceeded => {
                    tracing::error!(%schedule, reason, failures, "a critical schedule was due and has not succeeded");
                }
                ScheduleTrouble::TimingUnknown => {
                    tracing::error!(%schedule, reason, "a schedule is never due: its timing cannot be searched");
                }
            }
        }
        ManagerNotice::ScheduleRecovered { schedule } => {
            tracing::info!(%schedule, "a schedule is in trouble no longer")
        }
        ManagerNotice::DeadLetterOverflow { job } => {
            tracing::warn!(%job, "dropped the oldest dead letter to make room")
        }
    }
}

fn verdict(worker: &str, from: Verdict, to: &Judgement) {
    let (from, verdict, reason) = (from.code(), to.verdict.code(), to.reason.code());
    match to.verdict {
        Verdict::Healthy | Verdict::Busy => tracing::info!(worker, from, verdict, reason, "verdict changed"),
        _ => tracing::warn!(worker, from, verdict, reason, "verdict changed"),
    }
}

fn then_word(then: NextState) -> &'static str {
    match then {
        NextState::Succeeded => "succeeded",
        NextState::Ready => "ready",
        NextState::Delayed { .. } => "delayed",
        NextState::Failed => "failed",
        NextState::TimedOut => "timed_out",
        NextState::Cancelled => "cancelled",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_lines_of_a_kind_are_written_in_a_while_and_the_rest_is_counted() {
        let mut window = Window::default();
        let at = |ms: u64| Mono::from_ms(5_000 + ms);
        for n in 0..u64::from(LINES) {
            assert_eq!(window.admit(at(n)), Some(0));
        }
        for n in 0..7 {
            assert_eq!(window.admit(at(9_000 + n)), None);
        }
        assert_eq!(window.admit(at(9_999)), None);
        assert_eq!(window.admit(at(10_000)), Some(8), "a new while begins, and says what is missing");
        assert_eq!(window.admit(at(10_001)), Some(0));
    }

    #[test]
    fn each_kind_has_a_window_of_its_own() {
        for (index, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index, "{}", kind.word());
        }
    }
}
