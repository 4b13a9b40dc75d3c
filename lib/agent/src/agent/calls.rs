//! Runs the tools that an answer calls.

use core::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use futures_util::FutureExt;
use onward_lease::CancelWhy;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tracing::field::Empty;
use tracing::{Instrument, Span};

use super::STOPS_WITHIN;
use super::turns::AgentRun;
use crate::attempt::NOTE_BYTES;
use crate::budget::BudgetPart;
use crate::history::{News, OpenCall};
use crate::metrics::{CallCounts, Kind};
use crate::novelty::{cut, shown};
use crate::session::SessionEvent;
use crate::stopped::{Approval, Stopped};
use crate::tool::{CallDecision, CallRequest, Effect, Tool, ToolContext, ToolState};

/// Answer to the model about a call with [`Effect::Once`] of which no end is known.
const UNKNOWN_END: &str = "whether it was carried out is not known. It is not made again by itself. \
                           Find out, or say so in your output.";
/// Answer to the model about a call in an answer that was cut at its longest length.
const CUT_OFF: &str = "Error: your answer was longer than allowed and was cut, so none of its calls was made. \
                       Make it again, and be shorter.";

/// The plan for a call.
enum Plan {
    Run(Box<Tool>, Value),
    /// The call is not run; the model is told this.
    Tell(String),
    Suspend(Approval),
}

/// A call that has ended.
struct CallEnd {
    index: usize,
    output: String,
    failed: bool,
    polling: bool,
}

type Running = JoinSet<CallEnd>;

impl AgentRun<'_> {
    /// Runs the open calls of the last answer, some at a time, until each has an end or the run must stop.
    pub(super) async fn run_calls(&mut self) -> Result<(), Stopped> {
        // Calls that are still running when this is dropped are aborted.
        let mut running = Running::new();
        let (mut stopped, mut suspended) = (None, Vec::new());
        for (index, open) in self.history.open.clone().into_iter().enumerate() {
            if open.ended.is_some() {
                continue;
            }
            while running.len() >= self.settings.at_once {
                self.end_one(&mut running).await?;
            }
            if self.is_stopping() {
                stopped = Some(Stopped::Cancelled);
                break;
            }
            match self.plan(index, &open).await {
                Plan::Tell(output) => {
                    self.count_unmade(&open.call.name);
                    self.end_call(CallEnd { index, output, failed: true, polling: false }).await?;
                }
                Plan::Suspend(approval) => {
                    self.count_unmade(&open.call.name);
                    suspended.push(approval);
                }
                Plan::Run(tool, arguments) => {
                    if !open.begun && !self.budget.allows_call(&self.history.spent) {
                        stopped = Some(Stopped::Budget { limit: BudgetPart::ToolCalls, spent: self.spent() });
                        break;
                    }
                    self.begin_call(index, &open, *tool, arguments, &mut running).await?;
                }
            }
        }
        while !running.is_empty() {
            self.end_one(&mut running).await?;
        }
        match stopped {
            Some(stopped) => Err(stopped),
            None if suspended.is_empty() => Ok(()),
            None => Err(self.suspend(suspended)),
        }
    }

    /// A call that is not made is seen as one that failed at once. A model can make up any number of names of tools.
    fn count_unmade(&self, name: &str) {
        let is_known = self.settings.tools.iter().any(|tool| tool.spec().name == name);
        let name = if is_known { name } else { "other" };
        let one = CallCounts { calls: 1, failed: 1, ..CallCounts::default() };
        let span = span_of(name);
        one.record_in(&span);
        span.record("failed", true);
        self.settings.metrics.add(Kind::Tool, name, one);
    }

    /// People are told of each call that waits for them: where the agent runs, and in its log.
    fn suspend(&self, approvals: Vec<Approval>) -> Stopped {
        for Approval { call, why } in &approvals {
            tracing::info!(tool = %call.tool, key = %call.key, %why, "a call waits for a person's approval");
        }
        let stopped = Stopped::Suspended { approvals, ask_again_after: self.settings.ask_again_after };
        self.pulse.note(cut(&stopped.to_string(), NOTE_BYTES));
        stopped
    }

    async fn plan(&self, index: usize, open: &OpenCall) -> Plan {
        let call = &open.call;
        if open.cut_off {
            return Plan::Tell(CUT_OFF.into());
        }
        let Some(tool) = self.settings.tools.iter().find(|tool| tool.spec().name == call.name) else {
            let names: Vec<&str> = self.settings.tools.iter().map(|tool| tool.spec().name.as_str()).collect();
            return Plan::Tell(format!("Error: there is no tool `{}`; there are: {}", call.name, names.join(", ")));
        };
        let arguments: Value = match serde_json::from_str(&call.arguments) {
            Ok(arguments) => arguments,
            Err(error) => return Plan::Tell(format!("Error: the arguments are not JSON: {error}")),
        };
        if open.begun && tool.effect == Effect::Once {
            return Plan::Tell(format!("Error: this call was begun, and was interrupted; {UNKNOWN_END}"));
        }
        let Some(policy) = &self.settings.policy else { return Plan::Run(tool.clone().into(), arguments) };
        let key = self.history.key(&self.session.id, index);
        let requested = CallRequest { key, tool: call.name.clone(), arguments: arguments.clone(), effect: tool.effect };
        match policy.decide(requested.clone()).await {
            CallDecision::Allow => Plan::Run(tool.clone().into(), arguments),
            CallDecision::Deny(why) => Plan::Tell(format!("Error: this call is not allowed: {why}")),
            CallDecision::Suspend(why) => Plan::Suspend(Approval { call: requested, why }),
        }
    }

    async fn begin_call(
        &mut self,
        index: usize,
        open: &OpenCall,
        tool: Tool,
        arguments: Value,
        running: &mut Running,
    ) -> Result<(), Stopped> {
        let key = self.history.key(&self.session.id, index);
        self.append(SessionEvent::ToolBegun { call: place(index), key: key.clone() }).await?;
        let name = open.call.name.clone();
        let what = shown(&name, &open.call.arguments);
        let counts = !self.history.novelty.is_repeated(&name, &open.call.arguments);
        let pulse = self.pulse.call(counts);
        pulse.heartbeat.beat();
        // A timeout that no clock reaches is none. At the deadline of the run the tool is told, and has a moment to stop.
        let own = Instant::now().checked_add(tool.timeout);
        let deadline = [self.deadline(), own].into_iter().flatten().min();
        let shared = ToolState {
            pulse: pulse.clone(),
            name: name.clone(),
            key,
            deadline,
            budget: self.budget.clone(),
            spent: self.spent(),
            resources: self.settings.resources.clone(),
            done: AtomicU64::new(0),
            note: self.history.note(),
        };
        let (situation, metrics) = (self.situation.clone(), self.settings.metrics.clone());
        situation.lock().expect("nothing panics while it is held").running.push(what.clone());
        self.pulse.note(&self.note());
        let span = span_of(&name);
        let inner = span.clone();
        let ended = async move {
            // Dropped with the task, too: a thread that runs on renews nothing.
            let _scope = pulse.scope();
            let (began, extensions) = (Instant::now(), pulse.extensions());
            let context = ToolContext { shared: Arc::new(shared) };
            let result = run_tool(&tool, context, arguments, own).await;
            pulse.heartbeat.beat();
            let failed = result.is_err();
            let one = CallCounts {
                calls: 1,
                failed: u64::from(failed),
                time: began.elapsed(),
                beats: pulse.beats(),
                extensions: pulse.extensions() - extensions,
            };
            one.record_in(&inner);
            inner.record("failed", failed);
            metrics.add(Kind::Tool, &name, one);
            situation.lock().expect("nothing panics while it is held").ended(&what);
            let output = tool.limited(result.unwrap_or_else(|error| format!("Error: {error}")));
            CallEnd { index, output, failed, polling: tool.polling }
        };
        running.spawn(ended.instrument(span));
        Ok(())
    }

    async fn end_one(&mut self, running: &mut Running) -> Result<(), Stopped> {
        if let Some(ended) = running.join_next().await {
            self.end_call(ended.expect("panics of tools are caught, and nobody aborts them")).await?;
        }
        Ok(())
    }

    async fn end_call(&mut self, ended: CallEnd) -> Result<(), Stopped> {
        let CallEnd { index, output, failed, polling } = ended;
        if let (true, Some(why)) = (failed, self.pulse.heartbeat.cancel_reason()) {
            // It failed because it was told to stop, which is no answer to the call: a later attempt makes it again, or
            // knows that it was begun.
            return Err(self.situation.lock().expect("nothing panics while it is held").end(why));
        }
        let news = self.append(SessionEvent::ToolEnded { call: place(index), output, failed, polling }).await?;
        let note = self.note();
        match news {
            News::NewCall => self.pulse.step(&note),
            News::Repeat(_) | News::None => self.pulse.note(&note),
        }
        Ok(())
    }
}

