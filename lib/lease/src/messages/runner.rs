//! One run of a message loop.

use core::future::Future;
use core::time::Duration;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use onward_core::backoff::Backoff;
use onward_core::lease::LostPolicy;
use onward_health::Outcome;
use onward_health::turn::Reporter;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::probation::{LONGEST_WAIT, Probation, TRIES_TO_ONE};
use super::{Handler, LoopSettings, MessageLoop, MessageLoopCounts, MessageLoopError};
use crate::delivery::Delivery;
use crate::extender::{Lease, LeaseExtender, LeaseState};
use crate::heartbeat::{CancelWhy, Heartbeat};
use crate::mailbox::{Counting, End, ErasedMailbox, MailboxError, Message, Received, Reply, Want};
use crate::watch::{HandlerEnd, watch};

/// Waits of a mailbox that cannot be reached.
const UNREACHED: Backoff = Backoff { base: Duration::from_secs(1), max: Duration::from_secs(30) };
/// A call that waits for messages when the loop is told to stop may take so long to answer: what it brings is given back.
const LAST_ANSWER: Duration = Duration::from_secs(1);

pub(super) struct Runner {
    mailbox: Arc<dyn ErasedMailbox>,
    handler: Handler,
    settings: LoopSettings,
    counts: Arc<MessageLoopCounts>,
    extender: LeaseExtender,
    /// All deliveries beat under it, and stop with it.
    heartbeat: Heartbeat,
    reporter: Option<Reporter>,
    account: Mutex<Account>,
    counting: Counting,
}

struct Account {
    probation: Probation,
    random: ChaCha8Rng,
    /// Nothing is received before.
    receive_at: Instant,
    /// Until when the loop waits by choice; `None` while that is for its handlers to say.
    waits_until: Option<Instant>,
    /// The mailbox has answered.
    answered: bool,
}

type Answer = Result<Vec<Received>, MailboxError>;

impl Runner {
    pub(super) fn new(one: MessageLoop, reporter: Option<Reporter>) -> Result<Arc<Self>, MessageLoopError> {
        let mut extender = one.extender()?;
        if let Some(reporter) = reporter.clone() {
            extender = extender.on_step(Arc::new(move || reporter.progress(1)));
        }
        one.handlers.set(extender.beating());
        let mut seed = [0; 32];
        // Jitter needs no secrecy: without entropy waits are merely the same in every process.
        let _ = getrandom::fill(&mut seed);
        let account = Account {
            probation: Probation::new(one.settings.failure_budget),
            random: ChaCha8Rng::from_seed(seed),
            receive_at: Instant::now(),
            waits_until: Some(Instant::now()),
            answered: false,
        };
        Ok(Arc::new(Self {
            counting: one.mailbox.promises().counting,
            mailbox: one.mailbox,
            handler: one.handler.ok_or(MessageLoopError::NoHandler)?,
            settings: one.settings,
            counts: one.counts,
            extender,
            heartbeat: Heartbeat::new(),
            reporter,
            account: Mutex::new(account),
        }))
    }

    pub(super) async fn run(self: Arc<Self>, stop: impl Future<Output = ()> + Send) -> Result<(), MessageLoopError> {
        let mut stop = core::pin::pin!(stop);
        let mut running: JoinSet<()> = JoinSet::new();
        let (mut unreached, mut ended) = (0, Ok(()));
        while ended.is_ok() {
            let free = self.slots().saturating_sub(running.len());
            if free == 0 {
                self.wait_until(None);
                tokio::select! {
                    () = &mut stop => break,
                    _ = running.join_next() => {}
                }
                continue;
            }
            let receive_at = self.account().receive_at;
            if receive_at > Instant::now() {
                self.wait_until(Some(receive_at));
                tokio::select! {
                    () = &mut stop => break,
                    () = sleep_until(receive_at) => {}
                    Some(_) = running.join_next() => {}
                }
                continue;
            }
            let asked_at = Instant::now();
            let want = Want { max: free, lease: self.settings.lease, wait: self.settings.wait() };
            self.wait_until(Some(asked_at + want.wait));
            // Never dropped while it may bring something: what it brought would be held by nobody.
            let mut asking = core::pin::pin!(self.mailbox.receive(want));
            let answer = tokio::select! {
                answer = &mut asking => answer,
                () = &mut stop => {
                    if let Ok(answer) = timeout(LAST_ANSWER, asking).await {
                        self.give_back(answer, asked_at).await;
                    }
                    break;
                }
            };
            ended = self.begin(answer, asked_at, &mut running, &mut unreached);
            while running.try_join_next().is_some() {}
        }
        self.drain(running).await;
        ended
    }

