//! Everything that an engine needs.

use std::sync::Arc;
use std::time::Duration;

use onward_core::settings::Rules;
use onward_log::{Archive, Error, Log};

use super::{ArchiveRules, Backup, DeliveryLimits, Pacing};
use crate::cluster::{Heirs, Leadership, SoleLeader};
use crate::traces::Exporter;

/// Everything that an engine is started with.
pub struct EngineStart {
    pub rules: Rules,
    /// Gives a handle on the log; asked again for every term.
    pub log: Box<dyn FnMut() -> Result<Box<dyn Log>, Error> + Send>,
    /// Says when to try for the seat.
    pub leadership: Box<dyn Leadership>,
    /// Finds out to whom the seat can be handed over, where others share the log.
    pub heirs: Option<Heirs>,
    /// Where ended jobs go. Without one they stay in memory.
    pub archive: Option<Arc<dyn Archive>>,
    pub archive_rules: ArchiveRules,
    /// Copies what is stored, if that can be done.
    pub backup: Option<Backup>,
    /// The number of events after which a snapshot is due.
    pub snapshot_every: u64,
    pub pacing: Pacing,
    /// The exporter of spans of jobs, if they are exported.
    pub exporter: Option<Exporter>,
    pub delivery: DeliveryLimits,
    /// A loop that is at one thing for this long hangs.
    pub hang_after: Duration,
}

impl EngineStart {
    /// A number of events that are replayed in about a second, which a snapshot would hardly shorten.
    pub const SNAPSHOT_EVERY: u64 = 2_000_000;

    pub const HANG_AFTER: Duration = Duration::from_secs(10);

    /// A start with the defaults for all but what is named.
    pub fn new(rules: Rules, log: impl FnMut() -> Result<Box<dyn Log>, Error> + Send + 'static) -> Self {
        Self {
            rules,
            log: Box::new(log),
            leadership: Box::new(SoleLeader),
            heirs: None,
            archive: None,
            archive_rules: ArchiveRules::default(),
            backup: None,
            snapshot_every: Self::SNAPSHOT_EVERY,
            pacing: Pacing::default(),
            exporter: None,
            delivery: DeliveryLimits::default(),
            hang_after: Self::HANG_AFTER,
        }
    }
}

impl core::fmt::Debug for EngineStart {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Start").finish_non_exhaustive()
    }
}
