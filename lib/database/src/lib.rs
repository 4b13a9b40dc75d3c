//! Connections to somebody's PostgreSQL, for the crates of Onward that keep rows there: the outbox, and the records of
//! schedules.
//!
//! What they have in common is here and nowhere else: a URL is read, TLS is used where it asks for it, a connection that
//! broke is made anew, and every wait for an answer has an end. What is asked is theirs. Behind a pooler that gives out a
//! server connection per transaction (PgBouncer's transaction mode) nothing may live longer than a transaction: so
//! statements are sent without a name, and several of them go as one flight. Nobody else's statement may come into a
//! flight: it would be part of that transaction, and be undone with it. So a connection has one user at a time.
//!
//! This is no interface for users: the driver's types are part of it.

mod tls;

use core::future::Future;
use core::ops::Deref;
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio::time::timeout;
use tokio_postgres::config::SslMode;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, NoTls};

/// The time that the database has to answer.
pub const ANSWERED_WITHIN: Duration = Duration::from_secs(15);

/// A parameter with its type, for statements without a name.
pub type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// The reason why the database did not do what was asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DatabaseError {
    /// The URL is none. What it holds may be a password, and is not repeated.
    #[error("this is no URL of a PostgreSQL database: {0}; write postgres://user@host/database")]
    Url(String),
    #[error("no connection to the database: {0}; nothing was changed")]
    Unreachable(String),
    #[error("the database refused: {0}; nothing was changed")]
    Refused(String),
    #[error("the database did not answer within {0:?}; whether it did what was asked is not known")]
    Unanswered(Duration),
}

/// A database, and the connection to it that is in use until it breaks.
#[derive(Debug)]
pub struct SharedConnection {
    config: Config,
    client: Mutex<Option<Arc<Client>>>,
    turn: Arc<AsyncMutex<()>>,
}

/// The connection in use, for one user at a time: others wait until this is dropped.
#[derive(Debug)]
pub struct ClientInUse {
    client: Arc<Client>,
    _turn: OwnedMutexGuard<()>,
}

impl Deref for ClientInUse {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl SharedConnection {
    /// `program` is the name that the database's own lists show, unless the URL has one. Connects to nothing yet.
    pub fn at(url: &str, program: &str) -> Result<Self, DatabaseError> {
        let mut config: Config =
            url.parse().map_err(|error: tokio_postgres::Error| DatabaseError::Url(told(&error)))?;
        config.connect_timeout(ANSWERED_WITHIN);
        if config.get_application_name().is_none() {
            config.application_name(program);
        }
        Ok(Self { config, client: Mutex::default(), turn: Arc::default() })
    }

    /// The connection in use, or a new one. Waits until nobody else uses it, which takes each of them no longer than an
    /// answer may take.
    pub async fn client(&self) -> Result<ClientInUse, DatabaseError> {
        let turn = self.turn.clone().lock_owned().await;
        let found = self.in_use().as_ref().filter(|client| !client.is_closed()).cloned();
        let client = match found {
            Some(client) => client,
            None => {
                let client = Arc::new(self.connect(|_| {}).await?);
                *self.in_use() = Some(client.clone());
                client
            }
        };
        Ok(ClientInUse { client, _turn: turn })
    }

    /// A connection of its own. `seen` is called with what the database says by itself.
    ///
    /// TLS is used where the URL asks for it by `sslmode=require`, and then with a certificate that is checked.
    pub async fn connect(&self, seen: impl Fn(AsyncMessage) + Send + 'static) -> Result<Client, DatabaseError> {
        let unreachable = |error: tokio_postgres::Error| DatabaseError::Unreachable(told(&error));
        let opening = async {
            match self.config.get_ssl_mode() {
                SslMode::Require => {
                    let (client, connection) =
                        self.config.connect(tls::DatabaseTls::new()).await.map_err(unreachable)?;
                    drive(connection, seen);
                    Ok(client)
                }
                _ => {
                    let (client, connection) = self.config.connect(NoTls).await.map_err(unreachable)?;
                    drive(connection, seen);
                    Ok(client)
                }
            }
        };
        timeout(ANSWERED_WITHIN, opening).await.unwrap_or(Err(DatabaseError::Unanswered(ANSWERED_WITHIN)))
    }

    /// The answer to a question over the connection in use. A connection that does not answer is given up: what it was
    /// asked may still happen, and its answer must not be taken for that to a later question.
    pub async fn answered<T>(
        &self,
        question: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, DatabaseError> {
        let answer = answered_within(ANSWERED_WITHIN, question).await;
        if matches!(answer, Err(DatabaseError::Unreachable(_) | DatabaseError::Unanswered(_))) {
            *self.in_use() = None;
        }
        answer
    }

    fn in_use(&self) -> MutexGuard<'_, Option<Arc<Client>>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The answer to a question over a connection of its own.
pub async fn answered_within<T>(
    patience: Duration,
    question: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, DatabaseError> {
    match timeout(patience, question).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) if error.as_db_error().is_some() => Err(DatabaseError::Refused(told(&error))),
        Ok(Err(error)) => Err(DatabaseError::Unreachable(told(&error))),
        Err(_) => Err(DatabaseError::Unanswered(patience)),
    }
}

/// Carries the connection's messages until its client is dropped.
fn drive<S>(
    mut connection: tokio_postgres::Connection<tokio_postgres::Socket, S>,
    seen: impl Fn(AsyncMessage) + Send + 'static,
) where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    tokio::spawn(async move {
        loop {
            match core::future::poll_fn(|context| connection.poll_message(context)).await {
                Some(Ok(message)) => seen(message),
                // Whoever asks next is told.
                Some(Err(error)) => return tracing::debug!(error = %told(&error), "database_connection_lost"),
                None => return,
            }
        }
    });
}

/// An error with its causes, which the driver does not name by itself.
fn told(error: &impl std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}
