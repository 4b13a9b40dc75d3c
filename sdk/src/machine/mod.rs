//! What a worker decides, as a machine that is told the time.
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
//! know any more that its lease holds, counted from when it *asked*; what a handler hands in after that is sent all the
//! same, so that the manager refuses and counts it, in the open.
//!
//! No clock, socket or thread in here: [`link`](crate::link) does what the [`Effect`]s say. The same machine can be
//! driven by a simulator.

mod held;

#[cfg(test)]
mod tests;

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use onward_core::backoff::Backoff;
use onward_core::ids::{Bytes, Claim, Incarnation, WorkerId};
use onward_core::lease::{CheckedLeaseRule, LeaseRule, LostPolicy};
use onward_core::message::{
    Assignment, Beat, CancelWhy, ExtensionRequest, FromWorker, Hello, Report, Settlement, Subscription,
};
use onward_core::payload::Payload;
use onward_core::time::Mono;
use onward_proto::manager::{Heard, Refused};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use held::{Held, Phase};

/// Who the worker is, and how it behaves.
#[derive(Clone, Debug)]
pub struct Identity {
    pub worker: WorkerId,
    pub incarnation: Incarnation,
    pub subscription: Subscription,
    pub slots: u32,
}

#[derive(Clone, Debug)]
pub struct Manners {
    /// The least time between two beats of an attempt on the wire, however often its handler beats. A third of the
    /// lease where that is less.
    pub beat_every: Duration,
    pub reconnect: Backoff,
    pub on_lost: LostPolicy,
    /// An executor that lets a ready task wait for longer is starved, and nothing more is taken meanwhile.
    pub starved_after: Duration,
}

