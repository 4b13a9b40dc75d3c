//! An outbox that publishes to JetStream.

use core::time::Duration;
use std::collections::HashMap;
use std::error::Error;

use async_nats::connection::State;
use async_nats::header::{HeaderMap, HeaderName, HeaderValue, NATS_MESSAGE_ID};
use async_nats::jetstream::context::{
    GetStreamByNameErrorKind, PublishAckFuture, PublishError as NatsError, PublishErrorKind,
};
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
        let mut takers = HashMap::new();
        let mut blamed_all = Vec::with_capacity(rows.len());
        for (row, answer) in rows.iter().zip(answers) {
            blamed_all.push(match answer {
                Ok(()) => Ok(()),
                Err(error) => {
                    let taker = match error.needs_taker() {
                        true => self.taker(&mut takers, &row.topic).await,
                        false => Taker::Unknown,
                    };
                    Err(blamed(error, taker))
                }
            });
        }
        blamed_all
    }
}

impl NatsPublisher {
    /// First all are sent, and then all answers are waited for: no two of them are of the same key.
    async fn publish_some(&self, rows: &[Row], answers: &mut Vec<Result<(), PublishFailure>>) {
        let mut sent = Vec::with_capacity(rows.len());
        for row in rows {
            sent.push(self.send(row).await);
        }
        let deadline = Instant::now() + ACKNOWLEDGED_WITHIN;
        for one in sent {
            answers.push(match one {
                Ok(acknowledgement) => match timeout_at(deadline, acknowledgement).await {
                    Ok(answer) => answer.map(drop).map_err(PublishFailure::Nats),
                    Err(_) => Err(PublishFailure::Nats(NatsError::new(PublishErrorKind::TimedOut))),
                },
                Err(error) => Err(error),
            });
        }
    }

    async fn send(&self, row: &Row) -> Result<PublishAckFuture, PublishFailure> {
        let headers = headers(row).map_err(PublishFailure::Row)?;
        let sent = self.context.publish_with_headers(row.topic.clone(), headers, row.payload.clone().into()).await;
        sent.map_err(PublishFailure::Nats)
    }

    /// Asks whether there is a stream for this subject. While JetStream does not answer, it is asked once.
    async fn taker(&self, known: &mut HashMap<String, Taker>, subject: &str) -> Taker {
        if let Some(taker) = known.get(subject) {
            return *taker;
        }
        if known.values().any(|taker| *taker == Taker::Unknown) {
            return Taker::Unknown;
        }
        let asked = tokio::time::timeout(ACKNOWLEDGED_WITHIN, self.context.stream_by_subject(subject)).await;
        let taker = match asked {
            Ok(Ok(_)) => Taker::Stream,
            Ok(Err(error)) if error.kind() == GetStreamByNameErrorKind::NotFound => Taker::Nobody,
            Ok(Err(_)) | Err(_) => Taker::Unknown,
        };
        known.insert(subject.to_owned(), taker);
        taker
    }
}

enum PublishFailure {
    Row(String),
    Nats(NatsError),
}

impl PublishFailure {
    /// Nobody answered on the subject.
    fn needs_taker(&self) -> bool {
        matches!(self, Self::Nats(error) if error.kind() == PublishErrorKind::StreamNotFound)
    }
}

/// The stream that takes a subject, by its settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Taker {
    Stream,
    Nobody,
    /// JetStream did not say.
    Unknown,
}

