//! A worker: handlers, and the sessions that bring them work.

mod lane;
mod supervise;

use core::future::Future;
use core::pin::Pin;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use onward_core::ids::{Incarnation, Name, WorkerId};
use onward_core::lease::LostPolicy;
use onward_core::message::Subscription;
use onward_lease::Failure;
use onward_proto::manager::RemoteRefusal;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, sleep, timeout_at};

use crate::address::{AddressError, NodeAddresses};
use crate::clock;
use crate::context::Context;
use crate::link::SessionCommand;
use crate::machine::{Identity, SessionConfig};
use lane::{SessionLane, all_over};

type AttemptFuture = Pin<Box<dyn Future<Output = Result<Bytes, Failure>> + Send>>;
type Handler = Arc<dyn Fn(Context) -> AttemptFuture + Send + Sync>;

/// The time in which jobs that are given back at the end are answered, or not at all.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);
/// The time that a manager which answers needs to take the last outcomes.
const TOLD_WITHIN: Duration = Duration::from_secs(1);

/// Takes attempts from a node, runs a handler for each, and reports how they ended.
///
/// ```no_run
/// # #[derive(serde::Deserialize)] struct Transcode { parts: Vec<String> }
/// # #[derive(serde::Serialize)] struct Done { parts: usize }
/// # async fn encode(_: &str) -> std::io::Result<()> { Ok(()) }
/// # async fn main_() -> Result<(), Box<dyn std::error::Error>> {
/// use onward::{Context, Worker};
///
/// Worker::connect("http://127.0.0.1:7400").await?
///     .slots(8)
///     .handle("transcode", |ctx: Context, input: Transcode| async move {
///         for (n, part) in input.parts.iter().enumerate() {
///             encode(part).await?;
///             ctx.progress(n as u64 + 1, input.parts.len() as u64);
///         }
///         Ok(Done { parts: input.parts.len() })
///     })
///     .run().await?;
/// # Ok(()) }
/// ```
pub struct Worker {
    place: NodeAddresses,
    id: Option<String>,
    queues: Vec<String>,
    slots: u32,
    kinds: BTreeMap<String, Kind>,
    config: SessionConfig,
    cancel_grace: Duration,
    drain_grace: Duration,
    stop_within: Duration,
    watch: Option<Watch>,
}

type Watch = Arc<dyn Fn(Notice) + Send + Sync>;

struct Kind {
    handler: Handler,
    /// Slots of its own.
    at_once: Option<u32>,
}

impl core::fmt::Debug for Worker {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let kinds: Vec<&String> = self.kinds.keys().collect();
        f.debug_struct("Worker").field("place", &self.place).field("kinds", &kinds).finish_non_exhaustive()
    }
}

/// An event in the life of a worker, for logs and probes.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Notice {
    Connected,
    /// The worker goes on with what it holds, and connects again.
    Disconnected {
        why: String,
    },
    Settled {
        job_id: String,
        fence: u64,
    },
    /// The manager did not take the outcome: the attempt was superseded or had ended.
    Refused {
        job_id: String,
        fence: u64,
        why: RemoteRefusal,
    },
    /// The executor of the handlers let a ready task wait for this long. Something blocks it: use
    /// `spawn_blocking`, or [`Context::blocking`].
    Starved {
        lag: Duration,
    },
}

#[derive(thiserror::Error)]
pub enum WorkerError {
    #[error("{0}")]
    NodeAddress(#[from] AddressError),
    #[error("no node answers at {authority}: {error}; start one with `onward up`, or check the address")]
    Unreachable { authority: String, error: std::io::Error },
    #[error("{what} `{value}` cannot be used: 1 to 128 bytes without control characters")]
    NotAName { what: &'static str, value: String },
    #[error("this worker handles no kind; add one with `handle`")]
    NoHandler,
    #[error("this worker has no slots, and so would never do anything; give it at least one")]
    NoSlots,
    /// Another process has taken the same worker id, or the node has no room for it.
    #[error("the node does not take this worker: {0}")]
    Rejected(RemoteRefusal),
    #[error("the thread of the worker's session could not be started: {0}")]
    Thread(std::io::Error),
    #[error("the node did not take back what this worker held; it is handed out again when its lease is over")]
    Undelivered,
    #[error("the worker's session ended by a bug in it; the log says more")]
    Broken,
}

/// Shown as [`Display`](core::fmt::Display) does: a program whose `main` returns this error shows its debug form to its
/// user.
impl core::fmt::Debug for WorkerError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Display::fmt(self, f)
    }
}

