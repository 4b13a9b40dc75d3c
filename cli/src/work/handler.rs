//! The handler of kind `exec`: a command whose output and activity are its beats.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use onward::{Context, Failure};
use onward_core::fence::AttemptFence;
use onward_exec::{AttemptEvent, AttemptIdentity, CommandPayload, Exit, Options, OutputStream, Stdin};

use super::exit;
use super::relay::Relay;
use crate::args::ExecArgs;
use crate::service;

pub const KIND: &str = "exec";
/// Often enough for jobs that may stand still for a few seconds only. The second look is the first that can find
/// something.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// The time after the end of a command that was stopped, for a reader that is slow.
const LAST_OUTPUT: Duration = Duration::from_secs(1);
/// Longer than any sensible grace; what is left after that is stuck, and so is its successor.
const PREDECESSORS_END_WITHIN: Duration = Duration::from_secs(300);

/// The manner in which commands are run here.
#[derive(Clone, Debug)]
pub struct Manner {
    /// The interval at which CPU time and I/O of the tree are looked at, which count as beats, as output does; `None`:
    /// they do not.
    pub sample_every: Option<Duration>,
    pub directives: bool,
    /// The time from SIGTERM to SIGKILL.
    pub grace: Duration,
    /// Set for one command that this process stands for: its terminal, its stdin.
    pub foreground: bool,
}

impl Default for Manner {
    fn default() -> Self {
        Self { sample_every: Some(SAMPLE_EVERY), directives: true, grace: Duration::from_secs(10), foreground: false }
    }
}

impl From<&ExecArgs> for Manner {
    fn from(args: &ExecArgs) -> Self {
        let sample_every = (args.beats != "output").then_some(SAMPLE_EVERY);
        Self { sample_every, directives: !args.no_directives, grace: args.grace, foreground: false }
    }
}

/// Sees what a command does, as it does it.
pub trait Witness: Send + Sync + 'static {
    /// Takes output of the command, without the directives. Whoever is slow here slows the command. After an error
    /// nothing more comes from this stream. As with a pipe, a reader that is gone ends the command when it writes
    /// again; any other error ends it at once.
    fn output(
        &self,
        context: &Context,
        stream: OutputStream,
        bytes: &[u8],
    ) -> impl Future<Output = io::Result<()>> + Send;
    /// Anything but output.
    fn event(&self, _context: &Context, _event: &AttemptEvent) {}
}

/// A handler for [`onward::Worker::handle_bytes`].
pub fn handler<W: Witness>(
    manner: Manner,
    witness: Arc<W>,
) -> impl Fn(Context, Bytes) -> std::pin::Pin<Box<dyn Future<Output = Result<Bytes, Failure>> + Send>> + Send + Sync {
    move |context, payload| {
        let (manner, witness) = (manner.clone(), witness.clone());
        Box::pin(async move { attempt(context, payload, manner, &*witness).await })
    }
}