    /// Starts a handler for each message that came.
    fn begin(
        self: &Arc<Self>,
        answer: Answer,
        asked_at: Instant,
        running: &mut JoinSet<()>,
        unreached: &mut u32,
    ) -> Result<(), MessageLoopError> {
        match answer {
            Ok(received) => {
                *unreached = 0;
                // The first answer says that the mailbox is there, whatever it brings. From then on messages must be done.
                let is_first = !core::mem::replace(&mut self.account().answered, true);
                if received.is_empty() || is_first {
                    self.report(|reporter| reporter.record(Outcome::Idle));
                }
                for one in received {
                    let heartbeat = self.heartbeat.child();
                    let delivery = Delivery::under(heartbeat, self.mailbox.clone(), one, Some(asked_at));
                    running.spawn(self.clone().handle(delivery));
                }
                Ok(())
            }
            Err(error) if error.is_passing() => {
                *unreached += 1;
                tracing::warn!(%error, "no message could be received; trying again");
                self.report(|reporter| reporter.record_failure("receive_failed", &error));
                let mut account = self.account();
                let draw = account.random.next_u64();
                account.receive_at = Instant::now() + UNREACHED.delay(*unreached, draw);
                Ok(())
            }
            Err(error) => Err(MessageLoopError::Mailbox(error)),
        }
    }

    /// Handles a delivery, from its lease to its end.
    async fn handle(self: Arc<Self>, delivery: Delivery) {
        let lease = match self.extender.attach(&delivery, delivery.heartbeat()) {
            Ok(lease) => lease,
            Err(error) => return tracing::error!(%error, "a mailbox handed out a receipt twice"),
        };
        // It may have waited for its turn on a busy executor.
        if matches!(lease.state(), LeaseState::Lost { .. }) {
            return self.counts.lose();
        }
        let end = self.try_to_the_end(&delivery, &lease).await;
        let lasts = match lease.state() {
            LeaseState::Held { remaining } => remaining,
            LeaseState::Lost { .. } => Duration::ZERO,
        };
        drop(lease);
        if let Some(end) = end {
            let taken = self.counts.settle(&delivery, end.clone(), lasts, &self.heartbeat).await;
            self.record_end(&delivery, &end, taken);
        }
    }

    /// What a handler has done is done when the mailbox has taken it: until then the message comes back, and its work is
    /// done again and again. So it is the mailbox's answer that makes a success of it.
    fn record_end(&self, delivery: &Delivery, end: &End, taken: Result<End, MailboxError>) {
        match (end, taken) {
            // Tries that failed are recorded where they fail, and a release says nothing.
            (End::Retry { .. } | End::Release { .. }, _) => {}
            (_, Ok(End::Ack { .. })) => self.succeed(),
            (_, Ok(_)) => self.report(|reporter| reporter.record(Outcome::Skipped)),
            (_, Err(error)) => {
                self.fail(delivery, "settle_failed", &format!("handled, and could not be settled: {error}"));
            }
        }
    }

    /// Runs the handler, again in place if that is how the loop is on probation. `None` if there is nobody to tell.
    async fn try_to_the_end(&self, delivery: &Delivery, lease: &Lease) -> Option<End> {
        let (mut tries, mut place, mut delivery) = (1, None, delivery.clone());
        loop {
            let (why, after) = match self.run_handler(&delivery, lease).await {
                HandlerEnd::Succeeded(output) => return Some(End::Ack { reply: reply_of(&delivery, output) }),
                HandlerEnd::Failed { error, retryable: false, .. } => {
                    tracing::warn!(message = %delivery.id(), %error, "failed for good, to the dead letters");
                    return Some(End::Dead { why: error.into() });
                }
                HandlerEnd::Released { after } => return Some(End::Release { after: after.unwrap_or_default() }),
                HandlerEnd::Failed { error, after, .. } => (error, after),
                HandlerEnd::Stopped => match delivery.cancel_reason() {
                    Some(CancelWhy::LeaseExpired) => {
                        self.counts.lose();
                        self.fail(&delivery, "try_failed", "its lease was lost");
                        return None;
                    }
                    Some(CancelWhy::Stuck) => ("no forward step in time".into(), None),
                    _ => return Some(End::Release { after: Duration::ZERO }),
                },
            };
            let Some(wait) = self.fail(&delivery, "try_failed", &why) else {
                return Some(End::Retry { after: after.unwrap_or_else(|| self.retry_in(&delivery)) });
            };
            // The handler may know better how long it takes.
            let after = wait.max(after.unwrap_or_default());
            if self.counting == Counting::Attempts {
                let may_release = self.account().probation.may_release(delivery.id());
                return Some(if may_release { End::Release { after } } else { End::Retry { after } });
            }
            place = place.or_else(|| Place::take(self));
            if place.is_none() || self.heartbeat.is_cancelled() {
                return Some(End::Retry { after });
            }
            if tries == TRIES_TO_ONE {
                // The loop receives again after `wait`, and another message is to be first then.
                return Some(End::Retry { after: after.max(2 * wait) });
            }
            tries += 1;
            if delivery.is_cancelled() {
                delivery = delivery.again(self.heartbeat.child());
                lease.follow(delivery.heartbeat());
            }
            let wait = after.min(LONGEST_WAIT);
            tokio::select! {
                () = delivery.quietly(wait, sleep(wait)) => {}
                _ = delivery.cancelled() => return Some(End::Release { after: Duration::ZERO }),
            }
            lease.begin_again();
        }
    }