/// The error with its blame. Nobody answers for a subject that no stream takes, which is the row's fault; and for one whose
/// stream has no leader just now or whose server is only starting, which is not.
fn blamed(error: PublishFailure, taker: Taker) -> PublishError {
    let error = match error {
        PublishFailure::Row(why) => return PublishError::Refused(why),
        PublishFailure::Nats(error) => error,
    };
    let answer = error.source().and_then(|source| source.downcast_ref::<jetstream::Error>());
    let is_too_large = answer.is_some_and(|answer| {
        [ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM, ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM]
            .contains(&answer.error_code())
    });
    let cause = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    let is_invalid = cause.contains("invalid subject");
    let why = format!("{error}{cause}");
    match (error.kind(), taker) {
        (PublishErrorKind::StreamNotFound, Taker::Nobody) => PublishError::Refused(
            "no stream takes this subject: make one, or mend the topic, and replay the row".into(),
        ),
        (PublishErrorKind::StreamNotFound, Taker::Stream) => {
            PublishError::Unavailable("the stream of this subject does not answer; it may have no leader".into())
        }
        (PublishErrorKind::MaxPayloadExceeded, _) => PublishError::Refused(why),
        (PublishErrorKind::Other, _) if is_too_large || is_invalid => PublishError::Refused(why),
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

#[cfg(test)]
mod tests {
    use async_nats::jetstream::stream::Config;
    use futures_util::StreamExt;
    use onward_testkit::NatsServer as Server;

    use super::*;

    async fn publish(publisher: &NatsPublisher, row: Row) -> Result<(), PublishError> {
        publisher.publish(&[row]).await.remove(0)
    }

    #[tokio::test]
    async fn a_row_is_to_blame_for_what_it_is_and_for_nothing_else() {
        let server = Server::start().unwrap();
        let publisher = publisher(async_nats::connect(server.url()).await.unwrap());
        let stream = Config {
            name: "ORDERS".into(),
            subjects: vec!["orders.>".into()],
            max_message_size: 1_000,
            ..Config::default()
        };
        publisher.context.create_stream(stream).await.unwrap();
        let row = || Row::new("orders.paid").key("a");
        // what is published -> why it is refused
        let table = [
            (row(), None),
            (row().payload(vec![0; 900]), None),
            (row().payload(vec![0; 1_100]), Some("message size exceeds maximum allowed")),
            (row().payload(vec![0; 2 << 20]), Some("max payload")),
            (row().header("broken\r\nname", "x"), Some("cannot be a header of NATS")),
            (row().header("name", "broken\r\nvalue"), Some("cannot be a header of NATS")),
            (row().key("broken\r\nkey"), Some("`Onward-Key` cannot be a header of NATS")),
            (Row::new("orders paid"), Some("invalid subject")),
            (Row::new("invoices.paid"), Some("no stream takes this subject")),
        ];
        let rows: Vec<Row> = table.iter().map(|(row, _)| row.clone()).collect();
        for (answer, (row, refused)) in publisher.publish(&rows).await.into_iter().zip(table) {
            match (&answer, refused) {
                (Ok(()), None) => {}
                (Err(PublishError::Refused(why)), Some(part)) if why.contains(part) => {}
                _ => panic!("{} {:?}: {answer:?} and not {refused:?}", row.topic, row.key),
            }
        }
        server.server().kill();
        while publisher.client.connection_state() == State::Connected {
            tokio::task::yield_now().await;
        }
        let answer = publish(&publisher, Row::new("invoices.paid")).await;
        assert!(matches!(answer, Err(PublishError::Unavailable(_))), "{answer:?}");
    }

    /// A stand-in for a cluster: whoever answers for its streams says that there is one, and the stream itself is silent.
    #[tokio::test]
    async fn a_stream_without_a_leader_is_no_fault_of_the_row() {
        let server = Server::start().unwrap();
        let client = async_nats::connect(server.url()).await.unwrap();
        for (answer, is_refused) in [
            (r#"{"total":1,"offset":0,"limit":1024,"streams":["ORDERS"]}"#, false),
            (r#"{"error":{"code":503,"err_code":10008,"description":"system temporarily unavailable"}}"#, false),
            (r#"{"total":0,"offset":0,"limit":1024,"streams":null}"#, true),
        ] {
            let mut questions = client.subscribe("CLUSTER.API.STREAM.NAMES").await.unwrap();
            let answering = client.clone();
            let cluster = tokio::spawn(async move {
                while let Some(question) = questions.next().await {
                    answering.publish(question.reply.unwrap(), answer.into()).await.unwrap();
                }
            });
            let context = jetstream::with_prefix(client.clone(), "CLUSTER.API");
            let publisher = NatsPublisher { client: client.clone(), context };
            let answered = publish(&publisher, Row::new("orders.paid")).await;
            assert_eq!(matches!(answered, Err(PublishError::Refused(_))), is_refused, "{answer}: {answered:?}");
            cluster.abort();
            assert!(cluster.await.is_err());
        }
        let publisher = NatsPublisher { client: client.clone(), context: jetstream::with_prefix(client, "NOBODY.API") };
        let answered = publish(&publisher, Row::new("orders.paid")).await;
        assert!(matches!(answered, Err(PublishError::Unavailable(_))), "{answered:?}");
    }
}
