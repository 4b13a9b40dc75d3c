//! A mailbox on a queue of a node.
//!
//! A message is a job of one workflow, and a hand-out of it an attempt. The node compares fences, so whoever lost a lease
//! is refused; it counts attempts, so a message that kills its process reaches the dead letters; and a message of a group
//! is a job under an ordered key.
//!
//! A job is judged by its manager as well: how long it may take in all, and how long without a forward step. A message is
//! judged by whoever runs its handler, so those spans are as long as a node allows, which is 366 days.

mod errors;
mod pollers;
mod wire;

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use onward_api::dead_letter::{DeadLetterList, ReplayAnswers};
use onward_api::job::Job;
use onward_api::lease::{BeatsAnswer, Leases, SettleAnswerBody, SettleItem};
use onward_api::queue::QueueList;
use onward_api::submit::SubmitJob;
use tokio::time::{Instant, sleep};

use super::{
    Counting, DeadLetter, Depth, DepthCount, End, Groups, LeaseLength, Mailbox, MailboxError, Message, MessageId,
    OneStep, Promises, Receipt, Received, RepeatedEnd, Reply, StaleAck, Want,
};
use crate::client::{CallError, Client, escaped, random_key};
use errors::{of_call, of_look, of_problem};
use pollers::Pollers;

/// The largest payload that a node takes unless its settings say otherwise.
const MAX_BYTES: usize = 1 << 20;
/// Most messages of one poll: their bodies come in one answer.
const MAX_POLL: usize = 100;
/// The longest wait of one poll; a longer wait is several polls.
const POLL: Duration = Duration::from_secs(20);
/// The pause after a poll that was answered with nothing before its time.
const EARLY: Duration = Duration::from_secs(1);
/// The longest lease of a node.
const MAX_LEASE: Duration = Duration::from_secs(12 * 3_600);
/// Most items of one call, and the bytes of bodies in it: well below what a node takes.
const MAX_CALL: usize = 1_000;
const MAX_CALL_BYTES: usize = 4 << 20;
/// The node itself gives up on a message after so many attempts; we must be first.
const MAX_ATTEMPTS: u32 = 1_000;

/// A mailbox on a queue of a node. Clones are the same mailbox.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use onward::Client;
/// use onward::mailbox::NodeQueue;
///
/// let orders = NodeQueue::connect(Client::connect("http://127.0.0.1:7400")?, "orders").await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct NodeQueue {
    client: Client,
    names: Arc<Names>,
    max_deliveries: u32,
    pollers: Arc<Pollers>,
}

/// The queue and kind of the jobs that are messages of a mailbox.
#[derive(Clone, Debug)]
struct Names {
    queue: String,
    kind: String,
}

/// Made by [`NodeQueue::builder`].
#[derive(Clone, Debug)]
pub struct NodeQueueBuilder {
    client: Client,
    names: Names,
    max_deliveries: u32,
}

impl NodeQueueBuilder {
    /// The kind of jobs that are messages. Default: `message`. Other kinds are left to their workers, but what is in the
    /// queue is counted by [`Mailbox::depth`] whatever its kind is.
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.names.kind = kind.into();
        self
    }

    /// A message that was handed out this often is dead. Default 5. A job that somebody else submitted is dead when its
    /// own `retry.max_attempts` are spent, if that is sooner.
    pub fn max_deliveries(mut self, max: u32) -> Self {
        self.max_deliveries = max;
        self
    }

    /// Asks the node for the queue, so that a wrong address, token or name is seen now.
    pub async fn connect(self) -> Result<NodeQueue, MailboxError> {
        if self.max_deliveries >= MAX_ATTEMPTS {
            let (ours, remedy) = (self.max_deliveries, format!("lower max_deliveries below {MAX_ATTEMPTS}"));
            let why = format!("a node gives up after {MAX_ATTEMPTS} deliveries, and we after {ours}");
            return Err(MailboxError::Refused { why, remedy });
        }
        let Self { client, names, max_deliveries } = self;
        let queue = NodeQueue { client, names: Arc::new(names), max_deliveries, pollers: Arc::default() };
        queue.counts().await?;
        Ok(queue)
    }
}

impl NodeQueue {
    /// Connects to the queue of this name, which needs no other preparation. Give it to messages alone.
    pub async fn connect(client: Client, queue: impl Into<String>) -> Result<Self, MailboxError> {
        Self::builder(client, queue).connect().await
    }

