//! RabbitMQ: a quorum queue of one node, persistent messages, publisher confirms.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions, QueuePurgeOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Consumer};
use tokio_stream::StreamExt;

use super::super::{Contender, ContestError, PeerInfo, StartedPeer};
use super::server::{self, PeerServer};
use super::{age, batches, paced, payload};

/// Debian's script in the search path changes the user and the folders; this is what it runs.
pub const PROGRAM: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

const QUEUE: &str = "jobs";

/// The delivery mode of messages that are written to disk.
const PERSISTENT: u8 = 2;

/// Jobs that one acknowledgement speaks for at most.
const ACK_AT_MOST: u64 = 64;

/// The time after which a job is held for lost.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
pub struct RabbitMq;

impl Contender for RabbitMq {
    type Running = Instance;

    fn about(&self) -> PeerInfo {
        PeerInfo { name: "RabbitMQ quorum queue", durable: "fsync before each confirm", before_answer: true }
    }

    fn missing(&self) -> Option<String> {
        server::missing(&[PROGRAM, "epmd"])
    }

    async fn start(&self, folder: &Path) -> Result<Instance, ContestError> {
        // Erlang's registry of names: one of its own, so that it ends with the node and meets no other.
        let registry_port = server::free_port()?;
        let mut command = Command::new(server::needed("epmd")?);
        command.args(["-address", "127.0.0.1", "-port", &registry_port.to_string()]);
        let mut registry = PeerServer::start(command, folder)?;
        registry.accepts(registry_port).await?;

        let port = server::free_port()?;
        let mut server = PeerServer::start(node(folder, port, registry_port)?, folder)?;
        server.accepts(port).await?;

        let address = format!("amqp://guest:guest@127.0.0.1:{port}/%2f");
        let publisher = Connection::connect(&address, ConnectionProperties::default()).await?;
        let consumer = Connection::connect(&address, ConnectionProperties::default()).await?;
        let channel = publisher.create_channel().await?;
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        channel.queue_declare(QUEUE.into(), QueueDeclareOptions::durable(), arguments).await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(Instance { channel, consumer, _publisher: publisher, _server: server, _registry: registry })
    }
}

/// A node with everything of its own, that nobody reaches from outside.
fn node(folder: &Path, port: u16, registry_port: u16) -> Result<Command, ContestError> {
    let settings = folder.join("rabbitmq.conf");
    let environment = folder.join("rabbitmq-env.conf");
    let plugins = folder.join("plugins");
    std::fs::write(&settings, "")?;
    std::fs::write(&environment, "")?;
    std::fs::write(&plugins, "[].")?;
    let mut command = Command::new(server::needed(PROGRAM)?);
    command
        // The script then becomes the node instead of waiting for it.
        .env("RUNNING_UNDER_SYSTEMD", "true")
        // The cookie that nodes know each other by is made there.
        .env("HOME", folder)
        .env("ERL_EPMD_ADDRESS", "127.0.0.1")
        .env("ERL_EPMD_PORT", registry_port.to_string())
        .env("RABBITMQ_NODENAME", format!("bench{port}@localhost"))
        .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
        .env("RABBITMQ_NODE_PORT", port.to_string())
        .env("RABBITMQ_DIST_PORT", server::free_port()?.to_string())
        .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1}")
        .env("RABBITMQ_CONF_ENV_FILE", environment)
        .env("RABBITMQ_CONFIG_FILE", settings)
        .env("RABBITMQ_ENABLED_PLUGINS_FILE", plugins)
        .env("RABBITMQ_MNESIA_BASE", folder.join("mnesia"))
        .env("RABBITMQ_LOG_BASE", folder.join("log"))
        .env("RABBITMQ_LOGS", "-")
        .env("RABBITMQ_PID_FILE", folder.join("pid"))
        .current_dir(folder);
    Ok(command)
}

#[derive(Debug)]
pub struct Instance {
    channel: Channel,
    consumer: Connection,
    _publisher: Connection,
    _server: PeerServer,
    _registry: PeerServer,
}

