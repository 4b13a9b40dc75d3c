//! The machine with a hand on its clock. Times are milliseconds since it was made.

mod beats;
mod ends;
mod sessions;

use onward_core::backoff::Backoff;
use onward_core::fence::{AttemptFence, Term};
use onward_core::ids::{ClientId, Incarnation, JobId, Name, WorkerId};
use onward_core::job::{Outline, WorkflowSpec};
use onward_core::lease::LostPolicy;
use onward_core::message::{Assignment, Beat, BeatAccepted, CancelWhy, EndReport, Subscription};
use onward_core::payload::Payload;
use onward_core::refusal::RefusalKind;

use super::*;

/// The machine does not begin at zero, so that a forgotten offset is seen.
const START: Mono = Mono::from_ms(1_000_000);
const LEASE: Duration = secs(30);

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn at(ms: u64) -> Mono {
    START + Duration::from_millis(ms)
}

fn claim(n: u128) -> Claim {
    Claim { job: JobId::from_u128(n), workflow: 0, fence: AttemptFence::new(Term::new(1), 1).unwrap() }
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(crate) fn assignment(claim: Claim) -> Assignment {
    Assignment {
        claim,
        attempt: 1,
        queue: name("default"),
        workflow: WorkflowSpec {
            outline: Outline { name: name("main"), kind: name("task"), content_type: None, after: [].into() }.into(),
            payload: Payload::default(),
        },
        headers: [].into(),
        inputs: Vec::new(),
        checkpoint: None,
        lease: LEASE,
        deadline_remaining: secs(3_600),
    }
}

fn refused(kind: RefusalKind) -> RemoteRefusal {
    RemoteRefusal { code: kind.code().into(), text: "no".into() }
}

fn result() -> Payload {
    Payload::from(*b"\"ok\"")
}

fn plain() -> HandlerReport {
    HandlerReport::default()
}

fn progress(done: u64) -> HandlerReport {
    HandlerReport { progress: Some((done, Some(100))), ..HandlerReport::default() }
}

fn quiet(span: Duration) -> HandlerReport {
    HandlerReport { quiet: Some(span), ..HandlerReport::default() }
}

fn checkpoint(text: &str) -> HandlerReport {
    HandlerReport { checkpoint: Some(text.as_bytes().into()), ..HandlerReport::default() }
}

struct Bench {
    machine: SessionMachine,
    now: u64,
}

impl Bench {
    fn with(change: impl FnOnce(&mut SessionConfig)) -> Self {
        let mut config = SessionConfig::default();
        change(&mut config);
        let identity = Identity {
            worker: WorkerId::new("w").unwrap(),
            incarnation: Incarnation::new("1").unwrap(),
            subscription: Subscription { queues: vec![name("default")], kinds: vec![name("task")] },
            slots: 4,
        };
        Self { machine: SessionMachine::new(identity, config, 7, START), now: 0 }
    }

    fn new() -> Self {
        Self::with(|_| {})
    }

    /// Welcomed at 0.
    fn talking() -> Self {
        let mut bench = Self::new();
        bench.connect();
        bench
    }

    /// Welcomed at 0, with one attempt that was handed to it then.
    fn running() -> Self {
        let mut bench = Self::talking();
        bench.assign(1);
        bench
    }

    fn running_with(change: impl FnOnce(&mut SessionConfig)) -> Self {
        let mut bench = Self::with(change);
        bench.connect();
        bench.assign(1);
        bench
    }

    fn step(&mut self, input: Input) -> Vec<Effect> {
        let mut out = Vec::new();
        self.machine.step(at(self.now), input, &mut out);
        let mut armed = 0;
        for (claim, held) in &self.machine.held {
            assert_eq!(held.armed, held.next_wakeup(), "a timer of {claim:?} is not where it should be");
            armed += usize::from(held.armed.is_some());
        }
        assert_eq!(self.machine.timers.len(), armed, "a timer of nobody");
        if let Some(next) = self.machine.next_wakeup() {
            assert!(next > at(self.now), "it wants to be woken at once, after it was");
        }
        out
    }

    fn at(&mut self, ms: u64, input: Input) -> Vec<Effect> {
        assert!(ms >= self.now, "time does not go back");
        self.now = ms;
        self.step(input)
    }

    /// Wakes it whenever it asks for it, and gives what came of that, with when.
    fn until(&mut self, ms: u64) -> Vec<(u64, Effect)> {
        let (mut all, mut steps) = (Vec::new(), 0);
        while let Some(next) = self.machine.next_wakeup().filter(|next| *next <= at(ms)) {
            steps += 1;
            assert!(steps < 10_000, "it never rests");
            let now = u64::try_from(next.since(START).as_millis()).unwrap();
            all.extend(self.at(now, Input::Wake).into_iter().map(|effect| (now, effect)));
        }
        self.now = ms;
        all
    }

    fn heard(&mut self, ms: u64, heard: ManagerMessage) -> Vec<Effect> {
        self.at(ms, Input::FromManager(heard))
    }

    fn say(&mut self, ms: u64, report: HandlerReport) -> Vec<Effect> {
        self.at(ms, Input::Reported { claim: claim(1), report })
    }

    fn finish(&mut self, ms: u64, outcome: HandlerOutcome) -> Vec<Effect> {
        self.at(ms, Input::Finished { claim: claim(1), outcome })
    }

    fn beat_taken(&mut self, ms: u64) -> Vec<Effect> {
        let accepted = BeatAccepted { lease_remaining: LEASE, cancel: false, quiet: None };
        self.heard(ms, ManagerMessage::BeatAnswer { claim: claim(1), answer: Ok(accepted) })
    }

    fn beat_refused(&mut self, ms: u64, kind: RefusalKind) -> Vec<Effect> {
        self.heard(ms, ManagerMessage::BeatAnswer { claim: claim(1), answer: Err(refused(kind)) })
    }

    fn settled(&mut self, ms: u64, answer: Result<(), RemoteRefusal>) -> Vec<Effect> {
        self.heard(ms, ManagerMessage::SettleAnswer { claim: claim(1), answer })
    }

    fn welcome(&mut self, ms: u64) -> Vec<Effect> {
        self.heard(ms, ManagerMessage::Welcome { term: Term::new(1) })
    }

    fn connect(&mut self) {
        assert_eq!(self.step(Input::Wake), [Effect::Dial]);
        assert_eq!(self.step(Input::Connected).len(), 1);
        let now = self.now;
        self.welcome(now);
    }

    fn assign(&mut self, n: u128) {
        let now = self.now;
        let lease = Effect::Lease { claim: claim(n), until: at(now) + LEASE };
        assert_eq!(
            self.heard(now, ManagerMessage::Assign(assignment(claim(n)))),
            [lease, Effect::Start(assignment(claim(n)))]
        );
    }

    /// Loses the session now; the next one is open, and welcomed at `ms`. Gives what is said on the welcome.
    fn reconnect(&mut self, lost: u64, ms: u64) -> Vec<Effect> {
        self.at(lost, Input::Disconnected);
        self.until(ms);
        assert_eq!(self.machine.session, Session::Reaching, "dialled by then");
        self.at(ms, Input::Connected);
        self.welcome(ms)
    }
}

fn beats(beats: impl Into<Vec<Beat>>) -> Effect {
    Effect::Send(FromWorker::Beats(beats.into()))
}

fn beat(what: &HandlerReport) -> Effect {
    let mut beat = Beat::plain(claim(1));
    beat.watermark = what.progress.map(|(done, _)| done);
    beat.total = what.progress.and_then(|(_, total)| total);
    (beat.note, beat.quiet, beat.checkpoint) = (what.note.clone(), what.quiet, what.checkpoint.clone());
    beats([beat])
}

fn settle(report: EndReport) -> Effect {
    Effect::Send(FromWorker::Settle(vec![Settlement::new(claim(1), report)]))
}

fn success() -> EndReport {
    EndReport::Succeed { result: result() }
}

fn ended(n: u128) -> Effect {
    Effect::Send(FromWorker::Ended(vec![claim(n)]))
}

fn goodbye() -> Effect {
    Effect::Send(FromWorker::Goodbye)
}

fn cancel(why: CancelWhy) -> Effect {
    Effect::Cancel { claim: claim(1), why }
}

fn lease_until(ms: u64) -> Effect {
    Effect::Lease { claim: claim(1), until: at(ms) }
}

fn capacity(accepting: bool) -> Effect {
    Effect::Send(FromWorker::Capacity { slots: 4, accepting })
}
