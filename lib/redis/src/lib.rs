//! A [mailbox](onward_lease::mailbox) on Redis.
//!
//! Every call is one script, and Redis runs one at a time, so a reply goes with its acknowledgement, and a dead letter
//! is in one place. Leases are counted by the server's clock. A hand-out raises a fence, and whoever comes with an older
//! one is refused. Nothing has a time to live, and a server that would throw away keys to make room is refused at
//! [`Redis::connect`]. How durable a message is, is a setting of the server (`appendonly`, `appendfsync`).
//!
//! ```no_run
//! use onward_redis::Redis;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let orders = Redis::connect(redis::Client::open("redis://127.0.0.1")?, "orders").await?;
//! # Ok(()) }
//! ```

mod content;
mod errors;

use core::time::Duration;
use std::fmt;
use std::sync::Arc;

use onward_lease::mailbox::{
    Counting, DeadLetter, Depth, DepthCount, End, Groups, LeaseLength, Mailbox, MailboxError, Message, MessageId,
    OneStep, Promises, Receipt, Received, RepeatedEnd, StaleAck, Want,
};
use redis::aio::{ConnectionManager, ConnectionManagerConfig, SendError};
use redis::{Client, FromRedisValue, ProtocolVersion, Script, ScriptInvocation};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

const SCRIPT: &str = include_str!("mailbox.lua");
/// Mailboxes of one server share what begins with this.
const PREFIX: &str = "onward:mailbox:";
const MAX_BYTES: usize = 16 << 20;
/// Most messages of one run of the script, which keeps everybody else waiting.
const MAX_BATCH: usize = 100;
/// The time that an answer may take before the connection is given up.
const ANSWER: Duration = Duration::from_secs(10);
/// The interval at which a waiting receive looks by itself: a call to it may be lost with its connection.
const LOOK: Duration = Duration::from_secs(1);

/// Id, fence, delivery and content.
type Handout = (String, u64, u32, Vec<u8>);
/// Id, deliveries, why and content.
type Letter = (String, u32, String, Vec<u8>);

/// A mailbox on Redis. Clones are the same mailbox and share a connection.
#[derive(Clone)]
pub struct Redis {
    name: Arc<str>,
    /// The server's address and the number of the database.
    server: Arc<str>,
    rule: Rule,
    connection: ConnectionManager,
    script: Arc<Script>,
    /// Something was sent or given back.
    changed: Arc<Notify>,
}

#[derive(Clone, Copy, Debug)]
struct Rule {
    max_deliveries: u32,
    max_messages: usize,
}

/// Made by [`Redis::builder`].
#[derive(Clone, Debug)]
pub struct RedisBuilder {
    client: Client,
    name: Arc<str>,
    rule: Rule,
}

impl RedisBuilder {
    /// A message that was handed out this often is dead. Default 5.
    pub fn max_deliveries(mut self, max: u32) -> Self {
        self.rule.max_deliveries = max;
        self
    }

    /// Most messages, dead letters included. Default one million.
    pub fn max_messages(mut self, max: usize) -> Self {
        self.rule.max_messages = max;
        self
    }

    /// Connects, and refuses a server that could lose messages without a word.
    pub async fn connect(self) -> Result<Redis, MailboxError> {
        if self.name.is_empty() || self.name.len() > 256 || !self.name.bytes().all(|byte| byte.is_ascii_graphic()) {
            let remedy = "use 1 to 256 printable ASCII characters without spaces".into();
            return Err(MailboxError::Refused { why: format!("`{}` is no name of a mailbox", self.name), remedy });
        }
        let changed = Arc::new(Notify::new());
        let connection = self.open(changed.clone()).await.map_err(|error| errors::of_look(&error))?;
        let info = self.client.get_connection_info();
        let server = format!("{}/{}", info.addr(), info.redis_settings().db()).into();
        let script = Script::new(SCRIPT).into();
        let redis = Redis { name: self.name, server, rule: self.rule, connection, script, changed };
        redis.check_server().await?;
        Ok(redis)
    }

