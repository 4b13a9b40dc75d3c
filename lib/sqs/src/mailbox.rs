//! The calls of a mailbox, in the words of SQS.

use core::time::Duration;

use aws_sdk_sqs::types::{Message as Delivered, MessageSystemAttributeName, QueueAttributeName};
use onward_lease::mailbox::{
    ChangeCertainty, Counting, DeadLetter, Depth, DepthCount, End, Groups, LeaseLength, Mailbox, MailboxError, Message,
    MessageId, OneStep, Promises, Receipt, Received, RepeatedEnd, Reply, StaleAck, Want,
};
use tokio::time::Instant;

use crate::batch::MAX_BATCH;
use crate::errors::{of_change, of_look};
use crate::holds::{Extension, LONGEST, delay, whole_seconds};
use crate::{Sqs, pack};

/// The longest wait of one call.
const MAX_WAIT: Duration = Duration::from_secs(20);
/// The time for which dead letters are kept from others while they are looked at or moved.
const LOOK: Duration = Duration::from_secs(60);

impl Mailbox for Sqs {
    fn promises(&self) -> Promises {
        Promises {
            stale_ack: StaleAck::MayBeTaken,
            repeated_ack: RepeatedEnd::Accepted,
            reply_with_ack: OneStep::CopyFirst,
            dead_letter: OneStep::CopyFirst,
            lease: LeaseLength::Asked,
            longest_hold: Some(LONGEST),
            counting: Counting::Deliveries,
            groups: if self.parts.is_fifo { Groups::Ordered } else { Groups::Refused },
            depth: DepthCount::Approximate,
            max_bytes: self.parts.max_bytes,
        }
    }

    fn identity(&self) -> String {
        self.parts.url.clone()
    }

    async fn send(&self, batch: Vec<Message>) -> Vec<Result<MessageId, MailboxError>> {
        let checked: Vec<_> = batch.iter().map(|message| self.check(message, self.parts.is_fifo)).collect();
        let good = batch.into_iter().zip(&checked).filter(|(_, checked)| checked.is_ok());
        let good = good.map(|(message, _)| pack::pack(message, self.parts.is_fifo)).collect();
        let mut sent = self.send_packed(&self.parts.url, good).await.into_iter();
        let answer = |checked: Result<(), MailboxError>| checked.and_then(|()| sent.next().expect("one for each"));
        checked.into_iter().map(answer).collect()
    }

    async fn receive(&self, want: Want) -> Result<Vec<Received>, MailboxError> {
        let began = Instant::now();
        let until = began + want.wait;
        let lease = whole_seconds(want.lease.clamp(Duration::from_secs(1), LONGEST));
        // The lease counts from before the call, so that a long wait would be a part of it.
        let longest_wait = MAX_WAIT.min(lease / 4).max(Duration::from_secs(1));
        let mut received = Vec::new();
        loop {
            // A FIFO queue hands out several of a group in one call, and no more of a group that is held.
            let most = if self.parts.is_fifo { 1 } else { MAX_BATCH };
            let max = most.min(want.max - received.len());
            let wait =
                if received.is_empty() { until.saturating_duration_since(Instant::now()) } else { Duration::ZERO };
            let asked = Instant::now();
            let came = self.ask(&self.parts.url, max, lease, whole_seconds(wait).min(longest_wait)).await;
            let came = match came {
                Ok(came) => came,
                // What was handed out before is not to be lost with it.
                Err(_) if !received.is_empty() => return Ok(received),
                Err(error) => return Err(error),
            };
            let (is_empty, mut failed) = (came.is_empty(), None);
            for delivered in came {
                match self.admit(&delivered, asked, lease).await {
                    Ok(Some(one)) => received.push(Received { lease: one.lease + (asked - began), ..one }),
                    Ok(None) => {}
                    // It comes again when its lease is over. The others are not to be lost with it.
                    Err(error) => failed = Some(error),
                }
            }
            match failed {
                Some(error) if received.is_empty() => return Err(error),
                Some(_) => return Ok(received),
                None => {}
            }
            let is_enough = received.len() >= want.max || (is_empty && !received.is_empty());
            if is_enough || (is_empty && Instant::now() >= until) {
                return Ok(received);
            }
        }
    }

    async fn extend(&self, batch: Vec<(Receipt, Duration)>) -> Vec<Result<Duration, MailboxError>> {
        let now = Instant::now();
        let wanted: Vec<_> = batch.iter().map(|(receipt, by)| self.parts.holds.extension(receipt, now, *by)).collect();
        let mut asked = Vec::new();
        for ((receipt, _), wanted) in batch.iter().zip(&wanted) {
            if let Ok(Extension::Ask(by)) = wanted {
                asked.push((receipt.token(), *by));
            }
        }
        let mut told = self.set_lease(&self.parts.url, &asked).await.into_iter();
        let mut answers = Vec::with_capacity(batch.len());
        for ((receipt, _), wanted) in batch.iter().zip(wanted) {
            answers.push(match wanted {
                Err(error) => Err(error),
                Ok(Extension::Enough(left)) => Ok(left),
                Ok(Extension::Ask(by)) => {
                    let answer = told.next().expect("one for each");
                    if answer.as_ref().map_or_else(|error| error.changed() == ChangeCertainty::Unknown, |()| true) {
                        self.parts.holds.extended(receipt, now, by, answer.is_ok());
                    }
                    answer.map(|()| by)
                }
            });
        }
        answers
    }

