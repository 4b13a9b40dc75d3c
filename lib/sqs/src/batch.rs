//! Calls for several messages, at most ten at a time, each answered by itself.

use core::time::Duration;

use aws_sdk_sqs::types::{
    BatchResultErrorEntry, ChangeMessageVisibilityBatchRequestEntry, DeleteMessageBatchRequestEntry,
    SendMessageBatchRequestEntry,
};
use onward_lease::mailbox::{ChangeCertainty, MailboxError, MessageId};

use crate::Sqs;
use crate::errors::{of_change, of_code};
use crate::pack::PackedMessage;

/// Most messages of one call.
pub const MAX_BATCH: usize = 10;

impl Sqs {
    /// Sends to this queue. Answers in the order of the messages.
    pub(crate) async fn send_packed(
        &self,
        url: &str,
        messages: Vec<PackedMessage>,
    ) -> Vec<Result<MessageId, MailboxError>> {
        let mut answers = Vec::with_capacity(messages.len());
        let mut messages = messages.into_iter().peekable();
        while messages.peek().is_some() {
            let (mut chunk, mut bytes) = (Vec::new(), 0);
            while let Some(next) = messages.next_if(|next| {
                chunk.is_empty() || (chunk.len() < MAX_BATCH && bytes + next.bytes() <= self.parts.max_batch_bytes)
            }) {
                bytes += next.bytes();
                chunk.push(next);
            }
            answers.extend(self.send_chunk(url, chunk).await);
        }
        answers
    }

    async fn send_chunk(&self, url: &str, chunk: Vec<PackedMessage>) -> Vec<Result<MessageId, MailboxError>> {
        let count = chunk.len();
        let mut call = self.parts.client.send_message_batch().queue_url(url);
        for (at, packed) in chunk.into_iter().enumerate() {
            let (group, dedup) = packed.fifo.unzip();
            let entry = SendMessageBatchRequestEntry::builder()
                .id(at.to_string())
                .message_body(packed.body)
                .set_message_attributes(Some(packed.attributes))
                .set_message_group_id(group)
                .set_message_deduplication_id(dedup);
            call = call.entries(entry.build().expect("it has an id and a body"));
        }
        match call.send().await {
            Err(error) => vec![Err(of_change(error)); count],
            Ok(answer) => {
                let mut answers = missing(count);
                for sent in answer.successful {
                    put(&mut answers, &sent.id, Ok(MessageId::new(sent.message_id)));
                }
                put_failed(&mut answers, answer.failed);
                answers
            }
        }
    }

    /// Deletes from this queue by receipt handle.
    pub(crate) async fn delete(&self, url: &str, handles: &[&str]) -> Vec<Result<(), MailboxError>> {
        let mut answers = Vec::with_capacity(handles.len());
        for chunk in handles.chunks(MAX_BATCH) {
            let mut call = self.parts.client.delete_message_batch().queue_url(url);
            for (at, handle) in chunk.iter().enumerate() {
                let entry = DeleteMessageBatchRequestEntry::builder().id(at.to_string()).receipt_handle(*handle);
                call = call.entries(entry.build().expect("it has an id and a handle"));
            }
            answers.extend(match call.send().await {
                Err(error) => vec![Err(of_change(error)); chunk.len()],
                Ok(answer) => {
                    let mut answers = missing(chunk.len());
                    answer.successful.iter().for_each(|done| put(&mut answers, &done.id, Ok(())));
                    put_failed(&mut answers, answer.failed);
                    answers
                }
            });
        }
        answers
    }

    /// Sets how long messages of this queue are held from now on.
    pub(crate) async fn set_lease(&self, url: &str, leases: &[(&str, Duration)]) -> Vec<Result<(), MailboxError>> {
        let mut answers = Vec::with_capacity(leases.len());
        for chunk in leases.chunks(MAX_BATCH) {
            let mut call = self.parts.client.change_message_visibility_batch().queue_url(url);
            for (at, (handle, lease)) in chunk.iter().enumerate() {
                let seconds = i32::try_from(lease.as_secs()).unwrap_or(i32::MAX);
                let entry = ChangeMessageVisibilityBatchRequestEntry::builder().id(at.to_string());
                let entry = entry.receipt_handle(*handle).visibility_timeout(seconds);
                call = call.entries(entry.build().expect("it has an id and a handle"));
            }
            answers.extend(match call.send().await {
                Err(error) => vec![Err(of_change(error)); chunk.len()],
                Ok(answer) => {
                    let mut answers = missing(chunk.len());
                    answer.successful.iter().for_each(|done| put(&mut answers, &done.id, Ok(())));
                    put_failed(&mut answers, answer.failed);
                    answers
                }
            });
        }
        answers
    }
}

/// Answers for a batch where SQS says nothing about one of its entries.
fn missing<T: Clone>(count: usize) -> Vec<Result<T, MailboxError>> {
    let why = "SQS did not answer for this one of a batch".into();
    vec![Err(MailboxError::Unavailable { why, changed: ChangeCertainty::Unknown }); count]
}

fn put<T>(answers: &mut [Result<T, MailboxError>], id: &str, answer: Result<T, MailboxError>) {
    if let Some(place) = id.parse::<usize>().ok().and_then(|at| answers.get_mut(at)) {
        *place = answer;
    }
}

fn put_failed<T>(answers: &mut [Result<T, MailboxError>], failed: Vec<BatchResultErrorEntry>) {
    for one in failed {
        let error = match one.sender_fault {
            true => of_code(&one.code, one.message.as_deref().unwrap_or_default()),
            false => MailboxError::Unavailable { why: one.code, changed: ChangeCertainty::No },
        };
        put(answers, &one.id, Err(error));
    }
}
