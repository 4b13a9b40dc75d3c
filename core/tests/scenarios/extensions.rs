//! More time, if earned: grants, denials, what a grant moves, and the ledger.

use std::time::Duration;

use crate::rig::*;
use onward_core::effect::Answer;
use onward_core::grant::{Denial, ExtensionReason, MalformedRequest};
use onward_core::health::Verdict;
use onward_core::ids::{Claim, JobId, SessionId};
use onward_core::input::Call;
use onward_core::job::{Draft, JobState, WorkflowDraft};
use onward_core::message::{ExtensionAnswer, ExtensionRequest, FromWorker, ToWorker};
use onward_core::refusal::{Refusal, RefusalKind};
use onward_core::state::LedgerFact;

const GRANTS_MS: [u64; 5] = [30_000, 15_000, 7_500, 3_750, 1_875];

fn holder(rig: &mut Rig, slots: u32) -> (SessionId, JobId, Claim) {
    let session = rig.worker("w", 1, slots, &["k"]);
    let id = rig.submit(patient("k"));
    (session, id, rig.claim(session))
}

fn request(claims: Vec<Claim>, reason: &str, progress: f64) -> ExtensionRequest {
    ExtensionRequest { claims, reason: reason.into(), progress, estimated_remaining: None }
}

fn ask(rig: &mut Rig, session: SessionId, asked: ExtensionRequest) -> ExtensionAnswer {
    rig.tell(session, FromWorker::RequestExtension(asked));
    match rig.last_sent(session) {
        ToWorker::ExtensionAnswer(answer) => answer,
        other => panic!("an extension request is answered by {other:?}"),
    }
}

fn extend(rig: &mut Rig, job: JobId, by_s: u64, request: &str) -> Result<Answer, Refusal> {
    rig.call(Call::Extend { job, by: secs(by_s), reason: "nightly load".into(), request: name(request) })
}

fn facts(rig: &Rig, job: JobId) -> Vec<LedgerFact> {
    rig.view(job).ledger.into_iter().map(|entry| entry.what).collect()
}

#[test]
fn grants_halve_and_the_answer_says_what_is_left() {
    let mut rig = Rig::new();
    let (session, id, claim) = holder(&mut rig, 1);
    let mut total = Duration::ZERO;
    for (n, grant) in GRANTS_MS.into_iter().enumerate() {
        let answer = rig.ask_extension(session, vec![claim], 0.1 * (n as f64 + 1.0));
        total += ms(grant);
        assert_eq!(answer.result, Ok(ms(grant)), "grant {n}");
        assert_eq!(answer.claims, [claim]);
        assert_eq!(answer.remaining, secs(30) + total, "the health deadline moves by each grant");
        assert_eq!(answer.remaining_extensions, 4 - n as u32);
    }
    assert_eq!(total, ms(58_125));
    let view = rig.view(id);
    assert_eq!(view.extensions, total);
    assert_eq!(view.deadline, Some(view.created_at + secs(24 * 3600) + total));
    let sixth = rig.ask_extension(session, vec![claim], 0.9);
    assert_eq!(sixth.result, Err(Denial::WorkerGrantsSpent));
    assert_eq!((sixth.remaining, sixth.remaining_extensions), (secs(30) + total, 0));
}

#[test]
fn a_granted_worker_may_be_silent_until_its_health_deadline() {
    let mut rig = Rig::new();
    let (session, _, claim) = holder(&mut rig, 1);
    rig.silence(session);
    assert_eq!(rig.ask_extension(session, vec![claim], 0.1).remaining, secs(60));
    rig.advance(secs(60) - ms(1));
    assert_eq!(rig.verdict("w"), Verdict::Busy, "five probes missed, and none counts");
    rig.advance(ms(1));
    assert_eq!(rig.verdict("w"), Verdict::Suspect);
}

