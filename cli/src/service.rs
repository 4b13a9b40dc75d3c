//! What a service manager is told over `sd_notify`: ready, alive, stopping. Without `NOTIFY_SOCKET` nothing is sent.
//!
//! The watchdog is fed by evidence, never by a timer alone: each time it is due, the runtime has to run a task and
//! `/livez` has to be green. A node that hangs stops feeding it, and systemd restarts what a restart helps.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use onward_node::engine::Engine;
use sd_notify::NotifyState;
use tokio::runtime::Handle;

/// What a service manager gives to a process to be told by it: to this one, and to no command that it runs.
pub const VARIABLES: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

/// Says that the node is ready, and from then on that it is alive, for as long as it is.
pub fn ready(engine: Engine, hang_after: Duration) {
    send(&[NotifyState::Ready, NotifyState::Status("serving")]);
    let Some(limit) = sd_notify::watchdog_enabled() else { return };
    let runtime = Handle::current();
    let feed = move || {
        // Half of what is allowed, as systemd advises.
        let every = limit / 2;
        loop {
            thread::sleep(every);
            let trouble = engine.needs_restart(hang_after).or_else(|| starved(&runtime, every));
            match trouble {
                Some(why) => send(&[NotifyState::Status(&why)]),
                None => send(&[NotifyState::Watchdog]),
            }
        }
    };
    if let Err(error) = thread::Builder::new().name("onward-watchdog".into()).spawn(feed) {
        tracing::error!(%error, "cannot start the watchdog's thread; systemd will restart this node");
    }
}

pub fn stopping() {
    send(&[NotifyState::Stopping, NotifyState::Status("shutting down")]);
}

/// Why the runtime cannot be called alive, if it did not run one task within this time.
fn starved(runtime: &Handle, within: Duration) -> Option<String> {
    let (ran, seen) = mpsc::channel();
    runtime.spawn(async move { ran.send(()) });
    let late = seen.recv_timeout(within).is_err();
    late.then(|| format!("the runtime has run no task for {within:?}; restart the node"))
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the service manager cannot be notified");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_that_is_blocked_is_not_alive() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().expect("a runtime");
        assert_eq!(starved(runtime.handle(), Duration::from_secs(60)), None);
        let (block, blocked) = mpsc::channel::<()>();
        let (begun, seen) = mpsc::channel();
        runtime.spawn(async move {
            let _ = begun.send(());
            // The only thread of the runtime stands still here.
            let _ = blocked.recv();
        });
        seen.recv().expect("the task has begun");
        let why = starved(runtime.handle(), Duration::from_millis(50)).expect("nothing can run");
        assert!(why.contains("no task"), "{why}");
        drop(block);
    }
}
