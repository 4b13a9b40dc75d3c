//! The run loop of any machine: whose turn it is, what goes to the log and together with what, and what may leave when.
//!
//! A machine decides, and its state is a fold over its events ([`StateMachine`]). A host is the part of a node around
//! it: it knows what is asked, and how what leaves is carried out ([`Host`]). Nothing here knows which machine it is; a
//! manager is one.
//!
//! ```text
//!   follow ──(the log is read to its end, and the seat is free to take)──▶ lead ──▶ turns ──▶ the term ends ──▶ follow
//! ```
//!
//! - `follow`: a machine applies what is in the log, for as long as it takes, and then takes the seat.
//! - `turns`: two threads, of which one is the machine and the other may be at the log; `run_queue` says whose turn it is.
//! - `committer`: one commit for all that waits, snapshots, and the seat, which is confirmed by what is written.
//! - `outgoing`: what others will see, held back until it is durable; and `seat`: until when it may leave at all.

mod committer;
mod follow;
mod outgoing;
mod run_queue;
mod seat;
mod snapshots;
#[cfg(test)]
mod toy;
mod turns;

use std::time::Duration;

use onward_core::fence::Term;
use onward_core::ids::Seq;
use onward_core::time::{Mono, Now};
use onward_health::Pulse;
use onward_log::codec::DecodeError;
use onward_log::{BlobDigest, Error, StoredRow};

pub(crate) use committer::{CommitAnswer, CommitQueue, CommitReply, CommitRequest, Commits, Committer};
pub(crate) use follow::{CatchUp, Follower, NewTerm, SeatBid};
pub(crate) use outgoing::OutgoingSender;
pub(crate) use run_queue::{CloseAtEnd, RunQueue, Wait};
pub(crate) use snapshots::Snapshots;
pub(crate) use turns::{Rounds, TermEnd, take_turns};

/// A machine as the loop sees it. It is told the time, decides events, and can be built again from them.
pub(crate) trait StateMachine: Send {
    type Input;
    type Effects;
    type Event: Send;
    /// A part of a snapshot.
    type Record: Send;

    fn step(&mut self, now: Now, input: Self::Input, out: &mut Self::Effects);

    /// The input by which the machine learns that the seat is its own: it decides that its term has begun, and acts
    /// once that is durable.
    fn seat_taken(term: Term) -> Self::Input;

    /// The instant when the machine wants to be stepped although nothing was asked.
    fn next_wakeup(&self) -> Option<Mono>;

    /// Folds in what was decided under an earlier term, or by another.
    fn apply(&mut self, event: &Self::Event);

    /// The newest event that it knows.
    fn newest(&self) -> Seq;

    /// About how many records a snapshot of it would have.
    fn size(&self) -> u64;

    /// Whether something in the state refers to this content.
    fn refers_to(&self, digest: &BlobDigest) -> bool;

    fn restore(&mut self, record: Self::Record);

    /// All records of a snapshot were restored. Gives the event up to which it reaches.
    fn finish_restore(&mut self) -> Result<Seq, Error>;

    /// A snapshot is begun, of the state at this event.
    fn begin_snapshot(&mut self) -> Seq;

    /// The snapshot's next records, at most so many, and whether they are the last.
    fn next_records(&mut self, max: usize) -> (Vec<Self::Record>, bool);

    fn abandon_snapshot(&mut self);

    fn encode_events(events: &[Self::Event], out: &mut Vec<u8>);

    fn decode_events(row: &StoredRow) -> Result<Vec<Self::Event>, DecodeError>;

    fn encode_records(records: &[Self::Record], out: &mut Vec<u8>);

    fn decode_records(chunk: &[u8]) -> Result<Vec<Self::Record>, DecodeError>;
}

/// The surroundings of a machine.
pub(crate) trait Host: Send + Sync + 'static {
    type Machine: StateMachine;
    /// A command to the machine.
    type Command: Send;
    /// Something for others, complete in itself: whoever holds it can let it go.
    type Outgoing: Send;

    fn run_queue(&self) -> &RunQueue<Self::Command>;

    /// Lets others see it.
    fn deliver(&self, out: Self::Outgoing);

    /// Whether a message goes before the others that may go at the same moment.
    fn goes_first(out: &Self::Outgoing) -> bool;

    /// The log's word to the machine, as one of its commands.
    fn answer(&self, answer: CommitAnswer);

    /// The pulse of the committer: one beat for each call to the log.
    fn log_pulse(&self) -> &Pulse;

    fn commit_begun(&self);

    fn committed(&self, events: usize, took: Duration);

    /// Sets the reason why nothing can be stored at the moment; empty when that is over.
    fn set_trouble(&self, why: String);

    /// The time for which a write that returned confirms the seat; and for which anybody is in doubt.
    fn seat_ttl(&self) -> Duration;

    /// The pause before the log is asked again what became of something.
    fn ask_again(&self) -> Duration;

    /// Whether nobody waits for this loop any more, so that nothing may leave.
    fn is_given_up(&self) -> bool;
}
