//! How attempts end: by their handler, by a cancel, and when the manager has answered.

use super::*;

#[test]
fn the_last_words_go_before_the_end_and_a_checkpoint_apart() {
    let mut bench = Bench::running();
    bench.say(0, plain());
    bench.say(1, HandlerReport { note: Some("nearly".into()), checkpoint: Some(b"c"[..].into()), ..progress(99) });
    bench.say(2, quiet(secs(5)));
    let told = bench.finish(3, HandlerOutcome::Failed { error: "no".into(), retryable: true, delay: Some(secs(2)) });
    let first = Beat { total: Some(100), note: Some("nearly".into()), ..Beat::progress(claim(1), 99) };
    let second = Beat { checkpoint: Some(b"c"[..].into()), ..Beat::plain(claim(1)) };
    let report = EndReport::Fail { error: "no".into(), retryable: true, delay: Some(secs(2)) };
    assert_eq!(told, [beats([first, second]), settle(report)]);
    assert_eq!(bench.until(120_000), [], "an attempt that has ended renews and loses nothing");
}

#[test]
fn a_checkpoint_that_waits_for_having_come_too_soon_is_among_the_last_words() {
    let mut bench = Bench::running();
    bench.say(0, checkpoint("here"));
    bench.beat_refused(1, RefusalKind::TooSoon);
    let told = bench.finish(2, HandlerOutcome::Failed { error: "no".into(), retryable: true, delay: None });
    assert_eq!(told[0], beat(&checkpoint("here")));
}

#[test]
fn a_beat_alone_need_not_be_said_before_the_end() {
    let mut bench = Bench::running();
    bench.say(0, plain());
    bench.say(1, HandlerReport { note: Some("bye".into()), ..plain() });
    assert_eq!(bench.finish(2, HandlerOutcome::Succeeded(result())), [settle(success())]);
}

#[test]
fn an_end_is_reported_on_every_new_session_until_it_is_answered() {
    let mut bench = Bench::running();
    assert_eq!(bench.finish(0, HandlerOutcome::Succeeded(result())), [settle(success())]);
    assert_eq!(bench.finish(1, HandlerOutcome::Stopped), [], "it ends once");
    for session in 1..4 {
        assert_eq!(bench.reconnect(session * 100_000, session * 100_000 + 9_000), [settle(success())]);
    }
    assert_eq!(bench.settled(400_000, Ok(())), [Effect::Settled { claim: claim(1), answer: Ok(()) }]);
    assert_eq!(bench.reconnect(400_001, 409_000), []);
}

#[test]
fn an_end_without_a_session_is_reported_on_the_next_with_all_that_was_not_answered() {
    let mut bench = Bench::running();
    bench.say(0, HandlerReport { checkpoint: Some(b"old"[..].into()), ..progress(1) });
    bench.at(1, Input::Disconnected);
    bench.say(2, progress(7));
    assert_eq!(bench.finish(3, HandlerOutcome::Succeeded(result())), []);
    let reconnect = |bench: &mut Bench, lost| bench.reconnect(lost, lost + 10_000);
    bench.until(10_000);
    bench.at(10_000, Input::Connected);
    let first = Beat { total: Some(100), ..Beat::progress(claim(1), 7) };
    let second = Beat { checkpoint: Some(b"old"[..].into()), ..Beat::plain(claim(1)) };
    let expected = [beats([first, second]), settle(success())];
    assert_eq!(bench.welcome(10_000), expected);
    assert_eq!(reconnect(&mut bench, 10_001), expected, "neither was answered");
}

#[test]
fn what_was_in_flight_at_the_end_is_said_again_if_the_session_is_lost() {
    let mut bench = Bench::running();
    bench.say(0, checkpoint("c"));
    assert_eq!(bench.finish(1, HandlerOutcome::Succeeded(result())), [settle(success())], "it is on its way already");
    assert_eq!(bench.reconnect(2, 10_000), [beat(&checkpoint("c")), settle(success())]);
}

