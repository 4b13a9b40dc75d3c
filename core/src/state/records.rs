//! The records of the state. Millions of [`Job`] and [`Workflow`] lie in memory: what most never need is boxed.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use crate::carried::CarriedFields;
use crate::event::{ScheduledRun, Verb, Via};
use crate::fence::{AttemptFence, GateEpoch};
use crate::grant::{Denial, ExtensionReason, Fraction};
use crate::ids::{Bytes, Claim, Incarnation, JobId, Name, WorkerId};
use crate::job::end::is_dead_by;
use crate::job::{Ending, EndingKind, JobSpec, WorkflowState};
use crate::payload::Payload;
use crate::refusal::{Refusal, RefusalKind};
use crate::time::Wall;
use crate::timeout::{ExtensionTotals, TimeoutReason};

use super::{AttemptKey, JobKey, PastImage, WorkflowKey};

/// Fills two lines of memory: see `records_lie_in_few_lines_of_memory`. In the first are the flags, by which the compiler
/// tells a job from a vacant place: once that line is there, the other can be asked for without waiting.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Job {
    pub workflows: Members,
    /// Workflows that have not ended.
    pub open: u16,
    pub cancel_asked: bool,
    /// Set if the job has a dead letter that was neither replayed nor dropped.
    pub dead: bool,
    pub timed_out: Option<TimeoutReason>,
    pub id: JobId,
    /// The instant when the job could first run; stamped once.
    pub started_at: Stamp,
    pub more: Option<Box<JobMore>>,
    pub spec: JobSpec,
    pub created_at: Wall,
    pub ended_at: Stamp,
}

/// An instant, once it has come: no larger than the instant alone.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Stamp(Wall);

impl Stamp {
    pub const NOT_YET: Self = Self(Wall::MAX);

    #[inline]
    pub fn get(self) -> Option<Wall> {
        (self != Self::NOT_YET).then_some(self.0)
    }
}

impl From<Option<Wall>> for Stamp {
    fn from(at: Option<Wall>) -> Self {
        at.map_or(Self::NOT_YET, Self)
    }
}

impl fmt::Debug for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

/// Fields that few jobs have.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct JobMore {
    /// Sum of all grants and of what operators gave; the cap on grants is applied where the deadline is computed.
    pub extensions: Duration,
    /// The highest gate epoch that decided about this job.
    pub epoch: Option<GateEpoch>,
    pub retry_of: Option<JobId>,
    /// Extensions by operators, by the request that asked for each: remembered for as long as the job, whatever the
    /// ledger keeps. It is part of `extensions`.
    pub by_hand: Vec<HandExtension>,
    /// Jobs that repeat this one, by the request that asked for them.
    pub retried_as: Vec<(Name, JobId)>,
    /// Whether the new job of each of these requests took over what had succeeded. Older versions did not remember it.
    pub took_over: Vec<(Name, bool)>,
    pub ledger: Ledger,
    /// The job's place among the dead letters.
    pub died: Option<crate::ids::Seq>,
    /// The due instant of a schedule that it is the run of.
    pub scheduled: Option<Box<ScheduledRun>>,
    /// A gate decides about it.
    pub gate: Option<Box<GateTie>>,
    pub carried: CarriedFields,
}

/// The tie of a job to the gate that submitted it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GateTie {
    /// The time for which the job could have run before it came.
    pub waited: Duration,
    /// The end that the job would have had here.
    pub local: Option<LocalTimeout>,
    /// The instant when a gate last said something about it, as far as that was logged.
    pub answered_at: Wall,
    /// A gate has given it time until then.
    pub until: Wall,
}

/// The end that a job would have had if its datacenter decided about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalTimeout {
    pub reason: TimeoutReason,
    pub at: Wall,
    /// The attempt that is stuck.
    pub stuck: Option<Claim>,
}

/// More time that an operator gave.
#[derive(Clone, PartialEq, Debug)]
pub struct HandExtension {
    pub request: Name,
    pub by: Duration,
    /// All extensions of the job, once it was given: what was answered.
    pub total: Duration,
}

impl GateTie {
    /// The overall deadline of a job that could have run before it came here, and may have been given time since.
    pub fn deadline(&self, by_own_clock: Wall) -> Wall {
        (by_own_clock - self.waited).max(self.until)
    }
}

impl JobMore {
    /// Sum of the extensions by operators.
    pub fn by_hand(&self) -> Duration {
        self.by_hand.iter().map(|given| given.by).sum()
    }

