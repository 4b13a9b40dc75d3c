//! A worker that lost an attempt and does not know it yet can do no harm: every word of it is refused by its fence,
//! counted, and noted once; the successor never notices.

use std::time::Duration;

use crate::rig::*;
use onward_core::event::Verb;
use onward_core::fence::AttemptFence;
use onward_core::grant::Denial;
use onward_core::ids::{Claim, Incarnation, JobId, SessionId};
use onward_core::input::{Call, Poll};
use onward_core::job::{Draft, JobState, Retry};
use onward_core::message::{Beat, CancelWhy, EndReport, FromWorker, ToWorker};
use onward_core::refusal::{Refusal, RefusalKind};
use onward_core::state::LedgerFact;

fn quick_retry(draft: Draft) -> Draft {
    Draft { retry: Some(Retry { max_attempts: 5, base: ms(1), max: ms(1) }), ..draft }
}

fn poll(id: &str) -> Poll {
    Rig::poll_of(id, &["k"], 1, Duration::ZERO)
}

/// An attempt whose lease of 30 s ran out, and its successor in other hands.
fn expired_lease(rig: &mut Rig) -> (JobId, Claim, Claim) {
    let id = rig.submit(job("k"));
    let zombie = rig.leases(poll("zombie"))[0].claim;
    rig.advance(secs(30));
    assert_eq!(rig.endings(id), ["lease_expired"]);
    let successor = rig.leases(poll("successor"))[0].claim;
    assert_eq!((zombie.fence, successor.fence), (fence(1, 1), fence(1, 2)));
    (id, zombie, successor)
}

fn refusals_noted(rig: &Rig, job: JobId) -> Vec<(AttemptFence, Verb, RefusalKind, u32)> {
    let noted = rig.view(job).ledger.into_iter().filter_map(|entry| match entry.what {
        LedgerFact::Refused { fence, verb, refusal, .. } => Some((fence, verb, refusal, entry.times)),
        _ => None,
    });
    noted.collect()
}

fn other_success() -> EndReport {
    EndReport::Succeed { result: bytes("\"other\"").into() }
}

#[test]
fn after_its_lease_expired_every_word_of_a_zombie_is_refused_and_counted() {
    let mut rig = Rig::new();
    let (id, zombie, successor) = expired_lease(&mut rig);
    let stale = Err(Refusal::StaleAttempt);
    assert_eq!(rig.http_beat(Beat::progress(zombie, 99)), Err(Refusal::StaleAttempt));
    assert_eq!(rig.http_settle(zombie, success()), stale);
    assert_eq!(rig.http_settle(zombie, failure()), stale);
    assert_eq!(rig.http_settle(zombie, EndReport::Release { delay: None }), stale);
    assert_eq!(rig.http_ask_extension(zombie, 0.5).unwrap().result, Err(Denial::StaleAttempt));
    assert_eq!(rig.refused(RefusalKind::StaleAttempt), 5);

    assert_eq!(rig.state_of(id), JobState::Running);
    let running = rig.view(id).workflows[0].running.clone().expect("the successor runs");
    assert_eq!((running.claim, running.watermark), (successor, None));
    rig.http_settle(successor, success()).unwrap();
    assert_eq!(rig.endings(id), ["lease_expired", "succeeded"]);
}

#[test]
fn the_first_refusal_per_attempt_and_kind_is_in_the_ledger_exactly_once() {
    let mut rig = Rig::new();
    let (id, zombie, successor) = expired_lease(&mut rig);
    for _ in 0..3 {
        rig.http_beat(Beat::plain(zombie)).unwrap_err();
        rig.http_settle(zombie, success()).unwrap_err();
    }
    let first = (zombie.fence, Verb::Beat, RefusalKind::StaleAttempt, 1);
    assert_eq!(refusals_noted(&rig, id), [first]);
    assert_eq!(rig.refused(RefusalKind::StaleAttempt), 6, "all of them are counted");

    // Another attempt of the same workflow has its own note; so has another kind.
    rig.http_settle(successor, success()).unwrap();
    for _ in 0..2 {
        rig.http_settle(successor, failure()).unwrap_err();
    }
    let second = (successor.fence, Verb::Fail, RefusalKind::AlreadyEnded, 1);
    assert_eq!(refusals_noted(&rig, id), [first, second]);
    rig.restart(secs(1));
    rig.http_settle(successor, failure()).unwrap_err();
    assert_eq!(refusals_noted(&rig, id), [first, second], "a takeover remembers what was noted");
}

