//! One session with its slots, from its start to its end.

use core::time::Duration;
use std::collections::BTreeMap;

use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::supervise::Starter;
use super::{Handler, Notice, Watch, WorkerError};
use crate::address::NodeAddresses;
use crate::clock;
use crate::link::{LinkEvent, SessionCommand, SessionEnd, SessionLink};
use crate::machine::{Identity, SessionConfig, SessionMachine};

/// A session, with the kinds that share its slots.
pub(super) struct SessionLane {
    pub(super) identity: Identity,
    pub(super) handlers: BTreeMap<String, Handler>,
    pub(super) place: NodeAddresses,
    pub(super) config: SessionConfig,
    pub(super) cancel_grace: Duration,
    pub(super) watch: Option<Watch>,
}

pub(super) type LaneEnding = oneshot::Receiver<std::io::Result<SessionEnd>>;

impl SessionLane {
    pub(super) fn begin(self) -> Result<(UnboundedSender<SessionCommand>, LaneEnding), WorkerError> {
        let (commands_in, commands) = unbounded_channel();
        let executor = Handle::current();
        let starter = Starter {
            handlers: self.handlers,
            executor: executor.clone(),
            commands: commands_in.clone(),
            cancel_grace: self.cancel_grace,
        };
        let watch = self.watch;
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).map_err(|error| WorkerError::Thread(std::io::Error::other(error)))?;
        let link = SessionLink {
            machine: SessionMachine::new(self.identity, self.config, u64::from_ne_bytes(seed), clock::mono()),
            place: self.place,
            commands,
            commands_in: commands_in.clone(),
            executor,
            start: Box::new(move |context| starter.start(context)),
            on_event: Box::new(move |event| report(watch.as_ref(), event)),
        };
        let (ended, end) = oneshot::channel();
        std::thread::Builder::new()
            .name("onward-session".into())
            // If nobody waits for it any more, the worker was dropped.
            .spawn(move || drop(ended.send(link.run())))
            .map_err(WorkerError::Thread)?;
        Ok((commands_in, end))
    }
}

pub(super) async fn all_over(ends: Vec<LaneEnding>) -> Result<(), WorkerError> {
    let mut result = Ok(());
    for end in ends {
        let over = match end.await {
            Ok(Ok(SessionEnd::Drained)) => Ok(()),
            Ok(Ok(SessionEnd::Rejected(refused))) => Err(WorkerError::Rejected(refused)),
            Ok(Err(error)) => Err(WorkerError::Thread(error)),
            Err(_) => Err(WorkerError::Broken),
        };
        result = result.and(over);
    }
    result
}

fn report(watch: Option<&Watch>, event: LinkEvent) {
    let notice = match event {
        LinkEvent::Connected => Notice::Connected,
        LinkEvent::Disconnected(why) => Notice::Disconnected { why },
        LinkEvent::Settled { claim, refused: None } => {
            Notice::Settled { job_id: claim.job.to_string(), fence: claim.fence.get() }
        }
        LinkEvent::Settled { claim, refused: Some(why) } => {
            Notice::Refused { job_id: claim.job.to_string(), fence: claim.fence.get(), why }
        }
        LinkEvent::Starved(lag) => Notice::Starved { lag },
    };
    match &notice {
        Notice::Connected => tracing::info!("connected to the manager"),
        Notice::Disconnected { why } => tracing::warn!(%why, "no session with the manager; trying again"),
        Notice::Settled { job_id, .. } => tracing::debug!(%job_id, "outcome accepted"),
        Notice::Refused { job_id, why, .. } => tracing::warn!(%job_id, %why, "outcome refused"),
        Notice::Starved { lag } => {
            tracing::warn!(?lag, "the executor of the handlers is blocked; if that lasts, nothing more is taken")
        }
    }
    if let Some(watch) = watch {
        watch(notice);
    }
}
