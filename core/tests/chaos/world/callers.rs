//! Those who call: clients, operators, workers over HTTP, and zombies.

use super::*;

impl World {
    pub(super) fn call(&mut self, call: Call) {
        let request = RequestId(self.fresh());
        self.open_requests.insert(request, call_name(&call));
        self.feed(Input::Call { request, call });
    }

    pub(super) fn client(&mut self) {
        let job = self.one_of(&self.jobs.clone()).unwrap_or(JobId::from_u128(1));
        match self.below(14) {
            0..=5 => {
                let count = if self.chance(20) { 3 } else { 1 };
                let submissions = (0..count)
                    .map(|_| {
                        let id = self.new_job_id();
                        self.jobs.push(id);
                        Submission { id, draft: self.draft() }
                    })
                    .collect();
                self.call(Call::Submit(submissions));
            }
            6..=8 => {
                let from = self.jobs.len().saturating_sub(4);
                let recent = self.jobs[from..].to_vec();
                let job = self.one_of(&recent).unwrap_or(job);
                let n = self.below(4);
                let epoch = self.chance(60).then_some(GateEpoch { n, gate: 1 });
                self.call(Call::Cancel { job, epoch });
            }
            9 => {
                let (new_id, request) = (self.new_job_id(), name(["r1", "r2"][self.below(2) as usize]));
                self.call(Call::Retry { job, new_id, request });
            }
            10 => {
                let (by, request) =
                    (Duration::from_secs(self.below(3) * 60), name(["e1", "e2"][self.below(2) as usize]));
                self.call(Call::Extend { job, by, reason: "slow disk".into(), request });
            }
            11 => {
                let (new_id, dead) = (self.new_job_id(), self.dead_letter().unwrap_or(job));
                let from = if self.chance(70) { ReplayFrom::Failed } else { ReplayFrom::Start };
                let request = name("r3");
                self.call(Call::ReplayDeadLetter { job: dead, new_id, request, from });
            }
            12 => {
                let dead = self.dead_letter().unwrap_or(job);
                self.call(Call::DropDeadLetter { job: dead });
            }
            _ => {
                let Some(image) = self.one_of(&self.archive.clone()) else { return };
                let (new_id, request) = (self.new_job_id(), name(["r1", "r4"][self.below(2) as usize]));
                self.call(Call::RetryArchived { image: Box::new(image), new_id, request });
            }
        }
    }

    pub(super) fn dead_letter(&mut self) -> Option<JobId> {
        let state = self.manager.state();
        state.dead_letters().next().map(|key| state.job(key).id)
    }

    pub(super) fn http_worker(&mut self) {
        let holding = self.http_holding.clone();
        match (self.below(8), self.one_of(&holding)) {
            (7, _) => {
                let worker = WorkerId::new(format!("h{}", self.below(2))).expect("valid");
                let incarnation = Incarnation::new("1").expect("valid");
                self.call(Call::Goodbye { worker, incarnation });
            }
            (0..=2, _) | (_, None) => {
                let number = self.below(2);
                let poll = Poll {
                    worker: WorkerId::new(format!("h{number}")).expect("valid"),
                    incarnation: Incarnation::new(if self.chance(90) { "1" } else { "2" }).expect("valid"),
                    subscription: self.subscription(0),
                    max: self.below(3) as u32,
                    wait: Duration::from_secs(self.below(2) * 20),
                    lease: Duration::from_secs(20 + self.below(20)),
                    id: self.chance(40).then(|| name("poll")),
                    client: ClientId::default(),
                };
                self.call(Call::Poll(poll));
            }
            (3, Some(claim)) => {
                let beat = self.beat(claim);
                self.call(Call::Beat(vec![beat]));
            }
            (4, Some(claim)) => {
                let settlement = self.settlement(claim);
                if self.chance(80) {
                    self.http_holding.retain(|held| *held != claim);
                }
                self.call(Call::Settle(vec![settlement]));
            }
            (5, Some(claim)) => {
                let asked = ExtensionRequest { claims: vec![claim], ..self.extension(None) };
                self.call(Call::RequestExtension(asked));
            }
            (_, Some(claim)) => {
                let workflow = name(["x", "y"][self.below(2) as usize]);
                self.call(Call::FetchInput { claim, workflow });
            }
        }
    }

    /// Calls under a claim from long ago, or one that never was.
    pub(super) fn zombie(&mut self) {
        let Some(mut claim) = self.one_of(&self.claims.clone()) else { return };
        match self.below(12) {
            0 => claim.fence = AttemptFence::from_raw(claim.fence.get() + 1_000),
            1 => claim.workflow += 7,
            2 => claim.job = JobId::from_u128(claim.job.as_u128() ^ 1),
            _ => {}
        }
        match self.below(3) {
            0 => {
                let beat = self.beat(claim);
                self.call(Call::Beat(vec![beat]));
            }
            1 => {
                let settlement = self.settlement(claim);
                self.call(Call::Settle(vec![settlement]));
            }
            _ => {
                let asked = ExtensionRequest { claims: vec![claim], ..self.extension(None) };
                self.call(Call::RequestExtension(asked));
            }
        }
    }

    pub(super) fn operator(&mut self) {
        let worker = WorkerId::new(WORKERS[self.below(4) as usize]).expect("valid");
        let queue = name(QUEUES[self.below(2) as usize]);
        match self.below(6) {
            0 => self.call(Call::PauseQueue(queue)),
            1 => self.call(Call::ResumeQueue(queue)),
            2 => self.call(Call::DrainWorker(worker)),
            3 => self.call(Call::UndrainWorker(worker)),
            4 => {
                let filter = Filter { kind: Some(name(KINDS[self.below(3) as usize])), ..Filter::default() };
                let jobs = ids_in_order(&self.manager);
                self.call(Call::CancelWhere { filter, jobs });
            }
            _ => {
                let level = [OverloadLevel::Normal, OverloadLevel::Stressed][self.below(2) as usize];
                self.feed(Input::Load(level));
            }
        }
    }

    pub(super) fn scheduler(&mut self) {
        let schedule = name(["s0", "s1"][self.below(2) as usize]);
        let call = match self.below(9) {
            0..=3 => {
                let job = if self.chance(80) {
                    Draft { idempotency_key: None, run_at: None, ..self.draft() }
                } else {
                    self.draft()
                };
                Call::SetSchedule(Box::new(ScheduleDraft {
                    schedule,
                    timing: Timing::Every(Duration::from_secs([600, 3_600][self.below(2) as usize])),
                    job,
                    overlap: Overlap::ALL[self.below(3) as usize],
                    missed: MissedPolicy::ALL[self.below(3) as usize],
                    jitter: Duration::from_secs(self.below(30)),
                    critical: self.chance(50),
                    paused: self.chance(20).then_some(false),
                }))
            }
            4 => Call::PauseSchedule(schedule),
            5 => Call::ResumeSchedule(schedule),
            6 => Call::RemoveSchedule(schedule),
            _ => {
                let request = self.chance(50).then(|| name("r1"));
                Call::RunSchedule { schedule, request }
            }
        };
        self.call(call);
    }

    pub(super) fn archive(&mut self) {
        let jobs = std::mem::take(&mut self.to_archive);
        self.archive.extend(jobs.iter().filter_map(|job| self.manager.image(*job)));
        let kept = self.archive.len().saturating_sub(8);
        self.archive.drain(..kept);
        self.feed(Input::Archived { jobs });
    }
}
