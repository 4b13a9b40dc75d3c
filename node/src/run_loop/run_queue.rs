//! Commands to the machine, and whose turn it is to be the machine.
//!
//! Threads wait here for a *turn*: the machine's place and all that was asked. Nobody is woken who would find the place
//! taken: whoever leaves it looks whether more was asked meanwhile, and calls another only then.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(crate) struct RunQueue<C> {
    state: Mutex<State<C>>,
    bell: Condvar,
    /// A thread that is called runs at once, and on few cores in the place of whoever called it.
    has_few_cores: bool,
}

/// The delay with which the machine may get its turn while the other thread is at the disk: waking one only to
/// have it watch the time costs more than that is worth.
const LATE: Duration = Duration::from_millis(10);

/// The time for which the machine needs no turn although nobody asks.
#[derive(Clone, Copy)]
pub(crate) struct Wait {
    /// The time until a timer of the machine is due, which somebody watches for even while a commit takes long.
    pub(crate) for_timers: Duration,
    /// The time until anything is to be done, work for later included. That can wait for whoever has left the place.
    pub(crate) for_all: Duration,
}

/// The number of threads that take turns.
const THREADS: usize = 2;

struct State<C> {
    commands: VecDeque<C>,
    /// Set while a thread is the machine.
    is_taken: bool,
    /// The machine wants a turn at this time although nobody asks.
    wake_at: Option<Instant>,
    /// Threads that wait, and until when at most.
    waiting: [Option<Waiter>; THREADS],
    /// Set while one of the waiting threads was called and did not come yet.
    is_called: bool,
    has_ended: bool,
    is_closed: bool,
}

#[derive(Clone, Copy)]
struct Waiter {
    until: Option<Instant>,
}

impl<C> RunQueue<C> {
    pub(crate) fn on(cores: usize) -> Self {
        let state = State {
            commands: VecDeque::new(),
            is_taken: false,
            wake_at: None,
            waiting: [None; THREADS],
            is_called: false,
            has_ended: false,
            is_closed: false,
        };
        Self { state: Mutex::new(state), bell: Condvar::new(), has_few_cores: cores <= THREADS }
    }

    pub(crate) fn put(&self, command: C) {
        let mut state = self.state();
        if state.is_closed {
            return;
        }
        state.commands.push_back(command);
        if !state.is_taken {
            self.call(state);
        }
    }

