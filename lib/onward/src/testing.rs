//! A test kit: runs a handler without a node, in time that the test decides.
//!
//! [`TestAttempt::run`] gives the handler a [`Context`] and judges it by the same clocks as a manager would: its lease, its
//! stuck clock, its job's deadline. With tokio's clock paused, an hour of work takes no time at all:
//!
//! ```
//! use onward::testing::{TestAttempt, TestOutcome};
//! use onward::{Context, Failure};
//! use std::time::Duration;
//!
//! async fn transcode(ctx: Context, parts: u64) -> Result<u64, Failure> {
//!     for done in 1..=parts {
//!         tokio::time::sleep(Duration::from_secs(60)).await;
//!         ctx.progress(done, parts);
//!     }
//!     Ok(parts)
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
//! // In a test: #[tokio::test(start_paused = true)]
//! let ended = TestAttempt::of("transcode").payload(&90).run(transcode).await;
//! assert_eq!(ended.outcome, TestOutcome::Succeeded(90.into()));
//! assert_eq!(ended.progress(), Some((90, Some(90))));
//! assert_eq!(ended.took, Duration::from_secs(5400));
//! # });
//! ```
//!
//! A handler together with a real node, in the test's own process, is what `onward_node::testing` is for.

use core::future::Future;
use core::time::Duration;

use bytes::Bytes;
use onward_core::beat::AttemptClock;
use onward_core::fence::{AttemptFence, Term};
use onward_core::ids::{Claim, JobId, Name};
use onward_core::job::{Outline, WorkflowSpec};
use onward_core::message::{Assignment, CancelWhy};
use onward_core::time::{Awake, Mono};
use onward_lease::{Failure, FailureKind};
use onward_proto::common::payload_in;
use onward_proto::manager::RemoteRefusal;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, sleep_until, timeout};

use crate::clock::ContextClock;
use crate::context::Context;
use crate::link::SessionCommand;
use crate::machine::ExtensionGrant;

/// An attempt to be run, with what its handler will find. The defaults are a node's.
#[derive(Clone, Debug)]
pub struct TestAttempt {
    assignment: Assignment,
    stuck_after: Duration,
    require_progress: bool,
    quiet_budget: Duration,
    cancel_after: Option<Duration>,
    cancel_grace: Duration,
    grants: Vec<Duration>,
}

/// The end of an attempt, and the reports of its handler.
#[derive(Debug)]
pub struct AttemptEnd {
    pub outcome: TestOutcome,
    /// The time from the hand-out to the end.
    pub took: Duration,
    /// Reports in the order in which they were made; those of the same instant are one.
    pub reports: Vec<TestReport>,
    /// The end of what it printed.
    pub output: Vec<u8>,
}

#[derive(Clone, PartialEq, Debug)]
pub enum TestOutcome {
    Succeeded(Value),
    Failed {
        error: String,
        retryable: bool,
        after: Option<Duration>,
    },
    /// Given back undone.
    Released {
        after: Option<Duration>,
    },
    /// The handler was told to stop and did, or was stopped when its grace was over.
    Cancelled,
    /// No forward step in time: a manager ends the attempt and retries.
    Stuck,
    /// No word in time: a manager hands it to somebody else.
    LeaseExpired,
    /// The job's deadline passed.
    TimedOut,
}

/// The report of a handler at one instant.
#[derive(Clone, PartialEq, Debug)]
pub struct TestReport {
    /// Since the hand-out.
    pub at: Duration,
    pub progress: Option<(u64, Option<u64>)>,
    pub note: Option<String>,
    pub quiet: Option<Duration>,
    /// The checkpoint as it is stored: with the name of an agent's session beside it, if there is one.
    pub checkpoint: Option<Vec<u8>>,
}

impl AttemptEnd {
    /// The last progress that was reported.
    pub fn progress(&self) -> Option<(u64, Option<u64>)> {
        self.reports.iter().rev().find_map(|report| report.progress)
    }

    /// The last checkpoint that the handler left: what the next attempt would find by [`Context::checkpoint`].
    pub fn checkpoint(&self) -> Option<&[u8]> {
        let last = self.reports.iter().rev().find_map(|report| report.checkpoint.as_deref());
        last.and_then(|bytes| crate::checkpoint::CheckpointParts::of(bytes).own)
    }
}

