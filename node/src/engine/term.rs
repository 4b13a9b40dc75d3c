//! How a manager follows, and when it leads.
//!
//! A node that is alone with its log follows to the end and leads at once. Where several share one, whether to try for
//! the seat is asked each time that the log was read to its end ([`crate::cluster::Leadership`]), and until then the node
//! follows.

use std::thread;
use std::time::{Duration, Instant};

use onward_core::fence::Term;
use onward_core::manager::Manager;
use onward_log::{Error, LogChange};

use super::held_commands::{HeldCommands, LoopControl};
use super::manager_machine::ManagerWithCatalog;
use super::watch::Watchers;
use super::{EngineStart, EngineState};
use crate::clock;
use crate::cluster::leader::LeaderView;
use crate::cluster::{Leadership, OwnStanding, SeatLook};
use crate::run_loop::{CatchUp, Follower, Host as _, NewTerm, SeatBid};

/// The interval between two looks at a log that somebody else writes.
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub(super) type Leading = NewTerm<ManagerWithCatalog>;

/// The role of a node, once it has read its log.
pub(super) enum StartRole {
    Leads(Leading),
    Follows(Follower<ManagerWithCatalog>),
}

/// Begins for the first time. In doubt it tries again for a while: whoever starts a node may have to come and do it
/// once more.
pub(super) fn begin_first(start: &mut EngineStart, shared: &EngineState) -> Result<StartRole, Error> {
    let since = Instant::now();
    loop {
        match begin(start, shared) {
            Err(error) if error.changed() == LogChange::Maybe && since.elapsed() < start.rules.seat_ttl => {
                thread::sleep(start.pacing.ask_again);
            }
            known => return known,
        }
    }
}

/// Reads the log to its end, and takes the seat if it may. In doubt too, the next try does so anew: a term may go unused.
pub(super) fn begin(start: &mut EngineStart, shared: &EngineState) -> Result<StartRole, Error> {
    // Who leads is known before the log is read, which may take long. Whoever is alone with a log has seen no term yet.
    match start.leadership.look(OwnStanding::BEFORE_READING) {
        SeatLook::Follow { term, leader } if term != Term::default() => {
            shared.publish(LeaderView::Following { term, leader });
        }
        SeatLook::Unseen => shared.publish_cut_off(),
        SeatLook::Follow { .. } | SeatLook::Try => {}
    }
    let log = (start.log)()?;
    let mut seed = [0u8; 8];
    getrandom::fill(&mut seed).expect("the system has randomness");
    let empty = || ManagerWithCatalog::new(Manager::new(start.rules.clone(), u64::from_ne_bytes(seed), clock::now()));
    try_for_seat(Follower::read(log, empty)?, start, shared)
}

/// Follows until it leads, or has to begin anew; none if the node stops.
pub(super) fn follow_on(
    mut follower: Follower<ManagerWithCatalog>,
    start: &mut EngineStart,
    shared: &EngineState,
    kept: &mut HeldCommands,
    watchers: &mut Watchers,
) -> Option<Result<StartRole, Error>> {
    if kept.keep_for(LOOK_EVERY, shared, watchers) == LoopControl::Stop || shared.is_stopping() {
        return None;
    }
    kept.refuse_all(shared);
    Some(match follower.catch_up() {
        Ok(CatchUp::Complete) => {
            shared.set_trouble(String::new());
            try_for_seat(follower, start, shared)
        }
        Ok(CatchUp::Outdated) => begin(start, shared),
        // Events that were read are still worth having.
        Err(error @ (Error::Io { .. } | Error::Unknown { .. })) => {
            report_trouble(shared, &error, &*start.leadership);
            Ok(StartRole::Follows(follower))
        }
        Err(error) => Err(error),
    })
}

fn try_for_seat(
    follower: Follower<ManagerWithCatalog>,
    start: &mut EngineStart,
    shared: &EngineState,
) -> Result<StartRole, Error> {
    shared.following.caught_up(follower.newest(), clock::mono());
    let is_live = shared.vitals.watch.health().report().why_not_live().is_none();
    let own = OwnStanding { applied: follower.newest(), is_caught_up: true, is_live, may_stand: true };
    let look = start.leadership.look(own);
    if look != SeatLook::Try {
        // A follower that has read all there is does what it is there for.
        shared.vitals.takeover.rest();
        match look {
            SeatLook::Follow { term, leader } => shared.publish(LeaderView::Following { term, leader }),
            SeatLook::Unseen => shared.publish_cut_off(),
            SeatLook::Try => {}
        }
        return Ok(StartRole::Follows(follower));
    }
    shared.vitals.takeover.begin_unless_begun();
    let term = match follower.lead()? {
        SeatBid::Follows(follower) => return Ok(StartRole::Follows(follower)),
        SeatBid::Leads(term) => term,
    };
    start.leadership.leads(term.term);
    shared.stay_above(term.machine.catalog.newest(), term.term);
    *shared.blobs.lock().expect("no thread panics while it holds this") = Some(term.log.blob_reader());
    shared.stats.terms.add(1);
    Ok(StartRole::Leads(term))
}

