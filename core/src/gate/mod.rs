//! The gate: the authority over all datacenters, as a machine.
//!
//! A client submits to a gate, and the job runs in one or several datacenters. Each of them decides for itself how its
//! attempts go; the gate alone decides that a job has timed out or is cancelled, for all of them, once. What the two say
//! to each other is [`message`].
//!
//! **What is trusted, and for how long.** The gates' own seat, for `seat_ttl` after it was confirmed, as a manager's is. A
//! datacenter, for what its newest leader says: the highest term that was heard of it. Silence is trusted for nothing: it
//! marks a datacenter unreachable and kills no job (`declare`).
//!
//! **Who may overrule.** A datacenter that has ended a job has ended it: the first terminal state written there wins, and
//! the gate is told. A decision of the gate is never undone, also not by a correction, since others may have obeyed it; it
//! is sent again, under the newest tokens, until every datacenter has said how the job ended there.
//!
//! **Epochs.** Everything that decides about a job carries `(n, gate)`, where n is the term of the gates' log. If a
//! datacenter has seen a higher one, this log was restored from a backup, and n rises above it; from then on it rises with
//! every gate that takes the seat, until terms have caught up. A job that was rebuilt from a report has n above all that
//! its datacenter has seen.
//!
//! **Restored datacenters.** On PostgreSQL terms only rise. An embedded log that was restored from a backup may come back
//! under a term that is not higher: an equal one is told by its *life* and heard at once; a lower one is heard when the
//! higher one has been silent for `silent_after`, since until then it may be a leader that was replaced.
//!
//! **State.** Decisions are events, and only [`Gate::apply`] changes the persisted [`State`]. Reports, streams and counts are
//! soft.
//!
//! | part | holds |
//! |---|---|
//! | [`State`] | jobs, their targets, decisions and ends; keys; the newest leader of each datacenter |
//! | `datacenters` | streams, counts, who is heard |
//! | `tracks` | what was reported last about each target |
//! | `agenda` | what is due, owed or to be looked at |
//!
//! | module | decides |
//! |---|---|
//! | `declare` | whether a job has timed out everywhere |
//! | `route` | which datacenter gets a new job |
//! | `submit` | what is accepted; cancel and extend |
//! | `frames` | what a datacenter said, and from which leader |
//! | `reports` | what becomes of a job by it |
//! | `orders` | what a datacenter is owed, and when it is sent again |
//! | `due` | what is done when time has come |
//! | `view` | what can be seen |
//! | `snapshot` | the whole state at one event, taken bit by bit |

mod agenda;
mod datacenters;
pub mod declare;
mod due;
pub mod effect;
pub mod event;
mod frames;
pub mod input;
pub mod message;
mod orders;
pub mod placement;
mod reports;
pub mod route;
mod rule;
mod seat;
mod snapshot;
mod state;
mod submit;
mod view;

use std::collections::VecDeque;

use crate::bite::Bite;
use crate::fence::GateEpoch;
use crate::health::overload::OverloadLevel;
use crate::ids::{JobId, RequestId, Seq, StreamId};
use crate::manager::SeatState;
use crate::manager::durability::Durability;
use crate::manager::flow::Flow;
use crate::manager::seat::Seat;
use crate::payload::Digest;
use crate::refusal::{Refusal, RefusalCounts};
use crate::settings::Rules;
use crate::time::{Awake, Mono, Now, Wall};

use agenda::Agenda;
use datacenters::Datacenters;
use effect::{Answer, Effect, Effects, GateNotice, PendingEffect};
use event::{Event, StampedEvent};
use input::{Call, Input};
use message::ToDatacenter;
use reports::Tracks;

pub use due::Why;
pub use rule::{GateRule, MISSED_REPORTS};
pub use snapshot::{SnapshotHead, SnapshotRecord};
pub use state::{DatacenterRecord, Decision, Job, State, Target};
pub use view::{DatacenterView, GateHealth, GateView, JobView, TargetState, TargetView, WaitReason};

