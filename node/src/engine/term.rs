//! How a manager follows, and when it leads.
//!
//! A node that is alone with its log follows to the end and leads at once. Where several share one, whether to try for
//! the seat is asked each time that the log was read to its end ([`Start::may_lead`]), and until then the node follows.

use std::thread;
use std::time::{Duration, Instant};

use onward_core::fence::Term;
use onward_core::manager::Manager;
use onward_log::{Changed, Error};

use super::held_commands::{Flow, HeldCommands};
use super::run_loop::{Follower, NewTerm, Tried};
use super::watch::Watchers;
use super::{Shared, Start};
use crate::clock;
use crate::cluster::leader::LeaderView;

/// Between two looks at a log that somebody else writes.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What is said to whoever asks a machine that only follows.
const FOLLOWS: &str = "it follows, and another node leads";

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
    // Nobody waits here for a machine: whoever asks is told that another node leads.
    shared.vitals.takeover.rest();
    shared.publish_following(follower.seen_term());
    if kept.keep_for(LOOK_EVERY, shared, watchers) == Flow::Stop || shared.is_stopping() {
        return None;
    }
    kept.refuse_all();
    shared.vitals.takeover.begin_unless_begun();
    Some(match follower.catch_up() {
        Ok(()) => try_for_seat(follower, start, shared),
        Err(Error::Truncated { .. }) => begin(start, shared),
        Err(error) => Err(error),
    })
}

impl Shared {
    /// The log is read, and that another node leads is no trouble of this one's. Who leads stays known for as long as the
    /// term stays the same.
    fn publish_following(&self, term: Term) {
        self.vitals.log.recover();
        *self.trouble.lock().expect("no thread panics while it holds this") = FOLLOWS.into();
        self.leader_view.send_if_modified(|view| {
            let is_news = !matches!(view, LeaderView::Following { term: known, .. } if *known == term);
            if is_news {
                *view = LeaderView::Following { term, leader: None };
            }
            is_news
        });
    }
}

fn try_for_seat(follower: Follower<Manager>, start: &mut Start, shared: &Shared) -> Result<Begun, Error> {
    if !(start.may_lead)() {
        return Ok(Begun::Follows(follower));
    }
    let term = match follower.lead()? {
        Tried::Follows(follower) => return Ok(Begun::Follows(follower)),
        Tried::Leads(term) => term,
    };
    shared.stay_above(term.machine.state().jobs().map(|(_, job)| job.id).max());
    *shared.blobs.lock().expect("no thread panics while it holds this") = Some(term.log.blob_reader());
    shared.stats.terms.add(1);
    Ok(Begun::Leads(term))
}