#[test]
fn a_refusal_that_passes_is_answered_by_another_try_on_the_same_session() {
    for kind in [RefusalKind::NoLeader, RefusalKind::Overloaded] {
        let mut bench = Bench::running();
        bench.finish(0, HandlerOutcome::Succeeded(result()));
        for n in 0..5 {
            assert_eq!(bench.settled(n * 10_000, Err(refused(kind))), [Effect::Noted(refused(kind))]);
            let again = bench.until((n + 1) * 10_000);
            assert_eq!(again.len(), 1, "{again:?}");
            assert_eq!(again[0].1, settle(success()));
        }
        assert_eq!(bench.machine.holding(), 1);
        bench.settled(50_000, Err(refused(kind)));
        assert_eq!(bench.reconnect(50_000, 60_000), [settle(success())]);
        assert_eq!(bench.until(90_000), [], "once on the new session is enough");
        assert_eq!(bench.settled(90_000, Ok(())).len(), 1);
        assert_eq!((bench.machine.holding(), bench.machine.next_wakeup()), (0, None));
    }
}

#[test]
fn a_refusal_that_is_final_ends_it() {
    for kind in [RefusalKind::StaleAttempt, RefusalKind::AlreadyEnded, RefusalKind::UnknownJob] {
        let mut bench = Bench::running();
        bench.finish(0, HandlerOutcome::Succeeded(result()));
        let answer = Err(refused(kind));
        assert_eq!(bench.settled(1, answer.clone()), [Effect::Settled { claim: claim(1), answer }]);
        assert_eq!(bench.machine.holding(), 0);
    }
}

#[test]
fn a_report_that_is_too_long_becomes_a_failure_that_says_so() {
    let failed = |end| match end {
        Effect::Send(FromWorker::Settle(list)) => list[0].report.clone(),
        other => panic!("{other:?}"),
    };
    for (end, retryable) in [
        (HandlerOutcome::Succeeded(result()), false),
        (HandlerOutcome::Failed { error: "long".into(), retryable: true, delay: None }, true),
    ] {
        for kind in [RefusalKind::Limited, RefusalKind::Invalid] {
            let mut bench = Bench::running();
            bench.finish(0, end.clone());
            let told = bench.settled(1, Err(refused(kind)));
            match failed(told.last().unwrap().clone()) {
                EndReport::Fail { error, retryable: is, .. } => {
                    assert!(error.ends_with(": no"), "{error}");
                    assert_eq!(is, retryable);
                }
                other => panic!("{other:?}"),
            }
            assert_eq!(bench.machine.holding(), 1);
            assert_eq!(bench.settled(2, Err(refused(kind))).len(), 1, "once is enough");
            assert_eq!(bench.machine.holding(), 0);
        }
    }
    let mut bench = Bench::running();
    bench.finish(0, HandlerOutcome::Released { delay: Some(Duration::MAX) });
    let told = bench.settled(1, Err(refused(RefusalKind::Invalid)));
    assert_eq!(failed(told.last().unwrap().clone()), EndReport::Release { delay: None });
}

#[test]
fn a_cancel_is_passed_on_once_and_what_comes_of_it_is_told() {
    for (end, told) in [
        (HandlerOutcome::Stopped, ended(1)),
        (HandlerOutcome::Succeeded(result()), settle(success())),
        (HandlerOutcome::Released { delay: None }, settle(EndReport::Release { delay: None })),
    ] {
        let mut bench = Bench::running();
        let why = CancelWhy::TimedOut;
        assert_eq!(bench.heard(1, ManagerMessage::Cancel { claim: claim(1), why }), [cancel(why)]);
        assert_eq!(bench.heard(2, ManagerMessage::Cancel { claim: claim(1), why }), []);
        assert_eq!(bench.finish(3, end), [told]);
    }
}

