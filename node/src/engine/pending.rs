//! Calls in hand, and for how long somebody waits for an answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use onward_core::effect::Answer;
use onward_core::ids::RequestId;
use onward_core::input::Input;
use tokio::sync::oneshot;

use super::{Command, EngineRefusal, EngineState};

/// A place among the calls in hand.
pub(super) struct InFlightPermit(pub(super) Arc<EngineState>);

impl Drop for InFlightPermit {
    fn drop(&mut self) {
        self.0.in_hand.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A call that waits for its answer.
pub(super) struct Pending {
    pub(super) request: RequestId,
    pub(super) answer: oneshot::Receiver<Result<Answer, EngineRefusal>>,
    pub(super) permit: InFlightPermit,
    pub(super) answered: bool,
}

impl Pending {
    pub(super) async fn answer(mut self) -> Result<(Answer, RequestId), EngineRefusal> {
        let answer = self.permit.0.wait_for(&mut self.answer).await?;
        self.answered = true;
        answer.map(|answer| (answer, self.request))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.answered {
            self.permit.0.send(Command::Input(Input::CallGone { request: self.request, delivered: false }));
        }
    }
}

impl EngineState {
    /// The answer that is sent on `answer`. Nobody waits longer than `seat_ttl` for a log that does not return: what
    /// was asked is then given up, and may be carried out all the same.
    pub(super) async fn wait_for<T>(&self, answer: &mut oneshot::Receiver<T>) -> Result<T, EngineRefusal> {
        let span = self.rules.seat_ttl;
        self.wait_in_time(answer).await.unwrap_or_else(|| {
            Err(EngineRefusal::Unavailable(format!("its storage has not answered for {span:?}; {NOT_KNOWN}")))
        })
    }

    /// The same; none if it is given up.
    pub(super) async fn wait_in_time<T>(&self, answer: &mut oneshot::Receiver<T>) -> Option<Result<T, EngineRefusal>> {
        // The machine refuses in time what it has not begun, and knows that nothing was done.
        // A machine that hangs itself refuses nothing, so a time is needed here in any case. Where it is too short, the answer
        // says less than is known, and nothing that is wrong.
        const MACHINE_FIRST: Duration = Duration::from_millis(200);
        let patience = self.rules.seat_ttl + MACHINE_FIRST;
        let mut left = patience;
        while !left.is_zero() {
            match tokio::time::timeout(left, &mut *answer).await {
                Ok(answer) => return Some(answer.map_err(|_| self.not_known())),
                Err(_) => left = patience.saturating_sub(self.vitals.stalled_for()),
            }
        }
        None
    }

    /// The refusal of a caller that waited for a machine which was dropped.
    fn not_known(&self) -> EngineRefusal {
        match self.unavailable() {
            EngineRefusal::Unavailable(why) | EngineRefusal::NotBegun(why) => {
                EngineRefusal::Unavailable(format!("{why}; {NOT_KNOWN}"))
            }
            refused => refused,
        }
    }
}

const NOT_KNOWN: &str = "whether this was carried out is not known, and repeating it with the same idempotency key or \
                         request id does nothing twice";
