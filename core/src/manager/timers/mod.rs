//! Timers: what is due, and when the next is. Which instant something is due at is decided elsewhere.
//!
//! | what | clock | kept in |
//! |---|---|---|
//! | leases and stuck clocks | awake time | a wheel of their own, so that nothing else waits when very many end at once |
//! | workers, polls | awake time | a wheel |
//! | overall deadlines that are near | monotonic time | a wheel |
//! | overall deadlines that are far | monotonic time | [`deadlines`], in batches |
//! | ends of delays | monotonic time | the same wheel as overall deadlines |
//! | delays until an instant of the wall clock | wall clock | an ordered set |
//!
//! A timer is armed at the earliest instant at which something could be due, and whoever it belongs to looks again when
//! it fires: beats move deadlines all the time and never touch a timer.

mod deadlines;

use std::collections::BTreeSet;

use crate::bite::Bite;
use crate::ids::JobId;
use crate::state::{AttemptKey, Job, JobKey, Workflow, WorkflowKey};
use crate::table::Table;
use crate::time::{Awake, Mono, Now, Wall};
use crate::wheel::{TimerKey, Wheel};

use super::fleet::WorkerKey;
use super::polls::PollKey;
use deadlines::{DeadlineBatchKey, DeadlineEntry, Deadlines};

/// A timer on awake time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AwakeTimer {
    Worker(WorkerKey),
    Poll(PollKey),
}

/// A timer on monotonic time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MonoTimer {
    Overall(JobKey),
    Due(WorkflowKey),
}

/// The way in which the overall deadline of a job is watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Overall {
    #[default]
    Not,
    /// By a timer, because the deadline is near.
    Timer(TimerKey<MonoTimer>),
    /// By a note in a batch, because the deadline is far; with a mark that tells this job from another under its key.
    Noted(DeadlineBatchKey, u32),
}

/// The reason for the next wake-up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Why {
    /// The seat wants to be confirmed.
    Seat,
    /// A lease, a stuck clock, or a change in how an attempt counts.
    Attempt,
    /// A probe, or a worker whose verdict may change.
    Worker,
    /// A poll's wait is over.
    Poll,
    /// A job's overall deadline.
    Overall,
    /// The end of a delay.
    Due,
    /// An idempotency key may be forgotten.
    KeyExpiry,
    /// More can be handed out than one step does.
    Assign,
    /// More was kept than one step takes, or a call has waited for the seat as long as it may.
    Kept,
    /// More dead letters exist than are kept.
    DeadLetters,
    /// A schedule has something due, or its runs have changed.
    Schedule,
    /// A gate is to be reported to, or has not answered for too long.
    Gate,
}

/// The first of several instants. Of equal ones that which was considered first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Earliest {
    pub(super) at: Mono,
    pub(super) why: Why,
}

impl Earliest {
    pub(super) fn consider(&mut self, at: Mono, why: Why) {
        if at < self.at {
            *self = Self { at, why };
        }
    }
}

/// Arming the timers of a whole batch takes about as long as so many events.
const UNITS_PER_BATCH: u32 = 4;

/// A delay until an instant of the wall clock, in the order in which they end: equal ones by job and workflow, and not
/// by where those lie.
type WallDelay = (Wall, JobId, u16, WorkflowKey);

#[derive(Debug)]
pub(crate) struct Timers {
    attempts: Wheel<AttemptKey>,
    awake: Wheel<AwakeTimer>,
    mono: Wheel<MonoTimer>,
    deadlines: Deadlines,
    overall: Table<Job, Overall>,
    delays: Table<Workflow, Option<TimerKey<MonoTimer>>>,
    wall_delays: BTreeSet<WallDelay>,
}

impl Timers {
    pub(super) fn new(now: Mono) -> Self {
        Self {
            attempts: Wheel::new(now.as_ms()),
            awake: Wheel::new(now.as_ms()),
            mono: Wheel::new(now.as_ms()),
            deadlines: Deadlines::default(),
            overall: Table::new(Overall::Not),
            delays: Table::new(None),
            wall_delays: BTreeSet::new(),
        }
    }

