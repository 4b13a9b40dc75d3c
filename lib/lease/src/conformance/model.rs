//! Random calls, compared with core's machine.
//!
//! Time stands still for the model, since no lease ends during a run but those that a run waits for. Which of several
//! messages comes first is a mailbox's own affair, so messages are compared as sets: a run takes all that the model
//! says are there.
//!
//! A mailbox that declares less than the model has is compared with what it declares: where a stale acknowledgement may
//! be taken, one is said all the same, and what became of it is looked at; where depths are approximate, they must be
//! right in the end. Receipts of the past are shown by somebody else than who got them, so that the broker decides about
//! them and not the memory of one process.

use core::time::Duration;
use std::collections::BTreeMap;

use onward_core::mailbox::{HandoutFence, MailboxMachine as Machine, MailboxRule, MessageEnd};
use onward_core::time::Awake;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use tokio::time::Instant;

use super::{LONG, PATIENCE, Setup, Subject, extend, settle, take, take_now};
use crate::mailbox::{
    Counting, Depth, DepthCount, End, Groups, LeaseLength, Mailbox, MailboxError, Message, Promises, Receipt,
    RepeatedEnd, StaleAck,
};

const MAX_DELIVERIES: u32 = 3;
/// Longer than any run, by the model's clock.
const FOR_EVER: Duration = Duration::from_secs(1 << 30);

/// Compares a mailbox with the model in so many runs of so many calls.
///
/// # Panics
/// If the mailbox answers otherwise; the calls are printed.
pub async fn check_against_model<S: Subject>(subject: &S, runs: u64, calls: usize) {
    for seed in 0..runs {
        let mailbox = subject.open(Setup { max_deliveries: MAX_DELIVERIES, lease: LONG }).await;
        let mut run = Run {
            promises: mailbox.promises(),
            elsewhere: subject.open_elsewhere(&mailbox).await,
            mailbox,
            short: subject.short_lease(),
            random: ChaCha8Rng::seed_from_u64(seed),
            model: Machine::new(MailboxRule { max_deliveries: MAX_DELIVERIES, ..MailboxRule::default() }),
            now: Awake::ZERO,
            sent: 0,
            held: Vec::new(),
            old: Vec::new(),
            story: vec![format!("{}, seed {seed}", subject.name())],
        };
        for _ in 0..calls {
            run.call().await;
        }
        run.finish().await;
    }
}

struct Run<M> {
    mailbox: M,
    /// The same mailbox, as another process has it.
    elsewhere: M,
    promises: Promises,
    short: Duration,
    random: ChaCha8Rng,
    model: Machine<u32>,
    now: Awake,
    sent: u32,
    held: Vec<OpenDelivery>,
    old: Vec<Old>,
    story: Vec<String>,
}

#[derive(Clone, Debug)]
struct OpenDelivery {
    body: u32,
    receipt: Receipt,
    proof: HandoutFence,
}

/// A hand-out of the past: settled, or handed out again.
#[derive(Clone, Debug)]
struct Old {
    held: OpenDelivery,
    end: Option<End>,
    /// The message was settled for good since, by this hand-out or a later one.
    is_gone: bool,
}

impl<M: Mailbox> Run<M> {
    async fn call(&mut self) {
        match self.random.random_range(0..10) {
            0..=2 => self.send().await,
            3..=4 => self.receive().await,
            5..=6 => self.settle().await,
            7 => self.extend().await,
            8 => self.say_something_stale().await,
            _ => match self.random.random_range(0..3) {
                0 => self.replay().await,
                1 => self.let_a_lease_end().await,
                _ => self.depth().await,
            },
        }
    }

    async fn send(&mut self) {
        let mut batch = Vec::new();
        for _ in 0..self.random.random_range(1..4) {
            self.sent += 1;
            let mut message = Message::new(self.sent.to_string());
            if self.promises.groups == Groups::Ordered && self.random.random_bool(0.5) {
                message = message.group(format!("g{}", self.random.random_range(0..2)));
            }
            self.model.send(self.sent, message.group.as_deref().map(Into::into)).expect("it has room");
            batch.push(message);
        }
        self.tell(format!("send {batch:?}"));
        for sent in self.mailbox.send(batch).await {
            self.expect(sent.is_ok(), || format!("{sent:?}"));
        }
    }

