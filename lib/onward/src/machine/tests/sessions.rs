//! Connecting, greeting, losing the session, draining.

use super::*;

fn hello(holding: &[u128]) -> Effect {
    let Identity { worker, incarnation, subscription, slots } = Bench::new().machine.identity;
    let holding = holding.iter().map(|n| claim(*n)).collect();
    let client = ClientId::default();
    Effect::Send(FromWorker::Hello(Hello { worker, incarnation, subscription, slots, holding, client }))
}

#[test]
fn it_dials_at_once_and_says_hello_with_what_it_holds() {
    let mut bench = Bench::new();
    assert_eq!(bench.step(Input::Wake), [Effect::Dial]);
    assert_eq!(bench.at(5, Input::Connected), [hello(&[])]);
    bench.welcome(6);
    bench.assign(2);
    bench.assign(1);
    bench.assign(3);
    bench.finish(7, HandlerOutcome::Succeeded(result()));
    bench.heard(7, ManagerMessage::Cancel { claim: claim(3), why: CancelWhy::Asked });
    bench.at(8, Input::Disconnected);
    bench.until(10_000);
    assert_eq!(bench.at(10_000, Input::Connected), [hello(&[1, 2, 3])], "what has not ended, or was not answered");
    assert_eq!(bench.at(10_001, Input::Connected), [], "once per session");
}

#[test]
fn nothing_is_said_between_hello_and_welcome() {
    let mut bench = Bench::running();
    bench.at(1, Input::Disconnected);
    bench.until(10_000);
    bench.at(10_000, Input::Connected);
    assert_eq!(bench.say(10_001, quiet(secs(1))), []);
    assert_eq!(
        bench
            .at(
                10_002,
                Input::Extension {
                    claim: claim(1),
                    reason: "gc_pause".into(),
                    progress: 0.1,
                    estimated_remaining: None,
                }
            )
            .len(),
        1,
        "answered here"
    );
    assert_eq!(bench.until(11_000), []);
    assert_eq!(bench.finish(11_000, HandlerOutcome::Succeeded(result())), []);
    assert_eq!(bench.welcome(11_001), [settle(success())]);
}

#[test]
fn words_are_not_lost_with_a_session() {
    let mut bench = Bench::running();
    bench.say(0, HandlerReport { checkpoint: Some(b"c"[..].into()), ..progress(1) });
    bench.say(1, progress(2));
    bench.at(1, Input::Disconnected);
    bench.say(2, progress(4));
    bench.until(9_000);
    bench.at(9_000, Input::Connected);
    let mut told = bench.welcome(9_000);
    told.extend(bench.until(10_001).into_iter().map(|(_, effect)| effect));
    assert_eq!(told, [beat(&HandlerReport { checkpoint: Some(b"c"[..].into()), ..progress(4) })], "within an interval");
}

#[test]
fn a_quiet_section_that_was_not_heard_of_is_said_with_the_welcome() {
    let mut bench = Bench::running();
    bench.say(0, quiet(secs(60)));
    assert_eq!(bench.reconnect(1, 9_000), [beat(&quiet(secs(60)))]);
    bench.beat_taken(9_001);
    assert_eq!(bench.until(30_000), [], "and not ended by another beat");
}

#[test]
fn the_lease_runs_on_without_a_session() {
    let mut bench = Bench::running();
    bench.say(0, plain());
    bench.at(1, Input::Disconnected);
    for n in 1..40 {
        bench.until(n * 1_000);
        bench.say(n * 1_000, plain());
        let stopping = !matches!(bench.machine.held[&claim(1)].phase, Phase::Running);
        assert_eq!(stopping, n >= 30, "after {n} s");
    }
}

