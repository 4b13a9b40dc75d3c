//! The supervisor: runs loops, and ends them within one deadline for all.
//!
//! ```text
//!   new ── add … ──▶ run ──▶ settings checked ──▶ loops started ──▶ … ──▶ told to stop ──▶ loops end ──▶ returned
//!                               │ contradictory                            (a signal, a     │ not within the deadline
//!                               ▼                                           Stopper)        ▼
//!                            refused                                                     dropped
//! ```
//!
//! A stop that comes before the start is not lost: nothing is started then. When told to stop, a loop ends the turn that
//! is under way and begins no other; the turn knows by [`Turn::stopping`](crate::Turn::stopping). Readiness fails from
//! then on, liveness does not.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use thiserror::Error;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::board::{Board, HealthHandle, LoopEntry};
use crate::clock::lock;
use crate::eye::{Eye, EyeSettings};
use crate::heartbeat::Heartbeats;
use crate::input::ReadinessInput;
use crate::policy::{CheckedSettings, SettingsError};
use crate::repeat::Loop;

/// Something that a supervisor can look after: a [`Loop`], an [input](crate::input), [`Heartbeats`], or what is made of
/// several of those.
///
/// An implementation outside of this crate is built of these parts, and adds each of them. An outbox, for example, is a
/// loop that publishes, and two inputs:
///
/// ```
/// use std::time::Duration;
/// use onward_health::{Age, Count, Loop, Outcome, SupervisedItem, Supervisor};
///
/// struct Outbox;
///
/// impl SupervisedItem for Outbox {
///     fn add_to(self, service: &Supervisor) {
///         let (oldest, parked) = (Age::new("outbox.oldest", Duration::from_secs(300)), Count::new("outbox.parked", 100));
///         service.add(oldest.clone());
///         service.add(parked.clone());
///         service.add(Loop::new("outbox", move |turn| {
///             let (oldest, parked) = (oldest.clone(), parked.clone());
///             async move {
///                 // … publish, with `turn.progress(1)` for each row; then say what is left.
///                 turn.progress(1);
///                 oldest.set(None);
///                 parked.set(0);
///                 Ok::<_, std::io::Error>(Outcome::Progress(1))
///             }
///         }).critical());
///     }
/// }
///
/// Supervisor::new("billing").add(Outbox);
/// ```
///
/// What has several turns under way at a time runs by itself ([`Loop::running`]), and reports what they come to.
pub trait SupervisedItem {
    /// Adds the parts to the service.
    fn add_to(self, service: &Supervisor);
}

/// Runs loops, and answers for them.
pub struct Supervisor {
    board: Arc<Board>,
    loops: Mutex<Vec<Loop>>,
    inputs: Mutex<Vec<Arc<dyn ReadinessInput>>>,
    heartbeats: Mutex<Vec<Heartbeats>>,
    /// Settings of parts that cannot be kept, one sentence each.
    problems: Mutex<Vec<String>>,
    eye: EyeSettings,
    shutdown_within: Duration,
    handle_signals: bool,
}

/// The reason why a service could not run, or did not end as it should.
#[derive(Debug, Error)]
pub enum RunError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("probes cannot be answered{}: {error}; nothing was started", at(address))]
    Eye { address: Option<String>, error: std::io::Error },
    #[error("signals cannot be handled: {0}; nothing was started")]
    Signals(std::io::Error),
    #[error("told to stop, {} did not end within {within:?}; what they were at was dropped", loops.join(", "))]
    ShutdownDeadline { loops: Vec<String>, within: Duration },
}

fn at(address: &Option<String>) -> String {
    address.as_ref().map(|address| format!(" on {address}")).unwrap_or_default()
}

impl Supervisor {
    /// A service of this name, which its pages and logs show.
    pub fn new(service: &str) -> Self {
        Self {
            board: Arc::new(Board::new(service)),
            loops: Mutex::default(),
            inputs: Mutex::default(),
            heartbeats: Mutex::default(),
            problems: Mutex::default(),
            eye: EyeSettings::default(),
            // Kubernetes kills after 30 s.
            shutdown_within: Duration::from_secs(25),
            handle_signals: true,
        }
    }

    /// The time that all loops together have to end once they are told to stop.
    pub fn shutdown_within(mut self, deadline: Duration) -> Self {
        self.shutdown_within = deadline;
        self
    }

