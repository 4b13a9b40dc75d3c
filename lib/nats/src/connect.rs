//! Finding or making what a mailbox needs on the server, and refusing what could lose messages.

use core::time::Duration;
use std::sync::Arc;

use async_nats::Client;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::context::{CreateStreamError, GetStreamErrorKind};
use async_nats::jetstream::stream::{self, ConsumerErrorKind, DiscardPolicy, RetentionPolicy, Stream};
use async_nats::jetstream::{self, Context, kv};
use onward_lease::mailbox::{ChangeCertainty, MailboxError};

use crate::errors::{of_look, refused, unavailable};
use crate::fence::Fences;
use crate::{Nats, Parts, letters};

/// The consumer that all who receive from a mailbox share.
const CONSUMER: &str = "onward";

/// Most messages that are held at a time, by all receivers of a mailbox.
const MAX_HELD: i64 = 100_000;

/// Made by [`Nats::builder`].
#[derive(Clone, Debug)]
pub struct NatsBuilder {
    client: Client,
    name: String,
    subject: Option<String>,
    lease: Duration,
    max_deliveries: u32,
    bucket: Option<String>,
}

impl NatsBuilder {
    pub(crate) fn new(client: Client, name: String) -> Self {
        let lease = Duration::from_secs(300);
        Self { client, name, subject: None, lease, max_deliveries: 5, bucket: None }
    }

    /// The subject that messages are published to, and name as their `reply_to` to be answered here. Default: the name
    /// of the mailbox.
    pub fn subject(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    /// The length of every lease, if the consumer is still to be made: its AckWait. Default 5 minutes. A consumer that
    /// exists keeps its own, and `Promises::lease` tells it.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// A message that was handed out this often is dead. Default 5.
    pub fn max_deliveries(mut self, max: u32) -> Self {
        self.max_deliveries = max;
        self
    }

    /// Refuses stale acknowledgements, by a key in this bucket for each message that is held. Costs two or three round
    /// trips a message. All receivers of a mailbox must agree about it.
    pub fn fenced(mut self, bucket: impl Into<String>) -> Self {
        self.bucket = Some(bucket.into());
        self
    }

    /// Finds the stream, its consumer and the stream of its dead letters, or makes them.
    pub async fn connect(self) -> Result<Nats, MailboxError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if self.name.is_empty() || self.name.len() > 200 || !self.name.bytes().all(is_plain) {
            let why = format!("`{}` is no name of a mailbox", self.name);
            return Err(refused(why, "use 1 to 200 of letters, digits, - and _"));
        }
        let context = jetstream::new(self.client.clone());
        let subject = self.subject.clone().unwrap_or_else(|| self.name.clone());
        let stream = open_stream(&context, &self.name, &subject).await?;
        let dead_subject = format!("onward.dead.{}", self.name);
        let dead = open_dead_stream(&context, &self.name, &dead_subject).await?;
        let (consumer, lease) = self.consumer(&stream).await?;
        let fences = match &self.bucket {
            Some(bucket) => Some(Fences::new(open_bucket(&context, bucket).await?, &self.name)),
            None => None,
        };
        if let Some(fences) = &fences {
            fences.sweep(&stream).await?;
        }
        let largest = self.client.server_info().max_payload.min(largest_message(&stream));
        let max_bytes = largest.saturating_sub(letters::HEADER_BYTES);
        let (client, name, max_deliveries) = (self.client, self.name, self.max_deliveries);
        let parts = Parts {
            client,
            context,
            name,
            subject,
            stream,
            consumer,
            dead,
            dead_subject,
            fences,
            lease,
            max_deliveries,
            max_bytes,
        };
        Ok(Nats { parts: Arc::new(parts) })
    }

