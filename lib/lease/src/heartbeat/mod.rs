//! The heartbeat: what a handler beats on.
//!
//! A beat says "the handler is active", and is sent because of work, never by a timer: a timer that beats while the work
//! hangs is the false green that leases exist to catch. Whoever holds the lease listens, and renews it.
//!
//! **What a beat costs.** One atomic load where nobody has looked since the last beat; a store and a wake where somebody
//! has; never I/O, and never a wait for one. So a handler may beat in its innermost loop.
//!
//! **Who hears it.** A [child](Heartbeat::child)'s beats rise to its parent, and never reach a sibling: one handler must
//! not renew another's lease. A cancel goes the other way, from a parent to all its children. A child that is
//! [detached](Heartbeat::detach) is over: what still runs of it is heard by nobody above.

mod listen;
mod observe;
mod parts;
mod quiet;

pub use listen::{Listener, Listening};
pub use observe::{Beat, Observer};
pub use parts::Part;
pub use quiet::Quiet;

use core::future::Future;
use core::panic::Location;
use core::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

pub use onward_core::message::CancelWhy;
use tokio::sync::watch;

use crate::failure::Failure;
use listen::Listeners;
use observe::Observers;
use parts::BeatParts;
use quiet::QuietSections;

/// A beat came since a listener looked: another one is no news.
const NEWS: u8 = 1;
/// An observer wants to see every beat.
const OBSERVED: u8 = 2;

/// The object that a handler beats on. Cheap to clone; clones are the same heartbeat.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    node: Arc<Node>,
}

#[derive(Debug)]
struct Node {
    parent: Option<Heartbeat>,
    state: AtomicU8,
    /// Address of the place of the last beat, to be compared and never followed.
    place_seen: AtomicUsize,
    /// Units done and one; 0 before the first report.
    done: AtomicU64,
    total: AtomicU64,
    rest: Mutex<Rest>,
    cancel: watch::Sender<Option<CancelWhy>>,
    /// Closures on threads that have not returned.
    blocking: watch::Sender<usize>,
    /// Set when reports on this heartbeat rise no further.
    is_detached: AtomicBool,
}

/// State that is needed only when there is news.
#[derive(Debug, Default)]
struct Rest {
    place: Option<&'static Location<'static>>,
    listeners: Listeners,
    observers: Observers,
    quiet: QuietSections,
    parts: BeatParts,
    next_id: u64,
}

impl Default for Heartbeat {
    fn default() -> Self {
        Self::new()
    }
}

impl Heartbeat {
    pub fn new() -> Self {
        Self::with_parent(None)
    }

    /// A heartbeat for a part of the work. Its beats are also beats of this one, its quiet sections also hold this one's
    /// clocks, and it is cancelled with this one. Its units of progress are its own.
    pub fn child(&self) -> Self {
        Self::with_parent(Some(self.clone()))
    }

    fn with_parent(parent: Option<Self>) -> Self {
        let node = Node {
            parent,
            state: AtomicU8::new(0),
            place_seen: AtomicUsize::new(0),
            done: AtomicU64::new(0),
            total: AtomicU64::new(0),
            rest: Mutex::default(),
            cancel: watch::Sender::new(None),
            blocking: watch::Sender::new(0),
            is_detached: AtomicBool::new(false),
        };
        Self { node: Arc::new(node) }
    }

    /// "I am at it." Enough for a handler that cannot say how far it is.
    #[track_caller]
    #[inline]
    pub fn beat(&self) {
        self.beat_at(Location::caller());
    }

    /// "I have done this much of that much." From the first report on, only a higher number is a forward step.
    #[track_caller]
    #[inline]
    pub fn progress(&self, done: u64, total: impl Into<Option<u64>>) {
        self.progress_at(Location::caller(), done, total.into());
    }

    /// A beat of somebody else's work, said to come from there.
    #[inline]
    pub fn beat_at(&self, place: &'static Location<'static>) {
        self.rise(place, Beat::Beat);
    }

    /// [`Self::progress`] of somebody else's work, said to come from there.
    pub fn progress_at(&self, place: &'static Location<'static>, done: u64, total: Option<u64>) {
        if let Some(total) = total {
            self.node.total.store(total, Ordering::Relaxed);
        }
        // In one order with the look at what is news: who leaves the telling to others has been seen by them.
        self.node.done.fetch_max(done.saturating_add(1), Ordering::SeqCst);
        self.rise(place, Beat::Progress { done, total });
    }

    /// The highest number of units that was reported, and of how many.
    pub fn watermark(&self) -> Option<(u64, Option<u64>)> {
        let done = self.node.done.load(Ordering::SeqCst).checked_sub(1)?;
        let total = self.node.total.load(Ordering::Relaxed);
        Some((done, Some(total).filter(|total| *total > 0)))
    }

