//! Every limit, met: it is named, and nothing changes.

use crate::rig::*;
use onward_core::effect::Answer;
use onward_core::ids::{Claim, ClientId, SessionId};
use onward_core::input::Call;
use onward_core::input::ScheduleDraft;
use onward_core::job::draft::DraftProblem;
use onward_core::job::{Draft, LimitDraft, WorkflowDraft};
use onward_core::limits::{Limit, LimitMet, Limits};
use onward_core::message::{Beat, EndReport, FromWorker, Hello, ToWorker};
use onward_core::refusal::Refusal;
use onward_core::schedule::{MissedPolicy, Overlap, Timing};

/// The field of a limit, to be set to 1. A new limit does not compile before it is here.
fn field(limits: &mut Limits, limit: Limit) -> &mut usize {
    match limit {
        Limit::Jobs => &mut limits.jobs,
        Limit::BatchJobs => &mut limits.batch_jobs,
        Limit::WorkflowsPerJob => &mut limits.workflows_per_job,
        Limit::DependenciesPerJob => &mut limits.dependencies_per_job,
        Limit::PayloadBytes => &mut limits.payload_bytes,
        Limit::ResultBytes => &mut limits.result_bytes,
        Limit::CheckpointBytes => &mut limits.checkpoint_bytes,
        Limit::ErrorBytes => &mut limits.error_bytes,
        Limit::NoteBytes => &mut limits.note_bytes,
        Limit::TagsPerJob => &mut limits.tags_per_job,
        Limit::HeadersPerJob => &mut limits.headers_per_job,
        Limit::HeaderBytes => &mut limits.header_bytes,
        Limit::LimitsPerJob => &mut limits.limits_per_job,
        Limit::Shelves => &mut limits.shelves,
        Limit::LimitKeys => &mut limits.limit_keys,
        Limit::PausedQueues => &mut limits.paused_queues,
        Limit::Workers => &mut limits.workers,
        Limit::WorkerSlots => &mut limits.worker_slots,
        Limit::SubscriptionPairs => &mut limits.subscription_pairs,
        Limit::Subscriptions => &mut limits.subscriptions,
        Limit::SubscriptionsPerClient => &mut limits.subscriptions_per_client,
        Limit::FrameItems => &mut limits.frame_items,
        Limit::OpenPolls => &mut limits.open_polls,
        Limit::PollLeases => &mut limits.poll_leases,
        Limit::DeadLetters => &mut limits.dead_letters,
        Limit::IdempotencyKeys => &mut limits.idempotency_keys,
        Limit::ExtensionsPerJob => &mut limits.extensions_per_job,
        Limit::RetriesPerJob => &mut limits.retries_per_job,
        Limit::Datacenters => &mut limits.datacenters,
        Limit::FinishedJobs => &mut limits.finished_jobs,
        Limit::DatacentersPerJob => &mut limits.datacenters_per_job,
        Limit::Schedules => &mut limits.schedules,
        Limit::ScheduleRuns => &mut limits.schedule_runs,
    }
}

fn small(kind: &str) -> Draft {
    Draft::of_kind(kind, bytes(""))
}

fn set_schedule(schedule: &str) -> Call {
    Call::SetSchedule(Box::new(ScheduleDraft {
        schedule: name(schedule),
        timing: Timing::Every(secs(3_600)),
        job: small("k"),
        overlap: Overlap::Skip,
        missed: MissedPolicy::Once,
        jitter: secs(0),
        critical: false,
        paused: None,
    }))
}

fn named(name: &str, after: &[&str]) -> WorkflowDraft {
    WorkflowDraft {
        name: Some(name.into()),
        after: after.iter().map(|name| (*name).into()).collect(),
        ..small("k").workflows.remove(0)
    }
}

fn hello(rig: &mut Rig, worker: &str, slots: u32, kinds: &[&str]) -> Result<(), Refusal> {
    let session = SessionId(50);
    let hello = Hello {
        worker: worker_id(worker),
        incarnation: onward_core::ids::Incarnation::new("1").expect("valid"),
        subscription: subscription(&["default"], kinds),
        slots,
        holding: vec![],
        client: ClientId::default(),
    };
    rig.tell(session, FromWorker::Hello(hello));
    match rig.last_sent(session) {
        ToWorker::Rejected(refusal) => Err(refusal),
        _ => Ok(()),
    }
}

