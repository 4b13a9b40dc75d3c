//! An agent: a model with tools, limits, and a place for its sessions.

mod calls;
mod turns;

use core::any::TypeId;
use core::fmt;
use core::future::Future;
use core::time::Duration;
use std::sync::{Arc, Mutex};

use onward_lease::CancelWhy;
use onward_lease::heartbeat::Part;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::{Instant, sleep_until, timeout};

use crate::attempt::{Attempt, Pulse};
use crate::budget::{Budget, Limit, Spent};
use crate::metrics::Metrics;
use crate::model::{AnyModel, Model, ToolSpec};
use crate::novelty::Repeat;
use crate::session::{AnySessions, Memory, Sessions};
use crate::stopped::{Finished, Stopped};
use crate::tool::{AnyPolicy, Decision, Requested, Resources, Tool};
use turns::Run;

/// How long tools may take to stop. An Onward worker drops what is still there after ten seconds.
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
    at_once: usize,
    output_tries: u32,
    name: Option<String>,
    metrics: Metrics,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tools, budget) = (&self.settings.tools, &self.settings.budget);
        f.debug_struct("Agent").field("tools", tools).field("budget", budget).finish_non_exhaustive()
    }
}

impl Agent {
    /// Without tools and instructions, with sessions that end with the process.
    pub fn new(model: impl Model) -> Self {
        let settings = Settings {
            model: Arc::new(model),
            instructions: String::new(),
            tools: Vec::new(),
            budget: Budget::default(),
            deadline: None,
            sessions: Arc::new(Memory::new()),
            policy: None,
            resources: Arc::default(),
            at_once: 4,
            output_tries: 3,
            name: None,
            metrics: Metrics::default(),
        };
        Self { settings: Arc::new(settings) }
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }

    /// What the model is told before everything else.
    pub fn instructions(self, text: impl Into<String>) -> Self {
        self.with(|settings| settings.instructions = text.into())
    }

    /// One more tool. One with the same name is replaced.
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
        F: Fn(Requested) -> Decided + Send + Sync + 'static,
        Decided: Future<Output = Decision> + Send + 'static,
    {
        self.with(|settings| settings.policy = Some(Arc::new(policy)))
    }

    /// Something that tools find by its type, such as a connection to a database.
    pub fn resource<T: Send + Sync + 'static>(self, resource: T) -> Self {
        self.with(|settings| {
            Arc::make_mut(&mut settings.resources).insert(TypeId::of::<T>(), Arc::new(resource));
        })
    }

    /// How many calls of one answer run at a time. Default 4.
    pub fn calls_at_once(self, calls: usize) -> Self {
        self.with(|settings| settings.at_once = calls.max(1))
    }

    /// How often the model may better an output that does not fit. Default 3.
    pub fn output_tries(self, tries: u32) -> Self {
        self.with(|settings| settings.output_tries = tries)
    }

    /// Names the runs of this agent within an attempt, so that a later attempt finds the session of each: for handlers with
    /// several runs of which the order is not always the same. Two runs with one name in one attempt are one run: the
    /// second gets the output of the first. Runs without a name are told apart by their order; one that stopped is gone on
    /// with by the next.
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
    pub async fn run<T: DeserializeOwned + JsonSchema>(
        &self,
        attempt: &(impl Attempt + Clone),
        prompt: impl Into<String>,
    ) -> Result<Finished<T>, Stopped> {
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
        Ok(Finished { output, spent: done.spent, session: done.session })
    }

    /// As [`run`](Self::run), with the model's last words as the output.
    pub async fn run_text(
        &self,
        attempt: &(impl Attempt + Clone),
        prompt: impl Into<String>,
    ) -> Result<Finished<String>, Stopped> {
        self.drive(Arc::new(attempt.clone()), prompt.into(), None, &|_| Ok(())).await
    }

    async fn drive(
        &self,
        attempt: Arc<dyn Attempt>,
        prompt: String,
        schema: Option<&Value>,
        accept: &(dyn Fn(&str) -> Result<(), String> + Sync),
    ) -> Result<Finished<String>, Stopped> {
        let settings = &*self.settings;
        let whole = attempt.session();
        let part = settings.name.is_none().then(|| attempt.heartbeat().begin_part());
        let id = match (&settings.name, part.as_ref().map_or(0, Part::number)) {
            (Some(name), _) => format!("{whole}.name-{name}"),
            (None, 0) => whole.clone(),
            (None, before) => format!("{whole}.run-{}", before + 1),
        };
        let session = settings.sessions.open_any(&id, attempt.fence()).await?;
        attempt.remember(&whole);
        let situation = Arc::new(Mutex::new(Situation::default()));
        let tools: Vec<ToolSpec> = settings.tools.iter().map(|tool| tool.spec().clone()).collect();
        let pulse = Pulse::new(attempt.clone());
        let (heartbeat, _scope) = (pulse.heartbeat.clone(), pulse.scope());
        let mut run = Run::new(settings, pulse, session, situation.clone(), schema);
        let end = run.limit(attempt.deadline());
        run.deadline = end.map(|(at, _)| at);
        let mut body = Box::pin(run.go(&prompt, &tools, accept));
        let finish = |finished| {
            part.into_iter().for_each(Part::finish);
            Ok(finished)
        };
        let stopped = tokio::select! {
            biased;
            ended = &mut body => return ended.and_then(finish),
            why = heartbeat.cancelled() => situation.lock().expect("nothing panics while it is held").end(why),
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

/// What a run is at, for the reason why it ended.
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
                Stopped::Budget { limit: Limit::Time, spent: Spent { time: self.spent.time + since, ..self.spent } }
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
