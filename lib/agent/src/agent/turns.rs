//! The loop: ask the model, run what it calls, give back the results, until there is an output.

use core::time::Duration;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use futures_util::StreamExt;
use serde_json::Value;
use tokio::time::Instant;
use tracing::Instrument;
use tracing::field::Empty;

use super::{EndBy, Settings, Situation};
use crate::attempt::CallPulse;
use crate::budget::{Budget, BudgetPart, Spent, estimate_tokens};
use crate::history::{History, News};
use crate::metrics::{CallCounts, Kind};
use crate::model::{AnswerDraft, Ask, ChatMessage, ModelAnswer, ModelError, ToolSpec};
use crate::session::{Entry, Session, SessionEvent};
use crate::stopped::{AgentOutput, Stopped};

pub(super) struct AgentRun<'a> {
    pub settings: &'a Settings,
    pub pulse: CallPulse,
    pub session: Session,
    pub history: History,
    pub situation: Arc<Mutex<Situation>>,
    /// When the run is ended here, and when its job is.
    end: Option<Instant>,
    job_end: Option<Instant>,
    pub budget: Budget,
    schema: Option<&'a Value>,
    began: Instant,
    /// The time that earlier attempts took.
    before: Duration,
}

/// The end of a stream of deltas.
enum StreamEnd {
    Whole,
    Broken(ModelError),
    Over(BudgetPart),
    Stopping,
}

impl<'a> AgentRun<'a> {
    pub fn new(
        settings: &'a Settings,
        pulse: CallPulse,
        mut session: Session,
        situation: Arc<Mutex<Situation>>,
        schema: Option<&'a Value>,
    ) -> Self {
        let budget = settings.budget.for_model(settings.model.called());
        let history = History::of(&core::mem::take(&mut session.entries), &budget);
        let before = history.spent.time;
        let began = Instant::now();
        Self { settings, pulse, session, history, situation, end: None, job_end: None, budget, schema, began, before }
    }

    /// When the run must be ended, and by what. Of its job's deadline others may have to take care.
    pub fn limit(&mut self, job: Option<Duration>, by_others: bool) -> Option<(Instant, EndBy)> {
        let budget = self.budget.time_left(&self.history.spent).map(|left| (left, EndBy::Budget));
        let own = self.settings.deadline.map(|left| (left, EndBy::Deadline));
        let of_job = job.filter(|_| !by_others).map(|left| (left, EndBy::Deadline));
        // A deadline that no clock reaches is none.
        let first = [own, of_job, budget].into_iter().flatten().min_by_key(|(left, _)| *left);
        let end = first.and_then(|(left, by)| Some((self.began.checked_add(left)?, by)));
        self.end = end.map(|(at, _)| at);
        self.job_end = job.and_then(|left| self.began.checked_add(left));
        end
    }

    /// When the run must have ended, as far as is known. Whoever is still here behind the deadline of the job has one that
    /// was moved, and nobody here knows to when.
    pub fn deadline(&self) -> Option<Instant> {
        let of_job = self.job_end.filter(|at| *at > Instant::now());
        self.end.into_iter().chain(of_job).min()
    }

    pub async fn go(
        mut self,
        prompt: &str,
        tools: &[ToolSpec],
        accept: &(dyn Fn(&str) -> Result<(), String> + Sync),
    ) -> Result<AgentOutput<String>, Stopped> {
        let done = self.history.novelty.new_calls();
        if done > 0 {
            self.pulse.resume_at(done, &self.note());
        }
        self.look_around();
        loop {
            self.pulse.heartbeat.beat();
            if !self.history.open.is_empty() {
                self.run_calls().await?;
                continue;
            }
            let complaint = match &self.history.last {
                None => None,
                Some(answer) => match judge(answer, accept)? {
                    Ok(output) => {
                        let (spent, session) = (self.spent(), self.session.id.clone());
                        return Ok(AgentOutput { output, spent, session });
                    }
                    Err(error) if self.history.bad_outputs >= self.settings.output_tries => {
                        return Err(Stopped::Output(error));
                    }
                    Err(error) => Some(format!("Your output does not fit: {error}. Give it again, in full.")),
                },
            };
            self.ask(prompt, tools, complaint).await?;
        }
    }

