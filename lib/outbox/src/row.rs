//! A row of the outbox: what a writer leaves in its own transaction, and what a publisher is given.

use core::time::Duration;
use std::collections::BTreeMap;
use std::fmt::Display;

use serde::Serialize;
use uuid::Uuid;

/// The largest payload that [`enqueue`](crate::enqueue()) takes: as much as a job of Onward carries.
pub const MAX_PAYLOAD_BYTES: usize = 1 << 20;
/// The longest topic or key that [`enqueue`](crate::enqueue()) takes.
pub const MAX_NAME_BYTES: usize = 1_024;

/// A row of the outbox.
///
/// ```
/// use onward_outbox::Row;
///
/// let row = Row::new("orders.paid").key(17).json(serde_json::json!({"order": 17}))?;
/// assert_eq!(row.payload, br#"{"order":17}"#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Row {
    /// The row's place in the table; 0 until it is there.
    pub id: i64,
    /// The same at every attempt, so that a receiver can tell a row that it has seen from a new one.
    pub dedup: Uuid,
    pub topic: String,
    /// Rows of one key are published in the order of their ids.
    pub key: Option<String>,
    pub payload: Vec<u8>,
    pub headers: BTreeMap<String, String>,
    /// The number of times that the row was claimed, this time included.
    pub attempts: u32,
    /// The row's age when it was claimed.
    pub age: Duration,
}

impl Row {
    /// A row without a key and without a payload.
    pub fn new(topic: impl Into<String>) -> Self {
        Self {
            id: 0,
            dedup: random_uuid(),
            topic: topic.into(),
            key: None,
            payload: Vec::new(),
            headers: BTreeMap::new(),
            attempts: 0,
            age: Duration::ZERO,
        }
    }

    /// Rows of the same key keep their order, and wait for each other.
    pub fn key(mut self, key: impl Display) -> Self {
        self.key = Some(key.to_string());
        self
    }

    pub fn payload(mut self, payload: impl Into<Vec<u8>>) -> Self {
        self.payload = payload.into();
        self
    }

    /// The payload, written as JSON.
    pub fn json(mut self, payload: impl Serialize) -> Result<Self, serde_json::Error> {
        self.payload = serde_json::to_vec(&payload)?;
        Ok(self)
    }

    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Instead of a random one: for a writer that has an identity of its own for what happened.
    pub fn dedup(mut self, dedup: Uuid) -> Self {
        self.dedup = dedup;
        self
    }

    /// The headers as they are stored.
    pub(crate) fn headers_json(&self) -> String {
        serde_json::to_string(&self.headers).expect("texts under names are JSON")
    }

    pub(crate) fn check(&self) -> Result<(), RowError> {
        let too_long = |what, bytes: usize, max| Err(RowError::TooLong { what, bytes, max });
        let key_bytes = self.key.as_ref().map_or(0, String::len);
        if self.topic.is_empty() {
            Err(RowError::NoTopic)
        } else if self.topic.len() > MAX_NAME_BYTES {
            too_long("topic", self.topic.len(), MAX_NAME_BYTES)
        } else if key_bytes > MAX_NAME_BYTES {
            too_long("key", key_bytes, MAX_NAME_BYTES)
        } else if self.payload.len() > MAX_PAYLOAD_BYTES {
            too_long("payload", self.payload.len(), MAX_PAYLOAD_BYTES)
        } else {
            Ok(())
        }
    }
}

/// The reason why a row was not written. The transaction is as it was.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RowError {
    #[error("a row needs a topic: `Row::new(\"orders.paid\")`")]
    NoTopic,
    #[error(
        "the {what} of a row has {bytes} bytes, and at most {max} are taken: store it elsewhere, and name the place"
    )]
    TooLong { what: &'static str, bytes: usize, max: usize },
}

/// Headers as another writer may have stored them: values that are no texts become their JSON.
pub(crate) fn read_headers(json: &str) -> BTreeMap<String, String> {
    let fields: BTreeMap<String, serde_json::Value> = serde_json::from_str(json).unwrap_or_default();
    let text = |value| match value {
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    };
    fields.into_iter().map(|(name, value)| (name, text(value))).collect()
}

pub(crate) fn random_uuid() -> Uuid {
    let mut bytes = [0; 16];
    // Without randomness two rows, or two claims, could be taken for one.
    getrandom::fill(&mut bytes).expect("the system gives randomness");
    uuid::Builder::from_random_bytes(bytes).into_uuid()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_carried_is_refused_before_it_is_stored() {
        let row = |topic: &str| Row::new(topic);
        assert_eq!(row("").check(), Err(RowError::NoTopic));
        assert_eq!(row("t").check(), Ok(()));
        assert_eq!(row("t").payload(vec![0; MAX_PAYLOAD_BYTES]).check(), Ok(()));
        let long = |what, bytes, max| Err(RowError::TooLong { what, bytes, max });
        let (name, payload) = (MAX_NAME_BYTES + 1, MAX_PAYLOAD_BYTES + 1);
        assert_eq!(row(&"t".repeat(name)).check(), long("topic", name, MAX_NAME_BYTES));
        assert_eq!(row("t").key("k".repeat(name)).check(), long("key", name, MAX_NAME_BYTES));
        assert_eq!(row("t").payload(vec![0; payload]).check(), long("payload", payload, MAX_PAYLOAD_BYTES));
    }

    #[test]
    fn headers_of_any_writer_become_texts() {
        let found = read_headers(r#"{"traceparent": "00-ab", "n": 7, "list": [1, "x"]}"#);
        let expected = [("traceparent", "00-ab"), ("n", "7"), ("list", r#"[1,"x"]"#)];
        assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
        let row = Row::new("t").header("a", "b\"c");
        assert_eq!(read_headers(&row.headers_json()), row.headers);
    }
}
