//! What becomes of a job by what a datacenter says about it.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{JobId, Name};
use crate::job::JobState;
use crate::job::end::IDEMPOTENCY_KEPT;
use crate::limits::{Limit, LimitMet};
use crate::refusal::Refusal;
use crate::time::{Awake, Wall};
use crate::timeout::{ExtensionTotals, TimeoutReason};

use super::Gate;
use super::declare::{JobSight, TargetSight, declare};
use super::effect::{Effects, GateNotice};
use super::event::{EndCause, Event, JobRebuilt, TargetCause, TargetEnd, TargetEnded};
use super::message::{
    Correction, FinalStatus, JobReport, Outcome, StaleToken, SubmitRefusal, ToDatacenter, WorkflowCounts,
};
use super::state::Job;

/// The last report about each target of each open job. Soft.
#[derive(Debug, Default)]
pub(super) struct Tracks {
    by_job: BTreeMap<JobId, Vec<Track>>,
    /// Jobs that some target has reported as stuck.
    stuck: BTreeSet<JobId>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Track {
    pub reported_at: Option<Awake>,
    pub state: Option<JobState>,
    pub timed_out: Option<TimeoutReason>,
    pub since_progress: Option<Duration>,
    pub workflows: WorkflowCounts,
    pub attempts: u32,
    /// A submit was sent to it in this term.
    sent: bool,
    /// The reason why the datacenter does not take the job for now.
    pub refused: Option<Box<str>>,
}

impl Tracks {
    pub(super) fn update(&mut self, job: &Job) {
        if job.has_ended() {
            return self.remove(job.id);
        }
        self.by_job.entry(job.id).or_default().resize(job.targets.len(), Track::default());
        if job.decided.is_some() {
            self.stuck.remove(&job.id);
        }
    }

    pub(super) fn remove(&mut self, id: JobId) {
        self.by_job.remove(&id);
        self.stuck.remove(&id);
    }

    /// The number of targets of an open job that are followed.
    pub(super) fn targets_of(&self, id: JobId) -> usize {
        self.by_job.get(&id).map_or(0, Vec::len)
    }

    pub(super) fn get(&self, id: JobId, index: usize) -> Option<&Track> {
        self.by_job.get(&id)?.get(index)
    }

    fn get_mut(&mut self, id: JobId, index: usize) -> Option<&mut Track> {
        self.by_job.get_mut(&id)?.get_mut(index)
    }

    pub(super) fn was_sent(&self, id: JobId, index: usize) -> bool {
        self.get(id, index).is_some_and(|track| track.sent)
    }

    pub(super) fn note_sent(&mut self, id: JobId, index: usize) {
        if let Some(track) = self.get_mut(id, index) {
            track.sent = true;
        }
    }

    fn note_report(&mut self, index: usize, report: &JobReport, now: Awake) {
        let Some(track) = self.get_mut(report.job, index) else { return };
        track.reported_at = Some(now);
        track.state = Some(report.state);
        track.timed_out = report.timed_out;
        track.since_progress = report.since_progress;
        track.workflows = report.workflows;
        track.attempts = report.attempts;
        track.refused = None;
        let is_stuck = |track: &Track| track.timed_out == Some(TimeoutReason::Stuck);
        if self.by_job.get(&report.job).is_some_and(|tracks| tracks.iter().any(is_stuck)) {
            self.stuck.insert(report.job);
        } else {
            self.stuck.remove(&report.job);
        }
    }

    pub(super) fn stuck(&self) -> impl Iterator<Item = JobId> + '_ {
        self.stuck.iter().copied()
    }

    pub(super) fn jobs(&self) -> &BTreeMap<JobId, Vec<Track>> {
        &self.by_job
    }
}

