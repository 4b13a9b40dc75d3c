//! The manager: the authority of one datacenter, as a machine.
//!
//! [`Manager::step`] takes the time and one [`Input`], decides, and fills [`Effects`]. [`Manager::next_wakeup`] says when
//! it wants to be stepped again if nothing happens. That is all the shell needs to know:
//!
//! ```text
//!          ┌────────────── inputs, wake-ups ──────────────┐
//!          ▼                                              │
//!  step(now, input) ──▶ events ──▶ append as one batch ──▶ durable ──▶ effects that waited for it
//! ```
//!
//! What comes in is [`input`] and [`message`], what is decided is [`event`], what is to be done is [`effect`]: closed
//! lists, each.
//!
//! **What is trusted, and for how long.** The seat, for `seat_ttl` after it was confirmed: without it nothing is
//! decided, renewed or timed out, and what is said is kept until it is confirmed again. A claim, while its fence is the newest of its workflow. A worker, while three
//! independent signals say so. Nobody's clock but our own.
//!
//! **State.** Decisions are events, and only [`Manager::apply`] changes the persisted [`State`]; everything else in this
//! struct is soft: derived from the state, or lost in a crash without harm (beats, probes, who is connected).
//!
//! **Parts.** What is soft lies in parts, each of which keeps its own fields right and knows nothing of the others:
//!
//! | part | holds |
//! |---|---|
//! | `fleet` | workers, what is heard of the attempts that they hold, the hold's counts, who has gone |
//! | `polls` | open polls, and answers that may not have arrived |
//! | `timers` | everything that is due at an instant |
//! | `durability` | steps that wait for the log |
//! | [`crate::dispatch`] | who gets what |
//! | `flow` | what this manager has got done, and what was wanted of it |
//! | `gates` | streams to gates, the jobs that they decide about, and what they have not heard yet |
//! | `kept` | what was said while the seat was not confirmed |
//! | `follow_ups` | what is said at the end of a step |
//!
//! **Handlers** borrow the parts that they need, and log nothing: `watch` (fleet, timers), `offers` (dispatch; reads fleet
//! and polls), `job_timers` (timers), `indexes` (all that follows an event). Who decides has the whole machine, because
//! a decision is an event, and whatever is derived follows it at once:
//!
//! | module | decides |
//! |---|---|
//! | `seat` | whether we may act: term, confirmation, gaps of our own |
//! | `kept` | what becomes of what is said while we may not |
//! | `submit` | what is accepted: limits, unique and idempotency keys |
//! | `command` | cancel, retry, extend, dead letters, pausing, draining |
//! | `assign` | which worker gets what |
//! | `attempts` | beats, outcomes, claims; the end of an attempt |
//! | `delivery` | inputs that are fetched, and attempts that cannot be brought to their worker |
//! | `notes` | what handlers cause to be logged, and how often |
//! | `extension` | more time, if earned |
//! | `sessions`, `polling` | who workers are, and what they still hold |
//! | `judge` | verdicts on workers, and who is away |
//! | `evict` | eviction, hold, readmission, probation |
//! | `job_end` | what becomes of a job that is over |
//! | `memory` | how long a worker that has gone is remembered |
//! | `due` | what is done when a timer fires, and when the next wake-up is |
//! | `schedules`, `schedule_changes` | which schedule is due, and what starts; changes of plans |
//! | `gates` | what gates are told, and what is obeyed of what they say |
//! | `view`, `counting` | what can be seen |
//! | `snapshot`, `sharing` | the whole state at one event, taken bit by bit; and put back, no larger than it was |

mod assign;
mod attempts;
mod command;
mod counting;
mod delivery;
mod due;
pub(crate) mod durability;
pub mod effect;
pub mod event;
mod evict;
mod extension;
mod fleet;
pub(crate) mod flow;
mod follow_ups;
mod gates;
pub(crate) mod indexes;
pub mod input;
mod job_end;
mod job_timers;
mod judge;
mod kept;
mod memory;
pub mod message;
mod notes;
mod offers;
mod output;
mod polling;
mod polls;
mod schedule_changes;
mod schedules;
pub(crate) mod seat;
mod sessions;
mod sharing;
mod snapshot;
mod submit;
mod timers;
mod view;
mod watch;

