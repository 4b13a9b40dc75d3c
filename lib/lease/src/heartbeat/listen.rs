//! Listeners: those who renew leases and judge progress. They hear that there is news, and look when it suits them.

use core::fmt;
use core::time::Duration;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use super::{Heartbeat, NEWS, Node};

/// Called from within a beat: it must not block, nor beat.
pub trait Listener: Send + Sync + 'static {
    fn wake(&self);

    /// A quiet section began or ended; `left` is the time that the newest one that lasts may take.
    fn wake_by_quiet(&self, left: Option<Duration>) {
        let _ = left;
        self.wake();
    }
}

#[derive(Default)]
pub(super) struct Listeners(Vec<(u64, Arc<Ear>)>);

struct Ear {
    beaten: AtomicBool,
    listener: Arc<dyn Listener>,
}

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} listeners", self.0.len())
    }
}

impl Listeners {
    pub(super) fn tell_beaten(&self) {
        for (_, ear) in &self.0 {
            if !ear.beaten.swap(true, Ordering::SeqCst) {
                ear.listener.wake();
            }
        }
    }

    pub(super) fn tell_quiet(&self, left: Option<Duration>) {
        for (_, ear) in &self.0 {
            ear.listener.wake_by_quiet(left);
        }
    }
}

/// A listener, until this is dropped.
pub struct Listening {
    ear: Arc<Ear>,
    node: Weak<Node>,
    id: u64,
}

impl fmt::Debug for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "listening as {}", self.id)
    }
}

impl Heartbeat {
    /// Adds a listener, which is woken by the first beat after each time it looked, and by quiet sections.
    pub fn listen(&self, listener: Arc<dyn Listener>) -> Listening {
        let ear = Arc::new(Ear { beaten: AtomicBool::new(false), listener });
        let mut rest = self.node.rest();
        rest.next_id += 1;
        let id = rest.next_id;
        rest.listeners.0.push((id, ear.clone()));
        // What was news to others is not news to this one yet.
        self.node.state.fetch_and(!NEWS, Ordering::SeqCst);
        drop(rest);
        Listening { ear, node: Arc::downgrade(&self.node), id }
    }
}

impl Listening {
    /// Whether a beat came since the last call. The next one wakes the listener.
    ///
    /// While beats are no news, every ear is beaten, or somebody is about to tell it: a beat that is no news may rely on
    /// that. So the ear is emptied first. In the other order a beat in between could be emptied with it, and beats would
    /// stay no news, whatever beats from then on.
    pub fn take_beat(&self) -> bool {
        let is_beaten = self.ear.beaten.swap(false, Ordering::SeqCst);
        if let Some(node) = self.node.upgrade() {
            node.state.fetch_and(!NEWS, Ordering::SeqCst);
        }
        is_beaten
    }

    /// Whether a beat came since [`Self::take_beat`], without asking to be woken by the next.
    pub fn is_beaten(&self) -> bool {
        self.ear.beaten.load(Ordering::SeqCst)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(node) = self.node.upgrade() {
            node.rest().listeners.0.retain(|(id, _)| *id != self.id);
        }
    }
}
