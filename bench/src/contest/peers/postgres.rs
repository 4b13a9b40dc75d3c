//! PostgreSQL as a queue, as it is commonly written: a table, `for update skip locked`, `listen` and `notify`. Its own
//! settings as they come: a commit is on disk before it is answered.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Signal, geteuid};
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Client, NoTls, Statement};

use super::super::{BATCH, Contender, ContestError, PeerInfo, StartedPeer};
use super::server::{self, PeerServer};
use super::{age, batches, paced, payload};

/// Jobs that one statement takes at most, and so one connection holds.
const TAKE: usize = 64;

/// The time after which jobs are held for lost.
const PATIENCE: Duration = Duration::from_secs(60);

const SCHEMA: &str = "
    create table jobs (
        id bigserial primary key,
        state text not null default 'ready',
        leased_until timestamptz,
        body bytea not null
    );
    create index jobs_ready on jobs (id) where state = 'ready';";

const ADD: &str = "insert into jobs (body) select unnest($1::bytea[])";

const ADD_AND_TELL: &str = "with added as (insert into jobs (body) values ($1)) select pg_notify('jobs', '')";

const TAKE_SOME: &str = "
    update jobs set state = 'running', leased_until = now() + interval '1 hour'
    where id = any(array(select id from jobs where state = 'ready' order by id for update skip locked limit $1))
    returning id, body";

const FINISH: &str = "delete from jobs where id = any($1)";

const EXTEND: &str = "update jobs set leased_until = now() + interval '1 hour' where id = any($1)";

#[derive(Clone, Copy, Debug)]
pub struct PostgresPeer;

impl Contender for PostgresPeer {
    type Running = Instance;

    fn about(&self) -> PeerInfo {
        PeerInfo { name: "PostgreSQL skip locked", durable: "fsync before each commit's answer", before_answer: true }
    }

    fn missing(&self) -> Option<String> {
        server::missing(&["initdb", "postgres"])
    }

    async fn start(&self, folder: &Path) -> Result<Instance, ContestError> {
        let user = user(folder)?;
        let data = folder.join("data");
        let mut initdb = as_user("initdb", folder, user)?;
        initdb.args(["--username=bench", "--auth=trust", "--encoding=UTF8", "--pgdata"]).arg(&data);
        server::run(initdb)?;
        let port = server::free_port()?;
        let mut command = as_user("postgres", folder, user)?;
        command.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-D"]).arg(&data).arg("-k").arg(folder);
        // Killed, it would leave its processes and its shared memory behind.
        let mut server = PeerServer::start(command, folder)?.end_by(Signal::QUIT);
        server.accepts(port).await?;
        let connection = Connection::ready(port).await?;
        connection.client.batch_execute(SCHEMA).await?;
        let session = Session::new(connection).await?;
        Ok(Instance { session, port, _server: server })
    }
}

/// PostgreSQL refuses to run as root: then as the user that its package made, who gets the folder.
fn user(folder: &Path) -> Result<Option<(u32, u32)>, ContestError> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let users = std::fs::read_to_string("/etc/passwd")?;
    let fields: Option<Vec<&str>> =
        users.lines().map(|line| line.split(':').collect()).find(|fields: &Vec<&str>| fields[0] == "postgres");
    let fields = fields.ok_or("PostgreSQL does not run as root, and there is no user `postgres`")?;
    let number = |at: usize| fields.get(at).and_then(|field| field.parse().ok());
    let ids: (u32, u32) = number(2).zip(number(3)).ok_or("/etc/passwd has no ids for the user `postgres`")?;
    for above in folder.ancestors().skip(1).filter(|above| above.is_dir()) {
        if above.metadata()?.mode() & 0o001 == 0 {
            let why = "only its owner may enter it; choose a folder below /tmp";
            return Err(format!("the user `postgres` cannot reach its files in {}: {why}", above.display()).into());
        }
    }
    std::os::unix::fs::chown(folder, Some(ids.0), Some(ids.1))?;
    Ok(Some(ids))
}

fn as_user(program: &str, folder: &Path, user: Option<(u32, u32)>) -> Result<Command, ContestError> {
    let mut command = Command::new(server::needed(program)?);
    command.current_dir(folder);
    if let Some((user, group)) = user {
        command.uid(user).gid(group);
    }
    Ok(command)
}

struct Connection {
    client: Client,
    told: mpsc::UnboundedReceiver<()>,
}

impl Connection {
    async fn open(port: u16) -> Result<Self, ContestError> {
        let address = format!("host=127.0.0.1 port={port} user=bench dbname=postgres");
        let (client, mut connection) = tokio_postgres::connect(&address, NoTls).await?;
        let (tell, told) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(message)) = std::future::poll_fn(|context| connection.poll_message(context)).await {
                // Nobody listens once the client is gone.
                if matches!(message, AsyncMessage::Notification(_)) && tell.send(()).is_err() {
                    return;
                }
            }
        });
        Ok(Self { client, told })
    }

    /// Connects once the server answers, which is a moment after it accepts connections.
    async fn ready(port: u16) -> Result<Self, ContestError> {
        let started = Instant::now();
        loop {
            match Self::open(port).await {
                Err(_) if started.elapsed() < PATIENCE => tokio::time::sleep(Duration::from_millis(20)).await,
                result => return result,
            }
        }
    }
}

