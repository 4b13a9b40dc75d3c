//! Orders of gates, and which of them are obeyed.
//!
//! | order | carries | obeyed if |
//! |---|---|---|
//! | submit | epoch | the epoch is current, and the job is not here, was not before, and was not withdrawn |
//! | cancel, withdraw | epoch | the epoch is current |
//! | global timeout | epoch, term | the epoch is current, and the term is our own |
//! | remaining | epoch | the epoch is current |
//!
//! An epoch is current if it is not lower than the highest that decided about the job, nor that of the gate that leads.
//! What is not obeyed is answered with a correction; a submit is refused for now, and a withdraw is only counted, for there
//! is no job to speak of. A job that has ended is answered with its final status, from memory or from the archive.

use core::time::Duration;
use std::sync::Arc;

use crate::effect::{Effect, Effects, ManagerNotice};
use crate::event::{Event, GateOrigin, JobSubmitted};
use crate::fence::{GateEpoch, Term};
use crate::gate::message::{Correction, FromDatacenter, Placement, StaleToken, SubmitRefusal, ToDatacenter};
use crate::health::overload::{LoadClass, sheds};
use crate::ids::{JobId, StreamId};
use crate::input::GateQuestion;
use crate::job::JobSpec;
use crate::job::draft::check;
use crate::job::end::IDEMPOTENCY_KEPT;
use crate::job::fingerprint::fingerprint;
use crate::job::spec::Keys;
use crate::limits::Limit;
use crate::refusal::Refusal;
use crate::state::{JobImage, JobKey, WITHDRAWN, gate_key};
use crate::timeout::TimeoutReason;

use super::super::Manager;
use super::Round;
use super::reports::final_of_image;

/// Whether the archive was asked for a job that is not in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Archive {
    NotAsked,
    HasNothing,
}

/// The standing of a job that a gate speaks of.
enum Standing {
    /// The job is in memory, and a gate's.
    Here(JobKey),
    /// The job has left memory, or has another's key.
    Gone,
    Withdrawn,
    NeverHere,
}

impl Manager {
    pub(in crate::manager) fn handle_gate_message(
        &mut self,
        stream: StreamId,
        message: ToDatacenter,
        fx: &mut Effects,
    ) {
        if !self.gates.streams.contains_key(&stream) {
            return;
        }
        match message {
            ToDatacenter::Welcome { epoch } => self.handle_welcome(stream, epoch),
            ToDatacenter::Submit(placement) => self.handle_placement(stream, *placement, Archive::NotAsked, fx),
            ToDatacenter::Cancel { job, epoch } => self.handle_gate_cancel(stream, job, epoch, fx),
            ToDatacenter::GlobalTimeout { job, epoch, term, reason } => {
                self.handle_global_timeout(stream, job, (epoch, term), reason, fx);
            }
            ToDatacenter::Withdraw { job, epoch } => self.handle_withdraw(stream, job, epoch, Archive::NotAsked, fx),
            ToDatacenter::Remaining { job, epoch, remaining } => {
                self.handle_remaining(stream, job, epoch, remaining, fx);
            }
            ToDatacenter::Heard { job } => self.note_answer(job, fx),
            ToDatacenter::FinalHeard { jobs } => {
                for job in jobs {
                    self.gates.finals.remove(&job);
                }
            }
            ToDatacenter::Ask { jobs } => jobs.into_iter().for_each(|job| self.report_standing(stream, job, fx)),
        }
    }

    /// Answers a question by the archive's copy of the job.
    pub(in crate::manager) fn handle_found(
        &mut self,
        stream: StreamId,
        question: GateQuestion,
        image: Option<Box<JobImage>>,
        fx: &mut Effects,
    ) {
        if let Some(status) = image.and_then(|image| final_of_image(&image)) {
            let job = status.report.job;
            if self.state.find(job).is_none() {
                return self.send_to_gate(stream, FromDatacenter::Final(Box::new(status)), fx);
            }
        }
        match question {
            GateQuestion::Final { job } => match self.standing_of(job) {
                Standing::Here(_) => self.report_standing(stream, job, fx),
                Standing::Gone | Standing::Withdrawn | Standing::NeverHere => {
                    self.send_to_gate(stream, FromDatacenter::Unknown { job }, fx);
                }
            },
            GateQuestion::Submit(placement) => self.handle_placement(stream, *placement, Archive::HasNothing, fx),
            GateQuestion::Withdraw { job, epoch } => {
                self.handle_withdraw(stream, job, epoch, Archive::HasNothing, fx);
            }
        }
    }

    fn handle_welcome(&mut self, stream: StreamId, epoch: GateEpoch) {
        let Some(known) = self.gates.streams.get_mut(&stream) else { return };
        known.welcomed = Some(epoch);
        let is_transfer = self.gates.took_over;
        self.gates.report_at = self.now.mono;
        self.gates.rounds.push_back(Round { to: Some(stream), after: None, is_transfer });
    }

