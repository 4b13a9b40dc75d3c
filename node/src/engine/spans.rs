//! Spans of what was decided, sent once it is durable.

use std::collections::VecDeque;

use onward_core::event::{Event, StampedEvent};
use onward_core::ids::{Claim, JobId, Seq};
use onward_core::job::Ending;
use onward_core::manager::Manager;
use onward_core::state::{EndedAttempt, Job};
use onward_core::time::Wall;
use onward_core::trace::SpanId;

use crate::traces::{Attribute, Exporter, Span, attributes, context_of};

pub(super) struct Spans {
    exporter: Exporter,
    /// Spans with the event that each waits for.
    waiting: VecDeque<(Seq, Span)>,
}

impl Spans {
    pub(super) fn new(exporter: Exporter) -> Self {
        Self { exporter, waiting: VecDeque::new() }
    }

    /// Releases spans up to this event, which is durable.
    pub(super) fn release(&mut self, durable: Seq) {
        while self.waiting.front().is_some_and(|(after, _)| *after <= durable) {
            let (_, span) = self.waiting.pop_front().expect("there is a first");
            self.exporter.send(span);
        }
    }

    /// Events that the machine has just applied.
    pub(super) fn follow(&mut self, manager: &Manager, events: &[StampedEvent]) {
        for StampedEvent { at, event } in events {
            match event {
                Event::JobSubmitted(submitted) => self.submitted(manager, submitted.id, *at),
                Event::HandedOut(handed) => {
                    let (job, workflow) = (handed.workflow.job, handed.workflow.workflow);
                    self.handed_out(manager, &Claim { job, workflow, fence: handed.fence }, *at);
                }
                Event::AttemptEnded { claim, .. } => {
                    if let Some(ended) = manager.state().ended_attempt(claim) {
                        self.ended(manager, claim, ended);
                    }
                }
                Event::JobTimedOut { job, .. } | Event::CancelAsked { job, .. } => self.ended_with(manager, *job, *at),
                _ => {}
            }
        }
    }

    fn submitted(&mut self, manager: &Manager, id: JobId, at: Wall) {
        let Some(job) = job(manager, id) else { return };
        let kind = &job.spec.workflows[0].kind;
        let said = [
            ("onward.job.id", id.to_string()),
            ("onward.queue", job.spec.queue.to_string()),
            ("onward.kind", kind.to_string()),
        ];
        let attributes = said.map(|(name, value)| (name, Attribute::Text(value))).to_vec();
        let name = format!("submit {kind}");
        let span = Span {
            context: context_of(id, job.spec.headers().iter()),
            id: SpanId::of_submission(id),
            name,
            start: at,
            end: at,
            attributes,
            link: None,
            error: None,
        };
        self.wait_for(manager, span);
    }

    fn handed_out(&mut self, manager: &Manager, claim: &Claim, at: Wall) {
        let Some(job) = job(manager, claim.job) else { return };
        let Some(workflow) = manager.state().workflow_of(claim).map(|key| manager.state().workflow(key)) else {
            return;
        };
        let kind = &job.spec.workflows[usize::from(claim.workflow)].kind;
        // A workflow that was given back without a fault of its own keeps the instant from which it waited; its wait
        // began anew.
        let last_end = workflow.past.as_ref().and_then(|past| past.last()).map_or(Wall::ZERO, |ended| ended.ended_at);
        let span = Span {
            context: context_of(claim.job, job.spec.headers().iter()),
            id: SpanId::of_wait(claim),
            name: format!("wait {kind}"),
            start: workflow.ready_at.max(last_end).min(at),
            end: at,
            attributes: attributes(claim, &job.spec.queue, kind),
            link: None,
            error: None,
        };
        self.wait_for(manager, span);
    }

    /// Attempts that ended with their job.
    fn ended_with(&mut self, manager: &Manager, id: JobId, at: Wall) {
        let Some(job) = job(manager, id) else { return };
        for (_, workflow) in manager.state().workflows_of(job) {
            let last = workflow.past.as_ref().and_then(|past| past.last());
            if let Some(ended) = last.filter(|ended| ended.ended_at == at && ended.ending == Ending::TimedOut) {
                let claim = Claim { job: id, workflow: workflow.index, fence: ended.fence };
                self.ended(manager, &claim, ended);
            }
        }
    }

    fn ended(&mut self, manager: &Manager, claim: &Claim, ended: &EndedAttempt) {
        let Some(job) = job(manager, claim.job) else { return };
        let kind = &job.spec.workflows[usize::from(claim.workflow)].kind;
        let mut said = attributes(claim, &job.spec.queue, kind);
        said.push(("onward.attempt", Attribute::Number(u64::from(ended.number))));
        said.push(("onward.worker", Attribute::Text(ended.worker.to_string())));
        said.push(("onward.outcome", Attribute::Text(ended.ending.code().to_owned())));
        let error = match &ended.ending {
            Ending::Failed { error, .. } => Some(error.to_string()),
            ending if ending.counts() || *ending == Ending::TimedOut => Some(ending.code().to_owned()),
            _ => None,
        };
        let span = Span {
            context: context_of(claim.job, job.spec.headers().iter()),
            id: SpanId::of_attempt(claim),
            name: format!("attempt {kind}"),
            start: ended.started_at,
            end: ended.ended_at,
            attributes: said,
            link: before(manager, claim).map(|before| SpanId::of_attempt(&before)),
            error,
        };
        self.wait_for(manager, span);
    }

    fn wait_for(&mut self, manager: &Manager, span: Span) {
        if span.context.sampled {
            self.waiting.push_back((manager.newest(), span));
        }
    }
}

fn job(manager: &Manager, id: JobId) -> Option<&Job> {
    manager.state().find(id).map(|key| manager.state().job(key))
}

/// The attempt before this one.
fn before(manager: &Manager, claim: &Claim) -> Option<Claim> {
    let key = manager.state().workflow_of(claim)?;
    let past = manager.state().workflow(key).past.as_ref()?;
    let earlier = past.attempts().rev().find(|ended| ended.fence < claim.fence)?;
    Some(Claim { fence: earlier.fence, ..*claim })
}
