//! How often handlers may have something logged.

use super::*;

#[test]
fn a_checkpoint_that_comes_too_soon_replaces_the_one_that_waits_and_is_logged_when_a_second_is_over() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(job("k"));
    let claim = rig.claim(session);
    let save = |text: &str| Beat { checkpoint: Some(bytes(text)), ..Beat::plain(claim) };
    let logged = |rig: &Rig| -> Vec<String> {
        let saved = rig.log.iter().filter_map(|stamped| match &stamped.event {
            Event::Checkpointed { data, .. } => Some(String::from_utf8(data.to_vec()).expect("text")),
            _ => None,
        });
        saved.collect()
    };
    rig.beat(session, save("1")).unwrap();
    for text in ["2", "3", "4"] {
        rig.advance(ms(300));
        rig.beat(session, save(text)).expect("nothing is refused");
    }
    assert_eq!(logged(&rig), ["1"]);
    rig.advance(ms(99));
    assert_eq!(logged(&rig), ["1"]);
    rig.advance(ms(1));
    assert_eq!(logged(&rig), ["1", "4"], "the newest, a second after the last");
    rig.advance(secs(1));
    rig.beat(session, save("5")).unwrap();
    assert_eq!(logged(&rig), ["1", "4", "5"], "exactly a second later it need not wait");
    rig.beat(session, save("6")).unwrap();
    rig.fail(session, claim).unwrap();
    assert_eq!(logged(&rig), ["1", "4", "5", "6"], "what waits is not lost with the attempt");
}

#[test]
fn a_failure_and_a_release_may_bring_a_checkpoint() {
    for release in [false, true] {
        let mut rig = Rig::new();
        let session = rig.worker("w", 1, 1, &["k"]);
        rig.submit(Draft { retry: Some(Retry { max_attempts: 5, base: ms(1), max: ms(1) }), ..job("k") });
        let claim = rig.claim(session);
        rig.beat(session, Beat { checkpoint: Some(bytes("old")), ..Beat::plain(claim) }).unwrap();
        rig.beat(session, Beat { checkpoint: Some(bytes("waits")), ..Beat::plain(claim) }).unwrap();
        let report = if release { EndReport::Release { delay: None } } else { failure() };
        let checkpoint = Some(bytes("page 7"));
        let settlement = onward_core::message::Settlement { claim, report, checkpoint };
        rig.tell(session, onward_core::message::FromWorker::Settle(vec![settlement]));
        rig.advance(ms(1));
        assert_eq!(rig.assigned(session)[0].checkpoint, Some(bytes("page 7")));
    }
}

#[test]
fn denied_extensions_fill_neither_log_nor_ledger_and_are_counted() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(patient("k"));
    let claim = rig.claim(session);
    rig.ask_extension(session, vec![claim], 0.5).result.unwrap();
    let before = rig.log.len();
    for n in 0..1_024_u32 {
        rig.ask_extension(session, vec![claim], 0.5 - f64::from(n) / 10_000.0).result.unwrap_err();
    }
    assert!(rig.log.len() - before < 10, "{} events", rig.log.len() - before);
    let denied = |rig: &Rig| -> Vec<u32> {
        let entries = rig.view(id).ledger;
        let denied = entries.iter().filter(|entry| matches!(entry.what, onward_core::state::LedgerFact::Denied { .. }));
        denied.map(|entry| entry.times).collect()
    };
    assert_eq!(denied(&rig), [1_024], "in one entry");
    rig.restart(secs(1));
    assert_eq!(denied(&rig), [1_024]);
}

