//! What a client may ask for: submit, cancel, extend. All of it is safe to repeat.

use core::time::Duration;
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::effect::AcceptedJob;
use crate::health::overload::{LoadClass, sheds};
use crate::ids::{JobId, Name};
use crate::input::Submission;
use crate::job::draft::{DraftProblem, Invalid, MAX_SPAN, check};
use crate::job::fingerprint::{Fingerprint, fingerprint};
use crate::job::{JobSpec, Start};
use crate::limits::Limit;
use crate::refusal::Refusal;
use crate::time::Wall;

use super::Gate;
use super::effect::{Answer, Effects};
use super::event::{EndCause, Event, JobSubmitted};
use super::route::{Candidate, choose};

/// The fate of one submission.
enum Admission {
    New { id: JobId, spec: Arc<JobSpec>, fingerprint: Option<Fingerprint> },
    Known(JobId),
}

/// The room that the earlier submissions of a batch have taken.
#[derive(Default)]
struct Batch {
    ids: BTreeSet<JobId>,
    unique: BTreeSet<Name>,
    /// Datacenters that were not known before.
    datacenters: BTreeSet<Name>,
    keys: Vec<(Name, JobId, Fingerprint)>,
}

impl Gate {
    pub(super) fn submit(&mut self, submissions: Vec<Submission>, fx: &mut Effects) -> Result<Answer, Refusal> {
        if sheds(self.load, LoadClass::Submission) {
            return Err(Refusal::Overloaded);
        }
        self.within(Limit::BatchJobs, submissions.len())?;
        let mut batch = Batch::default();
        let mut admissions = Vec::with_capacity(submissions.len());
        for (index, submission) in submissions.into_iter().enumerate() {
            let admission = self.check_submission(submission, &mut batch);
            admissions.push(admission.map_err(|cause| Refusal::InBatch { index, cause: Box::new(cause) })?);
        }
        self.within(Limit::Jobs, self.state.open_jobs() + batch.ids.len())?;
        let mut accepted = Vec::with_capacity(admissions.len());
        for admission in admissions {
            accepted.push(match admission {
                Admission::Known(id) => AcceptedJob { id, duplicate: true },
                Admission::New { id, spec, fingerprint } => {
                    let started_at = self.started_at(&spec);
                    let targets = self.targets_for(&spec);
                    let submitted = JobSubmitted { id, spec, fingerprint, started_at, targets };
                    self.emit(Event::JobSubmitted(Box::new(submitted)), fx);
                    self.send_owed(id, fx);
                    AcceptedJob { id, duplicate: false }
                }
            });
        }
        Ok(Answer::Submitted(accepted))
    }

    fn check_submission(&mut self, submission: Submission, batch: &mut Batch) -> Result<Admission, Refusal> {
        let Submission { id, draft } = submission;
        let spec = check(draft, &self.rules.limits, &self.rules.job).map_err(Refusal::Invalid)?;
        let mut print = None;
        if let Some(key) = spec.idempotency_key() {
            let own = fingerprint(&spec);
            let in_batch =
                batch.keys.iter().find(|(known, ..)| known == key).map(|(_, job, print)| (*job, Some(*print)));
            match self.state.idempotency(key).or(in_batch) {
                Some((job, Some(known))) if known == own => return Ok(Admission::Known(job)),
                Some(_) => return Err(Refusal::Conflict),
                None => batch.keys.push((key.clone(), id, own)),
            }
            print = Some(own);
        }
        if self.state.job(id).is_some() || !batch.ids.insert(id) {
            return Err(Refusal::Conflict);
        }
        if let Some(key) = spec.unique_key() {
            if let Some(holder) = self.state.unique_holder(key) {
                return Err(Refusal::UniqueKeyTaken(holder));
            }
            if !batch.unique.insert(key.clone()) {
                return Err(Refusal::UniqueKeyTwice);
            }
        }
        let named = spec.extras.iter().flat_map(|extras| extras.datacenters.iter());
        batch.datacenters.extend(named.filter(|name| self.datacenters.get(name).is_none()).cloned());
        self.within(Limit::Datacenters, self.datacenters.len() + batch.datacenters.len())?;
        Ok(Admission::New { id, spec: Arc::new(spec), fingerprint: print })
    }

