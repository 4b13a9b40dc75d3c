//! A hand-over of the seat, from the caller that asks for it to the end of the term.
//!
//! Everything that was decided is durable and answered first; then the term ends for it, and the storage is told who may
//! take the seat next. If the storage refuses that, this node begins another term.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::leader::LeaderView;
use super::{HandoverError, Heir, Heirs, Leadership};

/// The wait for a hand-over: everything that was decided becomes durable first.
const WITHIN: Duration = Duration::from_secs(10);

/// A hand-over that was asked for: its heir, and the caller that waits for it.
pub(crate) struct Handover {
    heir: Heir,
    reply: oneshot::Sender<Result<(), HandoverError>>,
}

/// Finds the node of this name, or the best one, and asks the machine's thread to hand the seat over to it. Gives the name
/// of the node that leads next.
pub(crate) async fn hand_over(
    view: LeaderView,
    heirs: Option<Heirs>,
    to: Option<&str>,
    send: impl FnOnce(Handover),
) -> Result<String, HandoverError> {
    let find = match view {
        LeaderView::Leading { .. } => heirs.ok_or(HandoverError::Alone)?,
        LeaderView::Following { leader, .. } => return Err(HandoverError::NotLeading(leader)),
        LeaderView::Starting | LeaderView::CutOff { .. } => return Err(HandoverError::NotLeading(None)),
    };
    // The search asks the storage, and waits for the answer.
    let to = to.map(str::to_owned);
    let heir = spawn_blocking(move || find(to.as_deref())).await.expect("looking for it does not panic")?;
    let name = heir.leader.name.clone();
    let (reply, answer) = oneshot::channel();
    send(Handover { heir, reply });
    match timeout(WITHIN, answer).await {
        Ok(Ok(done)) => done.map(|()| name),
        Ok(Err(_)) | Err(_) => Err(HandoverError::TermOver),
    }
}

/// The hand-over that the term of a machine ends for, if it does.
#[derive(Default)]
pub(crate) struct HandoverUnderWay(Mutex<Option<Handover>>);

impl HandoverUnderWay {
    /// Whether the term is to end for this one. Not if it ends already.
    pub(crate) fn begin(&self, handover: Handover, is_ending: bool) -> bool {
        let mut asked = self.asked();
        if asked.is_some() || is_ending {
            answer(handover.reply, Err(HandoverError::UnderWay));
            return false;
        }
        *asked = Some(handover);
        true
    }

    /// The term ended otherwise. Whoever asked is told, and nothing is in the way of whoever asks next.
    pub(crate) fn give_up(&self) {
        if let Some(Handover { reply, .. }) = self.asked().take() {
            answer(reply, Err(HandoverError::TermOver));
        }
    }

    /// Whether the seat of the term that has just ended now is another's. If not, this node takes it again.
    pub(crate) fn carry_out(
        &self,
        leadership: &mut dyn Leadership,
        view: LeaderView,
        publish: impl FnOnce(LeaderView),
    ) -> bool {
        let Some(Handover { heir, reply }) = self.asked().take() else { return false };
        let LeaderView::Leading { term } = view else {
            answer(reply, Err(HandoverError::TermOver));
            return false;
        };
        let done = leadership.hand_over(term, &heir);
        if let Err(error) = &done {
            tracing::warn!(%error, "the seat was not handed over");
        } else {
            publish(LeaderView::Following { term, leader: Some(heir.leader) });
        }
        let is_done = done.is_ok();
        answer(reply, done);
        is_done
    }

    fn asked(&self) -> MutexGuard<'_, Option<Handover>> {
        self.0.lock().expect("no thread panics while it holds this")
    }
}

fn answer(reply: oneshot::Sender<Result<(), HandoverError>>, done: Result<(), HandoverError>) {
    // Whoever asked may be gone, which is fine.
    let _ = reply.send(done);
}
