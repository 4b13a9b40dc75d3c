//! The message loop: receives messages, runs a handler for each under its lease, and settles it.
//!
//! ```text
//!   free slots ──receive──► attach ──► handler ──► detach ──► settle: ack with reply, retry, release, dead
//!                                │ beats                         │
//!                                └──► lease renewed              └─ failures in a row ──► probation: one at a time
//! ```
//!
//! - It receives only as many as it has free slots, so that nothing waits in a buffer while its lease runs.
//! - A handler that hangs stops beating: its lease runs out, and its message alone is handed out again. One that beats
//!   without progress is cancelled at `stuck_after`, and its message tried again.
//! - **An outage is nobody's message's fault.** When too many tries in a row failed in a way that may pass, the loop is on
//!   *probation*: one message at a time, with growing waits, until one succeeds. What fails then is not counted against
//!   its message: it is released where the mailbox does not count that, and else tried again in place, under its lease.
//! - Told to stop, it takes nothing more and lets handlers finish, whose leases are renewed as ever. What is not done
//!   within `drain_grace` is told to stop, and given back.

mod probation;
mod runner;
mod settle;

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::time::Duration;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use onward_core::backoff::Backoff;
use onward_core::lease::LostPolicy;
use onward_health::heartbeat::{Beating, Heartbeats, LastBeat};
use onward_health::{Budget, Loop, SupervisedItem, Supervisor};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::delivery::Delivery;
use crate::extender::{LeaseExtender, LeaseRule, LeaseRuleError, QUIET_BUDGET};
use crate::failure::Failure;
use crate::mailbox::{ErasedMailbox, LeaseLength, Mailbox, MailboxError};
use runner::Runner;
pub use settle::{MessageCounts, MessageLoopCounts};

type DeliveryFuture = Pin<Box<dyn Future<Output = Result<Bytes, Failure>> + Send>>;
type Handler = Arc<dyn Fn(Delivery) -> DeliveryFuture + Send + Sync>;

/// Receives messages and runs a handler for each.
///
/// ```
/// use onward_lease::{Delivery, MessageLoop};
/// use onward_lease::mailbox::{Mailbox, Memory, Message};
/// use std::time::Duration;
///
/// # #[derive(serde::Deserialize)] struct Video { parts: Vec<String> }
/// # async fn encode(_: &str) -> std::io::Result<()> { Ok(()) }
/// # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
/// let mailbox = Memory::new();
/// mailbox.send(vec![Message::new(r#"{"parts": ["a", "b"]}"#)]).await;
/// # let done = async { while mailbox.depth().await.unwrap().waiting + mailbox.depth().await.unwrap().held > 0 {
/// #     tokio::time::sleep(Duration::from_secs(1)).await } };
/// MessageLoop::on(mailbox.clone())
///     .concurrency(8)
///     .lease(Duration::from_secs(120)) // renewed by work, never by a timer
///     .stuck_after(Duration::from_secs(300)) // beating without progress is not enough
///     .handle(|msg: Delivery, video: Video| async move {
///         for (n, part) in video.parts.iter().enumerate() {
///             encode(part).await?;
///             msg.progress(n as u64 + 1, video.parts.len() as u64);
///         }
///         Ok(())
///     })
///     .run_until(done).await.unwrap(); // or `run()`, until SIGINT or SIGTERM
/// # });
/// ```
#[derive(Clone)]
pub struct MessageLoop {
    mailbox: Arc<dyn ErasedMailbox>,
    handler: Option<Handler>,
    settings: LoopSettings,
    counts: Arc<MessageLoopCounts>,
    handlers: Handlers,
}

#[derive(Clone, Debug)]
struct LoopSettings {
    name: String,
    critical: bool,
    concurrency: usize,
    lease: Duration,
    interval: Option<Duration>,
    max_hold: Option<Duration>,
    stuck_after: Option<Duration>,
    require_progress: bool,
    on_lost: LostPolicy,
    backoff: Backoff,
    failure_budget: u32,
    wait: Duration,
    drain_grace: Duration,
    cancel_grace: Duration,
}