    pub fn builder(client: Client, queue: impl Into<String>) -> NodeQueueBuilder {
        let names = Names { queue: queue.into(), kind: "message".into() };
        NodeQueueBuilder { client, names, max_deliveries: 5 }
    }

    /// The address that messages name as their `reply_to` to be answered here: the name of the queue.
    pub fn address(&self) -> &str {
        &self.names.queue
    }

    async fn counts(&self) -> Result<QueueList, MailboxError> {
        let path = format!("/v1/queues?name={}", escaped(&self.names.queue));
        self.client.exchange(&path, None, Duration::ZERO).await.map_err(of_look)
    }

    /// A page of dead letters, without their payloads.
    async fn letters(&self, limit: usize, cursor: Option<&str>) -> Result<DeadLetterList, MailboxError> {
        let Names { queue, kind } = &*self.names;
        let mut path = format!("/v1/dead-letters?queue={}&kind={}&limit={limit}", escaped(queue), escaped(kind));
        if let Some(cursor) = cursor {
            path += &format!("&cursor={}", escaped(cursor));
        }
        self.client.exchange(&path, None, Duration::ZERO).await.map_err(of_look)
    }

    /// The oldest dead letters, at most `max`, without their payloads.
    async fn oldest_letters(&self, max: usize) -> Result<Vec<Job>, MailboxError> {
        let (mut letters, mut cursor) = (Vec::new(), None);
        while letters.len() < max {
            let page = self.letters((max - letters.len()).min(MAX_CALL), cursor.as_deref()).await?;
            letters.extend(page.dead_letters);
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        Ok(letters)
    }

    async fn submit(&self, jobs: &[SubmitJob]) -> Result<Vec<MessageId>, CallError> {
        let answer = self.client.submit_all_written(jobs).await?.into_value();
        Ok(answer.jobs.into_iter().map(|job| MessageId::new(job.id)).collect())
    }

    /// Polls once. A lease that was handed out too often is buried and not among those given; the second answer is the
    /// number of these.
    async fn poll(&self, max: usize, lease: Duration, wait: Duration) -> Result<(Vec<Received>, usize), MailboxError> {
        let poller = self.pollers.take();
        let body = wire::poll(&poller, &self.names, max, lease, wait);
        let answer = self.client.exchange::<Leases<'static>>("/v1/leases", Some(body), wait).await.map_err(of_call)?;
        poller.answered();
        let (mut good, spent): (Vec<_>, Vec<_>) =
            answer.leases.into_iter().partition(|lease| lease.attempt <= self.max_deliveries);
        // What a lost answer had may be more than is wanted now.
        let more = good.split_off(max.min(good.len()));
        let why = wire::too_often(self.max_deliveries);
        let buried = spent.iter().map(|lease| wire::burial(&lease.receipt, &why));
        let released =
            more.iter().map(|lease| wire::settlement(&lease.receipt, &End::Release { after: Duration::ZERO }));
        // What cannot be said now comes again when its lease is over, and is said then.
        self.settle_all(buried.chain(released).collect()).await;
        let received = good.into_iter().map(wire::received).collect::<Result<_, _>>()?;
        Ok((received, spent.len()))
    }

    async fn settle_all(&self, batch: Vec<SettleItem>) -> Vec<Result<(), MailboxError>> {
        let mut answers = Vec::with_capacity(batch.len());
        for chunk in batch.chunks(MAX_CALL) {
            let body = Some(wire::settlements(chunk));
            match self.client.exchange::<SettleAnswerBody>("/v1/leases/settle", body, Duration::ZERO).await {
                Ok(settled) if settled.settlements.len() == chunk.len() => {
                    let errors = settled.settlements.into_iter().map(|item| item.error);
                    answers.extend(errors.map(|error| error.map_or(Ok(()), |problem| Err(of_problem(problem)))));
                }
                Ok(_) => answers.extend(chunk.iter().map(|_| Err(errors::strange()))),
                Err(error) => {
                    let error = of_call(error);
                    answers.extend(chunk.iter().map(|_| Err(error.clone())));
                }
            }
        }
        answers
    }

    /// Sends a reply, and answers whether it did: not if its hand-out is over. Its key is of this hand-out, so that it may
    /// be repeated.
    async fn reply(&self, receipt: &Receipt, reply: &Reply) -> Result<bool, MailboxError> {
        reply.message.check(MAX_BYTES)?;
        let body = wire::beats(core::iter::once(wire::token_of(receipt)?));
        let beats = self
            .client
            .exchange::<BeatsAnswer>("/v1/leases/beat", Some(body), Duration::ZERO)
            .await
            .map_err(of_call)?;
        let beat = beats.beats.into_iter().next().ok_or_else(errors::strange)?;
        let is_cancelled = beat.cancel == Some(true);
        match wire::granted(beat) {
            Err(MailboxError::Stale) if !is_cancelled => return Ok(false),
            granted => granted?,
        };
        let names = Names { queue: reply.to.clone(), kind: self.names.kind.clone() };
        let key = format!("reply-{}-{}", receipt.message(), wire::fence_of(receipt)?);
        match self.submit(&[wire::submission(&names, &reply.message, key)]).await {
            // The same hand-out has replied before, in other words.
            Err(error) if error.code() == Some("conflict") => Ok(true),
            sent => sent.map(|_| true).map_err(of_call),
        }
    }

    async fn settle_one(&self, receipt: &Receipt, end: &End) -> Result<(), MailboxError> {
        let replied = match end {
            // Where it is not sent any more, the node tells an end that was accepted before from one that is stale.
            End::Ack { reply: Some(reply) } => self.reply(receipt, reply).await?,
            _ => false,
        };
        let token = wire::token_of(receipt)?;
        let said = self.settle_all(vec![wire::settlement(token, end)]).await.remove(0);
        said.map_err(|error| match error {
            MailboxError::Unavailable { why, .. } if replied => MailboxError::Cut { done: "the reply was sent", why },
            error => error,
        })
    }
}

impl fmt::Debug for NodeQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeQueue").field("names", &self.names).finish_non_exhaustive()
    }
}

