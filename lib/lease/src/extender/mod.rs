//! The lease extender: renews leases of messages while the work on them beats.
//!
//! One task serves all leases. It sleeps until a beat is news or a renewal is due, decides by core's
//! [`Extender`](onward_core::lease::Extender), and sends all renewals that are due at that moment to each mailbox as one
//! batch. A crowd of leases that are due one after the other is gathered for a moment, so that ten thousand of them are a
//! hundred calls and not ten thousand.
//!
//! It is also who judges whether a handler is stuck, where that is asked for: a handler that beats without progress keeps
//! its lease, and must not keep it for ever.

mod driver;
mod held;

use core::fmt;
use core::time::Duration;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use onward_core::lease::CheckedLeaseRule;
pub use onward_core::lease::{LeaseRule, LeaseRuleError, LeaseState, LossReason, LostPolicy};
use onward_core::time::Mono;
use onward_health::heartbeat::Beating;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use tokio::sync::Notify;

use crate::clock::TokioClock;
use crate::delivery::Delivery;
use crate::heartbeat::Heartbeat;
use crate::mailbox::Receipt;
use held::{ActiveLease, LeaseNews};

/// How long quiet sections of one delivery may last together.
pub(crate) const QUIET_BUDGET: Duration = Duration::from_secs(600);

/// Renews leases while the work under them beats. Cheap to clone; clones share one task.
///
/// ```
/// use onward_lease::{Delivery, Heartbeat, LeaseExtender, LeaseRule};
/// use onward_lease::mailbox::{End, Mailbox, Memory, Message, Want};
/// use std::{sync::Arc, time::Duration};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
/// let mailbox = Arc::new(Memory::new());
/// mailbox.send(vec![Message::new("work")]).await;
/// let extender = LeaseExtender::new(LeaseRule::default()).unwrap();
///
/// let asked = tokio::time::Instant::now();
/// let want = Want { max: 1, lease: Duration::from_secs(300), wait: Duration::ZERO };
/// let received = mailbox.receive(want).await.unwrap().remove(0);
/// let delivery = Delivery::new(mailbox.clone(), received, Some(asked));
/// let lease = extender.attach(&delivery, delivery.heartbeat()).unwrap();
/// for part in 0..60 {
///     tokio::time::sleep(Duration::from_secs(60)).await; // An hour of work …
///     delivery.progress(part + 1, 60); // … whose progress renews the lease.
/// }
/// drop(lease);
/// let settled = mailbox.settle(vec![(delivery.receipt().clone(), End::ACK)]).await;
/// assert_eq!(settled, [Ok(())]);
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct LeaseExtender {
    shared: Arc<ExtenderState>,
}

struct ExtenderState {
    settings: Settings,
    clock: TokioClock,
    leases: Mutex<Leases>,
    inbox: Arc<Inbox>,
    /// A mailbox that refuses for good refuses everybody; it is said once.
    refusal_said: AtomicBool,
    driver: OnceLock<()>,
    on_step: Option<OnStep>,
}

/// Called for every forward step that is seen, from the extender's task.
pub(crate) type OnStep = Arc<dyn Fn() + Send + Sync>;

#[derive(Clone, Copy, Debug)]
struct Settings {
    rule: CheckedLeaseRule,
    policy: LostPolicy,
    max_hold: Option<Duration>,
    stuck_after: Option<Duration>,
    require_progress: bool,
    quiet_budget: Duration,
    cancel_grace: Duration,
}

struct Leases {
    held: HashMap<u64, ActiveLease>,
    /// The instants by which leases must be looked at.
    due: BTreeSet<(Mono, u64)>,
    receipts: HashSet<Receipt>,
    next_id: u64,
    random: ChaCha8Rng,
    /// The instant until which renewals are gathered.
    gather_until: Mono,
}

/// The inbox in which beats leave word for the task.
#[derive(Debug, Default)]
struct Inbox {
    news: Mutex<Vec<u64>>,
    wake: Notify,
}

impl fmt::Debug for ExtenderState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseExtender").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// The receipt is attached already: two leases on one hand-out would each renew it. An extender sees its own leases
/// alone: do not attach one hand-out to two.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("message {message} is attached already under the same receipt; drop its lease first")]
pub struct AlreadyAttached {
    pub message: crate::mailbox::MessageId,
}

impl LeaseExtender {
    /// Refused unless the interval is at most a third of the lease.
    pub fn new(rule: LeaseRule) -> Result<Self, LeaseRuleError> {
        let settings = Settings {
            rule: rule.validate()?,
            policy: LostPolicy::Cancel,
            max_hold: None,
            stuck_after: None,
            require_progress: false,
            quiet_budget: QUIET_BUDGET,
            cancel_grace: Duration::ZERO,
        };
        Ok(Self::with(settings, None))
    }

    fn with(settings: Settings, on_step: Option<OnStep>) -> Self {
        let mut seed = [0; 32];
        // Jitter needs no secrecy: without entropy the backoff is merely the same in every process.
        let _ = getrandom::fill(&mut seed);
        let leases = Leases {
            held: HashMap::new(),
            due: BTreeSet::new(),
            receipts: HashSet::new(),
            next_id: 0,
            random: ChaCha8Rng::from_seed(seed),
            gather_until: Mono::ZERO,
        };
        let shared = ExtenderState {
            settings,
            clock: TokioClock::start(),
            leases: Mutex::new(leases),
            inbox: Arc::default(),
            refusal_said: AtomicBool::new(false),
            driver: OnceLock::new(),
            on_step,
        };
        Self { shared: Arc::new(shared) }
    }

