//! Clients and operators.

use super::*;

impl Day {
    pub(super) fn client(&mut self) {
        for _ in 0..self.below(3) {
            let draft = self.draft();
            if let Ok(id) = self.rig.try_submit(draft) {
                self.recent.push(id);
                if self.recent.len() > 40 {
                    self.recent.remove(0);
                }
            }
        }
        if self.recent.is_empty() {
            return;
        }
        let at = self.below(self.recent.len() as u64) as usize;
        let job = self.recent[at];
        match self.below(240) {
            0..=3 => {
                let running = self.workers.iter().find_map(|worker| worker.handlers.first());
                let job = running.filter(|_| at.is_multiple_of(2)).map_or(job, |handler| handler.claim.job);
                drop(self.rig.call(Call::Cancel { job, epoch: None }));
            }
            4..=6 => {
                let (new_id, request) = (self.rig.new_id(), name(&format!("r{}", self.below(3))));
                drop(self.rig.call(Call::Retry { job, new_id, request }));
            }
            7..=9 => {
                let (by, request) = (secs(30), name(&format!("e{}", self.tick)));
                drop(self.rig.call(Call::Extend { job, by, reason: "slow disk".into(), request }));
            }
            _ => {}
        }
    }

    pub(super) fn payload(&mut self) -> Payload {
        let n = self.below(50);
        match self.below(4) {
            0 => Payload::stored(Digest::of(&n.to_be_bytes()), 5_000 + n as u32),
            _ => n.to_be_bytes().into(),
        }
    }

    pub(super) fn draft(&mut self) -> Draft {
        let kind = KINDS[[0, 0, 1, 1, 2, 3][self.below(6) as usize]];
        let payload = self.payload();
        let mut draft = Draft::of_kind(kind, payload);
        draft.queue = self.one_in(4).then(|| "bulk".into());
        draft.priority = [0, 0, 10, -5][self.below(4) as usize];
        let max_attempts = 1 + self.below(3) as u32;
        draft.retry = Some(Retry { max_attempts, base: secs(10), max: secs(120) });
        draft.require_progress = self.one_in(8);
        if self.one_in(3) {
            draft.on_stuck = OnStuck::TimeOut;
        }
        if self.one_in(5) {
            draft.stuck_after = Some(secs(3600));
        }
        if self.one_in(12) {
            draft.timeout = Some(secs(60));
        }
        match self.below(10) {
            0 => draft.delay = Some(secs(1 + self.below(600))),
            1 => draft.run_at = Some(self.rig.now.wall + secs(60 * (1 + self.below(10)))),
            _ => {}
        }
        if self.one_in(3) {
            let tenant = self.below(3);
            let limit = LimitDraft::new(&format!("tenant-{tenant}"), 1 + tenant as u32);
            draft.limits.push(LimitDraft { ordered: tenant == 0 && self.one_in(2), ..limit });
            if self.one_in(3) {
                draft.limits.push(LimitDraft::new("region", 4));
            }
        }
        draft.unique_key = self.one_in(12).then(|| format!("unique-{}", self.tick % 4).into());
        draft.idempotency_key = self.one_in(6).then(|| format!("order-{}", self.tick % 3_000).into());
        draft.tags = vec!["daily".into()];
        if self.one_in(8) {
            let payload = self.payload();
            let step = |name: &str, after: &[&str]| WorkflowDraft {
                name: Some(name.into()),
                kind: kind.into(),
                payload: payload.clone(),
                after: after.iter().map(|before| (*before).into()).collect(),
                ..WorkflowDraft::default()
            };
            draft.workflows = vec![step("a", &[]), step("b", &["a"]), step("c", &["a"]), step("d", &["b", "c"])];
        }
        draft
    }

    pub(super) fn operator(&mut self) {
        let now = self.tick;
        let over: Vec<&'static str> =
            self.paused.iter().filter(|(_, end)| **end <= now).map(|(queue, _)| *queue).collect();
        for queue in over {
            self.paused.remove(queue);
            self.rig.call(Call::ResumeQueue(name(queue))).unwrap();
        }
        if let Some((worker, _)) = self.drained.filter(|(_, end)| *end <= now) {
            self.drained = None;
            drop(self.rig.call(Call::UndrainWorker(worker_id(worker))));
        }
        let dead = self.rig.manager.state().dead_letters().next();
        let dead = dead.map(|key| self.rig.manager.state().job(key).id);
        match (self.below(700), dead) {
            (0, _) => {
                let queue = QUEUES[self.below(2) as usize];
                let end = now + 1 + self.below(24);
                self.paused.insert(queue, end);
                self.rig.call(Call::PauseQueue(name(queue))).unwrap();
            }
            (1, _) if self.drained.is_none() => {
                let worker = WORKERS[self.below(5) as usize];
                if self.rig.call(Call::DrainWorker(worker_id(worker))).is_ok() {
                    self.drained = Some((worker, now + 30));
                }
            }
            (2, _) => {
                let filter = Filter { kind: Some(name("rare")), state: Some(JobState::Ready), ..Filter::default() };
                self.rig.cancel_where(filter);
            }
            (3..=9, Some(job)) => {
                let new_id = self.rig.new_id();
                drop(self.rig.call(Call::ReplayDeadLetter {
                    job,
                    new_id,
                    request: name("replay"),
                    from: ReplayFrom::Failed,
                }));
            }
            (10..=13, Some(job)) => drop(self.rig.call(Call::DropDeadLetter { job })),
            _ => {}
        }
    }

    /// Schedules come, change, rest and go. What they do is drawn apart, so that the rest of the day stays as it is.
    pub(super) fn scheduler(&mut self) {
        let mut draw = ChaCha8Rng::seed_from_u64(self.tick);
        let mut below = |bound: u64| draw.next_u64() % bound;
        let schedule = name(["tidy", "report", "sync"][below(3) as usize]);
        let call = match below(400) {
            0..=2 => {
                let timing = match below(3) {
                    0 => Timing::Cron { expression: "*/10 * * * *".into(), zone: "UTC".into() },
                    n => Timing::Every(secs(30 * n)),
                };
                Call::SetSchedule(Box::new(ScheduleDraft {
                    schedule,
                    timing,
                    job: Draft::of_kind(KINDS[below(2) as usize], *b"{}"),
                    overlap: Overlap::ALL[below(3) as usize],
                    missed: MissedPolicy::ALL[below(3) as usize],
                    jitter: secs(below(20)),
                    critical: below(2) == 0,
                    paused: None,
                }))
            }
            3 => Call::PauseSchedule(schedule),
            4..=6 => Call::ResumeSchedule(schedule),
            7 if below(4) == 0 => Call::RemoveSchedule(schedule),
            8 => Call::RunSchedule { schedule, request: None },
            _ => return,
        };
        drop(self.rig.call(call));
    }
}