    /// Considers the first of each kind. `mono_of` is awake time as monotonic time.
    pub(super) fn consider_next(&self, first: &mut Earliest, now: Now, mono_of: impl Fn(Awake) -> Mono) {
        if let Some((at, _)) = self.attempts.next() {
            first.consider(mono_of(Awake::from_ms(at)), Why::Attempt);
        }
        if let Some((at, timer)) = self.awake.next() {
            let why = match timer {
                AwakeTimer::Worker(_) => Why::Worker,
                AwakeTimer::Poll(_) => Why::Poll,
            };
            first.consider(mono_of(Awake::from_ms(at)), why);
        }
        if let Some((at, timer)) = self.mono.next() {
            let why = match timer {
                MonoTimer::Overall(_) => Why::Overall,
                MonoTimer::Due(_) => Why::Due,
            };
            first.consider(Mono::from_ms(at), why);
        }
        if let Some(at) = self.deadlines.next_ms() {
            first.consider(Mono::from_ms(at), Why::Overall);
        }
        if let Some((at, ..)) = self.wall_delays.first() {
            first.consider(now.mono + at.since(now.wall), Why::Due);
        }
    }

    /// Arms the timer of an attempt, unless it fires early enough as it is. `timer` and `armed` are what the attempt
    /// keeps of it.
    pub(super) fn arm_attempt(
        &mut self,
        key: AttemptKey,
        at: Awake,
        timer: &mut Option<TimerKey<AttemptKey>>,
        armed: &mut Awake,
    ) {
        arm(&mut self.attempts, key, at, timer, armed);
    }

    pub(super) fn disarm_attempt(&mut self, timer: TimerKey<AttemptKey>) {
        self.attempts.remove(timer);
    }

    pub(super) fn pop_attempt(&mut self, now: Awake, bite: &mut Bite) -> Option<AttemptKey> {
        self.attempts.pop_due(now.as_ms(), bite).map(|(_, key)| key)
    }

    /// The same for a worker. At [`Awake::MAX`] nothing is due.
    pub(super) fn arm_worker(
        &mut self,
        key: WorkerKey,
        at: Awake,
        timer: &mut Option<TimerKey<AwakeTimer>>,
        armed: &mut Awake,
    ) {
        arm(&mut self.awake, AwakeTimer::Worker(key), at, timer, armed);
    }

    pub(super) fn arm_poll(&mut self, key: PollKey, at: Awake) -> TimerKey<AwakeTimer> {
        self.awake.insert(at.as_ms(), AwakeTimer::Poll(key))
    }

    /// Disarms the timer of a worker or a poll.
    pub(super) fn disarm(&mut self, timer: TimerKey<AwakeTimer>) {
        self.awake.remove(timer);
    }

    pub(super) fn pop_awake(&mut self, now: Awake, bite: &mut Bite) -> Option<AwakeTimer> {
        self.awake.pop_due(now.as_ms(), bite).map(|(_, timer)| timer)
    }

    /// The workflow waits until this instant.
    pub(super) fn arm_delay(&mut self, key: WorkflowKey, at: Mono) {
        let timer = self.mono.insert(at.as_ms(), MonoTimer::Due(key));
        *self.delays.entry(key) = Some(timer);
    }

    /// The workflow waits until the wall clock shows this instant, whatever happens to that clock.
    pub(super) fn arm_wall_delay(&mut self, key: WorkflowKey, at: Wall, job: JobId, index: u16) {
        self.wall_delays.insert((at, job, index, key));
    }

    /// The workflow waits no longer. `wall` gives when, by the wall clock, its delay would have ended if it was such a
    /// one, and which workflow of which job it is.
    pub(super) fn disarm_delay(&mut self, key: WorkflowKey, wall: impl FnOnce() -> (Wall, JobId, u16)) {
        if !self.wall_delays.is_empty() {
            let (at, job, index) = wall();
            self.wall_delays.remove(&(at, job, index, key));
        }
        if let Some(timer) = self.delays.entry(key).take() {
            self.mono.remove(timer);
        }
    }

    /// A delay that has ended by the wall clock. It is found again until it is disarmed.
    pub(super) fn first_wall_delay(&self, now: Wall) -> Option<WorkflowKey> {
        self.wall_delays.first().filter(|(at, ..)| *at <= now).map(|(.., key)| *key)
    }

