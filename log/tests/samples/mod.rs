//! Events of every kind, drawn from a seed.

use core::time::Duration;
use std::sync::Arc;

use onward_core::carried::CarriedFields;
use onward_core::event::{
    Event, ExtensionDecided, GateOrigin, HandedOut, JobSubmitted, NextState, RetryOf, ScheduleSet, ScheduledRun,
    StampedEvent, Verb, Via, WorkflowRef,
};
use onward_core::fence::{AttemptFence, GateEpoch, Term};
use onward_core::grant::{Denial, ExtensionReason, Fraction, MalformedRequest};
use onward_core::ids::{Claim, Incarnation, JobId, Name, Seq, WorkerId};
use onward_core::job::end::JobEnd;
use onward_core::job::fingerprint::Fingerprint;
use onward_core::job::spec::{ConcurrencyLimit, Extras, Keys, Workflows};
use onward_core::job::{
    Ending, JobSpec, JobState, OnStuck, Outline, Policy, Retry, Start, TimeoutPolicy, WorkflowSpec, WorkflowState,
};
use onward_core::manager::{JobRecord, KeyExpiry, ScheduleRecord, SnapshotHead, SnapshotRecord};
use onward_core::payload::{Digest, Payload};
use onward_core::refusal::RefusalKind;
use onward_core::schedule::{MissedPolicy, Overlap, Record, RecordReason, Records, Timing};
use onward_core::state::{
    AttemptImage, EndedAttempt, GateTie, HandExtension, JobImage, JobMore, KeyRecord, Ledger, LedgerEntry, LedgerFact,
    LocalTimeout, PastImage, RecordCounts, Schedule, SchedulePlan, WorkerRecord, WorkflowImage,
};
use onward_core::time::Wall;
use onward_core::timeout::TimeoutReason;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

pub struct Draw(ChaCha8Rng);