    pub fn extended_by(&self, request: &Name) -> Option<&HandExtension> {
        self.by_hand.iter().find(|given| given.request == *request)
    }

    /// The job that this request made. It must have asked for the same then: to take over what had succeeded, or not.
    pub fn repeated_as(&self, request: &Name, takes_over: bool) -> Option<Result<JobId, Refusal>> {
        let (_, job) = self.retried_as.iter().find(|(known, _)| known == request)?;
        let did = self.took_over.iter().find(|(known, _)| known == request).map(|(_, did)| *did);
        Some(if did.is_none_or(|did| did == takes_over) { Ok(*job) } else { Err(Refusal::Conflict) })
    }

    /// Extensions earned by workers, and given by operators.
    pub fn extended(&self) -> ExtensionTotals {
        let by_hand = self.by_hand();
        ExtensionTotals { grants: self.extensions.saturating_sub(by_hand), by_hand }
    }
}

impl Job {
    pub fn extended(&self) -> ExtensionTotals {
        self.more.as_ref().map_or(ExtensionTotals::default(), |more| more.extended())
    }

    pub fn extensions(&self) -> Duration {
        self.more.as_ref().map_or(Duration::ZERO, |more| more.extensions)
    }

    /// Whether this workflow makes the job a dead letter, now that it has ended.
    pub fn died_by(&self, workflow: &Workflow) -> bool {
        is_dead_by(workflow.state, workflow.counted, self.timed_out, self.spec.retry.max_attempts)
    }

    /// The tie to a gate that decides about the job.
    pub fn gate(&self) -> Option<&GateTie> {
        self.more.as_ref()?.gate.as_deref()
    }

    pub fn epoch(&self) -> Option<GateEpoch> {
        self.more.as_ref()?.epoch
    }

    pub fn retry_of(&self) -> Option<JobId> {
        self.more.as_ref()?.retry_of
    }

    pub fn retried_as(&self, request: &Name) -> Option<JobId> {
        self.more.as_ref()?.retried_as.iter().find(|(known, _)| known == request).map(|(_, job)| *job)
    }

    pub fn ledger(&self) -> &[LedgerEntry] {
        self.more.as_ref().map_or(&[], |more| &more.ledger.entries)
    }
}

/// The workflows of a job, in the order of its specification.
#[derive(Debug)]
pub struct Members(MemberKeys);

/// Few lie with the job.
#[derive(Debug)]
enum MemberKeys {
    Few { count: u8, keys: [WorkflowKey; FEW] },
    Many(Box<[WorkflowKey]>),
}

/// The number of keys that fit into the space of a list.
const FEW: usize = 3;

impl Members {
    #[inline]
    pub fn as_slice(&self) -> &[WorkflowKey] {
        match &self.0 {
            MemberKeys::Few { count, keys } => &keys[..usize::from(*count)],
            MemberKeys::Many(many) => many,
        }
    }
}

impl<I: ExactSizeIterator<Item = WorkflowKey>> From<I> for Members {
    fn from(members: I) -> Self {
        let count = members.len();
        if count > FEW {
            return Self(MemberKeys::Many(members.collect()));
        }
        let mut keys = [WorkflowKey::FIRST; FEW];
        keys.iter_mut().zip(members).for_each(|(key, member)| *key = member);
        Self(MemberKeys::Few { count: count as u8, keys })
    }
}

/// Lies in one line of memory.
#[derive(Debug)]
#[repr(align(64))]
pub struct Workflow {
    pub job: JobKey,
    /// The running attempt.
    pub attempt: Option<AttemptKey>,
    /// Attempts that count: raised when handed out, lowered again if the end did not count.
    pub counted: u32,
    pub handouts: u32,
    /// The fence of the newest hand-out.
    pub last_fence: AttemptFence,
    /// Since when it waits for a worker. What is handed back without a fault of its own keeps what it has waited: this
    /// moves by the time for which it ran.
    pub ready_at: Wall,
    pub due_at: Wall,
    pub index: u16,
    pub predecessors_left: u16,
    pub state: WorkflowState,
    /// `due_at` follows the wall clock, not log time.
    pub wall_due: bool,
    pub past: Option<Box<Past>>,
}

/// State of a workflow that was handed out. Most have one attempt, which needs no list.
#[derive(Debug, Default)]
pub struct Past {
    last: Option<EndedAttempt>,
    /// Attempts before the last, oldest first.
    earlier: Vec<EndedAttempt>,
    /// Older ones that are not kept.
    dropped: u32,
    pub checkpoint: Option<Bytes>,
}