impl Gate {
    /// An open job, as a datacenter has it. `is_newest`: nothing newer came from the same leader.
    pub(super) fn handle_job_report(
        &mut self,
        datacenter: &Name,
        report: &JobReport,
        is_newest: bool,
        fx: &mut Effects,
    ) {
        let id = report.job;
        let Some(index) = self.target_of(datacenter, report, fx) else {
            // It is placed elsewhere by now, or there is no room for it.
            return self.end_again(id, datacenter, fx);
        };
        let target = &self.state.jobs[&id].targets[index];
        if target.end.is_some() {
            return self.end_again(id, datacenter, fx);
        }
        self.confirm_target(id, datacenter, fx);
        self.note_extensions(id, report.extended, fx);
        if is_newest {
            self.tracks.note_report(index, report, self.awake);
        }
        let job = &self.state.jobs[&id];
        if let Some(decision) = job.decided {
            // That it is stopping is no reason to tell it again at once.
            let is_stopping = report.state == JobState::Cancelling;
            if decision.why != EndCause::Cancelled || !is_stopping {
                self.send_owed_to(id, datacenter, fx);
            }
            return;
        }
        self.judge(id, fx);
        self.answer_timeout(datacenter, report, fx);
    }

    /// A timeout that was reported is answered each time, so that the datacenter knows that somebody decides about it.
    fn answer_timeout(&mut self, datacenter: &Name, report: &JobReport, fx: &mut Effects) {
        let Some(reason) = report.timed_out else { return };
        let Some(stream) = self.datacenters.get(datacenter).and_then(|known| known.stream) else { return };
        let Some(job) = self.state.job(report.job).filter(|job| job.decided.is_none()) else { return };
        let remaining = job.deadline().since(self.log_now());
        let message = match reason {
            TimeoutReason::Overall if !remaining.is_zero() => {
                ToDatacenter::Remaining { job: report.job, epoch: self.epoch_of(job), remaining }
            }
            TimeoutReason::Overall | TimeoutReason::Stuck => ToDatacenter::Heard { job: report.job },
        };
        self.send(stream, message, fx);
    }

    /// The target that a report is about. A job that is not known is taken over from it; and one that waits for a
    /// datacenter is where one has it, since this log was restored from a backup.
    fn target_of(&mut self, datacenter: &Name, report: &JobReport, fx: &mut Effects) -> Option<usize> {
        match self.state.job(report.job) {
            None => self.rebuild(datacenter, report, fx),
            Some(job) if job.targets.is_empty() && !job.has_ended() => {
                self.emit(Event::JobPlaced { job: report.job, targets: Box::new([datacenter.clone()]) }, fx);
            }
            Some(_) => {}
        }
        self.state.job(report.job)?.target(datacenter).map(|(index, _)| index)
    }

    /// Takes a reported job into memory. One for which there is no room is not forgotten: its datacenter goes on
    /// reporting it.
    fn rebuild(&mut self, datacenter: &Name, report: &JobReport, fx: &mut Effects) {
        let mut outline = report.outline.clone();
        // Each once: a target that is there twice would end once, and the job never.
        let mut targets: Vec<Name> = Vec::new();
        for name in outline.targets.iter().chain([datacenter]) {
            if !targets.contains(name) {
                targets.push(name.clone());
            }
        }
        outline.targets = targets.into();
        if let Err(met) = self.room_for_rebuilt(&outline.targets) {
            return self.refusals.note(&Refusal::Limited(met));
        }
        let seen = report.epoch.map_or(0, |epoch| epoch.n.saturating_add(1));
        let rebuilt = JobRebuilt {
            id: report.job,
            outline,
            started_at: self.log_now() - report.elapsed.unwrap_or_default(),
            n: self.epoch_number().max(seen),
            extended: report.extended,
        };
        self.emit(Event::JobRebuilt(Box::new(rebuilt)), fx);
        self.report(GateNotice::JobRebuilt { job: report.job, datacenter: datacenter.clone() }, fx);
    }

    fn room_for_rebuilt(&self, targets: &[Name]) -> Result<(), LimitMet> {
        let new = targets.iter().filter(|name| self.datacenters.get(name).is_none()).count();
        self.rules.limits.check(Limit::Jobs, self.state.open_jobs() + 1)?;
        self.rules.limits.check(Limit::Datacenters, self.datacenters.len() + new)
    }