    /// Waits until the place is free and there is something to do; puts what was asked into `asks`, which may be nothing
    /// if it is only time. False once it has ended.
    pub(crate) fn take_turn(&self, thread: usize, commands: &mut VecDeque<C>) -> bool {
        let mut state = self.state();
        loop {
            if state.has_ended {
                return false;
            }
            let now = Instant::now();
            let is_time = state.wake_at.is_some_and(|at| at <= now);
            if !state.is_taken && (is_time || !state.commands.is_empty()) {
                state.is_taken = true;
                core::mem::swap(&mut state.commands, commands);
                return true;
            }
            // If it is time and the place is taken, whoever leaves it will call.
            let until = state.wake_at.filter(|_| !is_time);
            state = self.wait(state, thread, until, now);
        }
    }

    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<C>>,
        thread: usize,
        until: Option<Instant>,
        now: Instant,
    ) -> MutexGuard<'a, State<C>> {
        state.waiting[thread] = Some(Waiter { until });
        state = match until {
            Some(until) => self.bell.wait_timeout(state, until - now).unwrap_or_else(PoisonError::into_inner).0,
            None => self.bell.wait(state).unwrap_or_else(PoisonError::into_inner),
        };
        state.waiting[thread] = None;
        // Whoever was called: it is this one, or it comes anyway.
        state.is_called = false;
        state
    }

    /// Takes the commands that came since the turn was taken.
    pub(crate) fn take_more(&self, commands: &mut VecDeque<C>) {
        core::mem::swap(&mut self.state().commands, commands);
    }

    /// Leaves the place. With few cores nobody is called for what is left of the asks: the commit that is about to begin
    /// would only begin after it. Who leaves comes back, and whoever asks next calls the other thread.
    pub(crate) fn end_turn(&self, wait: Wait) {
        let mut state = self.state();
        let now = Instant::now();
        (state.is_taken, state.wake_at) = (false, Some(now + wait.for_all));
        // Somebody has to watch the time while we are at something else.
        let latest = now + wait.for_timers + LATE;
        let is_watched = state.waiting.iter().flatten().any(|waiter| waiter.until.is_some_and(|until| until <= latest));
        if (!state.commands.is_empty() && !self.has_few_cores) || !is_watched {
            self.call(state);
        }
    }

    /// Ends the turns: nobody gets one any more.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        (state.has_ended, state.is_taken) = (true, false);
        drop(state);
        self.bell.notify_all();
    }

    /// Gives commands back that were taken and not looked at: they are for the next machine.
    pub(crate) fn give_back(&self, commands: &mut VecDeque<C>) {
        let mut state = self.state();
        while let Some(command) = commands.pop_back() {
            state.commands.push_front(command);
        }
    }

    /// Closes the queue, because there will be no machine any more. Commands are dropped from now on, and whoever waits
    /// for an answer finds that out by it.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        let dropped = core::mem::take(&mut state.commands);
        drop(state);
        drop(dropped);
    }

    /// Sets all as before the first turn; commands are kept.
    pub(crate) fn begin_anew(&self) {
        let mut state = self.state();
        (state.has_ended, state.is_taken, state.is_called, state.wake_at) = (false, false, false, Some(Instant::now()));
    }

    /// The next command while there is no machine, if one comes in time.
    pub(crate) fn next_within(&self, span: Duration) -> Option<C> {
        let until = Instant::now() + span;
        let mut state = self.state();
        loop {
            if let Some(command) = state.commands.pop_front() {
                return Some(command);
            }
            let now = Instant::now();
            if now >= until {
                return None;
            }
            state = self.wait(state, 0, Some(until), now);
        }
    }

    fn call(&self, mut state: MutexGuard<'_, State<C>>) {
        if !state.is_called && state.waiting.iter().any(Option::is_some) {
            state.is_called = true;
            drop(state);
            self.bell.notify_one();
        }
    }

    fn state(&self) -> MutexGuard<'_, State<C>> {
        // A panic while it is held leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes the queue when its threads have ended, however they did.
pub(crate) struct CloseAtEnd<'a, C>(pub(crate) &'a RunQueue<C>);

impl<C> Drop for CloseAtEnd<'_, C> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Ends the turns when one of the threads panics.
pub(super) struct EndOnPanic<'a, C>(pub(super) &'a RunQueue<C>);

