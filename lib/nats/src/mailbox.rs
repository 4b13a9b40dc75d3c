//! The calls of a mailbox, in the words of JetStream.

use core::future::Future;
use core::time::Duration;
use std::borrow::Cow;

use async_nats::Subject;
use async_nats::client::Request;
use async_nats::connection::State;
use async_nats::jetstream::AckKind;
use async_nats::jetstream::Message as Delivered;
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use bytes::Bytes;
use futures_util::future::join_all;
use onward_lease::mailbox::{
    ChangeCertainty, Counting, DeadLetter, Depth, DepthCount, End, Groups, LeaseLength, Mailbox, MailboxError, Message,
    MessageId, OneStep, Promises, Receipt, Received, RepeatedEnd, Reply, StaleAck, Want,
};
use tokio::time::{Instant, timeout};
use tokio_stream::StreamExt;

use crate::errors::{of_look, of_publish, of_request, refused, unavailable};
use crate::fence::{FenceClaim, FenceEnd};
use crate::{Nats, letters};

/// Most calls to the server at a time.
const AT_ONCE: usize = 64;
/// Most messages of one pull.
const MAX_PULL: usize = 1_000;
/// The longest wait of one pull; a longer wait is several pulls.
const PULL: Duration = Duration::from_secs(30);
const LEAST_PULL: Duration = Duration::from_millis(20);
/// The time that an answer may take.
const ANSWER: Duration = Duration::from_secs(10);

impl Mailbox for Nats {
    fn promises(&self) -> Promises {
        let fenced = self.parts.fences.is_some();
        Promises {
            stale_ack: if fenced { StaleAck::Refused } else { StaleAck::MayBeTaken },
            repeated_ack: if fenced { RepeatedEnd::Stale } else { RepeatedEnd::Accepted },
            reply_with_ack: OneStep::CopyFirst,
            dead_letter: OneStep::CopyFirst,
            lease: LeaseLength::Granted(self.parts.lease),
            longest_hold: None,
            counting: Counting::Deliveries,
            groups: Groups::Refused,
            depth: DepthCount::Approximate,
            max_bytes: self.parts.max_bytes,
        }
    }

    /// A stream that is made anew counts its messages anew.
    fn identity(&self) -> String {
        format!("nats:{}:{}", self.parts.name, self.parts.stream.cached_info().created)
    }

    async fn send(&self, batch: Vec<Message>) -> Vec<Result<MessageId, MailboxError>> {
        let sending = |message: Message| async {
            self.check(&message)?;
            let sequence = self.publish(&self.parts.subject, message, None).await?;
            Ok(MessageId::new(sequence.to_string()))
        };
        in_turns(batch, sending).await
    }

    async fn receive(&self, want: Want) -> Result<Vec<Received>, MailboxError> {
        let began = Instant::now();
        let until = began + want.wait;
        loop {
            self.is_connected()?;
            let waited = began.elapsed();
            let pulled = self.pull(want.max.min(MAX_PULL), want.wait.saturating_sub(waited)).await?;
            let admitted = in_turns(pulled, |message| self.admit(message, waited)).await;
            // What could not be admitted comes again when its lease is over.
            let (mut received, mut failed) = (Vec::new(), None);
            for one in admitted {
                match one {
                    Ok(one) => received.extend(one),
                    Err(error) => failed = Some(error),
                }
            }
            match failed {
                Some(error) if received.is_empty() => return Err(error),
                _ if !received.is_empty() || Instant::now() >= until => return Ok(received),
                _ => {}
            }
        }
    }

    async fn extend(&self, batch: Vec<(Receipt, Duration)>) -> Vec<Result<Duration, MailboxError>> {
        in_turns(batch, |(receipt, _)| async move {
            self.is_connected()?;
            let held = Proof::read(&receipt)?;
            if let Some(fences) = &self.parts.fences {
                fences.check(held.sequence, held.revision).await?;
            }
            self.tell(&held.ack, AckKind::Progress).await?;
            Ok(self.parts.lease)
        })
        .await
    }

