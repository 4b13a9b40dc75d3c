//! The decisions of a worker, as a machine that is told the time.
//!
//! ```text
//!            dial ┌───────────┐ connected, says hello with all that it holds
//!   apart ───────►│ reaching  │──────────────────────────────────────────► talking
//!     ▲  backoff  └─────┬─────┘                                              │
//!     └─────────────────┴──────────────── disconnected ──────────────────────┘
//! ```
//!
//! An attempt lives here from its assignment until its end was answered by the manager:
//!
//! ```text
//!   running ── handler is done ──► reported, repeated on every new session ── answered ──► gone
//!      └── cancel, or lease lost ──► stopping ── handler has stopped ──► ended, or reported
//! ```
//!
//! **Whom it trusts.** The manager alone decides who holds an attempt. The machine stops a handler as soon as it cannot
//! know any more that its lease holds, counted from when it *asked* (the first lease, which nobody asked for, from when
//! it came); what a handler hands in after that is sent all the same, so that the manager refuses and counts it, in the
//! open.
//!
//! **How it leaves.** Once it holds nothing after a drain, an assignment may still be on its way to it. So it says goodbye,
//! begins nothing that comes after that, and goes when the manager has said goodbye too: then the manager has given to
//! others what was on its way. If there is no answer, also over new sessions, it goes all the same after a while.
//!
//! **What it can be sure of.** Answers come in the order of what was said, and name their attempt. A refusal that names
//! none leaves open what was not taken: then the session is ended, and all that was not answered is said on the next. A
//! manager that does not welcome in time may be one that cannot: another is dialled.
//!
//! No clock, socket or thread in here: the worker's session does what the [`Effect`]s say. The same machine can be
//! driven by a simulator.

mod attempts;
mod held;
mod io;

#[cfg(test)]
pub(crate) mod tests;

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use onward_core::ids::{Claim, ClientId};
use onward_core::message::{FromWorker, Hello, Settlement};
use onward_core::time::Mono;
use onward_proto::manager::{ManagerMessage, RemoteRefusal};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use held::{ActiveAttempt, Phase};
pub use io::{Effect, ExtensionGrant, HandlerOutcome, HandlerReport, Identity, Input, SessionConfig};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Session {
    /// Dial at that time.
    Apart(Mono),
    Reaching,
    /// The hello was said; nothing else may be before the welcome, which is waited for until then.
    Greeting(Mono),
    Talking,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Working,
    Draining,
    Ended,
}

#[derive(Debug)]
pub struct SessionMachine {
    identity: Identity,
    config: SessionConfig,
    session: Session,
    stage: Stage,
    starved: bool,
    /// The manager's knowledge on this session of whether work is accepted. A hello says yes.
    told_accepting: bool,
    /// Whether any manager has heard of this worker: only then can something be on its way to it.
    is_known: bool,
    /// Set once goodbye was said on this session.
    said_goodbye: bool,
    /// Set while there is nothing left but to say goodbye.
    leaves_by: Option<Mono>,
    /// Sessions that were lost in a row without a welcome.
    failures: u32,
    held: BTreeMap<Claim, ActiveAttempt>,
    /// The instants at which attempts want to be looked at.
    timers: BTreeSet<(Mono, Claim)>,
    /// Extension requests of this session that wait for an answer.
    asked: Vec<Claim>,
    rng: ChaCha8Rng,
}