/// Meets the limit, with room for exactly one where something was there before. None: it is never refused.
#[rustfmt::skip]
fn meet(rig: &mut Rig, limit: Limit, claim: Option<(SessionId, Claim)>) -> Option<Refusal> {
    let submit = |rig: &mut Rig, draft: Draft| rig.try_submit(draft).map(|_| ());
    let poll = |worker: &str, max: u32| Call::Poll(Rig::poll_of(worker, &["k"], max, secs(60)));
    let with = |change: fn(&mut Draft)| {
        let mut draft = small("k");
        change(&mut draft);
        draft
    };
    let mut before = (rig.manager.state().dump(), rig.log.len());
    let answer = match limit {
        Limit::Jobs => submit(rig, small("k")),
        Limit::BatchJobs => rig.submit_all(vec![small("k"); 2]).map(|_| ()),
        Limit::WorkflowsPerJob => submit(rig, Draft { workflows: vec![named("a", &[]), named("b", &[])], ..small("k") }),
        Limit::DependenciesPerJob => {
            let workflows = vec![named("a", &[]), named("b", &["a"]), named("c", &["a"])];
            submit(rig, Draft { workflows, ..small("k") })
        }
        Limit::PayloadBytes => submit(rig, Draft::of_kind("k", bytes("12"))),
        Limit::TagsPerJob => submit(rig, with(|draft| draft.tags = vec!["a".into(), "b".into()])),
        Limit::HeadersPerJob => submit(rig, with(|draft| draft.headers = vec![("a".into(), "".into()), ("b".into(), "".into())])),
        Limit::HeaderBytes => submit(rig, with(|draft| draft.headers = vec![("a".into(), "b".into())])),
        Limit::LimitsPerJob => submit(rig, with(|draft| draft.limits = vec![LimitDraft::new("a", 1), LimitDraft::new("b", 1)])),
        Limit::DatacentersPerJob => submit(rig, with(|draft| draft.datacenters = vec!["a".into(), "b".into()])),
        Limit::Shelves => submit(rig, small("another")),
        Limit::LimitKeys => submit(rig, with(|draft| draft.limits = vec![LimitDraft::new("b", 1)])),
        Limit::IdempotencyKeys => submit(rig, with(|draft| draft.idempotency_key = Some("b".into()))),
        Limit::PausedQueues => rig.call(Call::PauseQueue(name("b"))).map(|_| ()),
        Limit::Workers => hello(rig, "another", 1, &["k"]),
        Limit::WorkerSlots => hello(rig, "w", 2, &["k"]),
        Limit::SubscriptionPairs => hello(rig, "w", 1, &["k", "l"]),
        Limit::Subscriptions | Limit::SubscriptionsPerClient => hello(rig, "another", 1, &["l"]),
        Limit::FrameItems => {
            let (_, claim) = claim.expect("something runs");
            rig.call(Call::Beat(vec![Beat::plain(claim); 2])).map(|_| ())
        }
        Limit::OpenPolls => rig.call(poll("another", 1)).map(|_| ()),
        Limit::PollLeases => rig.call(poll("h", 2)).map(|_| ()),
        Limit::ResultBytes => {
            let (session, claim) = claim.expect("something runs");
            rig.settle(session, claim, EndReport::Succeed { result: bytes("12").into() })
        }
        Limit::ErrorBytes => {
            let (session, claim) = claim.expect("something runs");
            rig.settle(session, claim, EndReport::Fail { error: "12".into(), retryable: true, delay: None })
        }
        Limit::CheckpointBytes => {
            let (session, claim) = claim.expect("something runs");
            rig.beat(session, Beat { checkpoint: Some(bytes("12")), ..Beat::plain(claim) }).map(|_| ())
        }
        Limit::NoteBytes => {
            let (session, claim) = claim.expect("something runs");
            let noted = rig.beat(session, Beat { note: Some("12".into()), ..Beat::plain(claim) }).map(|_| ());
            let extend = Call::Extend { job: claim.job, by: secs(1), reason: "12".into(), request: name("r") };
            assert_eq!(rig.call(extend).map(|_| ()), noted, "a reason is a note, too");
            noted
        }
        Limit::ExtensionsPerJob => {
            let (_, claim) = claim.expect("something runs");
            let extend = |request| Call::Extend { job: claim.job, by: secs(1), reason: "".into(), request: name(request) };
            let first = rig.call(extend("first")).unwrap();
            before = (rig.manager.state().dump(), rig.log.len());
            let refused = rig.call(extend("second")).map(|_| ());
            assert_eq!(rig.call(extend("first")), Ok(first), "what was given is remembered");
            refused
        }
        Limit::RetriesPerJob => {
            let (session, claim) = claim.expect("something runs");
            rig.fail_for_good(session, claim).unwrap();
            let [new, newer] = [rig.new_id(), rig.new_id()];
            let retry = |new_id, request| Call::Retry { job: claim.job, new_id, request: name(request) };
            let first = rig.call(retry(new, "first")).unwrap();
            before = (rig.manager.state().dump(), rig.log.len());
            let refused = rig.call(retry(newer, "second")).map(|_| ());
            assert_eq!(rig.call(retry(newer, "first")), Ok(first), "what was asked for is remembered");
            refused
        }
        Limit::Schedules => {
            let first = rig.call(set_schedule("first")).unwrap();
            before = (rig.manager.state().dump(), rig.log.len());
            assert_eq!(first, Answer::ScheduleSet { is_new: true });
            rig.call(set_schedule("second")).map(|_| ())
        }
        Limit::ScheduleRuns => {
            rig.call(set_schedule("first")).unwrap();
            let run = |request| Call::RunSchedule { schedule: name("first"), request: Some(name(request)) };
            rig.call(run("r1")).unwrap();
            before = (rig.manager.state().dump(), rig.log.len());
            rig.call(run("r2")).map(|_| ())
        }
        // The oldest makes room.
        Limit::DeadLetters => return None,
        // Of a gate, in its own tests.
        Limit::Datacenters | Limit::FinishedJobs => return None,
    };
    assert_eq!((rig.manager.state().dump(), rig.log.len()), before, "{limit:?} changed something");
    Some(answer.expect_err("the limit is met"))
}

