//! Arbitrary values of everything that is sent.

use core::time::Duration;
use std::sync::Arc;

use onward_core::fence::{AttemptFence, Term};
use onward_core::grant::{Denial, MalformedRequest};
use onward_core::ids::{Bytes, Claim, ClientId, Incarnation, JobId, Name, WorkerId};
use onward_core::job::draft::{DraftProblem, Invalid};
use onward_core::job::{
    Draft, JobState, LimitDraft, OnStuck, Outline, Retry, TimeoutPolicy, WorkflowDraft, WorkflowSpec,
};
use onward_core::message::{
    Assignment, Beat, BeatAccepted, BeatAnswer, CancelWhy, EndReport, ExtensionAnswer, ExtensionRequest, FromWorker,
    Hello, SettleAnswer, Settlement, Subscription, ToWorker,
};
use onward_core::payload::{Digest, Payload};
use onward_core::refusal::Refusal;
use onward_core::time::Wall;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

fn text() -> impl Strategy<Value = String> {
    "[a-zäλ0-9/_ -]{1,20}"
}

fn name() -> impl Strategy<Value = Name> {
    text().prop_map(|text| Name::new(text).expect("a name"))
}

fn shared() -> impl Strategy<Value = Arc<str>> {
    text().prop_map(Arc::from)
}

fn bytes() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..40).prop_map(Bytes::from)
}

fn payload() -> impl Strategy<Value = Payload> {
    bytes().prop_map(Payload::Inline)
}

fn span() -> impl Strategy<Value = Duration> {
    prop_oneof![Just(0), 0..100_000u64, Just(366 * 86_400_000)].prop_map(Duration::from_millis)
}

fn claim() -> impl Strategy<Value = Claim> {
    (any::<u128>(), any::<u16>(), any::<u64>()).prop_map(|(job, workflow, fence)| Claim {
        job: JobId::from_u128(job),
        workflow,
        fence: AttemptFence::from_raw(fence),
    })
}

/// Parts of one frame, in the order in which they are taken.
pub fn worker_parts() -> impl Strategy<Value = Vec<FromWorker>> {
    let hello = (text(), text(), vec(name(), 0..3), vec(name(), 0..3), any::<u32>(), vec(claim(), 0..3)).prop_map(
        |(worker, incarnation, queues, kinds, slots, holding)| {
            FromWorker::Hello(Hello {
                worker: WorkerId::new(worker).expect("a name"),
                incarnation: Incarnation::new(incarnation).expect("a name"),
                subscription: Subscription { queues, kinds },
                slots,
                holding,
                client: ClientId::default(),
            })
        },
    );
    let capacity = any::<(u32, bool)>().prop_map(|(slots, accepting)| FromWorker::Capacity { slots, accepting });
    let beat = (claim(), any::<(Option<u64>, Option<u64>)>(), of(text()), of(span()), of(bytes())).prop_map(
        |(claim, (watermark, total), note, quiet, checkpoint)| Beat {
            claim,
            watermark,
            total,
            note: note.map(Box::from),
            quiet,
            checkpoint,
        },
    );
    let report = prop_oneof![
        payload().prop_map(|result| EndReport::Succeed { result }),
        (shared(), any::<bool>(), of(span())).prop_map(|(error, retryable, delay)| EndReport::Fail {
            error,
            retryable,
            delay
        }),
        of(span()).prop_map(|delay| EndReport::Release { delay }),
    ];
    let settlement = (claim(), report, of(bytes())).prop_map(|(claim, report, checkpoint)| match report {
        EndReport::Succeed { .. } => Settlement::new(claim, report),
        report => Settlement { claim, report, checkpoint },
    });
    let probe = any::<u32>().prop_map(|probe| FromWorker::ProbeAnswer { probe });
    let extension = (vec(claim(), 0..3), text(), -1.0..2.0f64, of(span())).prop_map(
        |(claims, reason, progress, estimated_remaining)| {
            let reason = reason.into();
            FromWorker::RequestExtension(ExtensionRequest { claims, reason, progress, estimated_remaining })
        },
    );
    let parts = (
        of(hello),
        of(capacity),
        of(vec(beat, 1..4).prop_map(FromWorker::Beats)),
        of(vec(settlement, 1..4).prop_map(FromWorker::Settle)),
        vec(probe, 0..3),
        vec(extension, 0..3),
        of(vec(claim(), 1..3).prop_map(FromWorker::Ended)),
        of(Just(FromWorker::Goodbye)),
    );
    parts.prop_map(|(hello, capacity, beats, settle, probes, extensions, ended, goodbye)| {
        let first = [hello, capacity, beats, settle].into_iter().flatten();
        first.chain(probes).chain(extensions).chain(ended).chain(goodbye).collect()
    })
}

fn refusal() -> impl Strategy<Value = Refusal> {
    prop_oneof![
        Just(Refusal::Invalid(Invalid { field: "kind", problem: DraftProblem::NotAName })),
        Just(Refusal::StaleAttempt),
        Just(Refusal::NoLeader),
        Just(Refusal::NotTerminal(JobState::Running)),
        any::<u128>().prop_map(|job| Refusal::UniqueKeyTaken(JobId::from_u128(job))),
    ]
}

fn denial() -> impl Strategy<Value = Denial> {
    prop_oneof![Just(Denial::NoProgress), Just(Denial::Malformed(MalformedRequest::UnknownReason))]
}

