//! Figures of a job that are shown beside its health, and fail nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use onward_core::schedule::RecordKind;
use onward_core::time::Wall;

use crate::input::ReadinessInput;
use crate::supervisor::Supervisor;

/// Records that this process has written since it started, and the next due instant that it knows.
#[derive(Debug, Default)]
pub(super) struct Figures {
    fired: AtomicU64,
    skipped: AtomicU64,
    missed: AtomicU64,
    /// In milliseconds since 1970; 0 if there is none.
    next_due_ms: AtomicU64,
}

type FigureReader = fn(&Figures) -> Option<f64>;

/// By the names that they have behind the job's.
const ALL: [(&str, FigureReader); 4] = [
    ("fired", |figures| Some(figures.fired.load(Relaxed) as f64)),
    ("skipped", |figures| Some(figures.skipped.load(Relaxed) as f64)),
    ("missed", |figures| Some(figures.missed.load(Relaxed) as f64)),
    ("next_due_seconds", |figures| {
        let ms = figures.next_due_ms.load(Relaxed);
        (ms > 0).then_some(ms as f64 / 1_000.0)
    }),
];

impl Figures {
    pub(super) fn add(&self, kind: RecordKind, instants: u64) {
        let count = match kind {
            RecordKind::Fired => &self.fired,
            RecordKind::Skipped => &self.skipped,
            RecordKind::Missed => &self.missed,
        };
        count.fetch_add(instants, Relaxed);
    }

    pub(super) fn set_next_due(&self, due: Option<Wall>) {
        self.next_due_ms.store(due.map_or(0, Wall::as_ms), Relaxed);
    }

    pub(super) fn show(self: &Arc<Self>, job: &str, service: &Supervisor) {
        for (name, read) in ALL {
            service.add_input(Figure { name: format!("{job}.{name}"), figures: Arc::clone(self), read });
        }
    }
}

struct Figure {
    name: String,
    figures: Arc<Figures>,
    read: FigureReader,
}

impl ReadinessInput for Figure {
    fn name(&self) -> &str {
        &self.name
    }

    fn is_critical(&self) -> bool {
        false
    }

    fn problem(&self) -> Option<String> {
        None
    }

    fn value(&self) -> Option<f64> {
        (self.read)(&self.figures)
    }
}
