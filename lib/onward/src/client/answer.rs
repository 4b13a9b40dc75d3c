//! What the node answered: a reading of it, and the text itself.

use core::ops::Deref;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::error::CallError;

/// An answer as a type that says what this version knows of it, and as the text that came, in which a newer node may
/// have said more.
#[derive(Clone, Debug)]
pub struct NodeAnswer<T> {
    value: T,
    text: Box<RawValue>,
}

impl<T: DeserializeOwned> NodeAnswer<T> {
    pub(super) fn read(text: &[u8]) -> Result<Self, CallError> {
        let unreadable = |error: serde_json::Error| CallError::Unreadable(error.to_string());
        let text = if text.is_empty() { b"null" } else { text };
        Ok(Self {
            value: serde_json::from_slice(text).map_err(unreadable)?,
            text: serde_json::from_slice(text).map_err(unreadable)?,
        })
    }
}

impl<T> NodeAnswer<T> {
    /// The text of the answer as it came.
    pub fn text(&self) -> &RawValue {
        &self.text
    }

    pub fn into_value(self) -> T {
        self.value
    }

    pub fn into_parts(self) -> (T, Box<RawValue>) {
        (self.value, self.text)
    }
}

impl<T> Deref for NodeAnswer<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// The end of what an attempt has printed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AttemptOutput {
    /// Bytes before these that are not kept.
    pub skipped: u64,
    pub bytes: Bytes,
}
