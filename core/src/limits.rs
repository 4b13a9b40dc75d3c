//! A limit on everything that grows, and the name that a user sees when one is met.

use core::fmt;

macro_rules! limits {
    ($($(#[$doc:meta])* $field:ident: $variant:ident = $default:expr, $text:expr;)*) => {
        /// Every bound in one place. All are settings.
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct Limits { $($(#[$doc])* pub $field: usize,)* }

        /// The limit that was met.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Limit { $($variant,)* }

        impl Limit {
            pub const ALL: &'static [Limit] = &[$(Limit::$variant,)*];

            pub const fn describe(self) -> &'static str {
                match self { $(Limit::$variant => $text,)* }
            }
        }

        impl Default for Limits {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl Limits {
            pub const fn of(&self, limit: Limit) -> usize {
                match limit { $(Limit::$variant => self.$field,)* }
            }

            /// Every limit with its value, as `onward config` prints them.
            pub fn listed(&self) -> impl Iterator<Item = (&'static str, usize)> + '_ {
                [$((stringify!($field), self.$field),)*].into_iter()
            }

            /// Refuses when `count` is more than `limit` allows.
            pub const fn check(&self, limit: Limit, count: usize) -> Result<(), LimitMet> {
                let max = self.of(limit);
                if count > max { Err(LimitMet { limit, max }) } else { Ok(()) }
            }
        }
    };
}

limits! {
    jobs: Jobs = 10_000_000, "jobs kept in memory (open, or ended and not yet archived)";
    batch_jobs: BatchJobs = 10_000, "jobs in one submission";
    workflows_per_job: WorkflowsPerJob = 1_000, "workflows in one job";
    dependencies_per_job: DependenciesPerJob = 10_000, "dependencies in one job";
    payload_bytes: PayloadBytes = 1 << 20, "bytes of one payload";
    result_bytes: ResultBytes = 1 << 20, "bytes of one result";
    checkpoint_bytes: CheckpointBytes = 64 << 10, "bytes of one checkpoint";
    error_bytes: ErrorBytes = 4 << 10, "bytes of an error text";
    note_bytes: NoteBytes = 256, "bytes of a progress note or reason";
    tags_per_job: TagsPerJob = 16, "tags of one job";
    headers_per_job: HeadersPerJob = 32, "headers of one job";
    header_bytes: HeaderBytes = 8 << 10, "bytes of all headers of one job";
    limits_per_job: LimitsPerJob = 8, "concurrency limits of one job";
    shelves: Shelves = 200_000, "distinct combinations of queue, kind and priority in use";
    limit_keys: LimitKeys = 1_000_000, "concurrency limit keys in use";
    paused_queues: PausedQueues = 10_000, "paused queues";
    workers: Workers = 2_000_000, "workers tracked";
    worker_slots: WorkerSlots = 100_000, "slots of one worker";
    subscription_pairs: SubscriptionPairs = 10_000, "combinations of queue and kind in one subscription";
    subscriptions: Subscriptions = 10_000, "distinct subscriptions in use";
    subscriptions_per_client: SubscriptionsPerClient = 2_500, "distinct subscriptions brought in by one token or address";
    frame_items: FrameItems = 10_000, "items in one frame or call";
    open_polls: OpenPolls = 100_000, "polls waiting for work";
    poll_leases: PollLeases = 1_000, "leases in one poll";
    dead_letters: DeadLetters = 100_000, "dead letters kept";
    idempotency_keys: IdempotencyKeys = 10_000_000, "idempotency keys remembered";
    extensions_per_job: ExtensionsPerJob = 1_000, "extensions of one job by hand";
    retries_per_job: RetriesPerJob = 1_000, "retries of one job while it is in memory";
    schedules: Schedules = 10_000, "schedules";
    schedule_runs: ScheduleRuns = 1_000, "open runs of one schedule when another is asked for by hand";
    datacenters: Datacenters = 256, "datacenters that a gate knows";
    finished_jobs: FinishedJobs = 100_000, "ended jobs that a gate keeps";
    datacenters_per_job: DatacentersPerJob = 64, "target datacenters of one job";
}

/// A limit was met; nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LimitMet {
    pub limit: Limit,
    pub max: usize,
}

impl fmt::Display for LimitMet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {} {}", self.max, self.limit.describe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_refuses_only_above_itself_and_says_which() {
        let limits = Limits { tags_per_job: 2, ..Limits::default() };
        assert_eq!(limits.check(Limit::TagsPerJob, 2), Ok(()));
        let met = limits.check(Limit::TagsPerJob, 3).unwrap_err();
        assert_eq!(met.to_string(), "at most 2 tags of one job");
    }

    #[test]
    fn every_limit_is_listed_with_its_value() {
        let limits = Limits::default();
        assert_eq!(limits.listed().count(), Limit::ALL.len());
        assert!(limits.listed().all(|(_, value)| value > 0));
    }
}
