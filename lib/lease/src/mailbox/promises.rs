//! Promises that mailboxes declare where they differ.

use core::time::Duration;

/// The behaviour of a mailbox where mailboxes differ. The conformance suite shows that it is so.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Promises {
    pub stale_ack: StaleAck,
    pub repeated_ack: RepeatedEnd,
    pub reply_with_ack: OneStep,
    pub dead_letter: OneStep,
    pub lease: LeaseLength,
    /// The longest time from a hand-out to the end of its lease, however often it is extended.
    pub longest_hold: Option<Duration>,
    pub counting: Counting,
    pub groups: Groups,
    pub depth: DepthCount,
    /// The largest body.
    pub max_bytes: usize,
}

/// The fate of an acknowledgement under a lease that has ended, once the message was handed out again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StaleAck {
    /// Refused: the new holder keeps the message.
    Refused,
    /// The acknowledgement may be taken, and then the message is gone while its new holder works. Make handlers
    /// idempotent.
    MayBeTaken,
}

/// The answer to an end that is said again after it was accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RepeatedEnd {
    /// Accepted again.
    Accepted,
    /// Answered as stale: who lost the first answer cannot tell it from a lost lease.
    Stale,
}

/// Whether two things are done as one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OneStep {
    /// Both or neither.
    Yes,
    /// The new message is stored, then the old one removed: a crash between both leaves both, and loses nothing.
    CopyFirst,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaseLength {
    /// The lease is as long as was asked for.
    Asked,
    /// The lease is as long as was asked for at the hand-out; each extension makes it that long again, whatever it asks
    /// for.
    Repeated,
    /// Always this long, from the hand-out and from each extension.
    Granted(Duration),
}

/// The hand-outs that count towards `max_deliveries`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counting {
    /// All but those that were released.
    Attempts,
    /// All.
    Deliveries,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Groups {
    /// Handed out one at a time, in order. The first of a group keeps the others waiting until it is settled for good.
    Ordered,
    /// A message with a group is refused.
    Refused,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DepthCount {
    Exact,
    /// Right in the end, when nobody sends or receives.
    Approximate,
}

/// Numbers of messages in a mailbox, by state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Depth {
    /// Messages neither handed out nor dead. Those that wait for a retry are here, or with the held ones where a broker
    /// cannot tell them apart.
    pub waiting: u64,
    pub held: u64,
    pub dead: u64,
}

impl Promises {
    /// Names of promises and what this mailbox says to each, as in `docs/mailboxes.md`.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let one_step = |one: OneStep| match one {
            OneStep::Yes => "one step",
            OneStep::CopyFirst => "copy first",
        };
        let text = [
            (
                "a stale ack is",
                match self.stale_ack {
                    StaleAck::Refused => "refused",
                    StaleAck::MayBeTaken => "perhaps taken",
                },
            ),
            (
                "an ack said twice is",
                match self.repeated_ack {
                    RepeatedEnd::Accepted => "accepted",
                    RepeatedEnd::Stale => "stale",
                },
            ),
            ("reply and ack", one_step(self.reply_with_ack)),
            ("to the dead letters", one_step(self.dead_letter)),
            (
                "a release",
                match self.counting {
                    Counting::Attempts => "does not count",
                    Counting::Deliveries => "counts",
                },
            ),
            (
                "groups",
                match self.groups {
                    Groups::Ordered => "one at a time, in order",
                    Groups::Refused => "refused",
                },
            ),
            (
                "depth",
                match self.depth {
                    DepthCount::Exact => "exact",
                    DepthCount::Approximate => "approximate",
                },
            ),
        ];
        let mut rows: Vec<(&str, String)> = text.map(|(name, value)| (name, value.to_owned())).into();
        let lease = match self.lease {
            LeaseLength::Asked => "as asked".into(),
            LeaseLength::Repeated => "as asked at first".into(),
            LeaseLength::Granted(_) => "of the consumer".into(),
        };
        let hold =
            self.longest_hold.map_or_else(|| "without end".into(), |hold| format!("{} min", hold.as_secs() / 60));
        rows.extend([
            ("length of a lease", lease),
            ("longest hold", hold),
            ("largest body", format!("{} KiB", self.max_bytes >> 10)),
        ]);
        rows
    }
}
