//! Workers, and the handlers that they run: each has its temper.

use super::*;

/// The handler's plan for one attempt.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Temper {
    Works,
    Fails,
    FailsForGood,
    GivesBack,
    /// Beats, and gets nowhere.
    Stuck,
    Silent,
    Quiet,
    AsksForTime,
}

pub(super) struct Handler {
    pub(super) claim: Claim,
    pub(super) temper: Temper,
    pub(super) ticks: u64,
    pub(super) left: u64,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Mood {
    Well,
    /// Answers nothing until this tick.
    Mute(u64),
    /// Comes back at this tick: as another incarnation, or as the same.
    Away(u64, bool),
    /// Takes nothing more, and leaves when it holds nothing.
    Leaving,
}

pub(super) struct Worker {
    pub(super) id: &'static str,
    pub(super) incarnation: u64,
    pub(super) session: SessionId,
    pub(super) handlers: Vec<Handler>,
    pub(super) mood: Mood,
}

pub(super) enum Turn {
    Beat(Beat),
    Ask,
    Nothing,
    End(EndReport),
}

impl Day {
    pub(super) fn temper(&mut self) -> Temper {
        match self.below(100) {
            0..=7 => Temper::Fails,
            8..=11 => Temper::FailsForGood,
            12..=15 => Temper::GivesBack,
            16..=18 => Temper::Stuck,
            19..=20 => Temper::Silent,
            21..=24 => Temper::Quiet,
            25..=29 => Temper::AsksForTime,
            _ => Temper::Works,
        }
    }

    pub(super) fn handler(&mut self, assignment: &Assignment) -> Handler {
        if !assignment.inputs.is_empty() {
            self.saw("inputs");
        }
        if assignment.checkpoint.is_some() {
            self.saw("checkpoint handed on");
        }
        Handler { claim: assignment.claim, temper: self.temper(), ticks: 0, left: 1 + self.below(8) }
    }

    pub(super) fn read_messages(&mut self) {
        for (session, message) in std::mem::take(&mut self.rig.sent) {
            let Some(at) = self.workers.iter().position(|worker| worker.session == session) else { continue };
            match message {
                ToWorker::Assign(assignment) => {
                    let handler = self.handler(&assignment);
                    self.workers[at].handlers.push(handler);
                }
                ToWorker::Cancel { claim, .. } => {
                    self.workers[at].handlers.retain(|handler| handler.claim != claim);
                    if self.workers[at].mood == Mood::Well && !self.one_in(5) {
                        self.rig.tell(session, FromWorker::Ended(vec![claim]));
                    }
                }
                ToWorker::Rejected(_) => {
                    self.workers[at].handlers.clear();
                    self.workers[at].mood = Mood::Away(self.tick + 2, true);
                }
                ToWorker::BeatAnswers(answers) => {
                    let lost: BTreeSet<Claim> =
                        answers.iter().filter(|answer| answer.answer.is_err()).map(|answer| answer.claim).collect();
                    self.workers[at].handlers.retain(|handler| !lost.contains(&handler.claim));
                }
                _ => {}
            }
        }
    }

    pub(super) fn worker(&mut self, at: usize) {
        let (session, mood) = (self.workers[at].session, self.workers[at].mood);
        match mood {
            Mood::Away(until, reborn) if until <= self.tick => self.come_back(at, reborn),
            Mood::Mute(until) if until <= self.tick => {
                self.rig.close(session);
                self.workers[at].mood = Mood::Away(self.tick + 1, false);
            }
            Mood::Leaving if self.workers[at].handlers.is_empty() => {
                self.rig.close(session);
                self.workers[at].mood = Mood::Away(self.tick + 60, true);
                self.saw("left");
            }
            Mood::Well | Mood::Leaving => {
                self.work(at);
                if mood == Mood::Well {
                    self.trouble(at);
                }
            }
            Mood::Away(..) | Mood::Mute(_) => {}
        }
    }

    pub(super) fn come_back(&mut self, at: usize, reborn: bool) {
        self.sessions += 1;
        let session = SessionId(1_000 + self.sessions);
        let worker = &mut self.workers[at];
        if reborn {
            worker.incarnation += 1;
            worker.handlers.clear();
        }
        (worker.session, worker.mood) = (session, Mood::Well);
        let kinds = if at.is_multiple_of(2) { &KINDS[..] } else { &KINDS[..2] };
        let hello = Hello {
            worker: worker_id(worker.id),
            incarnation: onward_core::ids::Incarnation::new(format!("{}", worker.incarnation)).unwrap(),
            subscription: subscription(&QUEUES, kinds),
            slots: 3,
            holding: worker.handlers.iter().map(|handler| handler.claim).collect(),
            client: ClientId::default(),
        };
        self.rig.answering.insert(session);
        self.rig.tell(session, FromWorker::Hello(hello));
    }

