//! Outcomes that come late, come twice, or come under stress.

use super::*;

#[test]
fn a_claim_that_comes_late_is_in_the_ledger_once_per_kind() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { retry: retries(5, 0, 0), ..job("k") });
    let claim = rig.claim(session);
    rig.advance(secs(120));
    assert_eq!(rig.endings(id), ["stuck"]);
    for _ in 0..3 {
        assert_eq!(rig.beat(session, Beat::plain(claim)), Err(Refusal::StaleAttempt));
        assert_eq!(rig.succeed(session, claim), Err(Refusal::StaleAttempt));
    }
    let refused = rig.view(id).ledger.into_iter().filter(|entry| matches!(entry.what, LedgerFact::Refused { .. }));
    assert_eq!(refused.count(), 1);
    assert_eq!(rig.refused(RefusalKind::StaleAttempt), 6, "and every one is counted");
}

#[test]
fn an_outcome_may_be_repeated_and_not_changed() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { retry: retries(5, 60, 60), ..job("k") });
    let first = rig.claim(session);
    rig.fail(session, first).unwrap();
    assert_eq!(rig.fail(session, first), Ok(()));
    assert_eq!(rig.succeed(session, first), Err(Refusal::AlreadyEnded));
    rig.advance(secs(60));
    let second = rig.claim(session);
    assert_eq!(rig.fail(session, first), Ok(()), "also when a newer one runs");
    assert_eq!(rig.succeed(session, first), Err(Refusal::AlreadyEnded));
    let before = rig.view(id).workflows[0].counted;
    rig.succeed(session, second).unwrap();
    assert_eq!(rig.succeed(session, second), Ok(()));
    assert_eq!((before, rig.state_of(id)), (2, JobState::Succeeded));
}

#[test]
fn under_stress_submissions_are_shed_and_outcomes_are_not() {
    use onward_core::health::overload::OverloadLevel;
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.step(Input::Load(OverloadLevel::Stressed));
    assert_eq!(rig.try_submit(job("k")), Err(Refusal::Overloaded));
    rig.beat(session, Beat::plain(claim)).unwrap();
    rig.succeed(session, claim).unwrap();
    rig.step(Input::Load(OverloadLevel::Busy));
    rig.submit(job("k"));
}