    /// The instant at which a job that is submitted now could first run.
    fn started_at(&self, spec: &JobSpec) -> Wall {
        let now = self.log_now();
        match spec.start {
            Start::AtOnce => now,
            Start::After(delay) => now + delay,
            Start::At(wall) => now + wall.since(self.now.wall),
        }
    }

    /// The datacenters that the job names; else the one that is best now, if any is usable.
    pub(super) fn targets_for(&mut self, spec: &JobSpec) -> Box<[Name]> {
        let named = spec.extras.as_ref().map_or(&[][..], |extras| &extras.datacenters);
        if !named.is_empty() {
            return named.into();
        }
        let (rule, now) = (&self.rules.gate, self.awake);
        let candidates = self.datacenters.iter().map(|(datacenter, known)| Candidate {
            datacenter,
            class: self.datacenters.class(datacenter, rule, now).0,
            free_slots: known.counts.free_slots,
            sent: known.sent,
        });
        let Some(chosen) = choose(candidates).cloned() else { return Box::default() };
        if let Some(known) = self.datacenters.get_mut(&chosen) {
            known.sent += 1;
        }
        Box::new([chosen])
    }

    /// Jobs that wait for a datacenter, the oldest first, as many as a step takes.
    pub(super) fn place_waiting(&mut self, fx: &mut Effects) {
        let mut bite = self.bite;
        while !bite.is_over() && self.has_room_for_waiting() {
            let Some(id) = self.agenda.first_waiting() else { return };
            bite.spend(1);
            let Some(spec) = self.state.job(id).and_then(|job| job.spec.clone()) else { return };
            let targets = self.targets_for(&spec);
            if targets.is_empty() {
                return;
            }
            self.emit(Event::JobPlaced { job: id, targets }, fx);
            self.send_owed(id, fx);
        }
    }

    /// Whether a job that waits could be placed now.
    pub(super) fn has_room_for_waiting(&self) -> bool {
        let mut names = self.datacenters.iter().map(|(name, _)| name);
        self.agenda.first_waiting().is_some()
            && names.any(|name| self.datacenters.is_usable(name, &self.rules.gate, self.awake))
    }

    pub(super) fn cancel(&mut self, id: JobId, fx: &mut Effects) -> Result<Answer, Refusal> {
        let job = self.state.job(id).ok_or(Refusal::UnknownJob)?;
        if !job.has_ended() && job.decided.is_none() {
            self.decide_end(id, EndCause::Cancelled, fx);
        }
        Ok(Answer::Done)
    }

    /// More time by hand. The same request again is answered as the first time. A datacenter learns of it when its own
    /// time is over: its report is answered with what remains.
    pub(super) fn extend(
        &mut self,
        id: JobId,
        by: Duration,
        reason: Box<str>,
        request: Name,
        fx: &mut Effects,
    ) -> Result<Answer, Refusal> {
        let job = self.state.job(id).ok_or(Refusal::UnknownJob)?;
        match job.extended_by(&request) {
            Some(earlier) if earlier.by == by => return Ok(Answer::Extended { total: earlier.total }),
            Some(_) => return Err(Refusal::Conflict),
            None => {}
        }
        if job.has_ended() || job.decided.is_some() {
            return Err(Refusal::AlreadyEnded);
        }
        if by.is_zero() || by > MAX_SPAN {
            let problem = DraftProblem::SpanOutOfRange { value: by, min: Duration::from_millis(1), max: MAX_SPAN };
            return Err(Refusal::Invalid(Invalid { field: "by_s", problem }));
        }
        self.within(Limit::NoteBytes, reason.len())?;
        self.within(Limit::ExtensionsPerJob, job.by_hand.len() + 1)?;
        self.emit(Event::JobExtended { job: id, by, reason, request: request.clone() }, fx);
        let given = self.state.job(id).and_then(|job| job.extended_by(&request));
        Ok(Answer::Extended { total: given.expect("it was just given").total })
    }

    fn within(&self, limit: Limit, count: usize) -> Result<(), Refusal> {
        self.rules.limits.check(limit, count).map_err(Refusal::Limited)
    }
}