#[test]
fn a_zombie_is_refused_before_a_successor_is_handed_out_too() {
    let mut rig = Rig::new();
    let id = rig.submit(job("k"));
    let zombie = rig.leases(poll("zombie"))[0].claim;
    rig.advance(secs(30));
    assert_eq!(rig.state_of(id), JobState::Ready);
    assert_eq!(rig.http_settle(zombie, success()), Err(Refusal::StaleAttempt));
    assert_eq!(rig.http_beat(Beat::plain(zombie)), Err(Refusal::StaleAttempt));
    assert_eq!((rig.state_of(id), rig.counted(id)), (JobState::Ready, 1));
}

/// Two sessions, of which `zombie` holds an attempt that was taken from it, and `heir` the successor.
fn taken_by_session(rig: &mut Rig, how: &str) -> (JobId, SessionId, Claim, SessionId, Claim) {
    rig.worker("bystander-1", 101, 1, &["other"]);
    rig.worker("bystander-2", 102, 1, &["other"]);
    let zombie = rig.worker("zombie", 1, 1, &["k"]);
    let id = rig.submit(quick_retry(job("k")));
    let old = rig.claim(zombie);
    let heir = rig.worker("heir", 2, 1, &["k"]);
    match how {
        "stuck" => {
            rig.tell(zombie, FromWorker::Capacity { slots: 1, accepting: false });
            rig.advance(secs(120) + ms(1));
        }
        "evicted" => {
            rig.answering.remove(&zombie);
            rig.advance(secs(40));
        }
        other => panic!("{other}"),
    }
    assert_eq!(rig.endings(id), [how]);
    let new = rig.claim(heir);
    (id, zombie, old, heir, new)
}

#[test]
fn on_a_session_too_whether_it_was_stuck_or_its_worker_evicted() {
    for how in ["stuck", "evicted"] {
        let mut rig = Rig::new();
        let (id, zombie, old, heir, new) = taken_by_session(&mut rig, how);
        assert_eq!(rig.cancelled(zombie), [old]);
        let stale = Err(Refusal::StaleAttempt);
        assert_eq!(rig.beat(zombie, Beat::progress(old, 5)), Err(Refusal::StaleAttempt), "{how}");
        assert_eq!(rig.succeed(zombie, old), stale);
        assert_eq!(rig.fail(zombie, old), stale);
        assert_eq!(rig.release(zombie, old), stale);
        let denied = rig.ask_extension(zombie, vec![old], 0.5);
        assert_eq!(denied.result, Err(Denial::StaleAttempt), "named before anything about the worker");
        assert_eq!(rig.refused(RefusalKind::StaleAttempt), 5);
        assert_eq!(refusals_noted(&rig, id).len(), 1);

        rig.progress(heir, new, 1);
        rig.succeed(heir, new).unwrap();
        assert_eq!(rig.endings(id), [how, "succeeded"]);
        rig.restart(secs(1));
    }
}

#[test]
fn a_word_about_its_end_from_an_evicted_worker_confirms_that_it_stopped() {
    for confirms in [true, false] {
        let mut rig = Rig::new();
        let (_, zombie, old, ..) = taken_by_session(&mut rig, "evicted");
        rig.answering.insert(zombie);
        if confirms {
            rig.tell(zombie, FromWorker::Ended(vec![old]));
        }
        rig.advance(secs(90));
        let view = rig.worker_view("zombie");
        assert_eq!((view.evicted, view.probation), (!confirms, confirms));
    }
}

#[test]
fn repeating_an_accepted_success_answers_ok_again() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.succeed(session, claim).unwrap();
    let events = rig.log.len();
    assert_eq!(rig.succeed(session, claim), Ok(()));
    assert_eq!(rig.log.len(), events, "and changes nothing");

    rig.restart(secs(5));
    let session = rig.worker("w", 2, 1, &["k"]);
    assert_eq!(rig.succeed(session, claim), Ok(()), "also to another leader");
    assert_eq!(rig.endings(id), ["succeeded"]);
    assert_eq!(rig.refused(RefusalKind::AlreadyEnded), 0);
}