impl Past {
    pub fn push(&mut self, ended: EndedAttempt) {
        if let Some(before) = self.last.replace(ended) {
            if self.earlier.len() + 1 == ATTEMPTS_KEPT {
                self.earlier.remove(0);
                self.dropped += 1;
            }
            self.earlier.push(before);
        }
    }

    pub(super) fn image(&self) -> PastImage {
        PastImage {
            attempts: self.attempts().cloned().collect(),
            dropped: self.dropped,
            checkpoint: self.checkpoint.clone(),
        }
    }

    pub(super) fn of_image(image: PastImage) -> Self {
        let PastImage { mut attempts, dropped, checkpoint } = image;
        let last = attempts.pop();
        Self { last, earlier: attempts, dropped, checkpoint }
    }

    pub fn last(&self) -> Option<&EndedAttempt> {
        self.last.as_ref()
    }

    /// The oldest first.
    pub fn attempts(&self) -> impl DoubleEndedIterator<Item = &EndedAttempt> {
        self.earlier.iter().chain(&self.last)
    }

    pub fn find_mut(&mut self, fence: AttemptFence) -> Option<&mut EndedAttempt> {
        self.last.iter_mut().chain(&mut self.earlier).find(|ended| ended.fence == fence)
    }
}

/// The number of ended attempts of a workflow that are kept.
pub const ATTEMPTS_KEPT: usize = 32;

#[derive(Clone, PartialEq, Debug)]
pub struct EndedAttempt {
    pub number: u32,
    pub fence: AttemptFence,
    pub worker: WorkerId,
    pub started_at: Wall,
    pub ended_at: Wall,
    pub ending: Ending,
    /// Kinds of refusals to callers that spoke for the attempt after its end; one entry per kind is in the ledger. Bits
    /// of [`RefusalKind::bit`].
    pub refused: u32,
    /// The last note of an attempt that a clock ended.
    pub note: Option<Arc<str>>,
}

impl EndedAttempt {
    /// The result of a success.
    pub fn result(&self) -> Option<&Payload> {
        match &self.ending {
            Ending::Succeeded { result } => Some(result),
            _ => None,
        }
    }

    pub(super) fn result_mut(&mut self) -> Option<&mut Payload> {
        match &mut self.ending {
            Ending::Succeeded { result } => Some(result),
            _ => None,
        }
    }
}

/// A running attempt, as the log knows it.
#[derive(Debug)]
pub struct Attempt {
    pub claim: Claim,
    pub workflow: WorkflowKey,
    pub worker: WorkerId,
    pub incarnation: Incarnation,
    pub via: Via,
    pub handed_at: Wall,
    pub lease: Duration,
    pub grants: u32,
    pub last_grant_progress: Option<Fraction>,
    /// The end of the grant that covers the attempt; zero before the first.
    pub granted_until: Wall,
    /// The beginning of the quiet section, and the time that it may last.
    pub quiet: Option<(Wall, Duration)>,
    pub quiet_used: Duration,
    pub mark: Option<(u64, Option<u64>)>,
}

/// Facts that must be remembered of a worker beyond its session.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct WorkerRecord {
    /// Grants since the last reset.
    pub grants: u32,
    /// The newest grant: to which incarnation, and until when it is live, whatever becomes of its attempts.
    pub granted: Option<(Incarnation, Wall)>,
    pub evictions: u32,
    /// While evicted: of which incarnation, and until when at least.
    pub evicted: Option<(Incarnation, Wall)>,
    /// While evicted: the end of the last lease of what was taken from it, unless it says that it has ended.
    pub taken_until: Wall,
    /// While evicted: it had no session then.
    pub evicted_without_session: bool,
    pub probation: bool,
    pub drained: bool,
    /// The worker's incarnation, or its last one before it went; older logs do not say.
    pub incarnation: Option<Incarnation>,
    /// Incarnations that were replaced; the oldest are forgotten.
    pub replaced: Vec<Incarnation>,
    pub carried: CarriedFields,
}

impl WorkerRecord {
    /// Counts the worker's grants from none again. One that is live stays so.
    pub(super) fn reset_grants(&mut self, now: Wall) {
        self.grants = 0;
        self.granted.take_if(|(_, until)| *until <= now);
    }
}

