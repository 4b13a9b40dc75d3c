//! The class of a datacenter, as a gate sees it; the worst that applies wins.
//!
//! | what | class |
//! |---|---|
//! | no live manager, or no worker | Unhealthy |
//! | fewer than a majority of managers live, or ready; any manager stuck; fewer than a majority of workers Healthy or Busy | Degraded |
//! | no free slot | Busy |
//! | else | Healthy |
//!
//! Full is Busy, never worse: a full datacenter works as hard as it can. Trusted is what its managers reported last;
//! how long that may be is decided by their liveness.

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum DatacenterClass {
    Unhealthy,
    Degraded,
    Busy,
    Healthy,
}

impl DatacenterClass {
    pub const fn code(self) -> &'static str {
        match self {
            Self::Unhealthy => "unhealthy",
            Self::Degraded => "degraded",
            Self::Busy => "busy",
            Self::Healthy => "healthy",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum DatacenterReason {
    NoLiveManager,
    NoWorker,
    TooFewManagersLive,
    TooFewManagersReady,
    ManagerStuck,
    TooFewWorkersWell,
    NoFreeSlot,
    AllWell,
}

impl DatacenterReason {
    pub const fn code(self) -> &'static str {
        match self {
            Self::NoLiveManager => "no_live_manager",
            Self::NoWorker => "no_worker",
            Self::TooFewManagersLive => "too_few_managers_live",
            Self::TooFewManagersReady => "too_few_managers_ready",
            Self::ManagerStuck => "manager_stuck",
            Self::TooFewWorkersWell => "too_few_workers_well",
            Self::NoFreeSlot => "no_free_slot",
            Self::AllWell => "all_well",
        }
    }

    pub const fn class(self) -> DatacenterClass {
        match self {
            Self::NoLiveManager | Self::NoWorker => DatacenterClass::Unhealthy,
            Self::TooFewManagersLive | Self::TooFewManagersReady | Self::ManagerStuck | Self::TooFewWorkersWell => {
                DatacenterClass::Degraded
            }
            Self::NoFreeSlot => DatacenterClass::Busy,
            Self::AllWell => DatacenterClass::Healthy,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DatacenterCounts {
    pub managers: u32,
    pub managers_live: u32,
    /// Live and ready.
    pub managers_ready: u32,
    /// Live and stuck.
    pub managers_stuck: u32,
    pub workers: u32,
    /// Workers whose verdict is Healthy or Busy.
    pub workers_healthy_or_busy: u32,
    pub free_slots: u64,
}

pub const fn datacenter(counts: &DatacenterCounts) -> (DatacenterClass, DatacenterReason) {
    let reason = reason(counts);
    (reason.class(), reason)
}

/// The reason of a class, from the worst to the best.
const fn reason(c: &DatacenterCounts) -> DatacenterReason {
    if c.managers_live == 0 {
        DatacenterReason::NoLiveManager
    } else if c.workers == 0 {
        DatacenterReason::NoWorker
    } else if !majority(c.managers_live, c.managers) {
        DatacenterReason::TooFewManagersLive
    } else if !majority(c.managers_ready, c.managers) {
        DatacenterReason::TooFewManagersReady
    } else if c.managers_stuck > 0 {
        DatacenterReason::ManagerStuck
    } else if !majority(c.workers_healthy_or_busy, c.workers) {
        DatacenterReason::TooFewWorkersWell
    } else if c.free_slots == 0 {
        DatacenterReason::NoFreeSlot
    } else {
        DatacenterReason::AllWell
    }
}

const fn majority(part: u32, whole: u32) -> bool {
    part > whole.saturating_sub(part)
}

/// The order in which datacenters are tried: Healthy, Busy, Degraded, never Unhealthy. Inside a class as they came.
/// Where none is left the job waits, and says so.
pub fn route_order<K>(datacenters: impl IntoIterator<Item = (K, DatacenterClass)>) -> Vec<K> {
    let mut open: Vec<_> = datacenters.into_iter().filter(|(_, class)| *class != DatacenterClass::Unhealthy).collect();
    open.sort_by_key(|(_, class)| core::cmp::Reverse(*class));
    open.into_iter().map(|(key, _)| key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use DatacenterClass::*;
    use DatacenterReason::*;

    #[test]
    fn the_worst_that_applies_wins() {
        // managers: all, live, ready, stuck; workers: all, healthy or busy; free slots
        let table = [
            ((3, 3, 3, 0), (4, 4), 8, Healthy, AllWell),
            ((3, 2, 2, 0), (4, 3), 1, Healthy, AllWell),
            ((1, 1, 1, 0), (1, 1), 1, Healthy, AllWell),
            ((3, 3, 3, 0), (4, 4), 0, Busy, NoFreeSlot),
            ((3, 2, 2, 0), (4, 3), 0, Busy, NoFreeSlot),
            ((3, 3, 3, 0), (4, 2), 8, Degraded, TooFewWorkersWell),
            ((3, 3, 3, 0), (4, 2), 0, Degraded, TooFewWorkersWell),
            ((3, 3, 3, 1), (4, 4), 8, Degraded, ManagerStuck),
            ((3, 3, 1, 0), (4, 4), 8, Degraded, TooFewManagersReady),
            ((4, 3, 2, 0), (4, 4), 8, Degraded, TooFewManagersReady),
            ((4, 2, 2, 0), (4, 4), 8, Degraded, TooFewManagersLive),
            ((3, 1, 1, 0), (4, 4), 0, Degraded, TooFewManagersLive),
            ((3, 3, 3, 0), (0, 0), 0, Unhealthy, NoWorker),
            ((3, 1, 0, 1), (0, 0), 0, Unhealthy, NoWorker),
            ((3, 0, 0, 0), (4, 4), 8, Unhealthy, NoLiveManager),
            ((0, 0, 0, 0), (0, 0), 0, Unhealthy, NoLiveManager),
        ];
        for (managers, workers, free_slots, class, reason) in table {
            let counts = DatacenterCounts {
                managers: managers.0,
                managers_live: managers.1,
                managers_ready: managers.2,
                managers_stuck: managers.3,
                workers: workers.0,
                workers_healthy_or_busy: workers.1,
                free_slots,
            };
            assert_eq!(datacenter(&counts), (class, reason), "{counts:?}");
        }
    }

    #[test]
    fn healthy_then_busy_then_degraded_and_never_unhealthy() {
        let all = [("a", Degraded), ("b", Unhealthy), ("c", Healthy), ("d", Busy), ("e", Healthy), ("f", Busy)];
        assert_eq!(route_order(all), ["c", "e", "d", "f", "a"]);
        assert!(route_order([("b", Unhealthy)]).is_empty());
    }
}