    fn configured(&self, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = self.shared.settings;
        change(&mut settings);
        Self::with(settings, self.shared.on_step.clone())
    }

    pub(crate) fn on_step(self, on_step: OnStep) -> Self {
        Self::with(self.shared.settings, Some(on_step))
    }

    /// Lets handlers finish whose lease is lost, instead of cancelling them. Their acknowledgement ends as the mailbox
    /// declared.
    pub fn continue_when_lost(self) -> Self {
        self.configured(|settings| settings.policy = LostPolicy::Continue)
    }

    /// The longest time that a message is held, if the mailbox has no shorter one.
    pub fn max_hold(self, longest: Duration) -> Self {
        self.configured(|settings| settings.max_hold = Some(longest))
    }

    /// Cancels a handler that makes no forward step for so long, however often it beats. With `require_progress` a beat
    /// is no forward step.
    pub fn stuck_after(self, span: Duration, require_progress: bool) -> Self {
        self.configured(|settings| {
            settings.stuck_after = Some(span);
            settings.require_progress = require_progress;
        })
    }

    /// The time that quiet sections of one delivery may last together. Default 10 min.
    pub fn quiet_budget(self, budget: Duration) -> Self {
        self.configured(|settings| settings.quiet_budget = budget)
    }

    /// The time that a handler has to stop once it is cancelled. A hold of a mailbox that ends is given up as long before,
    /// and at least a minute: a tenth of it at most.
    pub fn cancel_grace(self, grace: Duration) -> Self {
        self.configured(|settings| settings.cancel_grace = grace)
    }

    pub fn rule(&self) -> &LeaseRule {
        self.shared.settings.rule.get()
    }

    /// Renews the lease of `delivery` while `heartbeat` beats, until what is returned is dropped.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn attach(&self, delivery: &Delivery, heartbeat: &Heartbeat) -> Result<Lease, AlreadyAttached> {
        let id = self.shared.hold(delivery, heartbeat)?;
        self.shared.driver.get_or_init(|| {
            tokio::spawn(driver::run(Arc::downgrade(&self.shared), self.shared.inbox.clone(), self.shared.clock));
        });
        self.shared.inbox.tell(id);
        Ok(Lease { shared: self.shared.clone(), id })
    }

    /// The heartbeats of what is attached, for the eye of a supervisor.
    pub(crate) fn beating(&self) -> Arc<dyn Beating> {
        self.shared.clone()
    }

    /// The number of attached leases.
    pub fn len(&self) -> usize {
        self.shared.leases().held.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A lease that is renewed while its handler beats, until this is dropped. Several may be dropped in any order.
#[derive(Debug)]
#[must_use = "a lease that is dropped is renewed no more"]
pub struct Lease {
    shared: Arc<ExtenderState>,
    id: u64,
}

impl Lease {
    pub fn state(&self) -> LeaseState {
        let now = self.shared.clock.now();
        let leases = self.shared.leases();
        leases.held.get(&self.id).expect("it is held until this is dropped").state(now)
    }

    /// For how long nothing was heard of the handler; `None` while it is silent by right.
    pub(crate) fn silence(&self) -> Option<Duration> {
        let now = self.shared.clock.now();
        let leases = self.shared.leases();
        leases.held.get(&self.id).expect("it is held until this is dropped").silent_for(now)
    }

    /// From now on the beats of this heartbeat renew the lease, and no others.
    pub(crate) fn follow(&self, heartbeat: &Heartbeat) {
        let now = self.shared.clock.now();
        let listening = heartbeat.listen(Arc::new(LeaseNews { inbox: self.shared.inbox.clone(), id: self.id }));
        let mut leases = self.shared.leases();
        let held = leases.held.get_mut(&self.id).expect("it is held until this is dropped");
        held.follow(now, heartbeat, listening);
        drop(leases);
        self.shared.inbox.tell(self.id);
    }

    /// The work begins again under the same lease: the stuck clock starts anew.
    pub(crate) fn begin_again(&self) {
        let now = self.shared.clock.now();
        self.shared.leases().held.get_mut(&self.id).expect("it is held until this is dropped").begin_again(now);
        self.shared.inbox.tell(self.id);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.shared.leases().let_go(self.id);
    }
}

impl ExtenderState {
    fn leases(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().expect("nothing panics while it is held")
    }
}

impl Drop for ExtenderState {
    fn drop(&mut self) {
        // The task finds that nobody is left, and ends.
        self.inbox.wake.notify_one();
    }
}

impl Inbox {
    fn tell(&self, id: u64) {
        self.news.lock().expect("nothing panics while it is held").push(id);
        self.wake.notify_one();
    }

    fn take(&self) -> Vec<u64> {
        core::mem::take(&mut *self.news.lock().expect("nothing panics while it is held"))
    }
}

#[cfg(test)]
mod tests;
