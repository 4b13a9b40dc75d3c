//! A loop: turns that are repeated, with a wait between two of them.
//!
//! What ends a turn, and what follows:
//!
//! | the turn | next |
//! |---|---|
//! | returned an outcome | another after the wait, or after the one that the turn chose |
//! | returned [`Outcome::Finished`] | none; the loop is healthy for ever |
//! | returned an error | another after a backoff, which doubles with every failure in a row, with full jitter |
//! | hung, and was cancelled | as after an error |
//! | panicked | the loop crashed: another after the restart's backoff, unless it crashed too often; then it is dead |
//!
//! A loop that [runs by itself](Loop::running) crashes by an error, too: nobody else would begin its next turn.

use std::fmt::Display;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use onward_core::backoff::Backoff;
use onward_core::health::{FailureBudget, RestartRule, Restarts};

use crate::board::LoopEntry;
use crate::policy::{CheckedSettings, LoopPolicy};
use crate::supervisor::{SupervisedItem, Supervisor};
use crate::turn::{Outcome, Reporter, Turn};

type Run<T> = Pin<Box<dyn Future<Output = Result<T, String>> + Send>>;

enum Body {
    Turns(Box<dyn FnMut(Turn) -> Run<Outcome> + Send>),
    Running(Box<dyn FnMut(Reporter) -> Run<()> + Send>),
}

/// A loop with its settings, to be given to [`Supervisor::add`].
///
/// It is shown only, unless it is [`critical`](Self::critical). What the other settings are unless they are set is in
/// [`policy`](crate::policy).
pub struct Loop {
    pub(crate) name: String,
    pub(crate) policy: LoopPolicy,
    waker: Waker,
    body: Body,
}

impl Loop {
    /// A loop of turns. `turn` is called for each, and says by its outcome what it came to; an error is a failure, and
    /// its text is shown.
    pub fn new<F, R, E>(name: &str, mut turn: F) -> Self
    where
        F: FnMut(Turn) -> R + Send + 'static,
        R: Future<Output = Result<Outcome, E>> + Send + 'static,
        E: Display + Send,
    {
        let body = move |given| -> Run<Outcome> {
            let run = turn(given);
            Box::pin(async move { run.await.map_err(|error| error.to_string()) })
        };
        Self::with(name, Body::Turns(Box::new(body)))
    }

    /// A loop that runs by itself, for what has several turns under way at a time: it says by the reporter what they come
    /// to. It returns when it was told to stop ([`Reporter::stopping`]), or when it has done all that it was there for;
    /// an error is a crash, after which it is called again.
    pub fn running<F, R, E>(name: &str, mut run: F) -> Self
    where
        F: FnMut(Reporter) -> R + Send + 'static,
        R: Future<Output = Result<(), E>> + Send + 'static,
        E: Display + Send,
    {
        let body = move |reporter| -> Run<()> {
            let run = run(reporter);
            Box::pin(async move { run.await.map_err(|error| error.to_string()) })
        };
        Self::with(name, Body::Running(Box::new(body)))
    }

    fn with(name: &str, body: Body) -> Self {
        Self { name: name.to_owned(), policy: LoopPolicy::default(), waker: Waker::default(), body }
    }

    /// The probes depend on it.
    pub fn critical(mut self) -> Self {
        self.policy.critical = true;
        self
    }

    /// The wait between two turns. For a loop that runs by itself: the longest that it leaves between two reports while
    /// there is nothing to do.
    pub fn every(mut self, wait: Duration) -> Self {
        self.policy.every = Some(wait);
        self
    }

    /// The time for which one success counts.
    pub fn freshness(mut self, window: Duration) -> Self {
        self.policy.freshness = Some(window);
        self
    }

    /// Failures that are tolerated.
    pub fn budget(mut self, budget: FailureBudget) -> Self {
        self.policy.budget = Some(budget);
        self
    }

    /// Successes in a row that refill a spent budget.
    pub fn recovery(mut self, successes: u32) -> Self {
        self.policy.recovery = Some(successes);
        self
    }

    /// The time from the start in which failures spend nothing, unless a success ends it earlier.
    pub fn startup_grace(mut self, grace: Duration) -> Self {
        self.policy.startup_grace = Some(grace);
        self
    }

    /// A turn that goes on for longer without a step or a beat hangs, and is cancelled.
    pub fn longest_turn(mut self, longest: Duration) -> Self {
        self.policy.longest_turn = Some(longest);
        self
    }

    /// Waits after failures.
    pub fn backoff(mut self, base: Duration, max: Duration) -> Self {
        self.policy.backoff = Some(Backoff { base, max });
        self
    }

    /// Waits before restarts after crashes, and after how many there is none.
    pub fn restart(mut self, rule: RestartRule) -> Self {
        self.policy.restart = Some(rule);
        self
    }

