//! Agents that prove their progress, and survive being killed.
//!
//! - [`Agent`] asks a [`Model`], runs the [`Tool`]s that it calls, gives back the results, and so on until there is an
//!   output or a reason to stop, which is a [`Stopped`].
//! - [`session`]s keep what happened, entry by entry. An attempt that follows a killed one goes on from the last entry
//!   instead of paying again.
//! - [`AgentAttempt`] is what an agent runs in: an Onward worker's, or a message loop's. The agent beats on it because of
//!   work: at each turn, before and after each tool, with every chunk of an answer.
//! - [`novelty`] says what progress is: a call whose name, arguments and result were not seen together before. So an
//!   agent that goes in circles keeps its lease and loses its job, by the same stuck rule as every handler.
//! - [`budget`] bounds what a run may spend, and [`tools`] has some that are safe to give to a model.

mod agent;
pub mod attempt;
pub mod budget;
mod history;
mod http;
pub mod metrics;
pub mod model;
pub mod novelty;
mod schema;
pub mod session;
mod stopped;
pub mod tool;
pub mod tools;

pub use agent::Agent;
pub use attempt::AgentAttempt;
pub use budget::{Budget, BudgetPart, Price, Prices, Spent, Usage};
pub use metrics::Metrics;
pub use model::{Ask, ChatCompletions, Delta, Model, ModelError};
pub use onward_lease::{CancelWhy, Failure, Heartbeat};
#[cfg(feature = "sqlite")]
pub use session::Sqlite;
pub use session::{Folder, MemorySessions, SessionError, Sessions};
pub use stopped::{AgentOutput, Approval, Stopped};
pub use tool::{CallDecision, CallRequest, Effect, Tool, ToolContext, ToolError};