    pub fn spent(&self) -> Spent {
        Spent { time: self.active(), ..self.history.spent }
    }

    fn active(&self) -> Duration {
        self.before + self.began.elapsed()
    }

    pub fn is_stopping(&self) -> bool {
        self.pulse.heartbeat.is_cancelled()
    }

    /// A note for people: the turn, what runs now, and the last calls.
    pub fn note(&self) -> String {
        let running = self.situation.lock().expect("nothing panics while it is held").running.join(", ");
        let doing = if running.is_empty() { running } else { format!("runs {running}") };
        self.history.note_of(self.history.spent.turns, &doing)
    }

    /// Stores an entry, durably, and takes it into account.
    pub async fn append(&mut self, event: SessionEvent) -> Result<News, Stopped> {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let entry = Entry { at_ms: millis(since_epoch), active_ms: millis(self.active()), event };
        self.settings.sessions.append_any(&self.session, &entry).await?;
        let news = self.history.apply(&entry, &self.budget);
        self.look_around();
        Ok(news)
    }

    /// Keeps what the end of the run may be explained by.
    fn look_around(&self) {
        let mut situation = self.situation.lock().expect("nothing panics while it is held");
        situation.repeat = self.history.novelty.worst().cloned();
        (situation.spent, situation.began) = (self.spent(), Some(Instant::now()));
    }

    async fn ask(&mut self, prompt: &str, tools: &[ToolSpec], complaint: Option<String>) -> Result<(), Stopped> {
        if self.is_stopping() {
            return Err(Stopped::Cancelled);
        }
        let messages = self.new_messages(prompt, complaint);
        let input_tokens = self.estimate_input(&messages, tools);
        if let Some(limit) = self.budget.too_low_for(&self.spent(), input_tokens) {
            return Err(Stopped::Budget { limit, spent: self.spent() });
        }
        self.append(SessionEvent::Asked { messages, input_tokens }).await?;
        self.pulse.note(&self.history.note_of(self.history.spent.turns.saturating_add(1), "asks the model"));
        let (pulse, began) = (self.pulse.call(true), Instant::now());
        let (_scope, extensions) = (pulse.scope(), pulse.extensions());
        let turn = self.history.spent.turns.saturating_add(1);
        let name = self.settings.model.called();
        let span = tracing::info_span!(
            "model_call",
            name,
            turn,
            duration_ms = Empty,
            beats = Empty,
            extensions = Empty,
            ended = Empty
        );
        let (draft, end) = self.stream(tools, input_tokens, &pulse).instrument(span.clone()).await;
        let word = match &end {
            StreamEnd::Whole => "answered",
            StreamEnd::Broken(_) => "broken",
            StreamEnd::Over(_) => "over_budget",
            StreamEnd::Stopping => "stopped",
        };
        let one = CallCounts {
            calls: 1,
            failed: u64::from(!matches!(end, StreamEnd::Whole)),
            time: began.elapsed(),
            beats: pulse.beats(),
            extensions: pulse.extensions() - extensions,
        };
        one.record_in(&span);
        span.record("ended", word);
        self.settings.metrics.add(Kind::Model, name, one);
        self.end_answer(draft, end, input_tokens, turn).await
    }

