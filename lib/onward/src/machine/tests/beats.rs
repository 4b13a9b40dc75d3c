//! What a handler says on its way to the manager, and the lease that it renews.

use super::*;

#[test]
fn the_first_word_goes_at_once_and_later_ones_go_together_at_the_end_of_the_interval() {
    let mut bench = Bench::running();
    assert_eq!(bench.say(100, progress(1)), [beat(&progress(1))]);
    assert_eq!(bench.beat_taken(120), [lease_until(30_100)]);
    assert_eq!(bench.say(200, HandlerReport { note: Some("early".into()), ..progress(2) }), []);
    assert_eq!(bench.say(300, checkpoint("here")), []);
    assert_eq!(bench.say(400, progress(5)), []);
    let together = HandlerReport { note: Some("early".into()), checkpoint: Some(b"here"[..].into()), ..progress(5) };
    assert_eq!(bench.until(1_099), []);
    assert_eq!(bench.until(1_100), [(1_100, beat(&together))]);
    bench.beat_taken(1_101);
    assert_eq!(bench.until(29_000), [], "without a word nothing is sent");
}

#[test]
fn words_are_joined_with_the_later_one_in_front() {
    for (first, second, both) in [
        (progress(3), progress(2), progress(3)),
        (
            progress(2),
            HandlerReport { progress: Some((2, None)), ..plain() },
            HandlerReport { progress: Some((2, None)), ..plain() },
        ),
        (progress(3), plain(), progress(3)),
        (checkpoint("a"), checkpoint("b"), checkpoint("b")),
        (quiet(secs(9)), plain(), plain()),
        (progress(1), quiet(secs(9)), HandlerReport { quiet: Some(secs(9)), ..progress(1) }),
    ] {
        assert_eq!(first.clone().then(second.clone()), both, "{first:?} then {second:?}");
    }
}

#[test]
fn one_beat_is_in_flight_at_most() {
    let mut bench = Bench::running();
    bench.say(0, progress(1));
    for n in 1..20 {
        assert_eq!(bench.say(n * 500, progress(n)), [], "the first has no answer yet");
        assert_eq!(bench.say(n * 500, quiet(secs(1))), []);
    }
    assert_eq!(bench.until(9_999), []);
    let waited = HandlerReport { quiet: Some(secs(1)), ..progress(19) };
    assert_eq!(bench.beat_taken(10_000), [lease_until(30_000), beat(&waited)], "then what has waited goes");
}

#[test]
fn the_interval_is_a_third_of_a_short_lease() {
    let mut bench = Bench::talking();
    let short = Assignment { lease: ms(300), ..assignment(claim(1)) };
    bench.heard(0, ManagerMessage::Assign(short));
    bench.say(0, plain());
    bench.heard(
        1,
        ManagerMessage::BeatAnswer {
            claim: claim(1),
            answer: Ok(BeatAccepted { lease_remaining: ms(300), cancel: false, quiet: None }),
        },
    );
    bench.say(2, plain());
    assert_eq!(bench.until(100), [(100, beat(&plain()))]);
}

#[test]
fn a_quiet_section_goes_out_at_once_and_nothing_but_a_word_ends_it() {
    let mut bench = Bench::running();
    bench.say(0, plain());
    bench.beat_taken(10);
    assert_eq!(bench.say(20, plain()), [], "this one waits for the interval");
    assert_eq!(bench.say(30, quiet(secs(20))), [beat(&quiet(secs(20)))]);
    bench.beat_taken(40);
    assert_eq!(bench.until(20_000), [], "a beat of nobody's would end the section");
    assert_eq!(bench.say(20_000, plain()), [beat(&plain())], "the next word ends it");
}