impl TestAttempt {
    /// # Panics
    /// If no kind can have this name.
    pub fn of(kind: &str) -> Self {
        let fence = AttemptFence::new(Term::new(1), 1).expect("the first of all");
        let outline = Outline { name: name("main"), kind: name(kind), content_type: None, after: [].into() };
        Self {
            assignment: Assignment {
                claim: Claim { job: JobId::from_u128(1), workflow: 0, fence },
                attempt: 1,
                queue: name("default"),
                workflow: WorkflowSpec { outline: outline.into(), payload: payload_in(&Bytes::from_static(b"null")) },
                headers: [].into(),
                inputs: Vec::new(),
                checkpoint: None,
                lease: Duration::from_secs(300),
                deadline_remaining: Duration::from_secs(24 * 3_600),
            },
            stuck_after: Duration::from_secs(120),
            require_progress: false,
            quiet_budget: Duration::from_secs(600),
            cancel_after: None,
            cancel_grace: Duration::from_secs(10),
            grants: Vec::new(),
        }
    }

    /// # Panics
    /// If it cannot be written as JSON.
    pub fn payload(mut self, payload: &impl Serialize) -> Self {
        self.assignment.workflow.payload = payload_in(&json(payload));
        self
    }

    /// The result of a workflow that this one waited for.
    ///
    /// # Panics
    /// If it cannot be written as JSON, or no workflow can have this name.
    pub fn input(mut self, workflow: &str, result: &impl Serialize) -> Self {
        self.assignment.inputs.push((name(workflow), payload_in(&json(result))));
        self
    }

    /// # Panics
    /// If no header can have this name.
    pub fn header(mut self, key: &str, value: &str) -> Self {
        let others = self.assignment.headers.iter().cloned();
        self.assignment.headers = others.chain([(name(key), value.into())]).collect::<Vec<_>>().into();
        self
    }

    /// The checkpoint of an earlier attempt.
    pub fn checkpoint(mut self, checkpoint: &[u8]) -> Self {
        self.assignment.checkpoint = Some(checkpoint.into());
        self
    }

    /// The number of the attempt. 1 is the first.
    pub fn number(mut self, number: u32) -> Self {
        self.assignment.attempt = number;
        self
    }

    pub fn lease(mut self, lease: Duration) -> Self {
        self.assignment.lease = lease;
        self
    }

    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.assignment.deadline_remaining = deadline;
        self
    }

    pub fn stuck_after(mut self, span: Duration) -> Self {
        self.stuck_after = span;
        self
    }

    /// Beats are no forward steps.
    pub fn require_progress(mut self) -> Self {
        self.require_progress = true;
        self
    }

    /// Tells the handler to stop, this long after the hand-out.
    pub fn cancel_after(mut self, span: Duration) -> Self {
        self.cancel_after = Some(span);
        self
    }

    /// Grants one request for more time; may be repeated. Requests beyond that are denied.
    pub fn grant(mut self, extension: Duration) -> Self {
        self.grants.push(extension);
        self
    }

    /// Runs a handler that takes JSON and gives JSON, to the end of the attempt.
    pub async fn run<In, Out, Run, F>(self, handler: F) -> AttemptEnd
    where
        F: FnOnce(Context, In) -> Run,
        Run: Future<Output = Result<Out, Failure>>,
        In: DeserializeOwned,
        Out: Serialize,
    {
        let began = Instant::now();
        let (commands, heard) = unbounded_channel();
        let clock = ContextClock::Since(began);
        let context = Context::with_clock(self.assignment.clone(), commands, clock);
        let judged = AttemptClock::start(Awake::from_ms(0), self.assignment.lease);
        let mut manager = Manager {
            clock: judged,
            grants: self.grants.clone().into_iter(),
            attempt: &self,
            context: context.clone(),
            began,
            ended: AttemptEnd {
                outcome: TestOutcome::Cancelled,
                took: Duration::ZERO,
                reports: Vec::new(),
                output: Vec::new(),
            },
        };
        let payload = context.payload();
        let handling = async {
            let input = serde_json::from_slice(&payload)
                .map_err(|error| Failure::permanent(format!("the payload does not fit this handler: {error}")))?;
            let output = handler(context, input).await?;
            serde_json::to_value(&output)
                .map_err(|error| Failure::permanent(format!("the result cannot be written as JSON: {error}")))
        };
        manager.watch(handling, heard).await;
        manager.ended.took = began.elapsed();
        manager.ended
    }
}

/// Judges one attempt, by the clocks that a real one has.
struct Manager<'a> {
    attempt: &'a TestAttempt,
    context: Context,
    clock: AttemptClock,
    grants: std::vec::IntoIter<Duration>,
    began: Instant,
    ended: AttemptEnd,
}