impl<C> Drop for EndOnPanic<'_, C> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;

    use super::*;

    const LONG: Wait = Wait { for_timers: Duration::from_secs(3600), for_all: Duration::from_secs(3600) };

    /// A thread that takes one turn, says how many asks it had, and ends it when told.
    fn turn(run_queue: &Arc<RunQueue<u32>>, index: usize) -> (Receiver<Option<usize>>, std::sync::mpsc::Sender<Wait>) {
        let (run_queue, (tell, told), (end, ended)) = (run_queue.clone(), channel(), channel());
        thread::spawn(move || {
            let mut commands = VecDeque::new();
            let has_turn = run_queue.take_turn(index, &mut commands);
            tell.send(has_turn.then_some(commands.len())).expect("the test listens");
            if has_turn && let Ok(wait) = ended.recv() {
                run_queue.end_turn(wait);
            }
        });
        (told, end)
    }

    #[test]
    fn one_at_a_time_and_nothing_is_forgotten() {
        let run_queue = Arc::new(RunQueue::on(64));
        run_queue.begin_anew();
        let (first, end_first) = turn(&run_queue, 0);
        assert_eq!(first.recv(), Ok(Some(0)), "it is time for the first turn");
        let (second, end_second) = turn(&run_queue, 1);
        run_queue.put(0);
        run_queue.put(0);
        assert!(second.recv_timeout(Duration::from_millis(20)).is_err(), "the place is taken");
        end_first.send(LONG).expect("it listens");
        assert_eq!(second.recv(), Ok(Some(2)), "who leaves calls the other");
        end_second.send(LONG).expect("it listens");
        let (third, _end) = turn(&run_queue, 0);
        assert!(third.recv_timeout(Duration::from_millis(20)).is_err(), "nothing to do");
        run_queue.put(0);
        assert_eq!(third.recv(), Ok(Some(1)));
    }

    #[test]
    fn with_few_cores_who_leaves_calls_nobody_and_whoever_asks_does() {
        let run_queue = Arc::new(RunQueue::on(THREADS));
        run_queue.begin_anew();
        let mut commands = VecDeque::new();
        // It waits for the time that we watch too, so that it need not be called for that.
        assert!(run_queue.take_turn(0, &mut commands));
        run_queue.end_turn(LONG);
        let (other, end_other) = turn(&run_queue, 1);
        while run_queue.state().waiting[1].is_none() {
            thread::yield_now();
        }
        run_queue.state().is_taken = true;
        run_queue.put(0);
        run_queue.end_turn(LONG);
        assert!(!run_queue.state().is_called, "we come back for it");
        run_queue.put(0);
        assert_eq!(other.recv(), Ok(Some(2)), "the disk takes long, and somebody commands");
        end_other.send(LONG).expect("it listens");
    }

    #[test]
    fn somebody_watches_the_time_while_the_machine_is_elsewhere() {
        let run_queue = Arc::new(RunQueue::on(64));
        run_queue.begin_anew();
        let mut commands = VecDeque::new();
        assert!(run_queue.take_turn(0, &mut commands));
        // It waits without a limit: the first turn is under way, and its time has come.
        let (other, _end) = turn(&run_queue, 1);
        while run_queue.state().waiting[1].is_none() {
            thread::yield_now();
        }
        run_queue.end_turn(Wait { for_timers: Duration::from_millis(5), for_all: Duration::from_millis(5) });
        // We do not come back, as if a commit took very long.
        assert_eq!(other.recv(), Ok(Some(0)), "it is time");
    }

    #[test]
    fn nobody_is_called_for_what_can_wait() {
        let run_queue = Arc::new(RunQueue::on(64));
        run_queue.begin_anew();
        let mut commands = VecDeque::new();
        assert!(run_queue.take_turn(0, &mut commands));
        run_queue.end_turn(LONG);
        let _other = turn(&run_queue, 1);
        while run_queue.state().waiting[1].is_none() {
            thread::yield_now();
        }
        run_queue.state().is_taken = true;
        run_queue.end_turn(Wait { for_all: Duration::from_millis(5), ..LONG });
        assert!(!run_queue.state().is_called, "the other watches for timers already");
        assert!(run_queue.take_turn(0, &mut commands), "who has left comes back for it");
    }

    #[test]
    fn what_ends_ends_for_all() {
        let run_queue = Arc::new(RunQueue::on(64));
        let ((one, _end_one), (two, _end_two)) = (turn(&run_queue, 0), turn(&run_queue, 1));
        run_queue.end();
        assert_eq!((one.recv(), two.recv()), (Ok(None), Ok(None)));
        run_queue.begin_anew();
        assert!(run_queue.take_turn(0, &mut VecDeque::new()));
    }

    #[test]
    fn what_was_not_looked_at_is_for_the_next_in_its_order_and_nobody_waits_for_a_closed_one() {
        let run_queue = RunQueue::on(64);
        let mut commands: VecDeque<u32> = [1, 2].into();
        run_queue.put(3);
        run_queue.give_back(&mut commands);
        for name in 1..=3 {
            assert_eq!(run_queue.next_within(Duration::ZERO), Some(name));
        }
        run_queue.close();
        run_queue.put(4);
        assert!(run_queue.next_within(Duration::ZERO).is_none());
    }
}