use std::collections::BTreeSet;
use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::bite::Bite;
use crate::counts::Counts;
use crate::dispatch::Dispatch;
use crate::effect::{Effect, Effects, ManagerNotice, PendingEffect};
use crate::event::{Event, StampedEvent};
use crate::health::overload::OverloadLevel;
use crate::ids::{JobId, RequestId, SessionId};
use crate::input::{Call, Input};
use crate::message::ToWorker;
use crate::refusal::{Refusal, RefusalCounts};
use crate::settings::Rules;
use crate::state::{Changes, State};
use crate::time::{Awake, Now};

use durability::Durability;
use fleet::Fleet;
use flow::Flow;
use follow_ups::FollowUps;
use gates::Gates;
use indexes::{Indexes, SoftIndexes};
use kept::KeptInputs;
use polls::Polls;
use seat::Seat;
use timers::Timers;

pub(crate) use fleet::{FleetWorker, WorkerKey};

pub use judge::OwnHealth;
pub use seat::SeatState;
pub use snapshot::{JobRecord, KeyExpiry, ScheduleRecord, SnapshotCut, SnapshotHead, SnapshotPart, SnapshotRecord};
pub use timers::Why;
pub use view::{
    AttemptView, AwayReason, EvictedReason, JobView, KeyWait, ManagerView, WorkerState, WorkerView, WorkflowView,
};

#[derive(Debug)]
pub struct Manager {
    rules: Rules,
    rng: ChaCha8Rng,
    state: State,
    changes: Changes,
    dispatch: Dispatch,
    seat: Seat,
    /// Inputs that came while the seat was not confirmed.
    kept: KeptInputs,
    now: Now,
    awake: Awake,
    fleet: Fleet,
    polls: Polls,
    timers: Timers,
    agendas: schedules::Agendas,
    changes_of_schedules: schedule_changes::WaitingChanges,
    follow_ups: FollowUps,
    gates: Gates,
    refusals: RefusalCounts,
    counts: Counts,
    load: OverloadLevel,
    durability: Durability,
    flow: Flow,
    /// The amount that this step does of each kind of work that grows with the number of jobs.
    bite: Bite,
    /// A snapshot under way.
    snapshot: Option<Box<snapshot::OpenSnapshot>>,
    restoring: Option<Box<snapshot::RestoreProgress>>,
    /// While events come from the log.
    sharing: Option<Box<sharing::NameSharing>>,
    /// Whether events come from the log: nothing is armed, sent or judged then.
    replaying: bool,
}

impl Manager {
    /// A machine with nothing in it. Feed it the log by [`Self::apply`], then `Input::SeatTaken`.
    /// `seed` is all the randomness that it will ever use.
    pub fn new(rules: Rules, seed: u64, now: Now) -> Self {
        Self {
            rng: ChaCha8Rng::seed_from_u64(seed),
            state: State::new(seed),
            changes: Changes::default(),
            dispatch: Dispatch::new(rules.aging, seed),
            seat: Seat::none(now),
            kept: KeptInputs::default(),
            now,
            awake: Awake::from_ms(now.mono.as_ms()),
            fleet: Fleet::new(seed),
            polls: Polls::new(seed),
            timers: Timers::new(now.mono),
            agendas: schedules::Agendas::default(),
            changes_of_schedules: schedule_changes::WaitingChanges::default(),
            follow_ups: FollowUps::default(),
            gates: Gates::default(),
            refusals: RefusalCounts::default(),
            counts: Counts::new(seed),
            load: OverloadLevel::Normal,
            durability: Durability::default(),
            flow: Flow::default(),
            bite: Bite::WHOLE,
            snapshot: None,
            restoring: None,
            sharing: None,
            replaying: true,
            rules,
        }
    }

    /// Feeds one event that was read from the log.
    pub fn apply(&mut self, stamped: &StampedEvent) {
        debug_assert!(self.replaying, "events are applied by deciding them once the seat is taken");
        assert!(self.restoring.is_none(), "a snapshot is restored as a whole");
        match self.shared(stamped) {
            Some(shared) => self.fold(&shared),
            None => self.fold(stamped),
        }
        self.durability.set_replayed(self.state.seq());
    }

