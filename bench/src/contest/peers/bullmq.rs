//! BullMQ on Redis, with every write synced before it is answered. Its client is a Node program that this one talks to
//! by lines of JSON; what is timed is timed there.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

use super::super::{BATCH, Contender, ContestError, PAYLOAD, PeerInfo, StartedPeer};
use super::server::{self, PeerServer};
use super::{install, text};

const REDIS: &str = "redis-server";
const NODE: &str = "node";

/// Modules that npm installs: BullMQ, and the Redis client that its manual uses.
pub const MODULES: &[&str] = &["bullmq@6", "ioredis@5"];

const DRIVER: &str = include_str!("bullmq.js");

/// The folder in which npm put them.
pub fn folder() -> PathBuf {
    install::cache().join("node")
}

pub fn module_missing() -> bool {
    ["bullmq", "ioredis"].iter().any(|name| !folder().join("node_modules").join(name).is_dir())
}

#[derive(Clone, Copy, Debug)]
pub struct BullMq;

impl Contender for BullMq {
    type Running = Instance;

    fn about(&self) -> PeerInfo {
        PeerInfo { name: "BullMQ appendfsync always", durable: "fsync before each answer", before_answer: true }
    }

    fn missing(&self) -> Option<String> {
        server::missing(&[REDIS, NODE]).or_else(|| module_missing().then(|| "bullmq (npm)".into()))
    }

    async fn start(&self, folder: &Path) -> Result<Instance, ContestError> {
        let port = server::free_port()?;
        let mut command = Command::new(server::needed(REDIS)?);
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--dir", text(folder)?]);
        // No snapshots beside the log: they would only cost.
        command.args([
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
            "--save",
            "",
            "--maxmemory-policy",
            "noeviction",
        ]);
        let mut server = PeerServer::start(command, folder)?;
        server.accepts(port).await?;

        let script = folder.join("bullmq.js");
        std::fs::write(&script, DRIVER)?;
        let mut driver = tokio::process::Command::new(server::needed(NODE)?);
        driver.arg(script).arg(port.to_string()).env("NODE_PATH", self::folder().join("node_modules"));
        let complaints = folder.join("driver.output");
        driver.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(&complaints)?).kill_on_drop(true);
        let mut driver = driver.spawn().map_err(|error| format!("cannot start {NODE}: {error}"))?;
        let (words, answers) = driver.stdin.take().zip(driver.stdout.take()).ok_or("no pipes to the driver")?;
        let answers = BufReader::new(answers).lines();
        let mut started = Instance { words, answers, complaints, _driver: driver, _server: server };
        started.ask(&json!({"do": "connect", "payload": PAYLOAD, "batch": BATCH})).await?;
        Ok(started)
    }
}

#[derive(Debug)]
pub struct Instance {
    words: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    /// The file for errors that the driver cannot answer with.
    complaints: PathBuf,
    _driver: Child,
    _server: PeerServer,
}

impl Instance {
    async fn ask(&mut self, question: &Value) -> Result<Value, ContestError> {
        let ended = |_| format!("the driver of BullMQ ended; it said:\n{}", server::end_of(&self.complaints));
        self.words.write_all(format!("{question}\n").as_bytes()).await.map_err(ended)?;
        let line = self.answers.next_line().await?.ok_or(()).map_err(|()| ended(ErrorKind::UnexpectedEof.into()))?;
        let mut answer: Value = serde_json::from_str(&line)?;
        match answer["error"].as_str() {
            Some(error) => Err(format!("BullMQ: {error}").into()),
            None => Ok(answer["value"].take()),
        }
    }
}

fn number(value: &Value) -> Result<f64, ContestError> {
    value.as_f64().ok_or_else(|| format!("the driver of BullMQ answered {value}").into())
}

fn milliseconds(value: &Value) -> Result<Duration, ContestError> {
    Ok(Duration::from_secs_f64(number(value)? / 1_000.0))
}

impl StartedPeer for Instance {
    async fn enqueue(&mut self, batch: usize, time: Duration) -> Result<u64, ContestError> {
        let question = json!({"do": "enqueue", "batch": batch, "time": time.as_millis() as u64});
        Ok(number(&self.ask(&question).await?)? as u64)
    }

    async fn fill(&mut self, jobs: u64) -> Result<(), ContestError> {
        self.ask(&json!({"do": "fill", "jobs": jobs})).await?;
        Ok(())
    }

    async fn drain(&mut self, jobs: u64, in_flight: usize) -> Result<Duration, ContestError> {
        milliseconds(&self.ask(&json!({"do": "drain", "jobs": jobs, "in_flight": in_flight})).await?)
    }

    async fn latency(&mut self, jobs: u64, every: Duration) -> Result<Vec<Duration>, ContestError> {
        let question = json!({"do": "latency", "jobs": jobs, "every": every.as_secs_f64() * 1_000.0});
        let times = self.ask(&question).await?;
        times.as_array().ok_or("the driver of BullMQ answered no times")?.iter().map(milliseconds).collect()
    }

    async fn touch(&mut self, leases: u64, time: Duration) -> Result<Option<u64>, ContestError> {
        let question = json!({"do": "touch", "leases": leases, "time": time.as_millis() as u64});
        Ok(Some(number(&self.ask(&question).await?)? as u64))
    }

    async fn clear(&mut self) -> Result<(), ContestError> {
        self.ask(&json!({"do": "clear"})).await?;
        Ok(())
    }
}
