//! Words out of lists that may grow: verdicts, outcomes, reasons, codes.

use core::fmt;
use core::ops::Deref;
use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// A word out of a list that only its writer knows to the end. The node writes its own constants; a client keeps
/// whatever came, so that a word of a newer node breaks nothing.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Word(Cow<'static, str>);

impl Word {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Deref for Word {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Word {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl core::borrow::Borrow<str> for Word {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl From<&'static str> for Word {
    fn from(word: &'static str) -> Self {
        Self(Cow::Borrowed(word))
    }
}

impl From<String> for Word {
    fn from(word: String) -> Self {
        Self(Cow::Owned(word))
    }
}

impl PartialEq<str> for Word {
    fn eq(&self, other: &str) -> bool {
        &*self.0 == other
    }
}

impl PartialEq<&str> for Word {
    fn eq(&self, other: &&str) -> bool {
        &*self.0 == *other
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}
