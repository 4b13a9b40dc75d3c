//! The engines of this crate, asked what every engine is asked.

use onward_log::conformance::Bed;
use onward_log::{EmbeddedLog, MemoryLog, conformance_tests};

conformance_tests!(memory, Memory);
conformance_tests!(embedded, EmbeddedBed);
conformance_tests!(small_halves, SmallHalves);

struct Memory(MemoryLog);

impl Bed for Memory {
    type Log = MemoryLog;
    fn new() -> Self {
        Self(MemoryLog::new())
    }
    fn handle(&self) -> MemoryLog {
        self.0.clone()
    }
    /// The same log: it lives in this process, and another handle survives.
    fn restart(self) -> Self {
        Self(self.0.clone())
    }
}

struct EmbeddedBed {
    log: EmbeddedLog,
    folder: tempfile::TempDir,
}

impl Bed for EmbeddedBed {
    type Log = EmbeddedLog;
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { log: EmbeddedLog::open(folder.path()).unwrap(), folder }
    }
    fn handle(&self) -> EmbeddedLog {
        self.log.clone()
    }
    fn restart(self) -> Self {
        let Self { log, folder } = self;
        drop(log);
        Self { log: EmbeddedLog::open(folder.path()).unwrap(), folder }
    }
}

/// A log with halves of the journal that take a batch or two, so that rows lie in either file.
struct SmallHalves {
    log: EmbeddedLog,
    open: Box<dyn Fn() -> EmbeddedLog>,
}

impl Bed for SmallHalves {
    type Log = EmbeddedLog;
    fn new() -> Self {
        let open = Box::new(crate::storage::in_memory(512));
        Self { log: open(), open }
    }
    fn handle(&self) -> EmbeddedLog {
        self.log.clone()
    }
    fn restart(self) -> Self {
        let Self { log, open } = self;
        drop(log);
        Self { log: open(), open }
    }
}