    async fn open(&self, changed: Arc<Notify>) -> Result<ConnectionManager, redis::RedisError> {
        let info = self.client.get_connection_info().clone();
        // What comes unasked, namely that there is something to receive, needs the newer protocol.
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = Client::open(info.set_redis_settings(settings))?;
        let config = ConnectionManagerConfig::new()
            .set_response_timeout(Some(ANSWER))
            .set_connection_timeout(Some(ANSWER))
            .set_max_delay(LOOK)
            .set_automatic_resubscription()
            .set_push_sender(move |_| {
                changed.notify_waiters();
                Ok::<(), SendError>(())
            });
        let mut connection = ConnectionManager::new_with_config(client, config).await?;
        connection.subscribe(format!("{PREFIX}{}:bell", self.name)).await?;
        Ok(connection)
    }
}

impl Redis {
    /// Connects to the mailbox of this name, which needs no other preparation.
    pub async fn connect(client: Client, name: impl Into<Arc<str>>) -> Result<Self, MailboxError> {
        Self::builder(client, name).connect().await
    }

    pub fn builder(client: Client, name: impl Into<Arc<str>>) -> RedisBuilder {
        RedisBuilder { client, name: name.into(), rule: Rule { max_deliveries: 5, max_messages: 1_000_000 } }
    }

    /// The address that messages name as their `reply_to` to be answered here.
    pub fn address(&self) -> &str {
        &self.name
    }

    async fn check_server(&self) -> Result<(), MailboxError> {
        let info: Result<String, _> = redis::cmd("INFO").query_async(&mut self.connection.clone()).await;
        let info = info.map_err(|error| errors::of_look(&error))?;
        let field =
            |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
        let refuse = |why: &str, remedy: &str| Err(MailboxError::Refused { why: why.into(), remedy: remedy.into() });
        if field("maxmemory_policy").is_some_and(|policy| policy.starts_with("allkeys")) {
            let why = "this Redis throws away keys when its memory is full, and messages are keys";
            return refuse(why, "set maxmemory-policy to noeviction, or use another server");
        }
        if field("cluster_enabled") == Some("1") {
            let why = "this Redis is a cluster, where a reply and its acknowledgement are not one step";
            return refuse(why, "use a server that is not a cluster; a replica behind it is fine");
        }
        Ok(())
    }

    fn call(&self, name: &str) -> ScriptInvocation<'_> {
        let mut call = self.script.key(format!("{PREFIX}{}", self.name));
        call.arg(name);
        call
    }

    async fn run<T: FromRedisValue>(&self, call: &ScriptInvocation<'_>) -> Result<T, redis::RedisError> {
        call.invoke_async(&mut self.connection.clone()).await
    }

    /// Runs the script for what was put into the call, and takes one answer for each.
    async fn run_batch<T: FromRedisValue>(
        &self,
        call: &ScriptInvocation<'_>,
        count: usize,
    ) -> Vec<Result<T, MailboxError>> {
        match self.run::<Vec<T>>(call).await {
            Ok(answers) if answers.len() == count => answers.into_iter().map(Ok).collect(),
            Ok(_) => (0..count).map(|_| Err(strange())).collect(),
            Err(error) => (0..count).map(|_| Err(errors::of_change(&error))).collect(),
        }
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("name", &self.name).field("rule", &self.rule).finish_non_exhaustive()
    }
}

impl Mailbox for Redis {
    fn promises(&self) -> Promises {
        Promises {
            stale_ack: StaleAck::Refused,
            repeated_ack: RepeatedEnd::Accepted,
            reply_with_ack: OneStep::Yes,
            dead_letter: OneStep::Yes,
            lease: LeaseLength::Asked,
            longest_hold: None,
            counting: Counting::Attempts,
            groups: Groups::Ordered,
            depth: DepthCount::Exact,
            max_bytes: MAX_BYTES,
        }
    }