impl Worker {
    /// A worker for the node at `url`, or for a cluster of which several are given with commas between them; one must
    /// answer. A token is taken from `ONWARD_TOKEN`.
    pub async fn connect(url: &str) -> Result<Self, WorkerError> {
        let mut place = NodeAddresses::at(url)?;
        if let Ok(token) = std::env::var("ONWARD_TOKEN") {
            place = place.with_token(&token);
        }
        for left in (0..place.round()).rev() {
            let next = place.next();
            match next.open().await {
                Ok(_) => break,
                Err(_) if left > 0 => place.leave(&next),
                Err(error) => return Err(WorkerError::Unreachable { authority: place.authorities(), error }),
            }
        }
        Ok(Self::at(place))
    }

    /// A worker for a node, or for a cluster of which any will do, that need not be there yet.
    pub fn at(place: impl Into<NodeAddresses>) -> Self {
        Self {
            place: place.into(),
            id: None,
            queues: vec!["default".into()],
            slots: 1,
            kinds: BTreeMap::new(),
            config: SessionConfig::default(),
            cancel_grace: Duration::from_secs(10),
            drain_grace: Duration::from_secs(30),
            stop_within: Duration::from_secs(30),
            watch: None,
        }
    }

    /// The name of the worker, over restarts. Two processes with one id replace each other.
    /// Default: the host's name and the process id.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// The number of attempts at a time. Default 1.
    pub fn slots(mut self, slots: u32) -> Self {
        self.slots = slots;
        self
    }

    /// The queues that work is taken from. Default: `default`.
    pub fn queues(mut self, queues: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.queues = queues.into_iter().map(Into::into).collect();
        self
    }

    /// A handler that takes JSON and gives JSON. An input that does not fit its type fails for good.
    pub fn handle<In, Out, Run, F>(self, kind: impl Into<String>, handler: F) -> Self
    where
        F: Fn(Context, In) -> Run + Send + Sync + 'static,
        Run: Future<Output = Result<Out, Failure>> + Send + 'static,
        In: DeserializeOwned + Send + 'static,
        Out: Serialize + Send + 'static,
    {
        let handler = Arc::new(handler);
        self.handle_bytes(kind, move |ctx: Context, payload: Bytes| {
            let handler = handler.clone();
            async move {
                let text: &[u8] = if payload.is_empty() { b"null" } else { &payload };
                let input = serde_json::from_slice(text)
                    .map_err(|error| Failure::permanent(format!("the payload does not fit this handler: {error}")))?;
                let output = handler(ctx, input).await?;
                serde_json::to_vec(&output)
                    .map(Bytes::from)
                    .map_err(|error| Failure::permanent(format!("the result cannot be written as JSON: {error}")))
            }
        })
    }

    /// A handler that takes the payload and gives the result as they are.
    pub fn handle_bytes<Run, F>(mut self, kind: impl Into<String>, handler: F) -> Self
    where
        F: Fn(Context, Bytes) -> Run + Send + Sync + 'static,
        Run: Future<Output = Result<Bytes, Failure>> + Send + 'static,
    {
        let handler: Handler = Arc::new(move |ctx: Context| {
            let payload = ctx.payload();
            Box::pin(handler(ctx, payload))
        });
        self.kinds.insert(kind.into(), Kind { handler, at_once: None });
        self
    }

