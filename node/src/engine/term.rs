//! How a manager follows, and when it leads.
//!
//! A node that is alone with its log follows to the end and leads at once. Where several share one, whether to try for
//! the seat is asked each time that the log was read to its end ([`crate::cluster::Leadership`]), and until then the node
//! follows.

use std::thread;
use std::time::{Duration, Instant};

use onward_core::fence::Term;
use onward_core::ids::Seq;
use onward_core::manager::Manager;
use onward_log::{Changed, Error};

use super::held_commands::{Flow, HeldCommands};
use super::watch::Watchers;
use super::{Shared, Start};
use crate::clock;
use crate::cluster::SeatLook;
use crate::cluster::leader::LeaderView;
use crate::run_loop::{CatchUp, Follower, Host as _, NewTerm, Tried};

/// Between two looks at a log that somebody else writes.
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub(super) type Leading = NewTerm<Manager>;

/// What a node is, once it has read its log.
pub(super) enum Begun {
    Leads(Leading),
    Follows(Follower<Manager>),
}

/// In doubt it is tried again for a while: whoever starts a node may have to come and do it once more.
pub(super) fn begin_first(start: &mut Start, shared: &Shared) -> Result<Begun, Error> {
    let since = Instant::now();
    loop {
        match begin(start, shared) {
            Err(error) if error.changed() == Changed::Maybe && since.elapsed() < start.rules.seat_ttl => {
                thread::sleep(start.pacing.ask_again);
            }
            known => return known,
        }
    }
}

/// Reads the log to its end, and takes the seat if it may. In doubt too, the next try does so anew: a term may go unused.
pub(super) fn begin(start: &mut Start, shared: &Shared) -> Result<Begun, Error> {
    // Who leads is known before the log is read, which may take long. Whoever is alone with a log has seen no term yet.
    if let SeatLook::Follow { term, leader } = start.leadership.look(Seq::default(), false)
        && term != Term::default()
    {
        shared.publish(LeaderView::Following { term, leader });
    }
    let log = (start.log)()?;
    let mut seed = [0u8; 8];
    getrandom::fill(&mut seed).expect("the system has randomness");
    let manager = Manager::new(start.rules.clone(), u64::from_ne_bytes(seed), clock::now());
    try_for_seat(Follower::read(log, manager)?, start, shared)
}

/// Follows until it leads, or has to begin anew; none if the node stops.
pub(super) fn follow_on(
    mut follower: Follower<Manager>,
    start: &mut Start,
    shared: &Shared,
    kept: &mut HeldCommands,
    watchers: &mut Watchers,
) -> Option<Result<Begun, Error>> {
    if kept.keep_for(LOOK_EVERY, shared, watchers) == Flow::Stop || shared.is_stopping() {
        return None;
    }
    kept.refuse_all(shared);
    Some(match follower.catch_up() {
        Ok(CatchUp::Complete) => {
            shared.set_trouble(String::new());
            try_for_seat(follower, start, shared)
        }
        Ok(CatchUp::Outdated) => begin(start, shared),
        // What was read is still worth having.
        Err(error @ (Error::Io { .. } | Error::Unknown { .. })) => {
            say_trouble(shared, &error);
            Ok(Begun::Follows(follower))
        }
        Err(error) => Err(error),
    })
}

fn try_for_seat(follower: Follower<Manager>, start: &mut Start, shared: &Shared) -> Result<Begun, Error> {
    shared.following.caught_up(follower.newest(), clock::mono());
    if let SeatLook::Follow { term, leader } = start.leadership.look(follower.newest(), true) {
        // A follower that has read all there is does what it is there for.
        shared.vitals.takeover.rest();
        shared.publish(LeaderView::Following { term, leader });
        return Ok(Begun::Follows(follower));
    }
    shared.vitals.takeover.begin_unless_begun();
    let term = match follower.lead()? {
        Tried::Follows(follower) => return Ok(Begun::Follows(follower)),
        Tried::Leads(term) => term,
    };
    start.leadership.leads(term.term);
    shared.stay_above(term.machine.state().jobs().map(|(_, job)| job.id).max());
    *shared.blobs.lock().expect("no thread panics while it holds this") = Some(term.log.blob_reader());
    shared.stats.terms.add(1);
    Ok(Begun::Leads(term))
}

/// Says once what is wrong, for as long as it stays the same.
pub(super) fn say_trouble(shared: &Shared, error: &Error) {
    let cause = error.cause();
    if shared.trouble() != cause {
        tracing::error!(%error, "the node cannot serve; it will try again");
    }
    shared.set_trouble(cause);
}