#[test]
fn repeating_an_accepted_failure_answers_ok_again_even_when_it_was_superseded() {
    for restart in [false, true] {
        let mut rig = Rig::new();
        let mut session = rig.worker("w", 1, 1, &["k"]);
        let id = rig.submit(quick_retry(job("k")));
        let first = rig.claim(session);
        rig.fail(session, first).unwrap();
        rig.advance(ms(1));
        let second = rig.claim(session);
        if restart {
            rig.restart(secs(5));
            session = rig.hello("w", "1", 2, 1, &["k"], vec![second]);
        }
        assert_eq!(rig.fail(session, first), Ok(()));
        assert_eq!(rig.counted(id), 2, "it was counted once");
        assert_eq!(rig.succeed(session, first), Err(Refusal::AlreadyEnded), "another outcome is not the same");
        rig.succeed(session, second).unwrap();
        assert_eq!(rig.endings(id), ["failed", "succeeded"]);
        assert_eq!(rig.fail(session, first), Ok(()), "and still after the end of the job");
    }
}

#[test]
fn repeating_an_accepted_release_answers_ok_again() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let first = rig.claim(session);
    rig.release(session, first).unwrap();
    let second = rig.claim(session);
    assert_eq!(rig.release(session, first), Ok(()));
    assert_eq!((rig.endings(id), rig.counted(id)), (vec!["released"], 1));
    rig.succeed(session, second).unwrap();
}

#[test]
fn another_outcome_than_the_accepted_one_is_already_ended() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.succeed(session, claim).unwrap();
    for report in [failure(), other_success(), EndReport::Release { delay: None }] {
        assert_eq!(rig.settle(session, claim, report), Err(Refusal::AlreadyEnded));
    }
    assert_eq!(rig.beat(session, Beat::plain(claim)), Err(Refusal::AlreadyEnded));
    assert_eq!(rig.refused(RefusalKind::AlreadyEnded), 4);
    assert_eq!(rig.endings(id), ["succeeded"]);
}

#[test]
fn a_claim_on_what_never_was_is_named_as_such() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(job("k"));
    let claim = rig.claim(session);
    let nobody = Claim { job: JobId::v7(rig.now.wall, 999), ..claim };
    // A job that is not in memory may be in the archive: whoever looks there counts.
    let table = [
        (nobody, Refusal::UnknownJob, 0),
        (Claim { workflow: 1, ..claim }, Refusal::UnknownWorkflow, 3),
        (Claim { fence: fence(1, 2), ..claim }, Refusal::UnknownAttempt, 3),
        (Claim { fence: fence(2, 1), ..claim }, Refusal::UnknownAttempt, 3),
        (Claim { fence: AttemptFence::NONE, ..claim }, Refusal::StaleAttempt, 3),
    ];
    for (claim, refusal, counted) in table {
        let before = rig.refused(refusal.kind());
        assert_eq!(rig.beat(session, Beat::plain(claim)), Err(refusal.clone()));
        assert_eq!(rig.succeed(session, claim), Err(refusal.clone()));
        assert_eq!(rig.http_settle(claim, failure()), Err(refusal.clone()));
        assert_eq!(rig.refused(refusal.kind()) - before, counted, "{refusal:?}");
    }
    rig.succeed(session, claim).unwrap();
}

#[test]
fn a_result_after_the_job_was_cancelled_or_timed_out_is_already_ended() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 2, &["k"]);
    let cancelled = rig.submit(job("k"));
    let timed_out = rig.submit(Draft { timeout: Some(secs(10)), ..job("k") });
    let claims: Vec<Claim> = rig.assigned(session).iter().map(|assignment| assignment.claim).collect();
    rig.cancel(cancelled);
    rig.tell(session, FromWorker::Ended(vec![claims[0]]));
    assert_eq!(rig.state_of(cancelled), JobState::Cancelled);
    rig.advance(secs(10));
    assert_eq!(rig.state_of(timed_out), JobState::TimedOut);
    assert_eq!(rig.cancelled(session), claims);
    for claim in claims {
        for report in [success(), failure(), EndReport::Release { delay: None }] {
            assert_eq!(rig.settle(session, claim, report), Err(Refusal::AlreadyEnded));
        }
        assert_eq!(rig.beat(session, Beat::plain(claim)), Err(Refusal::AlreadyEnded));
    }
    assert_eq!((rig.state_of(cancelled), rig.state_of(timed_out)), (JobState::Cancelled, JobState::TimedOut));
}

