//! One connection: how it is made, what is checked before it is used, and its messages.
//!
//! The driver splits a connection into a client, which asks, and a stream of messages, which somebody must poll. Usually a
//! task of its own does; here whoever asks polls both, on its own thread. So no other thread is woken by an answer, and a
//! warning that came before an answer is known when the answer is.

use core::fmt;
use core::future::poll_fn;
use core::pin::pin;
use core::task::{Context, Poll};
use core::time::Duration;
use std::error::Error as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls, Row, SimpleQueryMessage, Statement};
use uuid::Uuid;

use crate::address::Address;
use crate::failure::{OpenError, RequestFailure, is_warning, told};
use crate::tls::PostgresTls;

/// A setting that means nothing to the database. A connection on which it has our value is the one that we opened.
const MARK: &str = "onward.session";

const OLDEST: i32 = 150_000;

const CHECK: &str = "select current_setting('server_version_num'), current_setting('onward.session', true),
    current_setting('fsync'), current_setting('synchronous_commit'), current_setting('transaction_isolation'),
    current_setting('client_min_messages'), current_setting('statement_timeout')";

/// Settings of newer versions, set where they exist.
const NEWER_SETTINGS: &str =
    "select set_config(name, '0', false) from pg_catalog.pg_settings where name in ('transaction_timeout')";

/// Values that a check compares with, by the columns after the mark and `fsync`.
const WANTED: [(&str, &str); 4] = [
    ("synchronous_commit", "on"),
    ("transaction_isolation", "read committed"),
    ("client_min_messages", "warning"),
    ("statement_timeout", "0"),
];

/// Makes connections.
pub(crate) struct Connector {
    address: Address,
    tls: Option<PostgresTls>,
    mark: String,
    pub(crate) answered_within: Duration,
    /// The host to begin with: the one that was good the last time, or the one after one that was not.
    begin_with: AtomicUsize,
}

impl Connector {
    pub(crate) fn new(url: &str, answered_within: Duration) -> Result<Self, OpenError> {
        let mark = random_uuid()?.to_string();
        let address = Address::parse(url, (MARK, &mark))?;
        let tls = address.tls.as_ref().map(|roots| PostgresTls::new(roots.as_deref())).transpose()?;
        Ok(Self { address, tls, mark, answered_within, begin_with: AtomicUsize::new(0) })
    }

    /// Connects to the first host that accepts writes.
    pub(crate) async fn connect(&self) -> Result<DatabaseSession, OpenError> {
        let hosts = &self.address.hosts;
        let begin = self.begin_with.load(Ordering::Relaxed);
        let mut failed = None;
        for at in (0..hosts.len()).map(|step| (begin + step) % hosts.len()) {
            // Before it is tried: whoever has no time left while it does not answer begins with the next.
            self.begin_with.store((at + 1) % hosts.len(), Ordering::Relaxed);
            let opening = self.open(&hosts[at]);
            let opened = match hosts.len() {
                1 => opening.await,
                // So that one that is gone does not use up the time of the next.
                _ => timeout(self.answered_within / 2, opening)
                    .await
                    .unwrap_or_else(|_| Err(OpenError::Unreachable("a host does not answer".into()))),
            };
            match opened {
                Ok(session) => {
                    self.begin_with.store(at, Ordering::Relaxed);
                    return Ok(session);
                }
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.expect("an address has a host"))
    }

    async fn open(&self, host: &Config) -> Result<DatabaseSession, OpenError> {
        let mut session = match &self.tls {
            Some(tls) => {
                let (client, connection) = host.connect(tls.clone()).await.map_err(|error| unopened(&error))?;
                DatabaseSession::new(client, connection)
            }
            None => {
                let (client, connection) = host.connect(NoTls).await.map_err(|error| unopened(&error))?;
                DatabaseSession::new(client, connection)
            }
        };
        session.check(&self.mark).await?;
        Ok(session)
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").finish_non_exhaustive()
    }
}

/// A pooler that does not know an option ends the connection, and names it.
fn unopened(error: &tokio_postgres::Error) -> OpenError {
    match error.as_db_error() {
        Some(answer) if answer.message().contains("startup parameter") => OpenError::Pooler(told(error)),
        Some(answer) if is_passing(answer.code().code()) => OpenError::Unreachable(told(error)),
        Some(_) => OpenError::Refused(told(error)),
        None if is_wrong_encryption(error) => OpenError::Refused(told(error)),
        None => OpenError::Unreachable(told(error)),
    }
}

/// Whether the two ends do not agree on encryption: the server has none, or a certificate that is not believed. A connection
/// that merely broke meanwhile is none of that.
fn is_wrong_encryption(error: &tokio_postgres::Error) -> bool {
    if !error.to_string().starts_with("error performing TLS handshake") {
        return false;
    }
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(broken) = error.downcast_ref::<std::io::Error>() {
            return broken.kind() == std::io::ErrorKind::InvalidData;
        }
        cause = error.source();
    }
    true
}

