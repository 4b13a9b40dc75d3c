//! This manager as a gate's: which jobs a gate decides about, and what gates have not heard yet.
//!
//! A job is a gate's because it came over a stream that proved to be one's; nothing else makes it so. From then on this
//! manager does for it all that it does for any job, but end it by a clock: where it would have, it logs that and
//! reports it, and the gate decides for all datacenters.
//!
//! **Who may overrule.** A gate, under an epoch that is not lower than any that decided about the job before, nor than that
//! of the gate that leads; a global timeout echoes, besides, the term of this manager. What comes under a stale token is
//! refused and answered with what is current. And we ourselves, if no gate has said anything about the job for
//! `fallback_after` since it timed out here, by the *logged* stamp: leaders that come and go do not postpone it.
//! That a gate answers is logged too, at once when it first does and then a few times within that span: a new leader does
//! not mistake a gate that has been answering for one that is gone, and counts as said what the log may have missed.
//!
//! The first terminal state written here stands, whatever a gate decides later: it is told.
//!
//! **Repeated until answered**: timeouts (with every round of reports) and final statuses. A final status is kept here from
//! the end of the job, also once the job is archived, up to [`FINALS_KEPT`]; past that, and after a takeover, a gate asks.
//!
//! What this costs where no gate is: one look at an empty set per step.

mod orders;
mod reports;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use crate::fence::GateEpoch;
use crate::gate::message::FinalStatus;
use crate::ids::{JobId, StreamId};
use crate::time::{Mono, Wall};

/// The number of final statuses that wait to be heard by a gate.
pub(super) const FINALS_KEPT: usize = 10_000;
/// Final statuses that are repeated in one round.
const FINALS_PER_ROUND: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Gates {
    streams: BTreeMap<StreamId, GateStream>,
    /// The life of this machine; drawn when a gate is first spoken to.
    life: u64,
    /// The number of the newest frame.
    number: u64,
    /// Open jobs that a gate decides about.
    jobs: BTreeSet<JobId>,
    /// Ended, and not heard by a gate.
    finals: BTreeMap<JobId, Box<FinalStatus>>,
    /// The last of them that was repeated; the next round goes on behind it.
    repeated: Option<JobId>,
    /// Instants at which a gate said something about a job that has timed out here.
    answered: BTreeMap<JobId, Wall>,
    /// Instants at which a job that has timed out here ends without a gate's word.
    fallbacks: BTreeSet<(Wall, JobId)>,
    fallback_of: BTreeMap<JobId, Wall>,
    report_at: Mono,
    /// Rounds of reports under way.
    rounds: VecDeque<Round>,
    /// Set if this leader has taken over from another.
    took_over: bool,
}

#[derive(Debug, Default)]
struct GateStream {
    /// Once that gate said that it leads.
    welcomed: Option<GateEpoch>,
}

/// Reports of all open jobs, a frame at a time.
#[derive(Debug)]
struct Round {
    /// The stream that gets the reports; none for every gate that leads.
    to: Option<StreamId>,
    after: Option<JobId>,
    is_transfer: bool,
}

impl Gates {
    /// The instant when something is to be done; none for never. `mono_at` is log time as monotonic time.
    pub(super) fn next(&self, mono_at: impl Fn(Wall) -> Mono) -> Option<Mono> {
        if self.is_idle() {
            return None;
        }
        let fallback = self.fallbacks.first().map(|(at, _)| mono_at(*at));
        let report = self.has_leader().then_some(self.report_at);
        let round = (!self.rounds.is_empty()).then_some(Mono::ZERO);
        fallback.into_iter().chain(report).chain(round).min()
    }

    fn is_idle(&self) -> bool {
        self.streams.is_empty() && self.jobs.is_empty()
    }

    /// Whether a gate that leads is connected.
    fn has_leader(&self) -> bool {
        self.streams.values().any(|stream| stream.welcomed.is_some())
    }

    fn leaders(&self) -> Vec<StreamId> {
        self.streams.iter().filter(|(_, stream)| stream.welcomed.is_some()).map(|(id, _)| *id).collect()
    }

    /// The epoch of the gate that leads, as far as it has said so.
    fn leading(&self) -> Option<GateEpoch> {
        self.streams.values().filter_map(|stream| stream.welcomed).max()
    }

    pub(super) fn close(&mut self, stream: StreamId) {
        self.streams.remove(&stream);
        self.rounds.retain(|round| round.to != Some(stream));
    }

    pub(super) fn note_takeover(&mut self) {
        self.took_over = true;
    }

    fn keep_final(&mut self, status: Box<FinalStatus>) {
        if self.finals.len() >= FINALS_KEPT {
            self.finals.pop_first();
        }
        self.finals.insert(status.report.job, status);
    }

    /// Final statuses to repeat in this round. Each has its turn, also if a gate answers none of those before it.
    fn next_finals(&mut self) -> Vec<FinalStatus> {
        let behind = self.repeated.map_or(Bound::Unbounded, Bound::Excluded);
        let in_turn = self.finals.range((behind, Bound::Unbounded)).chain(&self.finals);
        let next: Vec<FinalStatus> =
            in_turn.take(FINALS_PER_ROUND.min(self.finals.len())).map(|(_, status)| (**status).clone()).collect();
        self.repeated = next.last().map(|status| status.report.job);
        next
    }

    fn forget(&mut self, job: JobId) {
        self.jobs.remove(&job);
        self.answered.remove(&job);
        self.set_fallback(job, None);
    }

    fn set_fallback(&mut self, job: JobId, at: Option<Wall>) {
        if let Some(before) = self.fallback_of.remove(&job) {
            self.fallbacks.remove(&(before, job));
        }
        if let Some(at) = at {
            self.fallback_of.insert(job, at);
            self.fallbacks.insert((at, job));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The job is there for another stream, or for none yet.
    #[test]
    fn reports_for_a_stream_that_is_closed_wake_nobody() {
        let [closed, other] = [StreamId(1), StreamId(2)];
        let round = |to| Round { to, after: None, is_transfer: false };
        let next = |gates: &Gates| gates.next(|at| Mono::from_ms(at.as_ms()));
        let mut gates = Gates::default();
        gates.jobs.insert(JobId::from_u128(7));
        gates.streams.insert(closed, GateStream::default());
        gates.rounds.extend([round(Some(closed)), round(Some(other))]);
        gates.close(closed);
        assert_eq!(gates.rounds.iter().map(|round| round.to).collect::<Vec<_>>(), [Some(other)]);
        assert_eq!(next(&gates), Some(Mono::ZERO), "the other is still owed its reports");
        gates.close(other);
        assert_eq!(next(&gates), None);
    }
}
