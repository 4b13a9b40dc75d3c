//! What whoever supervises this process is told, whatever its executor does: over `sd_notify` ready, alive, stopping; and
//! over a listener of its own, where one was asked for, the answers to probes. Without `NOTIFY_SOCKET` nothing is sent.
//!
//! The eye of [`onward_health`] does that. It looks at the node's loops and at the runtime, and logs what hangs; the
//! watchdog is fed by such a look and never by a timer alone. A node that hangs stops feeding it, and systemd restarts
//! what a restart helps.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use onward_health::{LoopWatch, OpenEye};

use crate::failure::CommandFailure;

/// Variables by which a service manager lets a process report to it: for this one, and for no command that it runs.
pub const VARIABLES: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

/// Says that the node is ready, and from then on that it is alive, for as long as it is and this is held. Fails only where
/// probes were to be answered and cannot be.
pub fn ready(loops: &LoopWatch, hang_after: Duration, probes: Option<SocketAddr>) -> Result<Option<OpenEye>> {
    match (loops.open_eye(hang_after, probes), probes) {
        (Ok(eye), _) => Ok(Some(eye)),
        (Err(error), _) if error.kind() == ErrorKind::InvalidInput => {
            Err(CommandFailure::new("the node cannot be watched as its settings ask for").why(error).into())
        }
        (Err(error), Some(address)) => {
            let failure = CommandFailure::new(format!("probes cannot be answered on {address}")).why(error);
            Err(failure.remedy("free the port, or set `http.probes` to another address").into())
        }
        (Err(error), None) => {
            tracing::error!(%error, "the eye's thread cannot be started; nobody sees what hangs");
            Ok(None)
        }
    }
}