/// A connection with its statements.
struct Session {
    connection: Connection,
    add: Statement,
    take: Statement,
    finish: Statement,
    extend: Statement,
}

impl Session {
    async fn new(connection: Connection) -> Result<Self, ContestError> {
        let client = &connection.client;
        let add = client.prepare(ADD).await?;
        let take = client.prepare(TAKE_SOME).await?;
        let finish = client.prepare(FINISH).await?;
        let extend = client.prepare(EXTEND).await?;
        Ok(Self { connection, add, take, finish, extend })
    }

    async fn open(port: u16) -> Result<Self, ContestError> {
        Self::new(Connection::open(port).await?).await
    }

    async fn add(&self, jobs: usize) -> Result<(), ContestError> {
        self.connection.client.execute(&self.add, &[&vec![payload(); jobs]]).await?;
        Ok(())
    }

    async fn take(&self, at_most: usize) -> Result<Vec<(i64, Vec<u8>)>, ContestError> {
        let rows = self.connection.client.query(&self.take, &[&i64::try_from(at_most)?]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    async fn finish(&self, jobs: &[(i64, Vec<u8>)]) -> Result<(), ContestError> {
        let ids: Vec<i64> = jobs.iter().map(|(id, _)| *id).collect();
        self.connection.client.execute(&self.finish, &[&ids]).await?;
        Ok(())
    }

    /// Takes and finishes until nothing is left to take.
    async fn work(&self, left: &AtomicU64, at_once: usize) -> Result<(), ContestError> {
        let mut last = Instant::now();
        loop {
            let some = |left: u64| Some(left.saturating_sub(at_once as u64));
            let before = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, some).unwrap_or_default();
            let wanted = before.min(at_once as u64);
            if wanted == 0 {
                return Ok(());
            }
            let jobs = self.take(wanted as usize).await?;
            left.fetch_add(wanted - jobs.len() as u64, Ordering::Relaxed);
            if !jobs.is_empty() {
                self.finish(&jobs).await?;
                last = Instant::now();
            } else if last.elapsed() > PATIENCE {
                return Err("no job for a minute".into());
            }
        }
    }

    /// Takes jobs as they come, woken by a notification: how long each was on its way.
    async fn wait(mut self, jobs: usize, origin: Instant) -> Result<Vec<Duration>, ContestError> {
        let mut times = Vec::new();
        while times.len() < jobs {
            let taken = self.take(TAKE).await?;
            for (_, body) in &taken {
                times.push(age(origin, body)?);
            }
            if taken.is_empty() {
                tokio::time::timeout(PATIENCE, self.connection.told.recv()).await?;
            } else {
                self.finish(&taken).await?;
            }
        }
        Ok(times)
    }
}

pub struct Instance {
    session: Session,
    port: u16,
    _server: PeerServer,
}

impl StartedPeer for Instance {
    async fn enqueue(&mut self, batch: usize, time: Duration) -> Result<u64, ContestError> {
        let started = Instant::now();
        let mut added = 0;
        while started.elapsed() < time {
            self.session.add(batch).await?;
            added += batch as u64;
        }
        Ok(added)
    }

    async fn fill(&mut self, jobs: u64) -> Result<(), ContestError> {
        for batch in batches(jobs) {
            self.session.add(batch).await?;
        }
        Ok(())
    }

    async fn drain(&mut self, jobs: u64, in_flight: usize) -> Result<Duration, ContestError> {
        let mut sessions = Vec::new();
        for _ in 0..in_flight.div_ceil(TAKE) {
            sessions.push(Session::open(self.port).await?);
        }
        let at_once = in_flight / sessions.len().max(1);
        let left = Arc::new(AtomicU64::new(jobs));
        let started = Instant::now();
        let mut workers = tokio::task::JoinSet::new();
        for session in sessions {
            let left = Arc::clone(&left);
            workers.spawn(async move { session.work(&left, at_once).await });
        }
        while let Some(ended) = workers.join_next().await {
            ended??;
        }
        Ok(started.elapsed())
    }

    async fn latency(&mut self, jobs: u64, every: Duration) -> Result<Vec<Duration>, ContestError> {
        let origin = Instant::now();
        let session = Session::open(self.port).await?;
        session.connection.client.batch_execute("listen jobs").await?;
        let consumer = tokio::spawn(session.wait(usize::try_from(jobs)?, origin));
        let client = &self.session.connection.client;
        let add = client.prepare(ADD_AND_TELL).await?;
        let tell = async |body: Vec<u8>| Ok(client.execute(&add, &[&body]).await.map(|_| ())?);
        paced(jobs, every, origin, tell).await?;
        consumer.await?
    }

    async fn touch(&mut self, leases: u64, time: Duration) -> Result<Option<u64>, ContestError> {
        let held: Vec<i64> = self.session.take(usize::try_from(leases)?).await?.iter().map(|(id, _)| *id).collect();
        let started = Instant::now();
        let mut touched = 0;
        let mut round = held.chunks(BATCH).cycle();
        while started.elapsed() < time {
            let ids = round.next().ok_or("there are no jobs to hold")?;
            touched += self.session.connection.client.execute(&self.session.extend, &[&ids]).await?;
        }
        Ok(Some(touched))
    }

    async fn clear(&mut self) -> Result<(), ContestError> {
        self.session.connection.client.batch_execute("truncate jobs").await?;
        Ok(())
    }
}