    pub(super) fn trouble(&mut self, at: usize) {
        let session = self.workers[at].session;
        match self.below(4_000) {
            0 => {
                self.rig.silence(session);
                self.workers[at].mood = Mood::Mute(self.tick + 24);
            }
            1 => {
                self.rig.close(session);
                self.workers[at].mood = Mood::Away(self.tick + 1, true);
            }
            2 | 3 => {
                self.rig.close(session);
                self.workers[at].mood = Mood::Away(self.tick + 1, false);
            }
            4 => {
                self.rig.tell(session, FromWorker::Capacity { slots: 3, accepting: false });
                self.workers[at].mood = Mood::Leaving;
            }
            _ => {}
        }
    }

    pub(super) fn work(&mut self, at: usize) {
        let session = self.workers[at].session;
        let mut handlers = std::mem::take(&mut self.workers[at].handlers);
        let (mut beats, mut settled, mut asks) = (Vec::new(), Vec::new(), Vec::new());
        handlers.retain_mut(|handler| match self.go_on(handler) {
            Turn::Beat(beat) => {
                beats.push(beat);
                true
            }
            Turn::Ask => {
                asks.push(handler.claim);
                true
            }
            Turn::Nothing => true,
            Turn::End(report) => {
                settled.push(Settlement::new(handler.claim, report));
                false
            }
        });
        self.workers[at].handlers = handlers;
        if !beats.is_empty() {
            self.rig.tell(session, FromWorker::Beats(beats));
        }
        for claim in asks {
            let progress = (self.tick % 1_000) as f64 / 1_000.0;
            let asked = ExtensionRequest {
                claims: vec![claim],
                reason: "long_workflow".into(),
                progress,
                estimated_remaining: None,
            };
            self.rig.tell(session, FromWorker::RequestExtension(asked));
        }
        if !settled.is_empty() {
            self.rig.tell(session, FromWorker::Settle(settled));
        }
    }

    pub(super) fn go_on(&mut self, handler: &mut Handler) -> Turn {
        handler.ticks += 1;
        let (claim, ticks, over) = (handler.claim, handler.ticks, handler.ticks >= handler.left);
        let step = Turn::Beat(Beat {
            checkpoint: self.one_in(10).then(|| (*b"so far").into()),
            ..Beat::progress(claim, ticks)
        });
        match handler.temper {
            Temper::Silent => Turn::Nothing,
            Temper::Stuck if ticks == 1 => step,
            Temper::Stuck => Turn::Beat(Beat::plain(claim)),
            Temper::Quiet if ticks == 1 => Turn::Beat(Beat { quiet: Some(secs(180)), ..Beat::plain(claim) }),
            // Half of them speak up before it is over.
            Temper::Quiet if ticks < 30 + 10 * (handler.left % 2) => Turn::Nothing,
            Temper::AsksForTime if ticks < 4 => Turn::Ask,
            Temper::Fails if over => Turn::End(EndReport::Fail { error: "no".into(), retryable: true, delay: None }),
            Temper::FailsForGood if over => {
                Turn::End(EndReport::Fail { error: "never".into(), retryable: false, delay: None })
            }
            Temper::GivesBack if over => Turn::End(EndReport::Release { delay: None }),
            _ if over => Turn::End(EndReport::Succeed { result: self.payload() }),
            _ => step,
        }
    }

    pub(super) fn http_worker(&mut self) {
        let mut handlers = std::mem::take(&mut self.by_http);
        let mut calls = Vec::new();
        handlers.retain_mut(|handler| match self.go_on(handler) {
            Turn::Beat(beat) => {
                calls.push(Call::Beat(vec![beat]));
                true
            }
            Turn::Ask | Turn::Nothing => handler.ticks < 20,
            Turn::End(report) => {
                calls.push(Call::Settle(vec![Settlement::new(handler.claim, report)]));
                false
            }
        });
        self.by_http = handlers;
        for call in calls {
            self.rig.call(call).unwrap();
        }
        if self.open_poll.is_none() && self.by_http.len() < 3 {
            let mut poll = Rig::poll_of("http", &KINDS, 2, secs(if self.one_in(2) { 0 } else { 20 }));
            poll.subscription = subscription(&QUEUES, &KINDS);
            poll.id = self.one_in(3).then(|| name(&format!("poll-{}", self.tick)));
            self.open_poll = Some(self.rig.call_open(Call::Poll(poll)));
        }
        let Some(request) = self.open_poll else { return };
        if let Some(reply) = self.rig.reply(request) {
            self.open_poll = None;
            let delivered = !self.one_in(10);
            if let Ok(Answer::Leases(leases)) = reply {
                for lease in leases.iter().filter(|_| delivered) {
                    let handler = self.handler(lease);
                    self.by_http.push(handler);
                }
            }
            self.rig.step(Input::CallGone { request, delivered });
        }
    }
}