    /// Stores what came of a question, and what it cost.
    async fn end_answer(&mut self, draft: AnswerDraft, end: StreamEnd, input: u64, turn: u32) -> Result<(), Stopped> {
        let (answer, stopped) = match end {
            StreamEnd::Whole => (draft.finish(input, turn), None),
            StreamEnd::Broken(error) => {
                (draft.cut(input, &error.to_string(), error.was_taken()), Some(Stopped::Model(error)))
            }
            StreamEnd::Over(limit) => {
                // Empty, it was stopped before it was asked again.
                (draft.cut(input, "over budget", false), Some(Stopped::Budget { limit, spent: Spent::default() }))
            }
            StreamEnd::Stopping => (draft.cut(input, "stopped", true), Some(Stopped::Cancelled)),
        };
        self.append(SessionEvent::Answered(answer)).await?;
        match stopped {
            None => Ok(()),
            Some(Stopped::Budget { limit, .. }) => Err(Stopped::Budget { limit, spent: self.spent() }),
            Some(stopped) => Err(stopped),
        }
    }

    /// About how many tokens a question has: the conversation, the tools and the schema of the output.
    fn estimate_input(&self, new: &[ChatMessage], tools: &[ToolSpec]) -> u64 {
        let of_tool = |tool: &ToolSpec| tool.name.len() + tool.text.len() + tool.schema.to_string().len();
        let schema = self.schema.map_or(0, |schema| schema.to_string().len());
        estimate_tokens(self.history.bytes_with(new) + tools.iter().map(of_tool).sum::<usize>() + schema)
    }

    fn new_messages(&self, prompt: &str, complaint: Option<String>) -> Vec<ChatMessage> {
        if self.history.messages.is_empty() {
            let instructions = Some(self.settings.instructions.clone()).filter(|text| !text.is_empty());
            let system = instructions.map(|content| ChatMessage::System { content });
            return system.into_iter().chain([ChatMessage::User { content: prompt.to_owned() }]).collect();
        }
        let words = self.history.notices.iter().cloned().chain(complaint);
        words.map(|content| ChatMessage::User { content }).collect()
    }

    /// Takes deltas until the answer is whole or must end.
    async fn stream(&self, tools: &[ToolSpec], input_tokens: u64, pulse: &CallPulse) -> (AnswerDraft, StreamEnd) {
        let (budget, spent) = (&self.budget, self.spent());
        let ask = Ask {
            messages: &self.history.messages,
            tools,
            output: self.schema,
            session: &self.session.id,
            budget,
            spent,
            max_output_tokens: budget.output_left(&spent, input_tokens),
            deadline: self.deadline(),
            heartbeat: &pulse.heartbeat,
        };
        let mut deltas = self.settings.model.ask(ask);
        let mut draft = AnswerDraft::default();
        loop {
            let delta = tokio::select! {
                biased;
                _ = pulse.heartbeat.cancelled() => return (draft, StreamEnd::Stopping),
                delta = deltas.next() => delta,
            };
            match delta {
                None => return (draft, StreamEnd::Whole),
                Some(Err(error)) => return (draft, StreamEnd::Broken(error)),
                Some(Ok(delta)) => {
                    if draft.is_news(&delta) {
                        pulse.heartbeat.beat();
                    }
                    let has_content = draft.has_content(&delta);
                    if let Err(error) = draft.add(delta) {
                        return (draft, StreamEnd::Broken(error));
                    }
                    let with_this = budget.with_usage(&spent, &draft.usage(input_tokens));
                    if (has_content || !draft.is_ending())
                        && let Some(limit) = budget.passed(&with_this)
                    {
                        return (draft, StreamEnd::Over(limit));
                    }
                }
            }
        }
    }
}

/// The output of an answer, or what is wrong with it.
fn judge(
    answer: &ModelAnswer,
    accept: &(dyn Fn(&str) -> Result<(), String> + Sync),
) -> Result<Result<String, String>, Stopped> {
    if let Some(refusal) = &answer.refusal {
        return Err(Stopped::Refused(refusal.clone()));
    }
    if answer.truncated {
        return Ok(Err("it was longer than allowed, and is cut; be shorter".into()));
    }
    if answer.text.trim().is_empty() {
        return Ok(Err("it is empty".into()));
    }
    Ok(accept(&answer.text).map(|()| answer.text.clone()))
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