    fn confirm_target(&mut self, id: JobId, datacenter: &Name, fx: &mut Effects) {
        let Some((_, target)) = self.state.job(id).and_then(|job| job.target(datacenter)) else { return };
        if !target.confirmed && target.end.is_none() {
            self.emit(Event::TargetConfirmed { job: id, datacenter: datacenter.clone() }, fx);
            self.durability.count_handout();
        }
    }

    fn note_extensions(&mut self, id: JobId, extended: ExtensionTotals, fx: &mut Effects) {
        let known = self.state.jobs[&id].extended;
        let most =
            ExtensionTotals { grants: known.grants.max(extended.grants), by_hand: known.by_hand.max(extended.by_hand) };
        if most != known {
            self.emit(Event::ExtensionsSeen { job: id, extended: most }, fx);
        }
    }

    /// Judges whether the job has timed out everywhere, by all that is known now.
    pub(super) fn judge(&mut self, id: JobId, fx: &mut Effects) {
        let Some(job) = self.state.job(id).filter(|job| !job.has_ended() && job.decided.is_none()) else { return };
        if !self.may_decide() {
            // More time, or a sign of life, may be queued.
            self.agenda.to_judge.insert(id);
            return;
        }
        let is_overdue = self.overall_fires_at(job) <= self.log_now();
        let targets: Vec<TargetSight> = (0..job.targets.len()).map(|index| self.target_sight(job, index)).collect();
        let hears_any = self.datacenters.heard_count(&self.rules.gate, self.awake) > 0;
        let sight = JobSight { policy: job.outline.policy, targets: &targets, is_overdue, hears_any };
        if let Some(reason) = declare(&sight) {
            self.decide_end(id, EndCause::TimedOut(reason), fx);
        }
    }

    fn target_sight(&self, job: &Job, index: usize) -> TargetSight {
        let target = &job.targets[index];
        if let Some(end) = &target.end {
            let stuck = end.cause == TargetCause::TimedOut(TimeoutReason::Stuck);
            return TargetSight::Finished { outcome: end.outcome, stuck };
        }
        let reported = self.tracks.get(job.id, index).and_then(|track| track.timed_out);
        TargetSight::Open {
            stuck: reported == Some(TimeoutReason::Stuck),
            silent: self.datacenters.is_silent(&target.datacenter, &self.rules.gate, self.awake),
        }
    }

    pub(super) fn handle_final(&mut self, datacenter: &Name, status: &FinalStatus, fx: &mut Effects) {
        let report = &status.report;
        if self.target_of(datacenter, report, fx).is_some() {
            self.confirm_target(report.job, datacenter, fx);
            self.note_extensions(report.job, report.extended, fx);
            let cause = match (status.outcome, report.timed_out) {
                (Outcome::TimedOut, Some(reason)) => TargetCause::TimedOut(reason),
                _ => TargetCause::Reported,
            };
            let end = TargetEnd {
                outcome: status.outcome,
                cause,
                error: status.error.clone(),
                result: status.result.clone(),
                attempts: report.attempts,
            };
            self.end_target(report.job, datacenter, end, fx);
        }
        // One that could not be rebuilt is to be said again.
        let is_heard = self.state.job(report.job).is_some();
        if let Some(stream) = self.datacenters.get(datacenter).and_then(|known| known.stream).filter(|_| is_heard) {
            self.send(stream, ToDatacenter::FinalHeard { jobs: vec![report.job] }, fx);
        }
    }

    /// A target ends once; what is said about it later changes nothing.
    fn end_target(&mut self, id: JobId, datacenter: &Name, end: TargetEnd, fx: &mut Effects) {
        let Some(job) = self.state.job(id) else { return };
        let Some((_, target)) = job.target(datacenter) else { return };
        if target.end.is_some() {
            return;
        }
        let kept_until = self.kept_until(job);
        let ended = TargetEnded { job: id, datacenter: datacenter.clone(), end, kept_until };
        self.emit(Event::TargetEnded(Box::new(ended)), fx);
        self.judge(id, fx);
    }