    async fn settle(&self, batch: Vec<(Receipt, End)>) -> Vec<Result<(), MailboxError>> {
        in_turns(batch, |(receipt, end)| async move {
            self.is_connected()?;
            let held = Proof::read(&receipt)?;
            match end {
                End::Ack { reply } => self.acknowledge(&held, reply).await,
                End::Retry { after } | End::Release { after } => self.give_back(&held, after).await,
                End::Dead { why } => self.bury(&held, &why).await,
            }
        })
        .await
    }

    async fn depth(&self) -> Result<Depth, MailboxError> {
        self.is_connected()?;
        let consumer = self.parts.consumer.get_info().await.map_err(of_look)?;
        let dead = self.parts.dead.get_info().await.map_err(of_look)?;
        let held = consumer.num_ack_pending as u64;
        Ok(Depth { waiting: consumer.num_pending, held, dead: dead.state.messages })
    }

    async fn dead_letters(&self, max: usize) -> Result<Vec<DeadLetter>, MailboxError> {
        self.is_connected()?;
        let mut letters = Vec::new();
        let mut next = 1;
        while letters.len() < max {
            let Some(dead) = self.dead_after(next).await? else { break };
            next = dead.sequence + 1;
            let (why, deliveries) = letters::read_dead(&dead.headers);
            let message = letters::unpack(Some(&dead.headers), dead.payload);
            letters.push(DeadLetter { id: MessageId::new(dead.sequence.to_string()), message, why, deliveries });
        }
        Ok(letters)
    }

    async fn replay(&self, max: usize) -> Result<usize, MailboxError> {
        self.is_connected()?;
        let mut moved = 0;
        while moved < max {
            let Some(dead) = self.dead_after(1).await? else { break };
            let mut headers = letters::clean(&dead.headers);
            letters::name_copy(&mut headers, format!("replay-{}-{}", self.parts.name, dead.sequence));
            self.publish_copy(&self.parts.subject, headers, dead.payload).await?;
            let removed = self.parts.dead.delete_message(dead.sequence).await;
            removed
                .map_err(|error| MailboxError::Cut { done: "a dead letter was sent again", why: error.to_string() })?;
            moved += 1;
        }
        Ok(moved)
    }
}

/// The contents of a receipt.
struct Proof<'a> {
    sequence: u64,
    delivery: u32,
    /// Revision of the fence; 0 without one.
    revision: u64,
    /// The subject on which the server takes acknowledgements.
    ack: Cow<'a, str>,
}

impl<'a> Proof<'a> {
    /// A receipt that we did not make is of no message.
    fn read(receipt: &'a Receipt) -> Result<Self, MailboxError> {
        let number = |text: &str| text.parse::<u64>().map_err(|_| MailboxError::Stale);
        let mut fields = receipt.token().splitn(3, ' ');
        let mut field = || fields.next().ok_or(MailboxError::Stale);
        let (delivery, revision, ack) = (number(field()?)?, number(field()?)?, field()?.into());
        let delivery = u32::try_from(delivery).map_err(|_| MailboxError::Stale)?;
        Ok(Self { sequence: number(receipt.message().as_str())?, delivery, revision, ack })
    }

    fn write(&self) -> Receipt {
        let token = format!("{} {} {}", self.delivery, self.revision, self.ack);
        Receipt::new(MessageId::new(self.sequence.to_string()), token)
    }
}

impl Nats {
    /// Refuses a call without a connection: the client would keep it until there is one, and its caller decides better.
    fn is_connected(&self) -> Result<(), MailboxError> {
        match self.parts.client.connection_state() {
            State::Connected => Ok(()),
            _ => Err(unavailable("there is no connection to NATS", ChangeCertainty::No)),
        }
    }

    fn check(&self, message: &Message) -> Result<(), MailboxError> {
        message.check(self.parts.max_bytes)?;
        if message.group.is_some() {
            let remedy = "send it without a group, or use a mailbox that has groups";
            return Err(refused("JetStream hands out messages of a group at the same time", remedy));
        }
        self.is_connected()
    }

