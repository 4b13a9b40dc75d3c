//! Concurrency keys that are kept in order: whoever has begun under one is not overtaken before its end.

use crate::rig::*;
use onward_core::ids::{Claim, JobId, SessionId};
use onward_core::input::Call;
use onward_core::job::{Draft, JobState, LimitDraft};
use onward_core::manager::KeyWait;
use onward_core::message::EndReport;

/// A job of kind `k`.
fn under(limits: Vec<LimitDraft>) -> Draft {
    Draft { limits, timeout: Some(secs(1_000)), ..job("k") }
}

fn in_order() -> Draft {
    under(vec![LimitDraft::ordered("account-1")])
}

/// Succeeds whatever the worker is given, and says of which jobs that was.
fn finish(rig: &mut Rig, session: SessionId) -> Vec<JobId> {
    let mut order = Vec::new();
    while let Some(assignment) = rig.assigned(session).pop() {
        order.push(assignment.claim.job);
        rig.succeed(session, assignment.claim).unwrap();
    }
    order
}

/// Fails what the worker is given first; another attempt may follow in 10 s.
fn fail_first(rig: &mut Rig, session: SessionId) -> Claim {
    let claim = rig.claim(session);
    rig.settle(session, claim, EndReport::Fail { error: "once more".into(), retryable: true, delay: Some(secs(10)) })
        .unwrap();
    claim
}

#[test]
fn what_backs_off_under_an_ordered_key_is_not_overtaken() {
    for draft in [in_order(), under(vec![LimitDraft::new("other", 3), LimitDraft::ordered("account-1")])] {
        let mut rig = Rig::new();
        let ids: Vec<JobId> = (0..3).map(|_| rig.submit(draft.clone())).collect();
        let session = rig.worker("w", 1, 9, &["k"]);
        let claim = fail_first(&mut rig, session);
        assert_eq!((claim.job, rig.state_of(ids[0])), (ids[0], JobState::Delayed));
        assert!(rig.assigned(session).is_empty(), "the key is kept during the backoff");
        rig.advance(secs(10));
        assert_eq!(finish(&mut rig, session), ids);
    }
}

#[test]
fn without_order_the_next_runs_during_a_backoff() {
    let mut rig = Rig::new();
    let ids: Vec<JobId> = (0..2).map(|_| rig.submit(under(vec![LimitDraft::new("account-1", 1)]))).collect();
    let session = rig.worker("w", 1, 9, &["k"]);
    fail_first(&mut rig, session);
    assert_eq!(finish(&mut rig, session), [ids[1]]);
}

#[test]
fn a_higher_priority_does_not_overtake_what_was_handed_back_under_an_ordered_key() {
    let mut rig = Rig::new();
    let first = rig.submit(in_order());
    let session = rig.worker("w", 1, 9, &["k"]);
    let claim = rig.claim(session);
    let urgent = rig.submit(Draft { priority: 100, ..in_order() });
    let plain = rig.submit(Draft { priority: 100, ..under(vec![LimitDraft::new("account-1", 5)]) });
    rig.settle(session, claim, EndReport::Release { delay: None }).unwrap();
    assert_eq!(finish(&mut rig, session), [first, urgent, plain]);
}

#[test]
fn a_restart_and_a_snapshot_keep_the_order() {
    for from_snapshot in [false, true] {
        let mut rig = Rig::new();
        let ids: Vec<JobId> = (0..2).map(|_| rig.submit(in_order())).collect();
        let session = rig.worker("w", 1, 9, &["k"]);
        fail_first(&mut rig, session);
        if from_snapshot {
            rig.manager.begin_snapshot();
            let records = rig.manager.snapshot_next(1_000).records;
            rig.restart_from(&records, secs(1));
        } else {
            rig.restart(secs(1));
        }
        let session = rig.hello("w", "2", 2, 9, &["k"], vec![]);
        assert!(rig.assigned(session).is_empty(), "the key is kept over a restart, from a snapshot: {from_snapshot}");
        rig.advance(secs(10));
        assert_eq!(finish(&mut rig, session), ids);
        assert!(ids.iter().all(|id| rig.state_of(*id) == JobState::Succeeded));
    }
}