#[derive(Debug)]
pub struct Gate {
    rules: Rules,
    /// The number of this gate in epochs.
    id: u64,
    state: State,
    seat: Seat,
    durability: Durability,
    now: Now,
    awake: Awake,
    /// Inputs that came while the seat was not confirmed, with the instant of each.
    kept: VecDeque<(Mono, Input)>,
    datacenters: Datacenters,
    tracks: Tracks,
    agenda: Agenda,
    /// Submissions that were confirmed lately.
    flow: Flow,
    refusals: RefusalCounts,
    load: OverloadLevel,
    bite: Bite,
    unreferenced: Vec<Digest>,
    snapshot: Option<Box<snapshot::OpenGateSnapshot>>,
    restoring: Option<snapshot::RestoreProgress>,
    /// Whether events come from the log: nothing is armed or sent then.
    replaying: bool,
}

impl Gate {
    /// A machine with nothing in it. Feed it the log by [`Self::apply`], then `Input::SeatTaken`. `id` tells this gate from
    /// others in epochs.
    pub fn new(rules: Rules, id: u64, now: Now) -> Self {
        Self {
            id,
            state: State::default(),
            seat: Seat::none(now),
            durability: Durability::default(),
            now,
            awake: Awake::from_ms(now.mono.as_ms()),
            kept: VecDeque::new(),
            datacenters: Datacenters::default(),
            tracks: Tracks::default(),
            agenda: Agenda::default(),
            flow: Flow::default(),
            refusals: RefusalCounts::default(),
            load: OverloadLevel::Normal,
            bite: Bite::WHOLE,
            unreferenced: Vec::new(),
            snapshot: None,
            restoring: None,
            replaying: true,
            rules,
        }
    }

    /// Feeds one event that was read from the log.
    pub fn apply(&mut self, stamped: &StampedEvent) {
        debug_assert!(self.replaying, "events are applied by deciding them once the seat is taken");
        assert!(self.restoring.is_none(), "a snapshot is restored as a whole");
        self.fold(stamped);
        self.unreferenced.clear();
        self.durability.set_replayed(self.state.seq());
    }

    /// Takes one input. `effects` is filled, not cleared. The input comes before timers: a success that was there beats a
    /// timeout that was not decided yet.
    pub fn step(&mut self, now: Now, input: Input, effects: &mut Effects) {
        self.advance_clocks(now, effects);
        let has_time = matches!(input, Input::Wake) && !self.log_is_behind();
        self.bite = if has_time { Bite::WHOLE } else { Bite::BESIDE_INPUT };
        self.handle_input(input, effects);
        self.handle_kept(effects);
        self.fire_due(effects);
        self.flow.note_demand(self.demand() > 0, self.own_awake());
        self.flush_unreferenced(effects);
        if !self.replaying {
            self.durability.end_step(self.state.seq(), self.now.mono);
        }
        self.seat.promised = self.next_wakeup().map(|(at, _)| at);
    }

    fn handle_input(&mut self, input: Input, fx: &mut Effects) {
        match input {
            Input::Wake => {}
            Input::SeatTaken { term } => self.begin_term(term, fx),
            Input::SeatConfirmed { term, question } => {
                self.seat.handle_answer(term, question, self.durability.durable());
            }
            Input::SeatLost => self.seat.lose(),
            Input::Drained => self.seat.handle_drained(),
            Input::Durable { seq } => self.handle_durable(seq),
            Input::Load(level) => self.load = level,
            said => self.handle_or_keep(said, fx),
        }
    }

    /// Takes what somebody said. The seat is confirmed.
    fn handle_report(&mut self, input: Input, fx: &mut Effects) {
        match input {
            Input::Call { request, call } => self.handle_call(request, call, fx),
            Input::StreamOpened { stream, datacenter } => self.datacenters.open_stream(stream, datacenter),
            Input::Datacenter { stream, frame } => self.handle_frame(stream, frame, fx),
            Input::StreamClosed { stream } => self.datacenters.close_stream(stream),
            Input::Wake
            | Input::SeatTaken { .. }
            | Input::SeatConfirmed { .. }
            | Input::SeatLost
            | Input::Drained
            | Input::Durable { .. }
            | Input::Load(_) => unreachable!("these are taken whatever the seat"),
        }
    }