impl Instance {
    async fn add(&self, jobs: usize, body: &[u8]) -> Result<(), ContestError> {
        let properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
        let mut confirms = Vec::with_capacity(jobs);
        for _ in 0..jobs {
            let options = BasicPublishOptions::default();
            let confirm =
                self.channel.basic_publish("".into(), QUEUE.into(), options, body, properties.clone()).await?;
            confirms.push(confirm);
        }
        for confirm in confirms {
            if !confirm.await?.is_ack() {
                return Err("RabbitMQ refused a job".into());
            }
        }
        Ok(())
    }

    async fn consume(&self, in_flight: usize) -> Result<(Channel, Consumer), ContestError> {
        let channel = self.consumer.create_channel().await?;
        channel.basic_qos(u16::try_from(in_flight)?, BasicQosOptions::default()).await?;
        let options = BasicConsumeOptions::default();
        let consumer = channel.basic_consume(QUEUE.into(), "".into(), options, FieldTable::default()).await?;
        Ok((channel, consumer))
    }
}

/// Ends a consumer. The queue answers that after every acknowledgement that was sent before: they are stored then.
async fn cancel(channel: &Channel, tag: ShortString) -> Result<(), ContestError> {
    channel.basic_cancel(tag, BasicCancelOptions::default()).await?;
    Ok(())
}

impl StartedPeer for Instance {
    async fn enqueue(&mut self, batch: usize, time: Duration) -> Result<u64, ContestError> {
        let body = payload();
        let started = Instant::now();
        let mut added = 0;
        while started.elapsed() < time {
            self.add(batch, &body).await?;
            added += batch as u64;
        }
        Ok(added)
    }

    async fn fill(&mut self, jobs: u64) -> Result<(), ContestError> {
        let body = payload();
        for batch in batches(jobs) {
            self.add(batch, &body).await?;
        }
        Ok(())
    }

    /// RabbitMQ does not answer acknowledgements, so what is finished is known only at the end; the prefetch limit
    /// bounds what is open. One acknowledgement speaks for several jobs: a channel sends its queue a few dozen commands
    /// and keeps the others back, and what it still has when it is closed is lost.
    async fn drain(&mut self, jobs: u64, in_flight: usize) -> Result<Duration, ContestError> {
        let started = Instant::now();
        let (channel, mut consumer) = self.consume(in_flight).await?;
        let together = (in_flight as u64 / 4).clamp(1, ACK_AT_MOST);
        for job in 1..=jobs {
            let delivery = tokio::time::timeout(PATIENCE, consumer.next()).await?.ok_or("the jobs ended")??;
            if job % together == 0 || job == jobs {
                delivery.ack(BasicAckOptions { multiple: true }).await?;
            }
        }
        cancel(&channel, consumer.tag()).await?;
        let took = started.elapsed();
        // What came beyond the last goes back.
        channel.close(200, "done".into()).await?;
        Ok(took)
    }

    async fn latency(&mut self, jobs: u64, every: Duration) -> Result<Vec<Duration>, ContestError> {
        let origin = Instant::now();
        let (channel, mut deliveries) = self.consume(64).await?;
        let tag = deliveries.tag();
        let consumer = tokio::spawn(async move {
            let mut times = Vec::new();
            for _ in 0..jobs {
                let delivery = tokio::time::timeout(PATIENCE, deliveries.next()).await?.ok_or("the jobs ended")??;
                times.push(age(origin, &delivery.data)?);
                delivery.ack(BasicAckOptions::default()).await?;
            }
            Ok::<_, ContestError>(times)
        });
        paced(jobs, every, origin, async |body| self.add(1, &body).await).await?;
        let times = consumer.await??;
        cancel(&channel, tag).await?;
        channel.close(200, "done".into()).await?;
        Ok(times)
    }

    /// A delivery is held as long as its channel lives.
    async fn touch(&mut self, _leases: u64, _time: Duration) -> Result<Option<u64>, ContestError> {
        Ok(None)
    }

    async fn clear(&mut self) -> Result<(), ContestError> {
        self.channel.queue_purge(QUEUE.into(), QueuePurgeOptions::default()).await?;
        Ok(())
    }
}