    /// Receives all messages that can be had.
    async fn receive(&mut self) {
        self.tell("receive all".into());
        let handed = self.model.receive(self.now, usize::MAX, FOR_EVER);
        let expected: BTreeMap<u32, _> = handed.into_iter().map(|one| (one.content, one)).collect();
        let received = take(&self.mailbox, expected.len(), LONG).await;
        for one in received {
            let body: u32 = String::from_utf8_lossy(&one.message.body).parse().expect("bodies are numbers");
            let model = expected.get(&body);
            self.expect(model.map(|model| model.delivery) == Some(one.delivery), || {
                format!("{one:?}, model {model:?}")
            });
            let proof = model.expect("compared above").proof;
            self.expect(!self.held.iter().any(|held| held.body == body), || format!("{body} is held twice"));
            self.held.push(OpenDelivery { body, receipt: one.receipt, proof });
        }
        let more = take_now(&self.mailbox).await;
        self.expect(more.is_empty(), || format!("the model has no more, and there came {more:?}"));
        let dead: Vec<u32> = self.model.dead().map(|letter| letter.content).collect();
        dead.into_iter().for_each(|body| self.bid_farewell(body));
    }

    async fn settle(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let held = self.held.swap_remove(self.random.random_range(0..self.held.len()));
        let (end, model_end) = match self.random.random_range(0..6) {
            0..=1 => (End::ACK, MessageEnd::Ack),
            2..=3 => (End::Retry { after: Duration::ZERO }, MessageEnd::Retry { after: Duration::ZERO }),
            4 => match self.promises.counting {
                Counting::Attempts => {
                    (End::Release { after: Duration::ZERO }, MessageEnd::Release { after: Duration::ZERO })
                }
                Counting::Deliveries => {
                    (End::Release { after: Duration::ZERO }, MessageEnd::Retry { after: Duration::ZERO })
                }
            },
            _ => (End::Dead { why: "no".into() }, MessageEnd::Dead { why: "no".into() }),
        };
        self.tell(format!("settle {} {end:?}", held.body));
        let answer = settle(&self.mailbox, &held.receipt, end.clone()).await;
        self.model.settle(self.now, held.proof, model_end).expect("the newest hand-out");
        self.expect(answer == Ok(()), || format!("{answer:?}"));
        self.leave_behind(held, Some(end));
    }

    fn leave_behind(&mut self, held: OpenDelivery, end: Option<End>) {
        let is_gone = matches!(end, Some(End::Ack { .. } | End::Dead { .. }));
        if is_gone {
            self.bid_farewell(held.body);
        }
        self.old.push(Old { held, end, is_gone });
    }

    /// A message is gone from the mailbox, to the dead letters or for ever.
    fn bid_farewell(&mut self, body: u32) {
        self.old.iter_mut().filter(|old| old.held.body == body).for_each(|old| old.is_gone = true);
    }

    async fn extend(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let held = self.held[self.random.random_range(0..self.held.len())].clone();
        let by = self.short * self.random.random_range(1..3);
        self.tell(format!("extend {} by {by:?}", held.body));
        let answer = extend(&self.mailbox, &held.receipt, by).await;
        self.expect(answer.as_ref().is_ok_and(|granted| *granted >= by), || format!("{answer:?}"));
    }

    /// A receipt of the past is answered as was declared, and changes nothing, unless it may be taken.
    async fn say_something_stale(&mut self) {
        if self.old.is_empty() {
            return;
        }
        // What is there is held from now on, and nobody waits for the message whose receipt this is.
        self.receive().await;
        let Old { held: old, end, is_gone } = self.old[self.random.random_range(0..self.old.len())].clone();
        self.tell(format!("say something stale about {} that ended as {end:?}", old.body));
        let may_be_taken = self.promises.stale_ack == StaleAck::MayBeTaken;
        let extended = extend(&self.elsewhere, &old.receipt, LONG).await;
        let is_stale = extended == Err(MailboxError::Stale);
        self.expect(is_stale || (may_be_taken && extended.is_ok()), || format!("extended: {extended:?}"));
        if end == Some(End::ACK) {
            return self.repeat_ack(&old).await;
        }
        let acked = settle(&self.elsewhere, &old.receipt, End::ACK).await;
        let is_taken = may_be_taken && acked.is_ok();
        self.expect(is_taken || acked == Err(MailboxError::Stale), || format!("acked: {acked:?}"));
        if is_taken && !is_gone {
            self.end_what_may_be_taken(old.body).await;
        }
    }