async fn attempt<W: Witness>(context: Context, payload: Bytes, manner: Manner, witness: &W) -> Result<Bytes, Failure> {
    let command = CommandPayload::parse(&payload).map_err(Failure::permanent)?;
    let mut options = Options::from(command);
    let identity =
        AttemptIdentity { job: context.job_id(), workflow: context.workflow().to_owned(), fence: context.fence() };
    if !wait_for_predecessors(&context, &identity).await {
        return Err(Failure::cancelled());
    }
    options.identity = Some(identity);
    options.env.extend(environment(&context));
    // Whoever started this worker may itself be a job, or hold a token: neither is the command's business.
    options.env_remove = ["ONWARD_TOKEN", "ONWARD_PAYLOAD_FILE"].map(str::to_owned).to_vec();
    if !manner.foreground {
        // A command that told the service manager that it is ready, or alive, would say so of this process.
        options.env_remove.extend(service::VARIABLES.map(str::to_owned));
    }
    options.payload = Some(payload.to_vec());
    options.directives = manner.directives;
    options.sample_every = manner.sample_every;
    options.grace = manner.grace;
    options.foreground = manner.foreground;
    if manner.foreground && options.stdin == Stdin::Null {
        options.stdin = Stdin::Inherit;
    }
    let mut running = onward_exec::spawn(options).map_err(Failure::retry)?;
    let (mut result, mut is_stopping) = (None, false);
    let mut quiet_until: Option<Instant> = None;
    let mut relay = Relay::new(witness, &context);
    let mut unwritable = None;
    let exit = loop {
        let event = tokio::select! {
            biased;
            passed = relay.pass(), if !relay.is_idle() => {
                match passed {
                    Ok(()) => {}
                    Err((stream, error)) if error.kind() == io::ErrorKind::BrokenPipe => running.close(stream),
                    Err((_, error)) => {
                        unwritable = Some(error);
                        is_stopping = true;
                        running.stop();
                    }
                }
                continue;
            }
            event = running.next(), if is_stopping || relay.is_idle() => event,
            () = context.cancelled(), if !is_stopping => {
                is_stopping = true;
                running.stop();
                continue;
            }
        };
        let Some(event) = event else { return Err(Failure::retry("the command's guard is gone")) };
        witness.event(&context, &event);
        match event {
            AttemptEvent::Started { .. } => {}
            AttemptEvent::Output { stream, bytes } => {
                quiet_until = None;
                context.beat();
                relay.push(stream, bytes);
            }
            // Nobody said that the silence is over.
            AttemptEvent::Activity if quiet_until.is_some_and(|until| Instant::now() < until) => {}
            AttemptEvent::Activity => context.beat(),
            AttemptEvent::Progress { done, total, note } => {
                quiet_until = None;
                match note {
                    Some(note) => context.progress_note(done, total, &note),
                    None => context.progress(done, total),
                }
            }
            AttemptEvent::Quiet(max) => {
                quiet_until = Instant::now().checked_add(max);
                context.quiet(max);
            }
            AttemptEvent::Result(json) => result = Some(json),
            AttemptEvent::Ended(how) => break how,
        }
    };
    if let Ok(Err((_, error))) = tokio::time::timeout(LAST_OUTPUT, relay.pass()).await {
        unwritable.get_or_insert(error);
    }
    match (exit, unwritable) {
        (_, Some(error)) => Err(Failure::permanent(format!("its output cannot be written: {error}"))),
        (Exit::Code(0), None) => Ok(match result {
            Some(json) => Bytes::copy_from_slice(json.get().as_bytes()),
            None => Bytes::from_static(b"{\"exit_code\":0}"),
        }),
        _ if context.is_cancelled() => Err(Failure::cancelled()),
        // Another attempt would have no reader either.
        (how, None) if relay.has_closed() => Err(Failure::permanent(exit::words(&how))),
        (how, None) => Err(Failure::retry(exit::words(&how))),
    }
}

/// Waits until nothing of an earlier attempt runs here that a killed worker has left behind. False if it was cancelled
/// first.
async fn wait_for_predecessors(context: &Context, identity: &AttemptIdentity) -> bool {
    if AttemptFence::from_raw(identity.fence).handout() == 1 || !identity.has_predecessors().await {
        return true;
    }
    tokio::select! {
        () = context.quietly(PREDECESSORS_END_WITHIN, identity.predecessors_end()) => true,
        () = context.cancelled() => false,
    }
}

fn environment(context: &Context) -> BTreeMap<String, String> {
    let mut variables = BTreeMap::from([
        ("ONWARD_ATTEMPT", context.attempt().to_string()),
        ("ONWARD_DEADLINE_REMAINING_S", context.deadline().as_secs().to_string()),
    ]);
    if let Some(trace) = context.traceparent() {
        variables.insert("TRACEPARENT", trace.to_owned());
    }
    variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