    /// Takes one input. `effects` is filled, not cleared. The input comes before timers: a success that was there beats a
    /// timeout that was not decided yet.
    pub fn step(&mut self, now: Now, input: Input, effects: &mut Effects) {
        self.advance_clocks(now, effects);
        self.bite = self.bite_for(&input);
        self.handle_input(input, effects);
        self.report_gap(effects);
        self.keep_waiting_changes();
        self.handle_kept(effects);
        self.refuse_kept(effects);
        self.refuse_polls(effects);
        self.fire_due(effects);
        self.judge_touched(effects);
        self.assign(effects);
        self.note_demand();
        self.answer_polls(effects);
        self.report_dead_letters(effects);
        self.report_failing(effects);
        self.trim_dead_letters(effects);
        self.report_ends_to_gates(effects);
        self.flush_archive(effects);
        self.flush_unreferenced(effects);
        if !self.replaying {
            self.durability.end_step(self.state.seq(), self.now.mono);
        }
        self.seat.promised = self.next_wakeup().map(|(at, _)| at);
    }

    /// A step that was asked for something does little else, for the sake of those who stand in line behind it; and while
    /// very much waits for the log, no step adds more than that, since every answer waits for what was decided before it.
    fn bite_for(&self, input: &Input) -> Bite {
        if matches!(input, Input::Wake) && !self.log_is_behind() { Bite::WHOLE } else { Bite::BESIDE_INPUT }
    }

    /// Whether so many events wait for the log that nothing is decided in bulk until it has caught up.
    pub fn log_is_behind(&self) -> bool {
        self.durability.is_behind(self.state.seq())
    }

    fn handle_input(&mut self, input: Input, fx: &mut Effects) {
        match input {
            Input::Wake => {}
            Input::SeatTaken { term } => self.begin_term(term, fx),
            Input::SeatConfirmed { term, question } => self.handle_seat_answer(term, question),
            Input::SeatLost => self.seat.lose(),
            Input::QueueEmptied => self.handle_queue_drained(),
            Input::Durable { seq } => self.handle_durable(seq),
            Input::Load(level) => self.load = level,
            Input::Due(found) => self.handle_due(found),
            said => self.handle_or_keep(said, fx),
        }
    }

    /// Takes what somebody said. The seat is confirmed.
    fn handle_report(&mut self, input: Input, fx: &mut Effects) {
        match input {
            Input::Call { request, call } => self.handle_call(request, call, fx),
            Input::CallGone { request, delivered } => self.handle_call_gone(request, delivered, fx),
            Input::Session { session, message } => self.handle_message(session, message, fx),
            Input::SessionClosed { session } => self.handle_session_closed(session),
            Input::Undeliverable { claim, why } => self.handle_undeliverable(&claim, why, fx),
            Input::Archived { jobs } => self.handle_archived(jobs, fx),
            Input::GateOpened { stream, datacenter } => self.handle_gate_opened(stream, datacenter, fx),
            Input::GateClosed { stream } => self.gates.close(stream),
            Input::Gate { stream, message } => self.handle_gate_message(stream, *message, fx),
            Input::ArchivedFound { stream, question, image } => self.handle_found(stream, *question, image, fx),
            Input::Wake
            | Input::SeatTaken { .. }
            | Input::SeatConfirmed { .. }
            | Input::SeatLost
            | Input::QueueEmptied
            | Input::Durable { .. }
            | Input::Load(_)
            | Input::Due(_) => unreachable!("these are taken whatever the seat"),
        }
    }

