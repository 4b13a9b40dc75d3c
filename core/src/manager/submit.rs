//! What is accepted: limits, unique keys, idempotency keys. All or nothing.

use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::sync::Arc;

use crate::effect::{AcceptedJob, Answer, Effects};
use crate::event::{Event, JobSubmitted, RetryOf};
use crate::health::overload::{LoadClass, sheds};
use crate::ids::{JobId, Name};
use crate::input::Submission;
use crate::job::JobSpec;
use crate::job::draft::check;
use crate::job::fingerprint::{Fingerprint, fingerprint};
use crate::job::spec::Keys;
use crate::late::LateQuestion;
use crate::limits::Limit;
use crate::payload::Digest;
use crate::refusal::Refusal;
use crate::state::{JobImage, KeyRecord};

use super::Manager;

/// The fate of one submission.
enum Admission {
    New { id: JobId, spec: Arc<JobSpec>, fingerprint: Option<Fingerprint> },
    Known(JobId),
}

impl Manager {
    pub(super) fn submit(&mut self, submissions: Vec<Submission>, fx: &mut Effects) -> Result<Answer, Refusal> {
        if sheds(self.load, LoadClass::Submission) {
            return Err(Refusal::Overloaded);
        }
        let count = submissions.len();
        self.within(Limit::BatchJobs, count)?;
        let mut admissions = Vec::with_capacity(count);
        let mut batch = BatchReservations::default();
        for (index, submission) in submissions.into_iter().enumerate() {
            let admission = self.check_submission(submission, count > 1, &mut batch);
            admissions.push(admission.map_err(|cause| Refusal::InBatch { index, cause: Box::new(cause) })?);
        }
        let new = admissions.iter().filter_map(|admission| match admission {
            Admission::New { spec, .. } => Some(&**spec),
            Admission::Known(_) => None,
        });
        self.within(Limit::Jobs, self.state.job_count() + new.clone().count())?;
        self.dispatch.room_for(&self.rules.limits, new).map_err(Refusal::Limited)?;
        self.within(Limit::IdempotencyKeys, self.state.idempotency_keys() + batch.keys.len())?;
        let mut accepted = Vec::with_capacity(count);
        for admission in admissions {
            accepted.push(match admission {
                Admission::Known(id) => AcceptedJob { id, duplicate: true },
                Admission::New { id, spec, fingerprint } => {
                    let (retry_of, taken_over, scheduled) = (None, Arc::default(), None);
                    let submitted = JobSubmitted { id, spec, fingerprint, retry_of, taken_over, scheduled, gate: None };
                    self.emit(Event::JobSubmitted(submitted), fx);
                    AcceptedJob { id, duplicate: false }
                }
            });
        }
        Ok(Answer::Submitted(accepted))
    }

    fn check_submission(
        &mut self,
        submission: Submission,
        in_batch: bool,
        batch: &mut BatchReservations,
    ) -> Result<Admission, Refusal> {
        let Submission { id, draft } = submission;
        let mut spec = check(draft, &self.rules.limits, &self.rules.job).map_err(Refusal::Invalid)?;
        self.dispatch.share(&mut spec);
        if self.state.find(id).is_some() || (in_batch && !batch.ids.insert(id)) {
            return Err(Refusal::Conflict);
        }
        let mut print = None;
        if let Some(key) = spec.idempotency_key() {
            let own = fingerprint(&spec);
            match self.state.idempotency(key) {
                Some(known) if known.fingerprint == own => return Ok(Admission::Known(known.job)),
                Some(_) => return Err(Refusal::Conflict),
                None => {}
            }
            match batch.keys.entry(key.clone()) {
                btree_map::Entry::Occupied(known) if known.get().fingerprint == own => {
                    return Ok(Admission::Known(known.get().job));
                }
                btree_map::Entry::Occupied(_) => return Err(Refusal::Conflict),
                btree_map::Entry::Vacant(free) => {
                    free.insert(KeyRecord { job: id, fingerprint: own });
                }
            }
            print = Some(own);
        }
        self.check_unique(&spec, Some(batch))?;
        Ok(Admission::New { id, spec: Arc::new(spec), fingerprint: print })
    }

    pub(super) fn check_unique(&self, spec: &JobSpec, batch: Option<&mut BatchReservations>) -> Result<(), Refusal> {
        let Some(key) = spec.unique_key() else { return Ok(()) };
        if let Some(holder) = self.state.unique_holder(key) {
            return Err(Refusal::UniqueKeyTaken(holder));
        }
        if let Some(batch) = batch
            && !batch.unique.insert(key.clone())
        {
            return Err(Refusal::UniqueKeyTwice);
        }
        Ok(())
    }

