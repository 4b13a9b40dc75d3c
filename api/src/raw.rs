//! JSON of other people, as it was written.

use core::ops::Deref;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

/// A payload or a result: JSON that is passed on to the digit, and need not fit into any type of ours. Two are equal if
/// they were written the same.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Raw(Box<RawValue>);

impl Raw {
    pub fn of(value: &(impl Serialize + ?Sized)) -> Result<Self, serde_json::Error> {
        to_raw_value(value).map(Self)
    }
}

impl Deref for Raw {
    type Target = RawValue;

    fn deref(&self) -> &RawValue {
        &self.0
    }
}

impl From<Box<RawValue>> for Raw {
    fn from(json: Box<RawValue>) -> Self {
        Self(json)
    }
}

impl PartialEq for Raw {
    fn eq(&self, other: &Self) -> bool {
        self.0.get() == other.0.get()
    }
}