impl Draw {
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.next_u64() % bound
    }

    pub fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    pub fn bytes(&mut self, at_most: u64) -> Vec<u8> {
        let length = self.below(at_most + 1) as usize;
        let mut bytes = vec![0; length];
        self.0.fill_bytes(&mut bytes);
        bytes
    }

    /// Small ones often, the largest too.
    pub fn number(&mut self) -> u64 {
        let bits = self.below(65) as u32;
        self.0.next_u64().checked_shr(64 - bits).unwrap_or(0)
    }

    fn one_of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize].clone()
    }

    fn maybe<T>(&mut self, some: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.chance(2) { Some(some(self)) } else { None }
    }

    fn list<T>(&mut self, at_most: u64, mut item: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(at_most + 1)).map(|_| item(self)).collect()
    }

    fn text(&mut self) -> String {
        let length = 1 + self.below(30);
        (0..length).map(|_| self.one_of(&['a', 'Z', '0', ' ', '/', 'ß', '語', '🦀'])).collect()
    }

    fn name(&mut self) -> Name {
        Name::new(self.text()).expect("short and printable")
    }

    fn worker(&mut self) -> WorkerId {
        WorkerId::new(self.text()).expect("short and printable")
    }

    fn job_id(&mut self) -> JobId {
        JobId::from_u128(u128::from(self.0.next_u64()) << 64 | u128::from(self.0.next_u64()))
    }

    fn wall(&mut self) -> Wall {
        Wall::from_ms(self.number())
    }

    fn span(&mut self) -> Duration {
        match self.below(3) {
            0 => Duration::from_millis(self.below(1 << 40)),
            1 => Duration::new(self.number(), self.below(1_000_000_000) as u32),
            _ => Duration::ZERO,
        }
    }

    fn index(&mut self) -> u16 {
        self.below(1 << 16) as u16
    }

    fn claim(&mut self) -> Claim {
        Claim { job: self.job_id(), workflow: self.index(), fence: AttemptFence::from_raw(self.number()) }
    }

    fn workflow(&mut self) -> WorkflowRef {
        WorkflowRef { job: self.job_id(), workflow: self.index() }
    }

    fn payload(&mut self, at_most: u64) -> Payload {
        let bytes = self.bytes(at_most);
        if self.chance(3) { Payload::stored(Digest::of(&bytes), self.number() as u32) } else { bytes.into() }
    }

    fn limit(&mut self) -> ConcurrencyLimit {
        ConcurrencyLimit { key: self.name(), max: self.number() as u32, ordered: self.chance(3) }
    }

    fn spec(&mut self) -> JobSpec {
        let workflow = |draw: &mut Self| {
            let (name, kind, payload) = (draw.name(), draw.name(), draw.payload(300));
            let (content_type, after) = (draw.maybe(Self::name), draw.list(3, Self::index).into());
            WorkflowSpec { outline: Outline { name, kind, content_type, after }.into(), payload }
        };
        let workflows = Workflows::new(self.list(3, workflow));
        let policy = Policy {
            queue: self.name(),
            limits: self.list(2, Self::limit).into(),
            timeout: self.span(),
            stuck_after: self.span(),
            max_extension: self.span(),
            start: match self.below(3) {
                0 => Start::AtOnce,
                1 => Start::After(self.span()),
                _ => Start::At(self.wall()),
            },
            retry: Retry { max_attempts: self.number() as u32, base: self.span(), max: self.span() },
            priority: self.below(256) as u8 as i8,
            on_stuck: self.one_of(&[OnStuck::Retry, OnStuck::TimeOut]),
            require_progress: self.chance(2),
        };
        JobSpec {
            policy: policy.into(),
            workflows,
            keys: self
                .maybe(|draw| Box::new(Keys { unique: draw.maybe(Self::name), idempotency: draw.maybe(Self::name) })),
            extras: self.maybe(|draw| {
                Box::new(Extras {
                    tags: draw.list(2, Self::name).into(),
                    headers: draw.list(2, |draw| (draw.name(), draw.text().into())).into(),
                    retain: draw.maybe(Self::span),
                    datacenters: draw.list(2, Self::name).into(),
                    timeout_policy: draw.one_of(&[TimeoutPolicy::Any, TimeoutPolicy::Majority, TimeoutPolicy::All]),
                    carried: draw.carried(),
                })
            }),
        }
    }

    /// Field 2000 of a newer version, now and then.
    fn carried(&mut self) -> CarriedFields {
        let value = self.bytes(20);
        let entry = [&[0xa0, 0x1f, value.len() as u8], &value[..]].concat();
        if self.chance(3) { CarriedFields(entry.into()) } else { CarriedFields::default() }
    }

    fn ending(&mut self) -> Ending {
        match self.below(10) {
            0 => Ending::Succeeded { result: self.payload(200) },
            1 => {
                let error: Arc<str> = self.text().into();
                Ending::Failed { error, retryable: self.chance(2), delay: self.maybe(Self::span) }
            }
            2 => Ending::Released { delay: self.maybe(Self::span) },
            3 => Ending::LeaseExpired,
            4 => Ending::Stuck,
            5 => Ending::Evicted,
            6 => Ending::Crashed,
            7 => Ending::NeverArrived,
            8 => Ending::Cancelled,
            _ => Ending::TimedOut,
        }
    }

    fn then(&mut self) -> NextState {
        let until = self.wall();
        self.one_of(&[
            NextState::Succeeded,
            NextState::Ready,
            NextState::Delayed { until },
            NextState::Failed,
            NextState::TimedOut,
            NextState::Cancelled,
        ])
    }

    fn denial(&mut self) -> Denial {
        self.one_of(&[
            Denial::UnknownWorker,
            Denial::Malformed(MalformedRequest::ProgressOutOfRange),
            Denial::Malformed(MalformedRequest::UnknownReason),
            Denial::StaleAttempt,
            Denial::WorkerSuspect,
            Denial::WorkerEvicted,
            Denial::WorkerGrantsSpent,
            Denial::AttemptGrantsSpent,
            Denial::NoProgress,
        ])
    }

    fn decided(&mut self) -> ExtensionDecided {
        use ExtensionReason::{GcPause, LongWorkflow, ResourceContention};
        ExtensionDecided {
            worker: self.worker(),
            claims: self.list(3, Self::claim),
            reason: self.maybe(|draw| draw.one_of(&[LongWorkflow, GcPause, ResourceContention])),
            progress: self.one_of(&[0.0, 0.25, 1.0, -0.0, f64::INFINITY, 1e-300]),
            result: if self.chance(2) { Ok(self.span()) } else { Err(self.denial()) },
            live_until: self.wall(),
            repeats: self.number() as u32,
            incarnation: self.maybe(Self::incarnation),
        }
    }

    fn fence(&mut self) -> AttemptFence {
        AttemptFence::from_raw(self.number())
    }

    fn incarnation(&mut self) -> Incarnation {
        Incarnation::new(self.text()).expect("short and printable")
    }

    fn via(&mut self) -> Via {
        if self.chance(2) { Via::Session } else { Via::Http { poll: self.maybe(Self::name) } }
    }

    fn fingerprint(&mut self) -> Fingerprint {
        Fingerprint(self.job_id().as_u128().to_ne_bytes())
    }

    fn epoch(&mut self) -> GateEpoch {
        GateEpoch { n: self.number(), gate: self.number() }
    }

    fn reason(&mut self) -> ExtensionReason {
        self.one_of(&[ExtensionReason::LongWorkflow, ExtensionReason::GcPause, ExtensionReason::ResourceContention])
    }

    /// A fact of the variant with this number in the ledger's list.
    fn fact(&mut self, variant: u64) -> LedgerFact {
        let (workflow, progress) = (self.index(), self.one_of(&[0.0, 0.5, f64::INFINITY]));
        match variant {
            0 => LedgerFact::Granted {
                worker: self.worker(),
                by: self.span(),
                reason: self.maybe(Self::reason),
                progress,
            },
            1 => LedgerFact::Denied {
                worker: self.worker(),
                denial: self.denial(),
                reason: self.maybe(Self::reason),
                progress,
            },
            2 => LedgerFact::ExtendedByHand { by: self.span(), reason: self.text().into(), request: self.name() },
            3 => LedgerFact::QuietBegan { workflow, allowed: self.span() },
            4 => LedgerFact::QuietEnded { workflow, used: self.span() },
            5 => LedgerFact::AttemptEnded { workflow, fence: self.fence(), ending: self.ending().kind() },
            6 => LedgerFact::TimedOut { reason: self.timeout_reason(), epoch: self.maybe(Self::epoch) },
            7 => LedgerFact::CancelAsked { epoch: self.maybe(Self::epoch) },
            8 => LedgerFact::Refused {
                workflow,
                fence: self.fence(),
                verb: self.one_of(&[Verb::Beat, Verb::Succeed, Verb::Fail, Verb::Release, Verb::RequestExtension]),
                refusal: self.one_of(&RefusalKind::ALL),
            },
            9 => LedgerFact::LocallyTimedOut { reason: self.timeout_reason() },
            10 => LedgerFact::LocalTimeoutOver,
            11 => LedgerFact::GateAnswered,
            12 => LedgerFact::TimeGiven { until: self.wall() },
            _ => LedgerFact::ExtensionsReported { grants: self.span(), by_hand: self.span() },
        }
    }

    fn timeout_reason(&mut self) -> TimeoutReason {
        self.one_of(&[TimeoutReason::Overall, TimeoutReason::Stuck])
    }

    fn workflow_image(&mut self) -> WorkflowImage {
        use WorkflowState::{Cancelled, Cancelling, Delayed, Failed, Ready, Running, Succeeded, TimedOut, Waiting};
        let states = [Waiting, Delayed, Ready, Running, Cancelling, Succeeded, Failed, Cancelled, TimedOut];
        WorkflowImage {
            state: self.one_of(&states),
            counted: self.number() as u32,
            handouts: self.number() as u32,
            last_fence: self.fence(),
            ready_at: self.wall(),
            due_at: self.wall(),
            wall_due: self.chance(2),
            predecessors_left: self.index(),
            past: self.maybe(|draw| PastImage {
                attempts: draw.list(3, |draw| EndedAttempt {
                    number: draw.number() as u32,
                    fence: draw.fence(),
                    worker: draw.worker(),
                    started_at: draw.wall(),
                    ended_at: draw.wall(),
                    ending: draw.ending(),
                    refused: draw.number() as u32,
                    note: draw.maybe(|draw| draw.name().as_str().into()),
                }),
                dropped: draw.number() as u32,
                checkpoint: draw.maybe(|draw| draw.bytes(100).into()),
            }),
            attempt: self.maybe(|draw| AttemptImage {
                worker: draw.worker(),
                incarnation: draw.incarnation(),
                via: draw.via(),
                handed_at: draw.wall(),
                lease: draw.span(),
                grants: draw.number() as u32,
                last_grant_progress: draw
                    .maybe(|draw| Fraction::new(draw.one_of(&[0.0, 0.25, 1.0])).expect("a fraction")),
                quiet: draw.maybe(|draw| (draw.wall(), draw.span())),
                quiet_used: draw.span(),
                mark: draw.maybe(|draw| (draw.number(), draw.maybe(Self::number))),
                granted_until: draw.wall(),
            }),
        }
    }

    pub fn image(&mut self) -> JobImage {
        JobImage {
            id: self.job_id(),
            spec: self.spec(),
            created_at: self.wall(),
            started_at: self.maybe(Self::wall),
            ended_at: self.maybe(Self::wall),
            cancel_asked: self.chance(2),
            timed_out: self.maybe(|draw| draw.one_of(&[TimeoutReason::Overall, TimeoutReason::Stuck])),
            more: self.maybe(|draw| {
                Box::new(JobMore {
                    extensions: draw.span(),
                    epoch: draw.maybe(Self::epoch),
                    retry_of: draw.maybe(Self::job_id),
                    retried_as: draw.list(2, |draw| (draw.name(), draw.job_id())),
                    ledger: Ledger {
                        entries: (0..14)
                            .map(|n| LedgerEntry { at: draw.wall(), what: draw.fact(n), times: draw.number() as u32 })
                            .collect(),
                        dropped: draw.number(),
                    },
                    died: draw.maybe(|draw| Seq(draw.number())),
                    scheduled: draw.maybe(|draw| Box::new(draw.run())),
                    gate: draw.maybe(|draw| Box::new(draw.tie())),
                    by_hand: draw.list(2, |draw| HandExtension {
                        request: draw.name(),
                        by: draw.span(),
                        total: draw.span(),
                    }),
                    took_over: draw.list(2, |draw| (draw.name(), draw.chance(2))),
                    carried: draw.carried(),
                })
            }),
            fingerprint: self.maybe(Self::fingerprint),
            workflows: self.list(3, Self::workflow_image),
        }
    }

    /// Records of every kind.
    pub fn records(&mut self) -> Vec<SnapshotRecord> {
        let head = SnapshotHead {
            term: Term::new(self.number()),
            newest: self.wall(),
            seq: Seq(self.number()),
            turn: self.number(),
            jobs: self.number(),
            keys: self.number(),
            workers: self.list(3, |draw| {
                let record = WorkerRecord {
                    grants: draw.number() as u32,
                    granted: draw.maybe(|draw| (draw.incarnation(), draw.wall())),
                    evictions: draw.number() as u32,
                    evicted: draw.maybe(|draw| (draw.incarnation(), draw.wall())),
                    probation: draw.chance(2),
                    drained: draw.chance(2),
                    replaced: draw.list(2, Self::incarnation),
                    taken_until: draw.wall(),
                    evicted_without_session: draw.chance(2),
                    incarnation: draw.maybe(Self::incarnation),
                    carried: draw.carried(),
                };
                (draw.worker(), record)
            }),
            paused: self.list(2, Self::name),
            schedules: self.number(),
        };
        let mut records = vec![SnapshotRecord::Head(Box::new(head))];
        for _ in 0..4 {
            let (image, turns) = (self.image(), self.list(3, Self::number));
            records.push(SnapshotRecord::Job(Box::new(JobRecord { image, turns })));
            let record = KeyRecord { job: self.job_id(), fingerprint: self.fingerprint() };
            records.push(SnapshotRecord::Key(KeyExpiry { expires_at: self.wall(), key: self.name(), record }));
        }
        records
            .push(SnapshotRecord::Schedule(Box::new(ScheduleRecord { name: self.name(), schedule: self.schedule() })));
        records
    }

    fn run(&mut self) -> ScheduledRun {
        ScheduledRun { schedule: self.name(), due: self.wall(), reason: self.schedule_reason() }
    }

    fn schedule_reason(&mut self) -> RecordReason {
        let refused = RecordReason::Refused(self.one_of(&RefusalKind::ALL));
        self.one_of(&[
            RecordReason::OnTime,
            RecordReason::CaughtUp,
            RecordReason::Queued,
            RecordReason::RunNow,
            RecordReason::StillRunning,
            RecordReason::QueueFull,
            RecordReason::TooManyOpen,
            RecordReason::Paused,
            refused,
            RecordReason::Superseded,
            RecordReason::Late,
        ])
    }

    fn plan(&mut self) -> SchedulePlan {
        let timing = match self.chance(2) {
            true => Timing::Cron { expression: self.text().into(), zone: self.text().into() },
            false => Timing::Every(self.span()),
        };
        SchedulePlan {
            timing,
            job: self.spec(),
            overlap: self.one_of(&Overlap::ALL),
            missed: self.one_of(&MissedPolicy::ALL),
            jitter: self.span(),
            critical: self.chance(2),
        }
    }

    fn schedule(&mut self) -> Schedule {
        let record = |draw: &mut Self| Record {
            due: draw.wall(),
            last: draw.wall(),
            count: draw.number(),
            reason: draw.schedule_reason(),
            at: draw.wall(),
            job: draw.maybe(Self::job_id),
            outcome: draw.maybe(|draw| draw.one_of(&JobState::ALL)),
        };
        Schedule {
            plan: Arc::new(self.plan()),
            paused: self.chance(2),
            created_at: self.wall(),
            revision: Seq(self.number()),
            horizon: self.wall(),
            waiting: self.list(3, Self::wall).into(),
            open: self.list(3, Self::job_id),
            records: Records { list: self.list(4, record).into(), dropped: self.number() },
            counts: RecordCounts { fired: self.number(), skipped: self.number(), missed: self.number() },
            failures: self.index().into(),
            failing_since: self.maybe(Self::wall),
            carried: self.carried(),
        }
    }

    fn tie(&mut self) -> GateTie {
        let local = self.maybe(|draw| LocalTimeout {
            reason: draw.one_of(&[TimeoutReason::Overall, TimeoutReason::Stuck]),
            at: draw.wall(),
            stuck: draw.maybe(Self::claim),
        });
        GateTie { waited: self.span(), local, answered_at: self.wall(), until: self.wall() }
    }

    fn job_end(&mut self) -> JobEnd {
        JobEnd { dead: self.chance(2), key_until: self.wall() }
    }

    /// An event of the variant with this number in [`variant`].
    pub fn event(&mut self, variant: usize) -> Event {
        let verbs = [Verb::Beat, Verb::Succeed, Verb::Fail, Verb::Release, Verb::RequestExtension];
        match variant {
            0 => Event::TermBegan { term: Term::new(self.number()) },
            1 => Event::JobSubmitted(JobSubmitted {
                id: self.job_id(),
                spec: Arc::new(self.spec()),
                fingerprint: self.maybe(|draw| Fingerprint(draw.job_id().as_u128().to_ne_bytes())),
                retry_of: self.maybe(|draw| RetryOf { job: draw.job_id(), request: draw.name() }),
                taken_over: self.list(2, Self::index).into(),
                scheduled: self.maybe(|draw| Box::new(draw.run())),
                gate: self.maybe(|draw| Box::new(GateOrigin { epoch: draw.epoch(), waited: draw.span() })),
            }),
            2 => Event::WorkflowDue(self.workflow()),
            3 => Event::HandedOut(HandedOut {
                workflow: self.workflow(),
                fence: AttemptFence::from_raw(self.number()),
                worker: self.worker(),
                incarnation: Incarnation::new(self.text()).expect("short and printable"),
                lease: self.span(),
                via: if self.chance(2) { Via::Session } else { Via::Http { poll: self.maybe(Self::name) } },
            }),
            4 => Event::AttemptEnded {
                claim: self.claim(),
                ending: self.ending(),
                then: self.then(),
                end: self.maybe(Self::job_end),
                note: self.maybe(|draw| draw.name().as_str().into()),
            },
            5 => Event::CancelAsked {
                job: self.job_id(),
                epoch: self.maybe(|draw| GateEpoch { n: draw.number(), gate: draw.number() }),
                end: self.maybe(Self::job_end),
            },
            6 => Event::JobTimedOut {
                job: self.job_id(),
                reason: self.one_of(&[TimeoutReason::Overall, TimeoutReason::Stuck]),
                end: self.maybe(Self::job_end),
                epoch: self.maybe(Self::epoch),
            },
            7 => Event::QuietBegan { claim: self.claim(), allowed: self.span() },
            8 => Event::QuietEnded { claim: self.claim(), used: self.span() },
            9 => Event::Checkpointed { claim: self.claim(), data: self.bytes(500).into() },
            10 => {
                Event::ProgressMarked { claim: self.claim(), watermark: self.number(), total: self.maybe(Self::number) }
            }
            11 => Event::ExtensionDecided(Box::new(self.decided())),
            12 => Event::JobExtended {
                job: self.job_id(),
                by: self.span(),
                reason: self.text().into(),
                request: self.name(),
            },
            13 => Event::ClaimRefused {
                claim: self.claim(),
                verb: self.one_of(&verbs),
                refusal: self.one_of(&RefusalKind::ALL),
            },
            14 => Event::WorkerEvicted {
                worker: self.worker(),
                incarnation: Incarnation::new(self.text()).expect("short and printable"),
                readmit_at: self.wall(),
                taken_until: self.wall(),
                without_session: self.chance(2),
            },
            15 => Event::ProbationBegan { worker: self.worker() },
            16 => Event::ProbationEnded { worker: self.worker() },
            17 => Event::GrantsReset { worker: self.worker() },
            18 => Event::WorkerDrained { worker: self.worker() },
            19 => Event::WorkerUndrained { worker: self.worker() },
            20 => Event::WorkerForgotten { worker: self.worker() },
            21 => Event::QueuePaused { queue: self.name() },
            22 => Event::QueueResumed { queue: self.name() },
            23 => Event::DeadLetterDropped { job: self.job_id() },
            24 => Event::JobsArchived { jobs: self.list(4, Self::job_id) },
            25 => Event::KeysExpired { keys: self.list(4, Self::name) },
            26 => Event::IncarnationReplaced {
                worker: self.worker(),
                old: Incarnation::new(self.text()).expect("short and printable"),
            },
            27 => Event::IncarnationSeen { worker: self.worker(), incarnation: self.incarnation() },
            28 => Event::ScheduleSet(Box::new(ScheduleSet {
                schedule: self.name(),
                plan: Arc::new(self.plan()),
                paused: self.chance(2),
                horizon: self.wall(),
            })),
            29 => Event::ScheduleRemoved { schedule: self.name() },
            30 => Event::SchedulePaused { schedule: self.name() },
            31 => Event::ScheduleResumed { schedule: self.name() },
            32 => Event::InstantsPassed {
                schedule: self.name(),
                reason: self.schedule_reason(),
                first: self.wall(),
                last: self.wall(),
                count: self.number(),
            },
            33 => Event::InstantWaits { schedule: self.name(), due: self.wall() },
            34 => Event::LocallyTimedOut {
                job: self.job_id(),
                reason: self.one_of(&[TimeoutReason::Overall, TimeoutReason::Stuck]),
                stuck: self.maybe(Self::claim),
            },
            35 => Event::LocalTimeoutOver { job: self.job_id() },
            36 => Event::GateAnswered { job: self.job_id() },
            37 => Event::TimeGiven { job: self.job_id(), until: self.wall() },
            38 => Event::JobWithdrawn { job: self.job_id(), key_until: self.wall() },
            _ => panic!("there are {VARIANTS} variants"),
        }
    }

    fn stamped_of(&mut self, variants: usize) -> StampedEvent {
        let variant = self.below(variants as u64) as usize;
        StampedEvent { at: self.wall(), event: self.event(variant) }
    }

    /// An event of each variant.
    pub fn every_event(&mut self) -> Vec<StampedEvent> {
        (0..VARIANTS).map(|variant| StampedEvent { at: self.wall(), event: self.event(variant) }).collect()
    }

    pub fn batch(&mut self, at_most: u64) -> Vec<StampedEvent> {
        self.batch_of(VARIANTS, at_most)
    }

    /// A batch of the first variants only, as of the time when there were no others.
    pub fn batch_of(&mut self, variants: usize, at_most: u64) -> Vec<StampedEvent> {
        (0..=self.below(at_most)).map(|_| self.stamped_of(variants)).collect()
    }
}

