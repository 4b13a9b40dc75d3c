//! What several scenarios have in common.

use super::*;

impl Rig {
    /// Live workers that take nothing of what a test submits: they only count.
    pub fn bystanders(&mut self, count: u64) {
        for n in 0..count {
            self.worker(&format!("bystander-{n}"), 900 + n, 1, &["nothing"]);
        }
    }

    /// The session stays open, and the worker answers no probe from now on.
    pub fn silence(&mut self, session: SessionId) {
        self.answering.remove(&session);
    }

    pub fn knows(&self, id: &str) -> bool {
        self.manager.worker(&worker_id(id)).is_some()
    }

    pub fn submit_all(&mut self, drafts: Vec<Draft>) -> Result<Vec<AcceptedJob>, Refusal> {
        let batch = drafts.into_iter().map(|draft| Submission { id: self.new_id(), draft }).collect();
        match self.call(Call::Submit(batch))? {
            Answer::Submitted(accepted) => Ok(accepted),
            other => panic!("a submission is answered by {other:?}"),
        }
    }

    /// Messages of a session that were not looked at, without probes.
    pub fn messages(&mut self, session: SessionId) -> Vec<ToWorker> {
        let (of_session, others) = std::mem::take(&mut self.sent).into_iter().partition(|(to, _)| *to == session);
        self.sent = others;
        let of_session: Vec<(SessionId, ToWorker)> = of_session;
        let messages = of_session.into_iter().map(|(_, message)| message);
        messages.filter(|message| !matches!(message, ToWorker::Probe { .. })).collect()
    }

    pub fn http_extension(&mut self, asked: ExtensionRequest) -> ExtensionAnswer {
        match self.call(Call::RequestExtension(asked)) {
            Ok(Answer::Extension(answer)) => answer,
            other => panic!("an extension request is answered by {other:?}"),
        }
    }

    pub fn fail_for_good(&mut self, session: SessionId, claim: Claim) -> Result<(), Refusal> {
        self.settle(session, claim, EndReport::Fail { error: "no".into(), retryable: false, delay: None })
    }

    /// Five jobs of kind `k` fail for good on a worker that has room for one.
    pub fn fail_five(&mut self, session: SessionId) {
        for _ in 0..5 {
            self.submit(job("k"));
            let claim = self.claim(session);
            self.fail_for_good(session, claim).expect("accepted");
        }
    }

    /// Fails everything that a worker gets for 119 s: it is stuck a second later, and evicted 30 s after that.
    pub fn fail_for_119_s(&mut self, session: SessionId) {
        for wait_s in [50, 50, 19] {
            self.fail_five(session);
            self.advance(secs(wait_s));
        }
    }

    /// The same of a worker without a session.
    pub fn http_fail_for_119_s(&mut self, poll: &Poll) {
        for wait_s in [50, 50, 19] {
            for _ in 0..5 {
                self.submit(job("k"));
                let claim = self.leases(poll.clone()).remove(0).claim;
                let report = EndReport::Fail { error: "no".into(), retryable: false, delay: None };
                self.http_settle(claim, report).expect("accepted");
            }
            self.advance(secs(wait_s));
        }
    }

    /// A worker answers no probe until it is evicted, 40 s later, and answers again from then on.
    pub fn evict(&mut self, session: SessionId) {
        let before = self.eviction_count();
        self.silence(session);
        self.advance(secs(40));
        assert_eq!(self.eviction_count(), before + 1, "it was suspect for ten seconds");
        self.answering.insert(session);
    }

    /// The workers that were evicted so far.
    pub fn evictions(&self) -> Vec<&str> {
        let evicted = self.notices.iter().filter_map(|notice| match notice {
            ManagerNotice::WorkerEvicted { worker } => Some(worker.as_str()),
            _ => None,
        });
        evicted.collect()
    }
}