/// Refuses a server by its `server_version_num`.
fn check_version(number: &str) -> Result<(), OpenError> {
    let version: i32 = number.parse().unwrap_or_default();
    if version < OLDEST { Err(OpenError::TooOld { found: version / 10_000 }) } else { Ok(()) }
}

/// Whether a server that refuses a connection with this code may take it a moment later: it starts, stops or recovers, or has
/// no connection left.
fn is_passing(code: &str) -> bool {
    code.starts_with("57") || code == "53300"
}

pub(crate) fn random_uuid() -> Result<Uuid, OpenError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| OpenError::Computer(error.to_string()))?;
    Ok(uuid::Builder::from_random_bytes(bytes).into_uuid())
}

type Messages = dyn FnMut(&mut Context<'_>) -> Poll<Option<Result<AsyncMessage, tokio_postgres::Error>>> + Send;

/// A connection that was checked.
pub(crate) struct DatabaseSession {
    client: Client,
    messages: Box<Messages>,
    statements: Vec<(&'static str, Statement)>,
    /// The reason why nothing can be asked any more.
    lost: Option<String>,
}

/// The answer, and the messages beside it.
#[derive(Debug)]
pub(crate) struct QueryAnswer {
    pub(crate) rows: Vec<Row>,
    pub(crate) warning: Option<String>,
}

impl DatabaseSession {
    fn new<S, T>(client: Client, mut connection: tokio_postgres::Connection<S, T>) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let messages = Box::new(move |context: &mut Context<'_>| connection.poll_message(context));
        Self { client, messages, statements: Vec::new(), lost: None }
    }

    /// Refuses a server on which a commit is not what it should be, and a connection that is not ours alone.
    async fn check(&mut self, mark: &str) -> Result<(), OpenError> {
        let refused = |failure| match failure {
            RequestFailure::NotConnected(error) => error,
            RequestFailure::Refused { cause } | RequestFailure::Full { cause } | RequestFailure::Unknown { cause } => {
                OpenError::Refused(cause)
            }
        };
        self.batch(NEWER_SETTINGS).await.map_err(refused)?;
        // Without a prepared statement: a pooler may have lost it by the time it is carried out.
        let asked = answered(&mut self.messages, &mut self.lost, self.client.simple_query(CHECK)).await;
        let (messages, _) = asked.map_err(refused)?;
        let row = messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let row = row.ok_or_else(|| OpenError::Refused("it does not show its settings".into()))?;
        check_version(row.get(0).unwrap_or_default())?;
        if row.get(1) != Some(mark) {
            return Err(OpenError::Pooler("it ignores the options of a new connection".into()));
        }
        if row.get(2) != Some("on") {
            return Err(OpenError::NotSynced);
        }
        for (at, (name, wanted)) in (3_usize..).zip(WANTED) {
            let found = row.get(at).unwrap_or_default();
            if found != wanted {
                return Err(OpenError::NotForced { name, found: found.to_owned(), wanted });
            }
        }
        Ok(())
    }

    /// Whether the session was lost while nobody asked anything.
    pub(crate) async fn is_lost(&mut self) -> bool {
        if self.lost.is_none() {
            // What came while nobody waited is seen once the runtime has asked the kernel.
            tokio::task::yield_now().await;
            let messages = &mut self.messages;
            self.lost = poll_fn(|context| Poll::Ready(hear(messages, context, &mut None))).await;
        }
        self.lost.is_some()
    }

    /// Asks one statement, which is prepared when it is first asked.
    pub(crate) async fn query(
        &mut self,
        text: &'static str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<QueryAnswer, RequestFailure> {
        let known = self.statements.iter().find(|(known, _)| core::ptr::eq(*known, text));
        let statement = match known {
            Some((_, statement)) => statement.clone(),
            None => {
                let prepared = answered(&mut self.messages, &mut self.lost, self.client.prepare(text)).await;
                // It was not carried out.
                let (statement, _) = prepared.map_err(|failure| match failure {
                    RequestFailure::Unknown { cause } => RequestFailure::NotConnected(OpenError::Unreachable(cause)),
                    refused => refused,
                })?;
                self.statements.push((text, statement.clone()));
                statement
            }
        };
        let asked = answered(&mut self.messages, &mut self.lost, self.client.query(&statement, params)).await;
        asked.map(|(rows, warning)| QueryAnswer { rows, warning })
    }

    /// Carries out several statements, without parameters, as one transaction.
    pub(crate) async fn batch(&mut self, text: &str) -> Result<Option<String>, RequestFailure> {
        let asked = answered(&mut self.messages, &mut self.lost, self.client.batch_execute(text)).await;
        asked.map(|((), warning)| warning)
    }
}

impl fmt::Debug for DatabaseSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("lost", &self.lost).finish_non_exhaustive()
    }
}

