//! Tools: what a model may call.

mod context;
mod policy;

pub use context::ToolContext;
pub(crate) use context::{Resources, ToolState};
pub(crate) use policy::AnyPolicy;
pub use policy::{CallDecision, CallRequest};

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::time::Duration;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::model::ToolSpec;
use crate::novelty::cut;

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);
const DEFAULT_OUTPUT_BYTES: usize = 64 << 10;

/// What running a tool does to the world, and so what may be done with a call whose end is not known, because the
/// attempt was killed in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Effect {
    /// The tool only looks. The call is made again.
    #[default]
    None,
    /// Twice is as good as once, with the same [`call_key`](ToolContext::call_key). The call is made again.
    Idempotent,
    /// Never twice. The call is not made again, and the model is told that its end is not known.
    Once,
}

/// A tool: a name, a text for the model, and an async function.
///
/// ```
/// use onward_agent::{Effect, Tool, ToolContext, ToolError};
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Refund { order: u64, cents: u32 }
///
/// async fn refund(ctx: ToolContext, refund: Refund) -> Result<String, ToolError> {
///     // `ctx.call_key()` is the same at every try of this call: give it to whoever can tell doubles by it.
///     Ok(format!("order {} gets {} cents back", refund.order, refund.cents))
/// }
///
/// let tool = Tool::new("refund", "Refunds an order", refund).effect(Effect::Once);
/// assert_eq!(tool.spec().schema["required"], serde_json::json!(["order", "cents"]));
/// ```
#[derive(Clone)]
pub struct Tool {
    spec: ToolSpec,
    run: Run,
    pub(crate) effect: Effect,
    pub(crate) polling: bool,
    pub(crate) timeout: Duration,
    pub(crate) output_bytes: usize,
}

type ToolFuture = Pin<Box<dyn Future<Output = Result<String, ToolError>> + Send>>;
type Run = Arc<dyn Fn(ToolContext, Value) -> ToolFuture + Send + Sync>;

/// A tool did not do what it was asked. The model is told, and may do something else.
///
/// Every error turns into one, so that `?` just works. It is not an `Error` itself: that is what makes this possible.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ToolError(String);

impl ToolError {
    pub fn new(why: impl fmt::Display) -> Self {
        Self(why.to_string())
    }
}

impl fmt::Display for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<E: std::error::Error> From<E> for ToolError {
    fn from(error: E) -> Self {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(deeper) = cause {
            text = format!("{text}: {deeper}");
            cause = deeper.source();
        }
        Self(text)
    }
}

impl Tool {
    /// A tool whose arguments are a type with a schema. What does not fit the type is told to the model.
    pub fn new<In, Out, Ran, F>(name: &str, text: &str, run: F) -> Self
    where
        F: Fn(ToolContext, In) -> Ran + Send + Sync + 'static,
        Ran: Future<Output = Result<Out, ToolError>> + Send + 'static,
        In: DeserializeOwned + JsonSchema + Send + 'static,
        Out: Serialize + 'static,
    {
        let run = Arc::new(run);
        let schema = schemars::schema_for!(In).to_value();
        let checked = Arc::new(schema.clone());
        let run: Run = Arc::new(move |context, arguments| {
            let (run, checked) = (run.clone(), checked.clone());
            Box::pin(async move {
                let misfit = |error: &dyn fmt::Display| ToolError(format!("the arguments do not fit: {error}"));
                // The type does not hold everything that its schema says, such as the range of a number.
                crate::schema::check(&checked, &arguments, "arguments").map_err(|error| misfit(&error))?;
                let input = serde_json::from_value(arguments).map_err(|error| misfit(&error))?;
                let output = serde_json::to_value(run(context, input).await?);
                Ok(plain(output.map_err(|error| ToolError(format!("the result is no JSON: {error}")))?))
            })
        });
        Self::with(name, text, schema, run)
    }

    /// A tool whose schema is known at run time only, such as one of another server. The arguments are held against it
    /// as [`Agent::run`](crate::Agent::run) holds an output against its own: some words of schemas are not checked.
    pub fn with_schema<Out, Ran, F>(name: &str, text: &str, schema: Value, run: F) -> Self
    where
        F: Fn(ToolContext, Value) -> Ran + Send + Sync + 'static,
        Ran: Future<Output = Result<Out, ToolError>> + Send + 'static,
        Out: Serialize + 'static,
    {
        let run = Arc::new(run);
        let checked = schema.clone();
        let run: Run = Arc::new(move |context, arguments| {
            let (run, fits) = (run.clone(), crate::schema::check(&checked, &arguments, "arguments"));
            Box::pin(async move {
                fits.map_err(|error| ToolError(format!("the arguments do not fit: {error}")))?;
                let output = serde_json::to_value(run(context, arguments).await?);
                Ok(plain(output.map_err(|error| ToolError(format!("the result is no JSON: {error}")))?))
            })
        });
        Self::with(name, text, schema, run)
    }

    fn with(name: &str, text: &str, schema: Value, run: Run) -> Self {
        let spec = ToolSpec { name: name.into(), text: text.into(), schema };
        let (timeout, output_bytes) = (DEFAULT_TIMEOUT, DEFAULT_OUTPUT_BYTES);
        Self { spec, run, effect: Effect::None, polling: false, timeout, output_bytes }
    }

    pub fn effect(self, effect: Effect) -> Self {
        Self { effect, ..self }
    }

    /// The same answer again is no sign of going in circles: the tool looks whether something has happened.
    pub fn polling(self) -> Self {
        Self { polling: true, ..self }
    }

    /// The longest time of one call. Default 10 minutes, and never beyond the deadline of the run. When it is over the tool
    /// is [told](ToolContext::cancelled) and has two seconds to stop; then it is dropped. Its output counts if it comes within
    /// them.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The largest part of the output that the model gets. Default 64 KiB.
    pub fn output_limit(self, bytes: usize) -> Self {
        Self { output_bytes: bytes, ..self }
    }

    /// The description of the tool for the model.
    pub fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    pub(crate) fn start(&self, context: ToolContext, arguments: Value) -> ToolFuture {
        (self.run)(context, arguments)
    }

    /// An output as the model gets it.
    pub(crate) fn limited(&self, output: String) -> String {
        if output.len() <= self.output_bytes {
            return output;
        }
        let kept = cut(&output, self.output_bytes);
        format!("{kept}\n[cut: the first {} of {} bytes]", kept.len(), output.len())
    }
}

impl fmt::Debug for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Tool");
        shown.field("name", &self.spec.name).field("effect", &self.effect).finish_non_exhaustive()
    }
}

/// Text as it is, everything else as JSON.
fn plain(output: Value) -> String {
    match output {
        Value::String(text) => text,
        other => other.to_string(),
    }
}
