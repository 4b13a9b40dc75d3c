//! Health means forward progress: three independent signals, one verdict, one action.
//!
//! How a judgement comes about, in the order of the modules:
//!
//! 1. [`signal`]: a node is judged by three signals, each measured by itself. [`liveness`] asks whether it answers,
//!    readiness (in [`verdict`]) whether it can take work, [`progress`] whether it gets done what it took.
//! 2. [`verdict`]: a total function of the three gives one verdict, with the reason of the signal that decided, and the
//!    verdict one action: route, drain, investigate, evict.
//! 3. [`mod@hold`]: an action that would evict most nodes of a kind is not taken. The cause is then more likely ours.
//! 4. [`datacenter`]: what its nodes came to makes the class of a datacenter, and the order gates route in.
//!
//! Some rules stand beside this, since they judge the process itself: [`overload`] says what it still takes on, and
//! [`loops`] (with [`outbox`]) whether its own loops move, which is what an orchestrator's [`mod@probes`] are answered
//! with. [`restart`] says when a loop that crashed is started again.
//!
//! Others are judged in [`Awake`](crate::time::Awake) time: while we could not run, their clocks did not run either.
//! Every rule that changes with time alone says when, so that nothing has to be polled.

pub mod datacenter;
pub mod hold;
pub mod liveness;
pub mod loops;
pub mod outbox;
pub mod overload;
pub mod probes;
pub mod progress;
pub mod restart;
pub mod signal;
pub mod verdict;
mod window;

pub use datacenter::{DatacenterClass, DatacenterCounts, DatacenterReason, route_order};
pub use hold::{Hold, HoldRule, hold};
pub use liveness::{HttpLiveness, LivenessRule, NotLive, SessionLiveness};
pub use loops::{FailureBudget, Iteration, LoopFailure, LoopHealth, LoopReason, LoopRule, LoopState, LoopStatus};
pub use outbox::{OutboxProblem, OutboxRule, OutboxTurn};
pub use overload::{LoadClass, OverloadDetector, OverloadLevel, OverloadReason, OverloadRule};
pub use probes::{Probes, ReadyFile, Sign};
pub use progress::{FlowSample, ProgressReason, ProgressRule, ProgressVerdict, Tally, UnmovingAttempt, WorkerSample};
pub use restart::{RestartRule, Restarts};
pub use signal::{ProgressSignal, Signals};
pub use verdict::{Action, EvictionRule, Judgement, NotReady, QuorumRule, Verdict, VerdictReason};