/// Polls the messages and the question until the question is answered, that is by `ReadyForQuery`, or the connection is lost.
async fn answered<T>(
    messages: &mut Messages,
    lost: &mut Option<String>,
    question: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<(T, Option<String>), RequestFailure> {
    let mut question = pin!(question);
    let mut warning = None;
    let answer = poll_fn(|context| {
        if lost.is_none() {
            *lost = hear(messages, context, &mut warning);
        }
        match (question.as_mut().poll(context), &*lost) {
            (Poll::Ready(answer), _) => Poll::Ready(answer.map_err(|error| RequestFailure::of(&error))),
            (Poll::Pending, Some(cause)) => Poll::Ready(Err(RequestFailure::Unknown { cause: cause.clone() })),
            (Poll::Pending, None) => Poll::Pending,
        }
    });
    answer.await.map(|answer| (answer, warning))
}

/// Takes up what the server says by itself; says why if it will say no more.
fn hear(messages: &mut Messages, context: &mut Context<'_>, warning: &mut Option<String>) -> Option<String> {
    loop {
        match messages(context) {
            Poll::Ready(Some(Ok(AsyncMessage::Notice(notice)))) if is_warning(&notice) => {
                let detail = notice.detail().map(|detail| format!(" ({detail})")).unwrap_or_default();
                *warning = Some(format!("{}{detail}", notice.message()));
            }
            Poll::Ready(Some(Ok(_))) => {}
            Poll::Ready(Some(Err(error))) => return Some(told(&error)),
            Poll::Ready(None) => return Some("the connection was closed".into()),
            Poll::Pending => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_before_15_are_refused_by_their_version() {
        for (number, refused) in
            [("150000", None), ("180001", None), ("149999", Some(14)), ("90624", Some(9)), ("", Some(0))]
        {
            let expected = refused.map_or(Ok(()), |found| Err(OpenError::TooOld { found }));
            assert_eq!(check_version(number), expected, "{number}");
        }
    }

    #[test]
    fn a_server_that_starts_or_is_full_may_take_a_connection_later() {
        for (code, passes) in [("57P03", true), ("57P01", true), ("53300", true), ("28P01", false), ("3D000", false)] {
            assert_eq!(is_passing(code), passes, "{code}");
        }
    }
}
