//! Parts that jobs have in common, which lie in memory once.

use std::sync::Arc;

use crate::ids::Name;
use crate::job::{JobSpec, Outline};

use super::Dispatch;

impl Dispatch {
    /// Lets a job share with others what they have in common: its policy, and the outlines of its workflows.
    pub fn share(&mut self, spec: &mut JobSpec) {
        self.policies.intern(&mut spec.policy);
        for workflow in spec.workflows.iter_mut() {
            match self.outlines.find(&workflow.outline) {
                Ok(known) => workflow.outline.clone_from(known),
                Err(hash) => {
                    self.share_names(&spec.policy.queue, Arc::make_mut(&mut workflow.outline));
                    self.outlines.insert(hash, workflow.outline.clone());
                }
            }
        }
    }

    fn share_names(&self, queue: &Name, outline: &mut Outline) {
        if let Some(kind) = self.shared_kind(queue, &outline.kind) {
            outline.kind = kind.clone();
        }
        if outline.name == outline.kind {
            outline.name = outline.kind.clone();
        }
    }
}