#[test]
fn every_end_frees_an_ordered_key() {
    type End = fn(&mut Rig, SessionId, JobId);
    let ends: [(&str, End); 4] = [
        ("cancelled", |rig, _, job| rig.cancel(job)),
        ("timed out", |rig, _, _| rig.advance(secs(1_000))),
        ("failed", |rig, session, _| {
            rig.advance(secs(10));
            let claim = rig.claim(session);
            rig.fail_for_good(session, claim).unwrap();
        }),
        ("succeeded", |rig, session, _| {
            rig.advance(secs(10));
            let claim = rig.claim(session);
            rig.succeed(session, claim).unwrap();
        }),
    ];
    for (how, end) in ends {
        let mut rig = Rig::new();
        let session = rig.worker("w", 1, 9, &["k", "l"]);
        let first = rig.submit(in_order());
        if how == "timed out" {
            rig.call(Call::PauseQueue(name("default"))).unwrap();
        }
        fail_first(&mut rig, session);
        let next = rig.submit(Draft { timeout: Some(secs(10_000)), ..in_order() });
        end(&mut rig, session, first);
        assert!(rig.state_of(first).is_terminal(), "{how}");
        rig.call(Call::ResumeQueue(name("default"))).unwrap();
        assert_eq!(finish(&mut rig, session), [next], "{how}");
    }
}

#[test]
fn a_workflow_that_waits_behind_an_ordered_one_says_which_job_keeps_the_key() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 9, &["k"]);
    let (first, second) = (rig.submit(in_order()), rig.submit(in_order()));
    let waits = |rig: &Rig| {
        let view = rig.view(second).workflows.remove(0);
        (view.blocked, view.waits_for_key)
    };
    let kept = (Some("limit"), Some(KeyWait { key: name("account-1"), kept_by: Some(first) }));
    assert_eq!(waits(&rig), kept, "while it runs");
    fail_first(&mut rig, session);
    assert_eq!(waits(&rig), kept, "and between two attempts");
    rig.cancel(first);
    assert_eq!(waits(&rig), (None, None));

    let plain = || under(vec![LimitDraft::new("gpu", 1)]);
    let (_, second) = (rig.submit(plain()), rig.submit(plain()));
    let view = rig.view(second).workflows.remove(0);
    assert_eq!(view.waits_for_key, Some(KeyWait { key: name("gpu"), kept_by: None }));
}

#[test]
fn a_full_key_is_what_blocks_a_workflow_also_if_no_worker_has_looked_at_it() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let (first, second) = (rig.submit(in_order()), rig.submit(in_order()));
    let blocked = |rig: &Rig, job| rig.view(job).workflows.remove(0).blocked;
    let kept = Some(KeyWait { key: name("account-1"), kept_by: Some(first) });
    assert_eq!(rig.view(second).workflows[0].waits_for_key, kept, "the only slot is taken");
    fail_first(&mut rig, session);
    rig.close(session);
    rig.restart(secs(1));
    assert_eq!(rig.view(second).workflows[0].waits_for_key, kept, "nobody has come since the restart");
    assert_eq!(blocked(&rig, second), Some("limit"));
    rig.cancel(first);
    assert_eq!(blocked(&rig, second), Some("no_capable_worker"));
}

#[test]
fn of_those_that_run_and_the_next_the_smallest_bound_counts() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 9, &["k"]);
    let with = |max| under(vec![LimitDraft::new("gpu", max)]);
    let (alone, wide) = (rig.submit(with(1)), rig.submit(with(3)));
    let claim = rig.claim(session);
    assert_eq!(claim.job, alone);
    assert!(rig.assigned(session).is_empty(), "one that must run alone runs alone");
    rig.succeed(session, claim).unwrap();
    let claim = rig.claim(session);
    assert_eq!(claim.job, wide);
    let alone = rig.submit(with(1));
    assert!(rig.assigned(session).is_empty(), "and waits until it can");
    rig.succeed(session, claim).unwrap();
    assert_eq!(finish(&mut rig, session), [alone]);
}

/// Each keeps one key and needs the other's: whoever begins first has both, so no two can wait for each other.
#[test]
fn two_that_order_by_each_others_keys_do_not_wait_for_each_other_for_ever() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 9, &["k"]);
    let cross = |kept: &str, used: &str| under(vec![LimitDraft::ordered(kept), LimitDraft::new(used, 5)]);
    let ids = [rig.submit(cross("a", "b")), rig.submit(cross("b", "a"))];
    fail_first(&mut rig, session);
    assert!(rig.assigned(session).is_empty(), "the second may not use a key that the first keeps");
    let only_b = rig.submit(under(vec![LimitDraft::ordered("b")]));
    let claim = fail_first(&mut rig, session);
    assert_eq!(claim.job, only_b, "which the first gave back");
    rig.advance(secs(10));
    let order = finish(&mut rig, session);
    assert_eq!(order, [only_b, ids[0], ids[1]]);
}