    async fn publish(&self, subject: &str, message: Message, name: Option<String>) -> Result<u64, MailboxError> {
        let (mut headers, body) = letters::pack(message);
        if let Some(name) = name {
            letters::name_copy(&mut headers, name);
        }
        self.publish_copy(subject, headers, body).await
    }

    async fn publish_copy(
        &self,
        subject: &str,
        headers: async_nats::HeaderMap,
        body: Bytes,
    ) -> Result<u64, MailboxError> {
        let subject = Subject::from(subject);
        let sent = self.parts.context.publish_with_headers(subject, headers, body).await;
        let stored = sent.map_err(|error| of_publish(&error))?.await.map_err(|error| of_publish(&error))?;
        Ok(stored.sequence)
    }

    /// Takes what is there, else waits for the first to come.
    async fn pull(&self, max: usize, wait: Duration) -> Result<Vec<Delivered>, MailboxError> {
        let consumer = &self.parts.consumer;
        let failed = |error: async_nats::Error| unavailable(error, ChangeCertainty::Unknown);
        let there = consumer.fetch().max_messages(max).messages().await.map_err(|error| failed(error.into()))?;
        let there = collect(there, ANSWER).await.map_err(failed)?;
        if !there.is_empty() || wait.is_zero() {
            return Ok(there);
        }
        // The lease counts from before the call, so that a long wait would be a part of it.
        let wait = wait.min(PULL).min((self.parts.lease / 4).max(LEAST_PULL));
        let first = consumer.batch().max_messages(1).expires(wait).messages().await;
        collect(first.map_err(|error| failed(error.into()))?, wait + ANSWER).await.map_err(failed)
    }

    /// Makes a hand-out of what the server delivered, unless it was settled or handed out too often.
    /// The lease counts from when we were asked, which was so long before the call.
    async fn admit(&self, delivered: Delivered, waited: Duration) -> Result<Option<Received>, MailboxError> {
        let info = delivered.info().map_err(of_look)?;
        let (sequence, delivery) = (info.stream_sequence, u32::try_from(info.delivered).unwrap_or(u32::MAX));
        let ack = delivered.reply.as_deref().unwrap_or_default().to_owned().into();
        let mut held = Proof { sequence, delivery, revision: 0, ack };
        if let Some(fences) = &self.parts.fences {
            match fences.claim(sequence, delivery).await? {
                FenceClaim::Held(revision) => held.revision = revision,
                FenceClaim::Stale => return Ok(None),
                FenceClaim::Settled(revision) => {
                    self.tell(&held.ack, AckKind::Ack).await?;
                    fences.forget(sequence, revision).await?;
                    return Ok(None);
                }
            }
        }
        let max = self.parts.max_deliveries;
        if delivery > max {
            held.delivery = max;
            self.bury(&held, &format!("handed out {max} times without success")).await?;
            return Ok(None);
        }
        let message = letters::unpack(delivered.headers.as_ref(), delivered.payload.clone());
        let receipt = held.write();
        let (id, fence, lease) = (receipt.message().clone(), u64::from(delivery), waited + self.parts.lease);
        Ok(Some(Received { id, receipt, message, delivery, fence, lease }))
    }

    async fn acknowledge(&self, held: &Proof<'_>, reply: Option<Reply>) -> Result<(), MailboxError> {
        let replied = reply.is_some();
        if let Some(Reply { to, message }) = reply {
            self.check(&message)?;
            if let Some(fences) = &self.parts.fences {
                fences.check(held.sequence, held.revision).await?;
            }
            let name = format!("reply-{}-{}", self.parts.name, held.sequence);
            self.publish(&to, message, Some(name)).await?;
        }
        let acked = self.end(held, FenceEnd::Ack, AckKind::Ack).await;
        acked.map_err(|error| match error {
            MailboxError::Unavailable { why, .. } if replied => MailboxError::Cut { done: "the reply was sent", why },
            error => error,
        })
    }

    async fn give_back(&self, held: &Proof<'_>, after: Duration) -> Result<(), MailboxError> {
        let after = (!after.is_zero()).then_some(after);
        self.end(held, FenceEnd::Retry, AckKind::Nak(after)).await
    }