fn span_of(name: &str) -> Span {
    tracing::info_span!("tool_call", name, duration_ms = Empty, beats = Empty, extensions = Empty, failed = Empty)
}

/// Runs a tool to its end, or up to its timeout and a moment more, in which it may stop. A panic is an end.
async fn run_tool(
    tool: &Tool,
    context: ToolContext,
    arguments: Value,
    timeout: Option<Instant>,
) -> Result<String, String> {
    let heartbeat = context.heartbeat().clone();
    let mut call = Box::pin(AssertUnwindSafe(async { tool.start(context, arguments).await }).catch_unwind());
    // The tool itself says of an error what became of the call; nobody does where it did not come to its end.
    let unended = |why: String| match tool.effect {
        Effect::Once => format!("{why}; {UNKNOWN_END}"),
        Effect::None | Effect::Idempotent => why,
    };
    tokio::select! {
        biased;
        ended = &mut call => match ended {
            Ok(ended) => ended.map_err(|error| error.to_string()),
            Err(panic) => Err(unended(format!("the tool panicked: {}", panic_text(&*panic)))),
        },
        () = reach(timeout) => {
            heartbeat.cancel(CancelWhy::TimedOut);
            // It is told, and has a moment to stop.
            match tokio::time::timeout(STOPS_WITHIN, call).await {
                Ok(Ok(Ok(output))) => Ok(output),
                // Not how long it really took: that is never the same, and would make a repeat look new.
                _ => Err(unended(format!("the tool did not end within {:?}", tool.timeout))),
            }
        }
    }
}

async fn reach(deadline: Option<Instant>) {
    match deadline {
        Some(at) => sleep_until(at).await,
        None => core::future::pending().await,
    }
}

fn place(index: usize) -> u32 {
    u32::try_from(index).expect("an answer has few calls")
}

fn panic_text(panic: &(dyn core::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a word")
}
