//! What is sent, what is received, and how it ends.

use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;

use super::MailboxError;

/// Most headers of a message: brokers have as few as ten, and we need some of them.
const MAX_HEADERS: usize = 6;
const MAX_NAME_BYTES: usize = 64;
const MAX_VALUE_BYTES: usize = 1_024;
const MAX_ADDRESS_BYTES: usize = 512;

/// A message to send.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Message {
    pub body: Bytes,
    /// At most 6. Names of `a-z`, `0-9` and `-`, at most 64 bytes; values without control characters, at most 1 KiB.
    pub headers: BTreeMap<String, String>,
    /// Messages of a group are handed out one at a time, in the order in which they were sent.
    pub group: Option<String>,
    /// The address of the mailbox that the reply goes to, as the mailbox that carries this message understands it.
    pub reply_to: Option<String>,
}

impl Message {
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), ..Self::default() }
    }

    /// A message whose body is JSON, which says so in its header `content-type`.
    pub fn json(value: &impl Serialize) -> Result<Self, serde_json::Error> {
        Ok(Self::new(serde_json::to_vec(value)?).header("content-type", "application/json"))
    }

    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    pub fn reply_to(mut self, address: impl Into<String>) -> Self {
        self.reply_to = Some(address.into());
        self
    }

    /// The check of every mailbox before it sends, so that a message that one of them takes is taken by all.
    pub fn check(&self, max_bytes: usize) -> Result<(), MailboxError> {
        if self.body.len() > max_bytes {
            return Err(MailboxError::TooLarge { bytes: self.body.len(), max: max_bytes });
        }
        let refuse = |why: String, remedy: &str| Err(MailboxError::Refused { why, remedy: remedy.into() });
        if self.headers.len() > MAX_HEADERS {
            let why = format!("a message has {} headers", self.headers.len());
            return refuse(why, "at most 6 are carried; put the rest into the body");
        }
        for (name, value) in &self.headers {
            let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(is_plain) {
                return refuse(format!("`{name}` is no name of a header"), "use 1 to 64 of a-z, 0-9 and -");
            }
            if value.len() > MAX_VALUE_BYTES || value.is_empty() || value.contains(char::is_control) {
                let remedy = "use 1 to 1024 bytes without control characters";
                return refuse(format!("the value of header `{name}` cannot be carried"), remedy);
            }
        }
        // The limits of the strictest broker.
        let is_plain = |byte: u8| byte.is_ascii_graphic();
        for (what, value, max) in [("group", &self.group, 128), ("reply_to", &self.reply_to, MAX_ADDRESS_BYTES)] {
            let is_good = |value: &String| !value.is_empty() && value.len() <= max && value.bytes().all(is_plain);
            if value.as_ref().is_some_and(|value| !is_good(value)) {
                let remedy = format!("use 1 to {max} printable ASCII characters without spaces");
                return refuse(format!("the {what} of a message cannot be carried"), &remedy);
            }
        }
        Ok(())
    }
}

/// The name that a mailbox gave a message. Not an order, and not the same after a replay.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MessageId(Arc<str>);

impl MessageId {
    pub fn new(id: impl Into<Arc<str>>) -> Self {
        Self(id.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Proof of one hand-out of a message. Every hand-out has another.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Receipt {
    message: MessageId,
    token: Arc<str>,
}

impl Receipt {
    /// `token` is what the mailbox needs to know the hand-out again.
    pub fn new(message: MessageId, token: impl Into<Arc<str>>) -> Self {
        Self { message, token: token.into() }
    }

    pub fn message(&self) -> &MessageId {
        &self.message
    }

    pub fn token(&self) -> &str {
        &self.token
    }
}

/// A wish to receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Want {
    pub max: usize,
    /// The time for which each message should be held. A mailbox whose leases have one length gives that one.
    pub lease: Duration,
    /// The wait for the first message.
    pub wait: Duration,
}

/// A hand-out of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Received {
    pub id: MessageId,
    pub receipt: Receipt,
    pub message: Message,
    /// Hand-outs so far, this one included: 1 for the first. See [`super::Counting`] for which of them count.
    pub delivery: u32,
    /// Rises from one hand-out of the message to the next, so that a holder that lost its lease is known by its lower
    /// number. A mailbox that has no such number gives the delivery, if every hand-out counts there.
    pub fence: u64,
    /// The granted lease, counted from when the mailbox was asked.
    pub lease: Duration,
}

/// The end of a hand-out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// Done: the message is gone. See [`super::Promises::reply_with_ack`] for what a crash between both can do.
    Ack { reply: Option<Reply> },
    /// Failed: another try after this long.
    Retry { after: Duration },
    /// Given back undone. Counts as a delivery only where the mailbox cannot help it.
    Release { after: Duration },
    /// No try can succeed: the message goes to the dead letters.
    Dead { why: String },
}

impl End {
    /// An acknowledgement without a reply.
    pub const ACK: Self = Self::Ack { reply: None };
}

/// An answer to the sender of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The `reply_to` of the message that is answered.
    pub to: String,
    pub message: Message,
}

/// A message that no delivery could finish.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeadLetter {
    pub id: MessageId,
    pub message: Message,
    /// The reason why the message is dead: the words of its last holder, or that it was handed out too often.
    pub why: String,
    pub deliveries: u32,
}