pub const VARIANTS: usize = 39;

/// A variant that core gains does not compile until it has a number here, and fails until it has a sample above.
pub const fn variant(event: &Event) -> usize {
    match event {
        Event::TermBegan { .. } => 0,
        Event::JobSubmitted(_) => 1,
        Event::WorkflowDue(_) => 2,
        Event::HandedOut(_) => 3,
        Event::AttemptEnded { .. } => 4,
        Event::CancelAsked { .. } => 5,
        Event::JobTimedOut { .. } => 6,
        Event::QuietBegan { .. } => 7,
        Event::QuietEnded { .. } => 8,
        Event::Checkpointed { .. } => 9,
        Event::ProgressMarked { .. } => 10,
        Event::ExtensionDecided(_) => 11,
        Event::JobExtended { .. } => 12,
        Event::ClaimRefused { .. } => 13,
        Event::WorkerEvicted { .. } => 14,
        Event::ProbationBegan { .. } => 15,
        Event::ProbationEnded { .. } => 16,
        Event::GrantsReset { .. } => 17,
        Event::WorkerDrained { .. } => 18,
        Event::WorkerUndrained { .. } => 19,
        Event::WorkerForgotten { .. } => 20,
        Event::QueuePaused { .. } => 21,
        Event::QueueResumed { .. } => 22,
        Event::DeadLetterDropped { .. } => 23,
        Event::JobsArchived { .. } => 24,
        Event::KeysExpired { .. } => 25,
        Event::IncarnationReplaced { .. } => 26,
        Event::IncarnationSeen { .. } => 27,
        Event::ScheduleSet(_) => 28,
        Event::ScheduleRemoved { .. } => 29,
        Event::SchedulePaused { .. } => 30,
        Event::ScheduleResumed { .. } => 31,
        Event::InstantsPassed { .. } => 32,
        Event::InstantWaits { .. } => 33,
        Event::LocallyTimedOut { .. } => 34,
        Event::LocalTimeoutOver { .. } => 35,
        Event::GateAnswered { .. } => 36,
        Event::TimeGiven { .. } => 37,
        Event::JobWithdrawn { .. } => 38,
    }
}
