//! What is submitted.

use super::*;

impl World {
    pub(super) fn draft(&mut self) -> Draft {
        let kind = KINDS[self.below(3) as usize];
        let size = if self.chance(3) { 65 } else { 8 };
        let mut draft = Draft::of_kind(kind, self.content(size));
        draft.queue = self.chance(30).then(|| QUEUES[1].into());
        draft.priority = if self.chance(4) { 101 } else { self.below(3) as i32 };
        draft.retry = Some(Retry {
            max_attempts: 1 + self.below(3) as u32,
            base: Duration::from_secs(1),
            max: Duration::from_secs(60),
        });
        draft.timeout = self.chance(30).then(|| Duration::from_secs(600));
        draft.max_extension = self.chance(30).then(|| Duration::from_secs(40));
        draft.require_progress = self.chance(10);
        if self.chance(10) {
            draft.on_stuck = OnStuck::TimeOut;
        }
        match self.below(10) {
            0 => draft.delay = Some(Duration::from_secs(self.below(100))),
            1 => draft.run_at = Some(self.now.wall + Duration::from_secs(self.below(100))),
            _ => {}
        }
        if self.chance(40) {
            // One bound per key, so that the check knows it.
            let key = self.below(3);
            let limit = LimitDraft::new(&format!("key{key}"), 1 + key as u32);
            draft.limits.push(LimitDraft { ordered: key == 0 && self.chance(50), ..limit });
            if self.chance(30) {
                let other = (key + 1) % 3;
                let limit = LimitDraft::new(&format!("key{other}"), 1 + other as u32);
                draft.limits.push(LimitDraft { ordered: other == 0 && self.chance(50), ..limit });
            }
        }
        draft.unique_key = self.chance(10).then(|| "only".into());
        draft.idempotency_key = self.chance(15).then(|| format!("idem{}", self.below(3)).into());
        if self.chance(20) {
            let step = |name: &str, after: &[&str]| WorkflowDraft {
                name: Some(name.into()),
                kind: kind.into(),
                after: after.iter().map(|before| (*before).into()).collect(),
                ..WorkflowDraft::default()
            };
            draft.workflows = vec![step("x", &[]), step("y", &["x"]), step("z", &["x", "y"])];
        }
        draft
    }

    /// Some of it lies in the store, and some of that is the same.
    pub(super) fn content(&mut self, size: usize) -> Payload {
        match self.below(4) {
            0 => Payload::stored(Digest::of(&[self.below(5) as u8]), size as u32),
            _ => vec![0; size].into(),
        }
    }
}
