//! What an attempt needs, on its way to the worker.
//!
//! An assignment names the inputs of its workflow. Those that are too large together travel by reference, and whoever
//! holds the attempt fetches them by its claim. What cannot be brought to its worker at all counts as an attempt, so
//! that it ends in the dead letters instead of being handed out for ever. It speaks against nobody: the worker never
//! had it.

use std::sync::Arc;

use crate::effect::{Answer, Effects};
use crate::ids::{Claim, Name};
use crate::job::Ending;
use crate::refusal::Refusal;

use super::Manager;
use super::attempts::Blame;

impl Manager {
    pub(super) fn handle_undeliverable(&mut self, claim: &Claim, why: Arc<str>, fx: &mut Effects) {
        // The attempt may have ended meanwhile, by a cancel or with its worker.
        let Ok(key) = self.running(claim) else { return };
        let ending = Ending::Failed { error: why, retryable: true, delay: None };
        self.end_blaming(key, ending, Blame::Nobody, fx);
    }

    pub(super) fn fetch_input(&mut self, claim: &Claim, workflow: &Name) -> Result<Answer, Refusal> {
        let key = self.running(claim)?;
        self.watch().note_call(key);
        let attempt = self.state.workflow(self.state.attempt(key).workflow);
        let job = self.state.job(attempt.job);
        let workflows = &job.spec.workflows;
        let mut before = workflows[usize::from(attempt.index)].after.iter().map(|index| usize::from(*index));
        let index = before.find(|index| workflows[*index].name == *workflow).ok_or(Refusal::UnknownWorkflow)?;
        let result = self.state.result(job.workflows.as_slice()[index]).expect("a predecessor has succeeded");
        Ok(Answer::Input(result.clone()))
    }
}