    /// A new job like one that has ended, without running the workflows that are taken over from it. Safe to repeat: the
    /// same request gives the same job.
    pub(super) fn retry(
        &mut self,
        job: JobId,
        new_id: JobId,
        request: Name,
        taken_over: Arc<[u16]>,
        fx: &mut Effects,
    ) -> Result<Answer, Refusal> {
        let key = self.find_or(job, || LateQuestion::Retry { new_id, request: request.clone() })?;
        let original = self.state.job(key);
        let takes_over = !taken_over.is_empty();
        if let Some(known) = original.more.as_ref().and_then(|more| more.repeated_as(&request, takes_over)) {
            return known.map(|job| Answer::Retried { job });
        }
        if !original.has_ended() {
            return Err(Refusal::NotTerminal(self.state.job_state(key)));
        }
        let retries = original.more.as_ref().map_or(0, |more| more.retried_as.len());
        self.within(Limit::RetriesPerJob, retries + 1)?;
        let (spec, stays) = (original.spec.clone(), original.dead);
        // A copy of it may be on its way to the archive already, and that one does not know of this request. A dead
        // letter is copied only once it is none any more.
        let key = if stays { None } else { Some(retry_key(job, &request)) };
        let again = Repetition { id: new_id, key, retry_of: RetryOf { job, request }, taken_over };
        self.repeat(spec, again, fx)
    }

    /// The same for a job of the archive. Its own record cannot be written to any more, so that this request was heard
    /// is remembered under an idempotency key of its own.
    pub(super) fn retry_archived(
        &mut self,
        image: &JobImage,
        new_id: JobId,
        request: Name,
        fx: &mut Effects,
    ) -> Result<Answer, Refusal> {
        if self.state.find(image.id).is_some() {
            return self.retry(image.id, new_id, request, Arc::default(), fx);
        }
        if let Some(known) = image.retried_as(&request) {
            return Ok(Answer::Retried { job: known });
        }
        if !image.has_ended() {
            return Err(Refusal::NotTerminal(image.state()));
        }
        let key = retry_key(image.id, &request);
        if let Some(known) = self.state.idempotency(&key) {
            return Ok(Answer::Retried { job: known.job });
        }
        let mut spec = image.spec.clone();
        self.dispatch.share(&mut spec);
        let retry_of = RetryOf { job: image.id, request };
        self.repeat(spec, Repetition { id: new_id, key: Some(key), retry_of, taken_over: Arc::default() }, fx)
    }

    fn repeat(&mut self, mut spec: JobSpec, again: Repetition, fx: &mut Effects) -> Result<Answer, Refusal> {
        let Repetition { id, key, retry_of, taken_over } = again;
        if self.state.find(id).is_some() {
            return Err(Refusal::Conflict);
        }
        self.within(Limit::Jobs, self.state.job_count() + 1)?;
        if key.is_some() {
            self.within(Limit::IdempotencyKeys, self.state.idempotency_keys() + 1)?;
        }
        self.check_unique(&spec, None)?;
        self.dispatch.room_for(&self.rules.limits, core::iter::once(&spec)).map_err(Refusal::Limited)?;
        // A workflow that was delayed once need not wait again, and the key stays with the first job.
        Arc::make_mut(&mut spec.policy).start = crate::job::Start::AtOnce;
        let unique = spec.unique_key().cloned();
        spec.keys = (unique.is_some() || key.is_some()).then(|| Box::new(Keys { unique, idempotency: key }));
        let fingerprint = spec.idempotency_key().is_some().then(|| fingerprint(&spec));
        let (spec, retry_of) = (Arc::new(spec), Some(retry_of));
        let submitted = JobSubmitted { id, spec, fingerprint, retry_of, taken_over, scheduled: None, gate: None };
        self.emit(Event::JobSubmitted(submitted), fx);
        Ok(Answer::Retried { job: id })
    }

    pub(super) fn within(&self, limit: Limit, count: usize) -> Result<(), Refusal> {
        self.rules.limits.check(limit, count).map_err(Refusal::Limited)
    }
}

/// The key by which a request to run a job again is remembered when the job is not in memory any more.
fn retry_key(job: JobId, request: &Name) -> Name {
    let request = Digest::of(request.as_str().as_bytes()).to_string();
    Name::new(format!("retry of {job}: {}", &request[..32])).expect("short, and without control characters")
}

/// A job that repeats another.
struct Repetition {
    id: JobId,
    /// The idempotency key that remembers the request where the other job cannot.
    key: Option<Name>,
    retry_of: RetryOf,
    taken_over: Arc<[u16]>,
}

/// The room that the earlier submissions of a batch have taken.
#[derive(Default)]
pub(super) struct BatchReservations {
    ids: BTreeSet<JobId>,
    unique: BTreeSet<Name>,
    keys: BTreeMap<Name, KeyRecord>,
}