    /// Answers `/livez`, `/readyz`, `/startupz`, `/status` and `/metrics` on this address, from threads of its own. Kubelets
    /// ask the pod's address, so `0.0.0.0:8081` there; the port 0 leaves the choice to the kernel, and
    /// [`HealthHandle::probes_address`] knows it.
    pub fn probes(mut self, address: &str) -> Self {
        self.eye.probes = Some(address.to_owned());
        self
    }

    /// Keeps a file while the service is ready; its folder has to be there.
    pub fn ready_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.eye.ready_file = Some(path.into());
        self
    }

    /// Notifies systemd, if it asks for it: ready, why not, alive, stopping.
    pub fn systemd(mut self) -> Self {
        self.eye.systemd = true;
        self
    }

    /// The process exits with 70 if liveness stays lost for so long: where nobody probes, this is what gets it restarted.
    pub fn exit_on_stall(mut self, after: Duration) -> Self {
        self.eye.exit_after = Some(after);
        self
    }

    /// The longest wait for the executor of a task that could run. If one waits longer, something blocks its threads,
    /// and liveness fails. 10 s unless it is set.
    pub fn executor_lag(mut self, limit: Duration) -> Self {
        self.eye.executor_lag = Some(limit);
        self
    }

    /// SIGTERM and SIGINT are somebody else's business, who has a [`Stopper`].
    pub fn without_signals(mut self) -> Self {
        self.handle_signals = false;
        self
    }

    /// Adds a loop, an input, heartbeats, or something that is made of them.
    pub fn add(&self, part: impl SupervisedItem) {
        part.add_to(self);
    }

    pub(crate) fn add_loop(&self, one: Loop) {
        lock(&self.loops).push(one);
    }

    /// Adds an input of your own. The ones of this crate are given to [`add`](Self::add).
    pub fn add_input(&self, input: impl ReadinessInput) {
        lock(&self.inputs).push(Arc::new(input));
    }

    pub(crate) fn add_heartbeats(&self, heartbeats: Heartbeats) {
        lock(&self.heartbeats).push(heartbeats);
    }

    /// A part was given settings that it cannot keep: nothing is started.
    pub(crate) fn refuse(&self, problem: String) {
        lock(&self.problems).push(problem);
    }

    /// The health of the service, readable from anywhere and at any time.
    pub fn health(&self) -> HealthHandle {
        HealthHandle(Arc::clone(&self.board))
    }

    /// Tells the service to stop, from anywhere and at any time.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.board.stop.clone())
    }

    /// Whether the settings can be kept. [`run`](Self::run) asks first, too.
    pub fn check(&self) -> Result<(), SettingsError> {
        self.checked().map(drop)
    }

    fn checked(&self) -> Result<Vec<CheckedSettings>, SettingsError> {
        let service = &self.board.service;
        let mut error = SettingsError::default();
        let (loops, inputs, heartbeats) = (lock(&self.loops), lock(&self.inputs), lock(&self.heartbeats));
        let mut all = Vec::new();
        for one in loops.iter() {
            match one.policy.check() {
                Ok(checked) => all.push(checked),
                Err((problems, table)) => error.of_loop(&one.name, problems, table),
            }
        }
        let problems = lock(&self.problems).clone();
        if !problems.is_empty() {
            error.of_service(service, problems, None);
        }
        let is_anything_critical = loops.iter().any(|one| one.policy.critical)
            || inputs.iter().any(|input| input.is_critical())
            || heartbeats.iter().any(|one| one.critical);
        if !is_anything_critical {
            let problem =
                "nothing in it is critical, so its probes would be green whatever happens; make a loop critical";
            error.of_service(service, vec![problem.to_owned()], None);
        }
        if let Err((problems, table)) = self.eye.check(sd_notify::watchdog_enabled()) {
            error.of_service(service, problems, Some(table));
        }
        let mut names = HashSet::new();
        let given = loops.iter().map(|one| one.name.as_str()).chain(inputs.iter().map(|input| input.name()));
        for name in given.chain(heartbeats.iter().map(|one| &*one.name)) {
            if name.is_empty() || !names.insert(name) {
                let problem = format!("the name `{name}` is empty or given twice; names tell its parts apart");
                error.of_service(service, vec![problem], None);
            }
        }
        error.or(all)
    }

    /// Runs until every loop has finished, or until it is told to stop: by SIGTERM, by SIGINT or by a [`Stopper`]. A
    /// second signal does not wait for the deadline.
    ///
    /// A turn that blocks its thread outlives the deadline: nobody can end it but the process, which had better exit when
    /// this is an error. A runtime that is dropped waits for such a thread.
    pub async fn run(self) -> Result<(), RunError> {
        let checked = self.checked()?;
        let mut signals = if self.handle_signals { Some(Signals::new().map_err(RunError::Signals)?) } else { None };
        if self.board.stop.is_stopping() {
            return Ok(());
        }
        let eye = Eye::open(Arc::clone(&self.board), self.eye.clone())
            .map_err(|error| RunError::Eye { address: self.eye.probes.clone(), error })?;
        self.board.set_probes_address(eye.address());
        let mut running = self.start(checked);
        tokio::select! {
            () = running.all_done() => return Ok(()),
            () = self.board.stop.stopping() => {}
            () = Signals::next(&mut signals) => self.board.stop.stop(),
        }
        tracing::info!(service = self.board.service, "told to stop");
        for entry in &running.entries {
            entry.stopping();
        }
        tokio::select! {
            () = running.all_ended() => Ok(()),
            () = tokio::time::sleep(self.shutdown_within) => running.drop_rest(self.shutdown_within),
            () = Signals::next(&mut signals) => running.drop_rest(Duration::ZERO),
        }
    }

    fn start(&self, checked: Vec<CheckedSettings>) -> Running {
        for input in lock(&self.inputs).drain(..) {
            self.board.add_input(input);
        }
        for heartbeats in lock(&self.heartbeats).drain(..) {
            self.board.add_heartbeats(heartbeats);
        }
        let mut running = Running { set: JoinSet::new(), entries: Vec::new(), is_any_dead: false };
        for (one, checked) in lock(&self.loops).drain(..).zip(checked) {
            let entry = self.board.add_loop(&one.name, checked.rule);
            running.entries.push(Arc::clone(&entry));
            running.set.spawn(async move {
                let name = one.name.clone();
                one.run(entry, checked).await;
                name
            });
        }
        self.board.runs();
        running
    }
}