    /// One unit more than the highest number so far, whoever reported that: for parts of the work that do not know of each
    /// other, and count one unit at a time. It counts from now on, and those who judge hear of it when it is
    /// [reported](Self::progress).
    pub fn next_unit(&self) -> u64 {
        let next = |done: u64| done.max(1).saturating_add(1);
        let before = self.node.done.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |done| Some(next(done)));
        next(before.expect("there always is a next one")) - 1
    }

    /// The work begins again: units that were done before do not count, and its first part comes next.
    pub(crate) fn forget_progress(&self) {
        self.forget_parts();
        self.node.done.store(0, Ordering::Release);
        self.node.total.store(0, Ordering::Relaxed);
    }

    /// The place in the code of the last beat. Of two that beat at the same time it may be either.
    pub fn last_beat(&self) -> Option<&'static Location<'static>> {
        self.node.rest().place
    }

    /// Waits until the work must stop: its lease is lost, it is stuck, or it was cancelled.
    pub async fn cancelled(&self) -> CancelWhy {
        self.wait_cancelled().await
    }

    fn wait_cancelled(&self) -> Pin<Box<dyn Future<Output = CancelWhy> + Send + '_>> {
        Box::pin(async move {
            let mut seen = self.node.cancel.subscribe();
            let own = async {
                let why = seen.wait_for(Option::is_some).await.expect("the sender lives in this node");
                why.expect("waited until there is one")
            };
            match &self.node.parent {
                None => own.await,
                Some(parent) => tokio::select! {
                    why = own => why,
                    why = parent.wait_cancelled() => why,
                },
            }
        })
    }

    /// The reason why the work must stop, once it must.
    pub fn cancel_reason(&self) -> Option<CancelWhy> {
        let mut next = Some(self);
        while let Some(heartbeat) = next {
            if let Some(why) = *heartbeat.node.cancel.borrow() {
                return Some(why);
            }
            next = heartbeat.node.parent.as_ref();
        }
        None
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancel_reason().is_some()
    }

    /// `Err` once the work must stop; for loops that like `?`.
    pub fn check(&self) -> Result<(), Failure> {
        if self.is_cancelled() { Err(Failure::cancelled()) } else { Ok(()) }
    }

    /// Tells the work to stop. The first reason stays.
    pub fn cancel(&self, why: CancelWhy) {
        self.node.cancel.send_if_modified(|seen| {
            seen.is_none() && {
                *seen = Some(why);
                true
            }
        });
    }

    /// Ends this part of the work for good: it is cancelled, and nothing that is said on it or on a child of it reaches its
    /// parent any more, nor do its quiet sections hold the parent's clocks.
    ///
    /// For work that is given up and may run on all the same, such as a closure on a thread that nobody waits for: it must
    /// not renew a lease.
    pub fn detach(&self, why: CancelWhy) {
        self.cancel(why);
        // Before the sections are taken: one that begins in between sees it.
        self.node.is_detached.store(true, Ordering::SeqCst);
        let above = self.node.rest().quiet.take_above();
        drop(above);
    }

    /// Whether this heartbeat, or one above it, was [detached](Self::detach).
    pub fn is_detached(&self) -> bool {
        let above = || self.node.parent.as_ref().is_some_and(Self::is_detached);
        self.node.is_detached.load(Ordering::SeqCst) || above()
    }

    /// Waits for what still runs on threads, whatever became of the handler.
    pub async fn unblocked(&self) {
        let mut seen = self.node.blocking.subscribe();
        // The sender lives in this node.
        let _ = seen.wait_for(|count| *count == 0).await;
    }

    /// A closure on a thread counts for this heartbeat and all above it.
    pub(crate) fn count_blocking(&self, change: fn(usize) -> usize) {
        self.node.blocking.send_modify(|count| *count = change(*count));
        if let Some(parent) = &self.node.parent {
            parent.count_blocking(change);
        }
    }

    #[inline]
    fn rise(&self, place: &'static Location<'static>, beat: Beat) {
        self.node.hear(place, beat);
        if let Some(parent) = &self.node.parent
            && !self.node.is_detached.load(Ordering::Acquire)
        {
            parent.rise(place, Beat::Beat);
        }
    }
}

impl Node {
    fn rest(&self) -> MutexGuard<'_, Rest> {
        self.rest.lock().expect("nothing panics while it is held")
    }

    #[inline]
    fn hear(&self, place: &'static Location<'static>, beat: Beat) {
        let is_news = self.state.load(Ordering::SeqCst) != NEWS;
        if is_news || self.place_seen.load(Ordering::Relaxed) != core::ptr::from_ref(place).addr() {
            self.hear_news(place, beat, is_news);
        }
    }

    #[cold]
    fn hear_news(&self, place: &'static Location<'static>, beat: Beat, is_news: bool) {
        if !is_news {
            // Only the place is new. Who finds it taken leaves it to the other, whose place is as new as this.
            if let Ok(mut rest) = self.rest.try_lock() {
                rest.place = Some(place);
                self.place_seen.store(core::ptr::from_ref(place).addr(), Ordering::Relaxed);
            }
            return;
        }
        let mut rest = self.rest();
        rest.place = Some(place);
        self.place_seen.store(core::ptr::from_ref(place).addr(), Ordering::Relaxed);
        // Before the listeners are told. One of them may look as soon as it is told; set after that, this would say that
        // its ear is beaten when it is empty, and it would never be told again.
        self.state.fetch_or(NEWS, Ordering::SeqCst);
        rest.listeners.tell_beaten();
        let observers = rest.observers.clone();
        drop(rest);
        self.show(&observers, beat);
    }
}

#[cfg(test)]
mod tests;