impl Mailbox for NodeQueue {
    fn promises(&self) -> Promises {
        Promises {
            stale_ack: StaleAck::Refused,
            repeated_ack: RepeatedEnd::Accepted,
            reply_with_ack: OneStep::CopyFirst,
            dead_letter: OneStep::Yes,
            lease: LeaseLength::Repeated,
            longest_hold: None,
            counting: Counting::Attempts,
            groups: Groups::Ordered,
            depth: DepthCount::Exact,
            max_bytes: MAX_BYTES,
        }
    }

    async fn send(&self, batch: Vec<Message>) -> Vec<Result<MessageId, MailboxError>> {
        let mut answers: Vec<Option<Result<MessageId, MailboxError>>> =
            batch.iter().map(|message| message.check(MAX_BYTES).err().map(Err)).collect();
        let good: Vec<usize> = (0..batch.len()).filter(|at| answers[*at].is_none()).collect();
        let mut left = good.as_slice();
        while !left.is_empty() {
            let mut bytes = 0;
            let fits = |at: &&usize| {
                bytes += batch[**at].body.len();
                bytes <= MAX_CALL_BYTES
            };
            let (now, later) = left.split_at(left.iter().take(MAX_CALL).take_while(fits).count().max(1));
            left = later;
            let jobs: Vec<_> = now.iter().map(|at| wire::submission(&self.names, &batch[*at], random_key())).collect();
            let sent = self.submit(&jobs).await.map_err(of_call);
            for (number, at) in now.iter().enumerate() {
                answers[*at] = Some(match &sent {
                    Ok(ids) => ids.get(number).cloned().ok_or_else(errors::strange),
                    Err(error) => Err(error.clone()),
                });
            }
        }
        answers.into_iter().map(|answer| answer.expect("each was refused or sent")).collect()
    }

