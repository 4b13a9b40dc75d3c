//! Traces: what happened to jobs, as spans that a collector takes by OTLP.
//!
//! ```text
//! submission's traceparent ──▶ submit
//!                          ├─▶ wait       (until the first hand-out, and until each retry)
//!                          └─▶ attempt    (linked to the attempt before it) ──▶ what the worker adds
//! ```
//!
//! A hand-out carries the context of its attempt as `traceparent`, so that any worker continues the trace. Spans are sent
//! by a thread of their own, in batches; if the collector is slow or gone, they are dropped and counted, and nothing else
//! waits for it.

mod export;
mod wire;

use onward_core::ids::{Claim, JobId, Name};
use onward_core::message::Assignment;
use onward_core::time::Wall;
use onward_core::trace::{SpanId, TRACEPARENT, TraceContext};

pub use export::{BadEndpoint, Endpoint, Exporter};

/// A finished span.
#[derive(Clone, PartialEq, Debug)]
pub struct Span {
    /// The context of the parent.
    pub context: TraceContext,
    pub id: SpanId,
    pub name: String,
    pub start: Wall,
    pub end: Wall,
    pub attributes: Vec<(&'static str, Attribute)>,
    /// The span that this one repeats.
    pub link: Option<SpanId>,
    /// The error, if there was one.
    pub error: Option<String>,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Attribute {
    Text(String),
    Number(u64),
}

/// The trace that a job belongs to.
pub fn context_of<'a>(job: JobId, headers: impl IntoIterator<Item = &'a (Name, Box<str>)>) -> TraceContext {
    let given = headers.into_iter().find(|(name, _)| name.as_str().eq_ignore_ascii_case(TRACEPARENT));
    TraceContext::of_job(job, given.map(|(_, value)| &**value))
}

/// Makes whatever the worker does a part of its attempt.
pub fn continue_trace(assignment: &mut Assignment) {
    let context = context_of(assignment.claim.job, assignment.headers.iter());
    let own = context.below(SpanId::of_attempt(&assignment.claim)).to_string().into_boxed_str();
    let others = assignment.headers.iter().filter(|(name, _)| !name.as_str().eq_ignore_ascii_case(TRACEPARENT));
    let header = Name::new(TRACEPARENT).expect("a valid name");
    assignment.headers = others.cloned().chain([(header, own)]).collect::<Vec<_>>().into();
}

/// Attributes that all spans of an attempt have.
pub fn attributes(claim: &Claim, queue: &Name, kind: &Name) -> Vec<(&'static str, Attribute)> {
    vec![
        ("onward.job.id", Attribute::Text(claim.job.to_string())),
        ("onward.queue", Attribute::Text(queue.to_string())),
        ("onward.kind", Attribute::Text(kind.to_string())),
        ("onward.workflow", Attribute::Number(u64::from(claim.workflow))),
        ("onward.fence", Attribute::Number(claim.fence.get())),
    ]
}