    /// A target that never ran the job, or is known no more.
    pub(super) fn end_unrun(
        &mut self,
        id: JobId,
        datacenter: &Name,
        how: (Outcome, TargetCause),
        why: &str,
        fx: &mut Effects,
    ) {
        let (outcome, cause) = how;
        let error = (!why.is_empty()).then(|| why.into());
        self.end_target(id, datacenter, TargetEnd { outcome, cause, error, result: None, attempts: 0 }, fx);
    }

    pub(super) fn handle_submitted(
        &mut self,
        datacenter: &Name,
        id: JobId,
        answer: Result<(), SubmitRefusal>,
        fx: &mut Effects,
    ) {
        match answer {
            Ok(()) => {
                self.confirm_target(id, datacenter, fx);
                // The job's end may have been decided meanwhile.
                self.send_owed_to(id, datacenter, fx);
            }
            Err(SubmitRefusal::Withdrawn) => self.handle_withdrawn(datacenter, id, fx),
            Err(refusal) if refusal.is_transient() => self.note_refused(datacenter, id, &refusal),
            Err(SubmitRefusal::Refused { text, .. }) => {
                // What it has confirmed before it cannot refuse.
                let confirmed =
                    self.state.job(id).and_then(|job| job.target(datacenter)).is_none_or(|(_, t)| t.confirmed);
                if !confirmed {
                    self.end_unrun(id, datacenter, (Outcome::Failed, TargetCause::Refused), &text, fx);
                }
            }
        }
    }

    fn note_refused(&mut self, datacenter: &Name, id: JobId, refusal: &SubmitRefusal) {
        let Some((index, _)) = self.state.job(id).and_then(|job| job.target(datacenter)) else { return };
        if let (Some(track), SubmitRefusal::Refused { text, .. }) = (self.tracks.get_mut(id, index), refusal) {
            track.refused = Some(text.clone());
        }
    }

    pub(super) fn handle_withdrawn(&mut self, datacenter: &Name, id: JobId, fx: &mut Effects) {
        let decided = self.state.job(id).and_then(|job| job.decided);
        let outcome = decided.map_or(Outcome::Cancelled, |decision| decision.why.outcome());
        self.end_unrun(id, datacenter, (outcome, TargetCause::Withdrawn), "", fx);
    }

    /// The datacenter had the job, and knows nothing of it any more. One that has not confirmed it has answered an order that
    /// overtook the job itself: what it is owed is sent again anyway, and it confirms even what it has only a key of.
    pub(super) fn handle_unknown(&mut self, datacenter: &Name, id: JobId, fx: &mut Effects) {
        let Some(job) = self.state.job(id) else { return };
        if !job.target(datacenter).is_some_and(|(_, target)| target.confirmed) {
            return;
        }
        let why = "the datacenter knows nothing of this job any more";
        let outcome = job.decided.map_or(Outcome::Failed, |decision| decision.why.outcome());
        self.end_unrun(id, datacenter, (outcome, TargetCause::Lost), why, fx);
    }

    /// A decision was refused: what is current is taken in, and the decision is sent again if it still stands.
    pub(super) fn handle_correction(
        &mut self,
        datacenter: &Name,
        correction: &Correction,
        newest: bool,
        fx: &mut Effects,
    ) {
        let Correction { stale, report } = correction;
        let (job, datacenter_name) = (report.job, datacenter.clone());
        self.report(GateNotice::Corrected { job, datacenter: datacenter_name, stale: *stale }, fx);
        if *stale == StaleToken::Epoch {
            self.raise_epoch(report.epoch, fx);
        }
        self.handle_job_report(datacenter, report, newest, fx);
    }

    /// The end of the time that a job is kept which ends now: as long as asked, and as long as its key is remembered.
    pub(super) fn kept_until(&self, job: &Job) -> Wall {
        let spec = job.spec.as_ref();
        let retain = spec.and_then(|spec| spec.extras.as_ref()?.retain);
        let has_key = spec.is_some_and(|spec| spec.idempotency_key().is_some());
        let least = if has_key { IDEMPOTENCY_KEPT } else { Duration::ZERO };
        self.log_now() + retain.unwrap_or(IDEMPOTENCY_KEPT).max(least)
    }
}
