//! What this process holds, and until when, as far as it knows.
//!
//! SQS sets the time that is left of a lease to what it is told, also to less. So that an extension never shortens a
//! lease, its end is remembered here, and so is what was asked for and perhaps granted. Instants are counted from before
//! SQS was asked: a lease is over here no later than there, and what is over or settled here is not acknowledged any more,
//! because somebody else may have it.

use core::mem::{Discriminant, discriminant};
use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use onward_lease::mailbox::{End, MailboxError, Message, Receipt};
use tokio::time::Instant;

/// SQS lets nobody hold a message for longer than 12 h; we stop earlier, so that a handler is cancelled before it is
/// handed out again.
pub const LONGEST: Duration = Duration::from_secs(12 * 3_600 - 300);

/// The time after its end for which a lease is remembered as over.
const REMEMBERED: Duration = Duration::from_secs(3_600);
/// The number of holds at which the ones that ended long ago are looked for and dropped.
const SWEEP: usize = 1_024;

/// The number of settled receipts that are remembered, so that a repeat of one is answered the same.
const REMEMBERED_ENDS: usize = 4_096;

#[derive(Debug, Default)]
pub struct Holds {
    all: Mutex<HashMap<Arc<str>, OpenHandout>>,
    ended: Mutex<HandoutEnds>,
}

/// Hand-outs by how they ended here.
#[derive(Debug, Default)]
struct HandoutEnds {
    kinds: HashMap<Arc<str>, Discriminant<End>>,
    /// The oldest first.
    order: VecDeque<Arc<str>>,
}

#[derive(Clone, Debug)]
pub struct OpenHandout {
    since: Instant,
    until: Instant,
    /// The end of an extension that may have been granted: its answer did not come.
    perhaps: Instant,
    pub message: Message,
    pub delivery: u32,
}

/// The answer to the question how to extend a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extension {
    /// So much is left: it is enough, or no more can be had.
    Enough(Duration),
    /// Time to ask for, from now on.
    Ask(Duration),
}

impl Holds {
    pub fn add(&self, receipt: &Receipt, since: Instant, lease: Duration, message: Message, delivery: u32) {
        let mut all = self.all();
        if all.len() >= SWEEP && all.len().is_multiple_of(SWEEP) {
            let now = Instant::now();
            all.retain(|_, hold| now < hold.until + REMEMBERED);
        }
        let until = since + lease;
        all.insert(receipt.token().into(), OpenHandout { since, until, perhaps: until, message, delivery });
    }

    /// The hold of this receipt. One that another process got is unknown here, and SQS decides about it.
    pub fn find(&self, receipt: &Receipt, now: Instant) -> Result<Option<OpenHandout>, MailboxError> {
        if self.ended().kinds.contains_key(receipt.token()) {
            return Err(MailboxError::Stale);
        }
        match self.all().get(receipt.token()) {
            Some(hold) if hold.until <= now => Err(MailboxError::Stale),
            found => Ok(found.cloned()),
        }
    }

    /// The way to make a lease last at least so long from now on.
    pub fn extension(&self, receipt: &Receipt, now: Instant, by: Duration) -> Result<Extension, MailboxError> {
        let Some(hold) = self.find(receipt, now)? else { return Ok(Extension::Ask(whole_seconds(by.min(LONGEST)))) };
        let end = (now + by.min(LONGEST)).max(hold.perhaps).min(hold.since + LONGEST);
        if end <= hold.until {
            return Ok(Extension::Enough(hold.until - now));
        }
        Ok(Extension::Ask(whole_seconds(end - now)))
    }

    /// An extension that was granted, or whose answer did not come.
    pub fn extended(&self, receipt: &Receipt, now: Instant, by: Duration, is_granted: bool) {
        if let Some(hold) = self.all().get_mut(receipt.token()) {
            hold.perhaps = hold.perhaps.max(now + by);
            hold.until = if is_granted { hold.until.max(now + by) } else { hold.until };
        }
    }

