//! Who may call what: asked before every call.

use core::future::Future;
use core::pin::Pin;

use serde_json::Value;

use super::Effect;

/// A call that a model wants to make.
#[derive(Clone, PartialEq, Debug)]
pub struct CallRequest {
    /// The same at every try of this call, also by later attempts: what a person approves is approved under this name.
    pub key: String,
    pub tool: String,
    pub arguments: Value,
    pub effect: Effect,
}

/// The fate of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CallDecision {
    Allow,
    /// The call is not made, and the model is told why.
    Deny(String),
    /// A person must approve it. The run stops, and asks again about the same key when it goes on.
    Suspend(String),
}

type Deciding<'a> = Pin<Box<dyn Future<Output = CallDecision> + Send + 'a>>;

/// A policy behind a pointer.
pub(crate) trait AnyPolicy: Send + Sync {
    fn decide(&self, call: CallRequest) -> Deciding<'_>;
}

impl<F, Decided> AnyPolicy for F
where
    F: Fn(CallRequest) -> Decided + Send + Sync,
    Decided: Future<Output = CallDecision> + Send + 'static,
{
    fn decide(&self, call: CallRequest) -> Deciding<'_> {
        Box::pin(self(call))
    }
}