#[test]
fn waits_between_dials_grow_and_only_a_welcome_makes_them_short_again() {
    let backoff = Backoff { base: ms(200), max: secs(5) };
    let mut bench = Bench::with(|config| config.reconnect = backoff);
    let mut longest = Duration::ZERO;
    bench.step(Input::Wake);
    for failures in 1..40 {
        if failures % 2 == 0 {
            // A connection that says nothing is no better than none.
            bench.step(Input::Connected);
        }
        bench.step(Input::Disconnected);
        let wait = bench.machine.next_wakeup().unwrap().since(at(bench.now));
        assert!(wait <= backoff.ceiling(failures), "{wait:?} after {failures}");
        longest = longest.max(wait);
        let now = bench.now + 5_000;
        assert_eq!(bench.until(now).iter().filter(|(_, effect)| *effect == Effect::Dial).count(), 1);
    }
    assert!(longest > secs(3), "{longest:?}");
    bench.step(Input::Connected);
    let now = bench.now;
    bench.welcome(now);
    bench.step(Input::Disconnected);
    assert!(bench.machine.next_wakeup().unwrap().since(at(now)) <= ms(200));
    assert_eq!(bench.step(Input::Disconnected), [], "it is apart already");
}

#[test]
fn a_refusal_that_names_nothing_ends_the_session_and_all_is_said_again() {
    for kind in [RefusalKind::NoLeader, RefusalKind::UnknownWorker, RefusalKind::Limited] {
        let mut bench = Bench::running();
        bench.assign(2);
        bench.say(0, progress(1));
        bench.at(1, Input::Finished { claim: claim(2), outcome: HandlerOutcome::Succeeded(result()) });
        let told = bench.heard(2, ManagerMessage::Refused(refused(kind)));
        assert_eq!(told, [Effect::Noted(refused(kind)), Effect::HangUp], "{kind:?}");
        assert_eq!(bench.welcome(2), [], "what comes of the old session is of no use");
        assert_eq!(bench.beat_taken(2), []);
        let dial = bench.until(500);
        assert!(dial.iter().any(|(_, effect)| *effect == Effect::Dial), "{dial:?}");
        assert_eq!(bench.at(500, Input::Connected), [hello(&[1, 2])]);
        let mut told = bench.welcome(501);
        told.extend(bench.until(1_600).into_iter().map(|(_, effect)| effect));
        let report = Settlement::new(claim(2), success());
        assert_eq!(told, [Effect::Send(FromWorker::Settle(vec![report])), beat(&progress(1))]);
    }
    let mut bench = Bench::new();
    bench.step(Input::Wake);
    bench.step(Input::Connected);
    let told = bench.heard(1, ManagerMessage::Refused(refused(RefusalKind::NoLeader)));
    assert_eq!(told.last(), Some(&Effect::HangUp), "also instead of a welcome");
}

#[test]
fn a_manager_that_does_not_welcome_is_left_for_another() {
    let mut bench = Bench::running_with(|config| config.welcome_within = secs(3));
    bench.at(1, Input::Disconnected);
    bench.until(1_000);
    assert_eq!(bench.at(1_000, Input::Connected), [hello(&[1])]);
    assert_eq!(bench.until(3_999), [], "it may be busy");
    assert_eq!(bench.until(4_000), [(4_000, Effect::Leave)]);
    assert_eq!(bench.welcome(4_000), [], "it comes too late");
    let dial = bench.until(5_000);
    assert_eq!(dial.iter().map(|(_, effect)| effect).collect::<Vec<_>>(), [&Effect::Dial]);
    assert_eq!(bench.at(5_000, Input::Connected), [hello(&[1])]);
    bench.welcome(5_001);
    assert!(bench.until(20_000).iter().all(|(_, effect)| *effect != Effect::Leave), "once it was welcomed it stays");
}

#[test]
fn probes_are_answered() {
    let mut bench = Bench::talking();
    let answer = Effect::Send(FromWorker::ProbeAnswer { probe: 9 });
    assert_eq!(bench.heard(1, ManagerMessage::Probe { probe: 9 }), [answer]);
}

