//! Workers with a session, and what goes wrong with them.

use super::*;

impl World {
    /// A message arrives at a worker, or is lost.
    pub(super) fn message(&mut self, session: SessionId, message: ToWorker) {
        let lost = self.chance(5);
        let Some(at) = self.workers.iter().position(|worker| worker.session == Some(session)) else { return };
        match message {
            ToWorker::Assign(assignment) => {
                let claim = assignment.claim;
                self.claims.push(claim);
                if !lost {
                    self.workers[at].holding.push(claim);
                } else if self.chance(50) {
                    self.pool.push(Input::Undeliverable { claim, why: "too large".into() });
                }
            }
            ToWorker::Probe { probe } if !lost => {
                self.pool.push(Input::Session { session, message: FromWorker::ProbeAnswer { probe } });
            }
            ToWorker::Cancel { claim, .. } if !lost => {
                self.workers[at].holding.retain(|held| *held != claim);
                self.pool.push(Input::Session { session, message: FromWorker::Ended(vec![claim]) });
            }
            ToWorker::ExtensionAnswer(answer) if answer.result.is_ok() => {
                self.seen.insert("granted");
            }
            ToWorker::Rejected(_) => {
                // Only a new life helps.
                self.workers[at].incarnation += 10;
                self.workers[at].session = None;
                self.workers[at].holding.clear();
            }
            _ => {}
        }
    }

    pub(super) fn session_worker(&mut self) {
        let at = self.below(4) as usize;
        let Some(session) = self.workers[at].session else { return self.connect(at) };
        let holding = self.workers[at].holding.clone();
        let claim = self.one_of(&holding);
        let message = match (self.below(10), claim) {
            (0, None) if self.chance(15) => FromWorker::Goodbye,
            (0, _) => FromWorker::Capacity { slots: self.below(4) as u32, accepting: self.chance(85) },
            (1..=4, Some(claim)) => {
                let count = if self.chance(25) { 2 } else { 1 };
                FromWorker::Beats((0..count).map(|_| self.beat(claim)).collect())
            }
            (5..=7, Some(claim)) => {
                self.workers[at].holding.retain(|held| *held != claim);
                FromWorker::Settle(vec![self.settlement(claim)])
            }
            (8, claim) => FromWorker::RequestExtension(self.extension(claim)),
            _ => FromWorker::ProbeAnswer { probe: self.below(3) as u32 },
        };
        let input = Input::Session { session, message };
        match self.chance(50) {
            true => self.feed(input),
            false => self.pool.push(input),
        }
    }

    pub(super) fn connect(&mut self, at: usize) {
        let session = SessionId(self.fresh());
        let worker = &self.workers[at];
        let hello = Hello {
            worker: WorkerId::new(WORKERS[at]).expect("valid"),
            incarnation: Incarnation::new(format!("{}", worker.incarnation)).expect("valid"),
            subscription: self.subscription(at),
            slots: worker.slots,
            holding: worker.holding.clone(),
            client: ClientId::default(),
        };
        self.workers[at].session = Some(session);
        self.feed(Input::Session { session, message: FromWorker::Hello(hello) });
    }

    pub(super) fn subscription(&self, at: usize) -> Subscription {
        let kinds = if at == 0 { &KINDS[..] } else { &KINDS[..at.min(3)] };
        Subscription {
            queues: QUEUES.iter().map(|queue| name(queue)).collect(),
            kinds: kinds.iter().map(|kind| name(kind)).collect(),
        }
    }

    pub(super) fn beat(&mut self, claim: Claim) -> Beat {
        let mut beat = Beat::plain(claim);
        beat.watermark = self.chance(50).then(|| self.below(20));
        beat.quiet = self.chance(35).then(|| Duration::from_secs([10, 60][self.below(2) as usize]));
        let size = if self.chance(5) { 65 } else { 4 };
        beat.checkpoint = self.chance(25).then(|| Bytes::from(vec![1; size]));
        beat
    }

    pub(super) fn settlement(&mut self, claim: Claim) -> Settlement {
        let report = match self.below(10) {
            0..=5 => EndReport::Succeed { result: self.content(1) },
            6..=7 => EndReport::Fail { error: "no".into(), retryable: self.chance(60), delay: None },
            8 => EndReport::Fail { error: "later".into(), retryable: true, delay: Some(Duration::from_secs(5)) },
            _ => EndReport::Release { delay: self.chance(50).then_some(Duration::from_secs(2)) },
        };
        let checkpoint = self.chance(20).then(|| Bytes::from(vec![2; 4]));
        Settlement { claim, report, checkpoint }
    }

    pub(super) fn extension(&mut self, claim: Option<Claim>) -> ExtensionRequest {
        let progress = match self.below(20) {
            0 => f64::NAN,
            n => n as f64 / 19.0,
        };
        ExtensionRequest {
            claims: if self.chance(70) { claim.into_iter().collect() } else { Vec::new() },
            reason: if self.chance(95) { "gc_pause" } else { "because" }.into(),
            progress,
            estimated_remaining: None,
        }
    }

    pub(super) fn worker_trouble(&mut self) {
        let at = self.below(4) as usize;
        let Some(session) = self.workers[at].session.take() else { return };
        if self.chance(40) {
            // It restarts, and knows nothing any more.
            self.workers[at].incarnation += 1;
            self.workers[at].holding.clear();
        } else if self.chance(20) {
            self.workers[at].incarnation = self.workers[at].incarnation.saturating_sub(1).max(1);
        }
        self.pool.push(Input::SessionClosed { session });
    }
}
