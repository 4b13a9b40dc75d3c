//! What a handler knows about its attempt, and what it can say.

use core::future::Future;
use core::panic::Location;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use onward_core::ids::Claim;
use onward_core::message::Assignment;
use onward_core::time::Mono;
use onward_lease::heartbeat::{Listener, Listening};
use onward_lease::wrap::{BeatingReader, CommandOutput, Items};
use onward_lease::{CancelWhy, Failure, Heartbeat};
use onward_proto::MAX_OUTPUT_BYTES;
use onward_proto::common::payload_out;
use onward_proto::manager::RemoteRefusal;
use onward_proto::worker::Output;
use serde::de::DeserializeOwned;
use tokio::io::AsyncRead;
use tokio::process::Command;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio_stream::Stream;

use crate::checkpoint::CheckpointParts;
use crate::clock::ContextClock;
use crate::link::SessionCommand;
use crate::machine::{ExtensionGrant, HandlerReport};

/// An attempt, as its handler sees it. Cheap to clone; clones speak for the same attempt.
///
/// Everything here that says something returns at once: words are gathered, and travel together. **Beat because of work
/// that was done**, never from a timer: a timer that beats while the work hangs is the false green that this exists to
/// catch. Work that goes through [`reader`](Self::reader), [`stream`](Self::stream), [`blocking`](Self::blocking) or
/// [`command`](Self::command) beats by itself.
#[derive(Clone, Debug)]
pub struct Context {
    shared: Arc<ContextState>,
}

/// Output that was printed and not sent: the end of it.
#[derive(Debug, Default)]
struct UnsentOutput {
    kept: VecDeque<u8>,
    skipped: u64,
}

/// Data that this attempt has left for the next one; as long as it leaves nothing, the data of the last attempt.
#[derive(Debug, Default)]
struct CheckpointDraft {
    session: Option<Box<str>>,
    own: Option<Box<[u8]>>,
}

#[derive(Debug)]
pub(crate) struct ContextState {
    assignment: Assignment,
    assigned_at: Mono,
    /// HandlerReport, and not yet taken by the link.
    unsaid: Mutex<Option<HandlerReport>>,
    unsent: Mutex<UnsentOutput>,
    left: Mutex<CheckpointDraft>,
    commands: UnboundedSender<SessionCommand>,
    heartbeat: Heartbeat,
    /// The listener by which beats on the heartbeat are reported to the manager. Not an observer: that would make every
    /// beat dear, and between two frames they are one word all the same.
    listening: Listening,
    news: Arc<News>,
    lease_until_ms: AtomicU64,
    extensions: AtomicU64,
    clock: ContextClock,
}

/// News of the heartbeat that the link has not taken.
#[derive(Debug)]
struct News {
    claim: Claim,
    commands: UnboundedSender<SessionCommand>,
    /// The link was told that there is some.
    is_woken: AtomicBool,
    seen: Mutex<ReportState>,
}

#[derive(Debug, Default)]
struct ReportState {
    /// A quiet section began or ended: the time that is left of the one that lasts.
    quiet: Option<Option<Duration>>,
    /// The watermark that was reported last.
    watermark: Option<(u64, Option<u64>)>,
}

/// Called from within a beat, under its lock.
impl Listener for News {
    fn wake(&self) {
        if !self.is_woken.swap(true, Ordering::SeqCst) {
            // A worker that has stopped has nobody to tell.
            let _ = self.commands.send(SessionCommand::Report(self.claim));
        }
    }

    fn wake_by_quiet(&self, left: Option<Duration>) {
        self.seen.lock().expect("nothing panics while it is held").quiet = Some(left);
        self.wake();
    }
}

/// Both, the later one last.
fn joined(earlier: Option<HandlerReport>, later: Option<HandlerReport>) -> Option<HandlerReport> {
    match (earlier, later) {
        (Some(earlier), Some(later)) => Some(earlier.then(later)),
        (earlier, later) => earlier.or(later),
    }
}

impl Context {
    pub(crate) fn new(assignment: Assignment, commands: UnboundedSender<SessionCommand>, now: Mono) -> Self {
        Self::at(now, assignment, commands, ContextClock::Real)
    }