#[test]
fn the_first_thing_that_is_wrong_is_the_answer() {
    let mut rig = Rig::new();
    rig.bystanders(2);
    let (session, id, claim) = holder(&mut rig, 2);
    rig.submit(patient("k"));
    let second = rig.claim(session);
    let stale = Claim { fence: fence(1, 9), ..claim };
    let nan = f64::NAN;
    let malformed = |what| Err(Denial::Malformed(what));

    // Nobody holds what this names; everything else is wrong, too.
    let answer = rig.http_extension(request(vec![stale], "tired", nan));
    assert_eq!(
        (answer.result, answer.remaining, answer.remaining_extensions),
        (Err(Denial::UnknownWorker), secs(0), 0)
    );
    for (progress, reason) in [(nan, "tired"), (-0.1, "gc_pause"), (1.1, "gc_pause"), (f64::INFINITY, "gc_pause")] {
        let answer = ask(&mut rig, session, request(vec![stale], reason, progress));
        assert_eq!(answer.result, malformed(MalformedRequest::ProgressOutOfRange), "{progress}");
    }
    let answer = ask(&mut rig, session, request(vec![stale], "tired", 0.5));
    assert_eq!(answer.result, malformed(MalformedRequest::UnknownReason));
    let answer = ask(&mut rig, session, request(vec![claim, stale], "gc_pause", 0.5));
    assert_eq!(answer.result, Err(Denial::StaleAttempt));
    assert_eq!(rig.refused(RefusalKind::StaleAttempt), 1);

    // Suspect, evicted and spent, each before what comes after it.
    assert_eq!(rig.ask_extension(session, vec![claim], 0.1).result, Ok(secs(30)));
    assert_eq!(rig.ask_extension(session, vec![claim], 0.1).result, Err(Denial::NoProgress));
    assert_eq!(rig.ask_extension(session, vec![claim], 0.05).result, Err(Denial::NoProgress));
    assert_eq!(rig.ask_extension(session, vec![claim, second], 0.1).result, Err(Denial::NoProgress), "one is enough");
    for n in 2..=5 {
        assert!(rig.ask_extension(session, vec![claim], 0.1 * f64::from(n)).result.is_ok());
    }
    assert_eq!(rig.ask_extension(session, vec![claim], 0.1).result, Err(Denial::WorkerGrantsSpent));
    rig.succeed(session, second).unwrap();
    assert_eq!(rig.ask_extension(session, vec![claim], 0.1).result, Err(Denial::AttemptGrantsSpent));
    rig.silence(session);
    rig.advance(secs(60) + ms(58_125));
    assert_eq!((rig.verdict("w"), rig.evictions().len()), (Verdict::Suspect, 1));
    let answer = ask(&mut rig, session, request(vec![claim], "gc_pause", 0.1));
    assert_eq!(answer.result, Err(Denial::StaleAttempt), "what was taken from it is not its own");
    assert_eq!(ask(&mut rig, session, request(vec![], "gc_pause", 0.1)).result, Err(Denial::WorkerSuspect));
    assert_eq!(rig.view(id).extensions, ms(58_125), "no denial moved anything");
}

#[test]
fn a_suspect_worker_is_denied_for_what_it_holds() {
    let mut rig = Rig::new();
    let (session, id, claim) = holder(&mut rig, 1);
    rig.silence(session);
    rig.advance(secs(30));
    let answer = rig.ask_extension(session, vec![claim], 0.5);
    assert_eq!((answer.result, answer.remaining), (Err(Denial::WorkerSuspect), secs(0)));
    assert_eq!(rig.view(id).extensions, secs(0));
}

#[test]
fn an_evicted_worker_that_answers_is_denied_as_evicted() {
    let mut rig = Rig::new();
    rig.bystanders(2);
    let (session, _, _) = holder(&mut rig, 1);
    rig.evict(session);
    rig.advance(secs(10));
    assert!(rig.worker_view("w").judgement.signals.live);
    assert_eq!(rig.ask_extension(session, vec![], 0.5).result, Err(Denial::WorkerEvicted));
}

#[test]
fn the_count_starts_anew_when_an_attempt_succeeds() {
    let mut rig = Rig::new();
    let (session, _, first) = holder(&mut rig, 2);
    assert_eq!(rig.ask_extension(session, vec![first], 0.1).result, Ok(secs(30)));
    assert_eq!(rig.ask_extension(session, vec![first], 0.2).result, Ok(secs(15)));
    rig.submit(job("k"));
    let failing = rig.claim(session);
    rig.fail_for_good(session, failing).unwrap();
    rig.submit(job("k"));
    let released = rig.claim(session);
    assert_eq!(rig.ask_extension(session, vec![first], 0.3).result, Ok(ms(7_500)), "a failure resets nothing");
    rig.succeed(session, released).unwrap();
    let answer = rig.ask_extension(session, vec![first], 0.4);
    assert_eq!(answer.result, Ok(secs(30)));
    assert_eq!(answer.remaining_extensions, 1, "this attempt has had four of its five");
}