impl LoopSettings {
    fn interval(&self) -> Duration {
        self.interval.unwrap_or(self.lease / 5)
    }

    /// The wait of one call. A message that comes late in the wait must not look old.
    fn wait(&self) -> Duration {
        self.wait.min(self.interval() / 2)
    }

    /// The length of a lease, if the mailbox keeps to its own.
    fn lease(&self, granted: LeaseLength) -> Duration {
        match granted {
            LeaseLength::Granted(lease) => lease.max(self.lease),
            LeaseLength::Asked | LeaseLength::Repeated => self.lease,
        }
    }

    /// A handler that is silent for so long was cancelled when its lease ended, and did not stop: its thread hangs.
    fn silent_after(&self, granted: LeaseLength) -> Duration {
        self.lease(granted) + self.interval() + self.cancel_grace + SILENCE_MARGIN
    }

    /// How long one success lasts: a handler may take so long for one step, with all the silence that it may declare, and
    /// its loop is well. One that takes longer is cancelled, and has failed.
    fn freshness(&self, granted: LeaseLength) -> Duration {
        let step = self.stuck_after.unwrap_or_else(|| self.lease(granted));
        step + QUIET_BUDGET + self.interval() + self.cancel_grace + self.wait() + LONGEST_ANSWER
    }
}

/// A mailbox that lets a call take so much longer than the call asked to wait hangs, and the loop with it.
const LONGEST_ANSWER: Duration = Duration::from_secs(60);

/// How late the end of a handler may be seen.
const SILENCE_MARGIN: Duration = Duration::from_secs(1);

/// The heartbeats of the handlers that run, over restarts of the loop.
#[derive(Clone, Default)]
struct Handlers(Arc<Mutex<Option<Arc<dyn Beating>>>>);

impl Handlers {
    fn set(&self, beating: Arc<dyn Beating>) {
        *self.0.lock().expect("nothing panics while it is held") = Some(beating);
    }

    fn get(&self) -> Option<Arc<dyn Beating>> {
        self.0.lock().expect("nothing panics while it is held").clone()
    }
}

impl Beating for Handlers {
    fn most_silent(&self) -> Option<LastBeat> {
        self.get()?.most_silent()
    }

    fn silent(&self, after: Duration) -> Vec<LastBeat> {
        self.get().map(|beating| beating.silent(after)).unwrap_or_default()
    }

    fn cancel(&self, who: &str) {
        if let Some(beating) = self.get() {
            beating.cancel(who);
        }
    }
}

impl fmt::Debug for MessageLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageLoop").field("settings", &self.settings).finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum MessageLoopError {
    #[error(transparent)]
    Lease(#[from] LeaseRuleError),
    #[error("this loop has no handler; add one with `handle`")]
    NoHandler,
    #[error("this loop has no slots, and so would never do anything; set `concurrency` to at least 1")]
    NoSlots,
    #[error("no message can be received: {0}")]
    Mailbox(MailboxError),
    #[error("signals cannot be handled: {0}; nothing was started")]
    Signals(std::io::Error),
}

impl MessageLoop {
    pub fn on(mailbox: impl Mailbox) -> Self {
        let settings = LoopSettings {
            name: "messages".into(),
            critical: false,
            concurrency: 1,
            lease: Duration::from_secs(300),
            interval: None,
            max_hold: None,
            stuck_after: None,
            require_progress: false,
            on_lost: LostPolicy::Cancel,
            backoff: Backoff { base: Duration::from_secs(1), max: Duration::from_secs(300) },
            failure_budget: 3,
            wait: Duration::from_secs(20),
            drain_grace: Duration::from_secs(18),
            cancel_grace: Duration::from_secs(10),
        };
        let (counts, handlers) = (Arc::default(), Handlers::default());
        Self { mailbox: Arc::new(mailbox), handler: None, settings, counts, handlers }
    }

