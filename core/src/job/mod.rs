//! A job: one or more workflows, what a client asked for, and the only function that changes a workflow's state.
//!
//! Data flows through the modules in this order: a client's [`draft::Draft`] is checked into a [`spec::JobSpec`]
//! (nothing unchecked is ever stored), [`mod@transition`] moves its workflows, [`retry`] decides what follows the end
//! of an attempt, and [`end`] what becomes of a job that is over.

pub mod draft;
pub mod end;
pub mod fingerprint;
pub mod retry;
pub mod spec;
pub mod transition;

pub use draft::{Draft, Invalid, LimitDraft, WorkflowDraft};
pub use retry::{Ending, EndingKind, Next};
pub use spec::{JobSpec, OnStuck, Outline, Policy, Retry, Start, TimeoutPolicy, WorkflowSpec};
pub use transition::{Cause, JobState, WorkflowState, transition};