/// The number of replaced incarnations of a worker that are kept: more than it has while a process of the first may
/// still be there, also if each life ends soon after it began.
pub const REPLACED_KEPT: usize = 64;

/// The job's record of every decision about its time. Bounded: the oldest entries go first, and are counted.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Ledger {
    pub entries: Vec<LedgerEntry>,
    pub dropped: u64,
}

/// The number of ledger entries of a job that are kept.
pub const LEDGER_KEPT: usize = 256;

impl Ledger {
    /// The same as [`Self::push`], `times` over, for what is counted in one entry per attempt: that of the same kind since
    /// the attempt began is replaced, by what `merge` makes of it and of this.
    pub fn count(
        &mut self,
        at: Wall,
        since: Wall,
        times: u32,
        what: LedgerFact,
        merge: impl Fn(&LedgerFact, &LedgerFact) -> Option<LedgerFact>,
    ) {
        let known = self.entries.iter().enumerate().rev().take_while(|(_, entry)| entry.at >= since);
        let mut found = known.filter_map(|(place, entry)| Some((place, merge(&entry.what, &what)?)));
        let (what, times) = match found.next() {
            Some((place, merged)) => (merged, self.entries.remove(place).times.saturating_add(times)),
            None => (what, times),
        };
        self.push(at, what);
        let entry = self.entries.last_mut().expect("just pushed");
        entry.times = entry.times.saturating_add(times - 1);
    }

    pub fn push(&mut self, at: Wall, what: LedgerFact) {
        if let Some(last) = self.entries.last_mut()
            && last.what == what
        {
            last.at = at;
            last.times += 1;
            return;
        }
        if self.entries.len() == LEDGER_KEPT {
            self.entries.remove(0);
            self.dropped += 1;
        }
        self.entries.push(LedgerEntry { at, what, times: 1 });
    }
}

#[derive(Clone, PartialEq, Debug)]
pub struct LedgerEntry {
    /// The instant of the newest, where the same was decided several times in a row.
    pub at: Wall,
    pub what: LedgerFact,
    pub times: u32,
}

#[derive(Clone, PartialEq, Debug)]
pub enum LedgerFact {
    Granted {
        worker: WorkerId,
        by: Duration,
        reason: Option<ExtensionReason>,
        progress: f64,
    },
    Denied {
        worker: WorkerId,
        denial: Denial,
        reason: Option<ExtensionReason>,
        progress: f64,
    },
    ExtendedByHand {
        by: Duration,
        reason: Box<str>,
        request: Name,
    },
    QuietBegan {
        workflow: u16,
        allowed: Duration,
    },
    QuietEnded {
        workflow: u16,
        used: Duration,
    },
    /// An attempt was ended by a clock, an eviction or a crash.
    AttemptEnded {
        workflow: u16,
        fence: AttemptFence,
        ending: EndingKind,
    },
    /// By the gate of this epoch, if one decided it.
    TimedOut {
        reason: TimeoutReason,
        epoch: Option<GateEpoch>,
    },
    CancelAsked {
        epoch: Option<GateEpoch>,
    },
    Refused {
        workflow: u16,
        fence: AttemptFence,
        verb: Verb,
        refusal: RefusalKind,
    },
    /// A gate's job would have been timed out here; a gate decides.
    LocallyTimedOut {
        reason: TimeoutReason,
    },
    /// It moved, or was given time: nothing would time it out here any more.
    LocalTimeoutOver,
    /// A gate knows that the job would have been timed out here, and has not ended it.
    GateAnswered,
    /// A gate has given the job time until then.
    TimeGiven {
        until: Wall,
    },
    /// At a gate: the most that any of the job's datacenters has given it, by grants and by operators.
    ExtensionsReported {
        grants: Duration,
        by_hand: Duration,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::Pages;

    #[test]
    fn records_lie_in_few_lines_of_memory() {
        assert_eq!(Pages::<Job>::ENTRY_BYTES, 128);
        assert_eq!(core::mem::offset_of!(Job, spec), 64);
        assert_eq!(Pages::<Workflow>::ENTRY_BYTES, 64);
    }

    #[test]
    fn members_are_the_same_wherever_they_lie() {
        for count in 0..=FEW as u32 + 2 {
            let keys: Vec<WorkflowKey> = (1..=count).map(|key| WorkflowKey::at(7 * key).unwrap()).collect();
            assert_eq!(Members::from(keys.iter().copied()).as_slice(), keys);
        }
    }
}