#[test]
fn the_count_starts_anew_when_the_worker_recovers_from_suspect() {
    let mut rig = Rig::new();
    let (session, _, claim) = holder(&mut rig, 1);
    assert_eq!(rig.ask_extension(session, vec![claim], 0.1).result, Ok(secs(30)));
    assert_eq!(rig.ask_extension(session, vec![claim], 0.2).result, Ok(secs(15)));
    rig.advance(secs(100));
    assert_eq!(rig.ask_extension(session, vec![claim], 0.3).result, Ok(ms(7_500)), "ten probe answers reset nothing");
    rig.close(session);
    let session = rig.hello("w", "1", 2, 1, &["k"], vec![claim]);
    assert_eq!(rig.ask_extension(session, vec![claim], 0.4).result, Ok(secs(30)));
    rig.restart(secs(1));
    let session = rig.hello("w", "1", 3, 1, &["k"], vec![claim]);
    assert_eq!(rig.ask_extension(session, vec![claim], 0.4).result, Err(Denial::NoProgress));
    assert_eq!(rig.ask_extension(session, vec![claim], 0.5).result, Ok(secs(15)), "a takeover resets nothing");
}

#[test]
fn answering_late_after_silence_is_a_recovery() {
    let mut rig = Rig::new();
    let (session, _, claim) = holder(&mut rig, 1);
    assert_eq!(rig.ask_extension(session, vec![claim], 0.1).result, Ok(secs(30)));
    rig.silence(session);
    rig.advance(secs(60));
    assert_eq!(rig.verdict("w"), Verdict::Suspect);
    rig.answering.insert(session);
    rig.advance(secs(10));
    assert_ne!(rig.verdict("w"), Verdict::Suspect);
    assert_eq!(rig.ask_extension(session, vec![claim], 0.2).result, Ok(secs(30)));
}

#[test]
fn an_attempt_gets_five_grants_ever_whatever_its_worker_does() {
    let mut rig = Rig::new();
    let (session, _, claim) = holder(&mut rig, 2);
    for n in 1..=5 {
        assert!(rig.ask_extension(session, vec![claim], 0.1 * f64::from(n)).result.is_ok());
    }
    rig.submit(patient("k"));
    let other = rig.claim(session);
    rig.succeed(session, other).unwrap();
    rig.submit(patient("k"));
    let other = rig.claim(session);
    let denied = rig.ask_extension(session, vec![claim], 0.9);
    assert_eq!((denied.result, denied.remaining_extensions), (Err(Denial::AttemptGrantsSpent), 0));
    let denied = rig.ask_extension(session, vec![], 0.9);
    assert_eq!(denied.result, Err(Denial::AttemptGrantsSpent), "naming none means all, and one of them is spent");
    let granted = rig.ask_extension(session, vec![other], 0.9);
    assert_eq!((granted.result, granted.remaining_extensions), (Ok(secs(30)), 4));
}

#[test]
fn naming_an_attempt_twice_counts_once() {
    let mut rig = Rig::new();
    let (session, _, claim) = holder(&mut rig, 1);
    let answer = rig.ask_extension(session, vec![claim, claim], 0.1);
    assert_eq!((answer.result, answer.remaining_extensions), (Ok(secs(30)), 4));
}

fn fan(count: usize) -> Draft {
    let workflow = |n| WorkflowDraft { name: Some(format!("part-{n}").into()), ..job("k").workflows.remove(0) };
    Draft { workflows: (0..count).map(workflow).collect(), ..patient("k") }
}

#[test]
fn naming_none_means_all_and_each_job_is_moved_once() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 4, &["k"]);
    let (fanned, single) = (rig.submit(fan(3)), rig.submit(patient("k")));
    let held: Vec<Claim> = rig.assigned(session).iter().map(|assignment| assignment.claim).collect();
    let answer = rig.ask_extension(session, vec![], 0.1);
    let mut named = answer.claims.clone();
    named.sort();
    assert_eq!((answer.result, &named), (Ok(secs(30)), &held));
    for job in [fanned, single] {
        let view = rig.view(job);
        assert_eq!(view.extensions, secs(30));
        assert_eq!(view.deadline, Some(view.created_at + secs(24 * 3600 + 30)));
    }
    // Naming one moves its job only.
    assert_eq!(rig.ask_extension(session, vec![held[3]], 0.2).result, Ok(secs(15)));
    assert_eq!((rig.view(fanned).extensions, rig.view(single).extensions), (secs(30), secs(45)));
    assert_eq!(rig.ask_extension(session, vec![held[0]], 0.1).result, Err(Denial::NoProgress), "it was named, too");
}