fn limit_of(refusal: &Refusal) -> Option<LimitMet> {
    match refusal {
        Refusal::Limited(met) => Some(*met),
        // A draft that is too large by itself is named with its field.
        Refusal::Invalid(invalid) => match invalid.problem {
            DraftProblem::TooMany(met) => Some(met),
            _ => None,
        },
        _ => None,
    }
}

#[test]
fn every_limit_that_is_met_is_named_and_changes_nothing() {
    for limit in Limit::ALL {
        let mut rig = Rig::with(|settings| *field(&mut settings.limits, *limit) = 1);
        let session = rig.worker("w", 1, 1, &["k"]);
        let mut claim = None;
        match limit {
            Limit::Workers | Limit::WorkerSlots | Limit::SubscriptionPairs => {}
            Limit::Subscriptions | Limit::SubscriptionsPerClient => {}
            Limit::OpenPolls => {
                rig.call_open(Call::Poll(Rig::poll_of("h", &["x"], 1, secs(60))));
            }
            Limit::PausedQueues => {
                rig.call(Call::PauseQueue(name("a"))).unwrap();
            }
            _ => {
                let first =
                    Draft { limits: vec![LimitDraft::new("a", 1)], idempotency_key: Some("a".into()), ..small("k") };
                rig.submit(first);
                claim = Some((session, rig.claim(session)));
            }
        }
        let Some(refusal) = meet(&mut rig, *limit, claim) else { continue };
        assert_eq!(limit_of(&refusal), Some(LimitMet { limit: *limit, max: 1 }), "{refusal:?}");
        assert!(refusal.to_string().contains(limit.describe()), "{refusal}");
        rig.advance(secs(20));
        rig.restart(secs(1));
    }
}

#[test]
fn what_shares_a_shelf_or_a_key_needs_no_room_for_another() {
    let mut rig = Rig::with(|settings| {
        settings.limits.shelves = 2;
        settings.limits.limit_keys = 1;
    });
    let limited = |kind: &str, key: &str| Draft { limits: vec![LimitDraft::new(key, 1)], ..job(kind) };
    rig.submit_all(vec![limited("a", "key"); 10]).unwrap();
    rig.submit_all(vec![limited("b", "key"), limited("a", "key")]).unwrap();
    for (draft, limit) in [
        (job("c"), Limit::Shelves),
        (Draft { priority: 1, ..job("a") }, Limit::Shelves),
        (Draft { queue: Some("q".into()), ..job("a") }, Limit::Shelves),
        (limited("a", "other"), Limit::LimitKeys),
    ] {
        let refusal = rig.try_submit(draft).unwrap_err();
        assert_eq!(limit_of(&refusal).map(|met| met.limit), Some(limit));
    }
    assert_eq!(rig.cancel_where(Default::default()), 12);
    rig.submit_all(vec![limited("c", "other"), limited("d", "other")]).expect("what has ended takes no room");
}