    /// A work queue takes no consumer that does not wait for an ack of each message, so nobody needs to look at that.
    async fn consumer(&self, stream: &Stream) -> Result<(PullConsumer, Duration), MailboxError> {
        let ours = pull::Config {
            durable_name: Some(CONSUMER.into()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: self.lease,
            // We count. The server would leave a message that spent its deliveries where nobody sees it.
            max_deliver: -1,
            max_ack_pending: MAX_HELD,
            ..Default::default()
        };
        let consumer = stream.get_or_create_consumer(CONSUMER, ours).await.map_err(|error| match error.kind() {
            ConsumerErrorKind::JetStream(_) => {
                refused(format!("the consumer `{CONSUMER}` cannot be made: {error}"), "look into its stream")
            }
            _ => unavailable(error, ChangeCertainty::Unknown),
        })?;
        let config = &consumer.cached_info().config;
        let refuse = |why: String, remedy: &str| {
            Err(refused(format!("the consumer `{CONSUMER}` of stream `{}` {why}", self.name), remedy))
        };
        if config.max_deliver > 0 && config.max_deliver <= i64::from(self.max_deliveries) {
            let why = format!("gives up after {} deliveries, and we after {}", config.max_deliver, self.max_deliveries);
            return refuse(
                why,
                "set its max_deliver to -1, or lower max_deliveries: what it gives up is seen by nobody",
            );
        }
        if !config.backoff.is_empty() {
            return refuse("has a backoff, so its leases differ".into(), "remove its backoff");
        }
        if !config.inactive_threshold.is_zero() {
            let why = "is removed when nobody asks for a while, and with it how often messages were handed out";
            return refuse(why.into(), "set its inactive_threshold to 0");
        }
        if !config.filter_subject.is_empty() || !config.filter_subjects.is_empty() {
            return refuse("hands out a part of the messages only".into(), "remove its filter");
        }
        let lease = config.ack_wait;
        Ok((consumer, lease))
    }
}

async fn open_stream(context: &Context, name: &str, subject: &str) -> Result<Stream, MailboxError> {
    let stream = match context.get_stream(name).await {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), GetStreamErrorKind::JetStream(_)) => {
            let config = stream::Config {
                name: name.into(),
                subjects: vec![subject.into()],
                retention: RetentionPolicy::WorkQueue,
                ..Default::default()
            };
            context.get_or_create_stream(config).await.map_err(of_create)?
        }
        Err(error) => return Err(of_look(error)),
    };
    let config = &stream.cached_info().config;
    if config.retention != RetentionPolicy::WorkQueue {
        let why = format!("stream `{name}` keeps what was acknowledged, or drops what nobody has asked for");
        return Err(refused(why, "use another stream, or make this one with the retention `workqueue`"));
    }
    refuse_loss(config)?;
    Ok(stream)
}

async fn open_dead_stream(context: &Context, name: &str, subject: &str) -> Result<Stream, MailboxError> {
    let config = stream::Config { name: format!("{name}_dead"), subjects: vec![subject.into()], ..Default::default() };
    let stream = context.get_or_create_stream(config).await.map_err(of_create)?;
    let config = &stream.cached_info().config;
    if config.retention == RetentionPolicy::Interest {
        let why = format!("stream `{}` drops what nobody has asked for, and dead letters with it", config.name);
        return Err(refused(why, "make it with the retention `limits`"));
    }
    refuse_loss(config)?;
    Ok(stream)
}

/// A stream that drops messages by itself loses them without a word. One that refuses new ones when it is full says so to
/// whoever sends.
fn refuse_loss(config: &stream::Config) -> Result<(), MailboxError> {
    let refuse = |why: &str, remedy: &str| Err(refused(format!("stream `{}` {why}", config.name), remedy));
    if !config.max_age.is_zero() {
        return refuse("drops messages that are older than its max_age", "set its max_age to 0");
    }
    let has_limit = config.max_messages > 0 || config.max_bytes > 0;
    if has_limit && config.discard == DiscardPolicy::Old {
        let why = "drops its oldest messages when it is full";
        return refuse(why, "set its discard policy to `new`, or remove max_msgs and max_bytes");
    }
    let is_refused = config.discard == DiscardPolicy::New && config.discard_new_per_subject;
    if config.max_messages_per_subject > 0 && !is_refused {
        let why = "drops its oldest messages of a subject";
        return refuse(why, "remove max_msgs_per_subject, or set discard to `new` and discard_new_per_subject");
    }
    Ok(())
}

/// The largest message that the stream itself takes.
fn largest_message(stream: &Stream) -> usize {
    let largest = stream.cached_info().config.max_message_size;
    usize::try_from(largest).ok().filter(|largest| *largest > 0).unwrap_or(usize::MAX)
}

async fn open_bucket(context: &Context, bucket: &str) -> Result<kv::Store, MailboxError> {
    if let Ok(store) = context.get_key_value(bucket).await {
        if !store.stream.cached_info().config.max_age.is_zero() {
            let why = format!("keys of bucket `{bucket}` expire, and fences with them");
            return Err(refused(why, "use a bucket without a time to live"));
        }
        return Ok(store);
    }
    let config = kv::Config { bucket: bucket.into(), history: 1, ..Default::default() };
    context.create_key_value(config).await.map_err(|error| unavailable(error, ChangeCertainty::Unknown))
}

fn of_create(error: CreateStreamError) -> MailboxError {
    unavailable(error, ChangeCertainty::Unknown)
}