    fn set(mut self, change: impl FnOnce(&mut LoopSettings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// The name of the loop in a supervisor's pages and in logs. Default: `messages`.
    pub fn named(self, name: impl Into<String>) -> Self {
        self.set(|settings| settings.name = name.into())
    }

    /// The probes of a supervisor depend on it.
    pub fn critical(self) -> Self {
        self.set(|settings| settings.critical = true)
    }

    /// The number of messages at a time. Default 1.
    pub fn concurrency(self, slots: usize) -> Self {
        self.set(|settings| settings.concurrency = slots)
    }

    /// The time for which a message is held, and by which each renewal extends it. Default 300 s.
    pub fn lease(self, lease: Duration) -> Self {
        self.set(|settings| settings.lease = lease)
    }

    /// The least time between two renewals of a message. Default: a fifth of the lease; at most a third of it.
    pub fn interval(self, interval: Duration) -> Self {
        self.set(|settings| settings.interval = Some(interval))
    }

    /// The longest time that a message is held in all, if the mailbox has no shorter one.
    pub fn max_hold(self, longest: Duration) -> Self {
        self.set(|settings| settings.max_hold = Some(longest))
    }

    /// Cancels a handler that makes no forward step for so long, however often it beats. Default: never.
    pub fn stuck_after(self, span: Duration) -> Self {
        self.set(|settings| settings.stuck_after = Some(span))
    }

    /// A beat is no forward step: only progress is.
    pub fn require_progress(self) -> Self {
        self.set(|settings| settings.require_progress = true)
    }

    /// Lets handlers finish whose lease is lost, instead of cancelling them. Their acknowledgement ends as the mailbox
    /// declares.
    pub fn continue_when_lost(self) -> Self {
        self.set(|settings| settings.on_lost = LostPolicy::Continue)
    }

    /// The wait before another try of a message: doubles from `base` up to `max`, with jitter. Default 1 s and 5 min.
    pub fn retry(self, base: Duration, max: Duration) -> Self {
        self.set(|settings| settings.backoff = Backoff { base, max })
    }

    /// The number of failed tries in a row, all of which may pass, after which the loop is on probation. Default 3.
    /// Keep it below the mailbox's `max_deliveries`, or an outage can bring a lone message to the dead letters first.
    pub fn failure_budget(self, failures: u32) -> Self {
        self.set(|settings| settings.failure_budget = failures)
    }

    /// The wait of one call for a message. Default 20 s, and never longer than half an interval: the age of a
    /// lease counts from when it was asked for.
    pub fn wait(self, wait: Duration) -> Self {
        self.set(|settings| settings.wait = wait)
    }

    /// The time for which handlers may go on once the loop was told to stop. Default 18 s.
    pub fn drain_grace(self, grace: Duration) -> Self {
        self.set(|settings| settings.drain_grace = grace)
    }

    /// The time that a handler has to stop once it is told to. Default 10 s.
    pub fn cancel_grace(self, grace: Duration) -> Self {
        self.set(|settings| settings.cancel_grace = grace)
    }

    /// A handler that takes JSON and gives JSON. A body that does not fit its type goes to the dead letters. What it
    /// gives is the reply, if the message asks for one.
    pub fn handle<In, Out, Run, F>(self, handler: F) -> Self
    where
        F: Fn(Delivery, In) -> Run + Send + Sync + 'static,
        Run: Future<Output = Result<Out, Failure>> + Send + 'static,
        In: DeserializeOwned + Send + 'static,
        Out: Serialize + Send + 'static,
    {
        let handler = Arc::new(handler);
        self.handle_bytes(move |delivery: Delivery| {
            let handler = handler.clone();
            async move {
                let input = serde_json::from_slice(delivery.body())
                    .map_err(|error| Failure::permanent(format!("the body does not fit this handler: {error}")))?;
                let output = handler(delivery, input).await?;
                serde_json::to_vec(&output)
                    .map(Bytes::from)
                    .map_err(|error| Failure::permanent(format!("the reply cannot be written as JSON: {error}")))
            }
        })
    }

    /// A handler that takes the body, by [`Delivery::body`], and gives the reply as they are.
    pub fn handle_bytes<Run, F>(mut self, handler: F) -> Self
    where
        F: Fn(Delivery) -> Run + Send + Sync + 'static,
        Run: Future<Output = Result<Bytes, Failure>> + Send + 'static,
    {
        self.handler = Some(Arc::new(move |delivery| Box::pin(handler(delivery))));
        self
    }

    /// Counts of the messages that ended so far, readable from anywhere and at any time.
    pub fn counts(&self) -> Arc<MessageLoopCounts> {
        self.counts.clone()
    }

    /// Works until SIGINT or SIGTERM, then drains.
    pub async fn run(self) -> Result<(), MessageLoopError> {
        use tokio::signal::unix::{SignalKind, signal};
        let mut interrupt = signal(SignalKind::interrupt()).map_err(MessageLoopError::Signals)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(MessageLoopError::Signals)?;
        self.run_until(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        })
        .await
    }

    /// Works until `stop` is ready, then drains. A call that waits for messages then has a second to come back: what it
    /// brings is given back, and what a slower one would have brought comes back when its lease is over. If this is dropped, handlers are stopped where they are, and their
    /// messages come back when their leases are over.
    pub async fn run_until(self, stop: impl Future<Output = ()> + Send) -> Result<(), MessageLoopError> {
        Runner::new(self, None)?.run(stop).await
    }

    /// Checks the settings, and makes the extender that they ask for.
    fn extender(&self) -> Result<LeaseExtender, MessageLoopError> {
        let settings = &self.settings;
        if settings.concurrency == 0 {
            return Err(MessageLoopError::NoSlots);
        }
        let (lease, interval) = (settings.lease, settings.interval());
        let rule = LeaseRule { initial: lease, extension: lease, interval, enabled: true };
        let mut extender = LeaseExtender::new(rule)?.cancel_grace(settings.cancel_grace);
        if settings.on_lost == LostPolicy::Continue {
            extender = extender.continue_when_lost();
        }
        if let Some(longest) = settings.max_hold {
            extender = extender.max_hold(longest);
        }
        if let Some(span) = settings.stuck_after {
            extender = extender.stuck_after(span, settings.require_progress);
        }
        Ok(extender)
    }
}

/// A loop of a supervisor: failures that may pass spend its budget, and a message that is done, or a mailbox that was
/// asked and is empty, refreshes it, as does a forward step of a handler. How long that lasts follows from `stuck_after`,
/// or from the lease where none is set: slow work and quiet sections turn nothing red.
///
/// Liveness fails for what a restart helps against: a call to the mailbox that does not come back, and a handler whose
/// thread hangs. Handlers are heartbeats that the eye sees: such a one stays silent after its lease is over. That all
/// slots are taken, or that the loop waits for a dependency, is no stall, however long it lasts.
impl SupervisedItem for MessageLoop {
    fn add_to(self, service: &Supervisor) {
        let (name, budget) = (self.settings.name.clone(), Budget::Consecutive(self.settings.failure_budget.max(1)));
        let (wait, critical) = (self.settings.wait(), self.settings.critical);
        let granted = self.mailbox.promises().lease;
        let freshness = self.settings.freshness(granted);
        // A handler that may go on without its lease may be silent, too.
        if self.settings.on_lost == LostPolicy::Cancel {
            let silent_after = self.settings.silent_after(granted);
            let handlers = Heartbeats::new(&format!("{name} handlers"), silent_after, self.handlers.clone());
            service.add(if critical { handlers.critical() } else { handlers });
        }
        let run = move |reporter: onward_health::turn::Reporter| {
            let this = self.clone();
            async move {
                let stopping = reporter.clone();
                Runner::new(this, Some(reporter))?.run(async move { stopping.stopping().await }).await
            }
        };
        let running = Loop::running(&name, run).every(wait).freshness(freshness).longest_turn(LONGEST_ANSWER);
        let running = running.budget(budget).recovery(1);
        service.add(if critical { running.critical() } else { running });
    }
}

#[cfg(test)]
mod tests;