#[test]
fn quiet_sections_of_no_length_fill_neither_log_nor_ledger() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(patient("k"));
    let claim = rig.claim(session);
    let before = rig.log.len();
    for n in 0..1_000 {
        let quiet = (n % 3 > 0).then(|| ms(1_000 + n));
        rig.beat(session, Beat { quiet, ..Beat::plain(claim) }).unwrap();
    }
    assert!(rig.log.len() - before < 10, "{} events", rig.log.len() - before);
    rig.beat(session, Beat::plain(claim)).unwrap();
    rig.advance(secs(1));
    let open = rig.manager.state().attempts().next().unwrap().1.quiet;
    assert_eq!(open, None, "the end is logged within a second");
    // In ordinary use: many calls of some seconds each.
    for _ in 0..130 {
        rig.beat(session, Beat { quiet: Some(secs(4)), ..Beat::plain(claim) }).unwrap();
        rig.advance(secs(4));
    }
    let view = rig.view(id);
    assert!(view.ledger.len() <= 2 && view.ledger_dropped == 0, "{:?}", view.ledger);
    assert!(view.ledger.iter().all(|entry| entry.times >= 130));
    let used = rig.manager.state().attempts().next().unwrap().1.quiet_used;
    assert!(used >= secs(516) && used <= secs(521), "{used:?}");
    rig.restart(secs(1));
}

#[test]
fn a_section_that_was_not_logged_by_itself_is_covered_by_what_was() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(job("k"));
    let claim = rig.claim(session);
    for seconds in [10, 5, 30, 31, 200, 400] {
        rig.advance(ms(10));
        rig.beat(session, Beat { quiet: Some(secs(seconds)), ..Beat::plain(claim) }).unwrap();
        let (began, allowed) = rig.manager.state().attempts().next().unwrap().1.quiet.unwrap();
        assert!(began + allowed >= rig.now.wall + secs(seconds), "{seconds} s are not covered");
    }
    rig.advance(ms(10));
    rig.beat(session, Beat { quiet: Some(secs(500)), ..Beat::plain(claim) }).unwrap();
    let (_, allowed) = rig.manager.state().attempts().next().unwrap().1.quiet.unwrap();
    assert!((secs(500)..=secs(600)).contains(&allowed), "{allowed:?}: twice as long would be more than its budget");
}

#[test]
fn a_section_that_follows_one_from_before_a_takeover_is_charged_apart_from_it() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(job("k"));
    let claim = rig.claim(session);
    let quiet = |seconds| Beat { quiet: Some(secs(seconds)), ..Beat::plain(claim) };
    rig.beat(session, quiet(300)).unwrap();
    rig.advance(secs(100));
    rig.restart(secs(1));
    let session = rig.hello("w", "1", 2, 1, &["k"], vec![claim]);
    rig.advance(secs(99));
    rig.beat(session, quiet(300)).unwrap();
    rig.advance(secs(50));
    rig.restart(secs(1));
    let session = rig.hello("w", "1", 3, 1, &["k"], vec![claim]);
    // 200 s of the first and 51 s of the second are gone.
    assert_eq!(rig.beat(session, quiet(600)).unwrap().quiet, Some(secs(349)));
}

#[test]
fn a_checkpoint_that_comes_when_one_that_waits_is_due_takes_its_place() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(job("k"));
    let claim = rig.claim(session);
    let save = |text: &str| Beat { checkpoint: Some(bytes(text)), ..Beat::plain(claim) };
    rig.beat(session, save("first")).unwrap();
    rig.advance(ms(500));
    rig.beat(session, save("waits")).unwrap();
    // It is heard before the timer fires.
    rig.jump(ms(500));
    rig.beat(session, save("newest")).unwrap();
    rig.advance(secs(5));
    rig.release(session, claim).unwrap();
    assert_eq!(rig.assigned(session).remove(0).checkpoint, Some(bytes("newest")));
}

#[test]
fn a_quiet_section_right_behind_another_is_respected_by_a_takeover() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    let quiet = |seconds| Beat { quiet: Some(secs(seconds)), ..Beat::plain(claim) };
    rig.beat(session, quiet(100)).unwrap();
    rig.advance(ms(300));
    rig.beat(session, Beat::plain(claim)).unwrap();
    rig.advance(ms(300));
    rig.beat(session, quiet(90)).unwrap();
    rig.advance(secs(10));
    rig.restart(secs(1));
    let left = rig.view(id).workflows[0].running.as_ref().unwrap().quiet_remaining;
    assert!(left.is_some_and(|left| left > secs(70)), "the end of the first is not that of the second: {left:?}");
}
