//! The specification of a job, checked: the form in which it is stored, from the first format on.

use core::fmt;
use core::ops::{Deref, DerefMut};
use core::slice::from_ref;
use core::time::Duration;
use std::sync::Arc;

use prefetch_index::prefetch_index;

use crate::carried::CarriedFields;
use crate::ids::Name;
use crate::payload::Payload;
use crate::time::Wall;

/// A checked submission. Millions of these lie in memory: what is the same in many is shared, what few have is boxed.
#[derive(Clone, PartialEq, Debug)]
pub struct JobSpec {
    /// The policy for the job; reads like fields of the specification itself.
    pub policy: Arc<Policy>,
    pub workflows: Workflows,
    pub keys: Option<Box<Keys>>,
    pub extras: Option<Box<Extras>>,
}

/// Fields that jobs of one sort have in common.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Policy {
    pub queue: Name,
    pub limits: Arc<[ConcurrencyLimit]>,
    pub timeout: Duration,
    pub stuck_after: Duration,
    /// Bound on what all extensions together may add to `timeout`.
    pub max_extension: Duration,
    pub start: Start,
    pub retry: Retry,
    /// −100..=100, higher first.
    pub priority: i8,
    pub on_stuck: OnStuck,
    pub require_progress: bool,
}

impl Policy {
    /// Has it brought into the caches, all three lines of memory, and does not wait for it.
    pub fn prefetch(&self) {
        prefetch_index(from_ref(&self.timeout), 0);
        prefetch_index(from_ref(&self.retry), 0);
        prefetch_index(from_ref(&self.queue), 0);
    }
}

impl Deref for JobSpec {
    type Target = Policy;

    #[inline]
    fn deref(&self) -> &Policy {
        &self.policy
    }
}

/// The workflows of a job. Nearly all have one, which then lies with the rest.
#[derive(Clone, PartialEq, Debug)]
pub enum Workflows {
    One([WorkflowSpec; 1]),
    Many(Box<[WorkflowSpec]>),
}

impl Workflows {
    pub fn new(mut list: Vec<WorkflowSpec>) -> Self {
        match list.pop() {
            Some(only) if list.is_empty() => Self::One([only]),
            Some(last) => {
                list.push(last);
                Self::Many(list.into())
            }
            None => Self::Many(Box::default()),
        }
    }
}

impl Deref for Workflows {
    type Target = [WorkflowSpec];

    #[inline]
    fn deref(&self) -> &[WorkflowSpec] {
        match self {
            Self::One(one) => one,
            Self::Many(many) => many,
        }
    }
}

impl DerefMut for Workflows {
    fn deref_mut(&mut self) -> &mut [WorkflowSpec] {
        match self {
            Self::One(one) => one,
            Self::Many(many) => many,
        }
    }
}

#[derive(Clone, PartialEq)]
pub struct WorkflowSpec {
    /// The workflow apart from its payload; reads like fields of the specification itself.
    pub outline: Arc<Outline>,
    pub payload: Payload,
}

/// Fields that the same workflow of many jobs has in common.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Outline {
    pub name: Name,
    pub kind: Name,
    pub content_type: Option<Name>,
    /// Indexes of the workflows whose success this one waits for; sorted, without repeats, never itself.
    pub after: Arc<[u16]>,
}

/// Shown as one record: what is shared is an affair of memory.
impl fmt::Debug for WorkflowSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { outline, payload } = self;
        let Outline { name, kind, content_type, after } = &**outline;
        f.debug_struct("WorkflowSpec")
            .field("name", name)
            .field("kind", kind)
            .field("payload", payload)
            .field("content_type", content_type)
            .field("after", after)
            .finish()
    }
}

impl Deref for WorkflowSpec {
    type Target = Outline;

    #[inline]
    fn deref(&self) -> &Outline {
        &self.outline
    }
}

/// A limit of `max` running workflows that carry `key`. Where those that run and the next one differ, the smallest
/// counts.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ConcurrencyLimit {
    pub key: Name,
    pub max: u32,
    /// Kept from the first hand-out to the end, backoff included, so that nobody overtakes between two attempts. Only with
    /// a `max` of 1.
    pub ordered: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Start {
    AtOnce,
    After(Duration),
    /// Follows the wall clock, not log time.
    At(Wall),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Retry {
    pub max_attempts: u32,
    pub base: Duration,
    pub max: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self { max_attempts: 5, base: Duration::from_secs(1), max: Duration::from_secs(300) }
    }
}

/// The meaning of a stuck attempt's end for its job.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum OnStuck {
    #[default]
    Retry,
    TimeOut,
}

/// The number of datacenters that must report stuck before a gate times the job out for all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TimeoutPolicy {
    #[default]
    Any,
    Majority,
    All,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Keys {
    /// A key that one non-terminal job carries at a time.
    pub unique: Option<Name>,
    /// The same submission again answers the same job.
    pub idempotency: Option<Name>,
}

/// Passed through to the handler; `traceparent` among them.
pub type Headers = Arc<[(Name, Box<str>)]>;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Extras {
    pub tags: Box<[Name]>,
    pub headers: Headers,
    pub retain: Option<Duration>,
    pub datacenters: Box<[Name]>,
    pub timeout_policy: TimeoutPolicy,
    pub carried: CarriedFields,
}

impl JobSpec {
    pub fn unique_key(&self) -> Option<&Name> {
        self.keys.as_ref()?.unique.as_ref()
    }

    pub fn idempotency_key(&self) -> Option<&Name> {
        self.keys.as_ref()?.idempotency.as_ref()
    }

    pub fn headers(&self) -> Headers {
        self.extras.as_ref().map_or_else(Headers::default, |extras| extras.headers.clone())
    }

    pub fn tags(&self) -> &[Name] {
        self.extras.as_ref().map_or(&[], |extras| &extras.tags)
    }
}