    fn standing_of(&self, job: JobId) -> Standing {
        if let Some(key) = self.state.find(job) {
            return if self.state.job(key).gate().is_some() { Standing::Here(key) } else { Standing::Gone };
        }
        match self.state.idempotency(&gate_key(job)) {
            Some(known) if known.fingerprint == WITHDRAWN => Standing::Withdrawn,
            Some(_) => Standing::Gone,
            None => Standing::NeverHere,
        }
    }

    fn is_current(&self, key: JobKey, epoch: GateEpoch) -> bool {
        let highest = self.state.job(key).epoch();
        highest.is_none_or(|highest| epoch >= highest) && !self.is_below_leading(epoch)
    }

    fn is_below_leading(&self, epoch: GateEpoch) -> bool {
        self.gates.leading().is_some_and(|leads| epoch.n < leads.n)
    }

    /// Whether an open job has met its overall deadline here.
    pub(super) fn is_late(&self, key: JobKey) -> bool {
        let job = self.state.job(key);
        let local = job.gate().and_then(|tie| tie.local);
        !job.has_ended() && local.is_some_and(|local| local.reason == TimeoutReason::Overall)
    }

    fn find_archived(&self, stream: StreamId, question: GateQuestion, fx: &mut Effects) {
        self.push(Effect::FindArchived { stream, question: Box::new(question) }, fx);
    }

    /// A report, or the final status, of a job that is asked for.
    fn report_standing(&mut self, stream: StreamId, job: JobId, fx: &mut Effects) {
        match self.standing_of(job) {
            Standing::Here(key) => {
                if let Some(status) = self.final_status(key) {
                    return self.send_to_gate(stream, FromDatacenter::Final(Box::new(status)), fx);
                }
                let reports = self.job_report(key).into_iter().collect();
                self.send_to_gate(stream, FromDatacenter::Progress(reports), fx);
            }
            Standing::Withdrawn => self.send_to_gate(stream, FromDatacenter::Withdrawn { job }, fx),
            Standing::Gone | Standing::NeverHere => self.find_archived(stream, GateQuestion::Final { job }, fx),
        }
    }

    /// Tells of a job that is gone. Its submit is confirmed first: about a job that was never confirmed a gate believes
    /// nobody.
    fn report_gone(&mut self, stream: StreamId, job: JobId, fx: &mut Effects) {
        self.send_to_gate(stream, FromDatacenter::Submitted { job, answer: Ok(()) }, fx);
        self.find_archived(stream, GateQuestion::Final { job }, fx);
    }

    fn correct(&mut self, stream: StreamId, key: JobKey, stale: StaleToken, fx: &mut Effects) {
        let refusal = match stale {
            StaleToken::Term => Refusal::StaleTerm,
            StaleToken::Epoch => Refusal::StaleEpoch,
        };
        self.refusals.note(&refusal);
        self.report(ManagerNotice::GateCorrected { job: self.state.job(key).id, stale }, fx);
        if let Some(report) = self.job_report(key) {
            self.send_to_gate(stream, FromDatacenter::Correction(Box::new(Correction { stale, report })), fx);
        }
    }

    fn handle_placement(&mut self, stream: StreamId, placement: Placement, archive: Archive, fx: &mut Effects) {
        let job = placement.job;
        match self.standing_of(job) {
            Standing::Here(key) => {
                self.send_to_gate(stream, FromDatacenter::Submitted { job, answer: Ok(()) }, fx);
                if self.state.job(key).has_ended() {
                    self.report_standing(stream, job, fx);
                }
            }
            Standing::Gone => self.report_gone(stream, job, fx),
            Standing::Withdrawn => {
                let answer = Err(SubmitRefusal::Withdrawn);
                self.send_to_gate(stream, FromDatacenter::Submitted { job, answer }, fx);
            }
            Standing::NeverHere if self.is_below_leading(placement.epoch) => {
                let answer = Err(self.refuse_placement(&Refusal::StaleEpoch));
                self.send_to_gate(stream, FromDatacenter::Submitted { job, answer }, fx);
            }
            Standing::NeverHere if placement.again && archive == Archive::NotAsked => {
                self.find_archived(stream, GateQuestion::Submit(Box::new(placement)), fx);
            }
            Standing::NeverHere => {
                let answer = self.submit_for_gate(placement, fx).map_err(|refusal| self.refuse_placement(&refusal));
                self.send_to_gate(stream, FromDatacenter::Submitted { job, answer }, fx);
            }
        }
    }

    fn refuse_placement(&mut self, refusal: &Refusal) -> SubmitRefusal {
        self.refusals.note(refusal);
        SubmitRefusal::Refused { kind: refusal.kind(), text: refusal.to_string().into() }
    }

