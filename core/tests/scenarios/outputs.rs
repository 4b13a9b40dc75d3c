//! Whose output is kept.

use crate::rig::*;
use onward_core::ids::{Claim, SessionId};
use onward_core::input::Call;
use onward_core::message::EndReport;
use onward_core::refusal::{Refusal, RefusalKind};

const STALE: Result<(), Refusal> = Err(Refusal::StaleAttempt);

#[test]
fn who_holds_an_attempt_prints_and_nobody_else() {
    let mut rig = Rig::new();
    let holder = rig.worker("holder", 1, 1, &["k"]);
    let stranger = rig.worker("stranger", 2, 1, &["other"]);
    rig.submit(job("k"));
    let claim = rig.claim(holder);
    assert_eq!(rig.manager.check_output(&claim, Some(holder)), Ok(()));
    assert_eq!(rig.manager.check_output(&claim, None), Ok(()), "a receipt proves it");
    assert_eq!(rig.manager.check_output(&claim, Some(stranger)), STALE);
    assert_eq!(rig.manager.check_output(&claim, Some(SessionId(99))), Err(Refusal::UnknownWorker));
    for (claim, refusal) in [
        (Claim { job: rig.new_id(), ..claim }, Refusal::UnknownJob),
        (Claim { workflow: 1, ..claim }, Refusal::UnknownWorkflow),
        (Claim { fence: fence(1, 2), ..claim }, Refusal::UnknownAttempt),
    ] {
        assert_eq!(rig.manager.check_output(&claim, Some(holder)).map_err(Refusal::without_archive), Err(refusal));
    }
    assert_eq!(rig.refused(RefusalKind::StaleAttempt), 1);
    assert_eq!(rig.refused(RefusalKind::UnknownJob), 1);
    let archived = Claim { job: rig.new_id(), ..claim };
    assert!(matches!(rig.manager.check_output(&archived, None), Err(Refusal::NotInMemory { .. })));
    assert_eq!(rig.refused(RefusalKind::UnknownJob), 1, "the archive has the last word, and whoever asks it counts");
}

#[test]
fn the_last_lines_may_come_behind_the_outcome_and_not_behind_a_successor() {
    let mut rig = Rig::new();
    let holder = rig.worker("holder", 1, 1, &["k"]);
    let stranger = rig.worker("stranger", 2, 1, &["other"]);
    rig.submit(job("k"));
    let first = rig.claim(holder);
    rig.settle(holder, first, EndReport::Release { delay: Some(secs(5)) }).unwrap();
    assert_eq!(rig.manager.check_output(&first, Some(holder)), Ok(()));
    assert_eq!(rig.manager.check_output(&first, None), Ok(()));
    assert_eq!(rig.manager.check_output(&first, Some(stranger)), STALE);
    rig.advance(secs(6));
    let second = rig.claim(holder);
    assert!(second.fence > first.fence);
    assert_eq!(rig.manager.check_output(&first, Some(holder)), STALE);
    assert_eq!(rig.manager.check_output(&first, None), STALE);
    assert_eq!(rig.manager.check_output(&second, Some(holder)), Ok(()));
}

#[test]
fn who_lost_an_attempt_prints_no_more() {
    let mut rig = Rig::new();
    let holder = rig.worker("holder", 1, 1, &["k"]);
    rig.submit(job("k"));
    let lost = rig.claim(holder);
    // Nobody else gets it: what it printed would be the newest.
    rig.call(Call::PauseQueue(name("default"))).unwrap();
    rig.advance(secs(121));
    assert!(rig.manager.state().ended_attempt(&lost).is_some(), "stuck, and not because anybody said so");
    assert_eq!(rig.manager.check_output(&lost, Some(holder)), STALE);
    assert_eq!(rig.manager.check_output(&lost, None), STALE);
}

#[test]
fn without_a_confirmed_seat_nobody_prints() {
    let mut rig = Rig::new();
    let holder = rig.worker("holder", 1, 1, &["k"]);
    rig.submit(job("k"));
    let claim = rig.claim(holder);
    rig.log_answers = false;
    rig.advance(secs(3));
    assert_eq!(rig.manager.check_output(&claim, Some(holder)), Ok(()));
    rig.advance(secs(1));
    for session in [Some(holder), None] {
        assert_eq!(rig.manager.check_output(&claim, session), Err(Refusal::NoLeader));
    }
    assert_eq!(rig.refused(RefusalKind::NoLeader), 2);
    rig.step(rig.seat_answer());
    assert_eq!(rig.manager.check_output(&claim, Some(holder)), Ok(()));
}
