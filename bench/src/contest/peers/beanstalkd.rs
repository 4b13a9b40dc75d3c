//! beanstalkd, with its binlog synced before each answer and with the default, at most every 50 ms.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::super::{BATCH, Contender, ContestError, PeerInfo, StartedPeer};
use super::server::{self, PeerServer};
use super::{age, batches, paced, payload};

const PROGRAM: &str = "beanstalkd";

/// Seconds that a job may be held: longer than any measurement.
const TIME_TO_RUN: u32 = 3_600;

/// Seconds until a job is held for lost.
const PATIENCE: u32 = 60;

/// Bytes of answers read at once.
const RECEIVE_BYTES: usize = 64 * 1024;

#[derive(Clone, Copy, Debug)]
pub struct Beanstalkd {
    synced: bool,
}

impl Beanstalkd {
    pub const fn synced() -> Self {
        Self { synced: true }
    }

    pub const fn lazy() -> Self {
        Self { synced: false }
    }
}

impl Contender for Beanstalkd {
    type Running = Instance;

    fn about(&self) -> PeerInfo {
        match self.synced {
            true => PeerInfo { name: "beanstalkd -f0", durable: "fsync before each answer", before_answer: true },
            false => PeerInfo { name: "beanstalkd -b", durable: "fsync every 50 ms", before_answer: false },
        }
    }

    fn missing(&self) -> Option<String> {
        server::missing(&[PROGRAM])
    }

    async fn start(&self, folder: &Path) -> Result<Instance, ContestError> {
        let port = server::free_port()?;
        let binlog = folder.join("binlog");
        std::fs::create_dir(&binlog)?;
        let mut command = Command::new(server::needed(PROGRAM)?);
        command.args(["-l", "127.0.0.1", "-p", &port.to_string(), "-b"]).arg(binlog);
        if self.synced {
            command.arg("-f0");
        }
        let mut server = PeerServer::start(command, folder)?;
        server.accepts(port).await?;
        let connection = Connection::open(port).await?;
        Ok(Instance { connection, held: Vec::new(), port, _server: server })
    }
}

#[derive(Debug)]
pub struct Instance {
    connection: Connection,
    /// Jobs that `touch` took and nobody has finished.
    held: Vec<(Connection, Vec<u64>)>,
    port: u16,
    _server: PeerServer,
}

impl Instance {
    async fn add(&mut self, jobs: usize, body: &[u8]) -> Result<(), ContestError> {
        for _ in 0..jobs {
            self.connection.put(body);
        }
        for _ in 0..jobs {
            self.connection.expect(&Answer::Inserted).await?;
        }
        Ok(())
    }
}

impl StartedPeer for Instance {
    async fn enqueue(&mut self, batch: usize, time: Duration) -> Result<u64, ContestError> {
        let started = Instant::now();
        let mut added = 0;
        while started.elapsed() < time {
            self.add(batch, &payload()).await?;
            added += batch as u64;
        }
        Ok(added)
    }

    async fn fill(&mut self, jobs: u64) -> Result<(), ContestError> {
        for batch in batches(jobs) {
            self.add(batch, &payload()).await?;
        }
        Ok(())
    }

    async fn drain(&mut self, jobs: u64, in_flight: usize) -> Result<Duration, ContestError> {
        let started = Instant::now();
        let mut asked = jobs.min(in_flight as u64);
        let mut done = 0;
        (0..asked).for_each(|_| self.connection.reserve(PATIENCE));
        while done < jobs {
            match self.connection.answer().await? {
                Answer::Reserved { id, .. } => self.connection.say("delete", id),
                Answer::Deleted => {
                    done += 1;
                    if asked < jobs {
                        asked += 1;
                        self.connection.reserve(PATIENCE);
                    }
                }
                other => return Err(format!("{PROGRAM} answered {other:?} to a drain").into()),
            }
        }
        Ok(started.elapsed())
    }

    async fn latency(&mut self, jobs: u64, every: Duration) -> Result<Vec<Duration>, ContestError> {
        let origin = Instant::now();
        let mut waiting = Connection::open(self.port).await?;
        let consumer = tokio::spawn(async move {
            let mut times = Vec::new();
            for _ in 0..jobs {
                waiting.reserve(PATIENCE);
                let (id, body) = waiting.reserved().await?;
                times.push(age(origin, &body)?);
                waiting.say("delete", id);
                waiting.expect(&Answer::Deleted).await?;
            }
            Ok::<_, ContestError>(times)
        });
        paced(jobs, every, origin, async |body| self.add(1, &body).await).await?;
        consumer.await?
    }

