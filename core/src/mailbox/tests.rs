//! What a mailbox promises, in injected time.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const LEASE: Duration = Duration::from_secs(30);
const NO_DELAY: Duration = Duration::ZERO;

fn at(seconds: u64) -> Awake {
    Awake::from_ms(seconds * 1_000)
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn mailbox() -> MailboxMachine<&'static str> {
    MailboxMachine::new(MailboxRule::default())
}

fn one(mailbox: &mut MailboxMachine<&'static str>, now: Awake) -> Handout<&'static str> {
    let mut handed = mailbox.receive(now, 1, LEASE);
    assert_eq!(handed.len(), 1, "one is ready");
    handed.remove(0)
}

fn contents(handed: &[Handout<&'static str>]) -> Vec<&'static str> {
    handed.iter().map(|one| one.content).collect()
}

#[test]
fn a_message_is_held_until_its_lease_is_over() {
    let mut mailbox = mailbox();
    mailbox.send("a", None).unwrap();
    let first = one(&mut mailbox, at(0));
    assert_eq!((first.delivery, first.lease), (1, LEASE));
    assert!(mailbox.receive(at(29), 1, LEASE).is_empty());
    assert_eq!(mailbox.next_ready(), Some(at(30)));
    let second = one(&mut mailbox, at(30));
    assert_eq!(second.delivery, 2);
    assert!(second.proof.fence > first.proof.fence);
    assert_eq!(mailbox.settle(at(31), first.proof, MessageEnd::Ack), Err(Stale));
    assert_eq!(mailbox.extend(at(31), first.proof, LEASE), Err(Stale));
    assert_eq!(mailbox.depth(at(31)), MailboxDepth { waiting: 0, held: 1, dead: 0 });
    assert_eq!(mailbox.settle(at(31), second.proof, MessageEnd::Ack), Ok(()));
    assert_eq!(mailbox.depth(at(31)), MailboxDepth::default());
}

#[test]
fn a_lease_that_is_over_may_be_settled_while_nobody_else_has_the_message_but_not_extended() {
    let mut mailbox = mailbox();
    mailbox.send("a", None).unwrap();
    let held = one(&mut mailbox, at(0));
    assert_eq!(mailbox.extend(at(30), held.proof, LEASE), Err(Stale));
    assert_eq!(mailbox.settle(at(30), held.proof, MessageEnd::Ack), Ok(()));
    assert!(mailbox.receive(at(31), 1, LEASE).is_empty());
}

#[test]
fn an_extension_is_at_least_and_stops_at_the_longest_hold() {
    let mut mailbox = MailboxMachine::new(MailboxRule { longest_hold: Some(secs(100)), ..MailboxRule::default() });
    mailbox.send("a", None).unwrap();
    let held = one(&mut mailbox, at(0));
    // (asked at, asked, left)
    for (now, asked, left) in [(10, 5, 20), (10, 40, 40), (45, 50, 50), (60, 90, 40), (99, 90, 1)] {
        assert_eq!(mailbox.extend(at(now), held.proof, secs(asked)), Ok(secs(left)), "at {now}");
    }
    assert_eq!(mailbox.extend(at(100), held.proof, LEASE), Err(Stale));
    assert_eq!(mailbox.receive(at(100), 1, secs(500))[0].lease, secs(100), "nor is a first lease longer");
}

#[test]
fn retry_counts_and_release_does_not() {
    let mut mailbox = mailbox();
    mailbox.send("a", None).unwrap();
    let held = one(&mut mailbox, at(0));
    mailbox.settle(at(1), held.proof, MessageEnd::Release { after: secs(5) }).unwrap();
    assert!(mailbox.receive(at(5), 1, LEASE).is_empty());
    let held = one(&mut mailbox, at(6));
    assert_eq!(held.delivery, 1);
    mailbox.settle(at(6), held.proof, MessageEnd::Retry { after: NO_DELAY }).unwrap();
    assert_eq!(one(&mut mailbox, at(6)).delivery, 2);
}

#[test]
fn a_message_that_is_handed_out_too_often_dies_at_its_next_receive_and_is_replayed() {
    let mut mailbox = MailboxMachine::new(MailboxRule { max_deliveries: 2, ..MailboxRule::default() });
    mailbox.send("poison", None).unwrap();
    one(&mut mailbox, at(0));
    one(&mut mailbox, at(30));
    assert!(mailbox.receive(at(60), 1, LEASE).is_empty());
    mailbox.send("b", None).unwrap();
    let letters: Vec<_> = mailbox.dead().map(|letter| (letter.content, letter.deliveries, &*letter.why)).collect();
    assert_eq!(letters, [("poison", 2, "handed out 2 times without success")]);
    assert_eq!(mailbox.depth(at(60)), MailboxDepth { waiting: 1, held: 0, dead: 1 });
    assert_eq!((mailbox.replay(5), mailbox.replay(5)), (1, 0));
    let handed = mailbox.receive(at(90), 5, LEASE);
    assert_eq!(contents(&handed), ["b", "poison"], "behind all others");
    assert_eq!(handed[1].delivery, 1);
}

#[test]
fn a_dead_letter_keeps_its_reason() {
    let mut mailbox = mailbox();
    mailbox.send("a", None).unwrap();
    let held = one(&mut mailbox, at(0));
    mailbox.settle(at(0), held.proof, MessageEnd::Dead { why: "no such order".into() }).unwrap();
    assert_eq!(mailbox.dead().next().unwrap().why, "no such order");
    assert!(mailbox.receive(at(99), 1, LEASE).is_empty());
}

#[test]
fn a_group_goes_one_at_a_time_and_in_order_and_its_first_keeps_the_rest_waiting() {
    let mut mailbox = mailbox();
    let group = |name: &str| Some(Arc::from(name));
    for (content, name) in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("a3", "a")] {
        mailbox.send(content, group(name)).unwrap();
    }
    let handed = mailbox.receive(at(0), 9, LEASE);
    assert_eq!(contents(&handed), ["a1", "b1"]);
    mailbox.settle(at(1), handed[0].proof, MessageEnd::Retry { after: secs(10) }).unwrap();
    assert!(mailbox.receive(at(2), 9, LEASE).is_empty(), "a1 keeps its group while it waits for its retry");
    let again = one(&mut mailbox, at(11));
    assert_eq!(again.content, "a1");
    mailbox.settle(at(11), again.proof, MessageEnd::Dead { why: "no".into() }).unwrap();
    assert_eq!(one(&mut mailbox, at(11)).content, "a2");
    assert!(mailbox.receive(at(11), 9, LEASE).is_empty());
}

#[test]
fn repeating_an_accepted_end_is_accepted_and_another_end_is_not() {
    let mut mailbox = mailbox();
    mailbox.send("a", None).unwrap();
    let held = one(&mut mailbox, at(0));
    let retry = MessageEnd::Retry { after: secs(5) };
    assert_eq!(mailbox.settle(at(1), held.proof, retry.clone()), Ok(()));
    assert_eq!(mailbox.settle(at(2), held.proof, retry), Ok(()));
    assert_eq!(mailbox.next_ready(), Some(at(6)), "the repetition changed nothing");
    assert_eq!(mailbox.settle(at(2), held.proof, MessageEnd::Ack), Err(Stale));
    assert_eq!(mailbox.depth(at(2)).waiting, 1);
}

#[test]
fn a_full_mailbox_takes_no_more_and_counts_its_dead_letters() {
    let mut mailbox = MailboxMachine::new(MailboxRule { max_messages: 2, ..MailboxRule::default() });
    mailbox.send("a", None).unwrap();
    mailbox.send("b", None).unwrap();
    let held = one(&mut mailbox, at(0));
    mailbox.settle(at(0), held.proof, MessageEnd::Dead { why: "no".into() }).unwrap();
    assert_eq!(mailbox.send("c", None), Err(Full { max: 2 }));
}

#[derive(Clone, Debug)]
enum Op {
    Send { group: Option<u8> },
    Receive { max: usize, lease: u64 },
    Extend { which: usize, by: u64 },
    Settle { which: usize, end: u8, after: u64 },
    Replay { max: usize },
    Pass { seconds: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        proptest::option::of(0..3u8).prop_map(|group| Op::Send { group }),
        (1..4usize, 1..20u64).prop_map(|(max, lease)| Op::Receive { max, lease }),
        (0..40usize, 0..30u64).prop_map(|(which, by)| Op::Extend { which, by }),
        (0..40usize, 0..4u8, 0..10u64).prop_map(|(which, end, after)| Op::Settle { which, end, after }),
        (1..3usize).prop_map(|max| Op::Replay { max }),
        (1..15u64).prop_map(|seconds| Op::Pass { seconds }),
    ]
}

proptest! {
    /// Nothing is lost or doubled, a lease is exclusive, a group is in order, and only the newest hand-out is obeyed.
    #[test]
    fn a_mailbox_keeps_its_promises(ops in proptest::collection::vec(op(), 1..120)) {
        let rule = MailboxRule { max_deliveries: 3, ..MailboxRule::default() };
        let mut mailbox: MailboxMachine<(u32, Option<u8>)> = MailboxMachine::new(rule);
        let (mut now, mut sent, mut gone) = (at(0), 0_u32, BTreeSet::new());
        // What the newest hand-out of each message was, and until when its lease surely lasts.
        let mut newest: BTreeMap<MessageNumber, (HandoutFence, Awake, Option<u8>)> = BTreeMap::new();
        let mut all: Vec<HandoutFence> = Vec::new();
        let mut ended: BTreeSet<HandoutFence> = BTreeSet::new();
        for op in ops {
            match op {
                Op::Pass { seconds } => now = now + secs(seconds),
                Op::Send { group } => {
                    sent += 1;
                    let name = group.map(|group| Arc::from(group.to_string()));
                    mailbox.send((sent, group), name).unwrap();
                }
                Op::Receive { max, lease } => {
                    for handed in mailbox.receive(now, max, secs(lease)) {
                        let number = handed.proof.message;
                        if let Some((before, until, _)) = newest.get(&number) {
                            prop_assert!(*until <= now || ended.contains(before), "two hold {number:?}");
                            prop_assert!(before.fence < handed.proof.fence);
                        }
                        prop_assert!(handed.delivery <= 3);
                        let group = handed.content.1;
                        let alone = newest.iter().all(|(other, (proof, until, of))| {
                            *other == number || of.is_none() || *of != group || *until <= now || ended.contains(proof)
                        });
                        prop_assert!(alone, "two of group {group:?} are held");
                        newest.insert(number, (handed.proof, now + secs(lease), group));
                        all.push(handed.proof);
                    }
                }
                Op::Extend { which, by } if !all.is_empty() => {
                    let proof = all[which % all.len()];
                    let (last, until, _) = newest.get_mut(&proof.message).expect("it was handed out");
                    let is_held = *last == proof && now < *until && !ended.contains(&proof);
                    let answer = mailbox.extend(now, proof, secs(by));
                    prop_assert_eq!(answer.is_ok(), is_held);
                    if is_held {
                        *until = (*until).max(now + secs(by));
                        prop_assert_eq!(answer, Ok(until.since(now)));
                    }
                }
                Op::Settle { which, end, after } if !all.is_empty() => {
                    let proof = all[which % all.len()];
                    let is_newest = newest[&proof.message].0 == proof;
                    let end = match end {
                        0 => MessageEnd::Ack,
                        1 => MessageEnd::Retry { after: secs(after) },
                        2 => MessageEnd::Release { after: secs(after) },
                        _ => MessageEnd::Dead { why: "no".into() },
                    };
                    let is_ack = end == MessageEnd::Ack;
                    let accepted = mailbox.settle(now, proof, end).is_ok();
                    if accepted && !ended.contains(&proof) {
                        prop_assert!(is_newest, "a stale end was taken");
                        ended.insert(proof);
                        if is_ack {
                            prop_assert!(gone.insert(proof.message), "acknowledged twice");
                        }
                    }
                }
                Op::Replay { max } => {
                    let before = mailbox.depth(now);
                    let count = mailbox.replay(max);
                    prop_assert_eq!(count, max.min(before.dead));
                    prop_assert_eq!(mailbox.depth(now).waiting, before.waiting + count);
                }
                Op::Extend { .. } | Op::Settle { .. } => {}
            }
            let depth = mailbox.depth(now);
            prop_assert_eq!(depth.waiting + depth.held + depth.dead + gone.len(), sent as usize);
        }
        // Whatever happened: with time and acks it runs empty.
        for _ in 0..=4 * sent {
            now = now + secs(60);
            for handed in mailbox.receive(now, 9, secs(1)) {
                mailbox.settle(now, handed.proof, MessageEnd::Ack).unwrap();
            }
        }
        let depth = mailbox.depth(now);
        prop_assert_eq!((depth.waiting, depth.held), (0, 0));
    }
}