    async fn receive(&self, want: Want) -> Result<Vec<Received>, MailboxError> {
        if want.max == 0 {
            sleep(want.wait).await;
            return Ok(Vec::new());
        }
        let began = Instant::now();
        let (max, lease) = (want.max.min(MAX_POLL), want.lease.min(MAX_LEASE));
        // The lease counts from before the call, so that a long wait would be a part of it.
        let longest_wait = POLL.min(lease / 4);
        loop {
            let waited = began.elapsed();
            let wait = want.wait.saturating_sub(waited).min(longest_wait);
            let (mut received, buried) = self.poll(max, lease, wait).await?;
            received.iter_mut().for_each(|one| one.lease += waited);
            // Behind one that was buried there may be another.
            if !received.is_empty() || (buried == 0 && began.elapsed() >= want.wait) {
                return Ok(received);
            }
            // A node that is about to stop answers at once.
            let early = (waited + wait).saturating_sub(began.elapsed());
            if buried == 0 && !early.is_zero() {
                sleep(early.min(EARLY)).await;
            }
        }
    }

    async fn extend(&self, batch: Vec<(Receipt, Duration)>) -> Vec<Result<Duration, MailboxError>> {
        let mut answers = Vec::with_capacity(batch.len());
        for chunk in batch.chunks(MAX_CALL) {
            let tokens: Vec<_> = chunk.iter().map(|(receipt, _)| wire::token_of(receipt)).collect();
            let body = wire::beats(tokens.iter().flatten().copied());
            let asked = match tokens.iter().any(Result::is_ok) {
                true => self.client.exchange::<BeatsAnswer>("/v1/leases/beat", Some(body), Duration::ZERO).await,
                false => Ok(BeatsAnswer { beats: Vec::new() }),
            };
            let mut granted = match asked {
                Ok(beats) => Ok(beats.beats.into_iter()),
                Err(error) => Err(of_call(error)),
            };
            answers.extend(tokens.into_iter().map(|token| {
                token?;
                let beats = granted.as_mut().map_err(|error| error.clone())?;
                wire::granted(beats.next().ok_or_else(errors::strange)?)
            }));
        }
        answers
    }

    async fn settle(&self, batch: Vec<(Receipt, End)>) -> Vec<Result<(), MailboxError>> {
        let has_reply = |end: &End| matches!(end, End::Ack { reply: Some(_) });
        let mut answers: Vec<Option<Result<(), MailboxError>>> = Vec::with_capacity(batch.len());
        for (receipt, end) in &batch {
            answers.push(match wire::token_of(receipt) {
                Err(error) => Some(Err(error)),
                Ok(_) if has_reply(end) => Some(self.settle_one(receipt, end).await),
                Ok(_) => None,
            });
        }
        let open = || answers.iter().zip(&batch).filter(|(answer, _)| answer.is_none()).map(|(_, one)| one);
        let said =
            open().map(|(receipt, end)| wire::settlement(wire::token_of(receipt).expect("looked at above"), end));
        let mut said = self.settle_all(said.collect()).await.into_iter();
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| said.next().expect("one for each"))).collect()
    }

    async fn depth(&self) -> Result<Depth, MailboxError> {
        let counts = self.counts().await?;
        let of_states = |states: &[&str]| states.iter().map(|state| wire::jobs_in(&counts, state)).sum();
        let (waiting, held) = (of_states(&["waiting", "ready", "delayed"]), of_states(&["running", "cancelling"]));
        Ok(Depth { waiting, held, dead: self.oldest_letters(usize::MAX).await?.len() as u64 })
    }

    async fn dead_letters(&self, max: usize) -> Result<Vec<DeadLetter>, MailboxError> {
        let mut letters = Vec::new();
        for letter in self.oldest_letters(max).await? {
            let path =
                format!("/v1/jobs/{}?workflow={}", escaped(&letter.id), escaped(&wire::workflow_of(&letter)?.name));
            match self.client.exchange::<Job>(&path, None, Duration::ZERO).await.map_err(of_look) {
                Ok(job) => letters.push(wire::letter(job)?),
                // Somebody replayed or dropped it meanwhile, and it has expired.
                Err(MailboxError::Stale) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(letters)
    }

    async fn replay(&self, max: usize) -> Result<usize, MailboxError> {
        let mut moved = 0;
        for chunk in self.oldest_letters(max).await?.chunks(MAX_CALL) {
            let body = wire::replay(chunk.iter().map(|letter| letter.id.clone()).collect(), random_key());
            let answer = self.client.exchange("/v1/dead-letters/replay", Some(body), Duration::ZERO).await;
            let replayed: ReplayAnswers = answer.map_err(of_call)?;
            moved += replayed.jobs.iter().filter(|job| job.id.is_some()).count();
        }
        Ok(moved)
    }
}
