//! What is known of a process: its loops, the inputs beside them, heartbeats, and its executor. A [`ProcessReport`] is all of it
//! at one instant, with the verdict.
//!
//! Nothing here runs by itself. Loops write into their own entry (`entry.rs`), whoever answers a probe asks for a report, and the
//! eye does so at regular intervals, so that a change is seen though nobody says anything.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onward_core::health::probes::probes;
use onward_core::health::{LoopRule, LoopState, Sign};
use onward_core::time::Awake;

use crate::clock::{ProcessClock, lock};
use crate::heartbeat::{Heartbeats, LastBeat};
use crate::input::{ReadinessInput, whole_ms};
use crate::repeat::panic_text;
use crate::supervisor::StopSignal;
use crate::watch::Pulse;

mod entry;
mod metrics;
mod report;

pub(crate) use entry::LoopEntry;
pub use report::{ExecutorReport, HeartbeatReport, InputReport, LoopReport, ProcessReport};

/// The health of a process, to be read from anywhere: for a page of your own, or for a test.
#[derive(Clone, Debug)]
pub struct HealthHandle(pub(crate) Arc<Board>);

impl HealthHandle {
    /// A report of this instant.
    pub fn report(&self) -> ProcessReport {
        self.0.report()
    }

    /// The address that answers probes, once they are served.
    pub fn probes_address(&self) -> Option<SocketAddr> {
        *lock(&self.0.probes_address)
    }
}

#[derive(Debug)]
pub(crate) struct Board {
    pub(crate) service: String,
    pub(crate) clock: Arc<ProcessClock>,
    pub(crate) stop: StopSignal,
    /// Set when the loops run; nothing speaks for the process before.
    running: AtomicBool,
    parts: Mutex<Parts>,
    executor: Mutex<Option<ExecutorState>>,
    probes_address: Mutex<Option<SocketAddr>>,
}

#[derive(Debug, Default)]
struct Parts {
    loops: Vec<Arc<LoopEntry>>,
    inputs: Vec<MonitoredItem<Arc<dyn ReadinessInput>>>,
    heartbeats: Vec<MonitoredItem<Heartbeats>>,
}

/// Something that is asked, and since when its answer is what it is.
struct MonitoredItem<T> {
    what: T,
    bad_since: Arc<Mutex<Option<Awake>>>,
    /// Of heartbeats: those that were cancelled because they are silent.
    cancelled: Arc<Mutex<HashSet<String>>>,
}

impl<T> std::fmt::Debug for MonitoredItem<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watched").field("bad_since", &self.bad_since).finish()
    }
}

impl<T: Clone> Clone for MonitoredItem<T> {
    fn clone(&self) -> Self {
        let (bad_since, cancelled) = (Arc::clone(&self.bad_since), Arc::clone(&self.cancelled));
        Self { what: self.what.clone(), bad_since, cancelled }
    }
}

impl<T> MonitoredItem<T> {
    fn new(what: T) -> Self {
        Self { what, bad_since: Arc::default(), cancelled: Arc::default() }
    }

    /// Since when it is bad; whether that is news.
    fn note(&self, now: Awake, is_bad: bool) -> (Option<Awake>, bool) {
        let mut since = lock(&self.bad_since);
        let was_bad = since.is_some();
        *since = is_bad.then(|| since.unwrap_or(now));
        (*since, was_bad != is_bad)
    }
}

#[derive(Clone, Copy, Debug)]
struct ExecutorState {
    lag: Duration,
    limit: Duration,
}

impl ExecutorState {
    fn is_starved(&self) -> bool {
        self.lag >= self.limit
    }
}

impl Board {
    pub(crate) fn new(service: &str) -> Self {
        Self {
            service: service.to_owned(),
            clock: Arc::new(ProcessClock::start()),
            stop: StopSignal::default(),
            running: AtomicBool::new(false),
            parts: Mutex::default(),
            executor: Mutex::default(),
            probes_address: Mutex::default(),
        }
    }

