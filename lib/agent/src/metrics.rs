//! What calls took, counted by name, in the text that Prometheus reads.

use core::fmt::Write as _;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Names that are counted apart; what comes later is counted as `other`.
const MAX_NAMES: usize = 200;

/// Counts of model and tool calls. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    counts: Arc<Mutex<BTreeMap<(Kind, String), CallCounts>>>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    Model,
    Tool,
}

/// Counts of all calls with one name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CallCounts {
    pub calls: u64,
    pub failed: u64,
    pub time: Duration,
    pub beats: u64,
    /// Extensions of the lease that fell into them.
    pub extensions: u64,
}

impl CallCounts {
    /// Records the result of a call in its span.
    pub(crate) fn record_in(&self, span: &tracing::Span) {
        let duration_ms = u64::try_from(self.time.as_millis()).unwrap_or(u64::MAX);
        span.record("duration_ms", duration_ms).record("beats", self.beats).record("extensions", self.extensions);
    }
}

impl Metrics {
    pub(crate) fn add(&self, kind: Kind, name: &str, one: CallCounts) {
        let mut counts = self.counts.lock().expect("nothing panics while it is held");
        let is_known = counts.len() < MAX_NAMES || counts.contains_key(&(kind, name.to_owned()));
        let all = counts.entry((kind, if is_known { name } else { "other" }.to_owned())).or_default();
        all.calls += one.calls;
        all.failed += one.failed;
        all.time += one.time;
        all.beats += one.beats;
        all.extensions += one.extensions;
    }

    pub fn of(&self, kind: Kind, name: &str) -> CallCounts {
        let counts = self.counts.lock().expect("nothing panics while it is held");
        counts.get(&(kind, name.to_owned())).copied().unwrap_or_default()
    }

    /// The metrics in the text format of Prometheus.
    pub fn render(&self) -> String {
        type Column = (&'static str, fn(&CallCounts) -> f64);
        let columns: [Column; 5] = [
            ("calls_total", |one| one.calls as f64),
            ("calls_failed_total", |one| one.failed as f64),
            ("call_seconds_total", |one| one.time.as_secs_f64()),
            ("call_beats_total", |one| one.beats as f64),
            ("call_extensions_total", |one| one.extensions as f64),
        ];
        let counts = self.counts.lock().expect("nothing panics while it is held").clone();
        let mut text = String::new();
        for (column, value) in columns {
            let _ = writeln!(text, "# TYPE onward_agent_{column} counter");
            for ((kind, name), one) in &counts {
                let kind = if *kind == Kind::Model { "model" } else { "tool" };
                let name = name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                let _ = writeln!(text, "onward_agent_{column}{{kind=\"{kind}\",name=\"{name}\"}} {}", value(one));
            }
        }
        text
    }
}
