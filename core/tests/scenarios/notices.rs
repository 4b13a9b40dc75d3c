//! What the node's log speaks of: decisions, each once, with the ids of those concerned.

use crate::rig::*;
use onward_core::effect::ManagerNotice;
use onward_core::event::NextState;
use onward_core::health::Verdict;
use onward_core::job::{Draft, EndingKind, Retry};

#[test]
fn a_stuck_attempt_is_noticed_with_its_ids_and_what_follows() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.noticed();
    rig.advance(secs(121));
    let lost: Vec<_> =
        rig.noticed().into_iter().filter(|notice| matches!(notice, ManagerNotice::AttemptLost { .. })).collect();
    let [
        ManagerNotice::AttemptLost {
            claim: named,
            kind,
            worker,
            ending: EndingKind::Stuck,
            then: NextState::Delayed { .. },
            note: None,
        },
    ] = &lost[..]
    else {
        panic!("{lost:?}")
    };
    assert_eq!((*named, kind, worker), (claim, &name("k"), &worker_id("w")));
}

#[test]
fn an_expired_lease_and_a_restarted_worker_are_noticed() {
    let mut rig = Rig::new();
    let lease = rig.leases(Rig::poll_of("h", &["k"], 1, secs(0)));
    assert!(lease.is_empty());
    rig.submit(patient("k"));
    let claim = rig.leases(Rig::poll_of("h", &["k"], 1, secs(0))).remove(0).claim;
    rig.advance(secs(4_000));
    let expired = |notice: &ManagerNotice| matches!(notice, ManagerNotice::AttemptLost { claim: named, ending: EndingKind::LeaseExpired, .. } if *named == claim);
    assert!(rig.noticed().iter().any(expired));
}

#[test]
fn a_dead_letter_is_noticed_once_with_its_error() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.fail_for_good(session, claim).unwrap();
    let dead: Vec<_> =
        rig.noticed().into_iter().filter(|notice| matches!(notice, ManagerNotice::DeadLetter { .. })).collect();
    let [ManagerNotice::DeadLetter { job, kind, error }] = &dead[..] else { panic!("{dead:?}") };
    assert_eq!((*job, kind, error.is_empty()), (id, &name("k"), false));
    rig.restart(secs(1));
    assert!(
        !rig.noticed().iter().any(|notice| matches!(notice, ManagerNotice::DeadLetter { .. })),
        "not again by a replay"
    );
}

#[test]
fn an_overall_timeout_is_noticed() {
    let mut rig = Rig::new();
    let id = rig.submit(Draft { timeout: Some(secs(60)), ..job("k") });
    rig.advance(secs(61));
    assert_eq!(rig.noticed(), [timed_out(id)]);
}

#[test]
fn only_verdicts_that_mean_trouble_are_noticed() {
    let mut rig = Rig::new();
    rig.bystanders(9);
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.succeed(session, claim).unwrap();
    assert_eq!(rig.noticed(), [], "full, and then not");
    rig.close(session);
    let told = rig.noticed();
    let [ManagerNotice::VerdictChanged { worker, from: Verdict::Healthy, to }] = &told[..] else { panic!("{told:?}") };
    assert_eq!((worker, to.verdict), (&worker_id("w"), Verdict::Suspect));
}

#[test]
fn a_dead_letter_of_a_workflow_that_was_stuck_is_noticed_too() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 2, &["k"]);
    let retry = Some(Retry { max_attempts: 1, ..Retry::default() });
    let id = rig.submit(Draft { retry, ..job("k") });
    rig.claim(session);
    rig.advance(secs(121));
    let dead: Vec<_> =
        rig.noticed().into_iter().filter(|notice| matches!(notice, ManagerNotice::DeadLetter { .. })).collect();
    assert_eq!(dead, [ManagerNotice::DeadLetter { job: id, kind: name("k"), error: "stuck".into() }]);
}