    /// Forgets the hold, and remembers how it ended.
    pub fn settled(&self, receipt: &Receipt, end: &End) {
        self.all().remove(receipt.token());
        let (token, mut ended) = (Arc::<str>::from(receipt.token()), self.ended());
        if ended.kinds.insert(token.clone(), discriminant(end)).is_none() {
            ended.order.push_back(token);
        }
        if ended.order.len() > REMEMBERED_ENDS
            && let Some(oldest) = ended.order.pop_front()
        {
            ended.kinds.remove(&oldest);
        }
    }

    /// Whether this is how the hand-out ended, in whatever words.
    pub fn was_settled(&self, receipt: &Receipt, end: &End) -> bool {
        self.ended().kinds.get(receipt.token()) == Some(&discriminant(end))
    }

    fn ended(&self) -> MutexGuard<'_, HandoutEnds> {
        self.ended.lock().expect("nothing panics while it is held")
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Arc<str>, OpenHandout>> {
        self.all.lock().expect("nothing panics while it is held")
    }
}

/// The wait of a message for its next hand-out, which SQS counts as a part of this hold. Of one that another process
/// got it is not known since when it is held.
pub fn delay(hold: Option<&OpenHandout>, now: Instant, after: Duration) -> Duration {
    let longest = hold.map_or(LONGEST, |hold| (hold.since + LONGEST).saturating_duration_since(now));
    whole_seconds(after.min(longest))
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
        holds.extended(&receipt, since + MINUTE, LONGEST - MINUTE, true);
        assert_eq!(extension(20 * MINUTE, LONGEST), Ok(Extension::Enough(LONGEST - 20 * MINUTE)));
        let hold = holds.find(&receipt, since + 20 * MINUTE).unwrap().unwrap();
        let delay = |after, by| delay(Some(&hold), since + after, by);
        assert_eq!(delay(20 * MINUTE, MINUTE), MINUTE);
        assert_eq!(delay(20 * MINUTE, Duration::from_millis(1)), Duration::from_secs(1));
        assert_eq!(delay(20 * MINUTE, LONGEST), LONGEST - 20 * MINUTE);
        assert_eq!(delay(LONGEST + MINUTE, MINUTE), Duration::ZERO);
        assert_eq!(super::delay(None, since, 2 * LONGEST), LONGEST);
    }

    #[test]
    fn what_was_perhaps_granted_is_not_shortened_and_not_relied_on() {
        let (holds, receipt) = (Holds::default(), Receipt::new(MessageId::new("m"), "r"));
        let since = Instant::now();
        holds.add(&receipt, since, 10 * MINUTE, Message::new("a"), 1);
        holds.extended(&receipt, since + MINUTE, 30 * MINUTE, false);
        let extension = |after, by| holds.extension(&receipt, since + after, by);
        assert_eq!(extension(2 * MINUTE, MINUTE), Ok(Extension::Ask(29 * MINUTE)));
        assert_eq!(extension(2 * MINUTE, 60 * MINUTE), Ok(Extension::Ask(60 * MINUTE)));
        assert_eq!(extension(10 * MINUTE, MINUTE), Err(MailboxError::Stale));
    }

    /// Another holder may have the message by now, and would lose it.
    #[test]
    fn a_receipt_that_was_settled_is_good_for_the_same_end_only() {
        let (holds, now) = (Holds::default(), Instant::now());
        let (retry, later) = (End::Retry { after: MINUTE }, End::Retry { after: 2 * MINUTE });
        for (token, end, same, other) in [("a", &retry, &later, &End::ACK), ("b", &End::ACK, &End::ACK, &retry)] {
            let receipt = Receipt::new(MessageId::new("m"), token);
            holds.add(&receipt, now, MINUTE, Message::new("a"), 1);
            holds.settled(&receipt, end);
            assert!(holds.was_settled(&receipt, same) && !holds.was_settled(&receipt, other), "{end:?}");
            assert_eq!(holds.extension(&receipt, now, MINUTE), Err(MailboxError::Stale));
        }
        for number in 0..REMEMBERED_ENDS {
            holds.settled(&Receipt::new(MessageId::new("m"), number.to_string()), &End::ACK);
        }
        assert_eq!(holds.ended().kinds.len(), REMEMBERED_ENDS, "the oldest are forgotten");
    }
}
