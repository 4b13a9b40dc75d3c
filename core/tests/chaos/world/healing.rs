//! The world heals.

use super::*;

impl World {
    /// The world heals: the log answers, workers are well and finish what they get. Then everything must end.
    pub fn heal_and_finish(&mut self) {
        self.check_replay();
        self.witness.check_acknowledged(&self.acknowledged, &self.manager);
        self.log_answers = true;
        self.sync();
        self.wake_until(self.now.mono + Duration::from_secs(5), true);
        self.feed(Input::Load(OverloadLevel::Normal));
        let schedules: Vec<Name> = self.manager.state().schedules().keys().cloned().collect();
        for schedule in schedules {
            self.call(Call::RemoveSchedule(schedule));
        }
        for queue in QUEUES {
            self.call(Call::ResumeQueue(name(queue)));
        }
        for (at, id) in WORKERS.iter().enumerate() {
            let worker = WorkerId::new(*id).expect("valid");
            self.call(Call::UndrainWorker(worker));
            self.workers[at].incarnation += 100;
            self.workers[at].slots = 3;
            self.workers[at].holding.clear();
            self.connect(at);
        }
        self.pool.clear();
        self.sync();
        for _ in 0..400 {
            if self.manager.state().open_jobs() == 0 {
                break;
            }
            self.work_through();
            let end = self.now.mono + Duration::from_secs(20);
            self.wake_until(end, true);
            self.answer_probes();
        }
        self.archive();
        self.sync();
        let open: Vec<_> = self
            .manager
            .state()
            .jobs()
            .filter(|(_, job)| !job.has_ended())
            .map(|(_, job)| self.manager.job(job.id))
            .collect();
        assert!(open.is_empty(), "these did not end in a healed world: {open:#?}");
        self.witness.check_acknowledged(&self.acknowledged, &self.manager);
        assert_eq!(self.manager.state().open_jobs(), 0);
        self.check_replay();
    }

    /// Every worker beats for and finishes what it holds.
    pub(super) fn work_through(&mut self) {
        for at in 0..self.workers.len() {
            let Some(session) = self.workers[at].session else {
                self.connect(at);
                continue;
            };
            for claim in std::mem::take(&mut self.workers[at].holding) {
                let report = EndReport::Succeed { result: (*b"1").into() };
                let message = FromWorker::Settle(vec![Settlement::new(claim, report)]);
                self.feed(Input::Session { session, message });
                self.sync();
            }
        }
    }
}