    fn identity(&self) -> String {
        format!("redis:{}:{}", self.server, self.name)
    }

    async fn send(&self, batch: Vec<Message>) -> Vec<Result<MessageId, MailboxError>> {
        let checked = batch.into_iter().map(|message| message.check(MAX_BYTES).map(|()| message));
        let checked: Vec<Result<Message, MailboxError>> = checked.collect();
        let (good, mut answers): (Vec<Message>, Vec<_>) = split(checked);
        let mut sent = Vec::with_capacity(good.len());
        for chunk in chunks(good) {
            let count = chunk.len();
            let mut call = self.call("send");
            call.arg(self.rule.max_messages);
            for message in chunk {
                let group = message.group.clone().unwrap_or_default();
                call.arg(content::pack(message)).arg(group);
            }
            sent.extend(self.run_batch::<String>(&call, count).await);
        }
        let max = self.rule.max_messages;
        let mut sent = sent.into_iter().map(|id| match id?.as_str() {
            "0" => Err(MailboxError::Full { max }),
            id => Ok(MessageId::new(id)),
        });
        answers.drain(..).map(|error| error.map_or_else(|| sent.next().expect("one for each"), Err)).collect()
    }

    async fn receive(&self, want: Want) -> Result<Vec<Received>, MailboxError> {
        let began = Instant::now();
        let until = began + want.wait;
        loop {
            // Listens before it looks, so that nothing is missed between.
            let mut changed = core::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let mut call = self.call("receive");
            call.arg(want.max.min(MAX_BATCH)).arg(millis(want.lease)).arg(self.rule.max_deliveries);
            let lease = began.elapsed() + Duration::from_millis(millis(want.lease));
            let answer = self.run::<(Vec<Handout>, i64)>(&call).await;
            let (handed, next_ms) = answer.map_err(|error| errors::of_change(&error))?;
            if !handed.is_empty() || Instant::now() >= until {
                let received = |(id, fence, delivery, value): Handout| {
                    let id = MessageId::new(id);
                    let receipt = Receipt::new(id.clone(), fence.to_string());
                    Received { id, receipt, message: content::unpack(value), delivery, fence, lease }
                };
                return Ok(handed.into_iter().map(received).collect());
            }
            let next = u64::try_from(next_ms).map_or(LOOK, Duration::from_millis).clamp(Duration::from_millis(1), LOOK);
            tokio::select! {
                () = changed => {}
                () = sleep_until((Instant::now() + next).min(until)) => {}
            }
        }
    }

    async fn extend(&self, batch: Vec<(Receipt, Duration)>) -> Vec<Result<Duration, MailboxError>> {
        let mut answers = Vec::with_capacity(batch.len());
        for chunk in chunks(batch) {
            let mut call = self.call("extend");
            for (receipt, by) in &chunk {
                call.arg(receipt.message().as_str()).arg(receipt.token()).arg(millis(*by));
            }
            let left = self.run_batch::<i64>(&call, chunk.len()).await;
            let granted = |ms: i64| u64::try_from(ms).map(Duration::from_millis).map_err(|_| MailboxError::Stale);
            answers.extend(left.into_iter().map(|ms| granted(ms?)));
        }
        answers
    }

    async fn settle(&self, batch: Vec<(Receipt, End)>) -> Vec<Result<(), MailboxError>> {
        let check = |(receipt, end): (Receipt, End)| match &end {
            End::Ack { reply: Some(reply) } => reply.message.check(MAX_BYTES).map(|()| (receipt, end)),
            _ => Ok((receipt, end)),
        };
        let (good, mut answers) = split(batch.into_iter().map(check).collect());
        let mut settled = Vec::with_capacity(good.len());
        for chunk in chunks(good) {
            let count = chunk.len();
            let mut call = self.call("settle");
            call.arg(self.rule.max_messages);
            for (receipt, end) in chunk {
                call.arg(receipt.message().as_str()).arg(receipt.token());
                add_end(&mut call, end);
            }
            settled.extend(self.run_batch::<String>(&call, count).await);
        }
        let max = self.rule.max_messages;
        let mut settled = settled.into_iter().map(|word| match word?.as_str() {
            "done" => Ok(()),
            "full" => Err(MailboxError::Full { max }),
            _ => Err(MailboxError::Stale),
        });
        answers.drain(..).map(|error| error.map_or_else(|| settled.next().expect("one for each"), Err)).collect()
    }

