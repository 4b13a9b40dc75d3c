//! Names of things. All of them are cheap to clone, and none can be taken for another.

use core::fmt;
use std::sync::Arc;

use crate::fence::AttemptFence;
use crate::intern::SharedValue;
use crate::time::Wall;

/// A job's id: a UUIDv7, so that ids sort by the time of submission.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(u128);

impl JobId {
    /// The randomness comes from outside, as everywhere in core.
    pub fn v7(submitted: Wall, random: u128) -> Self {
        let mut bytes = [0u8; 10];
        bytes.copy_from_slice(&random.to_be_bytes()[6..]);
        Self(uuid::Builder::from_unix_timestamp_millis(submitted.as_ms(), &bytes).into_uuid().as_u128())
    }

    pub const fn from_u128(raw: u128) -> Self {
        Self(raw)
    }

    pub const fn as_u128(self) -> u128 {
        self.0
    }

    pub fn parse(text: &str) -> Option<Self> {
        uuid::Uuid::try_parse(text).ok().map(|id| Self(id.as_u128()))
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        uuid::Uuid::from_u128(self.0).hyphenated().fmt(f)
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Text that is empty, too long or holds control characters names nothing.
            pub fn new(text: impl Into<Arc<str>>) -> Option<Self> {
                let text = text.into();
                is_name(&text).then_some(Self(text))
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl SharedValue for $name {
            fn is_shared(&self) -> bool {
                self.0.is_shared()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl core::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

text_id! {
    /// The name of a queue, a kind, a workflow, a key or a tag.
    Name
}
text_id! {
    /// The name of a worker; stays the same over its restarts.
    WorkerId
}
text_id! {
    /// A life of a node: opaque, and a new one replaces the old.
    Incarnation
}

pub const MAX_NAME_BYTES: usize = 128;

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= MAX_NAME_BYTES && !text.chars().any(char::is_control)
}

/// A worker's connection to this process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId(pub u64);

/// A stream between a datacenter's leader and a gate, as this process calls it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamId(pub u64);

/// A call that waits for its answer in this process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

/// The caller, as the shell tells its callers apart, for shares of what is limited. The default is nobody in
/// particular.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ClientId(pub u64);

/// Position of an event in the log; 0 is before the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Seq(pub u64);

/// The right to speak for one attempt: what a receipt proves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Claim {
    pub job: JobId,
    pub workflow: u16,
    pub fence: AttemptFence,
}

/// Opaque bytes of a user that lie in memory.
pub type Bytes = Arc<[u8]>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_ids_are_version_7_and_sort_by_time() {
        let id = JobId::v7(Wall::from_ms(1_700_000_000_000), u128::MAX);
        let text = id.to_string();
        assert_eq!(text.len(), 36);
        assert_eq!(&text[14..15], "7");
        assert_eq!(JobId::parse(&text), Some(id));
        assert!(JobId::v7(Wall::from_ms(1), u128::MAX) < JobId::v7(Wall::from_ms(2), 0));
        assert_eq!(JobId::parse("nonsense"), None);
    }

    #[test]
    fn names_are_bounded_and_printable() {
        for bad in ["", "a\nb", "\u{7f}", &"x".repeat(MAX_NAME_BYTES + 1)] {
            assert_eq!(Name::new(bad), None, "{bad:?}");
        }
        for good in ["a", "emails/high", "größe", &"x".repeat(MAX_NAME_BYTES)] {
            assert!(Name::new(good).is_some(), "{good:?}");
        }
    }
}