fn maybe<T: core::fmt::Debug, E: core::fmt::Debug>(
    yes: impl Strategy<Value = T>,
    no: impl Strategy<Value = E>,
) -> impl Strategy<Value = Result<T, E>> {
    proptest::result::maybe_err(yes, no)
}

/// Here, or to be fetched.
fn input() -> impl Strategy<Value = Payload> {
    let stored = (any::<[u8; 32]>(), any::<u32>()).prop_map(|(digest, len)| Payload::stored(Digest(digest), len));
    prop_oneof![payload(), stored]
}

fn assignment() -> impl Strategy<Value = Assignment> {
    let workflow = (name(), name(), payload(), of(name())).prop_map(|(name, kind, payload, content_type)| {
        WorkflowSpec { outline: Outline { name, kind, content_type, after: [].into() }.into(), payload }
    });
    let headers = vec((name(), text().prop_map(Box::from)), 0..3);
    let rest = (headers, vec((name(), input()), 0..3), of(bytes()), span(), span());
    (claim(), any::<u32>(), name(), workflow, rest).prop_map(|(claim, attempt, queue, workflow, rest)| {
        let (headers, inputs, checkpoint, lease, deadline_remaining) = rest;
        let headers = headers.into();
        Assignment { claim, attempt, queue, workflow, headers, inputs, checkpoint, lease, deadline_remaining }
    })
}

pub fn told() -> impl Strategy<Value = ToWorker> {
    let why = prop_oneof![
        Just(CancelWhy::Asked),
        Just(CancelWhy::TimedOut),
        Just(CancelWhy::Stuck),
        Just(CancelWhy::LeaseExpired),
        Just(CancelWhy::Evicted),
        Just(CancelWhy::Stale),
    ];
    let accepted = (span(), any::<bool>(), of(span())).prop_map(|(lease_remaining, cancel, quiet)| BeatAccepted {
        lease_remaining,
        cancel,
        quiet,
    });
    let beat_answer = (claim(), maybe(accepted, refusal())).prop_map(|(claim, answer)| BeatAnswer { claim, answer });
    let settle_answer =
        (claim(), maybe(Just(()), refusal())).prop_map(|(claim, answer)| SettleAnswer { claim, answer });
    let extension = (vec(claim(), 0..3), maybe(span(), denial()), span(), any::<u32>()).prop_map(
        |(claims, result, remaining, remaining_extensions)| {
            ToWorker::ExtensionAnswer(ExtensionAnswer { claims, result, remaining, remaining_extensions })
        },
    );
    prop_oneof![
        any::<u64>().prop_map(|term| ToWorker::Welcome { term: Term::new(term) }),
        refusal().prop_map(ToWorker::Rejected),
        assignment().prop_map(ToWorker::Assign),
        vec(beat_answer, 0..4).prop_map(ToWorker::BeatAnswers),
        vec(settle_answer, 0..4).prop_map(ToWorker::SettleAnswers),
        extension,
        any::<u32>().prop_map(|probe| ToWorker::Probe { probe }),
        (claim(), why).prop_map(|(claim, why)| ToWorker::Cancel { claim, why }),
        refusal().prop_map(ToWorker::Refused),
        Just(ToWorker::Goodbye),
    ]
}

pub fn draft() -> impl Strategy<Value = Draft> {
    let workflow = (of(shared()), shared(), payload(), of(shared()), vec(shared(), 0..3)).prop_map(
        |(name, kind, payload, content_type, after)| WorkflowDraft { name, kind, payload, content_type, after },
    );
    let retry = (any::<u32>(), span(), span()).prop_map(|(max_attempts, base, max)| Retry { max_attempts, base, max });
    let policy = prop_oneof![Just(TimeoutPolicy::Any), Just(TimeoutPolicy::Majority), Just(TimeoutPolicy::All)];
    let on_stuck = prop_oneof![Just(OnStuck::Retry), Just(OnStuck::TimeOut)];
    let spans = (of(span()), of(span()), of(span()), of(span()), of(span()));
    let texts = (of(shared()), of(shared()), of(shared()), vec(shared(), 0..3), vec(shared(), 0..3));
    let limit =
        (shared(), any::<u32>(), any::<bool>()).prop_map(|(key, max, ordered)| LimitDraft { key, max, ordered });
    let lists = (vec(workflow, 0..3), vec(limit, 0..3), vec((shared(), text()), 0..3));
    let rest = (any::<i32>(), any::<bool>(), of(0..4_000_000_000_000u64), of(retry));
    (spans, texts, lists, rest, policy, on_stuck).prop_map(|(spans, texts, lists, rest, timeout_policy, on_stuck)| {
        let (timeout, stuck_after, max_extension, delay, retain) = spans;
        let (queue, unique_key, idempotency_key, tags, datacenters) = texts;
        let (workflows, limits, headers) = lists;
        let (priority, require_progress, run_at, retry) = rest;
        Draft {
            queue,
            workflows,
            priority,
            timeout,
            stuck_after,
            max_extension,
            on_stuck,
            require_progress,
            delay,
            run_at: run_at.map(Wall::from_ms),
            retry,
            limits,
            unique_key,
            idempotency_key,
            tags,
            headers: headers.into_iter().map(|(name, value)| (name, value.into())).collect(),
            retain,
            datacenters,
            timeout_policy,
        }
    })
}