impl Manager<'_> {
    async fn watch(
        &mut self,
        handling: impl Future<Output = Result<Value, Failure>>,
        mut heard: UnboundedReceiver<SessionCommand>,
    ) {
        let mut handling = core::pin::pin!(handling);
        let (why, outcome) = loop {
            let (at, why, outcome) = self.next_end();
            tokio::select! {
                biased;
                Some(word) = heard.recv() => self.handle_command(word),
                result = &mut handling => {
                    while let Ok(word) = heard.try_recv() {
                        self.handle_command(word);
                    }
                    self.ended.outcome = outcome_of(result);
                    return;
                }
                () = sleep_until(at) => break (why, outcome),
            }
        };
        self.context.cancel(why);
        // Whatever it still says is refused; a success that comes in its grace after a cancel counts.
        let late = timeout(self.attempt.cancel_grace, handling).await;
        self.ended.outcome = match (outcome, late) {
            (TestOutcome::Cancelled, Ok(Ok(result))) => TestOutcome::Succeeded(result),
            (outcome, _) => outcome,
        };
    }

    /// The next end of the attempt if the handler reports nothing more.
    fn next_end(&self) -> (Instant, CancelWhy, TestOutcome) {
        let awake = |at: Awake| self.began + Duration::from_millis(at.as_ms());
        let ends = [
            (awake(self.clock.lease_end()), CancelWhy::LeaseExpired, TestOutcome::LeaseExpired),
            (awake(self.clock.stuck_at(self.attempt.stuck_after)), CancelWhy::Stuck, TestOutcome::Stuck),
            (self.began + self.attempt.assignment.deadline_remaining, CancelWhy::TimedOut, TestOutcome::TimedOut),
        ];
        let asked = self.attempt.cancel_after.map(|span| (self.began + span, CancelWhy::Asked, TestOutcome::Cancelled));
        ends.into_iter().chain(asked).min_by_key(|(at, ..)| *at).expect("there are three")
    }

    fn handle_command(&mut self, word: SessionCommand) {
        let now = Awake::from_ms(self.began.elapsed().as_millis() as u64);
        match word {
            SessionCommand::Report(_) => {
                let Some(said) = self.context.take_report() else { return };
                self.clock.end_quiet(now);
                if let Some(max) = said.quiet.filter(|max| !max.is_zero()) {
                    // A spent budget is refused, and the handler goes on.
                    let _ = self.clock.begin_quiet(now, max, self.attempt.quiet_budget);
                }
                if let Some((done, total)) = said.progress {
                    self.clock.progress(now, done, total);
                }
                self.clock.beat(now, self.attempt.assignment.lease, self.attempt.require_progress);
                self.context.lease_until(Mono::from_ms(self.clock.lease_end().as_ms()));
                self.ended.reports.push(TestReport {
                    at: self.began.elapsed(),
                    progress: said.progress,
                    note: said.note.map(String::from),
                    quiet: said.quiet,
                    checkpoint: said.checkpoint.map(|data| data.to_vec()),
                });
            }
            SessionCommand::Printed(context) => {
                if let Some(output) = context.take_output() {
                    self.ended.output.extend_from_slice(&output.data);
                }
            }
            SessionCommand::Extension { reply, .. } => {
                let answer = match self.grants.next() {
                    Some(extension) => {
                        self.clock.grant(now + extension);
                        let remaining_extensions = self.grants.len() as u32;
                        Ok(ExtensionGrant { extension, remaining: extension, remaining_extensions })
                    }
                    None => Err(RemoteRefusal {
                        code: "attempt_grants_spent".into(),
                        text: "the test grants no more".into(),
                    }),
                };
                // Who asked may have gone since.
                let _ = reply.send(answer);
            }
            SessionCommand::Fetching(_)
            | SessionCommand::Fetched(_)
            | SessionCommand::Finished { .. }
            | SessionCommand::Drain
            | SessionCommand::Abandon => {}
        }
    }
}

fn outcome_of(result: Result<Value, Failure>) -> TestOutcome {
    match result {
        Ok(result) => TestOutcome::Succeeded(result),
        Err(failure) => match failure.kind() {
            FailureKind::Retry { after } => TestOutcome::Failed { error: failure.to_string(), retryable: true, after },
            FailureKind::Permanent => TestOutcome::Failed { error: failure.to_string(), retryable: false, after: None },
            FailureKind::Release { after } => TestOutcome::Released { after },
            FailureKind::Cancelled => TestOutcome::Cancelled,
        },
    }
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap_or_else(|| panic!("{text:?} is no name"))
}

fn json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).map(Bytes::from).unwrap_or_else(|error| panic!("this cannot be written as JSON: {error}"))
}