    /// Gives the kind that was added last slots of its own, on a session of its own: at most `slots` of it at a time,
    /// and never fewer because of other kinds. The node shows it as a worker called `<id>.<kind>`.
    ///
    /// # Panics
    /// If there is no handler for the kind.
    pub fn at_most(mut self, kind: &str, slots: u32) -> Self {
        self.kinds.get_mut(kind).unwrap_or_else(|| panic!("no handler for `{kind}`; add it first")).at_once =
            Some(slots);
        self
    }

    /// The time that a handler has to stop once it is told to. Default 10 s.
    pub fn cancel_grace(mut self, grace: Duration) -> Self {
        self.cancel_grace = grace;
        self
    }

    /// The wait of a drain for running handlers before they are stopped and their jobs given back. Default 30 s, and
    /// never longer than [`Self::stop_within`] leaves after the grace of handlers that were told to stop.
    pub fn drain_grace(mut self, grace: Duration) -> Self {
        self.drain_grace = grace;
        self
    }

    /// The longest time from the signal to stop until the worker has ended, all graces included. Default 30 s, which
    /// is what Kubernetes waits for before it kills.
    pub fn stop_within(mut self, bound: Duration) -> Self {
        self.stop_within = bound;
        self
    }

    /// Lets handlers finish whose lease is lost. Their results are refused all the same.
    pub fn continue_when_lost(mut self) -> Self {
        self.config.on_lost = LostPolicy::Continue;
        self
    }

    /// The least time between two beats of an attempt on the wire. Default 1 s.
    pub fn beat_every(mut self, span: Duration) -> Self {
        self.config.beat_every = span;
        self
    }

    /// Calls this for whatever happens to the worker. From the session's thread: it must not block.
    pub fn on_notice(mut self, watch: impl Fn(Notice) + Send + Sync + 'static) -> Self {
        self.watch = Some(Arc::new(watch));
        self
    }

    /// Works until SIGINT or SIGTERM, then drains.
    pub async fn run(self) -> Result<(), WorkerError> {
        use tokio::signal::unix::{SignalKind, signal};
        let mut interrupt = signal(SignalKind::interrupt()).map_err(WorkerError::Thread)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(WorkerError::Thread)?;
        self.run_until(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        })
        .await
    }

    /// Works until `stop` is ready, then takes nothing more, waits for what runs, and gives back what does not end in
    /// time. If this is dropped, what runs is stopped and given back, behind its back.
    pub async fn run_until(self, stop: impl Future<Output = ()>) -> Result<(), WorkerError> {
        let (bound, cancel_grace) = (self.stop_within, self.cancel_grace);
        let drain_grace = drain_share(bound, self.drain_grace, cancel_grace);
        let (mut commands, mut ends) = (CommandSenders(Vec::new()), Vec::new());
        for lane in self.lanes()? {
            let (word, end) = lane.begin()?;
            commands.0.push(word);
            ends.push(end);
        }
        let mut over = core::pin::pin!(all_over(ends));
        tokio::select! {
            over = &mut over => return over,
            () = stop => commands.send_to_all(|| SessionCommand::Drain),
        }
        let stop_by = Instant::now() + bound;
        tokio::select! {
            over = &mut over => return over,
            () = sleep(drain_grace) => commands.send_to_all(|| SessionCommand::Abandon),
        }
        // Without a manager nobody answers, and nobody would wait for it: it hands out again what it does not hear of.
        let answered_by = stop_by.min(Instant::now() + cancel_grace + ANSWERED_WITHIN);
        timeout_at(answered_by, over).await.unwrap_or(Err(WorkerError::Undelivered))
    }

    fn lanes(self) -> Result<Vec<SessionLane>, WorkerError> {
        if self.kinds.is_empty() {
            return Err(WorkerError::NoHandler);
        }
        let id = self.id.clone().unwrap_or_else(default_id);
        let incarnation = random_id();
        let shared = |kinds: Vec<(String, Handler)>, id: String, slots: u32| -> Result<SessionLane, WorkerError> {
            if slots == 0 {
                return Err(WorkerError::NoSlots);
            }
            let name = |what: &'static str, value: &str| {
                Name::new(value).ok_or_else(|| WorkerError::NotAName { what, value: value.to_owned() })
            };
            let subscription = Subscription {
                queues: self.queues.iter().map(|queue| name("queue", queue)).collect::<Result<_, _>>()?,
                kinds: kinds.iter().map(|(kind, _)| name("kind", kind)).collect::<Result<_, _>>()?,
            };
            let worker =
                WorkerId::new(&*id).ok_or_else(|| WorkerError::NotAName { what: "worker id", value: id.clone() })?;
            let incarnation = Incarnation::new(&*incarnation).expect("hexadecimal digits are a name");
            Ok(SessionLane {
                identity: Identity { worker, incarnation, subscription, slots },
                handlers: kinds.into_iter().collect(),
                place: self.place.clone(),
                config: self.config.clone(),
                cancel_grace: self.cancel_grace,
                watch: self.watch.clone(),
            })
        };
        let (mut lanes, mut common) = (Vec::new(), Vec::new());
        for (kind, Kind { handler, at_once }) in &self.kinds {
            match at_once {
                Some(slots) => {
                    lanes.push(shared(vec![(kind.clone(), handler.clone())], format!("{id}.{kind}"), *slots)?);
                }
                None => common.push((kind.clone(), handler.clone())),
            }
        }
        if !common.is_empty() {
            lanes.push(shared(common, id, self.slots)?);
        }
        Ok(lanes)
    }
}

