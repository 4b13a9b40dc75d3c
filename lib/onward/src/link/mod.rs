//! A worker's session with its manager, on a thread of its own.
//!
//! The thread has its own executor, so that handlers that hog theirs cannot keep probes from being answered. It carries
//! out what the [machine](crate::machine) says, and measures how long the handlers' executor lets a ready task wait:
//! a worker that cannot run anything says so by taking nothing more.

mod dial;
mod fetch;
mod pack;

use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::io;

use onward_core::ids::Claim;
use onward_core::message::{Assignment, FromWorker};
use onward_core::refusal::RefusalKind;
use onward_core::time::Mono;
use onward_health::Executor;
use onward_proto::manager::{RemoteRefusal, frame_in};
use onward_proto::v1::{ManagerFrame, WorkerFrame};
use onward_proto::worker::{self, Output};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{OwnedPermit, Sender, UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tonic::{Status, Streaming};

use crate::address::{NodeAddress, NodeAddresses};
use crate::clock;
use crate::context::{Context, Reason};
use crate::machine::{Effect, ExtensionGrant, HandlerOutcome, HandlerReport, Input, SessionMachine};
use dial::dial;
use fetch::Fetches;
use pack::pack;

const COMMANDS_AT_ONCE: usize = 1_024;
const LOOK_AT_EXECUTOR_EVERY: Duration = Duration::from_millis(500);
const COLLECT_OUTPUT_EVERY: Duration = Duration::from_millis(250);
/// The number of outputs in one frame, beside all else in it: at most 1 MiB.
const MAX_OUTPUTS: usize = 16;

/// A command to the thread from outside.
#[derive(Debug)]
pub(crate) enum SessionCommand {
    /// A report in the context of this attempt was not sent yet.
    Report(Claim),
    /// Output in the context was not sent yet.
    Printed(Context),
    Extension {
        claim: Claim,
        why: Reason,
        progress: f64,
        remaining: Option<Duration>,
        reply: oneshot::Sender<Result<ExtensionGrant, RemoteRefusal>>,
    },
    /// Another input of this attempt has come.
    Fetching(Claim),
    /// All inputs of this attempt are there: its handler can begin.
    Fetched(Assignment),
    Finished {
        claim: Claim,
        outcome: HandlerOutcome,
    },
    Drain,
    Abandon,
}

/// An event that the thread reports to the one that runs the worker.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum LinkEvent {
    Connected,
    Disconnected(String),
    Settled { claim: Claim, refused: Option<RemoteRefusal> },
    Starved(Duration),
}

pub(crate) struct SessionLink {
    pub(crate) machine: SessionMachine,
    pub(crate) place: NodeAddresses,
    pub(crate) commands: UnboundedReceiver<SessionCommand>,
    /// The other end of `words`, for contexts.
    pub(crate) commands_in: UnboundedSender<SessionCommand>,
    /// The executor of the handlers.
    pub(crate) executor: Handle,
    /// Starts the handler of a context.
    pub(crate) start: Box<dyn Fn(Context) + Send>,
    pub(crate) on_event: Box<dyn Fn(LinkEvent) + Send>,
}

/// The reason why a link came to its end.
#[derive(Debug)]
pub(crate) enum SessionEnd {
    Drained,
    Rejected(RemoteRefusal),
}

impl SessionLink {
    /// Blocks until the worker has drained or was rejected.
    pub(crate) fn run(self) -> io::Result<SessionEnd> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(runtime.block_on(LinkLoop::new(self).run()))
    }
}

struct LinkLoop {
    link: SessionLink,
    contexts: HashMap<Claim, Context>,
    fetches: Fetches,
    extensions: HashMap<Claim, Vec<oneshot::Sender<Result<ExtensionGrant, RemoteRefusal>>>>,
    effects: Vec<Effect>,
    /// Said by the machine, and not packed into a frame yet. Of this session only.
    unsent: Vec<FromWorker>,
    /// Attempts that have printed something since the last look.
    printers: Vec<Context>,
    /// Outputs that go with the next frames, of any session.
    outputs: VecDeque<Output>,
    /// Whom the session is with that is open.
    manager: Option<NodeAddress>,
    dial: bool,
    /// The reason why the session that is open ends here.
    hang_up: Option<&'static str>,
    ended: Option<SessionEnd>,
}

impl LinkLoop {
    fn new(link: SessionLink) -> Self {
        Self {
            link,
            contexts: HashMap::new(),
            fetches: Fetches::new(),
            extensions: HashMap::new(),
            effects: Vec::new(),
            unsent: Vec::new(),
            printers: Vec::new(),
            outputs: VecDeque::new(),
            manager: None,
            dial: false,
            hang_up: None,
            ended: None,
        }
    }

