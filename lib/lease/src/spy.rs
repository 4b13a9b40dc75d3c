//! A mailbox for tests: the one in memory, which writes down its calls, and fails when it is told to.

use core::time::Duration;
use std::sync::{Arc, Mutex};

use tokio::time::{Instant, sleep};

use crate::delivery::Delivery;
use crate::mailbox::{
    ChangeCertainty, Counting, DeadLetter, Depth, End, Mailbox, MailboxError, Memory, Message, MessageId, Promises,
    Receipt, Received, Want,
};

#[derive(Clone)]
pub(crate) struct Spy {
    pub(crate) inner: Memory,
    state: Arc<Mutex<State>>,
}

struct State {
    began: Instant,
    /// The instant of each call to extend, and the number of leases it was for.
    extends: Vec<(Duration, usize)>,
    wants: Vec<usize>,
    settles: u32,
    failing: Option<MailboxError>,
    receive_fails: Option<MailboxError>,
    settle_fails: Option<MailboxError>,
    extend_takes: Duration,
    receive_takes: Duration,
    cut_next: bool,
    unheard: Option<Unheard>,
    counting: Counting,
}

/// A time in which no answer to a settlement comes back; the settlement is done all the same, or not.
#[derive(Clone, Copy)]
struct Unheard {
    until: Instant,
    is_done: bool,
}

impl Spy {
    pub(crate) fn on(inner: Memory) -> Self {
        let state = State {
            began: Instant::now(),
            extends: Vec::new(),
            wants: Vec::new(),
            settles: 0,
            failing: None,
            receive_fails: None,
            settle_fails: None,
            extend_takes: Duration::ZERO,
            receive_takes: Duration::ZERO,
            cut_next: false,
            unheard: None,
            counting: Counting::Attempts,
        };
        Self { inner, state: Arc::new(Mutex::new(state)) }
    }

    pub(crate) fn new() -> Self {
        Self::on(Memory::new())
    }

    /// Releases count, as with most brokers.
    pub(crate) fn counting_deliveries(self) -> Self {
        self.state.lock().unwrap().counting = Counting::Deliveries;
        self
    }

    /// Every extension is answered so from now on.
    pub(crate) fn fail_extensions(&self, error: Option<MailboxError>) {
        self.state.lock().unwrap().failing = error;
    }

    /// Nothing can be received from now on.
    pub(crate) fn fail_receives(&self, error: Option<MailboxError>) {
        self.state.lock().unwrap().receive_fails = error;
    }

    /// Nothing can be settled from now on.
    pub(crate) fn fail_settlements(&self, error: Option<MailboxError>) {
        self.state.lock().unwrap().settle_fails = error;
    }

    pub(crate) fn unavailable() -> MailboxError {
        MailboxError::Unavailable { why: "an outage".into(), changed: ChangeCertainty::Unknown }
    }

    pub(crate) fn slow_extensions(&self, by: Duration) {
        self.state.lock().unwrap().extend_takes = by;
    }

    /// Hand-outs arrive so much later.
    pub(crate) fn slow_arrivals(&self, by: Duration) {
        self.state.lock().unwrap().receive_takes = by;
    }

    /// Settlements are not answered for so long, whether they are done or not.
    pub(crate) fn lose_answers(&self, span: Duration, is_done: bool) {
        self.state.lock().unwrap().unheard = Some(Unheard { until: Instant::now() + span, is_done });
    }

    /// The next acknowledgement is cut after its reply was sent.
    pub(crate) fn cut_next_ack(&self) {
        self.state.lock().unwrap().cut_next = true;
    }

    /// The instant of each call to extend, in seconds.
    pub(crate) fn extends_at(&self) -> Vec<u64> {
        self.state.lock().unwrap().extends.iter().map(|(at, _)| at.as_secs()).collect()
    }

    /// The number of leases in each call to extend.
    pub(crate) fn extend_batches(&self) -> Vec<usize> {
        self.state.lock().unwrap().extends.iter().map(|(_, count)| *count).collect()
    }

    /// The number of calls to settle.
    pub(crate) fn settles(&self) -> u32 {
        self.state.lock().unwrap().settles
    }