    async fn settle(&self, batch: Vec<(Receipt, End)>) -> Vec<Result<(), MailboxError>> {
        let mut answers: Vec<Result<(), MailboxError>> = Vec::with_capacity(batch.len());
        let (mut deletions, mut returns) = (Vec::new(), Vec::new());
        for (at, (receipt, end)) in batch.iter().enumerate() {
            let prepared = self.prepare(receipt, end).await;
            match &prepared {
                Ok(Step::Delete(done)) => deletions.push((at, receipt.token(), *done)),
                Ok(Step::Return(after)) => returns.push((at, receipt.token(), *after)),
                Ok(Step::Done) | Err(_) => {}
            }
            answers.push(prepared.map(|_| ()));
        }
        let handles: Vec<&str> = deletions.iter().map(|(_, handle, _)| *handle).collect();
        let deleted = self.delete(&self.parts.url, &handles).await;
        for ((at, _, done), deleted) in deletions.into_iter().zip(deleted) {
            answers[at] = deleted.map_err(|error| match (done, error) {
                (Some(done), MailboxError::Unavailable { why, .. }) => MailboxError::Cut { done, why },
                (_, error) => error,
            });
        }
        let leases: Vec<(&str, Duration)> = returns.iter().map(|(_, handle, after)| (*handle, *after)).collect();
        let returned = self.set_lease(&self.parts.url, &leases).await;
        for ((at, ..), returned) in returns.into_iter().zip(returned) {
            answers[at] = returned;
        }
        for ((receipt, end), answer) in batch.iter().zip(&answers) {
            if answer.is_ok() {
                self.parts.holds.settled(receipt, end);
            }
        }
        answers
    }

    async fn depth(&self) -> Result<Depth, MailboxError> {
        let (waiting, held) = self.count(&self.parts.url).await?;
        let (dead, looked_at) = self.count(&self.parts.dead).await?;
        Ok(Depth { waiting, held, dead: dead + looked_at })
    }

    async fn dead_letters(&self, max: usize) -> Result<Vec<DeadLetter>, MailboxError> {
        let found = self.dead(max).await?;
        let handles: Vec<(&str, Duration)> =
            found.iter().filter_map(|one| Some((one.receipt_handle()?, Duration::ZERO))).collect();
        // One that is not given back is seen again when the look is over.
        self.set_lease(&self.parts.dead, &handles).await;
        let letter = |one: &Delivered| {
            let (why, deliveries) = pack::read_dead(one);
            let id = MessageId::new(one.message_id().unwrap_or_default());
            DeadLetter { id, message: pack::unpack(one), why, deliveries }
        };
        Ok(found.iter().map(letter).collect())
    }

    async fn replay(&self, max: usize) -> Result<usize, MailboxError> {
        let mut moved = 0;
        while moved < max {
            let found = self.dead(MAX_BATCH.min(max - moved)).await?;
            if found.is_empty() {
                break;
            }
            let packed = found.iter().map(|one| pack::pack(pack::unpack(one), self.parts.is_fifo)).collect();
            let sent = self.send_packed(&self.parts.url, packed).await;
            let handles: Vec<&str> = found.iter().map(|one| one.receipt_handle().unwrap_or_default()).collect();
            let sent_handles: Vec<&str> =
                handles.iter().zip(&sent).filter(|(_, sent)| sent.is_ok()).map(|(handle, _)| *handle).collect();
            for deleted in self.delete(&self.parts.dead, &sent_handles).await {
                let cut = |error: MailboxError| MailboxError::Cut {
                    done: "a dead letter was sent again",
                    why: error.to_string(),
                };
                deleted.map_err(cut)?;
                moved += 1;
            }
            if let Some(error) = sent.into_iter().find_map(Result::err) {
                return if moved == 0 { Err(error) } else { Ok(moved) };
            }
        }
        Ok(moved)
    }
}

/// The step that remains to be taken in SQS for a message to end.
enum Step {
    /// Deletes the message; what was done before cannot be undone.
    Delete(Option<&'static str>),
    Return(Duration),
    /// Nothing: it was settled in the same way before.
    Done,
}

impl Sqs {
    fn check(&self, message: &Message, to_fifo: bool) -> Result<(), MailboxError> {
        message.check(self.parts.max_bytes)?;
        if message.group.is_some() && !to_fifo {
            let remedy = "send it without a group, or use a FIFO queue".into();
            return Err(MailboxError::Refused { why: "a standard queue has no groups".into(), remedy });
        }
        Ok(())
    }