    /// Declares that all inputs have been added and the loops run.
    pub(crate) fn runs(&self) {
        self.running.store(true, Ordering::Release);
    }

    pub(crate) fn add_loop(&self, name: &str, rule: LoopRule) -> Arc<LoopEntry> {
        let entry = Arc::new(LoopEntry::new(name, rule, Arc::clone(&self.clock), self.stop.clone()));
        lock(&self.parts).loops.push(Arc::clone(&entry));
        entry
    }

    /// A loop that somebody else runs; `pulse` says what it is at.
    pub(crate) fn add_pulse(&self, name: &str, rule: LoopRule, pulse: Pulse) {
        let entry = LoopEntry::new(name, rule, Arc::clone(&self.clock), self.stop.clone());
        lock(&self.parts).loops.push(Arc::new(entry.with_pulse(pulse)));
    }

    pub(crate) fn add_input(&self, input: Arc<dyn ReadinessInput>) {
        lock(&self.parts).inputs.push(MonitoredItem::new(input));
    }

    pub(crate) fn add_heartbeats(&self, heartbeats: Heartbeats) {
        lock(&self.parts).heartbeats.push(MonitoredItem::new(heartbeats));
    }

    /// Tells the turn that this loop is in to end.
    pub(crate) fn cancel(&self, name: &str) {
        for entry in lock(&self.parts).loops.iter().filter(|entry| entry.name() == name) {
            entry.cancel();
        }
    }

    pub(crate) fn set_probes_address(&self, address: Option<SocketAddr>) {
        *lock(&self.probes_address) = address;
    }

    pub(crate) fn set_executor(&self, lag: Duration, limit: Duration) {
        let state = ExecutorState { lag, limit };
        let before = lock(&self.executor).replace(state);
        match (before.is_some_and(|before| before.is_starved()), state.is_starved()) {
            (false, true) => tracing::error!(
                service = self.service,
                ?lag,
                ?limit,
                "the executor runs no task: something blocks its threads"
            ),
            (true, false) => tracing::info!(service = self.service, "the executor runs tasks again"),
            _ => {}
        }
    }

    pub(crate) fn report(&self) -> ProcessReport {
        let now = self.clock.now();
        // Inputs and heartbeats are other people's code: no lock of ours is held while they are asked.
        let (loops, inputs, heartbeats) = {
            let parts = lock(&self.parts);
            (parts.loops.clone(), parts.inputs.clone(), parts.heartbeats.clone())
        };
        let loops: Vec<_> = loops.iter().map(|entry| entry.report(now)).collect();
        let mut inputs: Vec<_> = inputs.iter().map(|input| input_report(input, now)).collect();
        let mut beating = Vec::new();
        for watched in &heartbeats {
            let asked = asked(|| heartbeat_report(watched));
            let unasked = asked.as_ref().err();
            let (name, critical) = (watched.what.name.to_string(), watched.what.critical);
            let (since, is_news) = watched.note(now, unasked.is_some());
            if let (Some(why), true) = (unasked, is_news) {
                tracing::error!(heartbeats = name, critical, why, "heartbeats cannot be asked");
            }
            match asked {
                Ok(report) => beating.extend(report),
                // How they are is not known, which a restart may not help against.
                Err(why) => inputs.push(InputReport::bad(name, critical, why, ms_since(now, since))),
            }
        }
        let heartbeats = beating;
        let executor = lock(&self.executor).map(|state| ExecutorReport {
            lag_ms: state.lag.as_millis() as u64,
            limit_ms: state.limit.as_millis() as u64,
            starved: state.is_starved(),
        });
        let stopping = self.stop.is_stopping();
        let running = self.running.load(Ordering::Acquire);
        let critical = loops.iter().filter(|l| l.critical).map(|l| Sign::Loop(l.state));
        let signs = critical
            .chain(inputs.iter().filter(|i| i.critical).map(|i| Sign::Input { good: i.problem.is_none() }))
            .chain(heartbeats.iter().filter(|h| h.critical).map(|h| Sign::Heartbeat { silent: h.silent }))
            .chain(executor.iter().map(|e| Sign::Executor { starved: e.starved }))
            .chain(stopping.then_some(Sign::Stopping))
            .chain((!running).then_some(Sign::Loop(LoopState::Starting)));
        let verdict = probes(signs);
        ProcessReport {
            service: self.service.clone(),
            live: verdict.live,
            ready: verdict.ready,
            started: verdict.started,
            running,
            stopping,
            loops,
            inputs,
            heartbeats,
            executor,
        }
    }
}

