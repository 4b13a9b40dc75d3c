//! An agent: a model with tools, limits, and a place for its sessions.

mod calls;
mod turns;

use core::any::TypeId;
use core::fmt;
use core::future::Future;
use core::time::Duration;
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use onward_lease::CancelWhy;
use onward_lease::heartbeat::Part;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::{Instant, sleep_until, timeout};

use crate::attempt::{AgentAttempt, CallPulse};
use crate::budget::{Budget, BudgetPart, Spent};
use crate::metrics::Metrics;
use crate::model::{AnyModel, Model, ToolSpec};
use crate::novelty::Repeat;
use crate::session::{AnySessions, MemorySessions, SessionError, Sessions};
use crate::stopped::{AgentOutput, Stopped};
use crate::tool::{AnyPolicy, CallDecision, CallRequest, Resources, Tool};
use turns::AgentRun;

/// The time that tools have to stop, when the run must end and when their own time is over. An Onward worker drops what is still there after ten seconds.
const STOPS_WITHIN: Duration = Duration::from_secs(2);

/// A model with tools, limits, and a place for its sessions. Cheap to clone.
///
/// See the [crate](crate) for how a run goes on and what ends it.
#[derive(Clone)]
pub struct Agent {
    settings: Arc<Settings>,
}

#[derive(Clone)]
struct Settings {
    model: Arc<dyn AnyModel>,
    instructions: String,
    tools: Vec<Tool>,
    budget: Budget,
    deadline: Option<Duration>,
    sessions: Arc<dyn AnySessions>,
    policy: Option<Arc<dyn AnyPolicy>>,
    resources: Arc<Resources>,
    ask_again_after: Duration,
    at_once: usize,
    output_tries: u32,
    name: Option<String>,
    metrics: Metrics,
    under_way: UnderWay,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tools, budget) = (&self.settings.tools, &self.settings.budget);
        f.debug_struct("Agent").field("tools", tools).field("budget", budget).finish_non_exhaustive()
    }
}

impl Agent {
    /// An agent without tools and instructions, with sessions that end with the process.
    pub fn new(model: impl Model) -> Self {
        let settings = Settings {
            model: Arc::new(model),
            instructions: String::new(),
            tools: Vec::new(),
            budget: Budget::default(),
            deadline: None,
            sessions: Arc::new(MemorySessions::new()),
            policy: None,
            resources: Arc::default(),
            ask_again_after: Duration::from_secs(60),
            at_once: 4,
            output_tries: 3,
            name: None,
            metrics: Metrics::default(),
            under_way: UnderWay::default(),
        };
        Self { settings: Arc::new(settings) }
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }

    /// The text that the model is given before everything else.
    pub fn instructions(self, text: impl Into<String>) -> Self {
        self.with(|settings| settings.instructions = text.into())
    }

    /// Adds a tool, in the place of one with the same name.
    pub fn tool(self, tool: Tool) -> Self {
        self.with(|settings| {
            settings.tools.retain(|other| other.spec().name != tool.spec().name);
            settings.tools.push(tool);
        })
    }

    pub fn budget(self, budget: Budget) -> Self {
        self.with(|settings| settings.budget = budget)
    }

    /// The longest time of one attempt. The deadline of the job counts as well.
    pub fn deadline(self, deadline: Duration) -> Self {
        self.with(|settings| settings.deadline = Some(deadline))
    }

    pub fn sessions(self, sessions: impl Sessions) -> Self {
        self.with(|settings| settings.sessions = Arc::new(sessions))
    }

    /// Is asked before every call. Default: every call is allowed.
    pub fn policy<F, Decided>(self, policy: F) -> Self
    where
        F: Fn(CallRequest) -> Decided + Send + Sync + 'static,
        Decided: Future<Output = CallDecision> + Send + 'static,
    {
        self.with(|settings| settings.policy = Some(Arc::new(policy)))
    }

    /// How long work is given back for when a call waits for a person, before the policy is asked again. Default a minute.
    ///
    /// Where that counts as an attempt, as it does on NATS and SQS, a person has this long as often as the work may be
    /// handed out.
    pub fn ask_again_after(self, after: Duration) -> Self {
        self.with(|settings| settings.ask_again_after = after)
    }