    /// Handed out now, by a clock of the test's own.
    pub(crate) fn with_clock(
        assignment: Assignment,
        commands: UnboundedSender<SessionCommand>,
        clock: ContextClock,
    ) -> Self {
        Self::at(clock.mono(), assignment, commands, clock)
    }

    fn at(now: Mono, assignment: Assignment, commands: UnboundedSender<SessionCommand>, clock: ContextClock) -> Self {
        let lease_until_ms = AtomicU64::new((now + assignment.lease).as_ms());
        let heartbeat = Heartbeat::new();
        let (is_woken, seen) = (AtomicBool::new(false), Mutex::default());
        let news = Arc::new(News { claim: assignment.claim, commands: commands.clone(), is_woken, seen });
        let listening = heartbeat.listen(news.clone());
        let shared = ContextState {
            assignment,
            assigned_at: now,
            unsaid: Mutex::default(),
            unsent: Mutex::default(),
            left: Mutex::default(),
            commands,
            heartbeat,
            listening,
            news,
            lease_until_ms,
            extensions: AtomicU64::new(0),
            clock,
        };
        Self { shared: Arc::new(shared) }
    }

    /// The object that the handler beats on, for code that works under any lease. Its beats are reported here.
    pub fn heartbeat(&self) -> &Heartbeat {
        &self.shared.heartbeat
    }

    /// "I am at it." Enough for a handler that cannot say how far it is.
    #[track_caller]
    pub fn beat(&self) {
        self.shared.heartbeat.beat();
    }

    /// "I have done this much of that much." From the first report on, only a higher number counts as a forward step.
    #[track_caller]
    pub fn progress(&self, done: u64, total: impl Into<Option<u64>>) {
        self.shared.heartbeat.progress(done, total);
    }

    /// [`progress`](Self::progress) with a word about it for people.
    #[track_caller]
    pub fn progress_note(&self, done: u64, total: impl Into<Option<u64>>, note: &str) {
        self.note(note);
        self.shared.heartbeat.progress(done, total);
    }

    /// A word for people, which says nothing of progress. A quiet section of the heartbeat goes on.
    pub(crate) fn note(&self, note: &str) {
        let quiet = self.shared.heartbeat.quiet_left();
        self.send_report(HandlerReport { note: Some(note.into()), quiet, ..HandlerReport::default() });
    }

    /// Declares silence for at most `max`, for one call that cannot report. The next word ends it. The time is charged
    /// to the attempt's budget.
    pub fn quiet(&self, max: Duration) {
        self.send_report(HandlerReport { quiet: Some(max), ..HandlerReport::default() });
    }

    /// Waits for `call` in a quiet section of at most `max`, which ends with it.
    pub async fn quietly<T>(&self, max: Duration, call: impl Future<Output = T>) -> T {
        self.quiet(max);
        let result = call.await;
        self.beat();
        result
    }

    /// Sets the place that a later attempt should go on from: at most 64 KiB, kept at most once a second (the newest
    /// wins). Where an agent runs in the attempt, the name of its session stands beside it, and takes up to 256 bytes
    /// of them.
    pub fn set_checkpoint(&self, checkpoint: impl AsRef<[u8]>) {
        self.store_checkpoint(|left| left.own = Some(checkpoint.as_ref().into()));
    }

    /// Leaves the name of an agent's session beside the handler's own checkpoint.
    #[cfg(feature = "agent")]
    pub(crate) fn set_agent_session(&self, session: &str) {
        if self.agent_session().as_deref() != Some(session) {
            self.store_checkpoint(|left| left.session = Some(session.into()));
        }
    }

    /// The session that this attempt or an earlier one has named.
    #[cfg(feature = "agent")]
    pub(crate) fn agent_session(&self) -> Option<Box<str>> {
        let left = self.shared.left.lock().expect("nothing panics while it is held");
        left.session.clone().or_else(|| self.assigned().session.map(Into::into))
    }