    fn handle_call(&mut self, request: RequestId, call: Call, fx: &mut Effects) {
        let answer = match call {
            Call::Submit(submissions) => self.submit(submissions, fx),
            Call::Cancel { job, epoch } => self.cancel(job, epoch, fx),
            Call::CancelWhere { filter, jobs } => self.cancel_where(&filter, &jobs, fx),
            Call::Retry { job, new_id, request } => self.retry(job, new_id, request, Arc::default(), fx),
            Call::RetryArchived { image, new_id, request } => self.retry_archived(&image, new_id, request, fx),
            Call::Extend { job, by, reason, request } => self.extend(job, by, reason, request, fx),
            Call::Poll(poll) => match self.handle_poll(request, poll, fx) {
                Ok(()) => return,
                Err(refusal) => Err(refusal),
            },
            Call::Beat(beats) => self.handle_beat_call(beats, fx),
            Call::Settle(settlements) => self.handle_settle_call(settlements, fx),
            Call::RequestExtension(asked) => self.handle_extension_call(&asked, fx),
            Call::FetchInput { claim, workflow } => self.fetch_input(&claim, &workflow),
            Call::PauseQueue(queue) => self.pause_queue(queue, fx),
            Call::ResumeQueue(queue) => self.resume_queue(queue, fx),
            Call::DrainWorker(worker) => self.drain_worker(&worker, true, fx),
            Call::UndrainWorker(worker) => self.drain_worker(&worker, false, fx),
            Call::Goodbye { worker, incarnation } => self.handle_http_goodbye(&worker, &incarnation),
            Call::ReplayDeadLetter { job, new_id, request, from } => {
                self.replay_dead_letter(job, new_id, request, from, fx)
            }
            Call::DropDeadLetter { job } => self.drop_dead_letter(job, fx),
            Call::SetSchedule(_)
            | Call::RemoveSchedule(_)
            | Call::PauseSchedule(_)
            | Call::ResumeSchedule(_)
            | Call::RunSchedule { .. } => return self.handle_schedule_call(request, call, fx),
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
        let mut changes = core::mem::take(&mut self.changes);
        self.state.apply(stamped, &mut changes);
        let soft = (!self.replaying).then_some(SoftIndexes {
            rules: &self.rules,
            seat: &self.seat,
            fleet: &mut self.fleet,
            polls: &self.polls,
            timers: &mut self.timers,
            agendas: &mut self.agendas,
            follow_ups: &mut self.follow_ups,
            now: self.now,
            awake: self.awake,
        });
        let mut indexes = Indexes {
            state: &mut self.state,
            dispatch: &mut self.dispatch,
            counts: &mut self.counts,
            snapshot: self.snapshot.as_deref_mut(),
            soft,
        };
        indexes.update(&stamped.event, &mut changes);
        changes.clear();
        self.changes = changes;
    }

    fn push(&self, effect: Effect, fx: &mut Effects) {
        fx.list.push(PendingEffect { after: self.state.seq(), effect });
    }

    fn send(&self, session: SessionId, message: ToWorker, fx: &mut Effects) {
        self.push(Effect::Send { session, message }, fx);
    }

    fn report(&self, notice: ManagerNotice, fx: &mut Effects) {
        self.push(Effect::Report(notice), fx);
    }

    fn reply(&mut self, request: RequestId, answer: Result<crate::effect::Answer, Refusal>, fx: &mut Effects) {
        if let Err(refusal) = &answer {
            self.refusals.note(refusal);
        }
        self.push(Effect::Reply { request, answer }, fx);
    }

    fn handle_archived(&mut self, jobs: Vec<JobId>, fx: &mut Effects) {
        let gone: Vec<JobId> = jobs
            .into_iter()
            .filter(|id| {
                self.state.find(*id).is_some_and(|key| self.state.job(key).has_ended() && !self.state.job(key).dead)
            })
            .collect();
        let distinct: BTreeSet<JobId> = gone.iter().copied().collect();
        if distinct.is_empty() {
            return;
        }
        let jobs = if distinct.len() == gone.len() { gone } else { distinct.into_iter().collect() };
        self.emit(Event::JobsArchived { jobs }, fx);
    }

    fn flush_archive(&mut self, fx: &mut Effects) {
        while let Some(job) = self.follow_ups.to_archive.pop() {
            self.push(Effect::Archive { job }, fx);
        }
    }

    fn flush_unreferenced(&mut self, fx: &mut Effects) {
        while let Some(digest) = self.follow_ups.unreferenced.pop() {
            if self.state.stored_refs(&digest) == 0 {
                self.push(Effect::Unreferenced { digest }, fx);
            }
        }
    }

    fn draw(&mut self) -> u64 {
        self.rng.next_u64()
    }

    fn session_of(&self, worker: WorkerKey) -> Option<SessionId> {
        self.fleet.get(worker)?.session()
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

    pub fn counts(&self) -> &Counts {
        &self.counts
    }
}
