//! An outbox that publishes to JetStream.

use core::time::Duration;
use std::error::Error;

use async_nats::connection::State;
use async_nats::header::{HeaderMap, HeaderName, HeaderValue, NATS_MESSAGE_ID};
use async_nats::jetstream::context::{PublishAckFuture, PublishError as NatsError, PublishErrorKind};
use async_nats::jetstream::{self, Context, ErrorCode};
use async_nats::{Client, ConnectOptions};
use onward_outbox::{PublishError, Publisher, Row};
use tokio::time::{Instant, timeout_at};

/// The time that the server has to acknowledge a message.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(5);

/// Messages that are sent before answers are waited for. The client allows for a few thousand.
const IN_FLIGHT: usize = 1_000;

/// The header that carries a row's key.
const KEY: &str = "Onward-Key";

/// Publishes each row to JetStream: its topic is the subject, which a stream must take; its `dedup` is the `Nats-Msg-Id`, by
/// which the stream drops what it has seen within its window of duplicates; its key is the header `Onward-Key`.
pub fn publisher(client: Client) -> NatsPublisher {
    let mut context = jetstream::new(client.clone());
    context.set_timeout(ACKNOWLEDGED_WITHIN);
    NatsPublisher { client, context }
}

/// A publisher as [`publisher`] makes it, by a URL. A server that is not up yet is waited for, while rows are.
pub async fn publisher_at(url: &str) -> Result<NatsPublisher, async_nats::ConnectError> {
    ConnectOptions::new().retry_on_initial_connect().name("onward-outbox").connect(url).await.map(publisher)
}

/// See [`publisher`].
#[derive(Clone, Debug)]
pub struct NatsPublisher {
    client: Client,
    context: Context,
}

impl Publisher for NatsPublisher {
    async fn publish(&self, rows: &[Row]) -> Vec<Result<(), PublishError>> {
        if self.client.connection_state() != State::Connected {
            // What is published now would be kept in memory, and sent whenever there is a connection.
            return vec![Err(PublishError::Unavailable("there is no connection to NATS".into())); rows.len()];
        }
        let mut answers = Vec::with_capacity(rows.len());
        for some in rows.chunks(IN_FLIGHT) {
            self.publish_some(some, &mut answers).await;
        }
        let works = answers.iter().any(Result::is_ok) || self.answers().await;
        answers.into_iter().map(|answer| answer.map_err(|error| blamed(error, works))).collect()
    }
}

impl NatsPublisher {
    /// First all are sent, and then all answers are waited for: no two of them are of the same key.
    async fn publish_some(&self, rows: &[Row], answers: &mut Vec<Result<(), Failed>>) {
        let mut sent = Vec::with_capacity(rows.len());
        for row in rows {
            sent.push(self.send(row).await);
        }
        let deadline = Instant::now() + ACKNOWLEDGED_WITHIN;
        for one in sent {
            answers.push(match one {
                Ok(acknowledgement) => match timeout_at(deadline, acknowledgement).await {
                    Ok(answer) => answer.map(drop).map_err(Failed::Nats),
                    Err(_) => Err(Failed::Nats(NatsError::new(PublishErrorKind::TimedOut))),
                },
                Err(error) => Err(error),
            });
        }
    }

    async fn send(&self, row: &Row) -> Result<PublishAckFuture, Failed> {
        let headers = headers(row).map_err(Failed::Row)?;
        let sent = self.context.publish_with_headers(row.topic.clone(), headers, row.payload.clone().into()).await;
        sent.map_err(Failed::Nats)
    }

    /// Whether JetStream answers at all.
    async fn answers(&self) -> bool {
        tokio::time::timeout(ACKNOWLEDGED_WITHIN, self.context.query_account()).await.is_ok_and(|asked| asked.is_ok())
    }
}

enum Failed {
    Row(String),
    Nats(NatsError),
}

/// The error with its blame. A subject that no stream takes is the row's fault only if JetStream works: a server that
/// is just starting answers the same.
fn blamed(error: Failed, works: bool) -> PublishError {
    let error = match error {
        Failed::Row(why) => return PublishError::Refused(why),
        Failed::Nats(error) => error,
    };
    let answer = error.source().and_then(|source| source.downcast_ref::<jetstream::Error>());
    let is_too_large = answer.is_some_and(|answer| {
        [ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM, ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM]
            .contains(&answer.error_code())
    });
    let cause = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    let is_invalid = cause.contains("invalid subject");
    let why = format!("{error}{cause}");
    match error.kind() {
        PublishErrorKind::StreamNotFound if works => PublishError::Refused(
            "no stream takes this subject: make one, or mend the topic, and replay the row".into(),
        ),
        PublishErrorKind::MaxPayloadExceeded => PublishError::Refused(why),
        PublishErrorKind::Other if is_too_large || is_invalid => PublishError::Refused(why),
        _ => PublishError::Unavailable(why),
    }
}

fn headers(row: &Row) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    let given = row.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    for (name, value) in given.chain(row.key.iter().map(|key| (KEY, key.as_str()))) {
        let unfit = || format!("the header `{name}` cannot be a header of NATS");
        let value: HeaderValue = value.parse().map_err(|_| unfit())?;
        headers.insert(name.parse::<HeaderName>().map_err(|_| unfit())?, value);
    }
    headers.insert(NATS_MESSAGE_ID, row.dedup.to_string().as_str());
    Ok(headers)
}
