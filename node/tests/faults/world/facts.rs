//! The facts that are known of a job by what was asked and answered, and what a node may say of it then.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use onward_core::fence::AttemptFence;
use onward_core::ids::{JobId, Name};
use onward_core::job::{Ending, JobState};
use onward_core::message::EndReport;
use onward_core::state::{JobImage, LedgerFact};

use super::Bytes;

/// What was said to the node.
#[derive(Clone, PartialEq, Debug)]
pub enum KnownAnswer<T> {
    Nothing,
    /// And never answered.
    Perhaps(T),
    Sure(T),
}

impl<T> KnownAnswer<T> {
    pub const fn is_sure(&self) -> bool {
        matches!(self, Self::Sure(_))
    }

    pub const fn maybe(&self) -> Option<&T> {
        match self {
            Self::Nothing => None,
            Self::Perhaps(value) | Self::Sure(value) => Some(value),
        }
    }

    /// Begins to ask. Asking again for what was answered leaves that as it is.
    pub fn ask(&mut self, value: T) {
        if !self.is_sure() {
            *self = Self::Perhaps(value);
        }
    }
}

/// The last report of an attempt, with its checkpoint.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    pub end: EndReport,
    pub checkpoint: Option<Bytes>,
}

#[derive(Clone, Debug)]
pub struct KnownAttempt {
    pub report: KnownAnswer<Report>,
    /// One that comes soon after another waits in memory, and is lost with the term.
    pub has_checkpointed: bool,
}

/// The checkpoint that the next attempt gets: one that is surely stored, or one of those that came later.
#[derive(Clone, Default, Debug)]
pub struct KnownCheckpoint {
    pub stored: Option<Bytes>,
    pub later: Vec<Bytes>,
}

impl KnownCheckpoint {
    pub fn store(&mut self, data: Option<Bytes>) {
        (self.stored, self.later) = (data, Vec::new());
    }

    pub fn may_be(&self, found: Option<&Bytes>) -> bool {
        found == self.stored.as_ref() || found.is_some_and(|found| self.later.contains(found))
    }
}

/// Time that was asked for by hand.
#[derive(Clone, Debug)]
pub struct KnownExtension {
    pub by: Duration,
    pub reason: Arc<str>,
    /// Of all extensions of the job, once it is sure.
    pub total: KnownAnswer<Option<Duration>>,
}

/// A request to run a dead letter again.
#[derive(Clone, Default, Debug)]
pub struct KnownReplay {
    /// Each call brought an id of its own: one of them at most is that of a job.
    pub offered: Vec<JobId>,
    pub answer: Option<JobId>,
}

#[derive(Clone, Debug)]
pub struct Job {
    pub payload: Bytes,
    /// Whether it was acknowledged; otherwise it may not be there.
    pub is_sure: bool,
    /// Its request was answered with another job, so it must not be there.
    pub is_nowhere: bool,
    pub retry_of: Option<JobId>,
    pub cancel: KnownAnswer<()>,
    pub attempts: BTreeMap<AttemptFence, KnownAttempt>,
    pub checkpoint: KnownCheckpoint,
    pub extensions: BTreeMap<Name, KnownExtension>,
    /// It surely became a dead letter: that was answered before anybody asked to cancel it.
    pub has_died: bool,
    pub replays: BTreeMap<Name, KnownReplay>,
    pub is_drop_asked: bool,
    /// It surely is no dead letter any more.
    pub is_released: bool,
}

impl Job {
    pub fn new(payload: Bytes, is_sure: bool) -> Self {
        Self {
            payload,
            is_sure,
            is_nowhere: false,
            retry_of: None,
            cancel: KnownAnswer::Nothing,
            attempts: BTreeMap::new(),
            checkpoint: KnownCheckpoint::default(),
            extensions: BTreeMap::new(),
            has_died: false,
            replays: BTreeMap::new(),
            is_drop_asked: false,
            is_released: false,
        }
    }

    pub fn repeating(original: JobId, payload: Bytes, is_sure: bool) -> Self {
        Self { retry_of: Some(original), ..Self::new(payload, is_sure) }
    }

    pub fn attempt(&mut self, fence: AttemptFence) -> &mut KnownAttempt {
        let new = || KnownAttempt { report: KnownAnswer::Nothing, has_checkpointed: false };
        self.attempts.entry(fence).or_insert_with(new)
    }

    fn reports(&self) -> impl Iterator<Item = &KnownAnswer<Report>> {
        self.attempts.values().map(|attempt| &attempt.report)
    }

    fn has_report(&self, is_such: impl Fn(&EndReport) -> bool) -> bool {
        self.reports().any(|report| report.maybe().is_some_and(|report| is_such(&report.end)))
    }

    fn has_sure_report(&self, is_such: impl Fn(&EndReport) -> bool) -> bool {
        self.reports().any(|report| report.is_sure() && report.maybe().is_some_and(|report| is_such(&report.end)))
    }

    pub fn may_have_ended(&self) -> bool {
        self.cancel.maybe().is_some() || self.has_report(is_final)
    }

    pub fn has_surely_ended(&self) -> bool {
        self.cancel.is_sure() || self.has_sure_report(is_final)
    }