impl Default for Manners {
    fn default() -> Self {
        Self {
            beat_every: Duration::from_secs(1),
            reconnect: Backoff { base: Duration::from_millis(200), max: Duration::from_secs(5) },
            on_lost: LostPolicy::Cancel,
            starved_after: Duration::from_secs(2),
        }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub enum Input {
    Connected,
    /// The session ended, or could not be opened.
    Disconnected,
    Heard(Heard),
    /// From a handler.
    Said {
        claim: Claim,
        what: Said,
    },
    Extension {
        claim: Claim,
        reason: Box<str>,
        progress: f64,
        estimated_remaining: Option<Duration>,
    },
    /// A handler is done, and has left nothing behind that still runs.
    Finished {
        claim: Claim,
        end: End,
    },
    /// For how long a task that could run has been waiting for the handlers' executor.
    ExecutorLag(Duration),
    /// Take nothing more, finish what runs.
    Drain,
    /// Stop what runs, too, and give it back.
    Abandon,
    Wake,
}

/// What a handler says while it works. Every one of these is a beat.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Said {
    pub progress: Option<(u64, Option<u64>)>,
    pub note: Option<Box<str>>,
    pub quiet: Option<Duration>,
    pub checkpoint: Option<Bytes>,
}

#[derive(Clone, PartialEq, Debug)]
pub enum End {
    Succeeded(Payload),
    Failed {
        error: Box<str>,
        retryable: bool,
        delay: Option<Duration>,
    },
    Released {
        delay: Option<Duration>,
    },
    /// It was told to stop, and did.
    Stopped,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    Dial,
    /// On the session that is open.
    Send(FromWorker),
    Start(Assignment),
    /// Make the handler stop; its end is still waited for.
    Cancel {
        claim: Claim,
        why: CancelWhy,
    },
    /// How long the lease lasts, as far as the worker can know.
    Lease {
        claim: Claim,
        until: Mono,
    },
    ExtensionAnswered {
        claim: Claim,
        answer: Result<Granted, Refused>,
    },
    /// The manager has taken the outcome, or has refused it for good.
    Settled {
        claim: Claim,
        answer: Result<(), Refused>,
    },
    /// Something was not taken, and the worker goes on.
    Noted(Refused),
    /// Nothing is held any more after a drain: the session can be closed.
    Drained,
    /// The worker must not come back as this incarnation.
    Rejected(Refused),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Granted {
    pub extension: Duration,
    /// Until the worker's health deadline.
    pub remaining: Duration,
    pub remaining_extensions: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Session {
    /// Dial at that time.
    Apart(Mono),
    Reaching,
    /// The hello was said; nothing else may be before the welcome.
    Greeting,
    Talking,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Working,
    Draining,
    Over,
}

#[derive(Debug)]
pub struct Machine {
    identity: Identity,
    manners: Manners,
    session: Session,
    stage: Stage,
    starved: bool,
    /// Sessions that were lost in a row without a welcome.
    failures: u32,
    held: BTreeMap<Claim, Held>,
    /// When each attempt wants to be looked at.
    timers: BTreeSet<(Mono, Claim)>,
    /// Extension requests that wait for an answer, which comes in their order.
    asked: Vec<Claim>,
    rng: ChaCha8Rng,
}

impl Machine {
    /// `seed` decides how long it waits before it connects again, and nothing else.
    pub fn new(identity: Identity, manners: Manners, seed: u64, now: Mono) -> Self {
        Self {
            identity,
            manners,
            session: Session::Apart(now),
            stage: Stage::Working,
            starved: false,
            failures: 0,
            held: BTreeMap::new(),
            timers: BTreeSet::new(),
            asked: Vec::new(),
            rng: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    pub fn step(&mut self, now: Mono, input: Input, out: &mut Vec<Effect>) {
        if self.stage == Stage::Over {
            return;
        }
        match input {
            Input::Connected => self.connected(out),
            Input::Disconnected => self.disconnected(now),
            Input::Heard(heard) => self.heard(now, heard, out),
            Input::Said { claim, what } => self.said(now, claim, what, out),
            Input::Extension { claim, reason, progress, estimated_remaining } => {
                self.ask_extension(claim, reason, progress, estimated_remaining, out);
            }
            Input::Finished { claim, end } => self.finished(claim, end, out),
            Input::ExecutorLag(lag) => self.executor(lag, out),
            Input::Drain => self.drain(out),
            Input::Abandon => {
                self.drain(out);
                self.abandon(out);
            }
            Input::Wake => {}
        }
        self.timers_due(now, out);
        if let Session::Apart(at) = self.session
            && at <= now
        {
            self.session = Session::Reaching;
            out.push(Effect::Dial);
        }
        if self.stage == Stage::Draining && self.held.is_empty() {
            self.stage = Stage::Over;
            out.push(Effect::Drained);
        }
    }

    /// May lie in the past, which means at once.
    pub fn next_wakeup(&self) -> Option<Mono> {
        if self.stage == Stage::Over {
            return None;
        }
        let timer = self.timers.first().map(|(at, _)| *at);
        let dial = if let Session::Apart(at) = self.session { Some(at) } else { None };
        timer.into_iter().chain(dial).min()
    }

    /// Attempts whose end the manager has not answered yet.
    pub fn holding(&self) -> usize {
        self.held.len()
    }

    /// Whether the manager has welcomed this worker on the session that is open.
    pub fn is_talking(&self) -> bool {
        self.session == Session::Talking
    }

    fn is_accepting(&self) -> bool {
        self.stage == Stage::Working && !self.starved
    }

    fn connected(&mut self, out: &mut Vec<Effect>) {
        if self.session != Session::Reaching {
            return;
        }
        self.session = Session::Greeting;
        let holding = self.held.keys().copied().collect();
        let Identity { worker, incarnation, subscription, slots } = self.identity.clone();
        out.push(Effect::Send(FromWorker::Hello(Hello { worker, incarnation, subscription, slots, holding })));
        // In one frame with the hello: no work comes in between.
        if !self.is_accepting() {
            self.tell_capacity(out);
        }
    }

    fn disconnected(&mut self, now: Mono) {
        if let Session::Apart(_) = self.session {
            return;
        }
        self.failures = self.failures.saturating_add(1);
        let wait = self.manners.reconnect.delay(self.failures, self.rng.next_u64());
        self.session = Session::Apart(now + wait);
        self.asked.clear();
        for (claim, held) in &mut self.held {
            held.session_lost(now, self.rng.next_u64());
            Self::rearm(&mut self.timers, *claim, held);
        }
    }

    /// What was said on an earlier session and not answered is said again.
    fn welcomed(&mut self, now: Mono, out: &mut Vec<Effect>) {
        self.session = Session::Talking;
        self.failures = 0;
        if !self.is_accepting() {
            self.tell_capacity(out);
        }
        let mut settle = Vec::new();
        for (claim, held) in &mut self.held {
            if let Phase::Reported(report) = &held.phase {
                settle.push(Settlement { claim: *claim, report: report.clone() });
            } else if let Some(beat) = held.urgent(now) {
                out.push(Effect::Send(FromWorker::Beats(vec![beat])));
            }
        }
        if !settle.is_empty() {
            out.push(Effect::Send(FromWorker::Settle(settle)));
        }
    }

    fn heard(&mut self, now: Mono, heard: Heard, out: &mut Vec<Effect>) {
        match heard {
            Heard::Welcome { .. } => self.welcomed(now, out),
            Heard::Rejected(refused) => self.rejected(refused, out),
            Heard::Assign(assignment) => self.assigned(now, assignment, out),
            Heard::BeatAnswer { claim, answer } => self.beat_answered(now, claim, answer, out),
            Heard::SettleAnswer { claim, answer } => self.settle_answered(claim, answer, out),
            Heard::ExtensionAnswer { claims, result, remaining, remaining_extensions } => {
                for claim in claims {
                    if let Some(at) = self.asked.iter().position(|asked| *asked == claim) {
                        self.asked.remove(at);
                    }
                    let answer = result.clone().map(|extension| Granted { extension, remaining, remaining_extensions });
                    out.push(Effect::ExtensionAnswered { claim, answer });
                }
            }
            Heard::Probe { probe } => out.push(Effect::Send(FromWorker::ProbeAnswer { probe })),
            Heard::Cancel { claim, why } => self.cancel(claim, why, out),
            Heard::Refused(refused) => out.push(Effect::Noted(refused)),
        }
    }

    fn assigned(&mut self, now: Mono, assignment: Assignment, out: &mut Vec<Effect>) {
        let claim = assignment.claim;
        if self.held.contains_key(&claim) {
            return;
        }
        let interval = self.manners.beat_every.min(assignment.lease / 3).max(Duration::from_millis(1));
        let rule = LeaseRule { initial: assignment.lease, extension: assignment.lease, interval, enabled: true };
        let rule: CheckedLeaseRule = match rule.validate() {
            Ok(rule) => rule,
            // A lease of no length is over before anything can begin.
            Err(_) => return out.push(Effect::Send(FromWorker::Ended(vec![claim]))),
        };
        let held = Held::new(claim, rule, self.manners.on_lost, now, assignment.lease);
        Self::rearm(&mut self.timers, claim, self.held.entry(claim).or_insert(held));
        out.push(Effect::Lease { claim, until: now + assignment.lease });
        out.push(Effect::Start(assignment));
    }

    fn said(&mut self, now: Mono, claim: Claim, what: Said, out: &mut Vec<Effect>) {
        let Some(held) = self.held.get_mut(&claim) else { return };
        if let Some(beat) = held.said(now, what) {
            self.send_beat(now, claim, beat, out);
        } else {
            Self::rearm(&mut self.timers, claim, held);
        }
    }

    fn send_beat(&mut self, now: Mono, claim: Claim, beat: Beat, out: &mut Vec<Effect>) {
        let Some(held) = self.held.get_mut(&claim) else { return };
        if self.session == Session::Talking {
            out.push(Effect::Send(FromWorker::Beats(vec![beat])));
        } else {
            held.session_lost(now, self.rng.next_u64());
        }
        Self::rearm(&mut self.timers, claim, held);
    }

    fn beat_answered(
        &mut self,
        now: Mono,
        claim: Claim,
        answer: Result<onward_core::message::BeatAccepted, Refused>,
        out: &mut Vec<Effect>,
    ) {
        let Some(held) = self.held.get_mut(&claim) else { return };
        match answer {
            Ok(accepted) => {
                let until = held.accepted(now, accepted.lease_remaining);
                out.push(Effect::Lease { claim, until });
                let next = held.urgent(now);
                Self::rearm(&mut self.timers, claim, held);
                if accepted.cancel {
                    self.cancel(claim, CancelWhy::Asked, out);
                }
                if let Some(beat) = next {
                    self.send_beat(now, claim, beat, out);
                }
            }
            Err(refused) if held::is_final(&refused) => {
                let policy = self.manners.on_lost;
                held.lost();
                Self::rearm(&mut self.timers, claim, held);
                if policy == LostPolicy::Cancel {
                    self.cancel(claim, CancelWhy::Stale, out);
                }
            }
            Err(refused) => {
                held.refused(now, &refused, self.rng.next_u64());
                Self::rearm(&mut self.timers, claim, held);
                out.push(Effect::Noted(refused));
            }
        }
    }

    fn cancel(&mut self, claim: Claim, why: CancelWhy, out: &mut Vec<Effect>) {
        match self.held.get_mut(&claim) {
            Some(Held { phase: phase @ Phase::Running, .. }) => {
                *phase = Phase::Stopping { by_manager: true };
                out.push(Effect::Cancel { claim, why });
            }
            Some(Held { phase: Phase::Stopping { by_manager }, .. }) => *by_manager = true,
            // Its answer is on the way.
            Some(Held { phase: Phase::Reported(_), .. }) => {}
            None => out.push(Effect::Send(FromWorker::Ended(vec![claim]))),
        }
    }

    fn finished(&mut self, claim: Claim, end: End, out: &mut Vec<Effect>) {
        let Some(held) = self.held.get_mut(&claim) else { return };
        let report = match (end, &held.phase) {
            (_, Phase::Reported(_)) => return,
            (End::Succeeded(result), _) => Report::Succeed { result },
            (End::Failed { error, retryable, delay }, _) => Report::Fail { error: error.into(), retryable, delay },
            (End::Released { delay }, _) => Report::Release { delay },
            (End::Stopped, Phase::Stopping { by_manager: true }) => {
                self.forget(claim);
                // Without a session the next hello tells: it will not be among what is held.
                if self.session == Session::Talking {
                    out.push(Effect::Send(FromWorker::Ended(vec![claim])));
                }
                return;
            }
            (End::Stopped, _) => Report::Release { delay: None },
        };
        let last = held.finish(report.clone());
        Self::rearm(&mut self.timers, claim, held);
        if self.session == Session::Talking {
            if let Some(beat) = last {
                out.push(Effect::Send(FromWorker::Beats(vec![beat])));
            }
            out.push(Effect::Send(FromWorker::Settle(vec![Settlement { claim, report }])));
        }
    }

    fn settle_answered(&mut self, claim: Claim, answer: Result<(), Refused>, out: &mut Vec<Effect>) {
        let Some(Held { phase: Phase::Reported(_), .. }) = self.held.get(&claim) else { return };
        if let Err(refused) = &answer
            && held::is_passing(refused)
        {
            // The session ends soon, or the manager will be able to answer on the next beat of the network.
            return out.push(Effect::Noted(refused.clone()));
        }
        self.forget(claim);
        out.push(Effect::Settled { claim, answer });
    }

    fn ask_extension(
        &mut self,
        claim: Claim,
        reason: Box<str>,
        progress: f64,
        estimated_remaining: Option<Duration>,
        out: &mut Vec<Effect>,
    ) {
        let runs = matches!(self.held.get(&claim), Some(Held { phase: Phase::Running, .. }));
        if self.session != Session::Talking || !runs {
            let (code, text) = if runs {
                ("no_session", "the worker is not connected to its manager just now; ask again later")
            } else {
                ("stale_attempt", "this attempt does not run any more")
            };
            let answer = Err(Refused { code: code.into(), text: text.into() });
            return out.push(Effect::ExtensionAnswered { claim, answer });
        }
        self.asked.push(claim);
        let request = ExtensionRequest { claims: vec![claim], reason, progress, estimated_remaining };
        out.push(Effect::Send(FromWorker::RequestExtension(request)));
    }

    fn executor(&mut self, lag: Duration, out: &mut Vec<Effect>) {
        let starved = lag >= self.manners.starved_after;
        if starved != self.starved {
            self.starved = starved;
            self.tell_capacity_if_talking(out);
        }
    }

    fn drain(&mut self, out: &mut Vec<Effect>) {
        if self.stage == Stage::Working {
            self.stage = Stage::Draining;
            self.tell_capacity_if_talking(out);
        }
    }

    fn abandon(&mut self, out: &mut Vec<Effect>) {
        for (claim, held) in &mut self.held {
            if let Phase::Running = held.phase {
                held.phase = Phase::Stopping { by_manager: false };
                out.push(Effect::Cancel { claim: *claim, why: CancelWhy::Asked });
            }
        }
    }

    fn rejected(&mut self, refused: Refused, out: &mut Vec<Effect>) {
        for (claim, held) in core::mem::take(&mut self.held) {
            if let Phase::Running = held.phase {
                out.push(Effect::Cancel { claim, why: CancelWhy::Stale });
            }
        }
        self.timers.clear();
        self.stage = Stage::Over;
        out.push(Effect::Rejected(refused));
    }

    fn tell_capacity_if_talking(&self, out: &mut Vec<Effect>) {
        if self.session == Session::Talking {
            self.tell_capacity(out);
        }
    }

    fn tell_capacity(&self, out: &mut Vec<Effect>) {
        let (slots, accepting) = (self.identity.slots, self.is_accepting());
        out.push(Effect::Send(FromWorker::Capacity { slots, accepting }));
    }

    fn timers_due(&mut self, now: Mono, out: &mut Vec<Effect>) {
        while let Some(&(at, claim)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            let Some(held) = self.held.get_mut(&claim) else { continue };
            held.armed = None;
            match held.wake(now) {
                Some(held::Due::Beat(beat)) => self.send_beat(now, claim, beat, out),
                Some(held::Due::Lost) => {
                    if let Phase::Running = held.phase {
                        held.phase = Phase::Stopping { by_manager: false };
                        out.push(Effect::Cancel { claim, why: CancelWhy::LeaseExpired });
                    }
                    Self::rearm(&mut self.timers, claim, held);
                }
                None => Self::rearm(&mut self.timers, claim, held),
            }
        }
    }

    fn forget(&mut self, claim: Claim) {
        if let Some(Held { armed: Some(at), .. }) = self.held.remove(&claim) {
            self.timers.remove(&(at, claim));
        }
    }

    fn rearm(timers: &mut BTreeSet<(Mono, Claim)>, claim: Claim, held: &mut Held) {
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
}