/// The answer of other people's code, or the text of its panic: that must not end the thread that asks.
fn asked<T>(question: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(question)).map_err(|panic| panic_text(&*panic))
}

fn ms_since(now: Awake, since: Option<Awake>) -> Option<u64> {
    since.map(|at| now.since(at).as_millis() as u64)
}

fn input_report(input: &MonitoredItem<Arc<dyn ReadinessInput>>, now: Awake) -> InputReport {
    let what = &input.what;
    let name = asked(|| what.name().to_owned()).unwrap_or_else(|_| "?".to_owned());
    let critical = asked(|| what.is_critical()).unwrap_or(true);
    let (problem, value) = match asked(|| (what.problem(), what.value())) {
        Ok(answers) => answers,
        Err(why) => (Some(why), None),
    };
    let (since, is_news) = input.note(now, problem.is_some());
    match &problem {
        Some(problem) if is_news => tracing::warn!(input = name, critical, problem, "an input is no longer tolerated"),
        None if is_news => tracing::info!(input = name, critical, "an input is tolerated again"),
        _ => {}
    }
    InputReport { name, critical, problem, since_ms: ms_since(now, since), value }
}

/// `None` while nobody is at work.
fn heartbeat_report(watched: &MonitoredItem<Heartbeats>) -> Option<HeartbeatReport> {
    let Heartbeats { name, critical, silent_after, beating } = &watched.what;
    let all_silent = beating.silent(*silent_after);
    let (news, over): (Vec<&LastBeat>, Vec<String>) = {
        let mut cancelled = lock(&watched.cancelled);
        let over = cancelled.extract_if(|who| all_silent.iter().all(|one| one.who != *who)).collect();
        (all_silent.iter().filter(|one| cancelled.insert(one.who.clone())).collect(), over)
    };
    for who in over {
        tracing::info!(heartbeats = %name, who, "a heartbeat is silent no longer: it beat, or its work has ended");
    }
    for LastBeat { who, ago, place } in news {
        let (silent_for, place) = (whole_ms(*ago), place.map(ToString::to_string));
        let place = place.as_deref().unwrap_or("nowhere");
        tracing::error!(heartbeats = %name, who, ?silent_for, last_beat = place, "a heartbeat is silent; it is cancelled");
        beating.cancel(who);
    }
    let last = all_silent.into_iter().max_by_key(|one| one.ago).or_else(|| beating.most_silent())?;
    let (silent, place) = (last.ago >= *silent_after, last.place.map(ToString::to_string));
    Some(HeartbeatReport {
        name: name.to_string(),
        critical: *critical,
        silent,
        who: last.who,
        silent_ms: last.ago.as_millis() as u64,
        silent_after_ms: silent_after.as_millis() as u64,
        place,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heartbeat::Beating;
    use crate::logged::logged;

    /// Handlers by name, each with the seconds for which it has been silent.
    type Silences = Vec<(&'static str, u64)>;

    /// The handlers, and the names of those that were told to stop.
    #[derive(Clone, Default)]
    struct Handlers(Arc<Mutex<(Silences, Vec<String>)>>);

    impl Beating for Handlers {
        fn most_silent(&self) -> Option<LastBeat> {
            self.silent(Duration::ZERO).into_iter().max_by_key(|one| one.ago)
        }

        fn silent(&self, after: Duration) -> Vec<LastBeat> {
            let all = lock(&self.0).0.clone().into_iter();
            let all = all.map(|(who, secs)| LastBeat { who: who.into(), ago: Duration::from_secs(secs), place: None });
            all.filter(|one| one.ago >= after).collect()
        }

        fn cancel(&self, who: &str) {
            lock(&self.0).1.push(who.to_owned());
        }
    }

    #[test]
    fn each_heartbeat_that_falls_silent_is_logged_and_cancelled_once() {
        let (board, handlers) = (Board::new("test"), Handlers::default());
        board.add_heartbeats(Heartbeats::new("messages", Duration::from_secs(10), handlers.clone()).critical());
        // silent for seconds -> who is cancelled, how many are silent no longer
        let rounds: [(Silences, &[&str], usize); 6] = [
            (vec![("a", 9), ("b", 1)], &[], 0),
            (vec![("a", 10), ("b", 2)], &["a"], 0),
            (vec![("a", 18), ("b", 10), ("c", 12)], &["b", "c"], 0),
            (vec![("a", 19), ("b", 11), ("c", 13)], &[], 0),
            (vec![("a", 0), ("b", 12)], &[], 2),
            (vec![("a", 10), ("b", 22)], &["a"], 0),
        ];
        for (silent, expected, over) in rounds {
            *lock(&handlers.0) = (silent.clone(), vec![]);
            let mut report = None;
            let said = logged(|| report = Some(board.report()));
            assert_eq!(lock(&handlers.0).1, expected, "{silent:?}");
            let count = |text| said.iter().filter(|line| line.contains(text)).count();
            assert_eq!(
                (count("a heartbeat is silent;"), count("is silent no longer")),
                (expected.len(), over),
                "{said:?}"
            );
            let shown = report.expect("it was asked").heartbeats.remove(0);
            let worst = silent.iter().max_by_key(|(_, secs)| *secs).expect("there are some");
            assert_eq!((&*shown.who, shown.silent), (worst.0, worst.1 >= 10));
        }
    }

    /// An input, and heartbeats, of somebody who has a bug.
    #[derive(Clone, Default)]
    struct Panics(Arc<AtomicBool>);

    impl Panics {
        fn ask(&self) {
            assert!(!self.0.load(Ordering::Relaxed), "a bug");
        }
    }

    impl ReadinessInput for Panics {
        fn name(&self) -> &str {
            self.ask();
            "stock"
        }

        fn problem(&self) -> Option<String> {
            self.ask();
            None
        }
    }

    impl Beating for Panics {
        fn most_silent(&self) -> Option<LastBeat> {
            self.ask();
            None
        }
    }

    #[test]
    fn whoever_panics_when_asked_is_not_ready_and_ends_nobody() {
        let (board, bug) = (Board::new("test"), Panics::default());
        board.runs();
        board.add_input(Arc::new(bug.clone()));
        board.add_heartbeats(Heartbeats::new("messages", Duration::from_secs(10), bug.clone()).critical());
        for (panics, problems) in [(false, 0), (true, 2), (false, 0)] {
            bug.0.store(panics, Ordering::Relaxed);
            for round in 0..3 {
                let mut report = None;
                let said = logged(|| report = Some(board.report()));
                let report = report.expect("it was asked");
                assert_eq!((report.ready, report.live), (!panics, true));
                let why: Vec<_> = report.inputs.iter().filter_map(|one| one.problem.as_deref()).collect();
                assert_eq!(why, vec!["it panicked: a bug"; problems]);
                assert!(round == 0 || said.is_empty(), "it is said once: {said:?}");
            }
        }
    }

    #[test]
    fn a_starved_executor_is_logged_when_it_begins_and_when_it_ends() {
        let (board, limit) = (Board::new("test"), Duration::from_secs(10));
        // lag -> level of what is said
        for (lag, level) in [(0, None), (9, None), (10, Some("ERROR")), (11, None), (0, Some("INFO")), (1, None)] {
            let said = logged(|| board.set_executor(Duration::from_secs(lag), limit));
            assert_eq!(said.first().and_then(|line| line.split(' ').next()), level, "at {lag} s: {said:?}");
        }
    }
}