impl std::fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Supervisor").field("board", &self.board).finish_non_exhaustive()
    }
}

/// Loops that have been started.
struct Running {
    set: JoinSet<String>,
    /// Loops that have not ended.
    entries: Vec<Arc<LoopEntry>>,
    is_any_dead: bool,
}

impl Running {
    /// A loop that is dead has ended without being done: the service goes on, and its liveness says so. One that has no
    /// loop to begin with answers for others, which end by themselves.
    async fn all_done(&mut self) {
        let has_none = self.entries.is_empty();
        self.all_ended().await;
        if self.is_any_dead || has_none {
            std::future::pending::<()>().await;
        }
    }

    async fn all_ended(&mut self) {
        while let Some(ended) = self.set.join_next().await {
            let name = ended.expect("a loop catches panics, and nobody aborts it here");
            self.is_any_dead |= self.entries.iter().any(|entry| entry.name() == name && entry.is_dead());
            self.entries.retain(|entry| entry.name() != name);
        }
    }

    /// Waits for nobody: a turn that blocks its thread would never be gone.
    fn drop_rest(&mut self, within: Duration) -> Result<(), RunError> {
        self.set.abort_all();
        let loops: Vec<_> = self.entries.iter().map(|entry| format!("loop `{}`", entry.name())).collect();
        Err(RunError::ShutdownDeadline { loops, within })
    }
}

/// Tells a service to stop. It may be told before it runs, and more than once.
#[derive(Clone, Debug)]
pub struct Stopper(StopSignal);

impl Stopper {
    pub fn stop(&self) {
        self.0.stop();
    }
}

#[derive(Clone, Debug)]
pub(crate) struct StopSignal(watch::Sender<bool>);

impl Default for StopSignal {
    fn default() -> Self {
        Self(watch::Sender::new(false))
    }
}

impl StopSignal {
    pub(crate) fn stop(&self) {
        self.0.send_replace(true);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        *self.0.borrow()
    }

    pub(crate) async fn stopping(&self) {
        // The sender lives as long as this does.
        let _ = self.0.subscribe().wait_for(|stop| *stop).await;
    }
}

/// SIGTERM and SIGINT.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(signals: &mut Option<Self>) {
        match signals {
            Some(signals) => {
                tokio::select! {
                    _ = signals.terminate.recv() => {}
                    _ = signals.interrupt.recv() => {}
                }
            }
            None => std::future::pending().await,
        }
    }
}