    /// Something that tools find by its type, such as a connection to a database.
    pub fn resource<T: Send + Sync + 'static>(self, resource: T) -> Self {
        self.with(|settings| {
            Arc::make_mut(&mut settings.resources).insert(TypeId::of::<T>(), Arc::new(resource));
        })
    }

    /// The number of calls of one answer that run at a time. Default 4.
    pub fn calls_at_once(self, calls: usize) -> Self {
        self.with(|settings| settings.at_once = calls.max(1))
    }

    /// The number of times that the model may better an output that does not fit. Default 3.
    pub fn output_tries(self, tries: u32) -> Self {
        self.with(|settings| settings.output_tries = tries)
    }

    /// Names the runs of this agent within an attempt, so that a later attempt finds the session of each: for handlers with
    /// several runs of which the order is not always the same. Two runs with one name in one attempt are one run: the
    /// second gets the output of the first, and is refused while the first is under way. That is seen by an agent and its
    /// clones: two agents that were made apart and share their sessions must not use one name at a time. Runs without a name
    /// are told apart by their order; one that stopped is gone on with by the next.
    pub fn named(self, name: impl Into<String>) -> Self {
        self.with(|settings| settings.name = Some(name.into()))
    }

    /// Counts of the calls of this agent and its clones.
    pub fn metrics(&self) -> Metrics {
        self.settings.metrics.clone()
    }

    /// Runs until there is an output of type `T`, or a reason to stop.
    ///
    /// If the session of the attempt has entries, the run goes on from the last of them, and the prompt is the one that
    /// it began with. The output is checked against the schema of `T`; what does not fit is told to the model.
    ///
    /// Of a schema's words these are checked: `type`, `enum`, `const`, `properties`, `required`, `additionalProperties`,
    /// `items`, `prefixItems`, `uniqueItems`, `multipleOf`, `anyOf`, `oneOf` (more than one may fit), `allOf`, `$ref` within
    /// the schema, and the bounds of numbers, lengths and counts. Others are for the model alone, such as `pattern`,
    /// `format`, `patternProperties` and `not`: what they say must be checked by `T` itself when it is read.
    pub async fn run<T: DeserializeOwned + JsonSchema>(
        &self,
        attempt: &(impl AgentAttempt + Clone),
        prompt: impl Into<String>,
    ) -> Result<AgentOutput<T>, Stopped> {
        let schema = schemars::schema_for!(T).to_value();
        let read = |text: &str| -> Result<T, String> {
            let value: Value =
                serde_json::from_str(bare_json(text)).map_err(|error| format!("it is not JSON: {error}"))?;
            crate::schema::check(&schema, &value, "output")?;
            serde_json::from_value(value).map_err(|error| error.to_string())
        };
        let accept = |text: &str| read(text).map(drop);
        let done = self.drive(Arc::new(attempt.clone()), prompt.into(), Some(&schema), &accept).await?;
        let output = read(&done.output).map_err(Stopped::Output)?;
        Ok(AgentOutput { output, spent: done.spent, session: done.session })
    }

    /// Runs as [`run`](Self::run) does, with the model's last words as the output.
    pub async fn run_text(
        &self,
        attempt: &(impl AgentAttempt + Clone),
        prompt: impl Into<String>,
    ) -> Result<AgentOutput<String>, Stopped> {
        self.drive(Arc::new(attempt.clone()), prompt.into(), None, &|_| Ok(())).await
    }

    async fn drive(
        &self,
        attempt: Arc<dyn AgentAttempt>,
        prompt: String,
        schema: Option<&Value>,
        accept: &(dyn Fn(&str) -> Result<(), String> + Sync),
    ) -> Result<AgentOutput<String>, Stopped> {
        let settings = &*self.settings;
        let whole = attempt.session();
        let part = settings.name.is_none().then(|| attempt.heartbeat().begin_part());
        let id = match (&settings.name, part.as_ref().map_or(0, Part::number)) {
            (Some(name), _) => format!("{whole}.name-{name}"),
            (None, 0) => whole.clone(),
            (None, before) => format!("{whole}.run-{}", before + 1),
        };
        let _alone = settings.under_way.enter(&id, attempt.fence())?;
        let session = settings.sessions.open_any(&id, attempt.fence()).await?;
        attempt.remember(&whole);
        let situation = Arc::new(Mutex::new(Situation::default()));
        let tools: Vec<ToolSpec> = settings.tools.iter().map(|tool| tool.spec().clone()).collect();
        let pulse = CallPulse::new(attempt.clone());
        let (heartbeat, _scope) = (pulse.heartbeat.clone(), pulse.scope());
        let mut run = AgentRun::new(settings, pulse, session, situation.clone(), schema);
        let end = run.limit(attempt.deadline(), attempt.is_ended_at_deadline());
        let mut body = Box::pin(run.go(&prompt, &tools, accept));
        let finish = |finished| {
            part.into_iter().for_each(Part::finish);
            Ok(finished)
        };
        let end_by = |why| situation.lock().expect("nothing panics while it is held").end(why);
        let stopped = tokio::select! {
            biased;
            ended = &mut body => return match (ended, heartbeat.cancel_reason()) {
                (Ok(finished), _) => finish(finished),
                // It has seen the cancel itself, and not why.
                (Err(Stopped::Cancelled), Some(why)) => Err(end_by(why)),
                (Err(stopped), _) => Err(stopped),
            },
            why = heartbeat.cancelled() => end_by(why),
            by = reach(end) => situation.lock().expect("nothing panics while it is held").end_in_time(by),
        };
        // Tools are told, and have a moment; what is left then is dropped.
        heartbeat.cancel(CancelWhy::TimedOut);
        match timeout(STOPS_WITHIN, &mut body).await {
            Ok(Ok(finished)) => finish(finished),
            // A budget of time is in the session only if the last entry got there.
            _ => Err(stopped),
        }
    }
}

