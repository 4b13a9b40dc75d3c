//! More time, if earned. Every request and its answer goes into the ledger of the jobs that it is about.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use crate::effect::{Answer, Effects};
use crate::event::{Event, ExtensionDecided, Verb};
use crate::grant::{AttemptFacts, Denial, ExtensionReason, GrantFacts, UnknownReason, WorkerFacts, decide};
use crate::health::Verdict;
use crate::ids::Claim;
use crate::late::LateReport;
use crate::limits::Limit;
use crate::message::{ExtensionAnswer, ExtensionRequest};
use crate::refusal::{Refusal, RefusalKind};
use crate::state::{AttemptKey, ClaimStanding};
use crate::time::{Awake, Wall};

use super::Manager;
use super::fleet::{WorkerKey, WorkerTransport};

impl Manager {
    /// Answers a request by HTTP: its worker is the one that holds the first claim.
    pub(super) fn handle_extension_call(
        &mut self,
        asked: &ExtensionRequest,
        fx: &mut Effects,
    ) -> Result<Answer, Refusal> {
        let first = asked.claims.first().ok_or(Refusal::UnknownAttempt)?;
        let worker = match self.state.standing(first) {
            ClaimStanding::Current(key) => {
                self.watch().note_call(key);
                Some(self.fleet.live_mut(key).worker)
            }
            ClaimStanding::NoSuchJob => return Err(LateReport::of_claim(first)),
            _ => self.state.ended_attempt(first).and_then(|ended| self.fleet.find(&ended.worker)),
        };
        Ok(Answer::Extension(self.handle_extension(asked, worker, fx)?))
    }

    pub(super) fn handle_extension(
        &mut self,
        asked: &ExtensionRequest,
        worker: Option<WorkerKey>,
        fx: &mut Effects,
    ) -> Result<ExtensionAnswer, Refusal> {
        self.within(Limit::FrameItems, asked.claims.len())?;
        let claims = match (asked.claims.is_empty(), worker) {
            (false, _) => {
                let mut named = BTreeSet::new();
                asked.claims.iter().filter(|claim| named.insert(**claim)).copied().collect()
            }
            (true, None) => Vec::new(),
            (true, Some(worker)) => self.fleet.attempts(worker).map(|key| self.state.claim_of(key)).collect(),
        };
        let held: Vec<Option<AttemptKey>> = claims.iter().map(|claim| self.held_by(claim, worker)).collect();
        let reason = asked.reason.parse::<ExtensionReason>();
        let result = self.decide_extension(asked.progress, reason, worker, &held);
        self.counts.extension(&result);
        let before = self.state.seq();
        if let Err(Denial::StaleAttempt) = result {
            self.refuse_stale(&claims, &held, fx);
        }
        let until = match (result, worker) {
            (Ok(grant), Some(worker)) => Some(self.health_deadline(worker) + grant),
            _ => None,
        };
        // A denial is logged now and then, and one of an attempt that is over with its refusal.
        let logged = match result {
            Ok(_) => BTreeMap::from([(0, claims.clone())]),
            Err(denial) => {
                let was_refused = self.state.seq() > before;
                let attempts = claims.iter().copied().zip(held.iter().copied());
                self.count_denials(attempts, denial, was_refused)
            }
        };
        let Some(known) = worker.map(|worker| self.fleet.worker(worker)) else {
            return Ok(self.extension_answer(claims, Err(Denial::UnknownWorker), None));
        };
        let (id, incarnation) = (known.id.clone(), known.incarnation.clone());
        let live_until = until.map_or(Wall::ZERO, |until| self.log_now() + until.since(self.awake));
        for (repeats, claims) in logged {
            let is_known = claims.iter().any(|claim| self.state.find(claim.job).is_some()) || result.is_ok();
            if is_known {
                let decided = ExtensionDecided {
                    worker: id.clone(),
                    claims,
                    reason: reason.ok(),
                    progress: asked.progress,
                    result,
                    live_until,
                    repeats,
                    incarnation: Some(incarnation.clone()),
                };
                self.emit(Event::ExtensionDecided(Box::new(decided)), fx);
            }
        }
        if let (Ok(grant), Some(worker)) = (result, worker) {
            self.grant_time(worker, grant, held.into_iter().flatten().collect(), fx);
        }
        Ok(self.extension_answer(claims, result, worker))
    }

