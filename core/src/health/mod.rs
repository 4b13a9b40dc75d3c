//! Health means forward progress: three independent signals, one verdict, one action.

pub mod datacenter;
pub mod hold;
pub mod liveness;
pub mod overload;
pub mod progress;
pub mod signal;
pub mod verdict;
mod window;

pub use hold::{Hold, HoldRule, hold};
pub use liveness::{HttpLiveness, LivenessRule, NotLive, SessionLiveness};
pub use overload::OverloadLevel;
pub use progress::{FlowSample, ProgressReason, ProgressRule, ProgressVerdict, Tally, WorkerSample};
pub use signal::{Progress, Signals};
pub use verdict::{Action, EvictionRule, Judgement, NotReady, QuorumRule, Reason, Verdict};