    async fn touch(&mut self, leases: u64, time: Duration) -> Result<Option<u64>, ContestError> {
        // A touch looks through everything that its connection holds: so they are spread, as over workers.
        for batch in batches(leases) {
            let mut connection = Connection::open(self.port).await?;
            (0..batch).for_each(|_| connection.reserve(PATIENCE));
            let mut ids = Vec::with_capacity(batch);
            for _ in 0..batch {
                ids.push(connection.reserved().await?.0);
            }
            self.held.push((connection, ids));
        }
        let started = Instant::now();
        let mut touched = 0;
        while started.elapsed() < time {
            for (connection, ids) in &mut self.held {
                connection.each("touch", ids, &Answer::Touched).await?;
                touched += ids.len() as u64;
            }
        }
        Ok(Some(touched))
    }

    async fn clear(&mut self) -> Result<(), ContestError> {
        for (mut connection, ids) in std::mem::take(&mut self.held) {
            connection.each("delete", &ids, &Answer::Deleted).await?;
        }
        loop {
            (0..BATCH).for_each(|_| self.connection.reserve(0));
            let mut deleted = 0;
            for _ in 0..BATCH {
                if let Answer::Reserved { id, .. } = self.connection.answer().await? {
                    self.connection.say("delete", id);
                    deleted += 1;
                }
            }
            for _ in 0..deleted {
                self.connection.expect(&Answer::Deleted).await?;
            }
            if deleted < BATCH {
                return Ok(());
            }
        }
    }
}

#[derive(Debug, Eq, PartialEq)]
enum Answer {
    Inserted,
    Reserved { id: u64, body: Vec<u8> },
    Deleted,
    Touched,
    TimedOut,
}

/// A client that says several commands before it reads their answers, which come in the same order.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    /// Commands that are not sent yet.
    words: Vec<u8>,
    received: Vec<u8>,
    /// The number of bytes of it that were read.
    read: usize,
}

impl Connection {
    async fn open(port: u16) -> Result<Self, ContestError> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, words: Vec::new(), received: Vec::new(), read: 0 })
    }

    fn put(&mut self, body: &[u8]) {
        self.words.extend_from_slice(format!("put 0 0 {TIME_TO_RUN} {}\r\n", body.len()).as_bytes());
        self.words.extend_from_slice(body);
        self.words.extend_from_slice(b"\r\n");
    }

    fn reserve(&mut self, seconds: u32) {
        self.words.extend_from_slice(format!("reserve-with-timeout {seconds}\r\n").as_bytes());
    }

    fn say(&mut self, word: &str, id: u64) {
        self.words.extend_from_slice(format!("{word} {id}\r\n").as_bytes());
    }

    async fn reserved(&mut self) -> Result<(u64, Vec<u8>), ContestError> {
        match self.answer().await? {
            Answer::Reserved { id, body } => Ok((id, body)),
            other => Err(format!("{PROGRAM} answered {other:?} to a reserve").into()),
        }
    }

    async fn each(&mut self, word: &str, ids: &[u64], wanted: &Answer) -> Result<(), ContestError> {
        ids.iter().for_each(|id| self.say(word, *id));
        for _ in ids {
            self.expect(wanted).await?;
        }
        Ok(())
    }

    async fn expect(&mut self, wanted: &Answer) -> Result<(), ContestError> {
        let answer = self.answer().await?;
        if answer != *wanted {
            return Err(format!("{PROGRAM} answered {answer:?} instead of {wanted:?}").into());
        }
        Ok(())
    }

    /// The next answer. Sends what was said only when it has to wait, so that commands leave together.
    async fn answer(&mut self) -> Result<Answer, ContestError> {
        loop {
            if let Some(answer) = self.parsed()? {
                return Ok(answer);
            }
            self.received.drain(..std::mem::take(&mut self.read));
            if !self.words.is_empty() {
                self.stream.write_all(&self.words).await?;
                self.words.clear();
            }
            self.received.reserve(RECEIVE_BYTES);
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(format!("{PROGRAM} closed the connection").into());
            }
        }
    }

    fn parsed(&mut self) -> Result<Option<Answer>, ContestError> {
        let rest = &self.received[self.read..];
        let Some(end) = rest.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
        let line = std::str::from_utf8(&rest[..end])?.trim_end();
        let mut used = end + 1;
        let mut words = line.split(' ');
        let answer = match words.next() {
            Some("INSERTED") => Answer::Inserted,
            Some("DELETED") => Answer::Deleted,
            Some("TOUCHED") => Answer::Touched,
            Some("TIMED_OUT") => Answer::TimedOut,
            Some("RESERVED") => {
                let mut number = || words.next().ok_or("a short answer")?.parse::<u64>().map_err(ContestError::from);
                let (id, length) = (number()?, number()? as usize);
                let Some(body) = rest.get(used..used + length + 2) else { return Ok(None) };
                used += length + 2;
                Answer::Reserved { id, body: body[..length].to_vec() }
            }
            _ => return Err(format!("{PROGRAM} answered `{line}`").into()),
        };
        self.read += used;
        Ok(Some(answer))
    }
}
