//! Workers, with a session and without one.

use super::*;

impl Rig {
    /// A worker of queue `default` says hello on a new session and answers probes from then on.
    pub fn worker(&mut self, id: &str, session: u64, slots: u32, kinds: &[&str]) -> SessionId {
        self.hello(id, "1", session, slots, kinds, vec![])
    }

    pub fn hello(
        &mut self,
        id: &str,
        incarnation: &str,
        session: u64,
        slots: u32,
        kinds: &[&str],
        holding: Vec<Claim>,
    ) -> SessionId {
        let session = SessionId(session);
        self.answering.insert(session);
        let hello = Hello {
            worker: worker_id(id),
            incarnation: Incarnation::new(incarnation).expect("valid"),
            subscription: subscription(&["default"], kinds),
            slots,
            holding,
            client: ClientId::default(),
        };
        self.tell(session, FromWorker::Hello(hello));
        session
    }

    pub fn tell(&mut self, session: SessionId, message: FromWorker) {
        self.step(Input::Session { session, message });
    }

    pub fn close(&mut self, session: SessionId) {
        self.answering.remove(&session);
        self.step(Input::SessionClosed { session });
    }

    /// Assignments on a session since the last call.
    pub fn assigned(&mut self, session: SessionId) -> Vec<Assignment> {
        let mut assignments = Vec::new();
        self.sent.retain(|(to, message)| match message {
            ToWorker::Assign(assignment) if *to == session => {
                assignments.push(assignment.clone());
                false
            }
            _ => true,
        });
        assignments
    }

    /// The one claim that was assigned on a session since this was last asked.
    pub fn claim(&mut self, session: SessionId) -> Claim {
        let assigned = self.assigned(session);
        assert_eq!(assigned.len(), 1, "exactly one assignment was expected: {assigned:?}");
        assigned[0].claim
    }

    /// Cancels that were sent on a session since this was last asked.
    pub fn cancelled(&mut self, session: SessionId) -> Vec<Claim> {
        let mut claims = Vec::new();
        self.sent.retain(|(to, message)| match message {
            ToWorker::Cancel { claim, .. } if *to == session => {
                claims.push(*claim);
                false
            }
            _ => true,
        });
        claims
    }

    pub fn beat(&mut self, session: SessionId, beat: Beat) -> Result<BeatAccepted, Refusal> {
        self.tell(session, FromWorker::Beats(vec![beat]));
        match self.last_sent(session) {
            ToWorker::BeatAnswers(mut answers) => answers.remove(0).answer,
            other => panic!("a beat is answered by {other:?}"),
        }
    }

    pub fn progress(&mut self, session: SessionId, claim: Claim, watermark: u64) {
        self.beat(session, Beat::progress(claim, watermark)).expect("accepted");
    }

    pub fn settle(&mut self, session: SessionId, claim: Claim, report: EndReport) -> Result<(), Refusal> {
        self.tell(session, FromWorker::Settle(vec![Settlement::new(claim, report)]));
        let answers =
            self.sent.iter().rposition(|(to, message)| *to == session && matches!(message, ToWorker::SettleAnswers(_)));
        match self.sent.remove(answers.expect("a settlement is answered")) {
            (_, ToWorker::SettleAnswers(mut answers)) => answers.remove(0).answer,
            _ => unreachable!("found by its variant"),
        }
    }

    pub fn succeed(&mut self, session: SessionId, claim: Claim) -> Result<(), Refusal> {
        self.settle(session, claim, success())
    }

    pub fn fail(&mut self, session: SessionId, claim: Claim) -> Result<(), Refusal> {
        self.settle(session, claim, failure())
    }

    pub fn release(&mut self, session: SessionId, claim: Claim) -> Result<(), Refusal> {
        self.settle(session, claim, EndReport::Release { delay: None })
    }

    pub fn ask_extension(&mut self, session: SessionId, claims: Vec<Claim>, progress: f64) -> ExtensionAnswer {
        let asked = ExtensionRequest { claims, reason: "long_workflow".into(), progress, estimated_remaining: None };
        self.tell(session, FromWorker::RequestExtension(asked));
        match self.last_sent(session) {
            ToWorker::ExtensionAnswer(answer) => answer,
            other => panic!("an extension request is answered by {other:?}"),
        }
    }

    pub fn last_sent(&mut self, session: SessionId) -> ToWorker {
        let at = self.sent.iter().rposition(|(to, _)| *to == session).expect("something was sent");
        self.sent.remove(at).1
    }

    pub fn verdict(&self, id: &str) -> Verdict {
        self.worker_view(id).judgement.verdict
    }

    pub fn worker_view(&self, id: &str) -> WorkerView {
        self.manager.worker(&worker_id(id)).expect("the worker is known")
    }
}

/// Calls of workers without a session.
impl Rig {
    pub fn poll_of(id: &str, kinds: &[&str], max: u32, wait: Duration) -> Poll {
        Poll {
            worker: worker_id(id),
            incarnation: Incarnation::new("1").expect("valid"),
            subscription: subscription(&["default"], kinds),
            max,
            wait,
            lease: secs(30),
            id: None,
            client: ClientId::default(),
        }
    }

    pub fn leases(&mut self, poll: Poll) -> Vec<Assignment> {
        match self.call(Call::Poll(poll)) {
            Ok(Answer::Leases(leases)) => leases,
            other => panic!("a poll is answered by {other:?}"),
        }
    }

    pub fn http_beat(&mut self, beat: Beat) -> Result<BeatAccepted, Refusal> {
        match self.call(Call::Beat(vec![beat]))? {
            Answer::Beats(mut answers) => answers.remove(0).answer,
            other => panic!("a beat is answered by {other:?}"),
        }
    }

    pub fn http_settle(&mut self, claim: Claim, report: EndReport) -> Result<(), Refusal> {
        match self.call(Call::Settle(vec![Settlement::new(claim, report)]))? {
            Answer::Settled(mut answers) => answers.remove(0).answer,
            other => panic!("a settlement is answered by {other:?}"),
        }
    }

    pub fn http_ask_extension(&mut self, claim: Claim, progress: f64) -> Result<ExtensionAnswer, Refusal> {
        let asked = ExtensionRequest {
            claims: vec![claim],
            reason: "long_workflow".into(),
            progress,
            estimated_remaining: None,
        };
        match self.call(Call::RequestExtension(asked))? {
            Answer::Extension(answer) => Ok(answer),
            other => panic!("an extension request is answered by {other:?}"),
        }
    }
}