#[test]
fn while_a_cancel_is_not_confirmed_a_late_success_still_ends_the_job() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.cancel(id);
    assert!(rig.beat(session, Beat::plain(claim)).unwrap().cancel);
    rig.succeed(session, claim).unwrap();
    assert_eq!(rig.state_of(id), JobState::Succeeded);
}

#[test]
fn an_old_incarnation_is_turned_away() {
    let mut rig = Rig::new();
    let old = rig.hello("w", "1", 1, 1, &["k"], vec![]);
    let id = rig.submit(job("k"));
    let zombie = rig.claim(old);
    let new = rig.hello("w", "2", 2, 1, &["k"], vec![]);
    assert_eq!(rig.endings(id), ["crashed"]);
    assert_eq!(rig.closed, [old]);
    let successor = rig.claim(new);

    // What is still under way on its old session speaks for nobody.
    rig.tell(old, FromWorker::Beats(vec![Beat::plain(zombie)]));
    assert_eq!(rig.last_sent(old), ToWorker::Refused(Refusal::UnknownWorker));
    rig.answering.clear();
    rig.hello("w", "1", 3, 1, &["k"], vec![zombie]);
    assert_eq!(rig.last_sent(SessionId(3)), ToWorker::Rejected(Refusal::StaleIncarnation));
    assert!(rig.closed.contains(&SessionId(3)));
    let refused = rig.call(Call::Poll(poll("w")));
    assert_eq!(refused, Err(Refusal::StaleIncarnation), "by whichever way it comes");
    assert_eq!(rig.http_settle(zombie, success()), Err(Refusal::StaleAttempt));

    assert_eq!(rig.refused(RefusalKind::StaleIncarnation), 2);
    assert_eq!(rig.worker_view("w").incarnation, Incarnation::new("2").unwrap());
    rig.succeed(new, successor).unwrap();
    assert_eq!(rig.endings(id), ["crashed", "succeeded"]);
}

#[test]
fn nobody_speaks_for_an_attempt_of_another_worker() {
    let mut rig = Rig::new();
    let holder = rig.worker("holder", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(holder);
    let thief = rig.worker("thief", 2, 1, &["k"]);
    let stale = Err(Refusal::StaleAttempt);
    assert_eq!(rig.beat(thief, Beat::progress(claim, 9)), Err(Refusal::StaleAttempt));
    assert_eq!(rig.succeed(thief, claim), stale);
    assert_eq!(rig.fail(thief, claim), stale);
    assert_eq!(rig.release(thief, claim), stale);
    assert_eq!(rig.ask_extension(thief, vec![claim], 0.1).result, Err(Denial::StaleAttempt));
    rig.tell(thief, FromWorker::Ended(vec![claim]));
    assert_eq!(rig.refused(RefusalKind::StaleAttempt), 5);
    assert_eq!((rig.state_of(id), rig.view(id).extensions), (JobState::Running, Duration::ZERO));
    rig.succeed(holder, claim).unwrap();
}

#[test]
fn a_hello_that_claims_what_is_not_its_own_is_told_to_stop_it() {
    let mut rig = Rig::new();
    let (id, zombie, successor) = expired_lease(&mut rig);
    let session = rig.hello("late", "1", 9, 2, &["k"], vec![zombie, successor]);
    let told: Vec<(Claim, CancelWhy)> = rig
        .sent
        .iter()
        .filter_map(|(to, message)| match message {
            ToWorker::Cancel { claim, why } if *to == session => Some((*claim, *why)),
            _ => None,
        })
        .collect();
    assert_eq!(told, [(zombie, CancelWhy::Stale), (successor, CancelWhy::Stale)]);
    assert_eq!(rig.state_of(id), JobState::Running);
    rig.http_settle(successor, success()).unwrap();
}

#[test]
fn the_lease_of_an_http_attempt_is_renewed_by_beats_and_by_nothing_else() {
    let mut rig = Rig::new();
    let id = rig.submit(job("k"));
    let claim = rig.leases(poll("w"))[0].claim;
    for _ in 0..5 {
        rig.advance(secs(29));
        assert_eq!(rig.http_beat(Beat::plain(claim)).unwrap().lease_remaining, secs(30));
    }
    // An empty poll is a sign of life of the worker, not of the handler.
    rig.advance(secs(29));
    assert_eq!(rig.leases(poll("w")), []);
    rig.advance(secs(1));
    assert_eq!(rig.endings(id), ["lease_expired"]);
}