    async fn depth(&self) -> Result<Depth, MailboxError> {
        let answer: Result<(u64, u64, u64), _> = self.run(&self.call("depth")).await;
        let (waiting, held, dead) = answer.map_err(|error| errors::of_look(&error))?;
        Ok(Depth { waiting, held, dead })
    }

    async fn dead_letters(&self, max: usize) -> Result<Vec<DeadLetter>, MailboxError> {
        let mut call = self.call("dead_letters");
        call.arg(max);
        let answer = self.run::<Vec<Letter>>(&call).await;
        let letter = |(id, deliveries, why, value): Letter| DeadLetter {
            id: MessageId::new(id),
            message: content::unpack(value),
            why,
            deliveries,
        };
        Ok(answer.map_err(|error| errors::of_look(&error))?.into_iter().map(letter).collect())
    }

    async fn replay(&self, max: usize) -> Result<usize, MailboxError> {
        let mut moved = 0;
        while moved < max {
            let mut call = self.call("replay");
            let most = (max - moved).min(MAX_BATCH);
            call.arg(most);
            let count: usize = self.run(&call).await.map_err(|error| errors::of_change(&error))?;
            moved += count;
            if count < most {
                break;
            }
        }
        Ok(moved)
    }
}

/// The fields of an end, as the script reads them.
fn add_end(call: &mut ScriptInvocation<'_>, end: End) {
    let (kind, detail, reply) = match end {
        End::Ack { reply } => ("ack", String::new(), reply),
        End::Retry { after } => ("retry", millis(after).to_string(), None),
        End::Release { after } => ("release", millis(after).to_string(), None),
        End::Dead { why } => ("dead", why, None),
    };
    call.arg(kind).arg(detail);
    match reply {
        None => call.arg("").arg("").arg(""),
        Some(reply) => {
            let group = reply.message.group.clone().unwrap_or_default();
            call.arg(format!("{PREFIX}{}", reply.to)).arg(content::pack(reply.message)).arg(group)
        }
    };
}

/// The good ones of a batch, and for each of the batch the error that it has, if any.
fn split<T>(checked: Vec<Result<T, MailboxError>>) -> (Vec<T>, Vec<Option<MailboxError>>) {
    let mut good = Vec::with_capacity(checked.len());
    let mut errors = Vec::with_capacity(checked.len());
    for one in checked {
        match one {
            Ok(one) => {
                good.push(one);
                errors.push(None);
            }
            Err(error) => errors.push(Some(error)),
        }
    }
    (good, errors)
}

fn chunks<T>(all: Vec<T>) -> impl Iterator<Item = Vec<T>> {
    let mut all = all.into_iter();
    core::iter::from_fn(move || {
        let chunk: Vec<T> = all.by_ref().take(MAX_BATCH).collect();
        (!chunk.is_empty()).then_some(chunk)
    })
}

fn strange() -> MailboxError {
    MailboxError::Refused {
        why: "what is stored in Redis is not a mailbox of this version".into(),
        remedy: "use another name for the mailbox, or the version that made it".into(),
    }
}

/// Whole milliseconds, rounded up: a lease is never shorter than was asked for.
fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).min(1 << 50)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_never_shorter_than_was_asked_for() {
        let table = [(0, 0), (1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2)];
        for (nanos, expected) in table {
            assert_eq!(millis(Duration::from_nanos(nanos)), expected, "{nanos} ns");
        }
        assert_eq!(millis(Duration::MAX), 1 << 50, "as much as the script can count");
    }
}