/// Sessions that an agent and its clones are at, each with its fence: a fence tells attempts apart, and not the runs of one.
/// An attempt whose predecessor has not ended yet has a higher one, and is kept out by nobody.
#[derive(Clone, Debug, Default)]
struct UnderWay(Arc<Mutex<HashSet<(String, u64)>>>);

/// A session, until this is dropped.
struct Alone(UnderWay, (String, u64));

impl UnderWay {
    fn enter(&self, id: &str, fence: u64) -> Result<Alone, SessionError> {
        let one = (id.to_owned(), fence);
        match self.0.lock().expect("nothing panics while it is held").insert(one.clone()) {
            true => Ok(Alone(self.clone(), one)),
            false => Err(SessionError::UnderWay(id.to_owned())),
        }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        self.0.0.lock().expect("nothing panics while it is held").remove(&self.1);
    }
}

/// What ends a run from outside, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EndBy {
    Deadline,
    Budget,
}

async fn reach(end: Option<(Instant, EndBy)>) -> EndBy {
    let Some((at, by)) = end else { return core::future::pending().await };
    sleep_until(at).await;
    by
}

/// The situation that a run is in, for the reason why it ended.
#[derive(Debug, Default)]
struct Situation {
    running: Vec<String>,
    repeat: Option<Repeat>,
    spent: Spent,
    began: Option<Instant>,
}

impl Situation {
    fn ended(&mut self, call: &str) {
        if let Some(at) = self.running.iter().position(|running| running == call) {
            self.running.remove(at);
        }
    }

    fn end_in_time(&self, by: EndBy) -> Stopped {
        match by {
            EndBy::Deadline => Stopped::Deadline,
            EndBy::Budget => {
                let since = self.began.map_or(Duration::ZERO, |began| began.elapsed());
                Stopped::Budget {
                    limit: BudgetPart::Time,
                    spent: Spent { time: self.spent.time + since, ..self.spent },
                }
            }
        }
    }

    fn end(&self, why: CancelWhy) -> Stopped {
        match why {
            CancelWhy::Asked => Stopped::Cancelled,
            CancelWhy::TimedOut => Stopped::Deadline,
            CancelWhy::Stuck => match &self.repeat {
                Some(repeat) => Stopped::Stuck { call: repeat.call.clone(), times: repeat.times },
                None => {
                    let call = self.running.first().cloned().unwrap_or_else(|| "the model".into());
                    Stopped::Stuck { call, times: 1 }
                }
            },
            why => Stopped::Lost(why),
        }
    }
}

/// Models like to put JSON between three backticks.
fn bare_json(text: &str) -> &str {
    let text = text.trim();
    let Some(inner) = text.strip_prefix("```").and_then(|rest| rest.strip_suffix("```")) else { return text };
    inner.strip_prefix("json").unwrap_or(inner).trim()
}
