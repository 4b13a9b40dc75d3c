//! A stream of submissions: each is begun as soon as it is read, and they are answered in their order.
//!
//! Nothing is handed to a task of its own: whoever writes the answers also reads the requests, so that a submission is
//! passed from thread to thread no more often than it must be.

use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::collections::VecDeque;

use onward_core::refusal::RefusalKind;
use onward_proto::v1::{SubmitAnswer, SubmitRequest};
use prost::Message as _;
use tokio::sync::watch;
use tokio_stream::Stream;
use tonic::{Code, Status, Streaming};

use super::status;
use super::unanswered::AnswerBacklog;
use crate::api::access::Access;

type Answering = Pin<Box<dyn Future<Output = SubmitAnswer> + Send>>;

pub(super) struct Submissions {
    /// None once no more is read.
    requests: Option<Streaming<SubmitRequest>>,
    answer: Box<dyn Fn(SubmitRequest) -> Answering + Send>,
    /// Submissions in the order in which they came.
    begun: VecDeque<PendingAnswer>,
    unanswered: AnswerBacklog,
    /// Nothing more is read once it has resolved, and this is why.
    closing: Pin<Box<dyn Future<Output = Status> + Send>>,
    /// The status that ends the stream once all that was read is answered.
    end: Option<Status>,
}

enum PendingAnswer {
    Waits(Answering),
    IsAnswered(SubmitAnswer),
}

impl Submissions {
    pub(super) fn new<A>(
        requests: Streaming<SubmitRequest>,
        answer: impl Fn(SubmitRequest) -> A + Send + 'static,
        access: Access,
        mut draining: watch::Receiver<bool>,
    ) -> Self
    where
        A: Future<Output = SubmitAnswer> + Send + 'static,
    {
        let closing = async move {
            tokio::select! {
                biased;
                problem = access.revoked() => status::problem(&problem),
                // An error means that the node is gone, which is the end of all waiting too.
                _ = draining.wait_for(|draining| *draining) => {
                    let text = "this node drains; submit what has no answer to another, or again later";
                    status::of(Code::Unavailable, RefusalKind::NoLeader.code(), text)
                }
            }
        };
        Self {
            requests: Some(requests),
            answer: Box::new(move |request| Box::pin(answer(request))),
            begun: VecDeque::new(),
            unanswered: AnswerBacklog::default(),
            closing: Box::pin(closing),
            end: None,
        }
    }

    /// Begins with everything that has come, as long as there is room for it.
    fn read(&mut self, cx: &mut Context<'_>) {
        while let Some(requests) = &mut self.requests
            && self.unanswered.has_room()
        {
            if let Poll::Ready(end) = self.closing.as_mut().poll(cx) {
                self.end = Some(end);
                self.requests = None;
                return;
            }
            match Pin::new(requests).poll_next(cx) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok(request))) => {
                    self.unanswered.add(1, request.encoded_len());
                    let mut answering = (self.answer)(request);
                    // The call asks the machine when it is polled, so that must not wait for those before it.
                    self.begun.push_back(match answering.as_mut().poll(cx) {
                        Poll::Ready(answer) => PendingAnswer::IsAnswered(answer),
                        Poll::Pending => PendingAnswer::Waits(answering),
                    });
                }
                Poll::Ready(Some(Err(error))) => {
                    self.end = Some(status::undecodable(error));
                    self.requests = None;
                }
                Poll::Ready(None) => self.requests = None,
            }
        }
    }
}

impl Stream for Submissions {
    type Item = Result<SubmitAnswer, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        this.read(cx);
        let answer = match this.begun.front_mut() {
            Some(PendingAnswer::IsAnswered(answer)) => core::mem::take(answer),
            Some(PendingAnswer::Waits(answering)) => ready!(answering.as_mut().poll(cx)),
            None if this.requests.is_none() => return Poll::Ready(this.end.take().map(Err)),
            None => return Poll::Pending,
        };
        this.begun.pop_front();
        this.unanswered.answered();
        Poll::Ready(Some(Ok(answer)))
    }
}