impl SessionMachine {
    /// `seed` decides how long it waits before it tries something again, and nothing else.
    pub fn new(identity: Identity, config: SessionConfig, seed: u64, now: Mono) -> Self {
        Self {
            identity,
            config,
            session: Session::Apart(now),
            stage: Stage::Working,
            starved: false,
            told_accepting: true,
            is_known: false,
            said_goodbye: false,
            leaves_by: None,
            failures: 0,
            held: BTreeMap::new(),
            timers: BTreeSet::new(),
            asked: Vec::new(),
            rng: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    pub fn step(&mut self, now: Mono, input: Input, out: &mut Vec<Effect>) {
        if self.stage == Stage::Ended {
            return;
        }
        match input {
            Input::Connected => self.connected(now, out),
            Input::Disconnected => self.disconnected(now, out),
            Input::FromManager(heard) => self.handle_message(now, heard, out),
            Input::Reported { claim, report } => self.handle_report(now, claim, report, out),
            Input::Extension { claim, reason, progress, estimated_remaining } => {
                self.ask_extension(claim, reason, progress, estimated_remaining, out);
            }
            Input::Finished { claim, outcome } => self.handle_finished(claim, outcome, out),
            Input::ExecutorLag(lag) => self.starved = lag >= self.config.starved_after,
            Input::Drain => self.drain(),
            Input::Abandon => {
                self.drain();
                self.abandon(out);
            }
            Input::Wake => {}
        }
        self.timers_due(now, out);
        if let Session::Greeting(by) = self.session
            && by <= now
        {
            out.push(Effect::Leave);
            self.disconnected(now, out);
        }
        if let Session::Apart(at) = self.session
            && at <= now
        {
            self.session = Session::Reaching;
            out.push(Effect::Dial);
        }
        if self.session == Session::Talking {
            self.report_capacity(out);
        }
        if self.stage == Stage::Draining {
            self.leave(now, out);
        }
    }

    /// Leaves if nothing is held.
    fn leave(&mut self, now: Mono, out: &mut Vec<Effect>) {
        if !self.held.is_empty() {
            self.leaves_by = None;
            return;
        }
        let by = *self.leaves_by.get_or_insert(now + self.config.goodbye_within);
        if !self.is_known || by <= now {
            self.finish_drain(out);
        } else if self.session == Session::Talking && !self.said_goodbye {
            self.said_goodbye = true;
            out.push(Effect::Send(FromWorker::Goodbye));
        }
    }

    fn finish_drain(&mut self, out: &mut Vec<Effect>) {
        self.stage = Stage::Ended;
        out.push(Effect::Drained);
    }

    /// May lie in the past, which means at once.
    pub fn next_wakeup(&self) -> Option<Mono> {
        if self.stage == Stage::Ended {
            return None;
        }
        let timer = self.timers.first().map(|(at, _)| *at);
        let session = match self.session {
            Session::Apart(at) | Session::Greeting(at) => Some(at),
            Session::Reaching | Session::Talking => None,
        };
        timer.into_iter().chain(session).chain(self.leaves_by).min()
    }

    /// Attempts whose end the manager has not answered yet.
    pub fn holding(&self) -> usize {
        self.held.len()
    }

    /// Whether the manager has welcomed this worker on the session that is open.
    pub fn is_talking(&self) -> bool {
        self.session == Session::Talking
    }

    fn connected(&mut self, now: Mono, out: &mut Vec<Effect>) {
        if self.session != Session::Reaching {
            return;
        }
        self.session = Session::Greeting(now + self.config.welcome_within);
        (self.told_accepting, self.said_goodbye, self.is_known) = (true, false, true);
        let holding = self.held.keys().copied().collect();
        let Identity { worker, incarnation, subscription, slots } = self.identity.clone();
        let client = ClientId::default();
        out.push(Effect::Send(FromWorker::Hello(Hello { worker, incarnation, subscription, slots, holding, client })));
        // In one frame with the hello: no work comes in between.
        self.report_capacity(out);
    }

    fn disconnected(&mut self, now: Mono, out: &mut Vec<Effect>) {
        if let Session::Apart(_) = self.session {
            return;
        }
        self.failures = self.failures.saturating_add(1);
        let wait = self.config.reconnect.delay(self.failures, self.rng.next_u64());
        self.session = Session::Apart(now + wait);
        for claim in core::mem::take(&mut self.asked) {
            let text = "the session ended before there was an answer; ask again".into();
            let answer = Err(RemoteRefusal { code: "no_session".into(), text });
            out.push(Effect::ExtensionAnswered { claim, answer });
        }
        for (claim, held) in &mut self.held {
            held.session_lost(now, self.rng.next_u64());
            Self::rearm(&mut self.timers, *claim, held);
        }
    }

    /// Repeats the reports of an earlier session that were not answered.
    fn welcomed(&mut self, now: Mono, out: &mut Vec<Effect>) {
        if !matches!(self.session, Session::Greeting(_)) {
            return;
        }
        self.session = Session::Talking;
        self.failures = 0;
        let (mut beats, mut settle) = (Vec::new(), Vec::new());
        for (claim, held) in &mut self.held {
            if let Phase::Reported(report) = &held.phase {
                settle.push(Settlement::new(*claim, report.clone()));
                beats.extend(held.last_words());
            } else {
                beats.extend(held.urgent(now));
            }
            Self::rearm(&mut self.timers, *claim, held);
        }
        if !beats.is_empty() {
            out.push(Effect::Send(FromWorker::Beats(beats)));
        }
        if !settle.is_empty() {
            out.push(Effect::Send(FromWorker::Settle(settle)));
        }
    }

    fn handle_message(&mut self, now: Mono, heard: ManagerMessage, out: &mut Vec<Effect>) {
        if !matches!(self.session, Session::Greeting(_) | Session::Talking) {
            // The rest of a session that was given up.
            return;
        }
        let is_final =
            matches!(heard, ManagerMessage::Goodbye | ManagerMessage::Refused(_) | ManagerMessage::Rejected(_));
        if self.said_goodbye && !is_final {
            // It has crossed the goodbye: the manager answers for it.
            return;
        }
        match heard {
            ManagerMessage::Welcome { .. } => self.welcomed(now, out),
            ManagerMessage::Rejected(refused) => self.rejected(refused, out),
            ManagerMessage::Assign(assignment) => self.assigned(now, assignment, out),
            ManagerMessage::BeatAnswer { claim, answer } => self.beat_answered(now, claim, answer, out),
            ManagerMessage::SettleAnswer { claim, answer } => self.settle_answered(now, claim, answer, out),
            ManagerMessage::ExtensionAnswer { claims, result, remaining, remaining_extensions } => {
                for claim in claims {
                    if let Some(at) = self.asked.iter().position(|asked| *asked == claim) {
                        self.asked.remove(at);
                    }
                    let answer =
                        result.clone().map(|extension| ExtensionGrant { extension, remaining, remaining_extensions });
                    out.push(Effect::ExtensionAnswered { claim, answer });
                }
            }
            ManagerMessage::Probe { probe } => out.push(Effect::Send(FromWorker::ProbeAnswer { probe })),
            ManagerMessage::Cancel { claim, why } => self.handle_cancel(claim, why, out),
            ManagerMessage::Goodbye if self.said_goodbye => self.finish_drain(out),
            ManagerMessage::Goodbye => {}
            ManagerMessage::Refused(refused) => {
                out.push(Effect::Noted(refused));
                out.push(Effect::HangUp);
                self.disconnected(now, out);
            }
        }
    }

    fn drain(&mut self) {
        if self.stage == Stage::Working {
            self.stage = Stage::Draining;
        }
    }

    fn rejected(&mut self, refused: RemoteRefusal, out: &mut Vec<Effect>) {
        for (claim, held) in core::mem::take(&mut self.held) {
            if let Phase::Running = held.phase {
                out.push(Effect::Cancel { claim, why: onward_core::message::CancelWhy::Stale });
            }
        }
        self.timers.clear();
        self.stage = Stage::Ended;
        out.push(Effect::Rejected(refused));
    }

    /// Tells the manager whether work is accepted, if it does not know.
    fn report_capacity(&mut self, out: &mut Vec<Effect>) {
        let accepting = self.stage == Stage::Working && !self.starved;
        if accepting != self.told_accepting {
            self.told_accepting = accepting;
            out.push(Effect::Send(FromWorker::Capacity { slots: self.identity.slots, accepting }));
        }
    }

    fn rearm(timers: &mut BTreeSet<(Mono, Claim)>, claim: Claim, held: &mut ActiveAttempt) {
        let next = held.next_wakeup();
        if held.armed != next {
            if let Some(at) = held.armed {
                timers.remove(&(at, claim));
            }
            if let Some(at) = next {
                timers.insert((at, claim));
            }
            held.armed = next;
        }
    }

    /// The pause before the manager is asked again for an answer that it could not give.
    fn pause(&mut self, failures: u32) -> Duration {
        self.config.reconnect.delay(failures, self.rng.next_u64()).max(Duration::from_millis(1))
    }
}