    /// Submits like a client's submission, under the key and the id that the gate gave the job.
    fn submit_for_gate(&mut self, placement: Placement, fx: &mut Effects) -> Result<(), Refusal> {
        let Placement { job, epoch, again: _, waited, draft } = placement;
        if sheds(self.load, LoadClass::Submission) {
            return Err(Refusal::Overloaded);
        }
        let mut spec: JobSpec = check(draft, &self.rules.limits, &self.rules.job).map_err(Refusal::Invalid)?;
        self.dispatch.share(&mut spec);
        self.within(Limit::Jobs, self.state.job_count() + 1)?;
        self.within(Limit::IdempotencyKeys, self.state.idempotency_keys() + 1)?;
        self.dispatch.room_for(&self.rules.limits, core::iter::once(&spec)).map_err(Refusal::Limited)?;
        spec.keys = Some(Box::new(Keys { unique: None, idempotency: Some(gate_key(job)) }));
        let fingerprint = Some(fingerprint(&spec));
        self.emit(
            Event::JobSubmitted(JobSubmitted {
                id: job,
                spec: Arc::new(spec),
                fingerprint,
                retry_of: None,
                taken_over: Arc::default(),
                scheduled: None,
                gate: Some(Box::new(GateOrigin { epoch, waited })),
            }),
            fx,
        );
        self.gates.jobs.insert(job);
        Ok(())
    }

    fn handle_gate_cancel(&mut self, stream: StreamId, job: JobId, epoch: GateEpoch, fx: &mut Effects) {
        let Standing::Here(key) = self.standing_of(job) else { return self.report_standing(stream, job, fx) };
        if self.state.job(key).has_ended() {
            return self.report_standing(stream, job, fx);
        }
        if !self.is_current(key, epoch) {
            return self.correct(stream, key, StaleToken::Epoch, fx);
        }
        // It is there, it is open, and the epoch is current: nothing of it can be refused.
        let was_asked = self.state.job(key).cancel_asked;
        let answer = self.cancel(job, Some(epoch), fx);
        debug_assert!(answer.is_ok(), "a cancel under a current epoch is obeyed");
        self.note_answer(job, fx);
        if !was_asked && self.state.find(job).is_some_and(|key| !self.state.job(key).has_ended()) {
            // Handlers are still to end: until then this is what can be shown.
            self.report_standing(stream, job, fx);
        }
    }

    fn handle_global_timeout(
        &mut self,
        stream: StreamId,
        job: JobId,
        (epoch, term): (GateEpoch, Term),
        reason: TimeoutReason,
        fx: &mut Effects,
    ) {
        let Standing::Here(key) = self.standing_of(job) else { return self.report_standing(stream, job, fx) };
        if self.state.job(key).has_ended() {
            return self.report_standing(stream, job, fx);
        }
        if !self.is_current(key, epoch) {
            return self.correct(stream, key, StaleToken::Epoch, fx);
        }
        if term != self.seat.term() {
            return self.correct(stream, key, StaleToken::Term, fx);
        }
        self.end_timed_out(key, reason, Some(epoch), fx);
    }

    /// An answer that comes twice finds the job late once. Of one that has ended the final status is on its way.
    fn handle_remaining(
        &mut self,
        stream: StreamId,
        job: JobId,
        epoch: GateEpoch,
        remaining: Duration,
        fx: &mut Effects,
    ) {
        let Standing::Here(key) = self.standing_of(job) else { return };
        if self.state.job(key).has_ended() {
            return;
        }
        if !self.is_current(key, epoch) {
            return self.correct(stream, key, StaleToken::Epoch, fx);
        }
        if self.is_late(key) {
            let until = self.log_now() + remaining;
            self.emit(Event::TimeGiven { job, until }, fx);
            self.local_timeout_over(key, fx);
        }
    }

    /// Undoes a submit whose answer was lost. A job that came after all is placed, and is cancelled like any other.
    fn handle_withdraw(&mut self, stream: StreamId, job: JobId, epoch: GateEpoch, archive: Archive, fx: &mut Effects) {
        match self.standing_of(job) {
            Standing::Here(_) => {
                self.send_to_gate(stream, FromDatacenter::Submitted { job, answer: Ok(()) }, fx);
            }
            Standing::Withdrawn => self.send_to_gate(stream, FromDatacenter::Withdrawn { job }, fx),
            Standing::Gone => self.report_gone(stream, job, fx),
            Standing::NeverHere if self.is_below_leading(epoch) => self.refusals.note(&Refusal::StaleEpoch),
            Standing::NeverHere if archive == Archive::NotAsked => {
                self.find_archived(stream, GateQuestion::Withdraw { job, epoch }, fx);
            }
            Standing::NeverHere => {
                let key_until = self.log_now() + IDEMPOTENCY_KEPT;
                self.emit(Event::JobWithdrawn { job, key_until }, fx);
                self.send_to_gate(stream, FromDatacenter::Withdrawn { job }, fx);
            }
        }
    }

    /// A gate has said something about a job. If that has timed out here, the fallback waits for the next silence.
    fn note_answer(&mut self, job: JobId, fx: &mut Effects) {
        let Some(key) = self.state.find(job) else { return };
        let now = self.log_now();
        let Some(tie) = self.state.job(key).gate() else { return };
        let Some(local) = tie.local else { return };
        let is_first = tie.answered_at <= local.at;
        let logged = tie.answered_at.max(local.at);
        self.gates.answered.insert(job, now);
        if is_first || now.since(logged) >= self.answers_logged_every() {
            self.emit(Event::GateAnswered { job }, fx);
        }
        self.arm_fallback(key);
    }
}