    /// Acknowledges once more in the name of the first holder: a mailbox declares something about no other repeat.
    async fn repeat_ack(&mut self, old: &OpenDelivery) {
        let expected = match self.promises.repeated_ack {
            RepeatedEnd::Accepted => Ok(()),
            RepeatedEnd::Stale => Err(MailboxError::Stale),
        };
        let answer = settle(&self.mailbox, &old.receipt, End::ACK).await;
        self.expect(answer == expected, || format!("{answer:?} and not {expected:?}"));
    }

    /// Ends a hold whose message somebody else acknowledged with a stale receipt, and was not refused. Its holder is
    /// told that it is stale, or nothing was taken: the message is gone in both cases, and no other one is.
    async fn end_what_may_be_taken(&mut self, body: u32) {
        let at = self.held.iter().position(|held| held.body == body);
        let held = self.held.swap_remove(at.expect("what is not gone was received above"));
        self.tell(format!("ack {body}, which may be taken"));
        let answer = settle(&self.mailbox, &held.receipt, End::ACK).await;
        self.expect(matches!(answer, Ok(()) | Err(MailboxError::Stale)), || format!("{answer:?}"));
        self.model.settle(self.now, held.proof, MessageEnd::Ack).expect("the newest hand-out");
        self.bid_farewell(body);
    }

    async fn replay(&mut self) {
        let expected = self.model.replay(usize::MAX);
        self.tell(format!("replay {expected}"));
        let mut moved = 0;
        while let Some(more) = Some(self.mailbox.replay(10).await.expect("an answer")).filter(|more| *more > 0) {
            moved += more;
        }
        self.expect(moved == expected, || format!("{moved} were replayed"));
    }

    /// Lets the lease of a message end for which nobody else waits, so that no other lease ends. Where leases have one
    /// length all of them would end: there, the suite lets one end.
    async fn let_a_lease_end(&mut self) {
        if matches!(self.promises.lease, LeaseLength::Granted(_)) {
            return;
        }
        self.receive().await;
        self.sent += 1;
        self.tell(format!("send {} and let its lease end", self.sent));
        self.model.send(self.sent, None).expect("it has room");
        self.mailbox.send(vec![Message::new(self.sent.to_string())]).await.remove(0).expect("it is sent");
        let lost = self.model.receive(self.now, 1, self.short).remove(0);
        let receipt = take(&self.mailbox, 1, self.short).await.remove(0).receipt;
        self.now = self.now + self.short;
        self.leave_behind(OpenDelivery { body: self.sent, receipt, proof: lost.proof }, None);
        self.receive().await;
    }

    /// Exact at once, or right in the end. Who counts approximately cannot tell those that wait for a retry from held ones.
    async fn depth(&mut self) {
        let model = self.model.depth(self.now);
        let expected = Depth { waiting: model.waiting as u64, held: model.held as u64, dead: model.dead as u64 };
        let is_exact = self.promises.depth == DepthCount::Exact;
        let is_right = |depth: Depth| {
            let is_near = depth.waiting + depth.held == expected.waiting + expected.held && depth.dead == expected.dead;
            if is_exact { depth == expected } else { is_near }
        };
        let until = Instant::now() + PATIENCE;
        loop {
            let depth = self.mailbox.depth().await.expect("a depth");
            if is_right(depth) {
                return self.tell(format!("depth {depth:?}"));
            }
            let is_final = is_exact || Instant::now() >= until;
            self.expect(!is_final, || format!("{depth:?}, and the model has {expected:?}"));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Runs the mailbox empty, whatever happened before.
    async fn finish(&mut self) {
        while self.model.depth(self.now).waiting > 0 || !self.held.is_empty() {
            self.receive().await;
            for held in core::mem::take(&mut self.held) {
                self.tell(format!("at last, ack {}", held.body));
                self.model.settle(self.now, held.proof, MessageEnd::Ack).expect("the newest hand-out");
                let answer = settle(&self.mailbox, &held.receipt, End::ACK).await;
                self.expect(answer == Ok(()), || format!("{answer:?}"));
            }
        }
        let dead = self.mailbox.dead_letters(1_000).await.expect("dead letters");
        let mut told: Vec<_> = dead.iter().map(|one| one.message.body.to_vec()).collect();
        let mut expected: Vec<_> = self.model.dead().map(|one| one.content.to_string().into_bytes()).collect();
        told.sort();
        expected.sort();
        self.expect(told == expected, || format!("dead letters {told:?}, model {expected:?}"));
    }

    fn tell(&mut self, what: String) {
        self.story.push(what);
    }

    fn expect(&self, holds: bool, what: impl FnOnce() -> String) {
        assert!(holds, "{}\n  {}", self.story.join("\n  "), what());
    }
}
