//! A mailbox whose type is forgotten, for those who have several kinds at a time.

use core::future::Future;
use core::pin::Pin;
use core::time::Duration;

use super::{End, Mailbox, MailboxError, Promises, Receipt, Received, Want};

type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The calls that holders of messages make.
pub(crate) trait ErasedMailbox: Send + Sync + 'static {
    fn promises(&self) -> Promises;
    fn identity(&self) -> String;
    fn receive(&self, want: Want) -> Answer<'_, Result<Vec<Received>, MailboxError>>;
    fn extend(&self, batch: Vec<(Receipt, Duration)>) -> Answer<'_, Vec<Result<Duration, MailboxError>>>;
    fn settle(&self, receipt: Receipt, end: End) -> Answer<'_, Result<(), MailboxError>>;
}

impl<M: Mailbox> ErasedMailbox for M {
    fn promises(&self) -> Promises {
        Mailbox::promises(self)
    }

    fn identity(&self) -> String {
        Mailbox::identity(self)
    }

    fn receive(&self, want: Want) -> Answer<'_, Result<Vec<Received>, MailboxError>> {
        Box::pin(Mailbox::receive(self, want))
    }

    fn extend(&self, batch: Vec<(Receipt, Duration)>) -> Answer<'_, Vec<Result<Duration, MailboxError>>> {
        Box::pin(Mailbox::extend(self, batch))
    }

    fn settle(&self, receipt: Receipt, end: End) -> Answer<'_, Result<(), MailboxError>> {
        Box::pin(async move {
            let answers = Mailbox::settle(self, vec![(receipt, end)]).await;
            answers.into_iter().next().expect("a batch of one has one answer")
        })
    }
}