#[test]
fn extensions_move_the_deadline_and_no_further_than_their_cap() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let capped = Draft { timeout: Some(secs(50)), max_extension: Some(secs(40)), ..patient("k") };
    let id = rig.submit(capped);
    let claim = rig.claim(session);
    assert!(rig.ask_extension(session, vec![claim], 0.1).result.is_ok());
    assert!(rig.ask_extension(session, vec![claim], 0.2).result.is_ok());
    let view = rig.view(id);
    assert_eq!((view.extensions, view.deadline), (secs(45), Some(view.created_at + secs(90))));
    rig.advance(secs(90) - ms(1));
    assert_eq!(rig.state_of(id), JobState::Running);
    rig.advance(ms(1));
    assert_eq!(rig.state_of(id), JobState::TimedOut);
}

#[test]
fn by_default_extensions_are_capped_by_the_jobs_own_timeout() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { timeout: Some(secs(20)), ..patient("k") });
    let claim = rig.claim(session);
    assert!(rig.ask_extension(session, vec![claim], 0.1).result.is_ok());
    let view = rig.view(id);
    assert_eq!(view.deadline, Some(view.created_at + secs(40)));
}

#[test]
fn a_live_grant_holds_off_stuck() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.advance(secs(110));
    assert_eq!(rig.ask_extension(session, vec![claim], 0.1).remaining, secs(60));
    rig.advance(secs(60) - ms(1));
    assert_eq!(rig.endings(id), [""; 0], "without it 120 s would have been the end");
    rig.advance(ms(1));
    assert_eq!(rig.endings(id), ["stuck"]);
}

#[test]
fn a_grant_does_not_renew_a_lease() {
    let mut rig = Rig::new();
    let (session, id, claim) = holder(&mut rig, 1);
    for n in 1..=5 {
        rig.advance(secs(50));
        assert!(rig.ask_extension(session, vec![claim], 0.1 * f64::from(n)).result.is_ok());
    }
    rig.advance(secs(50));
    assert_eq!(rig.endings(id), ["lease_expired"]);
}

#[test]
fn with_renewal_switched_off_a_lease_lasts_as_long_as_it_was_given() {
    let mut rig = Rig::with(|settings| settings.lease.enabled = false);
    let (session, id, claim) = holder(&mut rig, 1);
    for units in 1..=5 {
        rig.advance(secs(50));
        let left =
            rig.beat(session, onward_core::message::Beat::progress(claim, units)).expect("it is heard").lease_remaining;
        assert_eq!(left, secs(300 - 50 * units));
    }
    rig.advance(secs(50));
    assert_eq!(rig.endings(id), ["lease_expired"]);
}

#[test]
fn the_ledger_keeps_every_request_and_its_answer() {
    let mut rig = Rig::new();
    let (session, id, claim) = holder(&mut rig, 1);
    ask(&mut rig, session, request(vec![claim], "gc_pause", 0.25));
    ask(&mut rig, session, request(vec![claim], "resource_contention", 0.25));
    ask(&mut rig, session, request(vec![claim], "tired", 0.5));
    ask(&mut rig, session, request(vec![claim], "long_workflow", 7.0));
    ask(&mut rig, session, request(vec![claim], "long_workflow", 0.5));
    extend(&mut rig, id, 600, "r1").unwrap();
    let worker = worker_id("w");
    let denied = |denial, reason, progress| LedgerFact::Denied { worker: worker_id("w"), denial, reason, progress };
    let expected = [
        LedgerFact::Granted {
            worker: worker.clone(),
            by: secs(30),
            reason: Some(ExtensionReason::GcPause),
            progress: 0.25,
        },
        denied(Denial::NoProgress, Some(ExtensionReason::ResourceContention), 0.25),
        denied(Denial::Malformed(MalformedRequest::UnknownReason), None, 0.5),
        denied(Denial::Malformed(MalformedRequest::ProgressOutOfRange), Some(ExtensionReason::LongWorkflow), 7.0),
        LedgerFact::Granted { worker, by: secs(15), reason: Some(ExtensionReason::LongWorkflow), progress: 0.5 },
        LedgerFact::ExtendedByHand { by: secs(600), reason: "nightly load".into(), request: name("r1") },
    ];
    assert_eq!(facts(&rig, id), expected);
    rig.restart(secs(1));
    assert_eq!(facts(&rig, id), expected);
}