    fn store_checkpoint(&self, change: impl FnOnce(&mut CheckpointDraft)) {
        let mut left = self.shared.left.lock().expect("nothing panics while it is held");
        change(&mut left);
        let assigned = self.assigned();
        let parts = CheckpointParts {
            session: left.session.as_deref().or(assigned.session),
            own: left.own.as_deref().or(assigned.own),
        };
        let quiet = self.shared.heartbeat.quiet_left();
        // Under the lock: what is said last is what was left last.
        self.send_report(HandlerReport { checkpoint: Some(parts.join().into()), quiet, ..HandlerReport::default() });
    }

    /// The checkpoint of the last attempt.
    fn assigned(&self) -> CheckpointParts<'_> {
        self.shared.assignment.checkpoint.as_deref().map(CheckpointParts::of).unwrap_or_default()
    }

    /// Prints for `onward logs`: the last 64 KiB are kept. Not a beat by itself.
    pub fn output(&self, bytes: &[u8]) {
        let mut unsent = self.shared.unsent.lock().expect("nothing panics while it is held");
        let is_first = unsent.kept.is_empty();
        let skipped = bytes.len().saturating_sub(MAX_OUTPUT_BYTES);
        let bytes = &bytes[skipped..];
        let over = (unsent.kept.len() + bytes.len()).saturating_sub(MAX_OUTPUT_BYTES);
        unsent.kept.drain(..over);
        unsent.kept.extend(bytes);
        unsent.skipped += (skipped + over) as u64;
        drop(unsent);
        if is_first && !bytes.is_empty() {
            // A worker that has stopped has nobody to tell.
            let _ = self.shared.commands.send(SessionCommand::Printed(self.clone()));
        }
    }

    /// The checkpoint of the last attempt that set one.
    pub fn checkpoint(&self) -> Option<&[u8]> {
        self.assigned().own
    }

    /// Asks the manager for more time. `progress` is from 0 to 1 and must be more than at the last grant.
    pub async fn request_extension(
        &self,
        why: Reason,
        progress: f64,
        remaining: Option<Duration>,
    ) -> Result<ExtensionGrant, RemoteRefusal> {
        let (reply, answer) = oneshot::channel();
        let word = SessionCommand::Extension { claim: self.shared.assignment.claim, why, progress, remaining, reply };
        let gone = || RemoteRefusal { code: "no_session".into(), text: "the worker has stopped".into() };
        self.shared.commands.send(word).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    /// Waits until the attempt must stop: it was cancelled or timed out, or its lease is lost. Stop soon after: what is
    /// still there when the worker's `cancel_grace` is over is dropped, and no result will be taken.
    pub async fn cancelled(&self) {
        self.shared.heartbeat.cancelled().await;
    }

    pub fn is_cancelled(&self) -> bool {
        self.shared.heartbeat.is_cancelled()
    }

    /// The reason why the handler must stop, once it must.
    pub fn cancel_reason(&self) -> Option<CancelWhy> {
        self.shared.heartbeat.cancel_reason()
    }

    /// `Err` once it must stop; for loops that like `?`.
    pub fn check(&self) -> Result<(), Failure> {
        self.shared.heartbeat.check()
    }

    /// The time for which the lease surely holds. Reports renew it.
    pub fn lease(&self) -> Duration {
        Mono::from_ms(self.shared.lease_until_ms.load(Ordering::Relaxed)).since(self.shared.clock.mono())
    }

    /// The number of times that the lease was extended.
    pub fn extensions(&self) -> u64 {
        self.shared.extensions.load(Ordering::Relaxed)
    }

    /// The time until the job's own deadline, as it was when the attempt began: grants move it.
    pub fn deadline(&self) -> Duration {
        let deadline = self.shared.assigned_at + self.shared.assignment.deadline_remaining;
        deadline.since(self.shared.clock.mono())
    }

    /// A token that rises with every hand-out of this workflow. Give it to whatever you write to, and have it refuse
    /// lower ones: then even a zombie on a frozen machine can do no harm.
    pub fn fence(&self) -> u64 {
        self.shared.assignment.claim.fence.get()
    }

    /// 1 for the first attempt that counts.
    pub fn attempt(&self) -> u32 {
        self.shared.assignment.attempt
    }

    pub fn job_id(&self) -> String {
        self.shared.assignment.claim.job.to_string()
    }

    /// The name of the workflow within its job.
    pub fn workflow(&self) -> &str {
        self.shared.assignment.workflow.name.as_str()
    }

    pub fn kind(&self) -> &str {
        self.shared.assignment.workflow.kind.as_str()
    }

    pub fn queue(&self) -> &str {
        self.shared.assignment.queue.as_str()
    }

    pub fn content_type(&self) -> Option<&str> {
        self.shared.assignment.workflow.content_type.as_ref().map(|name| name.as_str())
    }

    /// A header of the submission.
    pub fn header(&self, name: &str) -> Option<&str> {
        let headers = self.shared.assignment.headers.iter();
        headers.filter(|(key, _)| key.as_str().eq_ignore_ascii_case(name)).map(|(_, value)| &**value).next()
    }

    /// The W3C trace context to go on from: of this attempt if its node exports traces, else of the submission.
    pub fn traceparent(&self) -> Option<&str> {
        self.header("traceparent")
    }

    /// The result of a workflow that this one waited for, as JSON.
    pub fn input<T: DeserializeOwned>(&self, workflow: &str) -> Result<T, Failure> {
        let Some(bytes) = self.input_bytes(workflow) else {
            return Err(Failure::permanent(format!("this workflow has no input `{workflow}`; name it in `after`")));
        };
        serde_json::from_slice(&bytes).map_err(|error| Failure::permanent(format!("input `{workflow}`: {error}")))
    }

    pub fn input_bytes(&self, workflow: &str) -> Option<Bytes> {
        self.inputs().find(|(name, _)| *name == workflow).map(|(_, result)| result)
    }

    /// The results of all workflows that this one waited for, by name.
    pub fn inputs(&self) -> impl Iterator<Item = (&str, Bytes)> {
        self.shared.assignment.inputs.iter().map(|(name, result)| (name.as_str(), payload_out(result)))
    }

    pub fn payload(&self) -> Bytes {
        payload_out(&self.shared.assignment.workflow.payload)
    }

    fn send_report(&self, what: HandlerReport) {
        let mut unsaid = self.shared.unsaid.lock().expect("nothing panics while it is held");
        let is_first = unsaid.is_none();
        // Beats of before come before it: it ends a quiet section of theirs, and they none of its.
        let earlier = joined(unsaid.take(), self.take_news());
        *unsaid = joined(earlier, Some(what));
        drop(unsaid);
        if is_first {
            // A worker that has stopped has nobody to tell.
            let _ = self.shared.commands.send(SessionCommand::Report(self.claim()));
        }
    }

    pub(crate) fn claim(&self) -> Claim {
        self.shared.assignment.claim
    }

    pub(crate) fn take_report(&self) -> Option<HandlerReport> {
        let mut unsaid = self.shared.unsaid.lock().expect("nothing panics while it is held");
        joined(unsaid.take(), self.take_news())
    }

    pub(crate) fn take_output(&self) -> Option<Output> {
        let printed = core::mem::take(&mut *self.shared.unsent.lock().expect("nothing panics while it is held"));
        if printed.kept.is_empty() {
            return None;
        }
        let data = Bytes::from(Vec::from(printed.kept));
        Some(Output { claim: self.claim(), data, skipped: printed.skipped })
    }

    pub(crate) fn cancel(&self, why: CancelWhy) {
        self.shared.heartbeat.cancel(why);
    }

    /// Beats on the heartbeat since they were last taken, as one word. Within a quiet section that goes on they repeat
    /// it, since for a manager every word ends the one before. To be called under the lock of what is unsaid, which keeps
    /// the order.
    fn take_news(&self) -> Option<HandlerReport> {
        let ContextState { heartbeat, listening, news, .. } = &*self.shared;
        let is_woken = news.is_woken.swap(false, Ordering::SeqCst);
        if !(listening.take_beat() | is_woken) {
            return None;
        }
        let mut seen = news.seen.lock().expect("nothing panics while it is held");
        let quiet = seen.quiet.take().unwrap_or_else(|| heartbeat.quiet_left());
        let watermark = heartbeat.watermark();
        let progress = watermark.filter(|_| core::mem::replace(&mut seen.watermark, watermark) != watermark);
        Some(HandlerReport { progress, quiet, ..HandlerReport::default() })
    }

    pub(crate) fn lease_until(&self, until: Mono) {
        if self.shared.lease_until_ms.fetch_max(until.as_ms(), Ordering::Relaxed) < until.as_ms() {
            self.shared.extensions.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Work that beats by being done; see [`Heartbeat`] for more.
impl Context {
    /// Wraps a reader so that every read that gets bytes beats. With [`BeatingReader::of_total`] it reports how far it is, too.
    ///
    /// ```no_run
    /// # async fn copy(ctx: onward::Context) -> Result<(), onward::Failure> {
    /// # let (file, size, mut target) = (tokio::io::empty(), 1, tokio::io::sink());
    /// let mut source = ctx.reader(file).of_total(size);
    /// tokio::io::copy(&mut source, &mut target).await?;
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn reader<R: AsyncRead + Unpin>(&self, inner: R) -> BeatingReader<R> {
        self.shared.heartbeat.reader(inner)
    }

    /// Wraps a stream so that every item beats. With [`Items::of_total`] it reports how far it is, too.
    #[track_caller]
    pub fn stream<S: Stream + Unpin>(&self, inner: S) -> Items<S> {
        self.shared.heartbeat.stream(inner)
    }

    /// Runs a closure that blocks, on a thread where it keeps nobody waiting. It speaks through the context that it is
    /// given, and has to look at [`is_cancelled`](Self::is_cancelled) or [`check`](Self::check) now and then: a thread
    /// cannot be stopped from outside, and the attempt ends only when the closure has returned.
    ///
    /// ```no_run
    /// # async fn shrink(ctx: onward::Context) -> Result<(), onward::Failure> {
    /// # let files: Vec<String> = vec![];
    /// # fn compress(_: &str) -> std::io::Result<()> { Ok(()) }
    /// ctx.blocking(move |ctx| {
    ///     for (n, file) in files.iter().enumerate() {
    ///         ctx.check()?;
    ///         compress(file)?;
    ///         ctx.progress(n as u64 + 1, files.len() as u64);
    ///     }
    ///     Ok(())
    /// })
    /// .await
    /// # }
    /// ```
    pub async fn blocking<T, F>(&self, work: F) -> Result<T, Failure>
    where
        F: FnOnce(&Self) -> Result<T, Failure> + Send + 'static,
        T: Send + 'static,
    {
        let context = self.clone();
        self.shared.heartbeat.blocking(move |_| work(&context)).await
    }

    /// Runs a program to its end. All that it writes beats. It gets a process group of its own, which is stopped when
    /// the attempt must stop: SIGTERM to the group, and after five seconds SIGKILL to its whole process tree, whatever has
    /// left the group. The tree is killed at once when this is dropped, or when the program has left something behind.
    ///
    /// An exit status other than 0 is a [`Failure`] that is retried, with the last lines of the standard error in its
    /// text; 75 says by convention that it will pass. The standard input is as the command has it: give it
    /// [`Stdio::null`](std::process::Stdio::null) if the program might read it.
    ///
    /// ```no_run
    /// # async fn convert(ctx: onward::Context) -> Result<(), onward::Failure> {
    /// let mut ffmpeg = tokio::process::Command::new("ffmpeg");
    /// ffmpeg.args(["-nostdin", "-i", "in.mov", "out.mp4"]);
    /// ctx.command(ffmpeg).await?;
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn command(&self, command: Command) -> impl Future<Output = Result<CommandOutput, Failure>> + Send {
        self.shared.heartbeat.run_command(command, Location::caller())
    }
}

/// The reason why more time is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    LongWorkflow,
    GcPause,
    ResourceContention,
}

impl Reason {
    pub const fn code(self) -> &'static str {
        match self {
            Self::LongWorkflow => "long_workflow",
            Self::GcPause => "gc_pause",
            Self::ResourceContention => "resource_contention",
        }
    }
}