    async fn bury(&self, held: &Proof<'_>, why: &str) -> Result<(), MailboxError> {
        if let Some(fences) = &self.parts.fences {
            fences.check(held.sequence, held.revision).await?;
        }
        self.copy_to_dead(held, why, held.delivery).await?;
        self.end(held, FenceEnd::Dead(why.to_owned()), AckKind::Ack).await.map_err(|error| match error {
            MailboxError::Unavailable { why, .. } => MailboxError::Cut { done: "the dead letter was stored", why },
            error => error,
        })
    }

    /// Ends a hold: first by its fence, then at the server.
    async fn end(&self, held: &Proof<'_>, ended: FenceEnd, kind: AckKind) -> Result<(), MailboxError> {
        let is_gone = ended != FenceEnd::Retry;
        let Some(fences) = &self.parts.fences else { return self.tell(&held.ack, kind).await };
        let revision = fences.end(held.sequence, held.delivery, held.revision, ended).await?;
        self.tell(&held.ack, kind).await?;
        if is_gone { fences.forget(held.sequence, revision).await } else { Ok(()) }
    }

    async fn copy_to_dead(&self, held: &Proof<'_>, why: &str, deliveries: u32) -> Result<(), MailboxError> {
        let found = self.parts.stream.get_raw_message(held.sequence).await;
        let found = found.map_err(|error| match error.kind() {
            LastRawMessageErrorKind::NoMessageFound => MailboxError::Stale,
            _ => of_look(error),
        })?;
        let mut headers = letters::clean(&found.headers);
        letters::mark_dead(&mut headers, why, deliveries);
        letters::name_copy(&mut headers, format!("dead-{}-{}", self.parts.name, held.sequence));
        self.publish_copy(&self.parts.dead_subject, headers, found.payload).await?;
        Ok(())
    }

    /// The first dead letter from this sequence on.
    async fn dead_after(
        &self,
        sequence: u64,
    ) -> Result<Option<async_nats::jetstream::message::StreamMessage>, MailboxError> {
        let asked = self.parts.dead.raw_message_builder().sequence(sequence).next_by_subject(&self.parts.dead_subject);
        match asked.send().await {
            Ok(message) => Ok(Some(message)),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(of_look(error)),
        }
    }

    /// Tells the server how a hand-out goes on, and waits until it was heard.
    async fn tell(&self, ack: &str, kind: AckKind) -> Result<(), MailboxError> {
        let request = Request::new().payload(kind.into()).timeout(Some(ANSWER));
        let heard = self.parts.client.send_request(Subject::from(ack), request).await;
        heard.map(|_| ()).map_err(|error| of_request(&error))
    }
}

/// Runs calls for all of a batch, some at a time, and answers in its order.
async fn in_turns<I, T, F: Future<Output = T>>(batch: Vec<I>, mut call: impl FnMut(I) -> F) -> Vec<T> {
    let mut answers = Vec::with_capacity(batch.len());
    let mut batch = batch.into_iter().peekable();
    while batch.peek().is_some() {
        let calls: Vec<F> = batch.by_ref().take(AT_ONCE).map(&mut call).collect();
        answers.extend(join_all(calls).await);
    }
    answers
}

/// All messages of a pull. What came before an error is kept, since it was handed out.
async fn collect(
    mut pulled: async_nats::jetstream::consumer::pull::Batch,
    patience: Duration,
) -> Result<Vec<Delivered>, async_nats::Error> {
    let mut messages = Vec::new();
    let until = Instant::now() + patience;
    loop {
        match timeout(until.saturating_duration_since(Instant::now()), pulled.next()).await {
            Ok(Some(Ok(message))) => messages.push(message),
            Ok(None) => return Ok(messages),
            Ok(Some(Err(error))) if messages.is_empty() => return Err(error),
            Err(_) if messages.is_empty() => return Err("the server does not answer".into()),
            Ok(Some(Err(_))) | Err(_) => return Ok(messages),
        }
    }
}