    async fn ask(
        &self,
        url: &str,
        max: usize,
        lease: Duration,
        wait: Duration,
    ) -> Result<Vec<Delivered>, MailboxError> {
        let seconds = |span: Duration| i32::try_from(span.as_secs()).unwrap_or(i32::MAX);
        let call = self.parts.client.receive_message().queue_url(url);
        let call = call.max_number_of_messages(i32::try_from(max.min(MAX_BATCH)).unwrap_or(1));
        let call = call.visibility_timeout(seconds(lease)).wait_time_seconds(seconds(wait));
        let call = call.message_attribute_names("All");
        let call = call.message_system_attribute_names(MessageSystemAttributeName::All);
        Ok(call.send().await.map_err(of_change)?.messages.unwrap_or_default())
    }

    /// Makes a hand-out of what SQS delivered, unless it was handed out too often.
    async fn admit(
        &self,
        delivered: &Delivered,
        asked: Instant,
        lease: Duration,
    ) -> Result<Option<Received>, MailboxError> {
        let (message, delivery) = (pack::unpack(delivered), pack::deliveries(delivered));
        let id = MessageId::new(delivered.message_id().unwrap_or_default());
        let receipt = Receipt::new(id.clone(), delivered.receipt_handle().unwrap_or_default());
        let max = self.parts.max_deliveries;
        if delivery > max {
            let why = format!("handed out {max} times without success");
            self.copy_to_dead(message, &why, max).await?;
            self.delete(&self.parts.url, &[receipt.token()]).await.remove(0)?;
            return Ok(None);
        }
        self.parts.holds.add(&receipt, asked, lease, message.clone(), delivery);
        Ok(Some(Received { id, receipt, message, delivery, fence: u64::from(delivery), lease }))
    }

    /// Does what comes before the end of a message.
    async fn prepare(&self, receipt: &Receipt, end: &End) -> Result<Step, MailboxError> {
        if self.parts.holds.was_settled(receipt, end) {
            return Ok(Step::Done);
        }
        let now = Instant::now();
        let hold = self.parts.holds.find(receipt, now)?;
        match end {
            End::Ack { reply: None } => Ok(Step::Delete(None)),
            End::Ack { reply: Some(reply) } => {
                self.reply(reply).await?;
                Ok(Step::Delete(Some("the reply was sent")))
            }
            End::Retry { after } | End::Release { after } => Ok(Step::Return(delay(hold.as_ref(), now, *after))),
            End::Dead { why } => {
                let hold = hold.ok_or_else(|| MailboxError::Refused {
                    why: "SQS tells the content of a message only to who receives it".into(),
                    remedy: "settle it in the process that received it".into(),
                })?;
                self.copy_to_dead(hold.message, why, hold.delivery).await?;
                Ok(Step::Delete(Some("the dead letter was stored")))
            }
        }
    }

    async fn reply(&self, reply: &Reply) -> Result<(), MailboxError> {
        let to_fifo = reply.to.ends_with(".fifo");
        self.check(&reply.message, to_fifo)?;
        let packed = pack::pack(reply.message.clone(), to_fifo);
        self.send_packed(&reply.to, vec![packed]).await.remove(0).map(|_| ())
    }

    async fn copy_to_dead(&self, message: Message, why: &str, deliveries: u32) -> Result<(), MailboxError> {
        let mut packed = pack::pack(message, self.parts.dead.ends_with(".fifo"));
        pack::mark_dead(&mut packed, why, deliveries);
        self.send_packed(&self.parts.dead, vec![packed]).await.remove(0).map(|_| ())
    }

    /// Dead letters, which nobody else sees for a while.
    async fn dead(&self, max: usize) -> Result<Vec<Delivered>, MailboxError> {
        let mut found: Vec<Delivered> = Vec::new();
        while found.len() < max {
            let more = self.ask(&self.parts.dead, max - found.len(), LOOK, Duration::ZERO).await?;
            if more.is_empty() {
                break;
            }
            found.extend(more);
        }
        Ok(found)
    }

    /// Messages that wait, and those that are held.
    async fn count(&self, url: &str) -> Result<(u64, u64), MailboxError> {
        use QueueAttributeName::{
            ApproximateNumberOfMessages, ApproximateNumberOfMessagesDelayed, ApproximateNumberOfMessagesNotVisible,
        };
        let names =
            [ApproximateNumberOfMessages, ApproximateNumberOfMessagesDelayed, ApproximateNumberOfMessagesNotVisible];
        let call = self.parts.client.get_queue_attributes().queue_url(url);
        let answer = call.set_attribute_names(Some(names.to_vec())).send().await.map_err(of_look)?;
        let count = |name| answer.attributes().and_then(|all| all.get(&name)?.parse().ok()).unwrap_or(0_u64);
        let waiting = count(ApproximateNumberOfMessages) + count(ApproximateNumberOfMessagesDelayed);
        Ok((waiting, count(ApproximateNumberOfMessagesNotVisible)))
    }
}
