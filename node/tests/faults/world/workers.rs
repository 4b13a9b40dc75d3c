//! Workers of the world: what they are handed, and what they say of it.

use std::sync::Arc;
use std::time::Duration;

use onward_core::ids::{Claim, JobId, Name};
use onward_core::input::Poll;
use onward_core::job::draft::DEFAULT_QUEUE;
use onward_core::message::{Assignment, Beat, EndReport, Settlement, Subscription};
use onward_node::engine::Engine;

use super::facts::{KnownAnswer, Report, is_failure_for_good};
use super::{Bytes, Stop, World, answered};
use crate::rig::poll;

impl World {
    /// Succeeds with a job, if there is one that is ready.
    pub async fn succeed(&self, engine: &Engine, result: Bytes) -> Result<Option<JobId>, Stop> {
        let Some(claim) = self.lease(engine).await? else { return Ok(None) };
        self.settle(engine, claim, result).await?;
        Ok(Some(claim.job))
    }

    pub async fn lease(&self, engine: &Engine) -> Result<Option<Claim>, Stop> {
        self.lease_of(engine, &Name::new(DEFAULT_QUEUE).unwrap()).await
    }

    pub(super) async fn lease_of(&self, engine: &Engine, queue: &Name) -> Result<Option<Claim>, Stop> {
        let subscription = Subscription { queues: vec![queue.clone()], ..poll().subscription };
        let (leases, mut delivery) =
            answered(engine.poll(Poll { wait: Duration::ZERO, subscription, ..poll() })).await?;
        delivery.done();
        let Some(lease) = leases.first() else { return Ok(None) };
        self.compare_lease(lease).map_err(|wrong| format!("job {} was handed out with {wrong}", lease.claim.job))?;
        Ok(Some(lease.claim))
    }

    fn compare_lease(&self, lease: &Assignment) -> Result<(), String> {
        let mut known = self.known();
        let job = known.jobs.get_mut(&lease.claim.job).ok_or("an id that nobody knows")?;
        if lease.workflow.payload.as_inline() != Some(&job.payload) {
            return Err("another payload".to_owned());
        }
        if !job.checkpoint.may_be(lease.checkpoint.as_ref()) {
            return Err("another checkpoint".to_owned());
        }
        // Nobody can change it any more but this attempt.
        job.checkpoint.store(lease.checkpoint.clone());
        Ok(())
    }

    /// Leaves where the next attempt is to go on.
    pub async fn checkpoint(&self, engine: &Engine, claim: Claim, data: Bytes) -> Result<(), Stop> {
        let is_first = self.note(claim.job, |job| {
            job.checkpoint.later.push(data.clone());
            !std::mem::replace(&mut job.attempt(claim.fence).has_checkpointed, true)
        });
        let answers =
            answered(engine.beat(vec![Beat { checkpoint: Some(data.clone()), ..Beat::plain(claim) }])).await?;
        let job = self.job(claim.job);
        match &answers[0].answer {
            Ok(accepted) if accepted.cancel && job.cancel.maybe().is_some() => {}
            Ok(accepted) if !accepted.cancel => {
                if is_first {
                    self.note(claim.job, |job| job.checkpoint.store(Some(data)));
                }
            }
            other => return Err(Stop::Wrong(format!("a beat of job {} was answered with {other:?}", claim.job))),
        }
        Ok(())
    }

    pub async fn settle(&self, engine: &Engine, claim: Claim, result: Bytes) -> Result<(), Stop> {
        let end = EndReport::Succeed { result: result.into() };
        self.report(engine, claim, Report { end, checkpoint: None }).await
    }

    /// Fails for good, or so that another attempt follows at once.
    pub async fn fail(
        &self,
        engine: &Engine,
        claim: Claim,
        error: Arc<str>,
        retryable: bool,
        checkpoint: Option<Bytes>,
    ) -> Result<(), Stop> {
        let end = EndReport::Fail { error, retryable, delay: Some(Duration::ZERO) };
        self.report(engine, claim, Report { end, checkpoint }).await
    }

    pub(super) async fn report(&self, engine: &Engine, claim: Claim, report: Report) -> Result<(), Stop> {
        let id = claim.job;
        self.note(id, |job| {
            let known = &mut job.attempt(claim.fence).report;
            let was_asked = known.maybe().is_some();
            known.ask(report.clone());
            if !was_asked {
                job.checkpoint.later.extend(report.checkpoint.clone());
            }
        });
        let settlement = Settlement { claim, report: report.end.clone(), checkpoint: report.checkpoint.clone() };
        let answers = answered(engine.settle(vec![settlement])).await?;
        if answers[0].answer != Ok(()) {
            // The hand-out did not count: nobody had heard of it.
            return Err(Stop::Wrong(format!("the outcome of job {id} was answered with {answers:?}")));
        }
        self.note(id, |job| {
            job.is_sure = true;
            if job.attempt(claim.fence).report.is_sure() {
                return;
            }
            if report.checkpoint.is_some() {
                job.checkpoint.store(report.checkpoint.clone());
            }
            job.has_died |= is_failure_for_good(&report.end) && job.cancel == KnownAnswer::Nothing;
            job.attempt(claim.fence).report = KnownAnswer::Sure(report);
        });
        Ok(())
    }
}