    /// The attempt that a claim names, if it is running and this worker's.
    fn held_by(&self, claim: &Claim, worker: Option<WorkerKey>) -> Option<AttemptKey> {
        match self.state.standing(claim) {
            ClaimStanding::Current(key) => {
                let holder = self.fleet.get_live(key).map(|live| live.worker);
                (holder.is_some() && holder == worker).then_some(key)
            }
            _ => None,
        }
    }

    fn decide_extension(
        &self,
        progress: f64,
        reason: Result<ExtensionReason, UnknownReason>,
        worker: Option<WorkerKey>,
        held: &[Option<AttemptKey>],
    ) -> Result<Duration, Denial> {
        let attempts: Vec<Option<AttemptFacts>> = held
            .iter()
            .map(|key| {
                key.map(|key| {
                    let attempt = self.state.attempt(key);
                    AttemptFacts { grants_used: attempt.grants, last_progress: attempt.last_grant_progress }
                })
            })
            .collect();
        let worker = worker.map(|worker| {
            let known = self.fleet.worker(worker);
            WorkerFacts {
                suspect: known.judged.verdict == Verdict::Suspect,
                evicted: known.evicted,
                grants_used: self.state.worker(&known.id).map_or(0, |record| record.grants),
            }
        });
        let facts = GrantFacts { worker, progress, reason, attempts: &attempts };
        decide(&self.rules.grant, &facts).map(|granted| granted.grant)
    }

    fn refuse_stale(&mut self, claims: &[Claim], held: &[Option<AttemptKey>], fx: &mut Effects) {
        self.refusals.count(RefusalKind::StaleAttempt);
        for (claim, _) in claims.iter().zip(held).filter(|(_, held)| held.is_none()) {
            // Only for its note in the ledger: the answer is the denial.
            let _refused = self.current(claim, Verb::RequestExtension, None, fx);
        }
    }

    /// The grant moves the worker's health deadline, and is live until that.
    fn grant_time(&mut self, worker: WorkerKey, grant: Duration, attempts: Vec<AttemptKey>, fx: &mut Effects) {
        let until = match &mut self.fleet.worker_mut(worker).link {
            WorkerTransport::Session { liveness, .. } => liveness.granted(&self.rules.liveness, grant),
            WorkerTransport::Http { liveness, .. } => liveness.granted(&self.rules.liveness, grant),
            // Nothing but the log has it.
            WorkerTransport::Expected => self.health_deadline(worker),
        };
        for key in attempts {
            self.fleet.live_mut(key).clock.grant(until);
            self.end_local_stuck_if_covered(key, fx);
            self.watch().update_motion(key);
            self.watch().arm(key);
            let job = self.state.workflow(self.fleet.live(key).workflow).job;
            self.end_local_overall_if_extended(job, fx);
        }
        self.fleet.touch(worker);
    }

    fn extension_answer(
        &self,
        claims: Vec<Claim>,
        result: Result<Duration, Denial>,
        worker: Option<WorkerKey>,
    ) -> ExtensionAnswer {
        let max = self.rules.grant.max_grants;
        let used = worker.map_or(max, |worker| {
            let of_worker = self.state.worker(&self.fleet.worker(worker).id).map_or(0, |record| record.grants);
            let of_attempts = claims
                .iter()
                .filter_map(|claim| self.held_by(claim, Some(worker)))
                .map(|key| self.state.attempt(key).grants);
            of_attempts.fold(of_worker, u32::max)
        });
        ExtensionAnswer {
            claims,
            result,
            remaining: worker.map_or(Duration::ZERO, |worker| self.health_deadline(worker).since(self.awake)),
            remaining_extensions: max.saturating_sub(used),
        }
    }

    pub(super) fn health_deadline(&self, worker: WorkerKey) -> Awake {
        let known = self.fleet.worker(worker);
        match &known.link {
            WorkerTransport::Session { liveness, .. } => liveness.health_deadline(&self.rules.liveness),
            WorkerTransport::Http { liveness, .. } => liveness.health_deadline(&self.rules.liveness),
            WorkerTransport::Expected => self.logged_grant(&known.id, &known.incarnation).max(self.awake),
        }
    }
}
