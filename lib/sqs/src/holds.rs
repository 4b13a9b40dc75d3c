//! What this process holds, and until when, as far as it knows.
//!
//! SQS sets the time that is left of a lease to what it is told, also to less. So that an extension never shortens a
//! lease, its end is remembered here. Instants are counted from before SQS was asked: a lease is over here no later than
//! there, and what is over here is not acknowledged any more, because somebody else may have it.

use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use onward_lease::mailbox::{MailboxError, Message, Receipt};
use tokio::time::Instant;

/// SQS lets nobody hold a message for longer than 12 h; we stop earlier, so that a handler is cancelled before it is
/// handed out again.
pub const LONGEST: Duration = Duration::from_secs(12 * 3_600 - 300);

/// For how long after its end a lease is remembered as over.
const REMEMBERED: Duration = Duration::from_secs(3_600);
/// How many are looked through at most before the ones that ended long ago are dropped.
const SWEEP: usize = 1_024;

/// How many acknowledged receipts are remembered, so that who repeats one is answered the same.
const REMEMBERED_ACKS: usize = 4_096;

#[derive(Debug, Default)]
pub struct Holds {
    all: Mutex<HashMap<Arc<str>, Hold>>,
    acked: Mutex<VecDeque<Arc<str>>>,
}

#[derive(Clone, Debug)]
pub struct Hold {
    since: Instant,
    until: Instant,
    pub message: Message,
    pub delivery: u32,
}

/// What an extension comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extension {
    /// So much is left, and no more is needed or to be had.
    Enough(Duration),
    /// To be asked for, from now on.
    Ask(Duration),
}

impl Holds {
    pub fn add(&self, receipt: &Receipt, since: Instant, lease: Duration, message: Message, delivery: u32) {
        let mut all = self.all();
        if all.len() >= SWEEP && all.len().is_multiple_of(SWEEP) {
            let now = Instant::now();
            all.retain(|_, hold| now < hold.until + REMEMBERED);
        }
        all.insert(receipt.token().into(), Hold { since, until: since + lease, message, delivery });
    }

    /// The hold of this receipt. One that another process got is unknown here, and SQS decides about it.
    pub fn find(&self, receipt: &Receipt, now: Instant) -> Result<Option<Hold>, MailboxError> {
        match self.all().get(receipt.token()) {
            Some(hold) if hold.until <= now => Err(MailboxError::Stale),
            found => Ok(found.cloned()),
        }
    }

    /// How to make a lease last at least so long from now on.
    pub fn extension(&self, receipt: &Receipt, now: Instant, by: Duration) -> Result<Extension, MailboxError> {
        let Some(hold) = self.find(receipt, now)? else { return Ok(Extension::Ask(whole_seconds(by.min(LONGEST)))) };
        let end = (now + by.min(LONGEST)).min(hold.since + LONGEST);
        if end <= hold.until {
            return Ok(Extension::Enough(hold.until - now));
        }
        Ok(Extension::Ask(whole_seconds(end - now)))
    }

    pub fn extended(&self, receipt: &Receipt, now: Instant, by: Duration) {
        if let Some(hold) = self.all().get_mut(receipt.token()) {
            hold.until = hold.until.max(now + by);
        }
    }

    /// Forgets the hold, and remembers that it was acknowledged.
    pub fn settled(&self, receipt: &Receipt, is_ack: bool) {
        self.all().remove(receipt.token());
        if !is_ack || self.was_acked(receipt) {
            return;
        }
        let mut acked = self.acked.lock().expect("nothing panics while it is held");
        acked.push_back(receipt.token().into());
        if acked.len() > REMEMBERED_ACKS {
            acked.pop_front();
        }
    }

    pub fn was_acked(&self, receipt: &Receipt) -> bool {
        let acked = self.acked.lock().expect("nothing panics while it is held");
        acked.iter().rev().any(|token| **token == *receipt.token())
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Arc<str>, Hold>> {
        self.all.lock().expect("nothing panics while it is held")
    }
}

/// SQS counts in whole seconds: rounded up, so that a lease is never shorter than was asked for.
pub fn whole_seconds(span: Duration) -> Duration {
    Duration::from_secs(span.as_secs() + u64::from(span.subsec_nanos() > 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use onward_lease::mailbox::MessageId;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn an_extension_never_shrinks_and_never_passes_the_longest_hold() {
        let holds = Holds::default();
        let receipt = Receipt::new(MessageId::new("m"), "r");
        let since = Instant::now();
        holds.add(&receipt, since, 10 * MINUTE, Message::new("a"), 1);
        let extension = |after, by| holds.extension(&receipt, since + after, by);
        assert_eq!(extension(MINUTE, MINUTE), Ok(Extension::Enough(9 * MINUTE)));
        assert_eq!(extension(MINUTE, 20 * MINUTE), Ok(Extension::Ask(20 * MINUTE)));
        assert_eq!(extension(MINUTE, Duration::from_millis(600_500)), Ok(Extension::Ask(Duration::from_secs(601))));
        assert_eq!(extension(MINUTE, 2 * LONGEST), Ok(Extension::Ask(LONGEST - MINUTE)));
        assert_eq!(extension(10 * MINUTE, MINUTE), Err(MailboxError::Stale));
        holds.extended(&receipt, since + MINUTE, LONGEST - MINUTE);
        assert_eq!(extension(20 * MINUTE, LONGEST), Ok(Extension::Enough(LONGEST - 20 * MINUTE)));
        holds.settled(&receipt, true);
        assert!(holds.was_acked(&receipt));
        assert_eq!(extension(20 * MINUTE, MINUTE), Ok(Extension::Ask(MINUTE)));
    }
}
