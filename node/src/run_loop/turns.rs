//! One term, by two threads that change places: one is the machine, and when it has decided something it becomes the
//! committer, unless there is one, while the other goes on as the machine. So a lone decision is committed by the very
//! thread that made it, without waking another, and under load deciding and committing go on side by side.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::thread;

use onward_log::Error;

use super::committer::commit_if_free;
use super::run_queue::EndOnPanic;
use super::{Committer, Host, Wait};

/// A machine with all that it is given in a term, as it is run.
pub(crate) trait Rounds: Send {
    type Host: Host;

    /// Does what was asked, and what is asked meanwhile; says if that was the end. What it leaves is for the next turn.
    fn round(&mut self, commands: &mut VecDeque<<Self::Host as Host>::Command>) -> Option<TermEnd>;

    /// The time for which there is nothing to do unless somebody asks.
    fn wait(&self) -> Wait;
}

/// The reason why a term ended.
#[derive(Debug)]
pub(crate) enum TermEnd {
    Stopped,
    SeatLost,
    /// The machine was told to hand the seat over; all that it decided is durable.
    HandsOver,
    Failed(Error),
}

/// Runs a term to its end.
pub(crate) fn take_turns<R: Rounds>(rounds: R, committer: Committer<R::Host>, host: &R::Host) -> TermEnd {
    let pending = committer.pending();
    let (rounds, committer, ended) = (Mutex::new(rounds), Mutex::new(committer), Mutex::new(None));
    let run_queue = host.run_queue();
    run_queue.begin_anew();
    let take_turns = |thread| {
        // Whatever happens to one thread, the other must not wait for it for ever.
        let _end = EndOnPanic(run_queue);
        let mut commands = VecDeque::new();
        while run_queue.take_turn(thread, &mut commands) {
            let mut turn = rounds.lock().expect("the other thread has not panicked");
            let end = turn.round(&mut commands);
            run_queue.give_back(&mut commands);
            let wait = turn.wait();
            // Before the other is called, so that it does not find it locked.
            drop(turn);
            match end {
                Some(end) => {
                    ended.lock().expect("nobody panics while it holds this").get_or_insert(end);
                    run_queue.end();
                }
                None => run_queue.end_turn(wait),
            }
            commit_if_free(&committer, &pending);
        }
    };
    thread::scope(|scope| {
        let other = thread::Builder::new().name("onward-machine-2".into()).spawn_scoped(scope, || take_turns(1));
        if let Err(error) = other {
            tracing::warn!(%error, "cannot start a thread; going on with one");
        }
        take_turns(0);
    });
    // Decisions before the end may still be told.
    committer.into_inner().expect("no thread has panicked").work();
    let ended = ended.into_inner().expect("nobody panics while it holds this");
    ended.expect("the threads have ended for a reason")
}
