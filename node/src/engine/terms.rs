//! Term after term: a node follows, leads, hands over or loses the seat, until it is told to stop.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use onward_core::health::overload::{OverloadLevel, OverloadReason};
use onward_log::Error;

use super::archivist::{self, ToArchive};
use super::held_commands::{HeldCommands, LoopControl};
use super::machine::{machine_of, serve};
use super::term::{Leading, StartRole, begin, begin_first, follow_on, report_trouble};
use super::timetable::{self, FindDue};
use super::vitals::DieOnPanic;
use super::watch::Watchers;
use super::{EngineStart, EngineState, RunningThread};
use crate::run_loop::{CloseAtEnd, Host as _, TermEnd};

pub(super) fn spawn(mut start: EngineStart, shared: &Arc<EngineState>) -> Result<(), Error> {
    // The first term is begun here, so that whoever starts a node learns at once what is wrong. A node that shares its log
    // goes on without, for as long as nothing can be stored: it has others to pass calls on to, and a restart does not help.
    let first = match begin_first(&mut start, shared) {
        Err(error) if start.heirs.is_some() && may_pass(&error) => Err(error),
        begun => Ok(begun?),
    };
    let (theirs, (running, ended)) = (shared.clone(), channel());
    let work = move || {
        run(first, start, &theirs);
        drop(running);
    };
    let thread = thread::Builder::new().name("onward-machine".into()).spawn(work);
    let thread = thread.map_err(|error| Error::Io { cause: format!("cannot start a thread: {error}") })?;
    *shared.thread.lock().expect("no thread panics while it holds this") = Some(RunningThread { thread, ended });
    Ok(())
}

/// Whether the same may succeed later, with nothing changed at this node.
pub(crate) fn may_pass(error: &Error) -> bool {
    matches!(error, Error::Io { .. } | Error::Unknown { .. } | Error::Full { .. })
}

/// Term after term, until told to stop.
fn run(first: Result<StartRole, Error>, start: EngineStart, shared: &Arc<EngineState>) {
    // Also if it panics: nobody may wait for a machine that is no more.
    let _end = (DieOnPanic(&shared.vitals.machine), CloseAtEnd(&shared.run_queue));
    let archivist = start.archive.clone().and_then(|archive| {
        let spawned = archivist::spawn(archive, start.archive_rules.clone(), shared.clone());
        let spawned = spawned.inspect_err(|error| {
            tracing::error!(%error, "cannot start the archive's thread");
            shared.vitals.archive.die();
        });
        spawned.ok()
    });
    let (to_archive, archive_thread) = archivist.unzip();
    let timetable = timetable::spawn(shared.clone());
    let timetable = timetable.inspect_err(|error| {
        tracing::error!(%error, "cannot start the schedules' thread");
        shared.vitals.schedules.die();
    });
    let timetable = timetable.ok();
    let (find_due, schedules_thread) = timetable.unzip();
    run_terms(first, start, shared, to_archive, find_due);
    if schedules_thread.is_some_and(|thread| thread.join().is_err()) {
        tracing::error!("the schedules' thread panicked");
    }
    if archive_thread.is_some_and(|thread| thread.join().is_err()) {
        tracing::error!("the archive's thread panicked");
    }
    shared.close();
}

fn run_terms(
    first: Result<StartRole, Error>,
    mut start: EngineStart,
    shared: &Arc<EngineState>,
    to_archive: Option<Sender<ToArchive>>,
    find_due: Option<Sender<FindDue>>,
) {
    let mut begun = first;
    let mut tried_at = Instant::now();
    let mut watchers = Watchers::default();
    let mut kept = HeldCommands::for_as_long_as(start.rules.seat_ttl);
    loop {
        let ended = match begun {
            Ok(StartRole::Leads(term)) => {
                kept.give_back(&shared.run_queue);
                serve_term(term, &start, shared, (&to_archive, &find_due), &mut watchers)
            }
            Ok(StartRole::Follows(follower)) => match follow_on(follower, &mut start, shared, &mut kept, &mut watchers)
            {
                Some(next) => {
                    begun = next;
                    continue;
                }
                None => return,
            },
            Err(error) => TermEnd::Failed(error),
        };
        shared.vitals.takeover.begin_unless_begun();
        if !matches!(ended, TermEnd::HandsOver) {
            shared.handover.give_up();
        }
        match ended {
            TermEnd::Stopped => return,
            TermEnd::HandsOver => {
                let view = shared.leader_view.borrow().clone();
                if shared.handover.carry_out(&mut *start.leadership, view, |view| shared.publish(view)) {
                    // Commands that were not begun are for the next leader, and their callers learn that at once.
                    if kept.keep_for(Duration::ZERO, shared, &mut watchers) == LoopControl::Stop || shared.is_stopping()
                    {
                        return;
                    }
                    kept.refuse_all(shared);
                    begun = begin(&mut start, shared);
                    continue;
                }
            }
            TermEnd::Failed(error) => {
                start.leadership.term_ended();
                // The next look at the seat may take long.
                if start.heirs.is_some() && may_pass(&error) {
                    shared.publish_cut_off();
                }
                shared.stats.seats_lost.add(u64::from(matches!(error, Error::StaleTerm { .. })));
                report_trouble(shared, &error, &*start.leadership);
            }
            TermEnd::SeatLost => {
                start.leadership.term_ended();
                shared.stats.seats_lost.add(1);
                tracing::warn!("another process took the seat");
                shared.set_trouble("another process took the seat".into());
            }
        }
        // Whatever failed, the disk and the node's own log are left in peace for a while.
        let rest = start.pacing.term_every.saturating_sub(tried_at.elapsed());
        let is_told_to_stop = !rest.is_zero() && kept.keep_for(rest, shared, &mut watchers) == LoopControl::Stop;
        if is_told_to_stop || shared.is_stopping() {
            return;
        }
        tried_at = Instant::now();
        begun = begin(&mut start, shared);
    }
}

fn serve_term(
    term: Leading,
    start: &EngineStart,
    shared: &Arc<EngineState>,
    senders: (&Option<Sender<ToArchive>>, &Option<Sender<FindDue>>),
    watchers: &mut Watchers,
) -> TermEnd {
    shared.load.set(OverloadLevel::Normal, OverloadReason::WithinLimits);
    let (machine, committer) = machine_of(term, start, shared, senders, &mut *watchers);
    shared.serves.store(true, Ordering::Relaxed);
    let ended = serve(machine, committer);
    shared.serves.store(false, Ordering::Relaxed);
    shared.vitals.machine.rest();
    watchers.ring_all();
    ended
}