    /// Runs the handler to its end, whatever that is.
    async fn run_handler(&self, delivery: &Delivery, lease: &Lease) -> HandlerEnd<Bytes> {
        let grace = self.settings.cancel_grace;
        let ended = watch(delivery.heartbeat(), grace, || (self.handler)(delivery.clone()));
        let mut ended = core::pin::pin!(ended);
        tokio::select! {
            ended = &mut ended => return ended,
            () = self.hangs_on_probation(lease) => {}
        }
        tracing::warn!(message = %delivery.id(), "silent until its lease nearly ended, on probation; cancelled");
        // The lease lasts while it stops.
        let _stopping = delivery.quiet(grace);
        delivery.cancel(CancelWhy::Stuck);
        ended.await
    }

    /// Waits until the handler is silent and its lease about to end, on probation. What it hangs in may be what failed
    /// before; and a lease that has ended counts against its message, whoever is to blame.
    async fn hangs_on_probation(&self, lease: &Lease) {
        let interval = self.settings.interval();
        while self.settings.on_lost == LostPolicy::Cancel
            && let LeaseState::Held { remaining } = lease.state()
        {
            let early = remaining.saturating_sub(interval);
            let is_silent = || lease.silence().is_some_and(|silence| silence >= interval);
            if early.is_zero() && self.account().probation.is_on() && is_silent() {
                return;
            }
            sleep(if early.is_zero() { remaining } else { early }).await;
        }
        core::future::pending().await
    }

    fn succeed(&self) {
        self.report(|reporter| reporter.record(Outcome::Progress(1)));
        let mut account = self.account();
        account.probation.succeeded();
        account.receive_at = Instant::now();
    }

    /// A failure that may pass. Returns how long to wait, on probation.
    fn fail(&self, delivery: &Delivery, code: &'static str, why: &str) -> Option<Duration> {
        tracing::warn!(message = %delivery.id(), code, %why, delivery = delivery.delivery(), "a try failed");
        self.report(|reporter| reporter.record_failure(code, why));
        let mut account = self.account();
        let draw = account.random.next_u64();
        let wait = account.probation.failed(draw)?;
        account.receive_at = Instant::now() + wait;
        Some(wait)
    }

    fn retry_in(&self, delivery: &Delivery) -> Duration {
        let draw = self.account().random.next_u64();
        self.settings.backoff.delay(delivery.delivery(), draw)
    }

    fn slots(&self) -> usize {
        if self.account().probation.is_on() { 1 } else { self.settings.concurrency }
    }

    async fn give_back(&self, answer: Answer, asked_at: Instant) {
        for one in answer.unwrap_or_default() {
            let delivery = Delivery::under(self.heartbeat.child(), self.mailbox.clone(), one, Some(asked_at));
            let end = End::Release { after: Duration::ZERO };
            // One that cannot be given back comes back when its lease is over; that was logged.
            let _ = self.counts.settle(&delivery, end, Duration::ZERO, &self.heartbeat).await;
        }
    }

    /// Leases are renewed as ever, until the last handler has ended.
    async fn drain(&self, mut running: JoinSet<()>) {
        self.wait_until(None);
        let all_ended = async { while running.join_next().await.is_some() {} };
        let mut all_ended = core::pin::pin!(all_ended);
        if timeout(self.settings.drain_grace, &mut all_ended).await.is_err() {
            self.heartbeat.cancel(CancelWhy::Asked);
            all_ended.await;
        }
    }

    /// The loop waits by choice until then: for messages, for the end of a pause, or for a free slot. How long a handler may
    /// take is judged by its lease and its stuck clock, and a handler that hangs by the eye.
    fn wait_until(&self, until: Option<Instant>) {
        self.account().waits_until = until;
        self.report(|_| {});
    }

    /// What ends in one slot is no turn of the loop, which waits as before.
    fn report(&self, what: impl FnOnce(&Reporter)) {
        let Some(reporter) = &self.reporter else { return };
        what(reporter);
        let until = self.account().waits_until;
        reporter.waiting(until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now())));
    }

    fn account(&self) -> std::sync::MutexGuard<'_, Account> {
        self.account.lock().expect("nothing panics while it is held")
    }
}

/// The place of the one message that is tried again without being given back, until this is dropped.
struct Place<'a>(&'a Runner);

impl<'a> Place<'a> {
    fn take(runner: &'a Runner) -> Option<Self> {
        let is_taken = core::mem::replace(&mut runner.account().probation.in_place, true);
        (!is_taken).then_some(Self(runner))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.account().probation.in_place = false;
    }
}

/// The reply names the message that it answers.
fn reply_of(delivery: &Delivery, output: Bytes) -> Option<Reply> {
    let to = delivery.reply_to()?.to_owned();
    let message = Message::new(output).header("in-reply-to", delivery.id().as_str());
    Some(Reply { to, message })
}