    /// Pops a timer that is due on monotonic time.
    pub(super) fn pop_mono(&mut self, now: Mono, bite: &mut Bite) -> Option<MonoTimer> {
        let (_, timer) = self.mono.pop_due(now.as_ms(), bite)?;
        match timer {
            MonoTimer::Overall(key) => self.overall[key] = Overall::Not,
            MonoTimer::Due(key) => self.delays[key] = None,
        }
        Some(timer)
    }

    pub(super) fn watches_overall(&self, key: JobKey) -> bool {
        self.overall.get(key).is_some_and(|overall| *overall != Overall::Not)
    }

    /// Watches the overall deadline of a job that is not watched yet.
    pub(super) fn watch_overall(&mut self, key: JobKey, id: JobId, at: Mono, now: Mono) {
        let entry = (key, mark_of(id));
        *self.overall.entry(key) = match self.deadlines.insert(at.as_ms(), now.as_ms(), entry) {
            Some(batch) => Overall::Noted(batch, entry.1),
            None => Overall::Timer(self.mono.insert(at.as_ms(), MonoTimer::Overall(key))),
        };
    }

    pub(super) fn unwatch_overall(&mut self, key: JobKey) {
        let Some(overall) = self.overall.get_mut(key) else { return };
        match core::mem::take(overall) {
            Overall::Not => {}
            Overall::Timer(timer) => {
                self.mono.remove(timer);
            }
            Overall::Noted(batch, _) => self.deadlines.remove(batch),
        }
    }

    /// Jobs whose overall deadline has come near and is not watched any more: a timer has to be set for each, by
    /// watching it again.
    pub(super) fn pop_near(&mut self, now: Mono, bite: &mut Bite) -> Option<Vec<JobKey>> {
        if bite.is_over() {
            return None;
        }
        let (batch, noted) = self.deadlines.pop_near(now.as_ms())?;
        bite.spend(UNITS_PER_BATCH);
        let is_open = |(key, mark): &DeadlineEntry| self.overall[*key] == Overall::Noted(batch, *mark);
        let open: Vec<JobKey> = noted.iter().filter(|entry| is_open(entry)).map(|(key, _)| *key).collect();
        // All are let go before one is watched again, which may note it in a batch of the same key.
        open.iter().for_each(|key| self.overall[*key] = Overall::Not);
        Some(open)
    }

    /// Has what is known of a job's overall deadline brought into the caches.
    pub(super) fn prefetch(&self, key: JobKey) {
        self.overall.prefetch(key);
    }
}

/// Arms a timer at `at` if that is earlier than it is armed at; none at [`Awake::MAX`].
fn arm<T: Copy>(wheel: &mut Wheel<T>, item: T, at: Awake, timer: &mut Option<TimerKey<T>>, armed: &mut Awake) {
    if let Some(key) = *timer {
        if *armed <= at {
            return;
        }
        wheel.remove(key);
        *timer = None;
    }
    if at < Awake::MAX {
        *armed = at;
        *timer = Some(wheel.insert(at.as_ms(), item));
    }
}