    async fn run(mut self) -> SessionEnd {
        let (mut out, mut frames) = (None, None);
        let mut dialling = None;
        let mut commands = Vec::with_capacity(COMMANDS_AT_ONCE);
        let mut executor = Executor::new(self.link.executor.clone());
        let mut look = interval(LOOK_AT_EXECUTOR_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut collect = interval(COLLECT_OUTPUT_EVERY);
        collect.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.step(Input::Wake);
        loop {
            if let Some(why) = self.hang_up.take() {
                (out, frames) = (None, None);
                self.unsent.clear();
                self.fetches.use_service(None);
                (self.link.on_event)(LinkEvent::Disconnected(why.into()));
            }
            if core::mem::take(&mut self.dial) {
                dialling = Some(Box::pin(dial(self.link.place.clone())));
            }
            if let Some(ended) =
                self.ended.take_if(|_| (self.unsent.is_empty() && self.outputs.is_empty()) || out.is_none())
            {
                return ended;
            }
            let wait = self.link.machine.next_wakeup().map(|at| at.since(clock::mono()));
            tokio::select! {
                biased;
                heard = next_frame(&mut frames) => if let Err(status) = heard.and_then(|frame| self.handle_frame(&frame)) {
                    (out, frames) = (None, None);
                    self.disconnected(&status);
                },
                room = has_room(out.clone()), if self.has_unsent(out.is_some()) => match room {
                    Some(permit) => drop(permit.send(self.next_frame())),
                    // It is closing; why, is heard on the other side of it.
                    None => {
                        self.unsent.clear();
                        out = None;
                    }
                },
                count = self.link.commands.recv_many(&mut commands, COMMANDS_AT_ONCE) => {
                    debug_assert!(count > 0, "the link holds a sender itself");
                    for word in commands.drain(..) {
                        self.handle_command(word);
                    }
                }
                opened = async { dialling.as_mut().expect("guarded").await }, if dialling.is_some() => {
                    dialling = None;
                    match opened {
                        Ok(talk) => {
                            (out, frames) = (Some(talk.out), Some(talk.frames));
                            self.manager = Some(talk.place);
                            self.unsent.clear();
                            self.fetches.use_service(Some(talk.service));
                            (self.link.on_event)(LinkEvent::Connected);
                            self.step(Input::Connected);
                        }
                        Err(status) => self.disconnected(&status),
                    }
                }
                () = async { sleep(wait.expect("guarded")).await }, if wait.is_some() => self.step(Input::Wake),
                // While the manager is away, each attempt keeps its own last words.
                _ = collect.tick(), if !self.printers.is_empty() && self.outputs.len() < MAX_OUTPUTS => {
                    for context in core::mem::take(&mut self.printers) {
                        self.outputs.extend(context.take_output());
                    }
                }
                _ = look.tick() => {
                    let lag = executor.lag();
                    if lag >= Duration::from_secs(1) {
                        (self.link.on_event)(LinkEvent::Starved(lag));
                    }
                    self.step(Input::ExecutorLag(lag));
                }
            }
        }
    }

    /// Nothing goes out between the hello and what it is about: outputs wait until the manager knows who we are.
    fn has_unsent(&self, is_open: bool) -> bool {
        !self.unsent.is_empty() || (is_open && !self.outputs.is_empty() && self.link.machine.is_talking())
    }

    fn next_frame(&mut self) -> WorkerFrame {
        let outputs = if self.link.machine.is_talking() { self.outputs.len() } else { 0 };
        // What an attempt printed goes before, or with, how it ended.
        let mut frame = if outputs > MAX_OUTPUTS { WorkerFrame::default() } else { pack(&mut self.unsent) };
        if let Some(hello) = &mut frame.hello {
            hello.fetches_inputs = true;
        }
        frame.outputs = self.outputs.drain(..outputs.min(MAX_OUTPUTS)).map(worker::output_out).collect();
        frame
    }

    fn disconnected(&mut self, status: &Status) {
        self.unsent.clear();
        self.fetches.use_service(None);
        if let Some(manager) = self.manager.take() {
            self.link.place.skip(&manager);
        }
        (self.link.on_event)(LinkEvent::Disconnected(describe(status)));
        self.step(Input::Disconnected);
    }

    fn handle_frame(&mut self, frame: &ManagerFrame) -> Result<(), Status> {
        let unreadable = |error| Status::internal(format!("the manager sent what cannot be read: {error}"));
        for part in frame_in(frame).map_err(unreadable)? {
            self.step(Input::FromManager(part));
        }
        Ok(())
    }

    fn handle_command(&mut self, command: SessionCommand) {
        match command {
            SessionCommand::Report(claim) => {
                if let Some(report) = self.contexts.get(&claim).and_then(Context::take_report) {
                    self.step(Input::Reported { claim, report });
                }
            }
            SessionCommand::Extension { claim, why, progress, remaining, reply } => {
                self.extensions.entry(claim).or_default().push(reply);
                let reason = why.code().into();
                self.step(Input::Extension { claim, reason, progress, estimated_remaining: remaining });
            }
            SessionCommand::Printed(context) => self.printers.push(context),
            SessionCommand::Fetching(claim) => {
                if self.fetches.get_mut(&claim).is_some() {
                    self.step(Input::Reported { claim, report: HandlerReport::default() });
                }
            }
            SessionCommand::Fetched(assignment) => {
                if let Some(fetched) = self.fetches.remove(&assignment.claim) {
                    let context = self.begin(assignment, fetched.assigned_at);
                    context.lease_until(fetched.lease_until);
                    (self.link.start)(context);
                }
            }
            SessionCommand::Finished { claim, outcome } => {
                self.fetches.remove(&claim);
                // What it said and printed last goes with its end.
                let context = self.contexts.remove(&claim);
                self.outputs.extend(context.as_ref().and_then(Context::take_output));
                if let Some(report) = context.and_then(|context| context.take_report()) {
                    self.step(Input::Reported { claim, report });
                }
                self.step(Input::Finished { claim, outcome });
            }
            SessionCommand::Drain => self.step(Input::Drain),
            SessionCommand::Abandon => self.step(Input::Abandon),
        }
    }

    fn step(&mut self, input: Input) {
        let now = clock::mono();
        let mut effects = core::mem::take(&mut self.effects);
        self.link.machine.step(now, input, &mut effects);
        for effect in effects.drain(..) {
            self.perform(now, effect);
        }
        self.effects = effects;
    }

    /// The context of an attempt that has all its inputs.
    fn begin(&mut self, assignment: Assignment, assigned_at: Mono) -> Context {
        let claim = assignment.claim;
        let context = Context::new(assignment, self.link.commands_in.clone(), assigned_at);
        self.contexts.insert(claim, context.clone());
        context
    }

    fn perform(&mut self, now: Mono, effect: Effect) {
        match effect {
            Effect::Dial => self.dial = true,
            Effect::HangUp => self.hang_up = Some("the manager could not take what was said"),
            Effect::Leave => {
                if let Some(manager) = self.manager.take() {
                    self.link.place.leave(&manager);
                }
                self.hang_up = Some("the manager did not welcome this worker in time");
            }
            Effect::Send(message) => self.unsent.push(message),
            Effect::Start(assignment) if fetch::is_needed(&assignment) => {
                self.fetches.begin(assignment, now, self.link.commands_in.clone());
            }
            Effect::Start(assignment) => {
                let context = self.begin(assignment, now);
                (self.link.start)(context);
            }
            Effect::Cancel { claim, why } => {
                if let Some(context) = self.contexts.get(&claim) {
                    context.cancel(why);
                } else if self.fetches.remove(&claim).is_some() {
                    // It has not begun, and so it has stopped. The link itself reads this.
                    let _ = self
                        .link
                        .commands_in
                        .send(SessionCommand::Finished { claim, outcome: HandlerOutcome::Stopped });
                }
            }
            Effect::Lease { claim, until } => {
                if let Some(context) = self.contexts.get(&claim) {
                    context.lease_until(until);
                } else if let Some(fetching) = self.fetches.get_mut(&claim) {
                    fetching.lease_until = until;
                }
            }
            Effect::ExtensionAnswered { claim, answer } => {
                let Some(waiting) = self.extensions.get_mut(&claim) else { return };
                if !waiting.is_empty() {
                    // The handler may have gone on without it.
                    let _ = waiting.remove(0).send(answer);
                }
                if waiting.is_empty() {
                    self.extensions.remove(&claim);
                }
            }
            Effect::Settled { claim, answer } => {
                (self.link.on_event)(LinkEvent::Settled { claim, refused: answer.err() })
            }
            Effect::Noted(refused) if refused.kind() == Some(RefusalKind::TooSoon) => {
                tracing::debug!(%refused, "a checkpoint waits for the next beat");
            }
            Effect::Noted(refused) => tracing::warn!(%refused, "the manager did not take something"),
            Effect::Drained => self.ended = Some(SessionEnd::Drained),
            Effect::Rejected(refused) => self.ended = Some(SessionEnd::Rejected(refused)),
        }
    }
}

async fn next_frame(frames: &mut Option<Streaming<ManagerFrame>>) -> Result<ManagerFrame, Status> {
    match frames {
        Some(frames) => frames.message().await?.ok_or_else(|| Status::unavailable("the manager closed the session")),
        None => core::future::pending().await,
    }
}

/// `None` if there is no session to have room on, or it is closing: then what was to be sent is not.
async fn has_room(out: Option<Sender<WorkerFrame>>) -> Option<OwnedPermit<WorkerFrame>> {
    out?.reserve_owned().await.ok()
}

fn describe(status: &Status) -> String {
    match status.message() {
        "" => status.code().description().to_owned(),
        text => text.to_owned(),
    }
}