    /// Ends the loop's waits from outside, when there is something to do.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    pub(crate) async fn run(self, entry: Arc<LoopEntry>, checked: CheckedSettings) {
        // It is woken by a loop that was added once; there is no other entry for it.
        let _ = self.waker.0.set(Arc::clone(&entry));
        let runner = Runner { restarts: Restarts::new(checked.restart), draws: RandomState::new(), entry, checked };
        match self.body {
            Body::Turns(body) => runner.repeat(body).await,
            Body::Running(body) => runner.keep_running(body).await,
        }
    }
}

impl std::fmt::Debug for Loop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loop").field("name", &self.name).field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl SupervisedItem for Loop {
    fn add_to(self, service: &Supervisor) {
        service.add_loop(self);
    }
}

/// Ends the waits of a loop: the one that goes on, or else the next. Before the loop has started it does nothing, because
/// the first turn begins at once.
#[derive(Clone, Default, Debug)]
pub struct Waker(Arc<OnceLock<Arc<LoopEntry>>>);

impl Waker {
    pub fn wake(&self) {
        if let Some(entry) = self.0.get() {
            entry.wake();
        }
    }
}

struct Runner {
    entry: Arc<LoopEntry>,
    checked: CheckedSettings,
    restarts: Restarts,
    draws: RandomState,
}

enum End<T> {
    Returned(Result<T, String>),
    Panicked(String),
    Cancelled,
}

impl Runner {
    async fn repeat(mut self, mut body: Box<dyn FnMut(Turn) -> Run<Outcome> + Send>) {
        let reporter = Reporter { entry: Arc::clone(&self.entry) };
        let mut failures = 0_u32;
        while !self.entry.stop.is_stopping() {
            let open = reporter.begin();
            let turn = open.turn();
            let number = turn.number;
            let end = self.guarded(number, || body(turn)).await;
            let wait = match end {
                End::Returned(Ok(Outcome::Finished)) => return open.end(Outcome::Finished),
                End::Returned(Ok(outcome)) => {
                    failures = if matches!(outcome, Outcome::Degraded { .. }) { failures.saturating_add(1) } else { 0 };
                    open.end(outcome);
                    self.entry.take_next_in().unwrap_or(self.checked.every)
                }
                End::Returned(Err(why)) => {
                    failures = failures.saturating_add(1);
                    open.fail("failed", why);
                    self.backoff(failures)
                }
                End::Cancelled => {
                    failures = failures.saturating_add(1);
                    open.fail("cancelled", "the turn hung and was cancelled");
                    self.backoff(failures)
                }
                End::Panicked(why) => {
                    open.crash();
                    if !self.restart("panicked", &why).await {
                        return;
                    }
                    continue;
                }
            };
            self.entry.wait(wait).await;
        }
        self.entry.stopping();
    }

    async fn keep_running(mut self, mut body: Box<dyn FnMut(Reporter) -> Run<()> + Send>) {
        loop {
            let reporter = Reporter { entry: Arc::clone(&self.entry) };
            let turn = self.entry.turn() + 1;
            let (code, why) = match self.guarded(turn, || body(reporter)).await {
                End::Returned(Ok(())) if self.entry.stop.is_stopping() => return self.entry.stopping(),
                End::Returned(Ok(())) => return self.entry.end(None, None),
                End::Returned(Err(why)) => ("failed", why),
                End::Cancelled => ("cancelled", "it hung and was cancelled".to_owned()),
                End::Panicked(why) => ("panicked", why),
            };
            if !self.restart(code, &why).await {
                return;
            }
        }
    }

    /// Whether the loop is to be called again, after the wait that goes before it.
    async fn restart(&mut self, code: &'static str, why: &str) -> bool {
        let draw = self.draw();
        let wait = self.restarts.crashed(self.entry.now(), draw);
        self.entry.crash(wait, code, why);
        let Some(wait) = wait else { return false };
        self.entry.pause(wait).await;
        if self.entry.stop.is_stopping() {
            self.entry.stopping();
            return false;
        }
        true
    }

    async fn guarded<T>(&self, turn: u64, call: impl FnOnce() -> Run<T>) -> End<T> {
        let run = async {
            let mut run = match catch_unwind(AssertUnwindSafe(call)) {
                Ok(run) => run,
                Err(panic) => return End::Panicked(panic_text(&*panic)),
            };
            std::future::poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| run.as_mut().poll(context))) {
                Ok(Poll::Pending) => Poll::Pending,
                Ok(Poll::Ready(result)) => Poll::Ready(End::Returned(result)),
                Err(panic) => Poll::Ready(End::Panicked(panic_text(&*panic))),
            })
            .await
        };
        tokio::select! {
            biased;
            end = run => end,
            () = self.entry.cancelled(turn) => End::Cancelled,
        }
    }

    /// The pause after a failure, at least half of the base: a loop whose failures cost nothing must not spin.
    fn backoff(&self, failures: u32) -> Duration {
        let Backoff { base, .. } = self.checked.backoff;
        self.checked.backoff.delay(failures, self.draw()).max(base / 2)
    }

    fn draw(&self) -> u64 {
        self.draws.hash_one((self.entry.name(), self.entry.now().as_ms(), self.entry.turn()))
    }
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("it panicked: {}", text.unwrap_or("with what is no text"))
}