    fn handle_call(&mut self, request: RequestId, call: Call, fx: &mut Effects) {
        let answer = match call {
            Call::Submit(submissions) => self.submit(submissions, fx),
            Call::Cancel { job } => self.cancel(job, fx),
            Call::Extend { job, by, reason, request } => self.extend(job, by, reason, request, fx),
        };
        self.reply(request, answer, fx);
    }

    /// Decides: stamps the event, applies it, and hands it out to be made durable.
    fn emit(&mut self, event: Event, fx: &mut Effects) {
        let stamped = StampedEvent { at: self.log_now(), event };
        self.fold(&stamped);
        fx.events.push(stamped);
    }

    fn fold(&mut self, stamped: &StampedEvent) {
        if self.snapshot.is_some() {
            self.copy_before(&stamped.event);
        }
        self.state.apply(stamped, &mut self.unreferenced);
        if !self.replaying {
            stamped.event.for_each_job(&mut |job| self.index(job));
        }
    }

    /// Brings what is derived from a job in line with it.
    fn index(&mut self, id: JobId) {
        match self.state.job(id) {
            Some(job) => {
                let was_open = self.tracks.targets_of(id) > 0;
                for target in &job.targets {
                    let name = &target.datacenter;
                    if !was_open && !job.has_ended() {
                        self.datacenters.begin_job(name, self.awake);
                    } else if was_open && job.has_ended() {
                        self.datacenters.end_job(name, self.state.datacenter(name).is_some());
                    }
                }
                let fires_at = self.overall_fires_at(job);
                self.agenda.update(job, fires_at);
                self.tracks.update(job);
            }
            None => {
                self.agenda.remove(id);
                self.tracks.remove(id);
            }
        }
    }

    /// The epoch under which decisions about a job go out.
    fn epoch_of(&self, job: &Job) -> GateEpoch {
        GateEpoch { n: self.epoch_number().max(job.n), gate: self.id }
    }

    fn epoch_number(&self) -> u64 {
        self.seat.term().get().max(self.state.raised)
    }

    fn push(&self, effect: Effect, fx: &mut Effects) {
        fx.list.push(PendingEffect { after: self.state.seq(), effect });
    }

    fn send(&self, stream: StreamId, message: ToDatacenter, fx: &mut Effects) {
        self.push(Effect::Send { stream, message }, fx);
    }

    fn report(&self, notice: GateNotice, fx: &mut Effects) {
        self.push(Effect::Report(notice), fx);
    }

    fn reply(&mut self, request: RequestId, answer: Result<Answer, Refusal>, fx: &mut Effects) {
        if let Err(refusal) = &answer {
            self.refusals.note(refusal);
        }
        self.push(Effect::Reply { request, answer }, fx);
    }

    fn flush_unreferenced(&mut self, fx: &mut Effects) {
        while let Some(digest) = self.unreferenced.pop() {
            if self.state.stored_refs(&digest) == 0 {
                self.push(Effect::Unreferenced { digest }, fx);
            }
        }
    }

    fn handle_durable(&mut self, seq: Seq) {
        self.durability.advance(seq);
        while let Some(step) = self.durability.pop_synced() {
            self.flow.count(&self.rules.progress, self.own_awake(), step.handouts);
            self.seat.confirm_as_of(step.decided_at, self.durability.durable());
        }
    }

    fn log_now(&self) -> Wall {
        self.seat.clock().at(self.now.mono)
    }

    /// Whether so many events wait for the log that nothing is decided in bulk until it has caught up.
    pub fn log_is_behind(&self) -> bool {
        self.durability.is_behind(self.state.seq())
    }

    pub fn seat_state(&self) -> SeatState {
        self.seat.state(self.now.mono, self.rules.seat_ttl, !self.kept.is_empty())
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    pub fn refusals(&self) -> &RefusalCounts {
        &self.refusals
    }

    /// The newest event that it knows.
    pub fn newest(&self) -> Seq {
        self.state.seq()
    }

    /// About how many records a snapshot of it would have.
    pub fn size(&self) -> u64 {
        self.state.job_count() as u64 + 1
    }

    /// Whether a job held here refers to this stored content.
    pub fn refers_to(&self, digest: &Digest) -> bool {
        self.state.stored_refs(digest) > 0
    }
}
