//! NATS JetStream with files: synced before each answer (`sync_interval: always`), and as it comes, every 2 minutes.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::stream::{self, RetentionPolicy, StorageType, Stream};
use async_nats::jetstream::{self, AckKind, Context};
use async_nats::{Client, Message, Subject, Subscriber};
use tokio_stream::StreamExt;

use super::super::{BATCH, Contender, ContestError, PeerInfo, StartedPeer};
use super::server::{self, PeerServer};
use super::{age, batches, paced, payload, text};

pub const PROGRAM: &str = "nats-server";

/// The first version that can sync before it answers.
const CAN_SYNC: (u32, u32) = (2, 10);

const SUBJECT: &str = "jobs";
const STREAM: &str = "JOBS";
const CONSUMER: &str = "workers";

/// Longer than any measurement.
const ACK_WAIT: Duration = Duration::from_secs(3_600);

/// The time after which an answer is held for lost.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
pub struct NatsPeer {
    synced: bool,
}

impl NatsPeer {
    pub const fn synced() -> Self {
        Self { synced: true }
    }

    pub const fn lazy() -> Self {
        Self { synced: false }
    }
}

impl Contender for NatsPeer {
    type Running = Instance;

    fn about(&self) -> PeerInfo {
        match self.synced {
            true => PeerInfo { name: "NATS sync always", durable: "fsync before each answer", before_answer: true },
            false => PeerInfo { name: "NATS JetStream", durable: "fsync every 2 minutes", before_answer: false },
        }
    }

    fn missing(&self) -> Option<String> {
        if let Some(missing) = server::missing(&[PROGRAM]) {
            return Some(missing);
        }
        let version = version();
        let can = !self.synced || version.is_some_and(|version| version >= CAN_SYNC);
        let (major, minor) = CAN_SYNC;
        (!can).then(|| format!("{PROGRAM} {major}.{minor} or newer"))
    }

    async fn start(&self, folder: &Path) -> Result<Instance, ContestError> {
        let port = server::free_port()?;
        let sync = if self.synced { "sync_interval: always" } else { "" };
        let files = folder.join("jetstream");
        let settings =
            format!("listen: \"127.0.0.1:{port}\"\njetstream {{\n  store_dir: {:?}\n  {sync}\n}}\n", text(&files)?);
        let settings_file = folder.join("nats.conf");
        std::fs::write(&settings_file, settings)?;
        let mut command = Command::new(server::needed(PROGRAM)?);
        command.arg("-c").arg(settings_file);
        let mut server = PeerServer::start(command, folder)?;
        server.accepts(port).await?;
        let client = async_nats::connect(format!("127.0.0.1:{port}")).await?;
        let context = jetstream::new(client.clone());
        let settings = stream::Config {
            name: STREAM.into(),
            subjects: vec![SUBJECT.into()],
            // A job is gone once it is acknowledged.
            retention: RetentionPolicy::WorkQueue,
            storage: StorageType::File,
            ..Default::default()
        };
        let stream = context.create_stream(settings).await?;
        Ok(Instance { client, context, stream, _server: server })
    }
}

