//! Asking: a connection that is made anew when it is lost, and a pool of them for all but the logs.

use core::cell::Cell;
use core::time::Duration;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::failure::{OpenError, RequestFailure};
use crate::session::{Connector, DatabaseSession, QueryAnswer};

/// The rate that a slow network still carries: requests that carry much get so much more time.
const BYTES_PER_MS: usize = 4 << 10;

/// The factor by which a read may take longer than a change: it may be much that is read.
const READ_FACTOR: u32 = 5;

/// Connections in use at a time, besides those of the logs.
const SHARED_CONNECTIONS: usize = 4;

/// A connection of one thread at a time, which waits for its answers itself.
#[derive(Debug)]
pub(crate) struct Connection {
    connector: Arc<Connector>,
    session: Option<DatabaseSession>,
    /// Always there until the end.
    runtime: Option<Runtime>,
}

impl Connection {
    pub(crate) fn new(connector: Arc<Connector>) -> Result<Self, OpenError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| OpenError::Computer(error.to_string()))?;
        Ok(Self { connector, session: None, runtime: Some(runtime) })
    }

    /// The instant when a change that begins now and carries so many bytes is given up.
    pub(crate) fn deadline(&self, bytes: usize) -> Instant {
        Instant::now() + self.connector.answered_within + Duration::from_millis((bytes / BYTES_PER_MS) as u64)
    }

    /// The same, for what is only read.
    pub(crate) fn read_deadline(&self) -> Instant {
        Instant::now() + self.connector.answered_within * READ_FACTOR
    }

    /// Changes something. A warning beside the answer means that it may not last, as does no answer in time.
    pub(crate) fn change(
        &mut self,
        text: &'static str,
        params: &[&(dyn ToSql + Sync)],
        deadline: Instant,
    ) -> Result<Vec<Row>, RequestFailure> {
        let QueryAnswer { rows, warning } = self.ask(deadline, async |session| session.query(text, params).await)?;
        match warning {
            Some(cause) => Err(RequestFailure::Unknown { cause }),
            None => Ok(rows),
        }
    }

    /// Looks at something.
    pub(crate) fn look(
        &mut self,
        text: &'static str,
        params: &[&(dyn ToSql + Sync)],
        deadline: Instant,
    ) -> Result<Vec<Row>, RequestFailure> {
        self.ask(deadline, async |session| session.query(text, params).await).map(|answer| answer.rows)
    }

    /// Carries out several statements as one transaction.
    pub(crate) fn batch(&mut self, text: &str, deadline: Instant) -> Result<(), RequestFailure> {
        match self.ask(deadline, async |session| session.batch(text).await)? {
            Some(cause) => Err(RequestFailure::Unknown { cause }),
            None => Ok(()),
        }
    }

    /// Asks on the connection that there is, or on a new one. One that did not answer in time, or broke, is closed, without
    /// a request to cancel: a wait for the standby that is cancelled would be reported as a success.
    fn ask<T>(
        &mut self,
        deadline: Instant,
        question: impl AsyncFnOnce(&mut DatabaseSession) -> Result<T, RequestFailure>,
    ) -> Result<T, RequestFailure> {
        let Self { connector, session, runtime } = self;
        let runtime = runtime.as_ref().expect("it is there until the end");
        let limit = deadline.saturating_duration_since(Instant::now());
        let was_sent = Cell::new(false);
        let asking = async {
            let kept = match session.take() {
                Some(mut kept) => (!kept.is_lost().await).then_some(kept),
                None => None,
            };
            let mut open = match kept {
                Some(kept) => kept,
                None => connector.connect().await?,
            };
            was_sent.set(true);
            let answer = question(&mut open).await;
            *session = Some(open);
            answer
        };
        runtime.block_on(async { timeout(limit, asking).await }).unwrap_or_else(|_| {
            let cause = format!("no answer within {} ms", limit.as_millis());
            Err(if was_sent.get() {
                RequestFailure::Unknown { cause }
            } else {
                RequestFailure::NotConnected(OpenError::Unreachable(cause))
            })
        })
    }
}

impl Drop for Connection {
    /// Waits for nobody: the name of a host may still be looked up.
    fn drop(&mut self) {
        self.session = None;
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Connections for whichever thread: none of them waits for a commit of the log.
#[derive(Debug)]
pub(crate) struct Pool {
    connector: Arc<Connector>,
    idle: Mutex<Idle>,
    has_idle: Condvar,
}

#[derive(Debug)]
struct Idle {
    connections: Vec<Connection>,
    in_use: usize,
}

impl Pool {
    pub(crate) fn new(connector: Arc<Connector>, first: Connection) -> Self {
        let idle = Idle { connections: vec![first], in_use: 0 };
        Self { connector, idle: Mutex::new(idle), has_idle: Condvar::new() }
    }

    /// Looks at something on a connection that is free, or as soon as one is.
    pub(crate) fn look(&self, text: &'static str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, RequestFailure> {
        self.lend(|connection| connection.look(text, params, connection.read_deadline()))
    }

    /// Changes something, by a request that carries so many bytes.
    pub(crate) fn change(
        &self,
        text: &'static str,
        params: &[&(dyn ToSql + Sync)],
        bytes: usize,
    ) -> Result<Vec<Row>, RequestFailure> {
        self.lend(|connection| connection.change(text, params, connection.deadline(bytes)))
    }

    fn lend<T>(&self, ask: impl FnOnce(&mut Connection) -> Result<T, RequestFailure>) -> Result<T, RequestFailure> {
        let mut loan = Loan { pool: self, connection: Some(self.take()?) };
        ask(loan.connection.as_mut().expect("it is there until the loan ends"))
    }

    fn take(&self) -> Result<Connection, OpenError> {
        let within = self.connector.answered_within * READ_FACTOR;
        let none = |idle: &mut Idle| idle.connections.is_empty() && idle.in_use >= SHARED_CONNECTIONS;
        let waited = self.has_idle.wait_timeout_while(self.idle(), within, none);
        let (mut idle, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return Err(OpenError::Unreachable(format!("no connection was free within {within:?}")));
        }
        let connection = match idle.connections.pop() {
            Some(connection) => connection,
            None => Connection::new(self.connector.clone())?,
        };
        idle.in_use += 1;
        Ok(connection)
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that goes back, whatever becomes of its user.
struct Loan<'a> {
    pool: &'a Pool,
    connection: Option<Connection>,
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        let mut idle = self.pool.idle();
        idle.in_use -= 1;
        idle.connections.extend(self.connection.take());
        self.pool.has_idle.notify_one();
    }
}