/// Says once what is wrong, for as long as it stays the same.
pub(super) fn report_trouble(shared: &EngineState, error: &Error, leadership: &dyn Leadership) {
    let mut cause = error.cause();
    if matches!(error, Error::NewerVersion { .. } | Error::NewerFormat { .. })
        && let Some(version) = leadership.leader_version()
    {
        cause += &format!("; the manager that leads runs onward {version}");
    }
    if shared.trouble() != cause {
        tracing::error!(%error, "the node cannot serve; it will try again");
    }
    shared.set_trouble(cause);
}

#[cfg(test)]
mod tests {
    use onward_core::ids::{ClientId, Incarnation, Name, WorkerId};
    use onward_core::input::{Call, Poll, Submission};
    use onward_core::job::Draft;
    use onward_core::message::{EndReport, Settlement, Subscription};
    use onward_core::settings::Rules;
    use onward_log::{Log, MemoryLog};

    use super::*;
    use crate::catalog::Catalog;
    use crate::engine::Engine;

    /// A follower that applies what a leader writes, while it writes, has the state of that leader at each event that
    /// both have, and so has one that begins with a snapshot.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn whoever_follows_has_the_state_of_whoever_leads_at_the_same_event() {
        let log = MemoryLog::new();
        let handle = log.clone();
        let mut start = EngineStart::new(Rules::default(), move || Ok(Box::new(handle.clone()) as Box<dyn Log>));
        start.snapshot_every = 300;
        let engine = Engine::start(start).expect("a log in memory can be opened");
        let read = || {
            let empty = || ManagerWithCatalog::new(Manager::new(Rules::default(), 7, clock::now()));
            Follower::read(Box::new(log.clone()), empty).expect("it can be read")
        };
        let mut follower = read();
        let subscription =
            Subscription { queues: vec![Name::new("default").unwrap()], kinds: vec![Name::new("resize").unwrap()] };
        let poll = |worker: &str| Poll {
            worker: WorkerId::new(worker).unwrap(),
            incarnation: Incarnation::new("1").unwrap(),
            subscription: subscription.clone(),
            max: 3,
            wait: Duration::from_secs(60),
            lease: Duration::from_secs(3_600),
            id: None,
            client: ClientId::default(),
        };
        let mut compared = 0;
        for round in 0..60 {
            let submissions = (0..5).map(|n| Submission {
                id: engine.new_job_id(),
                draft: Draft::of_kind("resize", format!("{{\"round\":{round},\"n\":{n}}}").into_bytes()),
            });
            engine.call(Call::Submit(submissions.collect())).await.unwrap();
            let (leases, mut delivery) = engine.poll(poll(&format!("w{}", round % 4))).await.unwrap();
            delivery.done();
            let settled = leases.iter().skip(1).map(|lease| lease.claim);
            let settled = settled.map(|claim| Settlement::new(claim, EndReport::Succeed { result: (*b"1").into() }));
            engine.call(Call::Settle(settled.collect())).await.unwrap();
            for follower in [&mut follower, &mut read()] {
                if follower.catch_up().unwrap() == CatchUp::Outdated {
                    *follower = read();
                }
                let (newest, dump) =
                    engine.read(|view| (view.manager.newest(), view.manager.state().dump())).await.unwrap();
                if newest == follower.newest() {
                    let ManagerWithCatalog { manager, catalog } = &follower.machine;
                    assert_eq!(manager.state().dump(), dump, "at {newest:?}");
                    assert_eq!(*catalog, Catalog::of(manager.state()), "at {newest:?}");
                    compared += 1;
                }
            }
        }
        assert!(compared > 60, "only {compared} were compared");
        assert!(engine.stats().snapshots.get() > 0, "no snapshot was made");
        engine.stop();
    }
}