/// The server's version by its own words: `nats-server: v2.10.27`.
fn version() -> Option<(u32, u32)> {
    let output = Command::new(server::program(PROGRAM)?).arg("--version").output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    let mut numbers = said.trim().rsplit_once('v')?.1.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[derive(Debug)]
pub struct Instance {
    client: Client,
    context: Context,
    stream: Stream,
    _server: PeerServer,
}

impl Instance {
    async fn add(&self, jobs: usize, body: Vec<u8>) -> Result<(), ContestError> {
        let body = bytes::Bytes::from(body);
        let mut answers = Vec::with_capacity(jobs);
        for _ in 0..jobs {
            answers.push(self.context.publish(SUBJECT, body.clone()).await?);
        }
        for answer in answers {
            answer.await?;
        }
        Ok(())
    }

    /// The server hands out no more than `in_flight` that are not acknowledged.
    async fn consumer(&self, in_flight: usize) -> Result<pull::Stream, ContestError> {
        let settings = pull::Config {
            durable_name: Some(CONSUMER.into()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: ACK_WAIT,
            max_ack_pending: i64::try_from(in_flight)?,
            ..Default::default()
        };
        let consumer: PullConsumer = self.stream.create_consumer(settings).await?;
        // Asked for in large batches: the next job comes with the answer to the last, not a round trip later.
        Ok(consumer.stream().max_messages_per_batch(in_flight.max(BATCH)).messages().await?)
    }

    async fn forget_consumer(&self) -> Result<(), ContestError> {
        self.stream.delete_consumer(CONSUMER).await?;
        Ok(())
    }

    /// The subject of the server's answers to acknowledgements: one subscription for all, which costs less than one for
    /// each.
    async fn inbox(&self) -> Result<(Subject, Subscriber), ContestError> {
        let inbox = Subject::from(self.client.new_inbox());
        let answers = self.client.subscribe(inbox.clone()).await?;
        Ok((inbox, answers))
    }
}

impl StartedPeer for Instance {
    async fn enqueue(&mut self, batch: usize, time: Duration) -> Result<u64, ContestError> {
        let started = Instant::now();
        let mut added = 0;
        while started.elapsed() < time {
            self.add(batch, payload()).await?;
            added += batch as u64;
        }
        Ok(added)
    }

    async fn fill(&mut self, jobs: u64) -> Result<(), ContestError> {
        for batch in batches(jobs) {
            self.add(batch, payload()).await?;
        }
        Ok(())
    }

    async fn drain(&mut self, jobs: u64, in_flight: usize) -> Result<Duration, ContestError> {
        let (inbox, mut answers) = self.inbox().await?;
        let started = Instant::now();
        let mut messages = self.consumer(in_flight).await?;
        let (mut taken, mut done) = (0, 0);
        while done < jobs {
            tokio::select! {
                message = messages.next(), if taken < jobs => {
                    let reply = reply(&message.ok_or("the jobs ended")??)?;
                    self.client.publish_with_reply(reply, inbox.clone(), AckKind::Ack.into()).await?;
                    taken += 1;
                }
                answer = answers.next() => {
                    answered(answer)?;
                    done += 1;
                }
                () = tokio::time::sleep(PATIENCE) => return Err("no job and no answer for a minute".into()),
            }
        }
        let took = started.elapsed();
        self.forget_consumer().await?;
        Ok(took)
    }

    async fn latency(&mut self, jobs: u64, every: Duration) -> Result<Vec<Duration>, ContestError> {
        let origin = Instant::now();
        let mut messages = self.consumer(BATCH).await?;
        let consumer = tokio::spawn(async move {
            let mut times = Vec::new();
            for _ in 0..jobs {
                let message = tokio::time::timeout(PATIENCE, messages.next()).await?.ok_or("the jobs ended")??;
                times.push(age(origin, &message.payload)?);
                message.double_ack().await?;
            }
            Ok::<_, ContestError>(times)
        });
        paced(jobs, every, origin, async |body| self.add(1, body).await).await?;
        let times = consumer.await??;
        self.forget_consumer().await?;
        Ok(times)
    }

    async fn touch(&mut self, leases: u64, time: Duration) -> Result<Option<u64>, ContestError> {
        let (inbox, mut answers) = self.inbox().await?;
        let mut messages = self.consumer(usize::try_from(leases)?).await?;
        let mut held = Vec::new();
        for _ in 0..leases {
            let message = tokio::time::timeout(PATIENCE, messages.next()).await?;
            held.push(reply(&message.ok_or("the jobs ended")??)?);
        }
        let started = Instant::now();
        let mut touched = 0;
        let mut round = held.chunks(BATCH).cycle();
        while started.elapsed() < time {
            let Some((last, others)) = round.next().and_then(<[_]>::split_last) else { break };
            for lease in others {
                self.client.publish(lease.clone(), AckKind::Progress.into()).await?;
            }
            // They are taken in order, so the answer to the last speaks for all.
            self.client.publish_with_reply(last.clone(), inbox.clone(), AckKind::Progress.into()).await?;
            answered(tokio::time::timeout(PATIENCE, answers.next()).await?)?;
            touched += 1 + others.len() as u64;
        }
        drop(messages);
        self.forget_consumer().await?;
        Ok(Some(touched))
    }

    async fn clear(&mut self) -> Result<(), ContestError> {
        self.stream.purge().await?;
        Ok(())
    }
}

/// The subject of a job's acknowledgements.
fn reply(message: &jetstream::Message) -> Result<Subject, ContestError> {
    message.reply.clone().ok_or_else(|| "a job came without a place for its acknowledgement".into())
}

fn answered(answer: Option<Message>) -> Result<(), ContestError> {
    match answer.ok_or("the connection was closed")?.status {
        None => Ok(()),
        Some(status) => Err(format!("an acknowledgement was answered by {status}").into()),
    }
}