/// Tells a job from another that got its key after it.
fn mark_of(id: JobId) -> u32 {
    id.as_u128() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key<T>(number: u32) -> crate::key::Key<T> {
        crate::key::Key::at(number).expect("from one on")
    }

    fn timers() -> Timers {
        Timers::new(Mono::from_ms(0))
    }

    fn next(timers: &Timers, now_ms: u64) -> (u64, Why) {
        let mut first = Earliest { at: Mono::from_ms(u64::MAX), why: Why::Seat };
        let now = Now { mono: Mono::from_ms(now_ms), wall: Wall::from_ms(1_000_000 + now_ms) };
        timers.consider_next(&mut first, now, |awake| Mono::from_ms(awake.as_ms()));
        (first.at.as_ms(), first.why)
    }

    #[test]
    fn a_timer_moves_to_an_earlier_instant_and_never_to_a_later_one() {
        let mut timers = timers();
        let (mut timer, mut armed) = (None, Awake::MAX);
        for (at, fires) in [(50, 50), (60, 50), (30, 30)] {
            timers.arm_attempt(key(1), Awake::from_ms(at), &mut timer, &mut armed);
            assert_eq!((next(&timers, 0), armed), ((fires, Why::Attempt), Awake::from_ms(fires)));
        }
        let mut bite = Bite::WHOLE;
        assert_eq!(timers.pop_attempt(Awake::from_ms(29), &mut bite), None);
        assert_eq!(timers.pop_attempt(Awake::from_ms(30), &mut bite), Some(key(1)));
        assert_eq!(timers.pop_attempt(Awake::from_ms(9_000), &mut bite), None, "the others were taken back");
    }

    #[test]
    fn nothing_is_armed_for_a_worker_of_which_nothing_is_due() {
        let mut timers = timers();
        let (mut timer, mut armed) = (None, Awake::MAX);
        timers.arm_worker(key(1), Awake::MAX, &mut timer, &mut armed);
        assert_eq!((timer, next(&timers, 0).1), (None, Why::Seat));
    }

    #[test]
    fn of_equal_instants_the_first_kind_is_named() {
        let mut timers = timers();
        let poll = timers.arm_poll(key(1), Awake::from_ms(40));
        timers.arm_delay(key(1), Mono::from_ms(40));
        assert_eq!(next(&timers, 0), (40, Why::Poll));
        timers.disarm(poll);
        assert_eq!(next(&timers, 0), (40, Why::Due));
    }

    #[test]
    fn a_delay_that_is_taken_back_does_not_fire() {
        let mut timers = timers();
        timers.arm_delay(key(1), Mono::from_ms(100));
        timers.arm_delay(key(2), Mono::from_ms(100));
        timers.disarm_delay(key(1), || unreachable!("no delay is on the wall clock"));
        let mut bite = Bite::WHOLE;
        assert_eq!(timers.pop_mono(Mono::from_ms(100), &mut bite), Some(MonoTimer::Due(key(2))));
        assert_eq!(timers.pop_mono(Mono::from_ms(100), &mut bite), None);
        timers.disarm_delay(key(2), || unreachable!("no delay is on the wall clock"));
    }

    #[test]
    fn delays_on_the_wall_clock_end_by_it_in_the_order_of_ids() {
        let mut timers = timers();
        let (first, second) = (JobId::from_u128(1), JobId::from_u128(2));
        let at = Wall::from_ms(1_000_500);
        timers.arm_wall_delay(key(1), at, second, 0);
        timers.arm_wall_delay(key(2), at, first, 0);
        assert_eq!(next(&timers, 0), (500, Why::Due));
        assert_eq!(timers.first_wall_delay(Wall::from_ms(1_000_499)), None);
        assert_eq!(timers.first_wall_delay(at), Some(key(2)));
        timers.disarm_delay(key(2), || (at, first, 0));
        assert_eq!(timers.first_wall_delay(at), Some(key(1)));
    }

    #[test]
    fn a_far_deadline_is_noted_and_gets_its_timer_when_it_comes_near() {
        let mut timers = timers();
        let (id, at) = (JobId::from_u128(7), Mono::from_ms(1_000_000));
        timers.watch_overall(key(1), id, at, Mono::from_ms(0));
        timers.watch_overall(key(2), id, at, Mono::from_ms(0));
        assert!(timers.watches_overall(key(1)) && !timers.watches_overall(key(3)));
        let (near, why) = next(&timers, 0);
        assert!(why == Why::Overall && near < 1_000_000, "it comes near before it is due: {near}");
        timers.unwatch_overall(key(2));
        let (now, mut bite) = (Mono::from_ms(near), Bite::WHOLE);
        assert_eq!(timers.pop_near(now, &mut bite), Some(vec![key(1)]), "one of them has ended");
        assert_eq!(timers.pop_near(now, &mut bite), None);
        timers.watch_overall(key(1), id, at, now);
        assert_eq!(timers.pop_mono(Mono::from_ms(999_999), &mut bite), None);
        assert_eq!(next(&timers, 999_999), (1_000_000, Why::Overall));
        assert_eq!(timers.pop_mono(at, &mut bite), Some(MonoTimer::Overall(key(1))));
        assert!(!timers.watches_overall(key(1)), "it may be watched again, for it may have moved");
    }
}
