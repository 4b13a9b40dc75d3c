//! Health means forward progress: three independent signals, one verdict, one action.

pub mod liveness;
pub mod progress;
pub mod signal;
mod window;

pub use liveness::{HttpLiveness, LivenessRule, NotLive, SessionLiveness};
pub use progress::{FlowSample, ProgressReason, ProgressRule, ProgressVerdict, Tally, WorkerSample};
pub use signal::{Progress, Signals};
