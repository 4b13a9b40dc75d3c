//! Fences in a key-value bucket: who holds a message, compared and set at receive and at settle.
//!
//! A NATS server takes an acknowledgement for any hand-out of a message, so the one of a holder whose lease is over would
//! end the message while the next one works on it. With a fence each message that is held has a key, and its revision
//! is part of the receipt:
//!
//! ```text
//!   receive:  create {hand-out 1}            settle:  update {1, ended: ack} if the revision is the receipt's
//!   again:    update {2} if it is still {1}           then tell the server, then remove the key
//! ```
//!
//! Both are decided by the one revision, so either the settlement or the next hand-out comes first. A settlement that
//! came first and was cut off before the server heard of it is carried out by the next who receives the message. One that
//! was cut off after that leaves its key behind; whoever connects next [sweeps](Fences::sweep) keys of messages that are
//! gone.

use async_nats::jetstream::kv::{CreateErrorKind, Store, UpdateErrorKind};
use async_nats::jetstream::stream::{LastRawMessageErrorKind, Stream};
use bytes::Bytes;
use onward_lease::mailbox::{ChangeCertainty, MailboxError};
use serde::{Deserialize, Serialize};
use tokio_stream::StreamExt;

use crate::errors::{of_look, unavailable};

/// Most messages that are asked for in one sweep; what is left is swept by the next who connects.
const MAX_LOOKS: usize = 1_000;

/// The fences of one mailbox.
#[derive(Clone, Debug)]
pub struct Fences {
    store: Store,
    /// Keys of this mailbox begin with it.
    stream: String,
}

/// The holder of a message, or the end of its hold.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct FenceRecord {
    delivery: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ended: Option<FenceEnd>,
}

/// The settlement of a holder, which may not have reached the stream.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FenceEnd {
    Ack,
    Retry,
    Dead(String),
}

/// The answer to a hand-out that asks for the fence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FenceClaim {
    /// Ours, under this revision.
    Held(u64),
    /// Settled before, and its dead letter is stored if it is one: it remains to be told to the server, and then the key of
    /// this revision to be removed.
    Settled(u64),
    /// A later hand-out was first.
    Stale,
}

impl Fences {
    pub fn new(store: Store, stream: &str) -> Self {
        Self { store, stream: stream.to_owned() }
    }

    fn key(&self, sequence: u64) -> String {
        format!("{}.{sequence}", self.stream)
    }

    /// Takes a message that the server handed out.
    pub async fn claim(&self, sequence: u64, delivery: u32) -> Result<FenceClaim, MailboxError> {
        let key = self.key(sequence);
        loop {
            let value = encode(&FenceRecord { delivery, ended: None });
            let Some((hold, revision)) = self.look(sequence).await? else {
                match self.store.create(&key, value).await {
                    Ok(revision) => return Ok(FenceClaim::Held(revision)),
                    Err(error) if error.kind() == CreateErrorKind::AlreadyExists => continue,
                    Err(error) => return Err(unavailable(error, ChangeCertainty::Unknown)),
                }
            };
            match hold.ended {
                Some(FenceEnd::Ack | FenceEnd::Dead(_)) => return Ok(FenceClaim::Settled(revision)),
                _ if hold.delivery > delivery => return Ok(FenceClaim::Stale),
                _ => {}
            }
            match self.store.update(&key, value, revision).await {
                Ok(revision) => return Ok(FenceClaim::Held(revision)),
                Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => {}
                Err(error) => return Err(unavailable(error, ChangeCertainty::Unknown)),
            }
        }
    }

    /// Whether the hand-out with this revision is the newest.
    pub async fn check(&self, sequence: u64, revision: u64) -> Result<(), MailboxError> {
        match self.look(sequence).await? {
            Some((FenceRecord { ended: None, .. }, newest)) if newest == revision => Ok(()),
            _ => Err(MailboxError::Stale),
        }
    }