#[test]
fn a_cancel_also_comes_with_the_answer_to_a_beat() {
    let mut bench = Bench::running();
    bench.say(0, plain());
    let answer = Ok(BeatAccepted { lease_remaining: secs(10), cancel: true, quiet: None });
    let told = bench.heard(1, ManagerMessage::BeatAnswer { claim: claim(1), answer });
    assert_eq!(told, [lease_until(30_000), cancel(CancelWhy::Asked)]);
    assert_eq!(bench.finish(2, HandlerOutcome::Stopped), [ended(1)]);
}

#[test]
fn a_cancel_of_what_is_not_held_is_answered_by_that_it_has_ended() {
    let mut bench = Bench::running();
    assert_eq!(bench.heard(1, ManagerMessage::Cancel { claim: claim(2), why: CancelWhy::Stale }), [ended(2)]);
    bench.finish(2, HandlerOutcome::Succeeded(result()));
    let told = bench.heard(3, ManagerMessage::Cancel { claim: claim(1), why: CancelWhy::Stale });
    assert_eq!(told, [], "the answer to its report says what became of it");
}

#[test]
fn a_cancel_after_the_lease_was_lost_makes_the_stop_an_end() {
    let mut bench = Bench::running();
    bench.until(30_000);
    assert_eq!(bench.heard(30_001, ManagerMessage::Cancel { claim: claim(1), why: CancelWhy::LeaseExpired }), []);
    assert_eq!(bench.finish(30_002, HandlerOutcome::Stopped), [ended(1)]);
}

#[test]
fn what_stopped_without_a_session_is_no_longer_held() {
    let mut bench = Bench::running();
    bench.heard(1, ManagerMessage::Cancel { claim: claim(1), why: CancelWhy::Asked });
    bench.at(2, Input::Disconnected);
    assert_eq!(bench.finish(3, HandlerOutcome::Stopped), []);
    assert_eq!(bench.machine.holding(), 0);
}

#[test]
fn a_handler_that_gives_up_uncalled_gives_back() {
    let mut bench = Bench::running();
    assert_eq!(bench.finish(1, HandlerOutcome::Stopped), [settle(EndReport::Release { delay: None })]);
}

#[test]
fn an_assignment_is_taken_once_and_one_without_a_lease_not_at_all() {
    let mut bench = Bench::running();
    assert_eq!(bench.heard(1, ManagerMessage::Assign(assignment(claim(1)))), []);
    let none = Assignment { lease: Duration::ZERO, ..assignment(claim(2)) };
    assert_eq!(bench.heard(1, ManagerMessage::Assign(none)), [ended(2)]);
    assert_eq!(bench.machine.holding(), 1);
}

#[test]
fn extensions_are_asked_for_and_answered() {
    let mut bench = Bench::running();
    let ask = |n| Input::Extension {
        claim: claim(n),
        reason: "gc_pause".into(),
        progress: 0.5,
        estimated_remaining: Some(secs(3)),
    };
    match &bench.at(1, ask(1))[..] {
        [Effect::Send(FromWorker::RequestExtension(asked))] => {
            assert_eq!((&*asked.claims, &*asked.reason, asked.progress), (&[claim(1)][..], "gc_pause", 0.5));
        }
        other => panic!("{other:?}"),
    }
    let granted = ExtensionGrant { extension: secs(30), remaining: secs(50), remaining_extensions: 4 };
    let heard = ManagerMessage::ExtensionAnswer {
        claims: vec![claim(1)],
        result: Ok(granted.extension),
        remaining: granted.remaining,
        remaining_extensions: 4,
    };
    assert_eq!(bench.heard(2, heard), [Effect::ExtensionAnswered { claim: claim(1), answer: Ok(granted) }]);
    let code = |effects: Vec<Effect>| match &effects[..] {
        [Effect::ExtensionAnswered { answer: Err(refused), .. }] => refused.code.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(&*code(bench.at(3, ask(9))), "stale_attempt");
    bench.at(4, ask(1));
    assert_eq!(&*code(bench.at(5, Input::Disconnected)), "no_session", "no answer will come");
    assert_eq!(&*code(bench.at(5, ask(1))), "no_session");
}
