//! Logs of older versions: what their events do not say means what it meant then.

use onward_core::event::Event;
use onward_core::job::{Draft, OnStuck};
use onward_core::manager::Manager;
use onward_core::message::EndReport;

use crate::rig::*;
use crate::twins::as_older;

/// Jobs that end in every way that matters for dead letters and keys.
fn eventful() -> Rig {
    let mut rig = Rig::with(|settings| settings.job.retry.max_attempts = 1);
    let session = rig.worker("w", 1, 4, &["k"]);
    let keyed = |key: &str| Draft { idempotency_key: Some(key.into()), ..job("k") };
    rig.submit(keyed("a"));
    let claim = rig.claim(session);
    rig.succeed(session, claim).expect("it holds the attempt");
    rig.submit(keyed("b"));
    let claim = rig.claim(session);
    rig.settle(session, claim, EndReport::Fail { error: "no".into(), retryable: false, delay: None })
        .expect("it holds it");
    rig.submit(Draft { on_stuck: OnStuck::TimeOut, stuck_after: Some(secs(10)), ..keyed("c") });
    rig.advance(secs(11));
    let cancelled = rig.submit(Draft { delay: Some(secs(60)), ..keyed("d") });
    rig.cancel(cancelled);
    rig.submit(Draft { timeout: Some(secs(5)), ..job("nobody") });
    rig.advance(secs(6));
    rig
}

#[test]
fn what_becomes_of_a_job_is_in_the_event_and_older_logs_go_by_the_rules_of_their_time() {
    let rig = eventful();
    let (mut saying, mut dead) = (0, 0);
    for stamped in &rig.log {
        if let Event::AttemptEnded { end, .. } | Event::CancelAsked { end, .. } | Event::JobTimedOut { end, .. } =
            &stamped.event
        {
            let end = end.expect("each of these may end its job");
            saying += 1;
            dead += usize::from(end.dead);
        }
    }
    assert_eq!((saying, dead), (5, 2), "the one that failed and the one that was stuck");
    let rules = rig.manager.rules().clone();
    let (mut newer, mut older) = (Manager::new(rules.clone(), 1, rig.now), Manager::new(rules, 1, rig.now));
    for stamped in &rig.log {
        newer.apply(stamped);
        older.apply(&as_older(stamped));
    }
    assert_eq!(newer.state().dump(), rig.manager.state().dump());
    assert_eq!(older.state().dump(), rig.manager.state().dump());
}

#[test]
fn a_log_that_says_otherwise_is_believed() {
    let rig = eventful();
    let mut other = Manager::new(rig.manager.rules().clone(), 1, rig.now);
    for stamped in &rig.log {
        let mut stamped = stamped.clone();
        if let Event::AttemptEnded { end: Some(end), .. } = &mut stamped.event {
            end.dead = false;
        }
        other.apply(&stamped);
    }
    assert_eq!(rig.manager.view().dead_letters, 2);
    assert_eq!(other.view().dead_letters, 0, "whoever wrote it had other rules");
}