#[test]
fn a_word_after_a_quiet_section_that_was_not_sent_yet_takes_its_place() {
    let mut bench = Bench::running();
    bench.say(0, plain());
    assert_eq!(bench.say(10, quiet(secs(20))), [], "the first beat is still in flight");
    assert_eq!(bench.say(20, progress(1)), []);
    assert_eq!(bench.beat_taken(30), [lease_until(30_000)], "the section is over already");
    assert_eq!(bench.until(1_000), [(1_000, beat(&progress(1)))]);
}

#[test]
fn the_lease_counts_from_when_it_was_asked_for() {
    let mut bench = Bench::running();
    bench.say(10_000, plain());
    assert_eq!(bench.beat_taken(25_000), [lease_until(40_000)]);
    assert_eq!(bench.until(60_000), [(40_000, cancel(CancelWhy::LeaseExpired))]);
}

#[test]
fn an_answer_that_grants_less_never_shrinks_the_lease() {
    let mut bench = Bench::running();
    bench.say(0, plain());
    let answer = Ok(BeatAccepted { lease_remaining: ms(5), cancel: false, quiet: None });
    assert_eq!(bench.heard(1, ManagerMessage::BeatAnswer { claim: claim(1), answer }), [lease_until(30_000)]);
}

#[test]
fn a_lost_lease_stops_the_handler_or_not_and_its_late_success_is_sent_all_the_same() {
    for (policy, said) in
        [(LostPolicy::Cancel, vec![(30_000, cancel(CancelWhy::LeaseExpired))]), (LostPolicy::Continue, vec![])]
    {
        let mut bench = Bench::running_with(|config| config.on_lost = policy);
        assert_eq!(bench.until(31_000), said);
        assert_eq!(bench.say(31_000, progress(1)), [], "there is nothing to renew");
        assert_eq!(bench.finish(32_000, HandlerOutcome::Succeeded(result())).last(), Some(&settle(success())));
        let answer = Err(refused(RefusalKind::StaleAttempt));
        assert_eq!(bench.settled(32_001, answer.clone()), [Effect::Settled { claim: claim(1), answer }]);
        assert_eq!(bench.machine.holding(), 0);
    }
}

#[test]
fn a_handler_that_is_to_continue_is_stopped_by_a_cancel_and_not_by_the_word_that_its_lease_is_lost() {
    for (why, stops) in [
        (CancelWhy::LeaseExpired, false),
        (CancelWhy::Stale, false),
        (CancelWhy::Asked, true),
        (CancelWhy::TimedOut, true),
        (CancelWhy::Stuck, true),
        (CancelWhy::Evicted, true),
    ] {
        for policy in [LostPolicy::Cancel, LostPolicy::Continue] {
            let mut bench = Bench::running_with(|config| config.on_lost = policy);
            let told = bench.heard(1, ManagerMessage::Cancel { claim: claim(1), why });
            if stops || policy == LostPolicy::Cancel {
                assert_eq!(told, [cancel(why)], "{why:?} under {policy:?}");
                continue;
            }
            assert_eq!(told, [], "{why:?}");
            assert_eq!(bench.say(2, progress(1)), [], "there is nothing to renew");
            assert_eq!(bench.until(60_000), []);
            assert_eq!(bench.finish(60_000, HandlerOutcome::Succeeded(result())).last(), Some(&settle(success())));
        }
    }
}