    /// Ends a hold. Repeating the same end is accepted until it was carried out. Answers with the key's new revision.
    pub async fn end(&self, sequence: u64, delivery: u32, revision: u64, ended: FenceEnd) -> Result<u64, MailboxError> {
        let hold = FenceRecord { delivery, ended: Some(ended) };
        match self.store.update(self.key(sequence), encode(&hold), revision).await {
            Ok(revision) => Ok(revision),
            Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => match self.look(sequence).await? {
                Some((before, revision)) if before == hold => Ok(revision),
                _ => Err(MailboxError::Stale),
            },
            Err(error) => Err(unavailable(error, ChangeCertainty::Unknown)),
        }
    }

    /// Removes the key of a message that is gone, unless it was changed meanwhile. Deleting it as a key would leave a
    /// marker for every message.
    pub async fn forget(&self, sequence: u64, revision: u64) -> Result<(), MailboxError> {
        let subject = format!("$KV.{}.{}", self.store.name, self.key(sequence));
        let purged = self.store.stream.purge().filter(subject).sequence(revision + 1).await;
        purged.map(|_| ()).map_err(|error| unavailable(error, ChangeCertainty::Unknown))
    }

    /// Removes keys of messages that are no longer in the stream: who settled them crashed before it removed them.
    pub async fn sweep(&self, stream: &Stream) -> Result<(), MailboxError> {
        let prefix = format!("$KV.{}.{}.", self.store.name, self.stream);
        let mut keys = self.store.stream.info_with_subjects(format!("{prefix}*")).await.map_err(of_look)?;
        let first = stream.get_info().await.map_err(of_look)?.state.first_sequence;
        let mut looks = 0;
        while let Some(key) = keys.next().await {
            let (subject, _) = key.map_err(of_look)?;
            let Some(sequence) = subject.strip_prefix(&prefix).and_then(|text| text.parse::<u64>().ok()) else {
                continue;
            };
            if sequence >= first {
                // Behind the oldest message that is left, most keys are of messages that are held.
                looks += 1;
                if looks > MAX_LOOKS || is_there(stream, sequence).await? {
                    continue;
                }
            }
            let purged = self.store.stream.purge().filter(subject).await;
            purged.map_err(|error| unavailable(error, ChangeCertainty::Unknown))?;
        }
        Ok(())
    }

    async fn look(&self, sequence: u64) -> Result<Option<(FenceRecord, u64)>, MailboxError> {
        let entry = self.store.entry(self.key(sequence)).await.map_err(of_look)?;
        let decoded = entry.map(|entry| Ok((serde_json::from_slice(&entry.value)?, entry.revision)));
        decoded.transpose().map_err(|error: serde_json::Error| of_look(error))
    }
}

async fn is_there(stream: &Stream, sequence: u64) -> Result<bool, MailboxError> {
    match stream.get_raw_message(sequence).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(false),
        Err(error) => Err(of_look(error)),
    }
}

fn encode(hold: &FenceRecord) -> Bytes {
    serde_json::to_vec(hold).expect("numbers and texts are JSON").into()
}

#[cfg(test)]
mod tests {
    use async_nats::jetstream::kv::Config;

    use super::*;

    #[tokio::test]
    async fn a_hand_out_that_arrives_behind_a_later_one_is_stale() {
        let server = onward_testkit::NatsServer::start().unwrap();
        let context = async_nats::jetstream::new(async_nats::connect(server.url()).await.unwrap());
        let config = Config { bucket: "fences".into(), history: 1, ..Default::default() };
        let fences = Fences::new(context.create_key_value(config).await.unwrap(), "orders");
        assert!(matches!(fences.claim(7, 2).await, Ok(FenceClaim::Held(_))));
        assert_eq!(fences.claim(7, 1).await, Ok(FenceClaim::Stale));
        assert!(matches!(fences.claim(7, 3).await, Ok(FenceClaim::Held(_))));
    }
}