#[test]
fn a_starved_executor_takes_nothing_more_until_it_runs_again() {
    let mut bench = Bench::talking();
    assert_eq!(bench.at(1, Input::ExecutorLag(ms(1_999))), []);
    assert_eq!(bench.at(2, Input::ExecutorLag(ms(2_000))), [capacity(false)]);
    assert_eq!(bench.at(3, Input::ExecutorLag(ms(9_000))), [], "said once");
    assert_eq!(bench.at(4, Input::ExecutorLag(ms(10))), [capacity(true)]);
}

#[test]
fn a_hello_says_yes_and_so_a_no_goes_with_it() {
    let mut bench = Bench::talking();
    bench.at(1, Input::ExecutorLag(secs(9)));
    bench.at(2, Input::Disconnected);
    bench.until(10_000);
    assert_eq!(bench.at(10_000, Input::Connected), [hello(&[]), capacity(false)]);
    assert_eq!(bench.at(10_001, Input::ExecutorLag(ms(0))), [], "not before the welcome");
    assert_eq!(bench.welcome(10_002), [capacity(true)], "the manager was told otherwise with the hello");
}

#[test]
fn a_drain_takes_nothing_more_and_waits_for_the_answers() {
    let mut bench = Bench::running();
    assert_eq!(bench.at(1, Input::Drain), [capacity(false)]);
    let late = bench.heard(2, ManagerMessage::Assign(assignment(claim(2))));
    let release = Settlement::new(claim(2), EndReport::Release { delay: None });
    assert_eq!(late, [Effect::Send(FromWorker::Settle(vec![release]))], "it was on its way, and is given back");
    assert_eq!(bench.heard(3, ManagerMessage::SettleAnswer { claim: claim(2), answer: Ok(()) }).len(), 1);
    assert_eq!(bench.say(4, progress(1)), [beat(&progress(1))], "what runs is renewed");
    bench.beat_taken(5);
    assert_eq!(bench.finish(6, HandlerOutcome::Succeeded(result())), [settle(success())]);
    assert_eq!(bench.reconnect(7, 9_000), [settle(success())], "also over a new session");
    let answered = Effect::Settled { claim: claim(1), answer: Ok(()) };
    assert_eq!(bench.settled(9_001, Ok(())), [answered, goodbye()]);
    assert_eq!(bench.heard(9_002, ManagerMessage::Goodbye), [Effect::Drained]);
}

#[test]
fn a_drain_of_nothing_is_over_when_the_manager_says_goodbye() {
    let mut bench = Bench::talking();
    assert_eq!(bench.at(1, Input::Drain), [capacity(false), goodbye()]);
    assert_eq!(bench.until(4_000), [], "said once, and nothing is begun meanwhile");
    assert_eq!(bench.heard(4_000, ManagerMessage::Goodbye), [Effect::Drained]);
    assert_eq!((bench.at(4_001, Input::Disconnected), bench.machine.next_wakeup()), (vec![], None));

    let mut bench = Bench::talking();
    assert_eq!(bench.heard(1, ManagerMessage::Goodbye), [], "nobody has asked for it");
    bench.assign(1);
}

#[test]
fn what_crosses_a_goodbye_is_left_to_the_manager() {
    let mut bench = Bench::talking();
    bench.at(1, Input::Drain);
    assert_eq!(bench.heard(2, ManagerMessage::Assign(assignment(claim(1)))), []);
    assert_eq!(bench.heard(2, ManagerMessage::Probe { probe: 1 }), []);
    assert_eq!(bench.heard(3, ManagerMessage::Cancel { claim: claim(1), why: CancelWhy::Asked }), []);
    assert_eq!((bench.machine.holding(), bench.heard(4, ManagerMessage::Goodbye)), (0, vec![Effect::Drained]));
}

