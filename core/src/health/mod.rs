//! Health means forward progress: three independent signals, one verdict, one action.

pub mod liveness;
pub mod signal;

pub use liveness::{HttpLiveness, LivenessRule, NotLive, SessionLiveness};
pub use signal::{Progress, Signals};