    pub(crate) fn extended(&self) -> usize {
        self.state.lock().unwrap().extends.iter().map(|(_, count)| count).sum()
    }

    pub(crate) fn wants(&self) -> Vec<usize> {
        self.state.lock().unwrap().wants.clone()
    }

    pub(crate) async fn fill(&self, count: usize) {
        let batch = (0..count).map(|number| Message::new(number.to_string())).collect();
        for sent in self.inner.send(batch).await {
            sent.unwrap();
        }
    }

    /// Hands out a message under a lease that begins now.
    pub(crate) async fn deliver(self: &Arc<Self>, lease: Duration) -> Delivery {
        self.deliver_of_age(lease, Some(Instant::now())).await
    }

    pub(crate) async fn deliver_of_age(self: &Arc<Self>, lease: Duration, asked_at: Option<Instant>) -> Delivery {
        self.fill(1).await;
        let want = Want { max: 1, lease, wait: Duration::ZERO };
        Delivery::new(self.clone(), self.inner.receive(want).await.unwrap().remove(0), asked_at)
    }
}

impl Mailbox for Spy {
    fn promises(&self) -> Promises {
        Promises { counting: self.state.lock().unwrap().counting, ..self.inner.promises() }
    }

    async fn send(&self, batch: Vec<Message>) -> Vec<Result<MessageId, MailboxError>> {
        self.inner.send(batch).await
    }

    async fn receive(&self, want: Want) -> Result<Vec<Received>, MailboxError> {
        let takes = {
            let mut state = self.state.lock().unwrap();
            state.wants.push(want.max);
            assert!(state.wants.len() < 100_000, "asked without end");
            if let Some(error) = &state.receive_fails {
                return Err(error.clone());
            }
            state.receive_takes
        };
        let received = self.inner.receive(want).await;
        sleep(takes).await;
        received
    }

    async fn extend(&self, batch: Vec<(Receipt, Duration)>) -> Vec<Result<Duration, MailboxError>> {
        let (failing, takes) = {
            let mut state = self.state.lock().unwrap();
            let at = state.began.elapsed();
            state.extends.push((at, batch.len()));
            (state.failing.clone(), state.extend_takes)
        };
        sleep(takes).await;
        match failing {
            Some(error) => batch.iter().map(|_| Err(error.clone())).collect(),
            None => self.inner.extend(batch).await,
        }
    }

    async fn settle(&self, batch: Vec<(Receipt, End)>) -> Vec<Result<(), MailboxError>> {
        let (cut, counting, unheard) = {
            let mut state = self.state.lock().unwrap();
            state.settles += 1;
            if let Some(error) = &state.settle_fails {
                return batch.iter().map(|_| Err(error.clone())).collect();
            }
            (core::mem::take(&mut state.cut_next), state.counting, state.unheard)
        };
        let unheard = unheard.filter(|unheard| Instant::now() < unheard.until);
        if unheard.is_some_and(|unheard| !unheard.is_done) {
            return batch.iter().map(|_| Err(Self::unavailable())).collect();
        }
        let mut answers = Vec::new();
        for (receipt, end) in batch {
            let end = match end {
                End::Ack { reply: Some(reply) } if cut => {
                    self.inner.sibling(reply.to).send(vec![reply.message]).await;
                    answers.push(Err(MailboxError::Cut { done: "the reply was sent", why: "the line was cut".into() }));
                    continue;
                }
                End::Release { after } if counting == Counting::Deliveries => End::Retry { after },
                end => end,
            };
            let answer = self.inner.settle(vec![(receipt, end)]).await.remove(0);
            answers.push(if unheard.is_some() { Err(Self::unavailable()) } else { answer });
        }
        answers
    }

    async fn depth(&self) -> Result<Depth, MailboxError> {
        self.inner.depth().await
    }

    async fn dead_letters(&self, max: usize) -> Result<Vec<DeadLetter>, MailboxError> {
        self.inner.dead_letters(max).await
    }

    async fn replay(&self, max: usize) -> Result<usize, MailboxError> {
        self.inner.replay(max).await
    }
}