    /// Somebody may have replayed or dropped it, other than by this request.
    pub fn may_be_released(&self, request: Option<&Name>) -> bool {
        !self.has_died || self.is_drop_asked || self.replays.keys().any(|known| Some(known) != request)
    }

    pub fn may_be(&self, state: JobState) -> bool {
        match state {
            JobState::Succeeded => self.has_report(is_success),
            _ if self.has_sure_report(is_success) => false,
            JobState::Failed => self.has_report(is_failure_for_good),
            // A success that comes late still counts, so somebody may be at it.
            JobState::Cancelled | JobState::Cancelling => self.cancel.maybe().is_some() && !self.has_died,
            _ if self.cancel.is_sure() || self.has_sure_report(is_final) => false,
            JobState::Ready | JobState::Running => true,
            JobState::Delayed => self.has_report(|end| !is_final(end)),
            _ => false,
        }
    }

    /// Compares all but content that may lie in the store. `is_listed`: whether it is among the dead letters.
    pub fn compare(&self, image: &JobImage, is_listed: bool) -> Result<(), String> {
        let state = image.state();
        if self.is_nowhere || !self.may_be(state) {
            return Err(format!("it is {state:?}; nowhere: {}, {:?}", self.is_nowhere, self.brief()));
        }
        let more = image.more.as_deref();
        let retry_of = more.and_then(|more| more.retry_of);
        if self.retry_of.is_some() && retry_of != self.retry_of {
            return Err(format!("it repeats {retry_of:?}, not {:?}", self.retry_of));
        }
        let checkpoint = image.workflows[0].past.as_ref().and_then(|past| past.checkpoint.as_ref());
        if !self.checkpoint.may_be(checkpoint) {
            return Err("its checkpoint is another".to_owned());
        }
        self.compare_extensions(image)?;
        self.compare_letter(image, is_listed)
    }

    /// The answers to what was reported and asked, without the content.
    fn brief(&self) -> (&KnownAnswer<()>, Vec<(bool, Option<&'static str>)>) {
        let word = |report: &KnownAnswer<Report>| report.maybe().map(|known| known.end.clone().into_ending().code());
        (&self.cancel, self.reports().map(|report| (report.is_sure(), word(report))).collect())
    }

    fn compare_extensions(&self, image: &JobImage) -> Result<(), String> {
        let more = image.more.as_deref().cloned().unwrap_or_default();
        let mut total = Duration::ZERO;
        for given in &more.by_hand {
            let known = self.extensions.get(&given.request).ok_or("nobody asked for an extension")?;
            total += known.by;
            let in_ledger = |what: &LedgerFact| {
                let LedgerFact::ExtendedByHand { by, reason, request } = what else { return false };
                (by, &**reason, request) == (&known.by, &*known.reason, &given.request)
            };
            if given.by != known.by || given.total != total || !more.ledger.entries.iter().any(|e| in_ledger(&e.what)) {
                return Err(format!("{given:?} is not what was asked for"));
            }
        }
        if more.extensions != total {
            return Err(format!("{:?} were added, not {total:?}", more.extensions));
        }
        for (request, known) in &self.extensions {
            let found = more.extended_by(request).map(|given| given.total);
            if let KnownAnswer::Sure(total) = &known.total
                && found != *total
            {
                return Err(format!("{request:?} was answered with {total:?}, and now it is {found:?}"));
            }
        }
        Ok(())
    }

    fn compare_letter(&self, image: &JobImage, is_listed: bool) -> Result<(), String> {
        let is_dead = image.died().is_some();
        let may_be_dead = self.has_report(is_failure_for_good) && !self.is_released;
        let must_be_dead = self.has_died && !self.is_drop_asked && self.replays.is_empty();
        if is_dead != is_listed || is_dead && !may_be_dead || must_be_dead && !is_dead {
            let wanted = (must_be_dead, may_be_dead);
            return Err(format!("a dead letter: {is_dead}, in the list: {is_listed}; must and may be: {wanted:?}"));
        }
        for (request, replay) in &self.replays {
            let found = image.retried_as(request);
            let is_right = match replay.answer {
                Some(answer) => found == Some(answer),
                None => found.is_none_or(|found| replay.offered.contains(&found)),
            };
            if !is_right {
                return Err(format!("{request:?} made {found:?}, and was answered with {:?}", replay.answer));
            }
        }
        Ok(())
    }
}

pub const fn is_success(end: &EndReport) -> bool {
    matches!(end, EndReport::Succeed { .. })
}

pub const fn is_failure_for_good(end: &EndReport) -> bool {
    matches!(end, EndReport::Fail { retryable: false, .. })
}

const fn is_final(end: &EndReport) -> bool {
    is_success(end) || is_failure_for_good(end)
}

/// Whether an attempt ended as its holder said, apart from a result.
pub fn is_end_of(ending: &Ending, report: &EndReport) -> bool {
    match (ending, report) {
        (Ending::Succeeded { .. }, EndReport::Succeed { .. }) => true,
        (ending, report) => *ending == report.clone().into_ending(),
    }
}
