//! Inputs: what makes a process not ready beside its loops. A dependency that is down, something that has become too old,
//! too many of something.
//!
//! An input fails readiness only: a restart would not help. Whoever has the figure sets it, as a part of its own work; an
//! input asks nobody. It is critical unless it is told otherwise.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onward_core::time::span_ms;
use tokio::time::Instant;

use crate::clock::lock;
use crate::supervisor::{SupervisedItem, Supervisor};

/// Something that readiness depends on.
///
/// It is asked from the eye's own thread several times a second. So it must answer at once: an atomic load or a short
/// lock, never a call to the dependency itself.
pub trait ReadinessInput: Send + Sync + 'static {
    fn name(&self) -> &str;

    fn is_critical(&self) -> bool {
        true
    }

    /// The problem, for people; `None` while the input is tolerated.
    fn problem(&self) -> Option<String>;

    /// The number that a metric shows of the input, if there is one.
    fn value(&self) -> Option<f64> {
        None
    }
}

/// Something that this process needs and does not own: a database, a broker. Up until somebody says that it is down.
#[derive(Clone, Debug)]
pub struct Dependency(Arc<DependencyState>);

#[derive(Debug)]
struct DependencyState {
    name: String,
    critical: AtomicBool,
    down: Mutex<Option<String>>,
}

impl Dependency {
    pub fn new(name: &str) -> Self {
        let name = name.to_owned();
        Self(Arc::new(DependencyState { name, critical: AtomicBool::new(true), down: Mutex::new(None) }))
    }

    /// The dependency is shown, and does not fail readiness.
    pub fn reporting_only(self) -> Self {
        self.0.critical.store(false, Ordering::Relaxed);
        self
    }

    pub fn up(&self) {
        lock(&self.0.down).take();
    }

    pub fn down(&self, why: impl ToString) {
        *lock(&self.0.down) = Some(why.to_string());
    }
}

impl ReadinessInput for Dependency {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn is_critical(&self) -> bool {
        self.0.critical.load(Ordering::Relaxed)
    }

    fn problem(&self) -> Option<String> {
        lock(&self.0.down).as_ref().map(|why| format!("it is down: {why}"))
    }

    fn value(&self) -> Option<f64> {
        Some(if lock(&self.0.down).is_some() { 0.0 } else { 1.0 })
    }
}

/// The age of the oldest of something, and how old it may become. It goes on ageing between two reports.
#[derive(Clone, Debug)]
pub struct Age(Arc<AgeState>);

#[derive(Debug)]
struct AgeState {
    name: String,
    critical: AtomicBool,
    at_most: Duration,
    /// The instant when the oldest item came into being.
    born: Mutex<Option<(Instant, Duration)>>,
}

impl Age {
    pub fn new(name: &str, at_most: Duration) -> Self {
        let born = Mutex::new(None);
        Self(Arc::new(AgeState { name: name.to_owned(), critical: AtomicBool::new(true), at_most, born }))
    }

    /// The age is shown, and does not fail readiness.
    pub fn reporting_only(self) -> Self {
        self.0.critical.store(false, Ordering::Relaxed);
        self
    }

    /// `None` if there is nothing that could be old.
    pub fn set(&self, oldest: Option<Duration>) {
        *lock(&self.0.born) = oldest.map(|age| (Instant::now(), age));
    }

    fn age(&self) -> Option<Duration> {
        lock(&self.0.born).map(|(seen, age)| age.saturating_add(seen.elapsed()))
    }
}

impl ReadinessInput for Age {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn is_critical(&self) -> bool {
        self.0.critical.load(Ordering::Relaxed)
    }

    fn problem(&self) -> Option<String> {
        let age = self.age().filter(|age| *age > self.0.at_most)?;
        Some(format!("the oldest is {:?} old, {:?} is tolerated", whole_ms(age), self.0.at_most))
    }

    fn value(&self) -> Option<f64> {
        Some(self.age().unwrap_or_default().as_secs_f64())
    }
}

/// A number of something, and how many are tolerated.
#[derive(Clone, Debug)]
pub struct Count(Arc<CountState>);

#[derive(Debug)]
struct CountState {
    name: String,
    critical: AtomicBool,
    at_most: u64,
    count: AtomicU64,
}

impl Count {
    pub fn new(name: &str, at_most: u64) -> Self {
        let count = AtomicU64::new(0);
        Self(Arc::new(CountState { name: name.to_owned(), critical: AtomicBool::new(true), at_most, count }))
    }

    /// The count is shown, and does not fail readiness.
    pub fn reporting_only(self) -> Self {
        self.0.critical.store(false, Ordering::Relaxed);
        self
    }

    pub fn set(&self, count: u64) {
        self.0.count.store(count, Ordering::Relaxed);
    }
}

impl ReadinessInput for Count {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn is_critical(&self) -> bool {
        self.0.critical.load(Ordering::Relaxed)
    }

    fn problem(&self) -> Option<String> {
        let count = self.0.count.load(Ordering::Relaxed);
        (count > self.0.at_most).then(|| format!("there are {count}, {} are tolerated", self.0.at_most))
    }

    fn value(&self) -> Option<f64> {
        Some(self.0.count.load(Ordering::Relaxed) as f64)
    }
}

macro_rules! supervised {
    ($($input:ty),*) => {
        $(impl SupervisedItem for $input {
            fn add_to(self, service: &Supervisor) {
                service.add_input(self);
            }
        })*
    };
}
supervised!(Dependency, Age, Count);

pub(crate) fn whole_ms(span: Duration) -> Duration {
    Duration::from_millis(span_ms(span))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_age_goes_on_ageing_until_it_is_told_otherwise() {
        let oldest = Age::new("oldest", Duration::from_secs(300));
        assert_eq!(oldest.problem(), None, "nothing is there");
        oldest.set(Some(Duration::from_secs(200)));
        tokio::time::advance(Duration::from_secs(100)).await;
        assert_eq!(oldest.problem(), None, "300 s are tolerated");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(oldest.problem().unwrap(), "the oldest is 301s old, 300s is tolerated");
        oldest.set(None);
        assert_eq!(oldest.problem(), None);
    }

    #[test]
    fn counts_and_dependencies() {
        let parked = Count::new("parked", 2);
        for (count, problem) in [(0, None), (2, None), (3, Some("there are 3, 2 are tolerated"))] {
            parked.set(count);
            assert_eq!(parked.problem().as_deref(), problem);
        }
        let db = Dependency::new("db");
        assert_eq!(db.problem(), None);
        db.down("connection refused");
        assert_eq!(db.problem().unwrap(), "it is down: connection refused");
        db.up();
        assert_eq!(db.problem(), None);
        assert!(db.is_critical() && !db.reporting_only().is_critical());
    }
}