#[test]
fn what_came_before_the_goodbye_is_given_back_first() {
    let mut bench = Bench::new();
    bench.step(Input::Wake);
    bench.at(1, Input::Connected);
    assert_eq!(bench.at(2, Input::Drain), [], "not before the welcome");
    assert_eq!(bench.welcome(3), [capacity(false), goodbye()]);

    let mut bench = Bench::running();
    assert_eq!(bench.at(1, Input::Abandon), [cancel(CancelWhy::Asked), capacity(false)]);
    assert_eq!(bench.finish(2, HandlerOutcome::Stopped), [settle(EndReport::Release { delay: None })]);
    assert_eq!(bench.until(9_000), [], "its answer is waited for, for as long as it takes");
    let answered = Effect::Settled { claim: claim(1), answer: Ok(()) };
    assert_eq!(bench.settled(9_000, Ok(())), [answered, goodbye()]);
}

#[test]
fn a_goodbye_is_said_again_on_a_new_session() {
    let mut bench = Bench::talking();
    bench.at(1, Input::Drain);
    bench.at(2, Input::Disconnected);
    bench.until(2_000);
    assert_eq!(bench.at(2_000, Input::Connected), [hello(&[]), capacity(false)]);
    assert_eq!(bench.welcome(2_001), [goodbye()]);
    let told = bench.heard(2_002, ManagerMessage::Refused(refused(RefusalKind::NoLeader)));
    assert_eq!(told, [Effect::Noted(refused(RefusalKind::NoLeader)), Effect::HangUp]);
    bench.until(4_000);
    bench.at(4_000, Input::Connected);
    assert_eq!(bench.welcome(4_001), [goodbye()]);
    assert_eq!(bench.heard(4_002, ManagerMessage::Goodbye), [Effect::Drained]);
}

#[test]
fn a_manager_that_does_not_answer_keeps_nobody_for_long() {
    let mut bench = Bench::talking();
    bench.at(1, Input::Drain);
    assert_eq!(bench.until(60_000), [(5_001, Effect::Drained)], "nothing is heard");
    assert_eq!(bench.machine.next_wakeup(), None);

    let mut bench = Bench::talking();
    bench.at(1, Input::Disconnected);
    bench.at(2, Input::Drain);
    assert_eq!(bench.until(60_000).last(), Some(&(5_002, Effect::Drained)), "nobody can be reached");

    assert_eq!(Bench::new().at(1, Input::Drain).last(), Some(&Effect::Drained), "nobody has ever heard of it");
}

#[test]
fn whoever_does_not_wait_any_longer_stops_what_runs_and_gives_it_back() {
    let mut bench = Bench::running();
    assert_eq!(bench.at(1, Input::Abandon), [cancel(CancelWhy::Asked), capacity(false)]);
    assert_eq!(bench.at(2, Input::Abandon), []);
    assert_eq!(bench.finish(3, HandlerOutcome::Stopped), [settle(EndReport::Release { delay: None })]);
    assert_eq!(bench.settled(4, Ok(())).last(), Some(&goodbye()));

    let mut bench = Bench::running();
    bench.at(1, Input::Abandon);
    bench.heard(2, ManagerMessage::Cancel { claim: claim(1), why: CancelWhy::Asked });
    assert_eq!(bench.finish(3, HandlerOutcome::Stopped), [ended(1), goodbye()], "the manager wants to hear just this");
}

#[test]
fn a_worker_that_is_rejected_stops_everything_and_does_not_come_back() {
    let mut bench = Bench::running();
    bench.assign(2);
    bench.at(1, Input::Finished { claim: claim(2), outcome: HandlerOutcome::Succeeded(result()) });
    bench.at(2, Input::Disconnected);
    bench.until(10_000);
    bench.at(10_000, Input::Connected);
    let why = refused(RefusalKind::StaleIncarnation);
    let told = bench.heard(10_001, ManagerMessage::Rejected(why.clone()));
    assert_eq!(told, [cancel(CancelWhy::Stale), Effect::Rejected(why)]);
    assert_eq!((bench.at(10_002, Input::Disconnected), bench.until(90_000)), (vec![], vec![]));
}