/// The time that running handlers may go on by themselves, if those that are then told to stop are to have their grace,
/// and the manager is to hear of all of it, within the bound.
fn drain_share(bound: Duration, drain_grace: Duration, cancel_grace: Duration) -> Duration {
    let to_tell = TOLD_WITHIN.min(bound / 10);
    drain_grace.min(bound.saturating_sub(cancel_grace + to_tell))
}

/// Senders to all sessions of a worker.
struct CommandSenders(Vec<UnboundedSender<SessionCommand>>);

impl CommandSenders {
    fn send_to_all(&self, what: fn() -> SessionCommand) {
        for word in &self.0 {
            // One that is over already needs no telling.
            let _ = word.send(what());
        }
    }
}

impl Drop for CommandSenders {
    fn drop(&mut self) {
        self.send_to_all(|| SessionCommand::Abandon);
    }
}

fn default_id() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let host: String = host.chars().filter(|c| !c.is_control()).take(100).collect();
    format!("{}-{}", if host.is_empty() { "worker" } else { &host }, std::process::id())
}

fn random_id() -> String {
    let mut bytes = [0u8; 8];
    match getrandom::fill(&mut bytes) {
        Ok(()) => format!("{:016x}", u64::from_ne_bytes(bytes)),
        // The clock differs between two lives, which is all that is asked of it.
        Err(_) => format!("{}-{}", std::process::id(), clock::mono().as_ms()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_main_returns_is_shown_in_words() {
        let error = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let error = WorkerError::Unreachable { authority: "127.0.0.1:7400".into(), error };
        let shown = format!("{:?}", Box::<dyn std::error::Error>::from(error));
        assert!(shown.starts_with("no node answers at 127.0.0.1:7400: ") && shown.contains("`onward up`"), "{shown}");
    }

    #[test]
    fn the_graces_of_a_stop_do_not_add_up_beyond_its_bound() {
        for (bound, drain_grace, cancel_grace, share) in
            [(30, 30, 10, 19), (30, 5, 10, 5), (30, 30, 60, 0), (0, 30, 10, 0), (100, 30, 10, 30), (5, 30, 0, 4)]
        {
            let of = Duration::from_secs;
            let given = drain_share(of(bound), of(drain_grace), of(cancel_grace));
            assert_eq!(given.as_secs(), share, "{bound} {drain_grace} {cancel_grace}");
            assert!(given + of(cancel_grace) <= of(bound) || given.is_zero());
        }
    }
}