#[test]
fn the_same_request_again_and_again_is_one_entry_with_a_count() {
    let mut rig = Rig::new();
    let (session, id, claim) = holder(&mut rig, 1);
    rig.ask_extension(session, vec![claim], 0.1);
    for _ in 0..1_024 {
        rig.advance(ms(10));
        rig.ask_extension(session, vec![claim], 0.1);
    }
    let ledger = rig.view(id).ledger;
    assert_eq!(ledger.iter().map(|entry| entry.times).collect::<Vec<_>>(), [1, 1_024]);
    assert!(ledger[1].at > ledger[0].at);
}

#[test]
fn what_is_denied_to_two_attempts_is_two_entries() {
    let mut rig = Rig::new();
    let (session, id, first) = holder(&mut rig, 1);
    ask(&mut rig, session, request(vec![first], "gc_pause", 7.0));
    rig.advance(secs(1));
    rig.release(session, first).unwrap();
    let second = rig.claim(session);
    ask(&mut rig, session, request(vec![second], "gc_pause", 8.0));
    let denied = |fact: &LedgerFact| match fact {
        LedgerFact::Denied { progress, .. } => *progress,
        other => panic!("{other:?}"),
    };
    assert_eq!(facts(&rig, id).iter().map(denied).collect::<Vec<_>>(), [7.0, 8.0]);
}

#[test]
fn an_operator_extends_a_job_by_hand_once_per_request() {
    let mut rig = Rig::new();
    let id = rig.submit(Draft { timeout: Some(secs(100)), ..job("k") });
    assert_eq!(extend(&mut rig, id, 60, "r1"), Ok(Answer::Extended { total: secs(60) }));
    let before = rig.manager.state().dump();
    assert_eq!(extend(&mut rig, id, 60, "r1"), Ok(Answer::Extended { total: secs(60) }), "the same again");
    assert_eq!(extend(&mut rig, id, 70, "r1"), Err(Refusal::Conflict));
    assert_eq!(rig.manager.state().dump(), before);
    assert_eq!(extend(&mut rig, id, 10, "r2"), Ok(Answer::Extended { total: secs(70) }));
    rig.advance(secs(170) - ms(1));
    assert_eq!(rig.state_of(id), JobState::Ready);
    rig.advance(ms(1));
    assert_eq!(rig.state_of(id), JobState::TimedOut);
    assert_eq!(extend(&mut rig, id, 5, "r3"), Err(Refusal::AlreadyEnded));
    assert_eq!(extend(&mut rig, id, 10, "r2"), Ok(Answer::Extended { total: secs(70) }), "a repeat is still known");
    let unknown = rig.new_id();
    assert_eq!(extend(&mut rig, unknown, 5, "r1"), Err(Refusal::UnknownJob));
}

#[test]
fn an_extension_by_hand_has_a_range() {
    let mut rig = Rig::new();
    let id = rig.submit(job("k"));
    for by_s in [0, 367 * 24 * 3600] {
        match extend(&mut rig, id, by_s, "r") {
            Err(Refusal::Invalid(invalid)) => assert_eq!(invalid.field, "by_s"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(rig.view(id).extensions, secs(0));
}

#[test]
fn a_worker_without_a_session_asks_by_its_claim() {
    let mut rig = Rig::new();
    let id = rig.submit(patient("k"));
    let claim = rig.leases(Rig::poll_of("h", &["k"], 1, secs(0))).remove(0).claim;
    let answer = rig.http_extension(request(vec![claim], "gc_pause", 0.5));
    assert_eq!((answer.result, answer.remaining_extensions), (Ok(secs(30)), 4));
    assert_eq!(rig.view(id).extensions, secs(30));
    let gone = Claim { job: rig.new_id(), ..claim };
    let call = Call::RequestExtension(request(vec![gone], "gc_pause", 0.5));
    assert_eq!(rig.call(call), Err(Refusal::UnknownJob));
    let call = Call::RequestExtension(request(vec![], "gc_pause", 0.5));
    assert_eq!(rig.call(call), Err(Refusal::UnknownAttempt));
}