#[test]
fn a_handler_that_stopped_for_a_lost_lease_has_failed_as_an_expiry_counts() {
    let mut bench = Bench::running();
    bench.until(30_000);
    match &bench.finish(30_001, HandlerOutcome::Stopped)[..] {
        [Effect::Send(FromWorker::Settle(list))] => {
            assert!(matches!(list[0].report, EndReport::Fail { retryable: true, delay: None, .. }), "{list:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_claim_that_the_manager_no_longer_honours() {
    for kind in [
        RefusalKind::StaleAttempt,
        RefusalKind::AlreadyEnded,
        RefusalKind::UnknownJob,
        RefusalKind::UnknownWorkflow,
        RefusalKind::UnknownAttempt,
        RefusalKind::StaleIncarnation,
    ] {
        let mut bench = Bench::running();
        bench.say(0, plain());
        bench.say(1, progress(1));
        assert_eq!(bench.beat_refused(2, kind), [cancel(CancelWhy::Stale)], "{kind:?}");
        assert_eq!(bench.until(60_000), [], "nothing is renewed, and it is not said again that it is lost");
        assert_eq!(bench.finish(60_000, HandlerOutcome::Stopped), [ended(1)]);

        let mut bench = Bench::running_with(|config| config.on_lost = LostPolicy::Continue);
        bench.say(0, plain());
        assert_eq!((bench.beat_refused(2, kind), bench.until(60_000)), (vec![], vec![]), "{kind:?}");
        assert_eq!(bench.finish(60_000, HandlerOutcome::Succeeded(result())), [settle(success())]);
    }
}

#[test]
fn a_checkpoint_that_came_too_soon_goes_with_a_later_beat_and_keeps_nothing_else_waiting() {
    let mut bench = Bench::running();
    bench.say(0, plain());
    bench.beat_taken(1);
    bench.say(2, checkpoint("one"));
    assert_eq!(bench.say(3, HandlerReport { quiet: Some(secs(9)), ..progress(4) }).len(), 1);
    let no = Effect::Noted(refused(RefusalKind::TooSoon));
    let without = HandlerReport { quiet: Some(secs(9)), ..progress(4) };
    assert_eq!(bench.beat_refused(4, RefusalKind::TooSoon), [beat(&without), no.clone()], "the section cannot wait");
    bench.beat_taken(5);
    assert_eq!(bench.until(9_000), [], "and the checkpoint does not end it");
    bench.say(9_000, plain());
    bench.beat_taken(9_001);
    bench.say(9_002, plain());
    assert_eq!(bench.until(10_000), [(10_000, beat(&checkpoint("one")))]);
    assert_eq!(bench.beat_refused(10_001, RefusalKind::TooSoon), [no]);
    bench.say(10_002, checkpoint("two"));
    let again = bench.until(12_000);
    assert_eq!(again.len(), 1, "{again:?}");
    assert_eq!(again[0].1, beat(&checkpoint("two")), "a newer one has taken its place");
}

#[test]
fn words_that_cannot_be_taken_are_said_once_more_without_what_was_in_the_way() {
    let all = HandlerReport {
        note: Some("n".into()),
        quiet: Some(secs(1)),
        checkpoint: Some(b"c"[..].into()),
        ..progress(3)
    };
    for (kind, again) in [
        (RefusalKind::QuietSpent, HandlerReport { quiet: None, ..all.clone() }),
        (RefusalKind::Invalid, progress(3)),
        (RefusalKind::Limited, progress(3)),
        (RefusalKind::NoLeader, all.clone()),
    ] {
        let mut bench = Bench::running();
        assert_eq!(bench.say(0, all.clone()), [beat(&all)]);
        assert_eq!(bench.beat_refused(1, kind), [Effect::Noted(refused(kind))], "{kind:?}");
        let said = bench.until(1_001);
        assert_eq!(said.len(), 1, "{kind:?}: {said:?}");
        assert_eq!(said[0].1, beat(&again), "{kind:?}");
    }
}

#[test]
fn an_answer_about_nothing_that_is_held_changes_nothing() {
    let mut bench = Bench::talking();
    assert_eq!(bench.beat_taken(1), []);
    assert_eq!(bench.settled(1, Ok(())), []);
    assert_eq!(bench.beat_refused(1, RefusalKind::StaleAttempt), []);
    assert_eq!((bench.say(1, plain()), bench.finish(1, HandlerOutcome::Stopped)), (vec![], vec![]));
    bench.assign(1);
    assert_eq!(bench.settled(2, Ok(())), [], "it has not ended");
    assert_eq!(bench.machine.holding(), 1);
}
