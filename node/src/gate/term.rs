//! How a gate follows, and when it leads: as a manager does, by [`crate::cluster::Leadership`].

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use onward_core::fence::Term;
use onward_core::gate::Gate;
use onward_core::health::overload::{OverloadDetector, OverloadLevel, OverloadRule};
use onward_core::health::verdict::{gate_ready, may_stand_for_election};
use onward_core::health::{ProgressSignal, Signals};
use onward_core::time::Awake;
use onward_log::{Error, LogChange};

use super::{Command, GateStart, GateState};
use crate::clock;
use crate::cluster::leader::LeaderView;
use crate::cluster::{OwnStanding, SeatLook};
use crate::engine::load::Meter;
use crate::engine::watch::Watchers;
use crate::run_loop::{CatchUp, Follower, Host as _, NewTerm, SeatBid};

/// The interval between two looks at a log that somebody else writes.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The role of a gate, once it has read its log.
pub(super) enum GateStartRole {
    Leads(NewTerm<Gate>),
    Follows(Follower<Gate>),
}

/// Begins for the first time. In doubt it tries again for a while: whoever starts a gate may have to come and do it
/// once more.
pub(super) fn begin_first(start: &mut GateStart, shared: &GateState) -> Result<GateStartRole, Error> {
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

/// Reads the log to its end, and takes the seat if it may.
pub(super) fn begin(start: &mut GateStart, shared: &GateState) -> Result<GateStartRole, Error> {
    // Who leads is known before the log is read, which may take long. Whoever is alone with a log has seen no term yet.
    let own = OwnStanding { may_stand: false, ..OwnStanding::BEFORE_READING };
    match start.leadership.look(own) {
        SeatLook::Follow { term, leader } if term != Term::default() => {
            shared.publish(LeaderView::Following { term, leader });
        }
        SeatLook::Unseen => shared.publish_cut_off(),
        SeatLook::Follow { .. } | SeatLook::Try => {}
    }
    let log = (start.log)()?;
    let gate = || Gate::new(start.rules.clone(), start.id, clock::now());
    try_for_seat(Follower::read(log, gate)?, start, shared)
}

/// The load of a gate that follows. It has no calls of its own, so processor and memory are all that counts.
pub(super) struct FollowerLoad {
    detector: OverloadDetector,
    meter: Meter,
}

impl FollowerLoad {
    pub(super) fn new(rule: OverloadRule) -> Self {
        Self { detector: OverloadDetector::new(rule), meter: Meter::default() }
    }

    fn judge(&mut self, shared: &GateState) {
        let now = clock::mono();
        let awake = Awake::from_ms(now.as_ms());
        if let Some((cpu, memory)) = self.meter.sample(now) {
            self.detector.resources(awake, cpu, memory);
        }
        let (level, reason) = self.detector.judge(awake);
        shared.load.set(level, reason);
    }
}

/// Follows until it leads, or has to begin anew; none if the gate stops.
pub(super) fn follow_on(
    mut follower: Follower<Gate>,
    start: &mut GateStart,
    shared: &GateState,
    held: &mut HeldCalls,
    watchers: &mut Watchers,
    load: &mut FollowerLoad,
) -> Option<Result<GateStartRole, Error>> {
    load.judge(shared);
    if held.wait_for(LOOK_EVERY, shared, watchers) == LoopControl::Stop || shared.is_stopping() {
        return None;
    }
    if shared.is_other_leading() {
        held.refuse(shared);
    }
    Some(match follower.catch_up() {
        Ok(CatchUp::Complete) => {
            shared.set_trouble(String::new());
            try_for_seat(follower, start, shared)
        }
        Ok(CatchUp::Outdated) => begin(start, shared),
        // Events that were read are still worth having.
        Err(error @ (Error::Io { .. } | Error::Unknown { .. })) => {
            report_trouble(shared, &error);
            Ok(GateStartRole::Follows(follower))
        }
        Err(error) => Err(error),
    })
}

/// Whether a gate that follows may stand for election. It forwards nothing, so it is idle.
fn may_stand(is_live: bool, datacenters: usize, load: OverloadLevel) -> bool {
    let ready = gate_ready(datacenters, load).is_ok();
    may_stand_for_election(Signals { live: is_live, ready, progress: ProgressSignal::Idle })
}

fn try_for_seat(follower: Follower<Gate>, start: &mut GateStart, shared: &GateState) -> Result<GateStartRole, Error> {
    let is_live = shared.vitals.watch.health().report().why_not_live().is_none();
    let may_stand = may_stand(is_live, shared.waiting_datacenters(), shared.load.level());
    let own = OwnStanding { applied: follower.newest(), is_caught_up: true, is_live, may_stand };
    let look = start.leadership.look(own);
    if look != SeatLook::Try {
        // A follower that has read all there is does what it is there for.
        shared.vitals.takeover.rest();
        match look {
            SeatLook::Follow { term, leader } => shared.publish(LeaderView::Following { term, leader }),
            SeatLook::Unseen => shared.publish_cut_off(),
            SeatLook::Try => {}
        }
        return Ok(GateStartRole::Follows(follower));
    }
    shared.vitals.takeover.begin_unless_begun();
    let term = match follower.lead()? {
        SeatBid::Follows(follower) => return Ok(GateStartRole::Follows(follower)),
        SeatBid::Leads(term) => term,
    };
    start.leadership.leads(term.term);
    if let Some(newest) = term.machine.state().jobs().next_back() {
        shared.ids.lock().expect("no thread panics while it holds this").stay_above(newest.id);
    }
    *shared.blobs.lock().expect("no thread panics while it holds this") = Some(term.log.blob_reader());
    shared.stats.terms.add(1);
    Ok(GateStartRole::Leads(term))
}

/// Says once what is wrong, for as long as it stays the same.
pub(super) fn report_trouble(shared: &GateState, error: &Error) {
    let cause = error.cause();
    if shared.trouble() != cause {
        tracing::error!(%error, "the gate cannot serve; it will try again");
    }
    shared.set_trouble(cause);
}

#[derive(PartialEq, Eq)]
pub(super) enum LoopControl {
    Continue,
    Stop,
}

/// Commands that come between two terms. Calls and reads wait for as long as they would wait for a seat; then they are
/// refused, by dropping their reply channels. Streams end: a datacenter dials again.
pub(super) struct HeldCalls {
    wait_for: Duration,
    calls: VecDeque<(Instant, Command)>,
}

/// The interval of the look whether somebody has waited long enough.
const LOOK_FOR_OVERDUE: Duration = Duration::from_millis(100);

impl HeldCalls {
    pub(super) fn for_as_long_as(wait_for: Duration) -> Self {
        Self { wait_for, calls: VecDeque::new() }
    }

    pub(super) fn wait_for(&mut self, span: Duration, shared: &GateState, watchers: &mut Watchers) -> LoopControl {
        let until = Instant::now() + span;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match shared.run_queue.next_within(left.min(LOOK_FOR_OVERDUE)) {
                Some(Command::Stop) => return LoopControl::Stop,
                Some(Command::Watch { job, bell }) => watchers.add(job, bell),
                Some(Command::Unwatch { job, bell }) => watchers.remove(job, bell),
                Some(command @ (Command::Call { .. } | Command::Read(_))) => {
                    self.calls.push_back((Instant::now(), command));
                }
                // Commands of and to the machine that is no more.
                Some(
                    Command::Open { .. }
                    | Command::Frame { .. }
                    | Command::Close { .. }
                    | Command::FromLog(_)
                    | Command::Drained
                    | Command::HandOver(_),
                ) => {}
                None => {
                    let wait_for = self.wait_for;
                    self.calls.retain(|(came_at, _)| came_at.elapsed() < wait_for);
                    if left.is_zero() {
                        return LoopControl::Continue;
                    }
                }
            }
        }
    }

    /// Another leads, and calls are for that one: none of these was begun.
    pub(super) fn refuse(&mut self, shared: &GateState) {
        for (_, command) in core::mem::take(&mut self.calls) {
            // Reads are refused by dropping what they are to be answered on; nobody may wait any more, which is fine.
            if let Command::Call { reply, .. } = command {
                drop(reply.send(Err(shared.not_begun())));
            }
        }
    }

    pub(super) fn give_back(&mut self, shared: &GateState) {
        let mut calls = core::mem::take(&mut self.calls).into_iter().map(|(_, command)| command).collect();
        shared.run_queue.give_back(&mut calls);
    }
}
