//! What a service manager is told over `sd_notify`: ready, alive, stopping. Without `NOTIFY_SOCKET` nothing is sent.
//!
//! The eye of [`onward_health`] does that. It looks at the node's loops and at the runtime, and logs what hangs; the
//! watchdog is fed by such a look and never by a timer alone. A node that hangs stops feeding it, and systemd restarts
//! what a restart helps.

use std::time::Duration;

use onward_health::OpenEye;
use onward_node::engine::Engine;

/// What a service manager gives to a process to be told by it: to this one, and to no command that it runs.
pub const VARIABLES: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

/// Says that the node is ready, and from then on that it is alive, for as long as it is and this is held.
pub fn ready(engine: &Engine, hang_after: Duration) -> Option<OpenEye> {
    let opened = engine.loops().notify_systemd(hang_after);
    opened
        .inspect_err(|error| tracing::error!(%error, "the eye's thread cannot be started; nobody sees what hangs"))
        .ok()
}
